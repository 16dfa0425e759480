package partition

import (
	"slices"
	"strings"
	"testing"
)

// Schedules that walks come by too rarely to count on.

// calmWorld is a world of three durable replicas in which nothing goes wrong by chance.
func calmWorld(t *testing.T) *world {
	t.Helper()
	for seed := uint64(1); seed < 1000; seed++ {
		w := newWorld(seed, true)
		if !w.os && !w.unclean && len(w.ids) == 3 && w.ctl.now.MinISR == 2 {
			w.ordered, w.faults, w.losses = true, false, false
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
func (w *world) quiesce() {
	for busy := true; busy && w.failed == ""; {
		busy = false
		for _, id := range w.ids {
			for n := w.nodes[id]; n.up && len(n.ops)+len(n.results) > 0; busy = true {
				if len(n.ops) > 0 {
					w.execute(n, 0)
					continue
				}
				ev := n.results[0]
				n.results = n.results[1:]
				w.step(n, w.stamp(ev))
			}
		}
		for _, l := range w.links {
			w.stream(l)
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

// remake deletes a replica of a process that lives on, and makes it anew, as a broker
// does that learns of its removal and then of its return.
func (w *world) remake(n *node) {
	for _, l := range w.links {
		if l.leader == n || l.follower == n {
			w.cutLink(l)
		}
	}
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
	for _, id := range []int32{1, 2} {
		w.start(w.nodes[id])
		w.ctl.vouch(w.nodes[id])
	}
	for range 50 {
		w.show(w.latest(), 1, 2, 3)
		w.quiesce()
		w.carryAll()
		w.pass()
	}
	if w.failed != "" {
		t.Fatalf("%s\n%s", w.failed, strings.Join(w.trace, "\n"))
	}
	if !slices.Contains(r.ISR, 3) {
		t.Errorf("3 does not come back into the in-sync set: %s", w.describe())
	}
}
