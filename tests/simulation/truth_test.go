package simulation

import (
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
	stamps   []int64           // the greatest timestamp of the batch, in ms, by offset
	sizes    []int             // the bytes of the batch
	kept     map[int64]kept    // records of a topic that is compacted, by offset
	newest   map[string]int64  // offset of the newest of each key
	appended int64             // end of the log of whoever appended last
	deleted  int64             // offsets below may be gone
	acked    map[int64]int64   // values acknowledged with acks=all, to their offsets
	where    map[int64]int64   // values that are committed, to their offsets
	owners   map[int32]claimed // who appended in a leader epoch
	record   cluster.Partition // the newest
	epochs   int32             // the highest leader epoch there was
	lost     map[int32]bool    // brokers whose copy went and is not replaced
	lossy    bool              // an unclean election took place: committed records may be gone
	asked    bool              // an operator asked for an unclean election
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
	wrong, at := "", from
	known := int64(len(p.truth))
	if !p.lossy {
		if from < known {
			if wrong = r.differs(from, min(to, known)); wrong != "" {
				r.w.fail("UNSTABLE", "broker %d#%d exposes of %s %s", r.b.id, r.b.inc, r.w.name(r.id), wrong)
				return to
			}
		}
	}
	r.batchesOf(from, to, func(h *record.Header, data []byte) {
		for o := max(h.BaseOffset, from); o < h.NextOffset(); o++ {
			switch {
			case o < int64(len(p.truth)):
			case o == int64(len(p.truth)):
				p.truth = append(p.truth, entry{h.CRC, h.BaseOffset, h.PartitionLeaderEpoch})
				p.stamps, p.sizes = append(p.stamps, h.MaxTimestamp), append(p.sizes, h.Size())
				if o == h.LastOffset() {
					p.commits(h, data)
				}
			default:
				if !p.lossy {
					r.w.fail("UNSTABLE", "broker %d#%d exposes offset %d of %s, and nothing was at %d", r.b.id, r.b.inc, o, r.w.name(r.id), len(p.truth))
					return
				}
			}
		}
		at = max(at, h.NextOffset())
	})
	// It may end in what was compacted away.
	if p.firstDue(at, to) < to && !p.lossy && r.w.failure == nil && !r.straddles(at, to) {
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
		case at < p.deleted && p.topic.os:
			// Power cuts take what hosts remember of producers, and the batches that told of
			// them are gone: retries from the first batch on are taken for new.
			w.count("a deleted first batch is stored again")
			p.forgetOrder(h)
		default:
			w.fail("DUPLICATED", "value %d of %s is committed at %d and at %d", value, w.name(p.id), at, offset)
		}
		p.where[value] = offset
	}
	p.keeps(h, records)
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
	if wrong := r.differs(max(r.core.Start(), p.deleted), int64(len(p.truth))); wrong != "" {
		p.w.fail("LOST", "broker %d#%d leads %s with %s", r.b.id, r.b.inc, p.w.name(p.id), wrong)
	}
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
	p.truth, p.stamps, p.sizes = p.truth[:keep], p.stamps[:keep], p.sizes[:keep]
	for int64(len(p.truth)) < r.core.Start() {
		p.truth, p.stamps, p.sizes = append(p.truth, entry{}), append(p.stamps, 0), append(p.sizes, 0) // it begins above everything that there was
	}
	p.forgetKept(keep)
	for v, o := range p.acked {
		if o >= keep {
			delete(p.acked, v)
		}
	}
}
