package cluster

import (
	"slices"
	"testing"
)

// offsets makes __consumer_offsets, as the first group request does.
func (w *world) offsets(t fataler) TopicOutcome {
	t.Helper()
	plan, outcome, err := EnsureInternalTopic(w.State, testLimits(), OffsetsTopic, w.newID(), 0)
	w.apply(t, plan, err)
	w.settle(t)
	w.makeFolders(t)
	return outcome
}

func TestInternalTopicOfThree(t *testing.T) {
	w := newWorld(t, 1, 2, 3, 4)
	outcome := w.offsets(t)
	for _, e := range w.Partitions(outcome.ID) {
		if p := e.Value; len(p.Replicas) != 3 || p.MinISR != 2 || len(p.ISR) != 3 {
			t.Errorf("%+v", p)
		}
	}
}

func TestInternalTopicIsRaisedAsBrokersCome(t *testing.T) {
	w := newWorld(t, 1)
	outcome := w.offsets(t)
	each := func(check func(Partition)) {
		t.Helper()
		for _, e := range w.Partitions(outcome.ID) {
			check(e.Value)
		}
	}
	each(func(p Partition) {
		if !slices.Equal(p.Replicas, []int32{1}) || p.MinISR != 1 || p.Leader.ID != 1 {
			t.Fatalf("%+v", p)
		}
	})
	w.start(t, 2, nil)
	preferred := map[int32]int{}
	each(func(p Partition) {
		preferred[p.Replicas[0]]++
		if len(p.Replicas) != 2 || !slices.Equal(p.ISR, []int32{1}) || p.MinISR != 1 || p.Leader.ID != 1 || p.IsReassigning() {
			t.Fatalf("with a second broker: %+v", p)
		}
	})
	if preferred[1] != 4 || preferred[2] != 4 {
		t.Errorf("preferred: %v", preferred)
	}
	w.start(t, 3, nil)
	each(func(p Partition) {
		if len(p.Replicas) != 3 || !slices.Equal(p.ISR, []int32{1}) || p.MinISR != 1 {
			t.Fatalf("with a third: %+v", p)
		}
	})
	// min follows once enough are in sync, and does not go back.
	for _, e := range w.Partitions(outcome.ID) {
		w.join(t, e.Value, 1, 2)
		if p := w.now(e.Value); p.MinISR != 2 {
			t.Fatalf("two in sync: %+v", p)
		}
		w.join(t, e.Value, 1)
		if p := w.now(e.Value); p.MinISR != 2 || !slices.Equal(p.ELR, []int32{2}) {
			t.Fatalf("one fell behind: %+v", p)
		}
		w.join(t, e.Value, 1, 2, 3)
	}
	w.start(t, 4, nil)
	each(func(p Partition) {
		if len(p.Replicas) != 3 {
			t.Fatalf("with a fourth: %+v", p)
		}
	})
	plan, err := PreferredMoves(w.State, 100, nil)
	w.apply(t, plan, err)
	led := map[int32]int{}
	each(func(p Partition) { led[p.Leader.ID]++ })
	if len(led) != 3 || led[1] > 3 || led[2] > 3 || led[3] > 3 {
		t.Errorf("they lead %v", led)
	}
}

func TestInternalTopicWithTwoMoreAtOnce(t *testing.T) {
	w := racked(t, "a", "a", "b")
	for _, b := range []int32{1, 3} {
		w.stop(t, b)
	}
	outcome := w.offsets(t)
	w.stop(t, 2)
	for _, b := range []int32{1, 2, 3} {
		w.start(t, b, w.vouchAll(b, Intact))
	}
	for _, e := range w.Partitions(outcome.ID) {
		if p := e.Value; len(p.Replicas) != 3 || p.Leader.ID != 2 {
			t.Errorf("%+v", p)
		}
	}
}

func TestInternalTopicIsNotRaisedWhileItMoves(t *testing.T) {
	w := newWorld(t, 1)
	outcome := w.offsets(t)
	p := w.Partition(outcome.ID, 0).Value
	w.start(t, 2, nil)
	w.join(t, p, 1, 2)
	w.begin(t, Move{PartitionName: PartitionName{OffsetsTopic, 0}, To: []int32{2}})
	w.start(t, 3, nil)
	if q := w.now(p); !slices.Equal(q.Replicas, []int32{2, 1}) || !q.IsReassigning() {
		t.Fatalf("%+v", q)
	}
	w.advance(t)
	if q := w.now(p); len(q.Replicas) != 3 || q.IsReassigning() || q.Leader.ID != 2 {
		t.Errorf("%+v", q)
	}
}

func TestInternalTopicNeedsABroker(t *testing.T) {
	_, _, err := EnsureInternalTopic(newWorld(t).State, testLimits(), OffsetsTopic, newWorld(t).newID(), 0)
	wantReason(t, err, "STARTING")
}

func TestProducerIDsEnd(t *testing.T) {
	w := newWorld(t)
	w.Set(ProducerIDs{Next: 2<<producerIDBits - ProducerIDBlock}, 1, 1)
	plan, first, err := AllocateProducerIDs(w.State)
	w.apply(t, plan, err)
	if first != 2<<producerIDBits-ProducerIDBlock {
		t.Errorf("the last block begins at %d", first)
	}
	_, _, err = AllocateProducerIDs(w.State)
	wantReason(t, err, "LIMIT_EXCEEDED")
}
