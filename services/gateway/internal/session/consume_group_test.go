package session

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// atMostOnce is a member that holds partition 0 from 5 on and commits first.
func atMostOnce(t *testing.T, o *gatewayv1.ConsumeOpen) *harness {
	o.AtMostOnce = true
	return newHarness(t).group(o).assign(1, "0@5").forget()
}

// TestAtMostOnce: nothing is handed out before the position after it is committed.
func TestAtMostOnce(t *testing.T) {
	h := atMostOnce(t, &gatewayv1.ConsumeOpen{})
	h.fetched(0, 8, 5, 6, 7)
	h.expect("* commit #1 0@8") // and no records
	if h.c.WantsData() {
		t.Error("more is taken while a batch waits for its commit")
	}
	h.c.Committed(h.now, 1, client.CommitResult{}, nil)
	h.expect("< records 0 5 6 7 next 8")
	h.recv(msgRelease(position(0, 8)))
	h.expect() // that is progress, and commits nothing
	h.recv(msgCommit(1, position(0, 6)))
	h.expect("< committed 1 !INVALID_REQUEST/FIX")
	h.fetched(0, 100)
	h.expect("* commit #2 0@100", "< progress 0 next 100") // the end is reached without records
	h.c.Committed(h.now, 2, client.CommitResult{}, nil)
	h.recv(msgLeave())
	h.expect("* stop 0", "* leave") // nothing to give back
}

// TestAtMostOnceGivesBack: what was committed and is not handed out any more is
// committed back, so that it is not lost.
func TestAtMostOnceGivesBack(t *testing.T) {
	for name, c := range map[string]struct {
		event func(*harness)
		want  string
	}{
		"leave":      {func(h *harness) { h.recv(msgLeave()) }, "* stop 0 * commit #2 0@6"},
		"half-close": {func(h *harness) { h.c.HalfClose(h.now) }, "* stop 0 * commit #2 0@6"},
		"revoke":     {func(h *harness) { h.assign(2) }, "* stop 0 * commit #2 0@6 * revoking [0] < revoke 0 within 1m0s"},
		"drain":      {func(h *harness) { h.c.Drain(h.now) }, "* stop 0 * commit #2 0@6 < drain"},
	} {
		t.Run(name, func(t *testing.T) {
			h := atMostOnce(t, &gatewayv1.ConsumeOpen{CreditBytes: 1})
			h.fetched(0, 8, 5, 6, 7).forget()
			h.c.Committed(h.now, 1, client.CommitResult{}, nil)
			h.expect("< records 0 5 next 6") // credit for one
			c.event(h)
			if got := strings.Join(h.take(), " "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestAtMostOnceCommitFails: an outcome that is unknown is asked for again; a refusal
// stops the partition, and nothing was handed out.
func TestAtMostOnceCommitFails(t *testing.T) {
	h := atMostOnce(t, &gatewayv1.ConsumeOpen{})
	h.fetched(0, 8, 5, 6, 7).forget()
	h.c.Committed(h.now, 1, client.CommitResult{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "late").WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN))
	h.expect("< status DEADLINE_EXCEEDED")
	h.now = h.c.WakeAt()
	h.c.Tick(h.now)
	h.expect("* commit #2 0@8")
	h.c.Committed(h.now, 2, client.CommitResult{Refused: map[client.TopicPartition]error{partA(0): rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_COMMIT, "moved")}}, nil)
	h.expect("* stop 0", "< error 0 STALE_COMMIT/DROP_PARTITION")

	// A batch that is dropped is not committed again.
	h = atMostOnce(t, &gatewayv1.ConsumeOpen{})
	h.fetched(0, 8, 5, 6, 7).forget()
	h.recv(msgSeek(1, 0, 50))
	h.expect("* stop 0", "* fetch 0@50 epoch -1")
	h.c.Committed(h.now, 1, client.CommitResult{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, "wait"))
	h.now = h.now.Add(time.Hour)
	h.c.Tick(h.now)
	h.fetched(0, 52, 50, 51)
	h.expect("* commit #2 0@52")
}

// TestResumeToken stands for member id and attach number, and nothing else passes.
func TestResumeToken(t *testing.T) {
	h := newHarness(t).group(&gatewayv1.ConsumeOpen{})
	h.c.Attached(h.now, "m1", 3) // resumed by the gateway itself
	h.c.Drain(h.now)
	var opened *gatewayv1.ConsumeOpened
	var drain *gatewayv1.ConsumeDrain
	for o, ok := h.c.Next(h.now); ok; o, ok = h.c.Next(h.now) {
		opened, drain = max2(opened, o.Message.GetOpened()), max2(drain, o.Message.GetDrain())
	}
	if drain.GetWithin().AsDuration() != 5*time.Second || opened.GetResumeToken() == drain.GetResumeToken() {
		t.Errorf("%v, %v", opened, drain)
	}
	if l := opened.GetLimits(); l.GetSessionTimeout().AsDuration() != 15*time.Second || l.GetRebalanceTimeout().AsDuration() != 15*time.Minute || l.GetMaxUnansweredCommits() != 2 || l.GetMaxMessageBytes() != 4<<20 {
		t.Errorf("limits are %v", l)
	}
	for token, want := range map[string]string{opened.GetResumeToken(): "m1 1", drain.GetResumeToken(): "m1 3"} {
		h := newHarness(t)
		h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, ResumeToken: token}}})
		if s := h.c.Settings(); fmt.Sprint(s.MemberID, " ", s.Attach) != want {
			t.Errorf("%q stands for %q and %d", token, s.MemberID, s.Attach)
		}
		h.expect("* join g")
	}
	for _, token := range []string{"!", "AQ", "AQE", "AgFtMQ", "AQBtMQ"} {
		h := newHarness(t)
		h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, ResumeToken: token}}})
		h.ends("INVALID_REQUEST")
	}
	if h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{}); h.c.out[0].GetOpened().GetResumeToken() != "" || h.c.out[0].GetOpened().GetLimits().GetSessionTimeout() != nil {
		t.Error("a stream without a group is told what it has not")
	}
}

func max2[T any](old, newer *T) *T {
	if newer != nil {
		return newer
	}
	return old
}

// TestOpenGroupSettings: what belongs together, and what does not.
func TestOpenGroupSettings(t *testing.T) {
	const byDuration = gatewayv1.StartAt_START_AT_BY_DURATION
	group := func(o *gatewayv1.ConsumeOpen) *gatewayv1.ConsumeOpen {
		o.Group, o.Topics = "g", []string{"a"}
		return o
	}
	for _, c := range []struct {
		open *gatewayv1.ConsumeOpen
		want string // empty: it is taken
	}{
		{group(&gatewayv1.ConsumeOpen{StartAt: byDuration, StartByDuration: seconds(60)}), ""},
		{group(&gatewayv1.ConsumeOpen{StartAt: byDuration}), "start_by_duration"},
		{group(&gatewayv1.ConsumeOpen{StartByDuration: seconds(60)}), "go together"},
		{group(&gatewayv1.ConsumeOpen{StartAt: byDuration, StartByDuration: seconds(-1)}), "start_by_duration is -1s"},
		{group(&gatewayv1.ConsumeOpen{AtMostOnce: true, ClientRack: "r"}), ""},
		{group(&gatewayv1.ConsumeOpen{AtMostOnce: true, LeaveOffsets: true}), "at_most_once"},
		{group(&gatewayv1.ConsumeOpen{AtMostOnce: true, AutoCommitInterval: seconds(5)}), "at_most_once"},
		{&gatewayv1.ConsumeOpen{Topics: []string{"a"}, AtMostOnce: true}, "at_most_once"},
		{group(&gatewayv1.ConsumeOpen{MaxProcessing: seconds(600)}), ""},
		{group(&gatewayv1.ConsumeOpen{MaxProcessing: durationpb.New(time.Millisecond)}), "max_processing is 1ms"},
		{&gatewayv1.ConsumeOpen{Topics: []string{"a"}, MaxProcessing: seconds(600)}, "max_processing"},
		{&gatewayv1.ConsumeOpen{Topics: []string{"a"}, ClientRack: "r", Replica: ptr(int32(1))}, "client_rack and replica"},
		{group(&gatewayv1.ConsumeOpen{ClientRack: strings.Repeat("r", 256)}), "256 bytes"},
		{group(&gatewayv1.ConsumeOpen{ResumeToken: resumeToken("m1", 1), MemberId: "m1"}), "stands for"},
		{&gatewayv1.ConsumeOpen{Topics: []string{"a"}, ResumeToken: resumeToken("m1", 1)}, "belong to a group"},
	} {
		h := newHarness(t)
		h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: c.open}})
		ended, err := h.c.Ended()
		if ended != (c.want != "") || ended && (!rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v", c.open, err)
		}
	}
	h := newHarness(t).manual(1, &gatewayv1.ConsumeOpen{StartAt: byDuration, StartByDuration: seconds(60)})
	want := fmt.Sprintf("* resolve 0 timestamp:{seconds:%d} end", epoch0.Add(-time.Minute).Unix())
	if got := h.take(); len(got) < 2 || got[1] != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestMemberProgress: what a member tells its coordinator, by what it waits for.
func TestMemberProgress(t *testing.T) {
	late := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "no route")
	for _, c := range []struct {
		name    string
		open    *gatewayv1.ConsumeOpen
		do      func(*harness)
		err     error
		blocked bool
		want    string // delivered, processed, unprocessed for, what it waits for, a part of the detail
	}{
		{name: "nothing yet", do: func(*harness) {}, want: "-1 -1 0s NOTHING "},
		{name: "handed out", do: func(h *harness) { h.fetched(0, 8, 5, 6, 7).forget() }, want: "8 -1 3s APPLICATION had records for 3s"},
		{name: "partly released", do: func(h *harness) { h.fetched(0, 8, 5, 6, 7).forget().recv(msgRelease(position(0, 7))) }, want: "8 7 3s APPLICATION not released"},
		{name: "released", do: func(h *harness) { h.fetched(0, 8, 5, 6, 7).forget().recv(msgRelease(position(0, 8))) }, want: "8 8 0s NOTHING "},
		{name: "committed", do: func(h *harness) {
			h.fetched(0, 8, 5, 6, 7).forget().recv(msgCommit(1, position(0, 8))).forget()
			h.c.Committed(h.now, 1, client.CommitResult{}, nil)
		}, want: "8 8 0s NOTHING "},
		{name: "who commits nothing", open: &gatewayv1.ConsumeOpen{LeaveOffsets: true}, do: func(h *harness) { h.fetched(0, 8, 5, 6, 7).forget() }, want: "8 -1 0s NOTHING "},
		{name: "no credit", open: &gatewayv1.ConsumeOpen{CreditBytes: 1}, do: func(h *harness) { h.fetched(0, 8, 5, 6, 7).forget() }, want: "6 -1 3s CREDIT granted no more"},
		{name: "does not read", do: func(h *harness) { h.fetched(0, 8, 5, 6, 7) }, blocked: true, want: "-1 -1 0s APPLICATION does not take"},
		{name: "the session is not confirmed", do: func(h *harness) { h.c.SetDeliverUntil(h.now); h.fetched(0, 8, 5, 6, 7) }, want: "-1 -1 0s NETWORK not confirmed"},
		{name: "commits first", open: &gatewayv1.ConsumeOpen{AtMostOnce: true}, do: func(h *harness) { h.fetched(0, 8, 5, 6, 7).forget() }, want: "-1 -1 0s BROKER wait for their commit"},
		{name: "no way to the broker", do: func(*harness) {}, err: late, want: "-1 -1 0s NETWORK no route"},
		{name: "no leader", do: func(*harness) {}, err: errors.New("nobody leads"), want: "-1 -1 0s BROKER nobody leads"},
		{name: "paused", do: func(h *harness) { h.recv(msgPause(0)) }, want: "-1 -1 0s APPLICATION paused"},
		{name: "to be given up", do: func(h *harness) { h.assign(2) }, want: "-1 -1 0s APPLICATION give it up"},
		{name: "sought", do: func(h *harness) {
			h.fetched(0, 8, 5, 6, 7).forget().recv(msgRelease(position(0, 7))).recv(msgSeek(1, 0, 50))
		}, want: "-1 -1 0s NOTHING "},
		{name: "stopped by an error", do: func(h *harness) {
			h.c.Fetched(h.now, &client.FetchEvent{TopicPartition: partA(0), Tag: h.tag(0), Kind: client.FetchError, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH, "x")})
		}, want: "-1 -1 0s APPLICATION has to seek"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.open == nil {
				c.open = &gatewayv1.ConsumeOpen{}
			}
			h := newHarness(t).group(c.open).assign(1, "0@5").forget()
			c.do(h)
			all := h.c.Progress(h.now.Add(3*time.Second), map[client.TopicPartition]error{partA(0): c.err}, c.blocked)
			if len(all) != 1 || all[0].TopicPartition != partA(0) {
				t.Fatalf("told %v", all)
			}
			p := all[0]
			got := fmt.Sprintf("%d %d %v %s ", p.DeliveredNext, p.ProcessedNext, p.OldestUnprocessed, strings.TrimPrefix(p.Waiting.String(), "WAITING_FOR_"))
			if !strings.HasPrefix(c.want, got) || !strings.Contains(p.Detail, strings.TrimPrefix(c.want, got)) {
				t.Errorf("got %q %q, want %q", got, p.Detail, c.want)
			}
		})
	}
}

// TestProgressIsBounded: however many batches are in the client's hands, the age of
// the oldest one is told.
func TestProgressIsBounded(t *testing.T) {
	p := &part{processed: -1}
	for i := range 10_000 {
		p.handOut(int64(i+1), epoch0.Add(time.Duration(i)*time.Second))
	}
	if len(p.handed) > maxHanded {
		t.Errorf("%d are remembered", len(p.handed))
	}
	if got := p.waited(epoch0.Add(time.Hour)); got != time.Hour {
		t.Errorf("the oldest waits for %v", got)
	}
	p.finished(9_999)
	if got := p.waited(epoch0.Add(10_001 * time.Second)); got < time.Second || got > 300*time.Second {
		t.Errorf("the newest waits for %v", got)
	}
	p.finished(10_000)
	if len(p.handed) != 0 || p.waited(epoch0) != 0 {
		t.Errorf("left are %v", p.handed)
	}
}
