package partition

import (
	"slices"
	"strings"
	"testing"
)

// Schedules that walks come by too rarely to count on.

// calmWorld is a world of three durable replicas, which have records, and in which
// nothing goes wrong by chance.
func calmWorld(t *testing.T) *world {
	t.Helper()
	for seed := uint64(1); seed < 1000; seed++ {
		w := newWorld(seed, true)
		if !w.os && !w.unclean && len(w.ids) == 3 && w.ctl.now.MinISR == 2 && len(w.committed) > 0 {
			w.ordered, w.faults, w.losses, w.calm = true, false, false, true
			return w
		}
	}
	t.Fatal("no seed gives three durable replicas")
	return nil
}

// show has nodes apply a record of the history, passing over those between.
func (w *world) show(at int, ids ...int32) {
	for _, id := range ids {
		n := w.nodes[id]
		h := w.ctl.history[at]
		r := h.Record
		r.Now, r.OnRecord = w.now, h.incarnation[id] == n.inc
		n.cursor = max(n.cursor, at)
		w.step(n, &r)
	}
}

func (w *world) latest() int { return len(w.ctl.history) - 1 }

// quiesce lets logs and links do all they have to do.
func (w *world) quiesce() { w.quiesceBut(func(*node, any) bool { return false }) }

// quiesceBut leaves what hold names: an operation of a node's log, or a *link on which
// a node follows, which brings no records then.
func (w *world) quiesceBut(hold func(n *node, what any) bool) {
	for busy := true; busy && w.failed == ""; {
		busy = false
		for _, id := range w.ids {
			for n := w.nodes[id]; n.up; busy = true {
				if op := slices.IndexFunc(n.ops, func(op Effect) bool { return !hold(n, op) }); op >= 0 {
					w.execute(n, op)
					continue
				}
				if len(n.results) == 0 {
					break
				}
				ev := n.results[0]
				n.results = n.results[1:]
				w.step(n, w.stamp(ev))
			}
		}
		for _, l := range w.links {
			if !hold(l.follower, l) {
				w.stream(l)
			}
			for ; !l.broken && len(l.up)+len(l.down) > 0; busy = true {
				w.deliver(l)
			}
		}
	}
}

// send produces a record to the leader, to be acknowledged by all.
func (w *world) send() {
	w.nextReq++
	w.nextValue++
	n := w.nodes[w.ctl.now.Leader.Broker]
	w.clients[0] = client{value: w.nextValue, acks: AcksAll, busy: true}
	w.values[w.nextReq] = w.nextValue
	w.requests[w.nextReq] = &request{value: w.nextValue, acks: AcksAll, node: n}
	w.step(n, &Produce{Req: w.nextReq, LeaderEpoch: -1, Acks: AcksAll, Now: w.now, Deadline: w.now + simLease, Records: 1})
}

// carryAll takes every proposal to the controller.
func (w *world) carryAll() {
	for len(w.proposals) > 0 {
		w.carryProposal()
	}
}

// comeBack starts nodes that are down, and has the controller take their word.
func (w *world) comeBack(ids ...int32) {
	for _, id := range ids {
		w.start(w.nodes[id])
		w.ctl.vouch(w.nodes[id])
	}
}

// heal lets time go by in which nothing goes wrong, and sees that all are in sync
// then and that records are acknowledged.
func (w *world) heal(t *testing.T) {
	t.Helper()
	turns := func() {
		for range 50 {
			w.show(w.latest(), w.ids...)
			w.quiesce()
			w.carryAll()
			w.pass()
			w.ctl.review()
		}
	}
	turns()
	before := w.answered
	if w.failed == "" && w.ctl.now.Leader.Broker != 0 {
		w.send()
		turns()
	}
	if w.failed != "" {
		t.Fatalf("%s\n%s", w.failed, strings.Join(w.trace, "\n"))
	}
	if w.answered != before+1 || !w.whole(w.answered) {
		t.Errorf("%d of 1 records were acknowledged, and this is not whole again: %s", w.answered-before, w.describe())
	}
}

// remake deletes a replica of a process that lives on, and makes it anew, as a broker
// does that learns of its removal and then of its return.
func (w *world) remake(n *node) {
	w.cutOff(n)
	n.disk, n.st = simDisk{}, New(Replica{Broker: n.id, Incarnation: n.inc})
	n.ops, n.results, n.refs, n.wake, n.hw = nil, nil, map[int64][]entry{}, 0, 0
	w.step(n, Settings{LagTimeMax: 2 * simLease, LeaseTTL: simLease})
	w.step(n, Flushing{})
	w.step(n, &Opened{MaxEpochSeen: -1})
}

// TestRemovalLearnedLate: a replica is removed and added again before it hears of
// either. It still follows under the record before, and has every record: but it will
// delete them, so that only a position that names the leader's partition epoch makes
// it a member.
func TestRemovalLearnedLate(t *testing.T) {
	w := calmWorld(t)
	w.show(w.latest(), 1, 2, 3)
	w.quiesce()
	r := &w.ctl.now
	r.Replicas, r.ISR = []int32{1, 2}, []int32{1, 2}
	w.ctl.write("3 is removed")
	r.Replicas = []int32{1, 2, 3}
	w.ctl.write("3 is added again")
	w.show(w.latest(), 1, 2)
	w.send()
	w.quiesce()
	if got, want := w.nodes[3].disk.end(), w.nodes[1].disk.end(); w.answered != 1 || got != want {
		t.Fatalf("%d records are acknowledged, and 3 holds %d of %d", w.answered, got, want)
	}
	w.carryAll()
	w.remake(w.nodes[3]) // it has heard of its removal
	for _, id := range []int32{1, 2} {
		w.crash(w.nodes[id], false)
		w.ctl.fence(id)
	}
	w.show(w.latest(), 3)
	w.quiesce()
	w.comeBack(1, 2)
	w.heal(t)
}

// TestPowerCutTakesWhatIsNotDurable: followers have a record, but not on their disks
// yet, when power fails everywhere; and the leader's disk does not survive it. One disk
// of two that have to have a record is what may be lost: so it was no record yet.
func TestPowerCutTakesWhatIsNotDurable(t *testing.T) {
	w := calmWorld(t)
	w.show(w.latest(), 1, 2, 3)
	w.quiesce()
	end := w.nodes[1].disk.end() + 1
	w.send()
	w.quiesceBut(func(n *node, what any) bool {
		_, syncs := what.(*Sync)
		return syncs && n.id != 1
	})
	for _, id := range w.ids {
		durable := end
		if id != 1 {
			durable--
		}
		if d := &w.nodes[id].disk; d.end() != end || d.durable != durable {
			t.Fatalf("all are to have the record, and only the leader durably; %d has %v", id, d)
		}
	}
	for _, id := range w.ids {
		w.crash(w.nodes[id], true)
	}
	w.wipe(w.nodes[1])
	for _, id := range w.ids {
		w.ctl.fence(id)
	}
	w.comeBack(2, 3, 1)
	w.heal(t)
}

// TestJoinsAtTheEpochsStart: a record is committed, which the follower that leads next
// has and does not know to be. To another that lacks it and has all below the new
// leader's high watermark, that is everything that was committed, as far as the new
// leader can tell by it. Where its epoch begins tells more: it lacks nothing below that.
func TestJoinsAtTheEpochsStart(t *testing.T) {
	w := calmWorld(t)
	r := &w.ctl.now
	r.ISR = []int32{1, 2}
	w.ctl.write("3 is not in sync")
	w.show(w.latest(), 1, 2)
	w.quiesce()
	w.send()
	// 2 tells that it has the record; with the leader's own sync it is committed.
	w.quiesceBut(func(n *node, what any) bool {
		_, syncs := what.(*Sync)
		return syncs && n.id == 1
	})
	one := w.nodes[1]
	w.execute(one, 0)
	synced := one.results[0]
	one.results = one.results[1:]
	w.step(one, w.stamp(synced))
	if w.answered != 1 {
		t.Fatalf("the record is to be acknowledged: %s", w.describe())
	}
	w.cutOff(w.nodes[1]) // 2 does not hear of it
	w.ctl.lead(2)
	w.ctl.write("2 leads")
	w.show(w.latest(), 2, 3)
	w.quiesceBut(func(n *node, what any) bool {
		_, copies := what.(*link)
		return copies && n.id == 3
	})
	two := w.nodes[2].st
	if p := two.peer(3); !p.agreed || p.partEpoch != r.PartEpoch || p.durable != two.log.hw || two.epochStart != two.log.hw+1 {
		t.Fatalf("3 is to be one short of where the epoch of 2 begins, at %d, and has all below its high watermark %d: %+v",
			two.epochStart, two.log.hw, p)
	}
	w.carryAll()
	for _, id := range []int32{1, 2} {
		w.crash(w.nodes[id], false)
		w.ctl.fence(id)
	}
	w.show(w.latest(), 3)
	w.quiesce()
	w.comeBack(2, 1)
	w.heal(t)
}
