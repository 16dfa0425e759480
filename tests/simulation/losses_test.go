package simulation

import (
	"slices"
	"strconv"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
)

// keepAsked notes where an operator had a leader elected where the mesh itself would have
// waited, and who was elected has lost its copy by then.
func (p *part) keepAsked(old, next cluster.Partition) {
	alive := func(b int32) bool { return !p.lost[b] }
	if !p.asked || p.lossy || !old.Leader.IsZero() || next.Leader.IsZero() || slices.ContainsFunc(next.ISR, alive) || slices.ContainsFunc(next.ELR, alive) {
		return
	}
	p.lossy = true
	p.w.count("an operator asked for a leader whose copy was lost")
	p.w.say("  %s has a leader that an operator asked for, whose copy is lost", p.w.name(p.id))
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
		if p.gone || !which(p) {
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
		// One that was lost may have been made anew, and be all there is.
		again := p.lost[b.id] && (p.lossy || left > 0)
		if !again && (left == 0 || !p.lost[b.id] && len(p.lost)+1 > int(p.minInForce())-1) {
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
