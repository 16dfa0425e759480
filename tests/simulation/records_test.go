package simulation

import (
	"slices"

	"github.com/leat-io/leat/libs/core/cluster"
)

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
	case next.LeaderEpoch < w.floors[p.topic.name] && !p.topic.born && w.restored == nil:
		bad("the leader epochs of a name never go down")
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
	p.keepAsked(old, next)
	p.keepPromise(next)
}
