package cli

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// late is a context whose deadline has passed and whose timer has not fired yet.
type late struct {
	context.Context
	passed bool
}

func (l *late) Deadline() (time.Time, bool) {
	if l.passed {
		return time.Now().Add(-time.Nanosecond), true
	}
	return time.Now().Add(time.Hour), true
}

// What kept a call from being answered is told, and not that its time is over, also where
// gRPC says so before the context does.
func TestCallTellsWhatFailedBeforeTheDeadline(t *testing.T) {
	ctx := &late{Context: t.Context()}
	calls := 0
	_, err := call(ctx, func(context.Context, struct{}, ...grpc.CallOption) (struct{}, error) {
		if calls++; calls == 1 {
			return struct{}{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE, "etcd is silent")
		}
		ctx.passed = true
		return struct{}{}, status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	}, struct{}{})
	if calls != 2 || !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE) {
		t.Fatalf("after %d calls: %v", calls, err)
	}
}
