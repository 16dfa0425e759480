package partition

import (
	"testing"
	"time"
)

const ms = time.Millisecond

var (
	two   = Replica{Broker: 2, Incarnation: 22}
	three = Replica{Broker: 3, Incarnation: 33}
)

// rec3 is a record of three replicas led by this one in epoch 3.
func rec3(partEpoch int64, isr ...int32) *Record {
	return &Record{
		Generation: 1, Revision: 10 + partEpoch, PartEpoch: partEpoch, LeaderEpoch: 3, Leader: self,
		Replicas: []int32{1, 2, 3}, ISR: isr, MinISR: 2, Now: time.Second,
	}
}

func with(r *Record, change func(*Record)) *Record {
	change(r)
	return r
}

// lead3 leads three replicas in epoch 3 over a log of ten records: epoch 1 from 0 on,
// epoch 2 from 6 on; the high watermark is 4.
func lead3(isr ...int32) *State {
	s := New(self)
	s.Step(&Opened{MaxEpochSeen: 2, Epochs: []EpochStart{{1, 0}, {2, 6}}, End: 10, Durable: 10, HW: 4})
	s.Step(rec3(1, isr...))
	return s
}

func hello(sess int64, from Replica, lastEpoch int32, end int64) *Hello {
	return &Hello{Sess: sess, From: from, LeaderEpoch: 3, LastEpoch: lastEpoch, End: end, Now: time.Second}
}

func at(sess, end, durable int64) *Position {
	return &Position{Sess: sess, LeaderEpoch: 3, PartEpoch: 1, LastEpoch: 2, End: end, Durable: durable, Now: time.Second}
}

func TestSessions(t *testing.T) {
	tests := []struct {
		name  string
		steps []step
	}{
		{"an equal log is agreed on at once", []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
		}},
		{"a shorter log is a prefix", []step{
			{hello(1, two, 1, 3), "epochend sess=1 epoch=1 end=6 agreed; send sess=1 from=3"},
		}},
		{"an empty log has nothing to agree on", []step{
			{hello(1, two, -1, 0), "epochend sess=1 epoch=-1 end=0 agreed; send sess=1 from=0"},
		}},
		// case 1
		{"a log of an epoch that this one does not know goes back, step by step", []step{
			{hello(1, two, 1, 8), "epochend sess=1 epoch=1 end=6"},
			{at(1, 8, 8), ""}, // it counts for nothing
			{hello(1, two, 1, 6), "epochend sess=1 epoch=1 end=6 agreed; send sess=1 from=6"},
		}},
		{"a log that goes on in the same epoch is cut at the end", []step{
			{hello(1, two, 2, 12), "epochend sess=1 epoch=2 end=10"},
		}},
		{"the newer session wins, and older ones do not come back", []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{at(1, 10, 10), ""},
			{hello(2, two, 2, 10), "close sess=1 superseded; epochend sess=2 epoch=2 end=10 agreed; send sess=2 from=10"},
			{hello(1, two, 2, 10), "close sess=1 superseded"},
			{Gone{Sess: 1}, ""},
			{Gone{Sess: 2}, ""},
			{hello(2, two, 2, 10), "close sess=2 superseded"},
		}},
		{"a hello in an agreed session changes nothing", []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{hello(1, two, 1, 6), "epochend sess=1 epoch=1 end=6 agreed"},
		}},
		{"who is refused", []step{
			{&Hello{Sess: 1, From: two, LeaderEpoch: 2, LastEpoch: 2, End: 10}, "close sess=1 STALE_LEADER_EPOCH"},
			{&Hello{Sess: 2, From: two, LeaderEpoch: 4, LastEpoch: 2, End: 10}, "close sess=2 UNKNOWN_LEADER_EPOCH"},
			{hello(3, Replica{Broker: 9, Incarnation: 1}, 2, 10), "close sess=3 unknown replica"},
			{hello(4, Replica{Broker: 1, Incarnation: 1}, 2, 10), "close sess=4 unknown replica"},
		}},
		{"a position that cannot be ends the session", []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{at(1, 10, 11), "close sess=1 invalid position"},
		}},
		{"sessions end with the leadership, and a new leader knows nobody", []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{hello(2, three, 2, 10), "epochend sess=2 epoch=2 end=10 agreed; send sess=2 from=10"},
			{at(1, 10, 10), ""},
			{with(rec3(2, 1, 2, 3), func(r *Record) { r.LeaderEpoch = 4 }), "close sess=1 NOT_LEADER; close sess=2 NOT_LEADER; resign NOT_LEADER"},
			{at(2, 10, 10), ""},
			{&Position{Sess: 1, LeaderEpoch: 4, PartEpoch: 2, LastEpoch: 2, End: 10, Durable: 10}, ""},
		}},
		{"a replica that is none any more", []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{with(rec3(2, 1, 3), func(r *Record) { r.Replicas = []int32{1, 3} }), "close sess=1 unknown replica"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { run(t, lead3(1, 2, 3), tt.steps) })
	}
}

func TestHighWatermark(t *testing.T) {
	join := []step{
		{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
		{hello(2, three, 2, 8), "epochend sess=2 epoch=2 end=10 agreed; send sess=2 from=8"},
	}
	tests := []struct {
		name  string
		isr   []int32
		steps []step
	}{
		{"it is the smallest durable end of the in-sync set", []int32{1, 2, 3}, []step{
			{at(1, 10, 10), ""},
			{at(2, 8, 6), "visible 6; tell sess=1 hw=6 start=0; tell sess=2 hw=6 start=0"},
			{at(2, 10, 9), "visible 9; tell sess=1 hw=9 start=0; tell sess=2 hw=9 start=0"},
			{at(2, 7, 7), ""}, // it came late; nothing goes back
			{at(2, 10, 10), "visible 10; tell sess=1 hw=10 start=0; tell sess=2 hw=10 start=0"},
		}},
		{"who is not in the set has no say", []int32{1, 2}, []step{
			{at(1, 10, 10), "visible 10; tell sess=1 hw=10 start=0; tell sess=2 hw=10 start=0"},
		}},
		{"a member without a session holds it", []int32{1, 2, 3}, []step{
			{at(1, 10, 10), ""},
			{Gone{Sess: 2}, ""},
			{at(1, 10, 10), ""},
			{at(2, 10, 10), ""}, // of a session that has ended
		}},
		{"what a follower had counts no more when its session ends", []int32{1, 2}, []step{
			{at(1, 10, 9), "visible 9; tell sess=1 hw=9 start=0; tell sess=2 hw=9 start=0"},
			{Gone{Sess: 1}, ""},
			{hello(3, two, 2, 10), "epochend sess=3 epoch=2 end=10 agreed; send sess=3 from=10"},
			{at(3, 10, 10), "visible 10; tell sess=3 hw=10 start=0; tell sess=2 hw=10 start=0"},
		}},
		{"it does not move below min.insync.replicas", []int32{1}, []step{
			{at(1, 10, 3), ""},
		}},
		{"nor do those told before there was an agreement", []int32{1, 2}, []step{
			{hello(3, two, 1, 9), "close sess=1 superseded; epochend sess=3 epoch=1 end=6"},
			{at(3, 9, 9), ""},
			{hello(3, two, 1, 6), "epochend sess=3 epoch=1 end=6 agreed; send sess=3 from=6"},
			{Tick{Now: time.Second}, ""},
			{at(3, 6, 5), "visible 5; tell sess=3 hw=5 start=0; tell sess=2 hw=5 start=0"},
		}},
		{"positions of another leader epoch count for nothing", []int32{1, 2}, []step{
			{&Position{Sess: 1, LeaderEpoch: 2, PartEpoch: 1, LastEpoch: 2, End: 10, Durable: 10}, ""},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { run(t, lead3(tt.isr...), append(append([]step{}, join...), tt.steps...)) })
	}
}

func TestUnsyncedCountsWhereTheTopicSaysSo(t *testing.T) {
	s := New(self)
	s.Step(Flushing{OS: true})
	s.Step(&Opened{MaxEpochSeen: 2, Epochs: []EpochStart{{2, 0}}, End: 10, Durable: 10, HW: 4})
	s.Step(rec3(1, 1, 2))
	run(t, s, []step{
		// What the hello says is not a position yet: the follower may begin anew.
		{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
		{at(1, 9, 0), "visible 9; tell sess=1 hw=9 start=0"},
	})
}

// case 30: an answer resolves nothing, a late one neither, and one proposal is under
// way at most.
func TestProposals(t *testing.T) {
	agreed := func(sess int64, from Replica) step {
		return step{hello(sess, from, 2, 10), map[int64]string{
			1: "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10",
			2: "epochend sess=2 epoch=2 end=10 agreed; send sess=2 from=10",
		}[sess]}
	}
	knows := func(sess, end, partEpoch int64) *Position {
		p := at(sess, end, end)
		p.PartEpoch = partEpoch
		return p
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"a follower joins at the high watermark and the epoch's start, knowing the record", []step{
			agreed(1, two), agreed(2, three),
			{at(1, 10, 10), "visible 10; tell sess=1 hw=10 start=0; tell sess=2 hw=10 start=0"},
			{knows(2, 9, 0), ""},
			{knows(2, 10, 0), ""},
			{knows(2, 10, 1), "propose id=1 pe=1 [1 2 3#33]"},
			{knows(2, 10, 1), ""},
		}},
		{"the epoch's start counts where the high watermark is behind it", []step{
			agreed(1, two), agreed(2, three),
			{at(2, 9, 9), ""},
			{at(2, 10, 10), "propose id=1 pe=1 [1 2 3#33]"},
		}},
		{"an unresolved proposal holds the high watermark; only a record ends that", []step{
			agreed(1, two), agreed(2, three),
			{at(2, 10, 10), "propose id=1 pe=1 [1 2 3#33]"},
			{Gone{Sess: 2, Now: 1100 * ms}, ""},
			{at(1, 10, 10), ""},
			{ProposalHint{ID: 1, Now: 1200 * ms}, ""},
			{rec3(1, 1, 2), ""}, // the same record again
			{Tick{Now: 1240 * ms}, ""},
			{Tick{Now: 1250 * ms}, "propose id=1 pe=1 [1 2 3#33]"},
			{ProposalHint{ID: 1, Now: 1300 * ms}, ""},
			{ProposalHint{ID: 1, Now: 1350 * ms}, ""},
			{ProposalHint{ID: 7, Now: 1350 * ms}, ""},
			{Tick{Now: 1399 * ms}, ""},
			{rec3(2, 1, 2), "visible 10; tell sess=1 hw=10 start=0"},
			{Tick{Now: 1400 * ms}, ""},
		}},
		{"a refused one is tried again later", []step{
			agreed(1, two), agreed(2, three),
			{at(2, 10, 10), "propose id=1 pe=1 [1 2 3#33]"},
			{with(rec3(2, 1, 2), func(r *Record) { r.Now = 2 * time.Second }), ""},
			{knows(2, 10, 2), ""},
			{Tick{Now: 2099 * ms}, ""},
			{Tick{Now: 2100 * ms}, "propose id=2 pe=2 [1 2 3#33]"},
			{with(rec3(3, 1, 2, 3), func(r *Record) { r.Now = 3 * time.Second }), ""},
			{ProposalHint{ID: 2, Now: 4 * time.Second}, ""},
		}},
		{"a new process of a refused one is not held to that", []step{
			agreed(1, two), agreed(2, three),
			{at(2, 10, 10), "propose id=1 pe=1 [1 2 3#33]"},
			{with(rec3(2, 1, 2), func(r *Record) { r.Now = 2 * time.Second }), ""},
			{hello(3, Replica{Broker: 3, Incarnation: 34}, 2, 10), "close sess=2 superseded; epochend sess=3 epoch=2 end=10 agreed; send sess=3 from=10"},
			{knows(3, 10, 2), "propose id=2 pe=2 [1 2 3#34]"},
		}},
		{"a proposal ends with the leadership", []step{
			agreed(1, two), agreed(2, three),
			{at(2, 10, 10), "propose id=1 pe=1 [1 2 3#33]"},
			{with(rec3(2, 1, 2), func(r *Record) { r.LeaderEpoch = 4 }), "close sess=1 NOT_LEADER; close sess=2 NOT_LEADER; resign NOT_LEADER"},
			{ProposalHint{ID: 1, Now: 1200 * ms}, ""},
			{Tick{Now: 1300 * ms}, ""},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { run(t, lead3(1, 2), tt.steps) })
	}
}

func TestLaggingMembers(t *testing.T) {
	posAt := func(sess, end int64, now time.Duration) *Position {
		p := at(sess, end, end)
		p.Now = now
		return p
	}
	start := func(t *testing.T) *State {
		s := lead3(1, 2, 3)
		s.Step(Settings{LagTimeMax: time.Second})
		run(t, s, []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{hello(2, three, 2, 10), "epochend sess=2 epoch=2 end=10 agreed; send sess=2 from=10"},
			{posAt(1, 10, time.Second), ""},
			{posAt(2, 10, time.Second), "visible 10; tell sess=1 hw=10 start=0; tell sess=2 hw=10 start=0"},
		})
		return s
	}
	late := func(req int64, now time.Duration) *Produce {
		p := produce(req, AcksAll)
		p.Now, p.Deadline = now, now+time.Minute
		return p
	}
	t.Run("quiet partitions lag nowhere", func(t *testing.T) {
		run(t, start(t), []step{{Tick{Now: time.Hour}, ""}})
	})
	t.Run("time counts from when it was last caught up", func(t *testing.T) {
		run(t, start(t), []step{
			{Tick{Now: time.Minute}, ""},
			{late(1, time.Minute), "append req=1 epoch=3 base=10"},
			{&Appended{Base: 10, End: 12, Now: time.Minute}, "sync"},
			{&Synced{End: 12, Now: time.Minute}, ""},
			{posAt(1, 12, time.Minute+10*ms), ""},
			{Tick{Now: time.Minute + 999*ms}, ""},
			{Tick{Now: time.Minute + 1000*ms}, "propose id=1 pe=1 [1 2]"},
			// The committed set still holds the high watermark.
			{posAt(1, 12, time.Minute+1010*ms), ""},
			{with(rec3(2, 1, 2), func(r *Record) { r.Now = time.Minute + 1020*ms }), "visible 12; ok req=1 base=10; tell sess=1 hw=12 start=0; tell sess=2 hw=12 start=0"},
		})
	})
	t.Run("reaching an earlier end is being caught up as of then", func(t *testing.T) {
		run(t, start(t), []step{
			{Tick{Now: time.Minute}, ""},
			{late(1, time.Minute), "append req=1 epoch=3 base=10"},
			{&Appended{Base: 10, End: 12, Now: time.Minute}, "sync"},
			{&Synced{End: 12, Now: time.Minute}, ""},
			{posAt(1, 12, time.Minute+600*ms), ""},
			{late(2, time.Minute+700*ms), "append req=2 epoch=3 base=12"},
			{&Appended{Base: 12, End: 14, Now: time.Minute + 700*ms}, "sync"},
			{&Synced{End: 14, Now: time.Minute + 700*ms}, ""},
			{posAt(2, 11, time.Minute+800*ms), "visible 11; tell sess=1 hw=11 start=0; tell sess=2 hw=11 start=0"},
			{posAt(1, 14, time.Minute+800*ms), ""},
			{posAt(2, 12, time.Minute+900*ms), "visible 12; ok req=1 base=10; tell sess=1 hw=12 start=0; tell sess=2 hw=12 start=0"},
			{Tick{Now: time.Minute + 999*ms}, ""},
			{Tick{Now: time.Minute + 1000*ms}, "propose id=1 pe=1 [1 2]"},
		})
	})
	t.Run("a session that ended", func(t *testing.T) {
		run(t, start(t), []step{
			{Tick{Now: time.Minute}, ""},
			{Gone{Sess: 2, Now: time.Minute}, ""},
			{Tick{Now: time.Minute + 999*ms}, ""},
			{Tick{Now: time.Minute + 1000*ms}, "propose id=1 pe=1 [1 2]"},
		})
	})
	t.Run("a leader that was paused does not blame its followers", func(t *testing.T) {
		run(t, start(t), []step{
			{Tick{Now: time.Minute}, ""},
			{late(1, time.Minute), "append req=1 epoch=3 base=10"},
			{&Appended{Base: 10, End: 12, Now: time.Minute}, "sync"},
			{&Synced{End: 12, Now: time.Minute}, ""},
			{posAt(1, 12, time.Minute+500*ms), ""},
			{Tick{Now: time.Minute + 20*time.Second}, ""}, // due at 1 s
			{Tick{Now: time.Minute + 20*time.Second + 499*ms}, ""},
			{Tick{Now: time.Minute + 20*time.Second + 500*ms}, "propose id=1 pe=1 [1 2]"},
		})
	})
	t.Run("members that never come", func(t *testing.T) {
		s := lead3(1, 2, 3)
		run(t, s, []step{
			{Tick{Now: 10 * time.Second}, ""},
			{Tick{Now: 11 * time.Second}, "propose id=1 pe=1 [1]"},
			{Tick{Now: 12 * time.Second}, ""},
		})
	})
}

// case 31: what can never be is refused before it is appended, with a reason that
// tells so.
func TestAcks(t *testing.T) {
	twoInSync := func(t *testing.T) *State {
		s := lead3(1, 2)
		run(t, s, []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{at(1, 10, 10), "visible 10; tell sess=1 hw=10 start=0"},
		})
		return s
	}
	t.Run("all waits for the in-sync set, one for the leader, none for nobody", func(t *testing.T) {
		run(t, twoInSync(t), []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=10"},
			{produce(2, AcksLeader), ""},
			{&Appended{Base: 10, End: 12}, "sync; append req=2 epoch=3 base=12"},
			{&Appended{Base: 12, End: 14}, ""},
			{at(1, 12, 12), ""}, // the leader's own sync counts too
			{&Synced{End: 14}, "visible 12; ok req=2 base=12; ok req=1 base=10; tell sess=1 hw=12 start=0"},
		})
	})
	t.Run("a set that shrinks below min", func(t *testing.T) {
		run(t, twoInSync(t), []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=10"},
			{&Appended{Base: 10, End: 12}, "sync"},
			{produce(2, AcksAll), "append req=2 epoch=3 base=12"},
			{produce(3, AcksAll), ""},
			{produce(4, AcksLeader), ""},
			{rec3(2, 1), "rejected req=3 NOT_ENOUGH_REPLICAS; unknown req=2 NOT_ENOUGH_REPLICAS_AFTER_APPEND; unknown req=1 NOT_ENOUGH_REPLICAS_AFTER_APPEND"},
			{produce(5, AcksAll), "rejected req=5 NOT_ENOUGH_REPLICAS"},
			{&Appended{Base: 12, End: 14}, "append req=4 epoch=3 base=14"},
			{&Appended{Base: 14, End: 16}, ""},
			{&Synced{End: 16}, "ok req=4 base=14"}, // acknowledged, and not visible
			{&Read{Req: 9, Kind: ReadLatest, ClientEpoch: -1, ClientSeen: -1}, "serve req=9 [10,10)"},
		})
	})
	t.Run("more than there are replicas", func(t *testing.T) {
		s := lead3(1, 2, 3)
		run(t, s, []step{
			{with(rec3(2, 1, 2, 3), func(r *Record) { r.MinISR = 4 }), ""},
			{produce(1, AcksAll), "rejected req=1 NOT_ENOUGH_REPLICAS"},
		})
	})
}

// case 22 (the core's part): a batch that the log refuses takes no place, and the ones
// behind it are asked about in their order. case 23: a duplicate is answered with its
// first offset, once that is committed, also by a new leader.
func TestDuplicates(t *testing.T) {
	run(t, lead3(1, 2), []step{
		{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
		{at(1, 8, 8), "visible 8; tell sess=1 hw=8 start=0"},
		{produce(1, AcksAll), "append req=1 epoch=3 base=10"},
		{produce(2, AcksAll), ""},
		{produce(3, AcksAll), ""},
		{produce(4, AcksAll), ""},
		{AppendRefused{}, "rejected req=1 batch refused; append req=2 epoch=3 base=10"}, // out of order
		{&Duplicate{Base: 8, End: 10}, "append req=3 epoch=3 base=10"},                  // there, and not committed
		{&Duplicate{Base: 2, End: 4}, "ok req=3 base=2; append req=4 epoch=3 base=10"},
		{at(1, 10, 10), "visible 10; ok req=2 base=8; tell sess=1 hw=10 start=0"},
		{&Appended{Base: 10, End: 12}, "sync"},
		{produce(5, AcksAll), "append req=5 epoch=3 base=12"},
		{&Duplicate{Base: 10, End: 12}, ""},
		{rec3(2, 1), "unknown req=4 NOT_ENOUGH_REPLICAS_AFTER_APPEND; unknown req=5 NOT_ENOUGH_REPLICAS_AFTER_APPEND"},
	})
}

func TestLogStart(t *testing.T) {
	start := func(req, offset int64) *StartWanted {
		return &StartWanted{Req: req, Offset: offset, Now: time.Second, Deadline: 5 * time.Second}
	}
	begins := func(sess, at int64) *Position {
		return &Position{Sess: sess, LeaderEpoch: 3, PartEpoch: 1, LastEpoch: 2, End: 10, Durable: 10, Start: at, Now: time.Second}
	}
	lead := func(t *testing.T) *State {
		s := lead3(1, 2, 3)
		run(t, s, []step{
			{hello(1, two, 2, 10), "epochend sess=1 epoch=2 end=10 agreed; send sess=1 from=10"},
			{hello(2, three, 2, 10), "epochend sess=2 epoch=2 end=10 agreed; send sess=2 from=10"},
			{at(1, 10, 10), ""},
			{at(2, 10, 8), "visible 8; tell sess=1 hw=8 start=0; tell sess=2 hw=8 start=0"},
		})
		return s
	}
	t.Run("it is done when every in-sync replica has done it", func(t *testing.T) {
		run(t, lead(t), []step{
			{start(1, 5), "start at=5"},
			{start(2, -1), ""},
			{StartMoved{Op: 1, Start: 5}, "start at=8; tell sess=1 hw=8 start=5; tell sess=2 hw=8 start=5"},
			{begins(1, 5), ""},
			{begins(2, 5), "visible 10; ok req=1 base=5; tell sess=1 hw=10 start=5; tell sess=2 hw=10 start=5"},
			{StartMoved{Op: 1, Start: 8}, "tell sess=1 hw=10 start=8; tell sess=2 hw=10 start=8"},
			{begins(2, 8), ""},
			{begins(1, 8), "ok req=2 base=8"},
			{start(3, 2), "ok req=3 base=8"}, // it is there already
		})
	})
	t.Run("a member that leaves the set is not waited for", func(t *testing.T) {
		run(t, lead(t), []step{
			{start(1, 5), "start at=5"},
			{StartMoved{Op: 1, Start: 5}, "tell sess=1 hw=8 start=5; tell sess=2 hw=8 start=5"},
			{begins(1, 5), ""},
			{rec3(2, 1, 2), "ok req=1 base=5; visible 10; tell sess=1 hw=10 start=5; tell sess=2 hw=10 start=5"},
		})
	})
	t.Run("what is refused, and what ends", func(t *testing.T) {
		run(t, lead(t), []step{
			{start(1, 9), "rejected req=1 OFFSET_OUT_OF_RANGE"},
			{start(2, -2), "rejected req=2 OFFSET_OUT_OF_RANGE"},
			{start(3, 5), "start at=5"},
			{Tick{Now: 5 * time.Second}, "unknown req=3 DEADLINE_EXCEEDED"},
			{&StartWanted{Req: 4, Offset: 6, Now: 5 * time.Second, Deadline: 5 * time.Second}, "rejected req=4 DEADLINE_EXCEEDED"},
			{&StartWanted{Req: 5, Offset: 6, Now: 6 * time.Second, Deadline: 9 * time.Second}, ""}, // the first is still moving it
			{StartMoved{Op: 1, Start: 5}, "start at=6; tell sess=1 hw=8 start=5; tell sess=2 hw=8 start=5"},
			{with(rec3(2, 1, 2, 3), func(r *Record) { r.LeaderEpoch = 4 }), "unknown req=5 NOT_LEADER; close sess=1 NOT_LEADER; close sess=2 NOT_LEADER; resign NOT_LEADER"},
			{StartMoved{Op: 1, Start: 6}, ""},
		})
	})
}

// case 32 (the core's part): alone, below min, nothing is committed that a lost tail
// could take away.
func TestAloneBelowMin(t *testing.T) {
	run(t, lead3(1), []step{
		{produce(1, AcksLeader), "append req=1 epoch=3 base=10"},
		{&Appended{Base: 10, End: 12}, "sync"},
		{&Synced{End: 12}, "ok req=1 base=10"},
		{&Read{Req: 9, Kind: ReadLatest, ClientEpoch: -1, ClientSeen: -1}, "rejected req=9 OFFSET_NOT_AVAILABLE"},
		{fetchAt(3), "serve req=9 [3,4)"},
	})
}

func TestLease(t *testing.T) {
	alone := func(change func(*Record)) *State {
		s := New(self)
		s.Step(Settings{LeaseTTL: 5 * time.Second})
		s.Step(&Opened{MaxEpochSeen: 2, Epochs: []EpochStart{{2, 0}}, End: 10, Durable: 10, HW: 10})
		s.Step(with(rec3(1, 1), func(r *Record) {
			r.MinISR, r.Unclean = 1, true
			if change != nil {
				change(r)
			}
		}))
		return s
	}
	commit := func(req, base int64, now time.Duration, want string) []step {
		p := produce(req, AcksAll)
		p.Now, p.Deadline = now, now+time.Minute
		return []step{
			{p, renderOne(&Append{Req: req, Epoch: 3, Base: base})},
			{&Appended{Base: base, End: base + 2, Now: now}, "sync"},
			{&Synced{End: base + 2, Now: now}, want},
		}
	}
	t.Run("it commits within the lease only", func(t *testing.T) {
		s := alone(nil)
		if !s.NeedsLease() {
			t.Error("it needs no lease")
		}
		run(t, s, append(commit(1, 10, 2*time.Second, ""), []step{
			{LeaseRenewed{Now: 2 * time.Second}, ""},
			{Tick{Now: 2 * time.Second}, "visible 12; ok req=1 base=10"},
		}...))
		run(t, s, commit(2, 12, 6*time.Second+999*ms, "visible 14; ok req=2 base=12"))
		run(t, s, append(commit(3, 14, 7*time.Second, ""), []step{
			{Tick{Now: 8 * time.Second}, ""},
			{LeaseRenewed{Now: 7 * time.Second}, ""},
			{Tick{Now: 9 * time.Second}, "visible 16; ok req=3 base=14"},
		}...))
		// Without the time the lease cannot be judged.
		p := produce(4, AcksAll)
		p.Now = 9 * time.Second
		run(t, s, []step{
			{p, "append req=4 epoch=3 base=16"},
			{&Appended{Base: 16, End: 18}, "sync"},
			{&Synced{End: 18}, ""},
			{Tick{Now: 10 * time.Second}, "visible 18; ok req=4 base=16"},
		})
	})
	t.Run("not where nobody else could be elected, or only cleanly", func(t *testing.T) {
		run(t, alone(func(r *Record) { r.Replicas = []int32{1} }), commit(1, 10, 2*time.Second, "visible 12; ok req=1 base=10"))
		run(t, alone(func(r *Record) { r.Unclean = false }), commit(1, 10, 2*time.Second, "visible 12; ok req=1 base=10"))
	})
}

// A record that names an earlier life of this broker makes nobody leader: what that life
// had in its memory is gone, and another may have been elected since.
func TestAnEarlierLifeLeadsNothing(t *testing.T) {
	s := New(self)
	s.Step(&Opened{MaxEpochSeen: 2, Epochs: []EpochStart{{2, 0}}, End: 10, Durable: 10, HW: 4})
	earlier := Replica{Broker: self.Broker, Incarnation: self.Incarnation - 1}
	for _, got := range []string{
		render(s.Step(&Record{Generation: 1, Revision: 10, PartEpoch: 1, LeaderEpoch: 3, Leader: earlier, Replicas: []int32{1}, ISR: []int32{1}, MinISR: 1, Now: 1})),
		render(s.Step(Tick{Now: time.Second})),
		render(s.Step(&Position{Sess: 1, LeaderEpoch: 3, PartEpoch: 1, LastEpoch: 2, End: 10, Durable: 10, Now: time.Second})),
	} {
		if got != "" {
			t.Errorf("it does something: %s", got)
		}
	}
	if s.Leads() || s.HighWatermark() != 4 {
		t.Errorf("it leads: %v; the high watermark is %d, want 4", s.Leads(), s.HighWatermark())
	}
	if got := render(s.Step(&Produce{Req: 1, LeaderEpoch: -1, Acks: AcksAll, Deadline: time.Minute, Now: time.Second, Records: 1})); got != "rejected req=1 NOT_LEADER" {
		t.Errorf("a produce: %s", got)
	}
}
