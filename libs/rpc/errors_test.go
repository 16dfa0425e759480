package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

const (
	notLeader    = typev1.ErrorReason_ERROR_REASON_NOT_LEADER
	unknownTopic = typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC
	internalBug  = typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG
	invalid      = typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST
	unreachable  = typev1.ErrorReason_ERROR_REASON_UNREACHABLE
	limit        = typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED
	cancelled    = typev1.ErrorReason_ERROR_REASON_CANCELLED
	deadline     = typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED
)

// Every value of the enum has a row, in order, and every row says everything.
func TestReasonTableCoversTheEnum(t *testing.T) {
	rows := map[typev1.ErrorReason]ReasonInfo{}
	last := typev1.ErrorReason(0)
	for _, r := range Reasons() {
		if r.Reason <= last {
			t.Errorf("%s is out of order; infoOf searches by number", r.Name)
		}
		last = r.Reason
		rows[r.Reason] = r
	}
	for n, name := range typev1.ErrorReason_name {
		reason := typev1.ErrorReason(n)
		if n == 0 {
			continue
		}
		r, ok := rows[reason]
		if !ok {
			t.Errorf("%s has no row", name)
			continue
		}
		if r.Code == codes.OK || r.Code == codes.Unknown {
			t.Errorf("%s has the code %s", name, r.Code)
		}
		if r.Outcome != typev1.Outcome_OUTCOME_NOT_DONE && r.Outcome != typev1.Outcome_OUTCOME_UNKNOWN {
			t.Errorf("%s has the outcome %s", name, r.Outcome)
		}
		if r.Action == typev1.Action_ACTION_UNSPECIFIED {
			t.Errorf("%s has no action", name)
		}
		if !strings.HasSuffix(r.Meaning, ".") || !strings.HasSuffix(r.NextStep, ".") {
			t.Errorf("%s: meaning and next step must be sentences", name)
		}
		retried := r.Action == typev1.Action_ACTION_RETRY || r.Action == typev1.Action_ACTION_REOPEN
		if retried != (r.RetryDelay > 0) {
			t.Errorf("%s: action %s and retry delay %v do not agree", name, r.Action, r.RetryDelay)
		}
		// UNAVAILABLE is retried blindly, so it must be worth it.
		if r.Code == codes.Unavailable && !retried {
			t.Errorf("%s is UNAVAILABLE and not retried", name)
		}
		if got, ok := ExplainReason(strings.ToLower(r.Name)); !ok || got != r {
			t.Errorf("ExplainReason(%q) = %v, %v", strings.ToLower(r.Name), got, ok)
		}
	}
	if _, ok := ExplainReason("NO_SUCH_REASON"); ok {
		t.Error("ExplainReason knows NO_SUCH_REASON")
	}
}

// The codes that the style guide fixes.
func TestReasonCodes(t *testing.T) {
	want := map[string]codes.Code{
		"NOT_LEADER": codes.Aborted, "NOT_CONTROLLER": codes.Aborted, "NOT_COORDINATOR": codes.Aborted,
		"STALE_LEADER_EPOCH": codes.FailedPrecondition, "STALE_PARTITION_EPOCH": codes.FailedPrecondition,
		"STALE_INCARNATION": codes.FailedPrecondition, "SHARD_FENCED": codes.FailedPrecondition,
		"OFFSET_OUT_OF_RANGE": codes.OutOfRange, "UNKNOWN_TOPIC": codes.NotFound,
		"STARTING": codes.Unavailable, "COORDINATOR_LOADING": codes.Unavailable, "UNREACHABLE": codes.Unavailable,
		"THROTTLED": codes.ResourceExhausted, "LIMIT_EXCEEDED": codes.ResourceExhausted,
		"CORRUPT_LOG": codes.DataLoss, "CORRUPT_BATCH": codes.DataLoss,
		"INVALID_REQUEST": codes.InvalidArgument, "INVALID_TOPIC_NAME": codes.InvalidArgument,
		"INTERNAL_BUG": codes.Internal,
	}
	for name, code := range want {
		if r, ok := ExplainReason(name); !ok || r.Code != code {
			t.Errorf("%s has the code %s, want %s", name, r.Code, code)
		}
	}
}

func sample() *Error {
	return Errorf(notLeader, "broker %d does not lead %s-%d; ask broker 2", 1, "hdfs", 3).
		With("topic", "hdfs", "partition", "3").WithLeader(2, "127.0.0.1:5390", 7).WithRetry(30 * time.Millisecond).
		WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN).WithAction(typev1.Action_ACTION_REOPEN)
}

func checkSame(t *testing.T, got, want *Error) {
	t.Helper()
	if got.Code != want.Code || got.Reason != want.Reason || got.Outcome != want.Outcome || got.Action != want.Action ||
		got.Message != want.Message || got.RetryDelay != want.RetryDelay || !proto.Equal(got.Leader, want.Leader) ||
		fmt.Sprint(got.Metadata) != fmt.Sprint(want.Metadata) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// What a status carries, and that it comes back as it was, also when it is
// wrapped on either side.
func TestErrorThroughStatus(t *testing.T) {
	want := sample()
	wrapped := fmt.Errorf("produce: %w", fmt.Errorf("append: %w", want))
	st, ok := status.FromError(wrapped)
	if !ok {
		t.Fatal("grpc finds no status in a wrapped Error")
	}
	infos, retries := 0, 0
	for _, d := range want.GRPCStatus().Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			infos++
			if d.Domain != "leat" || d.Reason != "NOT_LEADER" || d.Metadata["topic"] != "hdfs" ||
				d.Metadata["leader_address"] != "127.0.0.1:5390" || d.Metadata["leader_epoch"] != "7" {
				t.Errorf("ErrorInfo is %v", d)
			}
		case *errdetails.RetryInfo:
			retries++
		}
	}
	if infos != 1 || retries != 1 {
		t.Errorf("%d ErrorInfo and %d RetryInfo, want one of each", infos, retries)
	}
	if st.Code() != codes.Aborted {
		t.Errorf("code %s", st.Code())
	}
	received := fmt.Errorf("call: %w", want.GRPCStatus().Err())
	checkSame(t, FromError(received), want)
	if FromError(received).Cause == nil {
		t.Error("the received error is not kept as the cause")
	}
	if !IsReason(received, unknownTopic, notLeader) || IsReason(received, unknownTopic) || !Retryable(received) {
		t.Error("IsReason or Retryable do not see through")
	}
	if FromError(wrapped) != want {
		t.Error("a wrapped Error is not found as it is, with its cause")
	}
}

func TestErrorThroughStream(t *testing.T) {
	want := sample()
	p := ToProto(fmt.Errorf("append: %w", want))
	wire, err := proto.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back typev1.Error
	if err := proto.Unmarshal(wire, &back); err != nil {
		t.Fatal(err)
	}
	checkSame(t, FromProto(&back), want)
	if FromProto(nil) != nil || ToProto(nil) != nil || FromError(nil) != nil || Retryable(nil) || IsReason(nil, internalBug) {
		t.Error("nil does not stay nil")
	}
	if ReasonOf(nil) != typev1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		t.Error("nil has a reason")
	}
}

// The leader hint is in the ErrorInfo too, for whoever reads only that.
func TestLeaderInErrorInfoAlone(t *testing.T) {
	st, err := status.New(codes.Aborted, "moved").WithDetails(&errdetails.ErrorInfo{
		Domain: "leat", Reason: "NOT_LEADER",
		Metadata: map[string]string{"leader_address": "10.0.0.1:1", "leader_id": "3", "leader_epoch": "x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := FromError(st.Err())
	if !proto.Equal(e.Leader, &typev1.LeaderHint{Id: 3, Address: "10.0.0.1:1", Epoch: -1}) || e.Metadata != nil {
		t.Errorf("got %+v", e)
	}
}

// A peer with only an ErrorInfo (another implementation) is understood by it.
func TestErrorInfoAlone(t *testing.T) {
	st, err := status.New(codes.NotFound, "no topic x").WithDetails(&errdetails.ErrorInfo{Domain: "leat", Reason: "UNKNOWN_TOPIC", Metadata: map[string]string{"topic": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	e := FromError(st.Err())
	if e.Reason != unknownTopic || e.Action != typev1.Action_ACTION_FIX || e.Metadata["topic"] != "x" {
		t.Errorf("got %+v", e)
	}
}

// A reason of a newer release keeps its outcome and action.
func TestNewerReason(t *testing.T) {
	e := FromProto(&typev1.Error{Code: int32(codes.Unavailable), Reason: 9999, Action: typev1.Action_ACTION_REJOIN, Outcome: typev1.Outcome_OUTCOME_NOT_DONE, Message: "new"})
	if e.Action != typev1.Action_ACTION_REJOIN || ReasonName(e.Reason) != "9999" || e.Code != codes.Unavailable {
		t.Errorf("got %+v", e)
	}
	checkSame(t, FromError(e.GRPCStatus().Err()), e)
}

func TestFromForeignErrors(t *testing.T) {
	tests := []struct {
		name    string
		err     error
		reason  typev1.ErrorReason
		code    codes.Code
		outcome typev1.Outcome
	}{
		{"plain", errors.New("boom"), internalBug, codes.Internal, unknown},
		{"eof from a handler", io.EOF, internalBug, codes.Internal, unknown},
		{"bare unknown", status.Error(codes.Unknown, "boom"), internalBug, codes.Internal, unknown},
		{"context", fmt.Errorf("wait: %w", context.Canceled), cancelled, codes.Canceled, unknown},
		{"deadline", fmt.Errorf("wait: %w", context.DeadlineExceeded), deadline, codes.DeadlineExceeded, unknown},
		{"refused", status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`), unreachable, codes.Unavailable, notDone},
		{"broken", status.Error(codes.Unavailable, "error reading from server: EOF"), unreachable, codes.Unavailable, unknown},
		{"too large", status.Error(codes.ResourceExhausted, "grpc: received message larger than max (17000000 vs. 16777216)"), limit, codes.ResourceExhausted, notDone},
		{"unimplemented", status.Error(codes.Unimplemented, "unknown method"), typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE, codes.Unimplemented, notDone},
		{"not found elsewhere", status.Error(codes.NotFound, "unknown service"), invalid, codes.NotFound, notDone},
		{"nil pointer", (*Error)(nil), internalBug, codes.Internal, unknown},
		{"wild code", status.Error(codes.Code(99), "?"), internalBug, codes.Internal, unknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := FromError(tt.err)
			if e.Reason != tt.reason || e.Code != tt.code || e.Outcome != tt.outcome {
				t.Errorf("got %s, %s, %s", ReasonName(e.Reason), e.Code, e.Outcome)
			}
			if code := status.Code(e); code == codes.Unknown || code == codes.OK {
				t.Errorf("leaves as %s", code)
			}
		})
	}
}

// case 41: grpc's own complaint becomes a typed one that names the limit.
func TestMessageLimitNamed(t *testing.T) {
	for _, message := range []string{
		"grpc: received message larger than max (4194305 vs. 4194304)",
		"trying to send message larger than max (4194305 vs. 4194304)",
		"grpc: received message after decompression larger than max 4194304",
	} {
		e := FromError(status.Error(codes.ResourceExhausted, message))
		if e.Reason != limit || e.Metadata["limit"] == "" || !strings.Contains(e.Message, "limit") {
			t.Errorf("%q became %v, metadata %v", message, e, e.Metadata)
		}
	}
	e := FromError(status.Error(codes.ResourceExhausted, "grpc: received message larger than max (4194305 vs. 4194304)"))
	if e.Metadata["limit_bytes"] != "4194304" || e.Metadata["bytes"] != "4194305" {
		t.Errorf("metadata %v", e.Metadata)
	}
}

func TestErrorfCauses(t *testing.T) {
	one, two := errors.New("one"), errors.New("two")
	if e := Errorf(invalid, "x: %w", one); !errors.Is(e, one) || e.Message != "x: one" {
		t.Errorf("one cause: %v", e)
	}
	if e := Errorf(invalid, "x: %w, %w", one, two); !errors.Is(e, one) || !errors.Is(e, two) {
		t.Errorf("two causes: %v", e)
	}
	if e := Errorf(invalid, "plain"); e.Cause != nil || e.Error() != "INVALID_REQUEST: plain" {
		t.Errorf("no cause: %v", e)
	}
}

// With and its like leave the original alone: errors are shared.
func TestWithCopies(t *testing.T) {
	base := Errorf(invalid, "x").With("a", "1")
	changed := base.With("a", "2", "b").WithRetry(-time.Second)
	if base.Metadata["a"] != "1" || changed.Metadata["a"] != "2" || changed.RetryDelay != 0 {
		t.Errorf("base %v, changed %v", base, changed)
	}
	if _, ok := changed.Metadata["b"]; !ok {
		t.Error("a last key without a value is lost")
	}
}

// Details stay under 8 KiB and valid whatever goes in.
func TestErrorIsBounded(t *testing.T) {
	further := &typev1.Handshake{SoftwareVersion: strings.Repeat("x", 4000)}
	e := Errorf(invalid, "%s\xff%s", strings.Repeat("ä", 50_000), "end").WithLeader(1, strings.Repeat("h", 200), 1).WithRetry(time.Second)
	for i := range 500 {
		e = e.With(fmt.Sprintf("key-%03d-%s", i, strings.Repeat("k", 200)), strings.Repeat("v", 5000)+"\xff")
	}
	e = e.WithDetails(further)
	wire, err := proto.Marshal(e.GRPCStatus().Proto())
	if err != nil {
		t.Fatal(err)
	}
	if len(wire) > 8<<10 {
		t.Errorf("%d bytes", len(wire))
	}
	if len(e.GRPCStatus().Details()) != 4 {
		t.Errorf("%d details, want ErrorInfo, RetryInfo, Error and the further one", len(e.GRPCStatus().Details()))
	}
	if back := FromError(e.GRPCStatus().Err()).Details; len(back) != 1 || !proto.Equal(back[0], further) {
		t.Errorf("%d further details came back", len(back))
	}
	p := ToProto(e)
	if !utf8.ValidString(p.Message) || len(p.Message) > maxMessageBytes || !strings.HasSuffix(p.Message, "(cut)") {
		t.Errorf("message of %d bytes", len(p.Message))
	}
	if len(p.Metadata) == 0 {
		t.Error("no metadata is left")
	}
}
