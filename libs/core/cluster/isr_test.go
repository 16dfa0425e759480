package cluster

import (
	"slices"
	"testing"
)

// proposal is what a partition's leader proposes.
func (w *world) proposal(p Partition, isr ...int32) ISRProposal {
	c := ISRProposal{Leader: p.Leader, Topic: p.Topic, Partition: p.Number, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
	for _, b := range isr {
		life := Process{ID: b} // unchanged members may come without
		if !slices.Contains(p.ISR, b) {
			life = w.Broker(b).Value.Process
		}
		c.ISR = append(c.ISR, life)
	}
	return c
}

func TestProposalsTable(t *testing.T) {
	type sets struct{ isr, elr, barred []int32 }
	for _, c := range []struct {
		name     string
		min      int32
		before   sets
		proposed []int32
		want     sets
	}{
		{"shrink, still enough", 2, sets{isr: []int32{1, 2, 3}}, []int32{1, 2}, sets{isr: []int32{1, 2}}},
		{"shrink below min", 2, sets{isr: []int32{1, 2}}, []int32{1}, sets{isr: []int32{1}, elr: []int32{2}}},
		{"shrink from three to one", 2, sets{isr: []int32{1, 2, 3}}, []int32{1}, sets{isr: []int32{1}, elr: []int32{2, 3}}},
		{"grow to enough", 2, sets{isr: []int32{1}, elr: []int32{2}}, []int32{1, 2}, sets{isr: []int32{1, 2}}},
		{"grow to enough without the eligible", 2, sets{isr: []int32{1}, elr: []int32{2}}, []int32{1, 3}, sets{isr: []int32{1, 3}}},
		{"grow, not enough", 3, sets{isr: []int32{1}, elr: []int32{2}}, []int32{1, 2}, sets{isr: []int32{1, 2}}},
		{"grow, one more stays eligible", 3, sets{isr: []int32{1}, elr: []int32{2}}, []int32{1, 3}, sets{isr: []int32{1, 3}, elr: []int32{2}}},
		{"a barred member leaves", 3, sets{isr: []int32{1, 2}, barred: []int32{2}}, []int32{1}, sets{isr: []int32{1}}},
		{"a barred eligible one is added", 2, sets{isr: []int32{1}, elr: []int32{2}, barred: []int32{2}}, []int32{1, 2}, sets{isr: []int32{1, 2}}},
		{"a bar stays with an unchanged member", 1, sets{isr: []int32{1, 2}, barred: []int32{2}}, []int32{1, 2, 3}, sets{isr: []int32{1, 2, 3}, barred: []int32{2}}},
		{"nothing changes", 2, sets{isr: []int32{1, 2}}, []int32{1, 2}, sets{isr: []int32{1, 2}}},
	} {
		w, p := minTwo(t)
		p = w.now(p)
		p.MinISR, p.ISR, p.ELR, p.Barred = c.min, c.before.isr, c.before.elr, c.before.barred
		w.Set(p, 1, 77)
		plan, err := ProposeISR(w.State, w.proposal(p, c.proposed...))
		w.apply(t, plan, err)
		q := w.now(p)
		if !slices.Equal(q.ISR, c.want.isr) || !slices.Equal(q.ELR, c.want.elr) || !slices.Equal(q.Barred, c.want.barred) || q.PartitionEpoch != p.PartitionEpoch+1 ||
			q.Leader != p.Leader || q.LeaderEpoch != p.LeaderEpoch {
			t.Errorf("%s: %+v", c.name, q)
		}
	}
}

// What is current but cannot be granted raises the partition epoch and nothing else.
func TestProposalsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*world)
		isr     func(w *world, p Partition) []Process
	}{
		"the leader is not in it": {nil, func(w *world, p Partition) []Process { return []Process{{ID: 2}} }},
		"a stranger":              {nil, func(w *world, p Partition) []Process { return []Process{p.Leader, w.Broker(4).Value.Process} }},
		"somebody twice":          {nil, func(w *world, p Partition) []Process { return []Process{p.Leader, {ID: 2}, {ID: 2}} }},
		"nobody":                  {nil, func(w *world, p Partition) []Process { return nil }},
		"another life": {nil, func(w *world, p Partition) []Process {
			return []Process{p.Leader, {ID: 2}, {ID: 3, Incarnation: w.Broker(3).Value.Process.Incarnation + 1}}
		}},
		"no life": {nil, func(w *world, p Partition) []Process { return []Process{p.Leader, {ID: 2}, {ID: 3}} }},
		"a fenced broker": {func(w *world) { w.set(3, true) }, func(w *world, p Partition) []Process {
			return []Process{p.Leader, {ID: 2}, w.Broker(3).Value.Process}
		}},
		"a fenced leader": {func(w *world) { w.set(1, true) }, func(w *world, p Partition) []Process { return []Process{p.Leader} }},
	} {
		w := newWorld(t, 1, 2, 3)
		id := w.create(t, "a", 1, 3)
		w.start(t, 4, nil)
		p := w.Partition(id, 0).Value
		p.ISR = []int32{1, 2}
		w.Set(p, 1, 77)
		if c.prepare != nil {
			c.prepare(w)
		}
		proposal := w.proposal(p)
		proposal.ISR = c.isr(w, p)
		plan, err := ProposeISR(w.State, proposal)
		w.apply(t, plan, err)
		want := p
		want.PartitionEpoch++
		if q := w.now(p); !samePartition(&q, &want) || q.PartitionEpoch != want.PartitionEpoch {
			t.Errorf("%s: %+v", name, q)
		}
	}
}

// set fences or unfences a broker's record with nothing else happening.
func (w *world) set(id int32, fenced bool) {
	b := w.Broker(id).Value
	b.Fenced = fenced
	w.revision++
	w.Set(b, 1, w.revision)
}

func TestLoweringAndRaisingMin(t *testing.T) {
	w, p := minTwo(t)
	set := func(v string) Partition {
		t.Helper()
		plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"min.insync.replicas": v}})
		w.apply(t, plan, err)
		w.settle(t)
		return w.now(p)
	}
	w.stop(t, 3) // left a sufficient ISR
	if q := set("3"); q.MinISR != 3 || len(q.ELR) != 0 {
		t.Fatalf("raised, nobody becomes eligible by that: %+v", q)
	}
	w.stop(t, 2)
	if q := w.now(p); !slices.Equal(q.ISR, []int32{1}) || !slices.Equal(q.ELR, []int32{2}) {
		t.Fatalf("left an insufficient ISR: %+v", q)
	}
	w.stop(t, 1)
	// Lowered with nobody to lead: the eligible one may be the only one that is whole.
	if q := set("1"); q.MinISR != 3 || !slices.Equal(q.ELR, []int32{2}) || !q.Leader.IsZero() {
		t.Fatalf("lowered with nobody to lead: %+v", q)
	}
	w.start(t, 1, as(p, UncleanOS, 1, 5))
	if q := w.now(p); !q.Leader.IsZero() || !slices.Equal(q.ELR, []int32{2}) {
		t.Fatalf("1 lost its page cache, 2 is silent: %+v", q)
	}
	w.start(t, 2, as(p, Intact, 1, 9))
	if q := w.now(p); q.MinISR != 1 || q.Leader.ID != 2 || !slices.Equal(q.ISR, []int32{2}) || len(q.ELR)+len(q.Barred) != 0 {
		t.Fatalf("with a leader: %+v", q)
	}
}

func TestLoweringMinEndsEligibility(t *testing.T) {
	w, p := minTwo(t)
	w.stop(t, 3)
	w.stop(t, 2)
	q := w.now(p)
	if !slices.Equal(q.ISR, []int32{1}) || !slices.Equal(q.ELR, []int32{2}) {
		t.Fatalf("%+v", q)
	}
	plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"min.insync.replicas": "1"}})
	w.apply(t, plan, err)
	w.settle(t)
	if q = w.now(p); q.MinISR != 1 || len(q.ELR) != 0 || !slices.Equal(q.ISR, []int32{1}) {
		t.Fatalf("%+v", q)
	}
}
