package simulation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
)

// maxRecovery bounds the steps without faults, firstRecovery numbers the first.
const (
	maxRecovery   = 40_000
	firstRecovery = 1_000_000
)

// recover takes steps without faults until everything is in sync, agrees and goes on.
func (w *world) recover(all []action) {
	w.say("--- no more faults")
	w.faults = false
	w.sum = 0
	for i, a := range all {
		w.weights[i] = a.weight
		if a.fault {
			w.weights[i] = 0
		}
		w.sum += w.weights[i]
	}
	w.heal()
	w.etcdBack()
	w.etcd.late = nil
	for _, l := range w.links {
		w.breakLink(l) // of those that lose messages nothing can be expected
	}
	for _, c := range w.ctls {
		c.paused = false
		if !c.up {
			c.start()
		}
	}
	if w.groups != nil {
		for _, c := range w.groups.coords {
			c.paused = false
		}
	}
	for _, b := range w.bs[1:] {
		b.paused, b.diskHung, b.failing = false, false, false
		b.disk.room = roomy
		b.disk.setRules()
		if b.up && b.adopted && b.of != nil {
			b.apply()
		}
	}
	goal := map[*part]int{}
	for _, p := range w.order {
		goal[p] = len(p.truth) + 1
	}
	for i := range maxRecovery {
		w.take(all, firstRecovery+i)
		if w.failure != nil {
			return
		}
		if i%1000 == 0 {
			w.operate()
		}
		if i%32 == 0 && w.whole(goal) {
			w.count("walk ended whole")
			w.counts["steps to be whole"] += i
			w.compareCopies()
			w.checkAcked()
			return
		}
	}
	w.fail("STUCK", "%s", w.describe(goal))
}

// operate stands for an operator, who looks when something does not come back by
// itself. Brokers whose disks failed are started again by the walk itself.
func (w *world) operate() {
	for _, id := range w.etcdReassignments() {
		w.resumeReassignment(id)
	}
	for _, p := range w.order {
		if p.gone || !p.lossy || !p.record.Leader.IsZero() {
			continue
		}
		// Whoever was elected uncleanly is gone in its turn.
		name := []cluster.PartitionName{{Topic: p.topic.name, Partition: p.id.Number}}
		w.admin("elect unclean", func(s *cluster.State, _ int) (cluster.Plan, error) {
			plan, _, err := cluster.ElectLeaders(s, cluster.ElectUnclean, name)
			return plan, err
		})
	}
}

// whole reports whether all is well.
func (w *world) whole(goal map[*part]int) bool {
	if w.leftovers() != "" {
		return false
	}
	if len(w.etcdReassignments()) > 0 && !slices.ContainsFunc(w.order, (*part).beyondHelp) {
		return false
	}
	for _, b := range w.bs[1:] {
		rec, ok := w.etcd.brokerAt(b.id, w.etcd.rev)
		if !b.up || b.diskBad || b.cramped || !ok || rec.Fenced || rec.Process != b.life() {
			return false
		}
	}
	for _, p := range w.order {
		if p.gone {
			continue
		}
		rec := p.record
		if p.beyondHelp() {
			continue // a damaged copy was elected, and nobody has another
		}
		if rec.Leader.IsZero() || len(rec.ISR) != len(rec.Replicas) || len(rec.Barred) > 0 || len(p.truth) < goal[p] {
			return false
		}
		for _, id := range rec.Replicas {
			r := w.broker(id).get(p.id)
			if r == nil || r.core == nil || r.core.Down() != partition.ReasonNone || r.core.HighWatermark() < int64(goal[p]) || r.core.PartitionEpoch() != rec.PartitionEpoch {
				return false
			}
		}
	}
	return w.groups == nil || w.groups.whole()
}

// beyondHelp reports whether a partition is led by a copy of which nobody knows that
// it is damaged, because all others were lost.
func (p *part) beyondHelp() bool {
	b := p.w.broker(p.record.Leader.ID)
	return p.lossy && b != nil && b.disk.rotten[p.id]
}

// describe tells why a mesh is not whole.
func (w *world) describe(goal map[*part]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "the mesh does not become whole:\n")
	if c := w.leader(); c != nil {
		fmt.Fprintf(&b, "controller %d leads, rev %d of %d, job %+v, inbox %d\n", c.id, c.rev, w.etcd.rev, c.job, len(c.inbox))
	} else {
		fmt.Fprintf(&b, "no controller leads\n")
	}
	for _, x := range w.bs[1:] {
		rec, _ := w.etcd.brokerAt(x.id, w.etcd.rev)
		fmt.Fprintf(&b, "broker %d#%d up=%v adopted=%v regressed=%v disk bad=%v cramped=%v registered=%d rev=%d record=#%d fenced=%v draining=%v bad=%v\n",
			x.id, x.inc, x.up, x.adopted, x.regressed, x.diskBad, x.cramped, x.regRev, x.rev, rec.Process.Incarnation, rec.Fenced, rec.Draining, len(x.bad))
	}
	if left := w.leftovers(); left != "" {
		fmt.Fprintf(&b, "of deleted topics: %s\n", left)
	}
	for _, p := range w.order {
		rec := p.record
		fmt.Fprintf(&b, "%s: committed %d of %d wanted, leader %d#%d epoch %d pe=%d isr=%v elr=%v barred=%v replicas=%v min=%d target=%v lossy=%v lost=%v unclean=%v\n", w.name(p.id), len(p.truth), goal[p],
			rec.Leader.ID, rec.Leader.Incarnation, rec.LeaderEpoch, rec.PartitionEpoch, rec.ISR, rec.ELR, rec.Barred, rec.Replicas, rec.MinISR, rec.TargetReplicas, p.lossy, p.lost, p.topic.unclean)
		for _, x := range w.bs[1:] {
			r := x.get(p.id)
			if r == nil {
				if slices.Contains(rec.Replicas, x.id) {
					fmt.Fprintf(&b, "   broker %d has none\n", x.id)
				}
				continue
			}
			fmt.Fprintf(&b, "   broker %d: verdict %v fresh=%v pardoned=%v condemned=%v rotten=%v", x.id, r.verdict, r.fresh, r.pardoned, r.condemned, x.disk.rotten[p.id])
			if r.core != nil {
				leader, epoch := r.core.Leader()
				fmt.Fprintf(&b, " core: leads=%v follows=%v leader=%v epoch=%d pe=%d log [%d,%d) durable %d hw %d down=%v task=%v sync=%d results=%d wake=%v now=%v members=%+v",
					r.core.Leads(), r.core.Follows(), leader, epoch, r.core.PartitionEpoch(), r.core.Start(), r.core.End(), r.core.Durable(), r.core.HighWatermark(), r.core.Down(), r.task != nil, r.syncOp, len(r.results), r.wake, w.now, r.core.Members(nil))
			}
			if l := r.upstream; l != nil {
				fmt.Fprintf(&b, " upstream: broken=%v said=%v parked=%v up=%d down=%d from=%d", l.broken, l.said, l.parked != nil, len(l.up), len(l.down), l.from)
			}
			fmt.Fprintln(&b)
		}
	}
	if w.groups != nil {
		b.WriteString(w.groups.describe())
	}
	for _, wr := range w.writers {
		if len(wr.pending) > 0 {
			s := wr.pending[0]
			fmt.Fprintf(&b, "producer %d of %s: %d pending, first from sequence %d, busy=%d stuck=%d epoch=%d of %d, %+v\n", wr.pid, w.name(wr.p.id), len(wr.pending), s.header.BaseSequence, s.busy, s.stuck, s.header.ProducerEpoch, wr.epoch, wr.said)
		}
	}
	return b.String()
}

// restoreEtcd has etcd restored from an older state, which must end in
// METADATA_REGRESSED on every broker that has followed more.
func (w *world) restoreEtcd(all []action) {
	w.faults = false
	w.heal()
	w.etcdBack()
	for _, b := range w.bs[1:] {
		b.disk.room = roomy
		b.disk.setRules()
	}
	oldest := w.etcd.rev
	for _, b := range w.bs[1:] {
		oldest = min(oldest, b.disk.hist.rev)
	}
	back := oldest - 1 - int64(w.n(40))
	if back < 3 {
		return // some broker has noted nothing yet
	}
	// Detection by revision needs that etcd has not caught up with what was followed by
	// the time the brokers look.
	same := w.chance(50) && oldest-back > 30
	w.restored = w.etcd
	w.count("fault: etcd restored")
	w.say("etcd is restored as it was at revision %d of %d (the same cluster id: %v)", back, w.etcd.rev, same)
	w.etcd = w.etcd.restore(back, same)
	for _, c := range w.ctls {
		c.endTerm("etcd was restored")
		c.lease = nil
		c.start()
	}
	if same {
		// A volume was put back, with everything stopped.
		for _, b := range w.bs[1:] {
			if b.up {
				b.crash(false, nil)
			}
			b.start()
		}
	}
	w.sum = 0
	for i, a := range all {
		w.weights[i] = a.weight
		if a.fault {
			w.weights[i] = 0
		}
		w.sum += w.weights[i]
	}
	acked := w.counts["record acknowledged"]
	for i := range maxRecovery {
		w.take(all, 2_000_000+i)
		if w.failure != nil {
			return
		}
		done := true
		for _, b := range w.bs[1:] {
			done = done && b.up && b.regressed
		}
		if done {
			w.count("restored etcd noticed by all")
			_ = acked
			return
		}
	}
	w.fail("REGRESSION", "etcd was restored as it was at revision %d, and not every broker has noticed: %s", back, w.describe(map[*part]int{}))
}

func (w *world) resumeReassignment(id string) {
	w.admin("resume reassignment", func(s *cluster.State, _ int) (cluster.Plan, error) {
		return cluster.ControlReassignment(s, id, cluster.ResumeReassignment)
	})
}
