package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// dial makes the connection to the gateway; it connects at the first call.
func (a *app) dial() (*grpc.ClientConn, error) {
	conn, err := rpc.Dial(a.gateway, rpc.DialConfig{})
	if err != nil {
		return nil, &exit.Error{Code: exit.Wrong, Err: err, Next: "Give --gateway (or LEAT_GATEWAY) as host:port."}
	}
	return conn, nil
}

// withAdmin runs a command of a few admin calls.
func (a *app) withAdmin(ctx context.Context, do func(context.Context, gatewayv1.AdminServiceClient) error) error {
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := a.callContext(ctx)
	defer cancel()
	return do(ctx, gatewayv1.NewAdminServiceClient(conn))
}

// call does one admin call, again while it is worth it: all of them may be
// repeated, those that change something by their request id.
func call[Q, R any](ctx context.Context, method func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	var last error
	for {
		response, err := method(ctx, request)
		if err == nil {
			return response, nil
		}
		typed := rpc.FromError(err)
		if rpc.Ended(ctx) {
			if last == nil {
				last = typed
			}
			return response, last
		}
		refused := typed.Reason == typev1.ErrorReason_ERROR_REASON_UNREACHABLE && typed.Outcome == typev1.Outcome_OUTCOME_NOT_DONE
		if refused || !rpc.Retryable(typed) || waitedFor(typed) {
			return response, typed
		}
		last = exit.With(exit.Unknown, typed)
		wait := max(backoff.Next(), typed.RetryDelay)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return response, last
		}
	}
}

// waitedFor reports whether the gateway has waited already for what groups lack: a
// leader of their shard, or enough in-sync replicas. That may last until somebody who reads
// the error starts brokers.
func waitedFor(e *rpc.Error) bool {
	ofGroups := e.Metadata["group"] != "" || e.Metadata["topic"] == "__consumer_offsets"
	return ofGroups && (e.Reason == typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS ||
		e.Reason == typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE)
}

// requestID makes a retry of a change recognisable.
func requestID() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("draw a request id: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// topicID is the text form of a topic id.
func topicID(id []byte) string { return base64.RawURLEncoding.EncodeToString(id) }

// pages collects all pages of a listing.
func pages[T any](fetch func(token string) ([]T, string, error)) ([]T, error) {
	var all []T
	token := ""
	for range 100_000 {
		page, next, err := fetch(token)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if next == "" {
			return all, nil
		}
		token = next
	}
	return nil, errors.New("the gateway's listing does not end; please report it")
}
