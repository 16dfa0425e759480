package simulation

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
)

// part is what is true of a partition, whatever any process thinks.
type part struct {
	w     *world
	id    cluster.PartitionID
	topic *topic

	// truth is what every replica that exposes an offset has there: the first to raise
	// its high watermark above it said so.
	truth    []entry
	appended int64             // end of the log of whoever appended last
	deleted  int64             // offsets below may be gone
	acked    map[int64]int64   // values acknowledged with acks=all, to their offsets
	where    map[int64]int64   // values that are committed, to their offsets
	owners   map[int32]claimed // who appended in a leader epoch
	record   cluster.Partition // the newest
	epochs   int32             // the highest leader epoch there was
	lost     map[int32]bool    // brokers whose copy went and is not replaced
	lossy    bool              // an unclean election took place: committed records may be gone
	gone     bool              // its topic was deleted
}

type claimed struct {
	broker int32
	inc    uint64
}

// entry is one offset: the batch it belongs to, by checksum and place, and the leader
// epoch of that.
type entry struct {
	crc   uint32
	base  int64
	epoch int32
}

func (w *world) part(id cluster.PartitionID) *part { return w.parts[id] }

// alive reports whether a partition's topic is there for clients at a revision.
func (w *world) alive(p *part, of *etcd, rev int64) bool {
	c, ok := of.at(cluster.Key{Type: cluster.KeyTopic, Topic: p.id.Topic}, rev)
	return ok && !c.rec.(cluster.Topic).Deleting
}

// claim notes who appends in a leader epoch: one broker in one life.
func (p *part) claim(r *replica, epoch int32) {
	me := claimed{r.b.id, r.b.inc}
	if was, ok := p.owners[epoch]; ok && was != me {
		p.w.fail("TWO-LEADERS", "%s, epoch %d: broker %d#%d appends, and %d#%d did", p.w.name(p.id), epoch, me.broker, me.inc, was.broker, was.inc)
	}
	p.owners[epoch] = me
	p.appended = r.log.EndOffset()
}

// watch looks at a replica after each step of its core.
func (r *replica) watch() {
	p := r.p
	hw := r.core.HighWatermark()
	if hw != r.hwSeen && r.log != nil && !r.cutting() {
		if hw > r.hwSeen {
			hw = r.exposes(max(r.hwSeen, r.log.StartOffset()), hw)
		}
		r.hwSeen = hw
	}
	if leader, epoch := r.core.Leader(); leader == r.b.self() && epoch > r.ledEpoch && r.core.Leads() {
		r.ledEpoch = epoch
		r.w.count("leadership begun")
		r.w.say("broker %d#%d leads %s in epoch %d: log [%d,%d), hw %d", r.b.id, r.b.inc, r.w.name(r.id), epoch, r.core.Start(), r.core.End(), hw)
		p.leads(r)
	}
}

// cutting reports whether the log is to be cut or emptied, or has been and the core
// does not know yet.
func (r *replica) cutting() bool {
	if r.cut {
		return true
	}
	switch r.task.(type) {
	case *partition.Truncate, *partition.Reset:
		return true
	}
	return false
}

// exposes compares what a replica makes visible with what is true, and returns where
// the whole batches below its high watermark end: after a start it may be the log
// start, within a batch, which nobody is served from then.
func (r *replica) exposes(from, to int64) int64 {
	p := r.p
	if r.b.disk.rotten[r.id] || p.gone {
		return to
	}
	at := from
	r.batchesOf(from, to, func(h *record.Header, data []byte) {
		for o := max(h.BaseOffset, from); o < h.NextOffset(); o++ {
			e := entry{h.CRC, h.BaseOffset, h.PartitionLeaderEpoch}
			switch {
			case o < int64(len(p.truth)):
				if p.truth[o] != e && !p.lossy {
					r.w.fail("UNSTABLE", "broker %d#%d exposes %+v at %d of %s, where %+v was exposed before", r.b.id, r.b.inc, e, o, r.w.name(r.id), p.truth[o])
					return
				}
			case o == int64(len(p.truth)):
				p.truth = append(p.truth, e)
				if o == h.LastOffset() {
					p.commits(h, data)
				}
			default:
				if !p.lossy {
					r.w.fail("UNSTABLE", "broker %d#%d exposes offset %d of %s, and nothing was at %d", r.b.id, r.b.inc, o, r.w.name(r.id), len(p.truth))
					return
				}
			}
			at = o + 1
		}
	})
	if at < to && !p.lossy && r.w.failure == nil && !r.straddles(at, to) {
		r.w.fail("UNSTABLE", "broker %d#%d exposes %s up to %d and holds nothing from %d on", r.b.id, r.b.inc, r.w.name(r.id), to, at)
	}
	if p.lossy {
		return to
	}
	return at
}

// straddles reports whether an offset lies within a batch that holds another too.
func (r *replica) straddles(at, to int64) (yes bool) {
	r.batchesOf(at, r.log.EndOffset(), func(h *record.Header, _ []byte) { yes = yes || h.BaseOffset <= at && h.LastOffset() >= to })
	return yes
}

// batchesOf reads batches for the checks, past everything that a broker would do.
func (r *replica) batchesOf(from, to int64, fn func(h *record.Header, data []byte)) {
	for from < to {
		res, err := r.log.Read(from, to, 1<<20, func(n int) []byte { return make([]byte, n) })
		if err != nil || len(res.Data) == 0 {
			return
		}
		for data := res.Data; len(data) > 0; {
			batch, rest, err := record.NextBatch(data)
			if err != nil {
				return
			}
			h, err := record.ParseHeader(batch)
			if err != nil {
				return
			}
			fn(&h, batch)
			data = rest
		}
		if res.NextOffset <= from {
			return
		}
		from = res.NextOffset
	}
}

// commits takes note of the records of a batch that is committed.
func (p *part) commits(h *record.Header, data []byte) {
	w := p.w
	w.count("batch committed")
	if p.topic.internal {
		return
	}
	records, err := record.Decode(data, 1<<20)
	if err != nil {
		w.fail("DAMAGED", "the committed batch at %d of %s cannot be decoded: %v", h.BaseOffset, w.name(p.id), err)
		return
	}
	for i := range records {
		value := valueOf(&records[i])
		offset := h.BaseOffset + int64(i)
		at, twice := p.where[value]
		switch {
		case !twice || h.ProducerID < 0 || p.lossy:
		case at < p.deleted:
			// Known: who began anew above deleted records knows nothing of their producers,
			// and takes retries from the first batch on for new.
			w.count("a deleted first batch is stored again")
			p.forgetOrder(h)
		default:
			w.fail("DUPLICATED", "value %d of %s is committed at %d and at %d", value, w.name(p.id), at, offset)
		}
		p.where[value] = offset
	}
	p.inOrder(h, valueOf(&records[0]))
}

// forgetOrder has the order of a producer's epoch begin anew.
func (p *part) forgetOrder(h *record.Header) {
	for _, wr := range p.w.writers {
		if wr.pid == h.ProducerID && wr.p == p {
			wr.committed[h.ProducerEpoch] = h.BaseSequence
		}
	}
}

// inOrder checks that the batches of a producer's epoch are committed without gaps.
func (p *part) inOrder(h *record.Header, value int64) {
	if h.ProducerID < 0 || p.lossy {
		return
	}
	for _, wr := range p.w.writers {
		if wr.pid != h.ProducerID || wr.p != p {
			continue
		}
		want := wr.committed[h.ProducerEpoch]
		if h.BaseSequence != want {
			p.w.fail("DISORDER", "producer %d/%d: sequence %d is committed at %d of %s where %d was due", h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.BaseOffset, p.w.name(p.id), want)
		}
		wr.committed[h.ProducerEpoch] = h.LastSequence() + 1
	}
}

// checkAck looks at an answer of a leader that says OK.
func (r *replica) checkAck(b *batch, e *partition.Reply) {
	p := r.p
	if e.Acks != partition.AcksAll || p.lossy || p.topic.internal || r.b.disk.rotten[r.id] || p.gone {
		return
	}
	for o := e.Base; o < e.Base+int64(e.Records); o++ {
		if o >= int64(len(p.truth)) || o >= p.deleted && p.truth[o].crc != b.header.CRC {
			r.w.fail("FALSE-ACK", "broker %d#%d acknowledges offset %d of %s, where the batch is not", r.b.id, r.b.inc, o, r.w.name(r.id))
			return
		}
	}
}

// leads checks that whoever begins to lead has every committed record.
func (p *part) leads(r *replica) {
	if p.gone {
		return
	}
	p.appended = r.core.End()
	if r.b.disk.rotten[r.id] && !p.lossy {
		// Nobody has looked at the damage yet. What its log remembers of producers may be
		// wrong, and nobody is told what it appends on top of.
		p.lossy = true
		p.w.count("a copy leads of which nobody knows that it is damaged")
	}
	if p.lossy {
		p.forgetBeyond(r)
		return
	}
	if _, epoch := r.core.Leader(); r.b.disk.rotten[r.id] || epoch < p.record.LeaderEpoch {
		return // a leader of yesterday may lack what was committed since
	}
	if end := r.core.End(); end < int64(len(p.truth)) {
		p.w.fail("LOST", "broker %d#%d leads %s with a log that ends at %d, and %d records are committed", r.b.id, r.b.inc, p.w.name(p.id), end, len(p.truth))
		return
	}
	from := max(r.core.Start(), p.deleted)
	r.batchesOf(from, int64(len(p.truth)), func(h *record.Header, _ []byte) {
		for o := max(h.BaseOffset, from); o <= h.LastOffset() && o < int64(len(p.truth)); o++ {
			if e := (entry{h.CRC, h.BaseOffset, h.PartitionLeaderEpoch}); p.truth[o] != e {
				p.w.fail("LOST", "broker %d#%d leads %s with %+v at %d, where %+v is committed", r.b.id, r.b.inc, p.w.name(p.id), e, o, p.truth[o])
				return
			}
		}
	})
}

// expect takes note that an election may lose records: what follows is not held
// against the mesh, but for what it must do all the same.
func (p *part) expect(ch cluster.LeaderChange) {
	p.lossy = true
	p.w.say("the election of broker %d as leader of %s may lose records (unclean=%v longest=%v)", ch.To.ID, p.w.name(p.id), ch.Unclean, ch.Longest)
}

// forgetBeyond lets go of what a leader that was elected uncleanly does not have.
func (p *part) forgetBeyond(r *replica) {
	keep := min(int64(len(p.truth)), r.core.End())
	p.truth = p.truth[:keep]
	for int64(len(p.truth)) < r.core.Start() {
		p.truth = append(p.truth, entry{}) // it begins above everything that there was
	}
	for v, o := range p.acked {
		if o >= keep {
			delete(p.acked, v)
		}
	}
}

// checkRecord looks at a partition's record as etcd takes it.
func (w *world) checkRecord(e *etcd, next cluster.Partition) {
	p := w.part(cluster.PartitionID{Topic: next.Topic, Number: next.Number})
	bad := func(rule string) { w.fail("RECORD", "%s: %s: %+v", w.name(p.id), rule, next) }
	old := p.record
	switch {
	case len(next.ISR) >= int(next.MinISR) && len(next.ELR) > 0:
		bad("with a sufficient ISR the ELR is empty")
	case !next.Leader.IsZero() && !slices.Contains(next.ISR, next.Leader.ID):
		bad("the leader is in the ISR")
	case next.PartitionEpoch <= old.PartitionEpoch && e == w.etcd && w.restored == nil:
		bad("a partition epoch never repeats")
	case next.LeaderEpoch < old.LeaderEpoch && w.restored == nil:
		bad("a leader epoch never goes down")
	case len(next.ISR)+len(next.ELR) == 0:
		bad("the last of ISR and ELR stays")
	}
	if len(old.ISR) > 0 {
		w.noteISR(p, old, next)
	}
	p.record = next
	p.epochs = max(p.epochs, next.LeaderEpoch)
}

func (w *world) noteISR(p *part, old, next cluster.Partition) {
	shrunk := slices.ContainsFunc(old.ISR, func(b int32) bool { return !slices.Contains(next.ISR, b) })
	grown := slices.ContainsFunc(next.ISR, func(b int32) bool { return !slices.Contains(old.ISR, b) })
	if shrunk {
		w.count("ISR shrunk")
	}
	if grown {
		w.count("ISR grown")
	}
	if len(next.ELR) > len(old.ELR) {
		w.count("replica kept in the ELR")
	}
	if len(next.Barred) > len(old.Barred) {
		w.count("replica barred")
	}
	if old.IsReassigning() && !next.IsReassigning() {
		w.count("reassignment ended")
	}
	for _, b := range next.ISR {
		// One that was proposed before its disk went.
		if !slices.Contains(old.ISR, b) && w.broker(b).lostSince(p) {
			w.say("  broker %d joins, whose copy of %s is lost", b, w.name(p.id))
			p.lost[b] = true
		}
	}
	for b := range p.lost {
		if !slices.Contains(next.ISR, b) && !slices.Contains(next.ELR, b) {
			w.say("  broker %d, whose copy of %s was lost, is no member any more", b, w.name(p.id))
			delete(p.lost, b)
		}
	}
	p.keepPromise(next)
}

// keepPromise notes where more disks are lost than the topic promises to bear: min was
// lowered since, or a member that had been proposed joined after its disk had gone.
func (p *part) keepPromise(rec cluster.Partition) {
	if p.lossy || len(p.lost) <= int(rec.MinISR)-1 {
		return
	}
	p.lossy = true
	p.w.count("more disks lost than promised")
	p.w.say("  %s has lost more disks than it can bear", p.w.name(p.id))
}

// lostSince reports whether the copy that a broker had in its life on record has been
// lost since.
func (b *broker) lostSince(p *part) bool {
	rec, ok := b.w.etcd.brokerAt(b.id, b.w.etcd.rev)
	if !ok {
		return false
	}
	life := rec.Process.Incarnation
	return life <= b.wiped || p.topic.os && life <= b.unplugged || life == b.inc && b.diskBad || b.disk.rotten[p.id]
}

// settleLosses takes disks off the list of those that were lost, once the replica is
// back in sync: what it held is on as many disks as before.
func (p *part) settleLosses() {
	for id := range p.lost {
		b := p.w.broker(id)
		r := b.get(p.id)
		rec, ok := p.w.etcd.brokerAt(id, p.w.etcd.rev)
		if ok && rec.Process == b.life() && b.up && !b.failing && r != nil && r.log != nil && r.verdict == partition.Intact && !b.disk.rotten[p.id] &&
			slices.Contains(p.record.ISR, id) && !slices.Contains(p.record.Barred, id) && r.log.DurableEnd() >= int64(len(p.truth)) {
			p.w.say("  the loss of broker %d's copy of %s is made good", id, p.w.name(p.id))
			delete(p.lost, id)
		}
	}
}

// mayLose reports whether a broker's disk, or its copies of some partitions, may go
// within what the topics promise.
func (w *world) mayLose(b *broker, which func(*part) bool) bool {
	for _, p := range w.order {
		if p.gone || !which(p) || p.lost[b.id] {
			continue
		}
		p.settleLosses()
		members := append(slices.Clone(p.record.ISR), p.record.ELR...)
		if !slices.Contains(members, b.id) {
			continue
		}
		left := 0
		for _, m := range members {
			if m != b.id && !p.lost[m] && !slices.Contains(p.record.Barred, m) {
				left++
			}
		}
		if len(p.lost)+1 > int(p.minInForce())-1 || left == 0 {
			return false
		}
	}
	return true
}

// minInForce is the smallest sufficient in-sync set that a partition has, or may have
// in a moment.
func (p *part) minInForce() int32 {
	m, t := p.record.MinISR, p.topic
	if c, ok := p.w.etcd.get(cluster.Key{Type: cluster.KeyTopic, Topic: p.id.Topic}); ok {
		if n, err := strconv.Atoi(c.rec.(cluster.Topic).Configs["min.insync.replicas"]); err == nil {
			m = min(m, int32(n))
		}
	}
	if t.altering > 0 || slices.ContainsFunc(p.w.etcd.late, func(x *txn) bool { return x.why == alterMin }) {
		m = min(m, t.low)
	}
	return m
}

// noteLoss takes note that a broker's copies went.
func (w *world) noteLoss(b *broker, which func(*part) bool) {
	for _, p := range w.order {
		if !p.gone && which(p) && (slices.Contains(p.record.ISR, b.id) || slices.Contains(p.record.ELR, b.id)) {
			p.lost[b.id] = true
			w.say("  that is the loss of a copy of %s", w.name(p.id))
		}
	}
}

// compareCopies compares the replicas byte by byte below their high watermarks.
func (w *world) compareCopies() {
	for _, p := range w.order {
		if p.gone {
			continue
		}
		var first *replica
		var have []byte
		var base, end int64
		for _, b := range w.bs[1:] {
			r := b.get(p.id)
			if r == nil || r.log == nil || r.core == nil || b.disk.rotten[p.id] || r.core.Down() != partition.ReasonNone || !slices.Contains(p.record.ISR, b.id) {
				continue
			}
			if p.lossy && r.core.HighWatermark() < int64(len(p.truth)) {
				continue
			}
			from := max(r.log.StartOffset(), p.deleted)
			to := r.core.HighWatermark()
			var data []byte
			r.batchesOf(from, to, func(_ *record.Header, d []byte) { data = append(data, d...) })
			if first == nil {
				first, have, base, end = r, data, from, to
				continue
			}
			if from != base {
				continue
			}
			n := min(len(have), len(data))
			if end == to && len(have) != len(data) || !bytes.Equal(have[:n], data[:n]) {
				w.fail("DIVERGED", "brokers %d and %d differ below their high watermarks of %s (%d and %d)", first.b.id, b.id, w.name(p.id), end, to)
			}
		}
	}
}

// checkAcked looks for every acknowledged record on the leaders, at the end.
func (w *world) checkAcked() {
	for _, p := range w.order {
		if b := w.broker(p.record.Leader.ID); p.gone || p.topic.internal || p.lossy || b == nil || b.disk.rotten[p.id] {
			continue
		}
		for v, o := range p.acked {
			if at, ok := p.where[v]; (!ok || at != o) && !p.lossy && o >= p.deleted {
				w.fail("LOST", "value %d, acknowledged at %d of %s, is committed nowhere or at %d", v, o, w.name(p.id), at)
			}
			if o >= int64(len(p.truth)) {
				w.fail("LOST", "value %d, acknowledged at %d of %s, is beyond what is visible (%d)", v, o, w.name(p.id), len(p.truth))
			}
		}
	}
}

// sayWrite tells a write to etcd.
func (e *etcd) sayWrite(t *txn, wr cluster.Write) {
	w := e.w
	if !w.tracing {
		return
	}
	what := fmt.Sprintf("%s deleted", keyName(wr.Key))
	switch r := wr.Record.(type) {
	case cluster.Partition:
		what = fmt.Sprintf("%s: pe=%d leader=%d#%d epoch=%d isr=%v elr=%v barred=%v replicas=%v min=%d", w.name(cluster.PartitionID{Topic: r.Topic, Number: r.Number}),
			r.PartitionEpoch, r.Leader.ID, r.Leader.Incarnation, r.LeaderEpoch, r.ISR, r.ELR, r.Barred, r.Replicas, r.MinISR)
		if r.IsReassigning() {
			what += fmt.Sprintf(" target=%v", r.TargetReplicas)
		}
	case cluster.Broker:
		what = fmt.Sprintf("broker record %d#%d fenced=%v draining=%v", r.Process.ID, r.Process.Incarnation, r.Fenced, r.Draining)
	case cluster.Registration, cluster.Election:
		return
	default:
		if wr.Record != nil {
			what = fmt.Sprintf("%T", wr.Record)
		}
	}
	w.say("  etcd r%d (%v, %s): %s", e.rev, t.from, t.why, what)
}
