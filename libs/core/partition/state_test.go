package partition

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var self = Replica{Broker: 1, Incarnation: 77}

// newLeader is a state that leads in epoch 3 with an open, empty log.
func newLeader(t *testing.T, change func(*Record), flushing Flushing) *State {
	t.Helper()
	s := New(self)
	s.Step(flushing)
	s.Step(&Opened{MaxEpochSeen: -1})
	r := &Record{Generation: 1, Revision: 10, PartEpoch: 1, LeaderEpoch: 3, Leader: self, Replicas: []int32{1}, ISR: []int32{1}, MinISR: 1}
	if change != nil {
		change(r)
	}
	s.Step(r)
	return s
}

// render writes effects down so that a table reads as a story.
func render(effects []Effect) string {
	var parts []string
	for _, e := range effects {
		if text := renderOne(e); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, "; ")
}

func renderOne(e Effect) string {
	switch e := e.(type) {
	case *Append:
		return fmt.Sprintf("append req=%d epoch=%d base=%d", e.Req, e.Epoch, e.Base)
	case *AppendCopy:
		return fmt.Sprintf("copy ref=%d [%d,%d)", e.Ref, e.Base, e.End)
	case DropRef:
		return fmt.Sprintf("drop ref=%d", e.Ref)
	case *Sync:
		return "sync"
	case *Truncate:
		return fmt.Sprintf("truncate to=%d%s", e.To, map[bool]string{true: " unclean"}[e.Unclean])
	case *Reset:
		return fmt.Sprintf("reset to=%d%s", e.To, map[bool]string{true: " keep"}[e.Keep])
	case *MoveStart:
		return fmt.Sprintf("start at=%d", e.To)
	case *Reply:
		if e.Outcome == OK {
			return fmt.Sprintf("ok req=%d base=%d", e.Req, e.Base)
		}
		return fmt.Sprintf("%s req=%d %v", map[Outcome]string{Rejected: "rejected", Unknown: "unknown"}[e.Outcome], e.Req, e.Reason)
	case *Serve:
		return fmt.Sprintf("serve req=%d [%d,%d)", e.Req, e.From, e.UpTo)
	case Wait:
		return fmt.Sprintf("wait req=%d", e.Req)
	case *Visible:
		return fmt.Sprintf("visible %d", e.HW)
	case Resign:
		return fmt.Sprintf("resign %v", e.Reason)
	case Withhold:
		return fmt.Sprintf("withhold %v", e.Reason)
	case Replaced:
		return "replaced"
	case ClearVerdict:
		return "clear verdict"
	}
	return renderSession(e)
}

func renderSession(e Effect) string {
	switch e := e.(type) {
	case *SendEpochEnd:
		return fmt.Sprintf("epochend sess=%d epoch=%d end=%d%s", e.Sess, e.LastEpoch, e.End, map[bool]string{true: " agreed"}[e.Agreed])
	case *SendBatches:
		return fmt.Sprintf("send sess=%d from=%d", e.Sess, e.From)
	case *SendHW:
		return fmt.Sprintf("tell sess=%d hw=%d start=%d", e.Sess, e.HW, e.Start)
	case CloseSess:
		return fmt.Sprintf("close sess=%d %v", e.Sess, e.Reason)
	case *Propose:
		var isr []string
		for _, r := range e.ISR {
			isr = append(isr, strings.TrimSuffix(fmt.Sprintf("%d#%d", r.Broker, r.Incarnation), "#0"))
		}
		return fmt.Sprintf("propose id=%d pe=%d %v", e.ID, e.PartEpoch, isr)
	case *OpenLeader:
		return fmt.Sprintf("open sess=%d leader=%d epoch=%d last=%d end=%d", e.Sess, e.Leader.Broker, e.Epoch, e.LastEpoch, e.End)
	case CloseLeader:
		return fmt.Sprintf("leave sess=%d", e.Sess)
	case *SendPosition:
		return fmt.Sprintf("position sess=%d pe=%d last=%d end=%d durable=%d start=%d", e.Sess, e.PartEpoch, e.LastEpoch, e.End, e.Durable, e.Start)
	case *CheckpointHW, WakeAt:
		return "" // beside Visible, and of no interest
	}
	return fmt.Sprintf("%T?", e)
}

type step struct {
	ev   Event
	want string
}

// ops are the operations asked for last, of each kind.
type ops struct{ log, sync, move int64 }

func (o *ops) note(effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case *Append:
			o.log = e.Op
		case *AppendCopy:
			o.log = e.Op
		case *Truncate:
			o.log = e.Op
		case *Reset:
			o.log = e.Op
		case *Sync:
			o.sync = e.Op
		case *MoveStart:
			o.move = e.Op
		}
	}
}

// fill has a result belong to the operation asked for last.
func (o *ops) fill(ev Event) Event {
	switch e := ev.(type) {
	case *Appended:
		e.Op = o.log
	case *Duplicate:
		e.Op = o.log
	case *Truncated:
		e.Op = o.log
	case *Synced:
		e.Op = o.sync
	case AppendRefused:
		e.Op = o.log
		return e
	case StartMoved:
		if e.Op != 0 {
			e.Op = o.move
		}
		return e
	case IOFailed:
		e.Op = map[bool]int64{true: o.log, false: o.sync}[e.Op == 1]
		return e
	}
	return ev
}

// run steps through a script; results belong to the last operation asked for.
func run(t *testing.T, s *State, steps []step) {
	t.Helper()
	var o ops
	for i, st := range steps {
		effects := s.Step(o.fill(st.ev))
		o.note(effects)
		if got := render(effects); got != st.want {
			t.Fatalf("step %d, %T%+v: got %q, want %q", i, st.ev, st.ev, got, st.want)
		}
		if s.Violation() != nil {
			t.Fatalf("step %d: %v", i, s.Violation())
		}
	}
}

func produce(req int64, acks Acks) *Produce {
	return &Produce{Req: req, LeaderEpoch: -1, Acks: acks, Deadline: 30 * time.Second, Now: time.Second, Records: 2}
}

func fetchAt(offset int64) *Read {
	return &Read{Req: 9, Offset: offset, ClientEpoch: -1, ClientSeen: -1}
}

func TestScripts(t *testing.T) {
	record := func(partEpoch int64, epoch int32, leader Replica) *Record {
		return &Record{Generation: 1, Revision: 10 + partEpoch, PartEpoch: partEpoch, LeaderEpoch: epoch, Leader: leader, Replicas: []int32{1}, ISR: []int32{1}, MinISR: 1}
	}
	tests := []struct {
		name     string
		record   func(*Record)
		flushing Flushing
		steps    []step
	}{
		{name: "an answer follows the sync, and one sync answers all before it", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{produce(2, AcksLeader), ""},
			{&Appended{Base: 0, End: 2}, "sync; append req=2 epoch=3 base=2"},
			{produce(3, AcksAll), ""},
			{&Appended{Base: 2, End: 4}, "append req=3 epoch=3 base=4"},
			{&Synced{End: 2}, "visible 2; ok req=1 base=0; sync"},
			{&Appended{Base: 4, End: 6}, ""},
			{&Synced{End: 6}, "visible 6; ok req=2 base=2; ok req=3 base=4"},
		}},
		{name: "durability=os answers from the page cache", flushing: Flushing{OS: true}, steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "visible 2; ok req=1 base=0"},
			{Flush{}, "sync"},
			{&Synced{End: 2}, ""},
		}},
		{name: "flush.messages bounds what is not synced", flushing: Flushing{OS: true, Messages: 3}, steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "visible 2; ok req=1 base=0"},
			{produce(2, AcksAll), "append req=2 epoch=3 base=2"},
			{&Appended{Base: 2, End: 4}, "sync; visible 4; ok req=2 base=2"},
		}},
		{name: "flush.ms bounds how long", flushing: Flushing{OS: true, Interval: time.Second}, steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2, Now: 2 * time.Second}, "visible 2; ok req=1 base=0"},
			{Tick{Now: 2500 * time.Millisecond}, ""},
			{Tick{Now: 3 * time.Second}, "sync"},
		}},
		{name: "case 45: nothing is acknowledged after a failed fsync", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{produce(2, AcksAll), "append req=2 epoch=3 base=2"},
			{produce(3, AcksAll), ""},
			{IOFailed{Op: 2}, "rejected req=3 DISK_OFFLINE; unknown req=2 DISK_OFFLINE; unknown req=1 DISK_OFFLINE; resign DISK_OFFLINE; withhold DISK_OFFLINE"},
			{&Appended{Base: 2, End: 4}, ""},
			{produce(4, AcksAll), "rejected req=4 DISK_OFFLINE"},
			{fetchAt(0), "rejected req=9 DISK_OFFLINE"},
		}},
		{name: "a full disk is named, and read", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{&Synced{End: 2}, "visible 2; ok req=1 base=0"},
			{produce(2, AcksAll), "append req=2 epoch=3 base=2"},
			{produce(3, AcksAll), ""},
			{IOFailed{Op: 1, Kind: FailedFull}, "rejected req=3 DISK_FULL; unknown req=2 DISK_FULL"},
			{produce(4, AcksAll), "rejected req=4 DISK_FULL"},
			{fetchAt(0), "serve req=9 [0,2)"},
		}},
		{name: "no room for a batch, and room again", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{produce(2, AcksAll), ""},
			{AppendRefused{Full: true}, "rejected req=1 DISK_FULL; append req=2 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{&Synced{End: 2}, "visible 2; ok req=2 base=0"},
			{fetchAt(0), "serve req=9 [0,2)"},
		}},
		{name: "records go at the front", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{&Synced{End: 2}, "visible 2; ok req=1 base=0"},
			{StartMoved{Start: 1}, ""},
			{fetchAt(0), "rejected req=9 OFFSET_OUT_OF_RANGE"},
			{fetchAt(1), "serve req=9 [1,2)"},
			{StartMoved{Start: 0}, ""}, // it never goes back
			{fetchAt(0), "rejected req=9 OFFSET_OUT_OF_RANGE"},
		}},
		{name: "losing leadership: not done before the log, unknown after", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{produce(2, AcksAll), "append req=2 epoch=3 base=2"},
			{produce(3, AcksAll), ""},
			{record(2, 4, Replica{Broker: 2, Incarnation: 5}), "rejected req=3 NOT_LEADER; unknown req=2 NOT_LEADER; unknown req=1 NOT_LEADER; resign NOT_LEADER"},
			{&Synced{End: 2}, ""},
			{&Appended{Base: 2, End: 4}, "sync; open sess=1 leader=2 epoch=4 last=3 end=4"},
			{&Synced{End: 4}, ""},
			{produce(4, AcksAll), "rejected req=4 NOT_LEADER"},
			{fetchAt(0), "rejected req=9 NOT_LEADER"},
			{record(1, 3, self), ""},
			{produce(5, AcksAll), "rejected req=5 NOT_LEADER"},
			{record(3, 5, self), "leave sess=1; visible 4"},
			{produce(6, AcksAll), "append req=6 epoch=5 base=4"},
		}},
		{name: "an earlier life of the same broker does not lead", record: func(r *Record) { r.Leader.Incarnation = 76 }, steps: []step{
			{produce(1, AcksAll), "rejected req=1 NOT_LEADER"},
		}},
		{name: "no leader", record: func(r *Record) { r.Leader = Replica{} }, steps: []step{
			{produce(1, AcksAll), "rejected req=1 LEADER_NOT_AVAILABLE"},
		}},
		{name: "epochs of clients", steps: []step{
			{&Produce{Req: 1, LeaderEpoch: 2, Deadline: 2, Records: 1}, "rejected req=1 STALE_LEADER_EPOCH"},
			{&Produce{Req: 2, LeaderEpoch: 4, Deadline: 2, Records: 1}, "rejected req=2 UNKNOWN_LEADER_EPOCH"},
			{&Read{Req: 3, ClientEpoch: 4, ClientSeen: -1}, "rejected req=3 UNKNOWN_LEADER_EPOCH"},
			{&Read{Req: 4, ClientEpoch: 2, ClientSeen: -1}, "wait req=4"},
			{&Read{Req: 5, ClientEpoch: -1, ClientSeen: 8}, "rejected req=5 OFFSET_NOT_AVAILABLE"},
		}},
		{name: "below min.insync.replicas: all is refused before append, one is stored and not visible", record: func(r *Record) { r.MinISR = 2 }, steps: []step{
			{produce(1, AcksAll), "rejected req=1 NOT_ENOUGH_REPLICAS"},
			{produce(2, AcksLeader), "append req=2 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{&Synced{End: 2}, "ok req=2 base=0"},
			{fetchAt(0), "wait req=9"},
			{fetchAt(1), "rejected req=9 OFFSET_NOT_AVAILABLE"},
		}},
		{name: "with members whose positions are unknown nothing commits", record: func(r *Record) { r.ISR = []int32{1, 2}; r.Replicas = r.ISR }, steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{&Synced{End: 2}, ""},
			{Tick{Now: 10 * time.Second}, "propose id=1 pe=1 [1]"},
			{Tick{Now: 31 * time.Second}, "unknown req=1 DEADLINE_EXCEEDED"},
		}},
		{name: "deadlines: queued is not done, with the log is unknown", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{produce(2, AcksAll), ""},
			{Tick{Now: 29 * time.Second}, ""},
			{Tick{Now: 30 * time.Second}, "rejected req=2 DEADLINE_EXCEEDED; unknown req=1 DEADLINE_EXCEEDED"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{&Synced{End: 2}, "visible 2"},
		}},
		{name: "fences", record: func(r *Record) { r.Shard = true; r.ShardEpoch = 5 }, steps: []step{
			{produce(1, AcksAll), "rejected req=1 SHARD_FENCED"},
			{fenced(2, 4, 9), "rejected req=2 SHARD_FENCED"},
			{fenced(3, 5, 1), "append req=3 epoch=3 base=0"},
			{fenced(4, 5, 0), "rejected req=4 SHARD_FENCED"},
			{fenced(5, 6, 0), ""},
			{fenced(6, 5, 7), "rejected req=6 SHARD_FENCED"},
		}},
		{name: "a fence has no business elsewhere", steps: []step{
			{fenced(1, 5, 1), "rejected req=1 fence not allowed"},
		}},
		{name: "deletion", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{Deleted{}, "unknown req=1 TOPIC_DELETED; resign TOPIC_DELETED; withhold TOPIC_DELETED"},
			{&Synced{End: 2}, ""},
			{fetchAt(0), "rejected req=9 TOPIC_DELETED"},
		}},
		{name: "a batch that the log refuses is not done, and the next one goes on", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{produce(2, AcksAll), ""},
			{AppendRefused{}, "rejected req=1 batch refused; append req=2 epoch=3 base=0"},
		}},
		{name: "reads", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{fetchAt(0), "wait req=9"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{fetchAt(1), "rejected req=9 OFFSET_NOT_AVAILABLE"},
			{&Synced{End: 2}, "visible 2; ok req=1 base=0"},
			{fetchAt(0), "serve req=9 [0,2)"},
			{fetchAt(2), "wait req=9"},
			{fetchAt(3), "rejected req=9 OFFSET_OUT_OF_RANGE"},
			{fetchAt(-1), "rejected req=9 OFFSET_OUT_OF_RANGE"},
			{&Read{Req: 9, Kind: ReadLatest, ClientEpoch: -1, ClientSeen: -1}, "serve req=9 [2,2)"},
			{&Read{Req: 9, Kind: ReadEarliest, ClientEpoch: -1, ClientSeen: -1}, "serve req=9 [0,2)"},
		}},
		{name: "stopping takes nothing new and finishes the rest", steps: []step{
			{produce(1, AcksAll), "append req=1 epoch=3 base=0"},
			{Stop{}, ""},
			{produce(2, AcksAll), "rejected req=2 DRAINING"},
			{&Appended{Base: 0, End: 2}, "sync"},
			{&Synced{End: 2}, "visible 2; ok req=1 base=0"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, newLeader(t, tt.record, tt.flushing), tt.steps)
		})
	}
}

func fenced(req, shardEpoch int64, attempt int32) *Produce {
	p := produce(req, AcksAll)
	p.Fence = &Fence{ShardEpoch: shardEpoch, Attempt: attempt}
	return p
}

func TestOpened(t *testing.T) {
	tests := []struct {
		name   string
		opened Opened
		barred bool
		want   string // of a read at 0
	}{
		{"intact", Opened{MaxEpochSeen: 2, End: 10, Durable: 10, HW: 4}, false, "serve req=9 [0,10)"},
		{"unclean-os is served once it is trusted", Opened{MaxEpochSeen: 2, End: 10, Durable: 10, HW: 4, Verdict: UncleanOS}, false, "serve req=9 [0,10)"},
		{"unclean-os, barred", Opened{MaxEpochSeen: 2, End: 10, Durable: 10, HW: 4, Verdict: UncleanOS}, true, "rejected req=9 REPLICA_WITHHELD"},
		{"cut, barred", Opened{End: 10, Durable: 10, Verdict: Cut}, true, "rejected req=9 REPLICA_WITHHELD"},
		{"cut, elected all the same", Opened{End: 10, Durable: 10, Verdict: Cut}, false, "serve req=9 [0,10)"},
		{"corrupt, barred", Opened{Verdict: Corrupt}, true, "rejected req=9 REPLICA_WITHHELD"},
		{"missing, barred", Opened{Verdict: Missing}, true, "rejected req=9 REPLICA_WITHHELD"},
		{"missing, elected, and not made yet", Opened{Verdict: Missing}, false, "rejected req=9 REPLICA_WITHHELD"},
		{"the log has seen a newer epoch than the metadata", Opened{MaxEpochSeen: 4, End: 10, Durable: 10}, false, "rejected req=9 METADATA_REGRESSED"},
	}
	for _, tt := range tests {
		record := &Record{Generation: 1, Revision: 10, PartEpoch: 1, LeaderEpoch: 3, Leader: self, Replicas: []int32{1}, ISR: []int32{1}, MinISR: 1}
		if tt.barred {
			record.Barred = []int32{1}
		}
		for _, recordFirst := range []bool{true, false} {
			s := New(self)
			if recordFirst {
				s.Step(record)
				if got := render(s.Step(fetchAt(0))); got != "rejected req=9 LEADER_NOT_AVAILABLE" {
					t.Errorf("%s: before the log is open: %q", tt.name, got)
				}
			}
			s.Step(&tt.opened)
			if !recordFirst {
				s.Step(record)
			}
			if got := render(s.Step(fetchAt(0))); got != tt.want {
				t.Errorf("%s (record first: %v): got %q, want %q", tt.name, recordFirst, got, tt.want)
			}
		}
	}
}

func TestBreachIsNeverAnAcknowledgement(t *testing.T) {
	s := newLeader(t, nil, Flushing{})
	s.Step(produce(1, AcksAll))
	op := s.log.op.op
	got := render(s.Step(&Appended{Op: op, Base: 7, End: 9}))
	if want := "unknown req=1 INTERNAL_BUG; resign INTERNAL_BUG; withhold INTERNAL_BUG"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if s.Violation() == nil || s.Down() != ReasonInternalBug {
		t.Errorf("violation %v, down %v", s.Violation(), s.Down())
	}
}

func TestLogThatIsCutAboveTheHighWatermarkIsWithheld(t *testing.T) {
	s := newLeader(t, nil, Flushing{})
	s.Step(produce(1, AcksAll))
	s.Step(&Appended{Op: s.log.op.op, Base: 0, End: 2})
	got := render(s.Step(StartMoved{Start: 1}))
	if want := "unknown req=1 INTERNAL_BUG; resign INTERNAL_BUG; withhold INTERNAL_BUG"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
