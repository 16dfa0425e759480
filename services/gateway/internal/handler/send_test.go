package handler

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// TestSendSettings: a call's deadline is kept by the producer, so that it can still
// tell in time what was never sent.
func TestSendSettings(t *testing.T) {
	var h held
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) { m.onSend = h.onSend })
	// Far from the steps of 45 s and 60 s, so that the call may take its time to arrive.
	ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := r.produce.Send(ctx, &gatewayv1.SendRequest{Topic: "a", Records: []*gatewayv1.ProduceRecord{rec("x")}}); err == nil {
			t.Error("it was cancelled")
		}
	})
	eventually(t, "the record was handed over", func() bool { return h.count() == 1 })
	if d := r.mesh.producers[0].cfg.DeliveryTimeout; d != 45*time.Second {
		t.Errorf("delivery timeout %s", d)
	}
	cancel()
	wg.Wait()
	h.letGo()
}

// TestSend is OK only if every record was appended.
func TestSend(t *testing.T) {
	r := newRig(t, nil)
	resp, err := r.produce.Send(testContext(t), &gatewayv1.SendRequest{Topic: "a", Records: []*gatewayv1.ProduceRecord{rec("x"), rec("y")}})
	if err != nil || len(resp.Ranges) != 1 || resp.Ranges[0].Count != 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	for want, req := range map[string]*gatewayv1.SendRequest{
		"INVALID_TOPIC_NAME": {Records: []*gatewayv1.ProduceRecord{rec("x")}},
		"INVALID_REQUEST":    {Topic: "a"},
		"INTERNAL_TOPIC":     {Topic: "__consumer_offsets", Records: []*gatewayv1.ProduceRecord{rec("x")}},
		"LIMIT_EXCEEDED":     {Topic: "a", Records: make([]*gatewayv1.ProduceRecord, 1001)},
	} {
		for i := range req.Records {
			if req.Records[i] == nil {
				req.Records[i] = rec("x")
			}
		}
		if _, err := r.produce.Send(testContext(t), req); reason(err) != want {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := r.produce.Send(testContext(t), &gatewayv1.SendRequest{Topic: "a", Acks: typev1.Acks_ACKS_NONE, Records: []*gatewayv1.ProduceRecord{rec("x")}}); reason(err) != "INVALID_REQUEST" {
		t.Errorf("acks none: %v", err)
	}
}

// TestSendFailure: a failure is an RPC error, never OK with a failure inside; its
// details tell of each record within 4 KiB, and it is unknown if any is. // case 48
func TestSendFailure(t *testing.T) {
	n := 0
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onSend = func(_ client.Record, done func(client.Result)) error {
			n++
			switch {
			case n == 1:
				done(client.Result{Partition: 0, Offset: 7})
			case n == 3:
				done(client.Result{Partition: 1, Offset: -1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST, "the connection broke")})
			default:
				done(client.Result{Partition: int32(n), Offset: -1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "no broker answers")})
			}
			return nil
		}
	})
	req := &gatewayv1.SendRequest{Topic: "a"}
	for range 500 {
		req.Records = append(req.Records, rec("x"))
	}
	_, err := r.produce.Send(testContext(t), req)
	st, _ := status.FromError(err)
	if st.Code() == codes.OK || reason(err) != "CONNECTION_LOST" {
		t.Fatalf("got %v", err)
	}
	if e := rpc.FromError(err); e.Outcome != typev1.Outcome_OUTCOME_UNKNOWN || !strings.Contains(e.Message, "499 of 500") {
		t.Errorf("error %+v", e)
	}
	var ranges []*gatewayv1.RecordRange
	for _, d := range st.Details() {
		if resp, ok := d.(*gatewayv1.SendResponse); ok {
			ranges = resp.Ranges
			if size := proto.Size(resp); size > 4<<10 {
				t.Errorf("the details take %d bytes", size)
			}
		}
	}
	if len(ranges) < 10 || ranges[0].BaseOffset != 7 || ranges[0].Error != nil || ranges[1].Error.Reason != typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE {
		t.Errorf("ranges %v", ranges)
	}
}

// TestSendDeadline: records without a result when the caller's time is up are
// unknown.
func TestSendDeadline(t *testing.T) {
	var h held
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) { m.onSend = h.onSend })
	send := func() {
		ctx, cancel := context.WithTimeout(testContext(t), 500*time.Millisecond)
		defer cancel()
		_, err := r.produce.Send(ctx, &gatewayv1.SendRequest{Topic: "a", Records: []*gatewayv1.ProduceRecord{rec("x")}})
		if reason(err) != "DEADLINE_EXCEEDED" {
			t.Fatalf("got %v", err)
		}
	}
	// A call may have used its time up on its way.
	eventually(t, "the record was handed over", func() bool {
		send()
		return h.count() > 0
	})
	h.letGo()
}

// TestSendError picks the unknown failure.
func TestSendError(t *testing.T) {
	results := []session.RecordResult{
		{Partition: -1, Offset: -1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, "x")},
		{Partition: 1, Offset: -1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST, "y")},
	}
	if err := sendError("a", 2, session.Ranges("a", results)); rpc.FromError(err).Outcome != typev1.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("got %v", err)
	}
	if err := sendError("a", 1, session.Ranges("a", results[:1])); rpc.FromError(err).Outcome != typev1.Outcome_OUTCOME_NOT_DONE {
		t.Errorf("got %v", err)
	}
}
