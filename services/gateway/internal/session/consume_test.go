package session

import (
	"strings"
	"testing"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// TestGroupStory is the life of a member: joined, assigned, read, committed, asked
// for a partition back, left.
func TestGroupStory(t *testing.T) {
	h := newHarness(t)
	h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: &gatewayv1.ConsumeOpen{
		Group: "g", Topics: []string{"a"}, StartAt: gatewayv1.StartAt_START_AT_EARLIEST, AutoCommitInterval: seconds(5),
	}}})
	h.expect("* lookup a")
	h.c.LookedUp(h.now, []Topic{{Name: "a", ID: topicA, Partitions: 2}}, nil)
	h.expect("* join g")
	h.c.Attached(h.now, "m1", 1)
	h.expect(`< opened "m1" 1`)

	h.assign(1, "0@5", "1")
	h.expect("* ack 1 [0 1]", "* fetch 0@5 epoch -1", "* resolve 1 place:PLACE_EARLIEST", "< assigned 0@5")
	h.c.Resolved(h.now, ResolveResult{Partition: partA(1), Tag: h.tag(1), Offset: 0})
	h.expect("* fetch 1@0 epoch -1", "* commit #1 1@0", "< assigned 1@0") // the start, where nothing was committed
	h.c.Committed(h.now, 1, client.CommitResult{}, nil)
	h.expect()

	h.fetched(0, 8, 5, 6, 7)
	h.expect("< records 0 5 6 7 next 8")
	h.recv(msgCommit(1, position(0, 6)))
	h.expect("* commit #2 0@6")
	h.c.Committed(h.now, 2, client.CommitResult{}, nil)
	h.expect("< committed 1 0@6")

	h.recv(msgRelease(position(0, 8)))
	h.now = h.now.Add(5 * time.Second)
	h.c.Tick(h.now)
	h.expect("* commit #3 0@8")
	h.c.Committed(h.now, 3, client.CommitResult{}, nil)
	h.expect() // an auto-commit that went well is not told
	h.now = h.now.Add(5 * time.Second)
	h.c.Tick(h.now)
	h.expect() // nothing new was released

	h.fetched(0, 10, 8, 9)
	h.assign(2, "1@0")
	h.expect("* stop 0", "* revoking [0]", "< revoke 0 within 1m0s") // and no records of 0
	h.recv(msgRevoking(0)).recv(msgRelease(position(0, 9))).recv(msgRevoked(0))
	h.expect("* commit #4 0@9") // what was released, before it is let go
	h.c.Committed(h.now, 4, client.CommitResult{}, nil)
	h.expect("* ack 2 [1]")

	h.recv(msgCommit(2, position(0, 9), position(1, 1)))
	h.expect("* commit #5 1@1")
	h.recv(msgLeave())
	h.expect("* stop 1")
	h.c.Committed(h.now, 5, client.CommitResult{}, nil)
	h.expect("* leave", "< committed 2 1@1 0!STALE_COMMIT/DROP_PARTITION")
	h.c.Left()
	h.expect("< closed")
	h.ends("OK")
}

// TestRevocationCalledOff: a partition that is assigned again while the client is
// giving it up holds nothing up, has no deadline, and comes back once let go, at the
// newest commit. // case 25
func TestRevocationCalledOff(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{}).assign(1, "0@5", "1@5").assign(2, "1@5").forget()
	h.assign(3, "0@5", "1@5")
	h.expect("* ack 3 [0 1]")
	h.now = h.now.Add(time.Hour)
	h.c.Tick(h.now)
	h.recv(msgCommit(1, position(0, 9)))
	h.expect("* commit #1 0@9")
	h.recv(msgRevoked(0))
	h.expect() // waits for the commit
	h.recv(msgCommit(2, position(0, 10)))
	h.expect("< committed 2 0!STALE_COMMIT/DROP_PARTITION") // it was given up
	h.c.Committed(h.now, 1, client.CommitResult{}, nil)
	h.expect("* fetch 0@9 epoch -1", "< committed 1 0@9", "< assigned 0@9")
}

// TestRevocationDeadline: a client that does not give a partition up loses its
// membership.
func TestRevocationDeadline(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{}).assign(1, "0@5").assign(2).forget()
	if at := h.c.WakeAt(); !at.Equal(h.now.Add(time.Minute)) {
		t.Errorf("wakes at %s", at)
	}
	h.now = h.now.Add(time.Minute)
	h.c.Tick(h.now)
	h.expect("< fenced MEMBER_FENCED/REJOIN")
	h.ends("MEMBER_FENCED")
}

// TestCredit: records come while credit is above 0, any one record whatever its
// size; control needs none.
func TestCredit(t *testing.T) {
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{CreditBytes: 10, Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Offset: ptr(int64(0))}}}).forget()
	h.fetched(0, 3, 0, 1, 2)
	h.expect("< records 0 0 next 1") // one record, although it costs more than 10
	if h.c.credit >= 0 {
		t.Errorf("credit is %d", h.c.credit)
	}
	h.recv(msgPing(1))
	h.expect("< pong 1")
	h.recv(msgCredit(-h.c.credit))
	h.expect() // back to 0: not enough
	h.recv(msgCredit(1))
	h.expect("< records 0 1 next 2")
	if h.c.WantsData() {
		t.Error("record 2 is held; nothing more is taken")
	}
	h.recv(msgCredit(1000))
	h.expect("< records 0 2 next 3")
	if !h.c.WantsData() {
		t.Error("everything was handed out")
	}
}

// TestChunksAndCost: messages keep to the chunk size, and their cost is what credit
// loses.
func TestChunksAndCost(t *testing.T) {
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{CreditBytes: 1 << 20, Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Offset: ptr(int64(0))}}}).forget()
	h.fetched(0, 9, 0, 1, 2, 3, 4, 5, 6)
	before, cost, sent := h.c.credit, int64(0), 0
	for o, ok := h.c.Next(h.now); ok; o, ok = h.c.Next(h.now) {
		r := o.Message.GetRecords()
		if r.GetCost() > 100 || r.GetCost() <= 0 {
			t.Errorf("a message of %d records costs %d", len(r.GetRecords()), r.GetCost())
		}
		cost += r.GetCost()
		sent += len(r.GetRecords())
		if sent == 7 && r.GetNextOffset() != 9 {
			t.Errorf("the last message leads to %d, past the gap at the batch's end", r.GetNextOffset())
		}
	}
	if sent != 7 || before-h.c.credit != cost {
		t.Errorf("%d records, credit went down by %d, costs say %d", sent, before-h.c.credit, cost)
	}
}

// TestControlOvertakesRecords: what waits for credit or the client delays no
// control message.
func TestControlOvertakesRecords(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{}).assign(1, "0@0", "1@0").forget()
	h.fetched(0, 9, 0, 1, 2, 3, 4, 5)
	if o, ok := h.c.Next(h.now); !ok || o.Message.GetRecords() == nil {
		t.Fatal("records first")
	}
	h.recv(msgPing(1))
	h.assign(2, "0@0")
	if o, _ := h.c.Next(h.now); o.Message.GetPong() == nil {
		t.Errorf("got %s", showConsume(o.Message))
	}
	if o, _ := h.c.Next(h.now); o.Message.GetRevoke() == nil {
		t.Errorf("got %s", showConsume(o.Message))
	}
	if o, _ := h.c.Next(h.now); o.Message.GetRecords() == nil {
		t.Errorf("got %s", showConsume(o.Message))
	}
}

// TestSeek: nothing from before a seek comes after it, and its number is echoed.
func TestSeek(t *testing.T) {
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Offset: ptr(int64(100))}}}).forget()
	old := h.tag(0)
	h.fetched(0, 103, 100, 101, 102)
	h.recv(msgSeek(1, 0, 50))
	h.expect("* stop 0", "* fetch 0@50 epoch -1") // what was fetched is dropped
	h.fetchedTag(0, old, 106, 103, 104, 105)
	h.expect() // what was on its way, too
	h.fetched(0, 52, 50, 51)
	h.expect("< records 0 50 51 next 52 seek 1")
	h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Seek{Seek: &gatewayv1.ConsumeSeek{
		SeekId: 2, Topic: "a", To: &gatewayv1.ConsumeSeek_Spec{Spec: client.Earliest()},
	}}})
	h.expect("* stop 0", "* resolve 0 place:PLACE_EARLIEST")
	h.c.Resolved(h.now, ResolveResult{Partition: partA(0), Tag: h.tag(0), Offset: 7})
	h.expect("* fetch 0@7 epoch -1")
	h.recv(msgSeek(1, 0, 0))
	h.expect("< error 0 INVALID_REQUEST/FIX") // numbers rise
	h.recv(msgSeek(3, 0, -4))
	h.expect("< error 0 INVALID_REQUEST/FIX")
	h.recv(msgSeek(3, 9, 0))
	h.expect("< error 9 STALE_COMMIT/DROP_PARTITION")
}

// TestPause keeps the position and hands out nothing until Resume.
func TestPause(t *testing.T) {
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Offset: ptr(int64(0))}}}).forget()
	h.fetched(0, 2, 0, 1).expect("< records 0 0 1 next 2")
	h.fetched(0, 4, 2, 3)
	h.recv(msgPause(0))
	h.expect("* stop 0")
	h.recv(msgResume(0))
	h.expect("* fetch 0@2 epoch 4")
	// Where the client is moved past something, the epoch before that is not the
	// one before the position: the broker would take the log for cut.
	h.c.Fetched(h.now, &client.FetchEvent{TopicPartition: partA(0), Tag: h.tag(0), Kind: client.FetchProgress, NextOffset: 6, LeaderEpoch: -1, HighWatermark: -1})
	h.expect("< progress 0 next 6")
	h.recv(msgPause(0)).recv(msgResume(0))
	h.expect("* stop 0", "* fetch 0@6 epoch -1")
}

// TestPartitionErrors: an error stops its partition until a seek; the others go on.
func TestPartitionErrors(t *testing.T) {
	h := newHarness(t).manual(2, &gatewayv1.ConsumeOpen{}).forget()
	for n := range int32(2) {
		h.c.Resolved(h.now, ResolveResult{Partition: partA(n), Tag: h.tag(n), Offset: 10})
	}
	h.forget()
	fault := func(reason typev1.ErrorReason) {
		h.c.Fetched(h.now, &client.FetchEvent{TopicPartition: partA(0), Tag: h.tag(0), Kind: client.FetchError, HighWatermark: -1, Err: rpc.Errorf(reason, "x")})
	}
	fault(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE)
	h.expect("* stop 0", "< error 0 OFFSET_OUT_OF_RANGE/CHOOSE")
	h.fetched(1, 11, 10).expect("< records 1 10 next 11")
	h.recv(msgSeek(1, 0, 20)).expect("* fetch 0@20 epoch -1")
	fault(typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH)
	h.expect("* stop 0", "< error 0 CORRUPT_BATCH/CHOOSE")
	h.recv(msgSeek(2, 0, 21)).forget()
	fault(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC)
	h.expect("* stop 0", "< error 0 UNKNOWN_TOPIC/DROP_PARTITION")
}

// TestRecordTooLargeForTheClient: a record that no message may carry is an error of
// its partition, and a seek leaves it out. // case 41
func TestRecordTooLargeForTheClient(t *testing.T) {
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{MaxMessageBytes: 4 << 10, Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Offset: ptr(int64(0))}}}).forget()
	h.fetched(0, 2, 0, 1)
	h.c.batch.event.Records[1].Value = make([]byte, 4<<10)
	h.expect("< records 0 0 next 1", "< error 0 RECORD_TOO_LARGE/CHOOSE", "* stop 0")
	h.recv(msgSeek(1, 0, 2)).expect("* fetch 0@2 epoch -1")
}

// TestProgress moves the client past gaps, once, and never back.
func TestProgress(t *testing.T) {
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Offset: ptr(int64(0))}}}).forget()
	h.fetched(0, 5).fetched(0, 8).expect("< progress 0 next 8")
	h.fetched(0, 8).expect() // news of the same place
	h.fetched(0, 10, 9).expect("< records 0 9 next 10")
}

func ptr[T any](v T) *T { return &v }

// TestStopAtEnd ends at each partition's end as of the start, with nothing beyond.
func TestStopAtEnd(t *testing.T) {
	h := newHarness(t).manual(3, &gatewayv1.ConsumeOpen{StopAtEnd: true, StartAt: gatewayv1.StartAt_START_AT_EARLIEST})
	h.expect("* lookup a", "* resolve 0 place:PLACE_EARLIEST end", "* resolve 1 place:PLACE_EARLIEST end", "* resolve 2 place:PLACE_EARLIEST end", `< opened "" 0`)
	h.c.Resolved(h.now, ResolveResult{Partition: partA(0), Tag: h.tag(0), Offset: 0, End: 2})
	h.c.Resolved(h.now, ResolveResult{Partition: partA(1), Tag: h.tag(1), Offset: 4, End: 4})
	h.c.Resolved(h.now, ResolveResult{Partition: partA(2), Tag: h.tag(2), Offset: 0, End: 7})
	h.expect("* fetch 0@0 epoch -1", "* fetch 2@0 epoch -1", "< assigned 0@0", "< assigned 1@4", "< assigned 2@0")
	h.c.HalfClose(h.now) // a client that has nothing more to say gets everything all the same
	h.fetched(0, 4, 0, 1, 2, 3)
	h.expect("< records 0 0 1 next 2", "* stop 0")
	h.fetched(2, 7) // control records only
	h.expect("* stop 2", "< progress 2 next 7", "< closed")
	h.ends("OK")
}

// TestStopAtEndOfAGroup waits for the assignment, then commits and leaves.
func TestStopAtEndOfAGroup(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{StopAtEnd: true})
	h.expect("* lookup a", "* join g", `< opened "m1" 1`)
	h.assign(1, "0@5")
	h.expect("* ack 1 [0]", "* resolve 0 end")
	h.c.Resolved(h.now, ResolveResult{Partition: partA(0), Tag: h.tag(0), Offset: -1, End: 5})
	h.expect("* leave", "< assigned 0@5")
	h.c.Left()
	h.expect("< closed")
	h.ends("OK")
}

// TestResume begins at the positions that the client received, and knows the leader
// epoch before them; partitions without one begin where the group says.
func TestResume(t *testing.T) {
	h := newHarness(t)
	h.group(&gatewayv1.ConsumeOpen{MemberId: "m1", Attach: 1, Positions: []*gatewayv1.ConsumePosition{
		{Topic: "a", Partition: 0, NextOffset: 9, LeaderEpoch: ptr(int32(4))}, {Topic: "a", Partition: 1, NextOffset: 3},
	}})
	h.assign(5, "0@5", "1@5", "2@7")
	h.expect("* join g", "* ack 5 [0 1 2]", "* fetch 0@9 epoch 4", "* fetch 1@3 epoch -1", "* fetch 2@7 epoch -1",
		`< opened "m1" 1`, "< assigned 0@9", "< assigned 1@3", "< assigned 2@7")
	// A later tenure begins where the group says.
	h.assign(6, "1@5").forget()
	h.recv(msgRevoked(0)).recv(msgRevoked(2)).forget()
	h.assign(7, "0@20", "1@5")
	h.expect("* ack 7 [0 1]", "* fetch 0@20 epoch -1", "< assigned 0@20")
}

// TestStartAt applies only where there is no position.
func TestStartAt(t *testing.T) {
	for at, want := range map[gatewayv1.StartAt][]string{
		gatewayv1.StartAt_START_AT_UNSPECIFIED: {"* resolve 0 place:PLACE_LATEST"},
		gatewayv1.StartAt_START_AT_LATEST:      {"* resolve 0 place:PLACE_LATEST"},
		gatewayv1.StartAt_START_AT_EARLIEST:    {"* resolve 0 place:PLACE_EARLIEST"},
		gatewayv1.StartAt_START_AT_TIMESTAMP:   {"* resolve 0 timestamp:{seconds:12 nanos:345000000} end"},
		gatewayv1.StartAt_START_AT_NONE:        {"< assigned 0@-1", "< error 0 NO_COMMITTED_OFFSET/CHOOSE"},
	} {
		h := newHarness(t).group(&gatewayv1.ConsumeOpen{StartAt: at, StartTimestampMs: 12_345}).forget()
		h.assign(1, "0")
		h.expect(append([]string{"* ack 1 [0]"}, want...)...)
		h = newHarness(t).group(&gatewayv1.ConsumeOpen{StartAt: at, StartTimestampMs: 12_345}).forget()
		h.assign(1, "0@0")
		h.expect("* ack 1 [0]", "* fetch 0@0 epoch -1", "< assigned 0@0")
	}
	// No record is as young as the timestamp: the end it is.
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_TIMESTAMP, StartTimestampMs: 1}).assign(1, "0").forget()
	h.c.Resolved(h.now, ResolveResult{Partition: partA(0), Tag: h.tag(0), Offset: -1, End: 40})
	h.expect("* fetch 0@40 epoch -1", "* commit #1 0@40", "< assigned 0@40")
}

// TestStartIsCommitted: where a group starts without a committed offset is committed
// once, also on the way out; not what a client or an earlier commit says.
func TestStartIsCommitted(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{StopAtEnd: true}).assign(1, "0", "1", "2@4").forget()
	h.c.Resolved(h.now, ResolveResult{Partition: partA(0), Tag: h.tag(0), Offset: 7, End: 7})
	h.c.Resolved(h.now, ResolveResult{Partition: partA(1), Tag: h.tag(1), Offset: 8, End: 8})
	h.c.Resolved(h.now, ResolveResult{Partition: partA(2), Tag: h.tag(2), Offset: -1, End: 4})
	h.expect("* commit #1 0@7 1@8", "< assigned 0@7", "< assigned 1@8", "< assigned 2@4")
	h.c.Committed(h.now, 1, client.CommitResult{}, nil)
	h.expect("* leave")
	h = newHarness(t).group(&gatewayv1.ConsumeOpen{}).assign(1, "0").forget()
	h.recv(msgSeek(1, 0, 3)).expect("* fetch 0@3 epoch -1", "< assigned 0@3")
	h = newHarness(t).manual(1, &gatewayv1.ConsumeOpen{}).forget()
	h.c.Resolved(h.now, ResolveResult{Partition: partA(0), Tag: h.tag(0), Offset: 7})
	h.expect("* fetch 0@7 epoch -1", "< assigned 0@7")
}

// TestGrown: partitions that a topic gains are read from their beginning.
func TestGrown(t *testing.T) {
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{}).forget()
	h.c.Grown(Topic{Name: "a", ID: topicA, Partitions: 2})
	h.expect("* fetch 1@0 epoch -1", "< assigned 1@0")
	h.c.Grown(Topic{Name: "a", ID: topicA, Partitions: 2})
	h.c.Grown(Topic{Name: "other", ID: topicA, Partitions: 9})
	h.expect()
}

// TestCommits: numbers rise; positions not held are refused while others take
// effect; everything released is what an empty commit means.
func TestCommits(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{}).assign(1, "0@5", "1@5").forget()
	h.recv(msgCommit(0)).expect("< committed 0 !INVALID_REQUEST/FIX")
	h.recv(msgCommit(1)).expect("< committed 1") // nothing was released
	h.recv(msgRelease(position(1, 8), position(7, 1))).recv(msgCommit(2)).expect("* commit #1 1@8")
	h.recv(msgCommit(2, position(0, 6))).expect("< committed 2 !INVALID_REQUEST/FIX")
	h.recv(msgCommit(3, position(0, 6), position(0, -1), position(7, 0))).expect("* commit #2 0@6")
	if h.c.WantsRead() {
		t.Error("two commits are on their way, the limit")
	}
	h.c.Committed(h.now, 2, client.CommitResult{Refused: map[client.TopicPartition]error{
		partA(0): rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_COMMIT, "x"),
	}}, nil)
	h.expect("< committed 3 0!INVALID_REQUEST/FIX 7!STALE_COMMIT/DROP_PARTITION 0!STALE_COMMIT/DROP_PARTITION")
	h.c.Committed(h.now, 1, client.CommitResult{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "x"))
	h.expect("< committed 2 !DEADLINE_EXCEEDED/RETRY")
	m := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{}).forget()
	m.recv(msgCommit(1, position(0, 1))).expect("< committed 1 !INVALID_REQUEST/FIX") // no group
}

// TestAutoCommitFailure is told with sequence 0, and tried again.
func TestAutoCommitFailure(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{AutoCommitInterval: seconds(1)}).assign(1, "0@5").forget()
	h.recv(msgRelease(position(0, 6)))
	tick := func() { h.now = h.now.Add(time.Second); h.c.Tick(h.now) }
	tick()
	h.expect("* commit #1 0@6")
	tick()
	h.expect() // one at a time
	h.c.Committed(h.now, 1, client.CommitResult{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE, "x"))
	h.expect("< committed 0 !COORDINATOR_NOT_AVAILABLE/RETRY")
	tick()
	h.expect("* commit #2 0@6")
}

// TestDrainKeepsTheMembership: commits are answered, no records come, and the
// client's going is no leave.
func TestDrainKeepsTheMembership(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{AutoCommitInterval: seconds(60)}).assign(1, "0@5").forget()
	h.fetched(0, 7, 5, 6)
	h.recv(msgRelease(position(0, 6)))
	h.c.Drain(h.now)
	h.expect("* stop 0", "* commit #1 0@6", "< drain")
	h.recv(msgCommit(1, position(0, 7))).expect("* commit #2 0@7")
	h.c.Committed(h.now, 2, client.CommitResult{}, nil)
	h.expect("< committed 1 0@7")
	h.c.HalfClose(h.now)
	h.expect()
	h.ends("OK")
}

// TestPositionsOfAnotherTopic: a position that names the topic of the same name
// which was deleted counts for nothing, when a stream is opened and later.
func TestPositionsOfAnotherTopic(t *testing.T) {
	at := func(id []byte, n int32, next int64) *gatewayv1.ConsumePosition {
		p := position(n, next)
		p.TopicId = id
		return p
	}
	old := topicid.ID{0xb}
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{MemberId: "m1", Attach: 1, Positions: []*gatewayv1.ConsumePosition{
		at(old[:], 0, 100), at(topicA[:], 1, 8), at(nil, 2, 9),
	}}).forget()
	h.assign(1, "0@5", "1@5", "2@5")
	h.expect("* ack 1 [0 1 2]", "* fetch 0@5 epoch -1", "* fetch 1@8 epoch -1", "* fetch 2@9 epoch -1", "< assigned 0@5", "< assigned 1@8", "< assigned 2@9")
	h.recv(msgCommit(1, at(old[:], 0, 100), at(topicA[:], 1, 8)))
	h.expect("* commit #1 1@8")
	h.c.Committed(h.now, 1, client.CommitResult{}, nil)
	h.expect("< committed 1 1@8 0!TOPIC_DELETED/DROP_PARTITION")
	h.recv(msgRelease(at(old[:], 0, 100))).recv(msgCommit(2))
	h.expect("< committed 2") // there is nothing that was released

	h = newHarness(t).manual(2, &gatewayv1.ConsumeOpen{Positions: []*gatewayv1.ConsumePosition{at(old[:], 0, 100), at(topicA[:], 1, 8)}})
	h.expect("* lookup a", "* fetch 1@8 epoch -1", `< opened "" 0`, "< assigned 0@-1", "< error 0 TOPIC_DELETED/DROP_PARTITION", "< assigned 1@8")
}

// TestLeaveOffsets: nothing is committed that the client does not ask for.
func TestLeaveOffsets(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{LeaveOffsets: true, StartAt: gatewayv1.StartAt_START_AT_EARLIEST}).forget()
	h.assign(1, "0")
	h.forget()
	h.c.Resolved(h.now, ResolveResult{Partition: partA(0), Tag: h.tag(0), Offset: 3})
	h.expect("* fetch 0@3 epoch -1", "< assigned 0@3")
	h.recv(msgCommit(1, position(0, 4)))
	h.expect("* commit #1 0@4")
}

// TestAssignedNamesTheTopic by its id, so that a client can tell a topic from the
// one that had its name before.
func TestAssignedNamesTheTopic(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{}).forget().assign(1, "0@5")
	h.c.TakeEffects()
	o, ok := h.c.Next(h.now)
	if id := o.Message.GetAssigned().GetTopicId(); !ok || string(id) != string(topicA[:]) {
		t.Errorf("assigned tells the topic id %x", id)
	}
}

// TestSessionNotConfirmed: without a confirmed session nothing is handed out.
func TestSessionNotConfirmed(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{}).assign(1, "0@5").forget()
	h.c.SetDeliverUntil(h.now)
	h.fetched(0, 6, 5).expect()
	if !h.c.HoldsBack(h.now) {
		t.Error("it is held back")
	}
	h.c.SetDeliverUntil(h.now.Add(time.Second))
	h.expect("< records 0 5 next 6")
}

// TestUnreadAnswersAreBounded: a client that asks and does not read is not read.
func TestUnreadAnswersAreBounded(t *testing.T) {
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{}).forget()
	n := 0
	for ; h.c.WantsRead() && n < 1000; n++ {
		h.recv(msgPing(int64(n)))
	}
	if n != consumeLimits().MaxUnread {
		t.Errorf("%d pings were read", n)
	}
	h.forget()
	if !h.c.WantsRead() {
		t.Error("all answers are taken")
	}
}

func TestConsumeOpenIsChecked(t *testing.T) {
	part := func(n int32, offset *int64) *gatewayv1.ConsumePartition {
		return &gatewayv1.ConsumePartition{Topic: "a", Partition: n, Offset: offset}
	}
	for word, o := range map[string]*gatewayv1.ConsumeOpen{
		"nothing to read":      {},
		"nothing to subscribe": {Group: "g"},
		"exclude each other":   {Group: "g", Topics: []string{"a"}, Partitions: []*gatewayv1.ConsumePartition{part(0, nil)}},
		"topic_pattern works":  {Topics: []string{"a"}, TopicPattern: "x"},
		"regular expression":   {Group: "g", TopicPattern: "("},
		"empty name":           {Topics: []string{""}},
		"255":                  {Group: strings.Repeat("g", 256), Topics: []string{"a"}},
		"named twice":          {Partitions: []*gatewayv1.ConsumePartition{part(1, nil), part(1, nil)}},
		"is negative":          {Partitions: []*gatewayv1.ConsumePartition{part(1, ptr(int64(-1)))}},
		"not a partition":      {Partitions: []*gatewayv1.ConsumePartition{part(-1, nil)}},
		"belong to a group":    {Topics: []string{"a"}, MemberId: "m"},
		"needs the member_id":  {Group: "g", Topics: []string{"a"}, Attach: 3},
		"assignor":             {Group: "g", Topics: []string{"a"}, Assignor: "best"},
		"start_at":             {Topics: []string{"a"}, StartAt: 9},
		"start_timestamp_ms":   {Topics: []string{"a"}, StartTimestampMs: -1},
		"isolation_level":      {Topics: []string{"a"}, IsolationLevel: 9},
		"max_message_bytes":    {Topics: []string{"a"}, MaxMessageBytes: 100},
		"credit_bytes":         {Topics: []string{"a"}, CreditBytes: -1},
		"session_timeout":      {Group: "g", Topics: []string{"a"}, SessionTimeout: seconds(0)},
		"rebalance_timeout":    {Group: "g", Topics: []string{"a"}, RebalanceTimeout: seconds(-1)},
		"no group to commit":   {Topics: []string{"a"}, AutoCommitInterval: seconds(1)},
		"positions":            {Topics: []string{"a"}, Positions: []*gatewayv1.ConsumePosition{position(0, -1)}},
		"leave_offsets":        {Group: "g", Topics: []string{"a"}, AutoCommitInterval: seconds(1), LeaveOffsets: true},
		"the topic id":         {Topics: []string{"a"}, Positions: []*gatewayv1.ConsumePosition{{Topic: "a", TopicId: []byte{1}}}},
		"client_id":            {Topics: []string{"a"}, ClientId: strings.Repeat("c", 256)},
	} {
		h := newHarness(t)
		h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: o}})
		ended, err := h.c.Ended()
		if !ended || reasonOfEnd(t, err) != "INVALID_REQUEST" || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: ended %v, %v", word, ended, err)
		}
	}
}

// TestUnknownThings end the stream before it stands.
func TestUnknownThings(t *testing.T) {
	h := newHarness(t).recv(msgOpen())
	h.c.LookedUp(h.now, nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, "x"))
	h.ends("UNKNOWN_TOPIC")
	h = newHarness(t).manual(2, &gatewayv1.ConsumeOpen{Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Partition: 2}}})
	h.ends("UNKNOWN_PARTITION")
	h = newHarness(t).manual(101, &gatewayv1.ConsumeOpen{})
	h.ends("LIMIT_EXCEEDED")
}
