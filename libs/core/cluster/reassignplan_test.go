package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestPlansThatCannotBe(t *testing.T) {
	name := PartitionName{"a", 0}
	for want, requests := range map[string][]ReassignmentRequest{
		"INVALID_REQUEST": {
			{},
			{Balance: true, DrainBrokers: []int32{1}},
			{Assignments: []Move{{PartitionName: name, To: []int32{1, 2, 9}}}},                                           // no such broker
			{Assignments: []Move{{PartitionName: name, To: []int32{1, 2, 5}}}},                                           // fenced
			{Assignments: []Move{{PartitionName: name, To: []int32{1, 2, 2}}}},                                           // twice
			{Assignments: []Move{{PartitionName: name, To: []int32{1, 2, 4}}, {PartitionName: name, To: []int32{1, 2}}}}, // named twice
			{Assignments: []Move{{PartitionName: name, To: []int32{1, 2, 4}}}, Topics: []string{"b"}},                    // not looked at
			{DrainBrokers: []int32{9}},
			{ReplicationFactor: 2},
		},
		"UNKNOWN_TOPIC":     {{Assignments: []Move{{PartitionName: PartitionName{"x", 0}, To: []int32{1}}}}, {Balance: true, Topics: []string{"x"}}},
		"UNKNOWN_PARTITION": {{Assignments: []Move{{PartitionName: PartitionName{"a", 7}, To: []int32{1}}}}},
		"INVALID_REPLICATION_FACTOR": {
			{Assignments: []Move{{PartitionName: name}}},
			{Assignments: []Move{{PartitionName: name, To: []int32{1}}}}, // below min
			{DrainBrokers: []int32{1, 2}},
			{ReplicationFactor: 5, Topics: []string{"a"}},
			{ReplicationFactor: -1, Topics: []string{"a"}},
			{ReplicationFactor: 1, Topics: []string{"a"}}, // below min
		},
	} {
		for i, r := range requests {
			w := newWorld(t, 1, 2, 3)
			w.create(t, "a", 1, 3)
			w.create(t, "b", 1, 1)
			w.start(t, 4, nil)
			w.start(t, 5, nil)
			w.set(5, true)
			plan, err := PlanReassignment(w.State, r)
			var rejection *Rejection
			if !errors.As(err, &rejection) || rejection.Reason != want || len(plan.Moves) != 0 {
				t.Errorf("%s %d: %+v, %v", want, i, plan, err)
			}
		}
	}
	_, err := PlanReassignment(newWorld(t).State, ReassignmentRequest{Balance: true})
	wantReason(t, err, "STARTING")
}

func TestReplicationFactorChanges(t *testing.T) {
	w := newWorld(t, 1, 2, 3, 4)
	id := w.create(t, "a", 2, 1)
	w.create(t, "b", 4, 1)
	resize := func(n int32) {
		t.Helper()
		plan, err := PlanReassignment(w.State, ReassignmentRequest{ReplicationFactor: n, Topics: []string{"a"}})
		if err != nil {
			t.Fatal(err)
		}
		writes, err := ApplyReassignment(w.State, plan.ID, plan.Moves)
		w.apply(t, writes, err)
		for _, e := range w.Partitions(id) {
			w.join(t, e.Value, e.Value.Replicas...)
		}
		w.advance(t)
	}
	resize(3)
	for _, e := range w.Partitions(id) {
		if p := e.Value; len(p.Replicas) != 3 || p.IsReassigning() || p.MinISR != 2 || p.Leader.ID != p.Replicas[0] {
			t.Errorf("%+v", p)
		}
	}
	resize(2)
	for _, e := range w.Partitions(id) {
		if p := e.Value; len(p.Replicas) != 2 || p.MinISR != 1 || p.Leader.ID != p.Replicas[0] {
			t.Errorf("%+v", p)
		}
	}
}

// Fewer replicas: who is not in sync goes first, then who shares a rack.
func TestResizeDropsTheLeastUseful(t *testing.T) {
	w := racked(t, "a", "b", "a")
	id := w.create(t, "a", 1, 3)
	p := w.Partition(id, 0).Value
	p.Replicas, p.ISR = []int32{1, 3, 2}, []int32{1, 3, 2}
	w.Set(p, 1, 77)
	planned := func() []int32 {
		t.Helper()
		plan, err := PlanReassignment(w.State, ReassignmentRequest{ReplicationFactor: 2, Topics: []string{"a"}})
		if err != nil {
			t.Fatal(err)
		}
		return plan.Moves[0].To
	}
	if got := planned(); !slices.Equal(got, []int32{1, 2}) {
		t.Errorf("of one rack: %v", got)
	}
	p.ISR = []int32{1, 3}
	w.Set(p, 1, 78)
	if got := planned(); !slices.Equal(got, []int32{1, 3}) {
		t.Errorf("out of sync: %v", got)
	}
}

func TestBalance(t *testing.T) {
	w := racked(t, "a", "b", "c")
	for i := range 6 {
		plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: fmt.Sprint("t", i), Partitions: 10, ReplicationFactor: 2, ID: w.newID()}})
		w.apply(t, plan, err)
	}
	w.makeFolders(t)
	w.startIn(t, 4, "a")
	w.startIn(t, 5, "b")
	plan, err := PlanReassignment(w.State, ReassignmentRequest{Balance: true})
	if err != nil {
		t.Fatal(err)
	}
	replicas, preferred := map[int32]int{}, map[int32]int{}
	moved := map[PartitionName][]int32{}
	copies := 0
	for _, m := range plan.Moves {
		moved[m.PartitionName] = m.To
		copies += len(m.To) - int(m.InSync)
	}
	for _, name := range w.partitionNames() {
		e, _ := w.byName(name)
		result := e.Value.Replicas
		if to, ok := moved[name]; ok {
			result = to
		}
		if w.rack(result[0]) == w.rack(result[1]) {
			t.Errorf("%v is in one rack: %v", name, result)
		}
		preferred[result[0]]++
		for _, b := range result {
			replicas[b]++
		}
	}
	for b := int32(1); b <= 5; b++ {
		if replicas[b] < 23 || replicas[b] > 25 || preferred[b] < 11 || preferred[b] > 13 {
			t.Errorf("broker %d would hold %d and prefer %d", b, replicas[b], preferred[b])
		}
	}
	if copies > 50 {
		t.Errorf("%d copies for 48 that the new brokers need", copies)
	}
	// In order there is nothing to do.
	w = newWorld(t, 1, 2, 3)
	w.create(t, "a", 3, 3)
	if plan, err := PlanReassignment(w.State, ReassignmentRequest{Balance: true}); err != nil || len(plan.Moves) != 0 {
		t.Errorf("%+v, %v", plan, err)
	}
}

func TestDrainSpreadsOverRacks(t *testing.T) {
	w := racked(t, "a", "b", "c", "a", "b", "c")
	id := w.create(t, "a", 6, 3)
	plan, err := PlanReassignment(w.State, ReassignmentRequest{DrainBrokers: []int32{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range plan.Moves {
		racks := map[string]bool{}
		for _, b := range m.To {
			racks[w.rack(b)] = true
		}
		if len(racks) != 3 || !distinct(m.To) || slices.Contains(m.To, 1) || slices.Contains(m.To, 2) {
			t.Errorf("%+v", m)
		}
	}
	if len(plan.Moves) != len(either(w.held(1), w.held(2))) || len(w.Partitions(id)) != 6 {
		t.Errorf("%d moves", len(plan.Moves))
	}
}

// either lists the partitions of two lists once.
func either(a, b []*Entry[Partition]) map[PartitionID]bool {
	set := map[PartitionID]bool{}
	for _, e := range append(a, b...) {
		set[e.Value.id()] = true
	}
	return set
}
