package cluster

import "testing"

// TestPredecessorIsNotAdded: a leader proposes to add a follower that has everything.
// While the proposal is on its way the follower's process dies, its disk is lost, and
// another life takes its place, which has nothing. No record of the partition was
// written meanwhile, so that its epochs do not tell; the incarnation does.
func TestPredecessorIsNotAdded(t *testing.T) {
	w, p := minTwo(t)
	p = w.now(p)
	p.ISR = []int32{1, 2}
	w.Set(p, 1, 77)
	proposal := w.proposal(p, 1, 2, 3)
	w.stop(t, 3)
	w.start(t, 3, as(p, Missing, -1, 0))
	if q := w.now(p); q.PartitionEpoch != p.PartitionEpoch {
		t.Fatalf("the record was written, and the proposal is old: %+v", q)
	}
	plan, err := ProposeISR(w.State, proposal)
	w.apply(t, plan, err)
	w.stop(t, 1)
	w.stop(t, 2)
	if q := w.now(p); q.Leader.ID == 3 || member(&q, 3) {
		t.Errorf("LOST: 3, which has nothing, may lead: %+v", q)
	}
	// Those that have the records lead again when they are back.
	w.start(t, 2, w.vouchAll(2, Intact))
	w.start(t, 1, w.vouchAll(1, Intact))
	if q := w.now(p); q.Leader.ID != 1 && q.Leader.ID != 2 {
		t.Errorf("nobody leads who could: %+v", q)
	}
}
