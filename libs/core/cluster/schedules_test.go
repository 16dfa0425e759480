package cluster

import (
	"slices"
	"testing"
)

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

// TestDamagedReplicaIsNotAdded: a leader proposes to add a follower that has everything.
// While the proposal is on its way the follower finds its copy damaged, says so, and begins
// anew. It is no member, so that there is nobody to be barred, and it is the same process
// in the same leader epoch; without a new partition epoch it is added, and leads with
// nothing (simulation seed 20000833).
func TestDamagedReplicaIsNotAdded(t *testing.T) {
	w, p := minTwo(t)
	p = w.now(p)
	p.ISR = []int32{1, 2}
	w.Set(p, 1, 77)
	proposal := w.proposal(w.now(p), 1, 2, 3)
	w.report(t, w.life(3), as(p, Corrupt, 1, 9))
	if plan, err := ProposeISR(w.State, proposal); err == nil {
		w.apply(t, plan, nil)
	} else {
		wantReason(t, err, "STALE_PARTITION_EPOCH")
	}
	w.stop(t, 1)
	w.stop(t, 2)
	if q := w.now(p); q.Leader.ID == 3 || member(&q, 3) {
		t.Errorf("LOST: 3, which begins anew, may lead: %+v", q)
	}
	// Once it has caught up it is proposed again.
	w.start(t, 2, w.vouchAll(2, Intact))
	w.start(t, 1, w.vouchAll(1, Intact))
	q := w.now(p)
	plan, err := ProposeISR(w.State, w.proposal(q, q.Leader.ID, 3))
	w.apply(t, plan, err)
	if q = w.now(p); !slices.Contains(q.ISR, 3) {
		t.Errorf("%+v", q)
	}
}

// TestLateProposalIsRefused: a proposal to add a follower is sent again, because its
// answer got lost. The follower comes into the in-sync set, falls behind and leaves it,
// and records are committed without it. Then the first sending arrives. The leader is
// the same in the same leader epoch, and so is the follower's process: only the record
// that the proposal builds on tells that it is of an earlier time.
func TestLateProposalIsRefused(t *testing.T) {
	w, p := minTwo(t)
	p = w.now(p)
	p.ISR = []int32{1, 2}
	w.Set(p, 1, 77)
	late := w.proposal(w.now(p), 1, 2, 3)
	plan, err := ProposeISR(w.State, late)
	w.apply(t, plan, err)
	plan, err = ProposeISR(w.State, w.proposal(w.now(p), 1, 2))
	w.apply(t, plan, err)
	if q := w.now(p); q.Leader != late.Leader || q.LeaderEpoch != late.LeaderEpoch || !slices.Equal(q.ISR, p.ISR) || w.life(3) != late.ISR[2] {
		t.Fatalf("more than the partition epoch tells: %+v", q)
	}
	// What is committed now 3 does not have.
	if plan, err = ProposeISR(w.State, late); err == nil {
		w.apply(t, plan, nil)
	}
	refused := err
	w.stop(t, 1)
	w.stop(t, 2)
	if q := w.now(p); q.Leader.ID == 3 || member(&q, 3) {
		t.Errorf("LOST: 3, which lacks what 1 and 2 committed, may lead: %+v", q)
	}
	wantReason(t, refused, "STALE_PARTITION_EPOCH")
	// Those that have the records lead again when they are back.
	w.start(t, 2, w.vouchAll(2, Intact))
	w.start(t, 1, w.vouchAll(1, Intact))
	if q := w.now(p); q.Leader.ID != 1 && q.Leader.ID != 2 {
		t.Errorf("nobody leads who could: %+v", q)
	}
}
