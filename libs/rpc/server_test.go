package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// Whatever a handler does, the client gets a typed error, the server lives on,
// and one line of its log tells the cause of what is not the client's doing.
func TestHandlerFailures(t *testing.T) {
	secret := errors.New("disk on fire")
	tests := []struct {
		name   string
		fail   func() error
		reason typev1.ErrorReason
		logged string // "" for nothing
	}{
		{"panic", func() error { panic("ouch") }, internalBug, "server_test.go"},
		{"plain error", func() error { return fmt.Errorf("append: %w", secret) }, internalBug, "disk on fire"},
		{"bare unknown", func() error { return status.Error(codes.Unknown, "what") }, internalBug, "what"},
		{"typed", func() error { return Errorf(notLeader, "ask broker 2") }, notLeader, ""},
		{"typed and wrapped", func() error {
			return fmt.Errorf("produce: %w", Errorf(notLeader, "ask broker 2"))
		}, notLeader, ""},
		{"context", func() error { return context.DeadlineExceeded }, deadline, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			var logs logBuffer
			svc := &echoService{
				list: func(context.Context, *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
					return nil, tt.fail()
				},
				produce: func(brokerv1.LogService_ProduceServer) error { return tt.fail() },
			}
			_, addr := startServer(t, ServerConfig{Logger: logs.logger()}, svc)
			client := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{}))

			_, err := client.ListOffsets(ctx, &brokerv1.ListOffsetsRequest{})
			checkFailure(t, "unary", err, tt.reason)
			checkLogged(t, &logs, 1, tt.logged)

			st, err := client.Produce(ctx)
			if err != nil {
				t.Fatal(err)
			}
			_, err = st.Recv()
			checkFailure(t, "stream", err, tt.reason)
			checkLogged(t, &logs, 2, tt.logged)

			svc.list = func(context.Context, *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
				return &brokerv1.ListOffsetsResponse{}, nil
			}
			if _, err := client.ListOffsets(ctx, &brokerv1.ListOffsetsRequest{}); err != nil {
				t.Errorf("the server does not live on: %v", err)
			}
		})
	}
}

func checkFailure(t *testing.T, name string, err error, reason typev1.ErrorReason) {
	t.Helper()
	e := FromError(err)
	if e == nil || e.Reason != reason {
		t.Fatalf("%s: %v", name, err)
	}
	if st, _ := status.FromError(err); st.Code() == codes.Unknown || st.Code() == codes.OK || len(st.Details()) == 0 {
		t.Errorf("%s: status %v", name, st)
	}
	if strings.Contains(err.Error(), ".go:") {
		t.Errorf("%s: a stack leaves the server: %v", name, err)
	}
}

// checkLogged wants n lines that hold text, or none if text is empty. The line is
// written after the answer has left.
func checkLogged(t *testing.T, logs *logBuffer, n int, text string) {
	t.Helper()
	if text == "" {
		if lines := logs.lines(t); len(lines) != 0 {
			t.Errorf("logged: %v", lines)
		}
		return
	}
	waitFor(t, "the log", func() bool { return len(logs.lines(t)) >= n })
	lines := logs.lines(t)
	last := lines[len(lines)-1]
	if len(lines) != n || last["level"] != "WARN" || !strings.Contains(fmt.Sprint(last), text) {
		t.Errorf("%d lines, last %v; want %d with %q", len(lines), last, n, text)
	}
}

func TestUnknownMethodIsTyped(t *testing.T) {
	_, addr := startServer(t, ServerConfig{}, &echoService{})
	conn := dial(t, addr, DialConfig{})
	err := conn.Invoke(testContext(t), "/leat.broker.v1.LogService/Nonsense", &brokerv1.ListOffsetsRequest{}, &brokerv1.ListOffsetsResponse{})
	if !IsReason(err, typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE) || status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

func TestIdentityAndHealth(t *testing.T) {
	ctx := testContext(t)
	s, addr := startServer(t, ServerConfig{Identity: func() *meshv1.GetIdentityResponse {
		return &meshv1.GetIdentityResponse{Kind: "broker", Process: &typev1.Process{Id: 3, Incarnation: 99}}
	}}, &echoService{})
	conn := dial(t, addr, DialConfig{})
	id, err := meshv1.NewIdentityServiceClient(conn).GetIdentity(ctx, &meshv1.GetIdentityRequest{})
	if err != nil || id.Process.Incarnation != 99 || len(id.Handshake.GetFeatures()) == 0 {
		t.Errorf("identity %v, %v", id, err)
	}
	h := healthv1.NewHealthClient(conn)
	for _, serving := range []bool{true, false} {
		s.SetServing(serving)
		resp, err := h.Check(ctx, &healthv1.HealthCheckRequest{})
		if err != nil || (resp.Status == healthv1.HealthCheckResponse_SERVING) != serving {
			t.Errorf("serving %v: health says %v, %v", serving, resp, err)
		}
	}
}

// Two servers may share a registry, and calls are counted by the code that left.
func TestMetrics(t *testing.T) {
	ctx := testContext(t)
	reg := prometheus.NewRegistry()
	svc := &echoService{list: func(context.Context, *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
		return nil, errors.New("boom")
	}}
	for range 2 {
		_, addr := startServer(t, ServerConfig{Registry: reg}, svc)
		if _, err := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{})).ListOffsets(ctx, &brokerv1.ListOffsetsRequest{}); err == nil {
			t.Error("no error")
		}
	}
	counted := func() float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "grpc_server_handled_total" {
				continue
			}
			for _, m := range f.Metric {
				if text := m.String(); strings.Contains(text, `"ListOffsets"`) && strings.Contains(text, `"Internal"`) {
					return m.GetCounter().GetValue()
				}
			}
		}
		return 0
	}
	waitFor(t, "both calls to be counted as Internal", func() bool { return counted() == 2 })
}

// A handler that never ends cannot hold a shutdown beyond its deadline.
func TestShutdownDeadline(t *testing.T) {
	ctx := testContext(t)
	entered := make(chan struct{})
	s, addr := startServer(t, ServerConfig{StreamGrace: time.Millisecond}, &echoService{
		list: func(ctx context.Context, _ *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
			close(entered)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	called := make(chan error, 1)
	go func() {
		_, err := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{})).ListOffsets(ctx, &brokerv1.ListOffsetsRequest{})
		called <- err
	}()
	<-entered
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	s.Shutdown(short)
	if err := <-called; err == nil {
		t.Error("the call succeeded")
	}
}

func TestServerRunStopsWithContext(t *testing.T) {
	s, err := NewServer(ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, lis, time.Second) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestServerConfigRefused(t *testing.T) {
	for _, n := range []int{-1, MaxMessageBytes + 1} {
		if _, err := NewServer(ServerConfig{MaxMessageBytes: n}); !IsReason(err, typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// Connections come from the address that is asked for.
func TestDialSource(t *testing.T) {
	ctx := testContext(t)
	from := make(chan string, 1)
	_, addr := startServer(t, ServerConfig{}, &echoService{list: func(ctx context.Context, _ *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
		p, _ := peer.FromContext(ctx)
		host, _, err := net.SplitHostPort(p.Addr.String())
		from <- host
		return &brokerv1.ListOffsetsResponse{}, err
	}})
	conn := dial(t, addr, DialConfig{SourceAddress: "127.0.0.9"})
	if _, err := brokerv1.NewLogServiceClient(conn).ListOffsets(ctx, &brokerv1.ListOffsetsRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := <-from; got != "127.0.0.9" {
		t.Errorf("dialed from %s", got)
	}
}
