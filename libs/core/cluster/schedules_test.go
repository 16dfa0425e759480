package cluster

import (
	"slices"
	"testing"
)

// proposedToAdd3 is a mesh in which 1, the leader, and 2 are in sync, and the proposal of 1
// to add 3, which has everything, too.
func proposedToAdd3(t *testing.T) (*world, Partition, ISRProposal) {
	t.Helper()
	w, p := minTwo(t)
	p = w.now(p)
	p.ISR = []int32{1, 2}
	w.Set(p, 1, 77)
	p = w.now(p)
	return w, p, w.proposal(p, 1, 2, 3)
}

// leaderlessWithout3 stops 1 and 2, after which 3 must not lead, and says why.
func leaderlessWithout3(t *testing.T, w *world, p Partition, why string) {
	t.Helper()
	w.stop(t, 1)
	w.stop(t, 2)
	if q := w.now(p); q.Leader.ID == 3 || member(&q, 3) {
		t.Errorf("LOST: 3, which %s, may lead: %+v", why, q)
	}
}

// othersLeadAgain starts 1 and 2, which have the records: one of them leads.
func othersLeadAgain(t *testing.T, w *world, p Partition) {
	t.Helper()
	w.start(t, 2, w.vouchAll(2, Intact))
	w.start(t, 1, w.vouchAll(1, Intact))
	if q := w.now(p); q.Leader.ID != 1 && q.Leader.ID != 2 {
		t.Errorf("nobody leads who could: %+v", q)
	}
}

// TestPredecessorIsNotAdded: a leader proposes to add a follower that has everything.
// While the proposal is on its way the follower's process dies, its disk is lost, and
// another life takes its place, which has nothing. No record of the partition was
// written meanwhile, so that its epochs do not tell; the incarnation does.
func TestPredecessorIsNotAdded(t *testing.T) {
	w, p, proposal := proposedToAdd3(t)
	w.stop(t, 3)
	w.start(t, 3, as(p, Missing, -1, 0))
	if q := w.now(p); q.PartitionEpoch != p.PartitionEpoch {
		t.Fatalf("the record was written, and the proposal is old: %+v", q)
	}
	plan, err := ProposeISR(w.State, proposal)
	w.apply(t, plan, err)
	leaderlessWithout3(t, w, p, "has nothing")
	othersLeadAgain(t, w, p)
}

// TestDamagedReplicaIsNotAdded: a leader proposes to add a follower that has everything.
// While the proposal is on its way the follower finds its copy damaged, says so, and begins
// anew. It is no member, so that there is nobody to be barred, and it is the same process
// in the same leader epoch; without a new partition epoch it is added, and leads with
// nothing (simulation seed 20000833).
func TestDamagedReplicaIsNotAdded(t *testing.T) {
	w, p, proposal := proposedToAdd3(t)
	w.report(t, w.life(3), as(p, Corrupt, 1, 9))
	if plan, err := ProposeISR(w.State, proposal); err == nil {
		w.apply(t, plan, nil)
	} else {
		wantReason(t, err, "STALE_PARTITION_EPOCH")
	}
	leaderlessWithout3(t, w, p, "begins anew")
	othersLeadAgain(t, w, p)
	// Once it has caught up it is proposed again.
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
	w, p, late := proposedToAdd3(t)
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
	leaderlessWithout3(t, w, p, "lacks what 1 and 2 committed")
	wantReason(t, refused, "STALE_PARTITION_EPOCH")
	othersLeadAgain(t, w, p)
}
