package partition

import (
	"strings"
	"testing"
	"time"
)

// Each assertion notices what it is there for: the state is spoilt by hand, as a bug
// might, and the next Step finds it.
func TestAssertions(t *testing.T) {
	led := func(t *testing.T) *State {
		s := lead3(1, 2)
		s.Step(hello(1, two, 2, 10))
		s.Step(at(1, 6, 6))
		return s
	}
	followed := func(t *testing.T) *State {
		s := behind(t, nil)
		s.Step(answer(1, 2, 10, true))
		return s
	}
	tests := []struct {
		name  string
		state func(*testing.T) *State
		spoil func(*State)
		ev    Event
		want  string
	}{
		{"the high watermark is above the own durable end", led, func(s *State) { s.log.durable = 5 }, Flush{}, "above the end that counts"},
		{"the high watermark rises without a member", led, func(s *State) { s.peers[0].isr = false }, Tick{Now: 2 * time.Second}, "without broker 2"},
		{"the log start passes the high watermark", led, func(s *State) { s.log.start = 7 }, Flush{}, "above the high watermark"},
		{"records of an epoch above the leader's", followed, func(s *State) {
			s.Step(batch(1, 1, 10, 12, 8))
		}, &Appended{Op: 1, Base: 10, End: 12, LastEpoch: 9, Epochs: []EpochStart{{9, 10}}}, "leader epoch 9"},
		{"a copy that took other offsets", followed, func(s *State) { s.Step(batch(1, 1, 10, 12, 8)) }, &Appended{Op: 1, Base: 11, End: 13, LastEpoch: 2}, "were due"},
		{"the log ends below where it was cut", func(t *testing.T) *State {
			s := behind(t, nil)
			s.Step(answer(1, 1, 8, false))
			return s
		}, func(*State) {}, &Truncated{Op: 1, End: 3}, "that was to end at 6 ends at 3"},
		{"a duplicate of what is not there", led, func(s *State) { s.Step(produce(1, AcksAll)) }, &Duplicate{Op: 1, Base: 11, End: 13}, "said to be a duplicate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.state(t)
			tt.spoil(s)
			effects := s.Step(tt.ev)
			if s.Violation() == nil || !strings.Contains(s.Violation().Error(), tt.want) {
				t.Fatalf("violation: %v, want one about %q; effects %s", s.Violation(), tt.want, render(effects))
			}
			for _, e := range effects {
				if r, ok := e.(*Reply); ok && r.Outcome == OK {
					t.Errorf("it says OK all the same: %s", render(effects))
				}
			}
			if s.Down() != ReasonInternalBug {
				t.Errorf("down: %v", s.Down())
			}
		})
	}
}

// checkEffect sees each effect that must not be said.
func TestForbiddenEffects(t *testing.T) {
	s := lead3(1, 2)
	forbidden := []Effect{
		&Reply{Req: 1, Base: 4, Acks: AcksAll, Records: 1},
		&Reply{Req: 1, Base: 10, Acks: AcksLeader, Records: 1},
		&Append{Epoch: 1},
		&AppendCopy{Base: 10, End: 12},
		&Truncate{To: 3},
		&Serve{UpTo: 5},
		&MoveStart{To: 5},
		&Propose{ID: 3},
	}
	for _, e := range forbidden {
		if s.checkEffect(e) == nil {
			t.Errorf("%T%+v passes", e, renderOne(e))
		}
	}
	allowed := []Effect{
		&Reply{Req: 1, Base: 3, Acks: AcksAll, Records: 1}, &Reply{Req: 1, Base: 9, Acks: AcksLeader, Records: 1}, &Append{Epoch: 3},
		&Truncate{To: 4}, &Truncate{To: 3, Unclean: true}, &Serve{UpTo: 4}, &MoveStart{To: 4},
	}
	for _, e := range allowed {
		if err := s.checkEffect(e); err != nil {
			t.Errorf("%s: %v", renderOne(e), err)
		}
	}
	s.Step(follow3(2, func(r *Record) { r.LeaderEpoch = 4 }))
	if s.checkEffect(&Append{Epoch: 4}) == nil {
		t.Error("a follower may append")
	}
}

// The outcomes of operations that were begun in an earlier leader epoch change what is
// known of the log and nothing else.
func TestResultsOfEarlierEpochs(t *testing.T) {
	run(t, lead3(1, 2), []step{
		{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
		{at(1, 10, 10), "visible 10; tell sess=1 hw=10 start=0"},
		{produce(1, AcksLeader), "append req=1 epoch=3 base=10"},
		{with(rec3(2, 1, 2), func(r *Record) { r.LeaderEpoch = 4 }), "unknown req=1 NOT_LEADER; close sess=1 NOT_LEADER; resign NOT_LEADER"},
		{produce(2, AcksLeader), "rejected req=2 LEADER_NOT_AVAILABLE"},
		{&Appended{Base: 10, End: 12}, "sync"},
		{produce(3, AcksLeader), "append req=3 epoch=4 base=12"},
		{&Synced{End: 12}, ""},
		{&Synced{Op: 1, End: 20}, ""},
	})
}

// A leader's and a follower's Step allocate nothing once their memory has grown.
func TestStepsAllocateNothing(t *testing.T) {
	s := lead3(1, 2)
	s.Step(hello(1, two, 2, 10))
	s.Step(at(1, 10, 10))
	var (
		p   = Produce{LeaderEpoch: -1, Acks: AcksAll, Records: 1, Now: time.Second, Deadline: time.Hour}
		a   = Appended{Now: time.Second}
		y   = Synced{Now: time.Second}
		pos = *at(1, 10, 10)
		o   ops
	)
	end := int64(10)
	lead := func() {
		p.Req++
		o.note(s.Step(&p))
		a.Op, a.Base, a.End = o.log, end, end+1
		o.note(s.Step(&a))
		end++
		y.Op, y.End = o.sync, end
		s.Step(&y)
		pos.End, pos.Durable = end, end
		s.Step(&pos)
	}
	for range 100 {
		lead()
	}
	if n := testing.AllocsPerRun(1000, lead); n > 0 {
		t.Errorf("a batch costs its leader %v allocations", n)
	}
	f := behind(t, nil)
	f.Step(answer(1, 2, 10, true))
	b := *batch(1, 1, 10, 11, 10)
	c := Appended{LastEpoch: 2, Now: time.Second}
	end = 10
	follow := func() {
		b.Ref++
		b.Base, b.End, b.HW = end, end+1, end
		o.note(f.Step(&b))
		c.Op, c.Base, c.End = o.log, end, end+1
		o.note(f.Step(&c))
		end++
		y.Op, y.End = o.sync, end
		f.Step(&y)
	}
	for range 100 {
		follow()
	}
	if n := testing.AllocsPerRun(1000, follow); n > 0 {
		t.Errorf("a batch costs its follower %v allocations", n)
	}
	if s.Violation() != nil || f.Violation() != nil || s.HighWatermark() < 1000 || f.HighWatermark() < 1000 {
		t.Errorf("leader: %v at %d, follower: %v at %d", s.Violation(), s.HighWatermark(), f.Violation(), f.HighWatermark())
	}
}

func BenchmarkLeaderBatch(b *testing.B) {
	s := lead3(1, 2)
	s.Step(hello(1, two, 2, 10))
	s.Step(at(1, 10, 10))
	p := Produce{LeaderEpoch: -1, Acks: AcksAll, Records: 1, Now: time.Second, Deadline: time.Hour}
	a, y, pos := Appended{Now: time.Second}, Synced{Now: time.Second}, *at(1, 10, 10)
	var o ops
	end := int64(10)
	b.ReportAllocs()
	for b.Loop() {
		p.Req++
		o.note(s.Step(&p))
		a.Op, a.Base, a.End = o.log, end, end+1
		o.note(s.Step(&a))
		end++
		y.Op, y.End = o.sync, end
		s.Step(&y)
		pos.End, pos.Durable = end, end
		s.Step(&pos)
	}
}
