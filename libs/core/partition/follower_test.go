package partition

import (
	"testing"
	"time"
)

// follow3 is a record of three replicas led by broker 2 in epoch 3.
func follow3(partEpoch int64, change func(*Record)) *Record {
	r := rec3(partEpoch, 1, 2, 3)
	r.Leader = two
	if change != nil {
		change(r)
	}
	return r
}

// behind follows broker 2 with a log of ten records: epoch 1 from 0 on, epoch 2 from 6
// on; the high watermark is 4.
func behind(t *testing.T, change func(*Record)) *State {
	t.Helper()
	s := New(self)
	run(t, s, []step{
		{&Opened{MaxEpochSeen: 2, Epochs: []EpochStart{{1, 0}, {2, 6}}, End: 10, Durable: 10, HW: 4}, ""},
		{follow3(1, change), "open sess=1 leader=2 epoch=3 last=2 end=10"},
	})
	return s
}

// answer is the leader's answer to a hello.
func answer(sess int64, epoch int32, end int64, agreed bool) *EpochEnd {
	return &EpochEnd{Sess: sess, LeaderEpoch: 3, LastEpoch: epoch, End: end, Agreed: agreed, HW: 8, Now: time.Second}
}

func anew(sess int64, epoch int32, end, start, tombstones int64, agreed bool) *EpochEnd {
	e := answer(sess, epoch, end, agreed)
	e.LogStart, e.TombstonesBelow, e.HW = start, tombstones, max(start, 8)
	return e
}

func batch(sess, ref, base, end, hw int64) *Batch {
	return &Batch{Sess: sess, Ref: ref, LeaderEpoch: 3, Base: base, End: end, HW: hw, Now: time.Second}
}

func TestFollowing(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Record)
		steps  []step
	}{
		{"a prefix is agreed on, and copied from there", nil, []step{
			{batch(1, 1, 10, 12, 9), "drop ref=1"}, // not agreed yet
			{&Watermark{Sess: 1, LeaderEpoch: 3, HW: 9}, ""},
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{batch(1, 2, 10, 12, 12), "copy ref=2 [10,12); visible 10"},
			{batch(1, 3, 12, 13, 12), ""},
			{&Appended{Base: 10, End: 12, LastEpoch: 3, Epochs: []EpochStart{{3, 11}}}, "sync; copy ref=3 [12,13); position sess=1 pe=1 last=3 end=12 durable=10 start=0"},
			{&Appended{Base: 12, End: 13, LastEpoch: 3}, "position sess=1 pe=1 last=3 end=13 durable=10 start=0"},
			{&Synced{End: 13}, "visible 12; position sess=1 pe=1 last=3 end=13 durable=13 start=0"},
		}},
		// case 1
		{"a log that differs is cut by epochs, again and again, before anything else", nil, []step{
			{answer(1, 1, 8, false), "truncate to=6"},
			{batch(1, 1, 6, 8, 9), "drop ref=1"},
			{answer(1, 1, 8, false), ""}, // once more, while it is at it
			{&Truncated{End: 6, Epochs: []EpochStart{{1, 0}}}, "open sess=1 leader=2 epoch=3 last=1 end=6"},
			{answer(1, 1, 8, true), "visible 6; position sess=1 pe=1 last=1 end=6 durable=6 start=0"},
			{batch(1, 2, 6, 8, 9), "copy ref=2 [6,8)"},
		}},
		{"the leader's log of the same epoch is shorter", nil, []step{
			{answer(1, 2, 7, false), "truncate to=7"},
			{&Truncated{End: 7, Epochs: []EpochStart{{1, 0}, {2, 6}}}, "open sess=1 leader=2 epoch=3 last=2 end=7"},
		}},
		{"an agreement to another log is none", nil, []step{
			{answer(1, 1, 6, true), "leave sess=1"},
			{Tick{Now: 1020 * ms}, "open sess=2 leader=2 epoch=3 last=2 end=10"},
			{answer(1, 2, 10, true), ""}, // of the session before
			{answer(2, 2, 9, true), "leave sess=2"},
			{Tick{Now: 1059 * ms}, ""},
			{Tick{Now: 1060 * ms}, "open sess=3 leader=2 epoch=3 last=2 end=10"},
		}},
		{"runs abut; what is there already is dropped, what got lost ends the session", nil, []step{
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{batch(1, 1, 8, 10, 8), "drop ref=1"},
			{batch(1, 2, 10, 12, 8), "copy ref=2 [10,12)"},
			{batch(1, 3, 10, 12, 8), "drop ref=3"},
			{batch(1, 4, 12, 14, 8), ""},
			{batch(1, 5, 15, 16, 8), "drop ref=5; leave sess=1; drop ref=4"},
			{Tick{Now: 2 * time.Second}, ""}, // the log has not answered yet
			{&Appended{Base: 10, End: 12, LastEpoch: 2}, "sync; open sess=2 leader=2 epoch=3 last=2 end=12"},
		}},
		{"the log refuses a run, or the rest of it", nil, []step{
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{batch(1, 1, 10, 12, 8), "copy ref=1 [10,12)"},
			{batch(1, 2, 12, 14, 8), ""},
			{AppendRefused{Full: true, Now: time.Second}, "leave sess=1; drop ref=2"},
			{Tick{Now: 2 * time.Second}, "open sess=2 leader=2 epoch=3 last=2 end=10"},
			{answer(2, 2, 10, true), "position sess=2 pe=1 last=2 end=10 durable=10 start=0"},
			{batch(2, 3, 10, 14, 8), "copy ref=3 [10,14)"},
			{&Appended{Base: 10, End: 12, LastEpoch: 2, Now: 2 * time.Second}, "sync; leave sess=2"},
			{Tick{Now: 3 * time.Second}, "open sess=3 leader=2 epoch=3 last=2 end=12"},
		}},
		{"another leader epoch while a copy is under way", nil, []step{
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{batch(1, 1, 10, 12, 8), "copy ref=1 [10,12)"},
			{batch(1, 2, 12, 14, 8), ""},
			{follow3(2, func(r *Record) { r.Leader, r.LeaderEpoch = three, 4 }), "leave sess=1; drop ref=2"},
			{batch(1, 3, 14, 16, 8), "drop ref=3"},
			{&Appended{Base: 10, End: 12, LastEpoch: 3, Epochs: []EpochStart{{3, 10}}}, "sync; open sess=2 leader=3 epoch=4 last=3 end=12"},
		}},
		{"elected while a copy is under way", nil, []step{
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{batch(1, 1, 10, 12, 8), "copy ref=1 [10,12)"},
			{follow3(2, func(r *Record) { r.Leader, r.LeaderEpoch = self, 4 }), "leave sess=1"},
			{produce(1, AcksAll), "rejected req=1 LEADER_NOT_AVAILABLE"},
			{&Appended{Base: 10, End: 12, LastEpoch: 3, Epochs: []EpochStart{{3, 10}}}, "sync"},
			{produce(2, AcksAll), "append req=2 epoch=4 base=12"},
		}},
		{"a change of the set is told, and nothing else happens", nil, []step{
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{follow3(2, func(r *Record) { r.ISR = []int32{2} }), "position sess=1 pe=2 last=2 end=10 durable=10 start=0"},
		}},
		{"no leader, no place, an earlier self", nil, []step{
			{follow3(2, func(r *Record) { r.Leader = Replica{} }), "leave sess=1"},
			{follow3(3, nil), "open sess=2 leader=2 epoch=3 last=2 end=10"},
			{follow3(4, func(r *Record) { r.Replicas = []int32{2, 3} }), "leave sess=2"},
			{follow3(5, func(r *Record) { r.Leader = Replica{Broker: 1, Incarnation: 5} }), ""},
		}},
		{"a leader that is gone is tried again, less and less often", nil, []step{
			{LeaderGone{Sess: 1, Now: time.Second}, ""},
			{Tick{Now: 1019 * ms}, ""},
			{Tick{Now: 1020 * ms}, "open sess=2 leader=2 epoch=3 last=2 end=10"},
			{LeaderGone{Sess: 2, Now: 1020 * ms}, ""},
			{Tick{Now: 1059 * ms}, ""},
			{Tick{Now: 1060 * ms}, "open sess=3 leader=2 epoch=3 last=2 end=10"},
			{LeaderGone{Sess: 2, Now: 1060 * ms}, ""}, // of an earlier session
			{answer(3, 2, 10, true), "visible 8; position sess=3 pe=1 last=2 end=10 durable=10 start=0"},
		}},
		{"the log start travels, no further than what is committed here", nil, []step{
			{anew(1, 2, 10, 3, 0, true), "visible 8; start at=3; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{&Watermark{Sess: 1, LeaderEpoch: 3, HW: 9, Start: 9}, "visible 9"},
			{StartMoved{Op: 1, Start: 3}, "start at=9; position sess=1 pe=1 last=2 end=10 durable=10 start=3"},
			{StartMoved{Op: 1, Start: 9}, "position sess=1 pe=1 last=2 end=10 durable=10 start=9"},
			{&Watermark{Sess: 1, LeaderEpoch: 3, HW: 14, Start: 12}, "visible 10; start at=10"},
		}},
		{"a failed disk", nil, []step{
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{batch(1, 1, 10, 12, 8), "copy ref=1 [10,12)"},
			{batch(1, 2, 12, 14, 8), ""},
			{IOFailed{Op: 1}, "leave sess=1; drop ref=2; resign DISK_OFFLINE; withhold DISK_OFFLINE"},
			{batch(1, 3, 14, 16, 8), "drop ref=3"},
		}},
		{"a log that cannot go on for want of space", nil, []step{
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
			{batch(1, 1, 10, 12, 8), "copy ref=1 [10,12)"},
			{IOFailed{Op: 1, Kind: FailedFull}, "leave sess=1"},
			{&Read{Req: 9, Offset: 2, ClientEpoch: -1, ClientSeen: -1, AllowFollower: true}, "serve req=9 [2,8)"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { run(t, behind(t, tt.change), tt.steps) })
	}
}

func TestBeginningAnew(t *testing.T) {
	tests := []struct {
		name  string
		steps []step
	}{
		{"the leader's log begins above this one", []step{
			{anew(1, 2, 40, 20, 0, false), "reset to=20"},
			{&Read{Req: 9, Offset: 2, ClientEpoch: -1, ClientSeen: -1, AllowFollower: true}, "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{&Truncated{End: 20}, "visible 20; open sess=1 leader=2 epoch=3 last=-1 end=20"},
			{anew(1, -1, 20, 20, 30, true), "position sess=1 pe=1 last=-1 end=20 durable=20 start=20"},
		}},
		{"deletions that this log has not seen are gone at the leader", []step{
			{anew(1, 2, 10, 2, 11, true), "leave sess=1; reset to=2"},
			{&Truncated{End: 2}, "visible 2; open sess=2 leader=2 epoch=3 last=-1 end=2"},
			{anew(2, -1, 2, 2, 11, true), "position sess=2 pe=1 last=-1 end=2 durable=2 start=2"},
		}},
		{"all that the leader removed tombstones of is here", []step{
			{anew(1, 2, 10, 0, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
		}},
		{"the epochs of this log are gone at the leader", []step{
			{anew(1, -1, 10, 10, 0, false), "reset to=10"},
			{&Truncated{End: 10}, "visible 10; open sess=1 leader=2 epoch=3 last=-1 end=10"},
		}},
		{"they are gone, and the leader's log begins where something was committed here: it may be out of date", []step{
			{anew(1, -1, 10, 2, 0, false), "leave sess=1"},
			{Tick{Now: 1020 * ms}, "open sess=2 leader=2 epoch=3 last=2 end=10"},
			{follow3(2, func(r *Record) { r.ISR = []int32{2, 3} }), ""},
			{anew(2, -1, 10, 2, 0, false), "reset to=2"}, // nobody counts on this copy
			{&Truncated{End: 2}, "visible 2; open sess=2 leader=2 epoch=3 last=-1 end=2"},
		}},
		{"all of this log is gone, and its last epoch unknown to the leader", []step{
			{follow3(2, func(r *Record) { r.ISR = []int32{2, 3} }), ""},
			{answer(1, 2, 10, true), "visible 8; position sess=1 pe=2 last=2 end=10 durable=10 start=0"},
			{&Watermark{Sess: 1, LeaderEpoch: 3, HW: 10, Start: 10}, "visible 10; start at=10"},
			{StartMoved{Op: 1, Start: 10}, "position sess=1 pe=2 last=2 end=10 durable=10 start=10"},
			{LeaderGone{Sess: 1, Now: time.Second}, ""},
			{Tick{Now: 2 * time.Second}, "open sess=2 leader=2 epoch=3 last=2 end=10"},
			{anew(2, 1, 20, 4, 0, false), "reset to=4"},
		}},
		{"the leader knows none of the epochs of this log", []step{
			{StartMoved{Start: 4}, ""},
			{answer(1, 0, 6, false), "truncate to=4"},
			{&Truncated{End: 4}, "open sess=1 leader=2 epoch=3 last=-1 end=4"},
		}},
		{"the session ends meanwhile", []step{
			{anew(1, 2, 40, 20, 0, false), "reset to=20"},
			{LeaderGone{Sess: 1, Now: time.Second}, ""},
			{Tick{Now: 2 * time.Second}, ""},
			{&Truncated{End: 20}, "visible 20; open sess=2 leader=2 epoch=3 last=-1 end=20"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { run(t, behind(t, nil), tt.steps) })
	}
}

// What was committed is given up only after an unclean election.
func TestTruncationBelowTheHighWatermark(t *testing.T) {
	gone := answer(1, 1, 3, false)
	t.Run("never after a clean one", func(t *testing.T) {
		s := behind(t, nil)
		got := render(s.Step(gone))
		if want := "leave sess=1; resign INTERNAL_BUG; withhold INTERNAL_BUG"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if s.Violation() == nil {
			t.Error("no violation")
		}
	})
	lossy := []step{
		{answer(1, 1, 3, false), "truncate to=3 unclean"},
		{&Truncated{End: 3, Epochs: []EpochStart{{1, 0}}}, "visible 3; open sess=1 leader=2 epoch=3 last=1 end=3"},
		{answer(1, 1, 3, true), "position sess=1 pe=1 last=1 end=3 durable=3 start=0"},
	}
	t.Run("on a topic that allows it", func(t *testing.T) {
		run(t, behind(t, func(r *Record) { r.Unclean = true }), lossy)
	})
	t.Run("forced by an operator", func(t *testing.T) {
		run(t, behind(t, func(r *Record) { r.UncleanEpoch = 3 }), lossy)
	})
	t.Run("forced before this log's last epoch", func(t *testing.T) {
		s := behind(t, func(r *Record) { r.UncleanEpoch = 2 })
		s.Step(answer(1, 1, 3, false))
		if s.Violation() == nil {
			t.Error("no violation")
		}
	})
}

// A sync that began before a truncation says nothing about what was appended since.
func TestSyncAcrossATruncation(t *testing.T) {
	s := behind(t, nil)
	run(t, s, []step{
		{answer(1, 2, 10, true), "visible 8; position sess=1 pe=1 last=2 end=10 durable=10 start=0"},
		{batch(1, 1, 10, 12, 8), "copy ref=1 [10,12)"},
		{&Appended{Base: 10, End: 12, LastEpoch: 3, Epochs: []EpochStart{{3, 10}}}, "sync; position sess=1 pe=1 last=3 end=12 durable=10 start=0"},
		{follow3(2, func(r *Record) { r.Leader, r.LeaderEpoch = three, 4 }), "leave sess=1; open sess=2 leader=3 epoch=4 last=3 end=12"},
		{&EpochEnd{Sess: 2, LeaderEpoch: 4, LastEpoch: 2, End: 10, HW: 8}, "truncate to=10"},
		{&Truncated{End: 10, Epochs: []EpochStart{{1, 0}, {2, 6}}}, "open sess=2 leader=3 epoch=4 last=2 end=10"},
		{&EpochEnd{Sess: 2, LeaderEpoch: 4, LastEpoch: 2, End: 10, HW: 12, Agreed: true}, "visible 10; position sess=2 pe=2 last=2 end=10 durable=10 start=0"},
		{&Batch{Sess: 2, Ref: 2, LeaderEpoch: 4, Base: 10, End: 12, HW: 12}, "copy ref=2 [10,12)"},
		{&Appended{Base: 10, End: 12, LastEpoch: 4, Epochs: []EpochStart{{4, 10}}}, "position sess=2 pe=2 last=4 end=12 durable=10 start=0"},
		{&Synced{End: 12}, "sync"}, // the old one: it counts for nothing
		{&Synced{End: 12}, "visible 12; position sess=2 pe=2 last=4 end=12 durable=12 start=0"},
	})
}

func TestCopiesThatAreNotIntact(t *testing.T) {
	barred := func(r *Record) { r.Barred = []int32{1} }
	cut := &Opened{MaxEpochSeen: 2, Epochs: []EpochStart{{2, 0}}, End: 10, Durable: 10, HW: 12, Verdict: Cut}
	read := &Read{Req: 9, Offset: 2, ClientEpoch: -1, ClientSeen: -1, AllowFollower: true}
	t.Run("cut: kept aside, fetched again, and let go when in sync", func(t *testing.T) {
		s := New(self)
		run(t, s, []step{
			{cut, "withhold REPLICA_WITHHELD"},
			{follow3(1, barred), "open sess=1 leader=2 epoch=3 last=2 end=10"},
			{read, "rejected req=9 NOT_LEADER"},
			{answer(1, 2, 10, true), "leave sess=1; reset to=0 keep"},
		})
		if s.Down() != ReasonReplicaWithheld {
			t.Errorf("down: %v", s.Down())
		}
		run2(t, s, []step{
			{&Truncated{End: 0}, "visible 0; open sess=2 leader=2 epoch=3 last=-1 end=0"},
			// With a verdict on record it is no member to count on: it names no partition epoch.
			{answer(2, -1, 0, true), "position sess=2 pe=-1 last=-1 end=0 durable=0 start=0"},
			{follow3(2, func(r *Record) { r.ISR, r.OnRecord = []int32{2, 3}, true }), "clear verdict; position sess=2 pe=-1 last=-1 end=0 durable=0 start=0"},
			{VerdictCleared{}, "position sess=2 pe=2 last=-1 end=0 durable=0 start=0"},
			{follow3(3, func(r *Record) { r.OnRecord = true }), "replaced; position sess=2 pe=3 last=-1 end=0 durable=0 start=0"},
		})
		if s.Down() != ReasonNone {
			t.Errorf("down: %v", s.Down())
		}
	})
	t.Run("missing: made anew", func(t *testing.T) {
		run(t, New(self), []step{
			{&Opened{MaxEpochSeen: -1, Verdict: Missing}, "withhold REPLICA_WITHHELD"},
			{follow3(1, nil), "open sess=1 leader=2 epoch=3 last=-1 end=0"},
			{answer(1, -1, 0, true), "leave sess=1; reset to=0"},
			{&Truncated{End: 0}, "visible 0; open sess=2 leader=2 epoch=3 last=-1 end=0"},
			{answer(2, -1, 0, true), "position sess=2 pe=-1 last=-1 end=0 durable=0 start=0"},
		})
	})
	t.Run("barred, and named leader all the same: it does not lead", func(t *testing.T) {
		run(t, New(self), []step{
			{cut, "withhold REPLICA_WITHHELD"},
			{with(rec3(1, 1, 2), barred), ""},
			{produce(1, AcksAll), "rejected req=1 REPLICA_WITHHELD"},
			{fetchAt(0), "rejected req=9 REPLICA_WITHHELD"},
		})
	})
	t.Run("barred, whole as it looks: it commits nothing", func(t *testing.T) {
		run(t, New(self), []step{
			{&Opened{MaxEpochSeen: 2, Epochs: []EpochStart{{2, 0}}, End: 10, Durable: 10, HW: 4, Verdict: UncleanOS}, ""},
			{with(rec3(1, 1), func(r *Record) { r.Barred, r.MinISR = []int32{1}, 1 }), ""},
			{hello(1, two, 2, 10), "close sess=1 REPLICA_WITHHELD"},
			{with(rec3(2, 1), func(r *Record) { r.MinISR = 1 }), "clear verdict; visible 10"},
		})
	})
	t.Run("elected without a log: offsets that were committed are not used again", func(t *testing.T) {
		run(t, New(self), []step{
			{&Opened{MaxEpochSeen: -1, HW: 12, Verdict: Corrupt}, "withhold REPLICA_WITHHELD"},
			{rec3(1, 1), "clear verdict; reset to=12 keep"},
			{produce(1, AcksLeader), "rejected req=1 REPLICA_WITHHELD"},
			{&Truncated{End: 12}, "visible 12"},
			{produce(2, AcksLeader), "append req=2 epoch=3 base=12"},
		})
	})
	t.Run("unclean-os: its log is cut by epochs like any other", func(t *testing.T) {
		run(t, New(self), []step{
			{Flushing{OS: true}, ""},
			{&Opened{MaxEpochSeen: 2, Epochs: []EpochStart{{2, 0}}, End: 10, Durable: 10, HW: 4, Verdict: UncleanOS}, ""},
			{follow3(1, barred), "open sess=1 leader=2 epoch=3 last=2 end=10"},
			{answer(1, 2, 8, false), "truncate to=8"},
		})
	})
}

// run2 goes on with a script whose first result answers operation 1.
func run2(t *testing.T, s *State, steps []step) {
	t.Helper()
	if e, ok := steps[0].ev.(*Truncated); ok {
		e.Op = s.log.op.op
	}
	got := render(s.Step(steps[0].ev))
	if got != steps[0].want {
		t.Fatalf("%T: got %q, want %q", steps[0].ev, got, steps[0].want)
	}
	run(t, s, steps[1:])
}

// case 2 (the core's part): what a client saw does not go back, and a replica that is
// behind says so in a way that is tried again.
func TestReadsOnNewLeadersAndFollowers(t *testing.T) {
	read := func(kind ReadKind, offset int64, epoch int32, seen int64) *Read {
		return &Read{Req: 9, Kind: kind, Offset: offset, ClientEpoch: epoch, ClientSeen: seen, AllowFollower: true}
	}
	t.Run("a new leader", func(t *testing.T) {
		run(t, lead3(1, 2), []step{
			{read(ReadFetch, 2, -1, -1), "serve req=9 [2,4)"},
			{read(ReadFetch, 4, -1, -1), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{read(ReadFetch, 11, -1, -1), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{read(ReadLatest, 0, -1, -1), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{read(ReadEarliest, 0, -1, -1), "serve req=9 [0,4)"},
			{read(ReadFetch, 2, 3, 5), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{read(ReadFetch, 2, 4, 2), "rejected req=9 UNKNOWN_LEADER_EPOCH"},
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{at(1, 9, 9), "visible 9; tell sess=1 hw=9 start=0"},
			{read(ReadLatest, 0, -1, -1), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{at(1, 10, 10), "visible 10; tell sess=1 hw=10 start=0"},
			{read(ReadLatest, 0, -1, -1), "serve req=9 [10,10)"},
			{read(ReadFetch, 10, -1, -1), "wait req=9"},
			{read(ReadFetch, 11, -1, -1), "rejected req=9 OFFSET_OUT_OF_RANGE"},
			// After an unclean election only: nobody has what the client saw.
			{read(ReadFetch, 10, 3, 12), "wait req=9"},
			{read(ReadFetch, 10, -1, 12), "rejected req=9 OFFSET_NOT_AVAILABLE"},
		})
	})
	t.Run("a follower", func(t *testing.T) {
		s := behind(t, nil)
		run(t, s, []step{
			{&Read{Req: 9, Offset: 2, ClientEpoch: -1, ClientSeen: -1}, "rejected req=9 NOT_LEADER"},
			{read(ReadFetch, 2, -1, -1), "serve req=9 [2,4)"},
			{read(ReadFetch, 4, -1, -1), "wait req=9"},
			{read(ReadFetch, 5, -1, -1), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{read(ReadFetch, 50, -1, -1), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{read(ReadFetch, 2, 3, 5), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{read(ReadFetch, 2, 4, 2), "rejected req=9 UNKNOWN_LEADER_EPOCH"},
			{read(ReadLatest, 0, -1, -1), "serve req=9 [4,4)"},
			{StartMoved{Start: 3}, ""},
			{read(ReadFetch, 2, -1, -1), "rejected req=9 OFFSET_OUT_OF_RANGE"},
		})
	})
}

// The metadata went back in time: nobody leads, follows or cuts by it.
func TestMetadataThatRegressed(t *testing.T) {
	s := New(self)
	run(t, s, []step{
		{&Opened{MaxEpochSeen: 5, Epochs: []EpochStart{{5, 0}}, End: 10, Durable: 10, HW: 4}, ""},
		{follow3(1, nil), ""},
		{&EpochEnd{Sess: 0, LeaderEpoch: 3, LastEpoch: 2, End: 5}, ""},
		{follow3(2, func(r *Record) { r.LeaderEpoch = 6 }), "open sess=1 leader=2 epoch=6 last=5 end=10"},
	})
}

// Whatever way an older record comes, it changes nothing.
func TestOlderRecords(t *testing.T) {
	s := lead3(1, 2)
	older := []*Record{
		with(rec3(9, 1, 2), func(r *Record) { r.Generation = 0 }),
		with(rec3(9, 1, 2), func(r *Record) { r.Revision = 1 }),
		with(rec3(0, 1, 2), func(r *Record) { r.Revision = 50 }),
		with(rec3(9, 1, 2), func(r *Record) { r.LeaderEpoch = 2 }),
	}
	for _, r := range older {
		r.Leader = two
		if got := render(s.Step(r)); got != "" || !s.Leads() || s.PartitionEpoch() != 1 {
			t.Errorf("%+v: %q", r, got)
		}
	}
	if got := render(s.Step(with(rec3(2, 1, 2), func(r *Record) { r.Generation, r.Revision, r.Leader, r.LeaderEpoch = 2, 1, two, 4 }))); got != "resign NOT_LEADER; open sess=1 leader=2 epoch=4 last=2 end=10" {
		t.Errorf("a newer generation: %q", got)
	}
}
