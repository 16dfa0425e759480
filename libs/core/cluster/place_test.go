package cluster

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// racked is a world of brokers from 1 on, in racks.
func racked(t fataler, racks ...string) *world {
	w := newWorld(t)
	for i, rack := range racks {
		w.startIn(t, int32(i+1), rack)
	}
	return w
}

func TestPlacementAlternatesRacks(t *testing.T) {
	for _, c := range []struct {
		racks []string
		rf    int32
		want  [][]int32
	}{
		{[]string{"", "", "", ""}, 3, [][]int32{{1, 2, 3}, {2, 3, 4}, {3, 4, 1}, {4, 1, 2}, {1, 2, 3}}},
		{[]string{"a", "a", "b", "b"}, 2, [][]int32{{1, 3}, {3, 2}, {2, 4}, {4, 1}}},
		{[]string{"a", "a", "b", "b"}, 3, [][]int32{{1, 3, 2}, {3, 2, 4}, {2, 4, 1}, {4, 1, 3}}},
		{[]string{"a", "b", "c", "a", "b", "c"}, 3, [][]int32{{1, 2, 3}, {2, 3, 4}, {3, 4, 5}, {4, 5, 6}, {5, 6, 1}, {6, 1, 2}}},
		// Three racks of different sizes: each partition is in all of them.
		{[]string{"a", "a", "a", "b", "c"}, 3, [][]int32{{1, 4, 5}, {4, 5, 2}, {5, 2, 4}, {2, 4, 5}, {3, 4, 5}}},
	} {
		w := racked(t, c.racks...)
		order := w.newRing(w.placeable())
		for i, want := range c.want {
			if got := order.place(i, c.rf); !slices.Equal(got, want) {
				t.Errorf("racks %v, partition %d: on %v, want %v", c.racks, i, got, want)
			}
		}
	}
}

func TestPlacementProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		racks := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c"}), 1, 8).Draw(t, "racks")
		w := racked(t, racks...)
		order := w.newRing(w.placeable())
		rf := rapid.IntRange(1, len(racks)).Draw(t, "replication factor")
		distinctRacks := map[string]bool{}
		for _, r := range racks {
			distinctRacks[r] = true
		}
		first := map[int32]int{}
		for i := range 2 * len(racks) {
			replicas := order.place(i, int32(rf))
			if len(replicas) != rf || !distinct(replicas) {
				t.Fatalf("replicas %v", replicas)
			}
			used := map[string]bool{}
			for _, b := range replicas {
				used[w.rack(b)] = true
			}
			if len(used) != min(rf, len(distinctRacks)) {
				t.Fatalf("replicas %v are in %d of %d racks", replicas, len(used), len(distinctRacks))
			}
			first[replicas[0]]++
		}
		for b, n := range first {
			if n != 2 {
				t.Fatalf("broker %d is preferred %d times in two rounds", b, n)
			}
		}
	})
}

func TestDefaultReplicationFactor(t *testing.T) {
	for _, c := range []struct {
		brokers         int
		configured      int32
		wantRF, wantMin int32
	}{
		{1, 0, 1, 1}, {2, 0, 2, 1}, {3, 0, 3, 2}, {5, 0, 3, 2}, {3, 1, 1, 1}, {3, 2, 2, 1},
	} {
		w := racked(t, make([]string, c.brokers)...)
		limits := testLimits()
		limits.DefaultReplicationFactor = c.configured
		id := w.newID()
		plan, outcomes, err := createTopics(w.State, limits, []NewTopic{{Name: "a", ID: id}})
		w.apply(t, plan, err)
		p := w.Partition(id, 0).Value
		if outcomes[0].ReplicationFactor != c.wantRF || int32(len(p.Replicas)) != c.wantRF || p.MinISR != c.wantMin {
			t.Errorf("%d brokers, configured %d: %+v, want %d replicas and min %d", c.brokers, c.configured, p, c.wantRF, c.wantMin)
		}
	}
	// A number that is configured is not lowered in silence.
	w := newWorld(t, 1, 2)
	limits := testLimits()
	limits.DefaultReplicationFactor = 3
	_, outcomes, err := createTopics(w.State, limits, []NewTopic{{Name: "a", ID: w.newID()}})
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, outcomes[0].Rejection, "INVALID_REPLICATION_FACTOR")
}

// case 31: min.insync.replicas=3 with two replicas could never be met.
func TestMinISRAboveReplicationFactor(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	_, outcomes, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", ReplicationFactor: 2, ID: w.newID(), Configs: map[string]string{"min.insync.replicas": "3"}}})
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, outcomes[0].Rejection, "INVALID_CONFIG")
	w.create(t, "b", 1, 2)
	_, err = AlterTopic(w.State, AlterTopicCommand{Name: "b", SetConfigs: map[string]string{"min.insync.replicas": "3"}})
	wantReason(t, err, "INVALID_CONFIG")
	plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "b", SetConfigs: map[string]string{"min.insync.replicas": "2"}})
	w.apply(t, plan, err)
	// A default of the mesh that is too high counts as far as it can.
	c := w.Cluster()
	c.DefaultConfigs = map[string]string{"min.insync.replicas": "3"}
	w.Set(c, 1, 1)
	if id := w.create(t, "c", 1, 2); w.Partition(id, 0).Value.MinISR != 2 {
		t.Errorf("%+v", w.Partition(id, 0).Value)
	}
}

func TestAddedPartitionsGoOnRound(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 2, 3)
	plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a", Partitions: 4})
	w.apply(t, plan, err)
	w.makeFolders(t)
	for n, want := range [][]int32{{1, 2, 3}, {2, 3, 1}, {3, 1, 2}, {1, 2, 3}} {
		if p := w.Partition(id, int32(n)).Value; !slices.Equal(p.Replicas, want) || p.Leader.ID != want[0] || p.MinISR != 2 {
			t.Errorf("partition %d: %+v, want replicas %v", n, p, want)
		}
	}
}

// A broker's death spreads what it led over all that remain.
func TestElectionsSpread(t *testing.T) {
	for _, shape := range []struct{ topics, partitions int32 }{{1, 300}, {300, 1}} {
		w := newWorld(t, 1, 2, 3, 4)
		for i := range shape.topics {
			plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: fmt.Sprint("t", i), Partitions: shape.partitions, ReplicationFactor: 4, ID: w.newID(), Shift: int(i)}})
			w.apply(t, plan, err)
		}
		w.makeFolders(t)
		w.stop(t, 1)
		led := map[int32]int{}
		for _, b := range []int32{2, 3, 4} {
			for _, e := range w.held(b) {
				if e.Value.Leader.ID == b {
					led[b]++
				}
			}
		}
		for _, b := range []int32{2, 3, 4} {
			if led[b] < 85 || led[b] > 115 {
				t.Errorf("%d topics: after a death they lead %v", shape.topics, led)
			}
		}
	}
}

// TestAbsentBrokersGetReplicas where too few live: a topic made during a restart has
// all its copies once the broker is back.
func TestAbsentBrokersGetReplicas(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	w.stop(t, 3)
	limits := testLimits()
	limits.DefaultReplicationFactor = 0
	id := w.newID()
	plan, outcomes, err := createTopics(w.State, limits, []NewTopic{{Name: "a", Partitions: 3, ID: id}})
	w.apply(t, plan, err)
	if outcomes[0].ReplicationFactor != 3 {
		t.Errorf("%+v", outcomes[0])
	}
	for _, e := range w.Partitions(id) {
		if p := e.Value; len(p.Replicas) != 3 || p.MinISR != 2 {
			t.Errorf("%+v", p)
		}
	}
	_, outcomes, err = createTopics(w.State, limits, []NewTopic{{Name: "b", Partitions: 1, ReplicationFactor: 4, ID: w.newID()}})
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, outcomes[0].Rejection, "INVALID_REPLICATION_FACTOR")
}
