package rpc

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// The drain, in a bubble whose clock is its own: health turns first, a polite
// stream ends by itself, the call in progress is waited for however long the
// grace of streams is over, and a deaf stream is cut off after that.
func TestShutdownOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callLasts = 5 * time.Second
		var s *Server
		svc := &echoService{
			list: func(ctx context.Context, _ *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
				select {
				case <-time.After(callLasts):
					return &brokerv1.ListOffsetsResponse{}, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			},
			produce: func(st brokerv1.LogService_ProduceServer) error {
				<-s.Draining()
				return Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "this broker is stopping; go to another one")
			},
			fetch: func(st brokerv1.LogService_FetchServer) error {
				<-st.Context().Done()
				return st.Context().Err()
			},
		}
		s, client, health, stop := bubbleServer(t, svc)
		ctx := t.Context()
		start := time.Now()
		polite, err := client.Produce(ctx)
		if err != nil {
			t.Fatal(err)
		}
		deaf, err := client.Fetch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		watch, err := health.Watch(ctx, &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := watch.Recv(); err != nil || resp.Status != healthv1.HealthCheckResponse_SERVING {
			t.Fatalf("health says %v, %v", resp, err)
		}
		called := make(chan error, 1)
		go func() {
			_, err := client.ListOffsets(ctx, &brokerv1.ListOffsetsRequest{})
			called <- err
		}()
		synctest.Wait()
		go func() {
			s.Shutdown(ctx)
			stop()
		}()
		if resp, err := watch.Recv(); err != nil || resp.Status != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health says %v, %v", resp, err)
		}
		if _, err := polite.Recv(); !IsReason(err, typev1.ErrorReason_ERROR_REASON_DRAINING) || time.Since(start) != 0 {
			t.Errorf("the polite stream ends after %v with %v", time.Since(start), err)
		}
		if err := <-called; err != nil || time.Since(start) != callLasts {
			t.Errorf("the call in progress ends after %v with %v", time.Since(start), err)
		}
		if _, err := deaf.Recv(); !IsReason(err, unreachable, cancelled) || time.Since(start) != callLasts+answerGrace {
			t.Errorf("the deaf stream ends after %v with %v", time.Since(start), err)
		}
	})
}

// Without a call in progress, a deaf stream has the grace and no more.
func TestShutdownGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, client, _, stop := bubbleServer(t, &echoService{fetch: func(st brokerv1.LogService_FetchServer) error {
			<-st.Context().Done()
			return st.Context().Err()
		}})
		deaf, err := client.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		s.Shutdown(t.Context())
		if lasted := time.Since(start); lasted != time.Second+answerGrace {
			t.Errorf("the shutdown took %v", lasted)
		}
		if _, err := deaf.Recv(); err == nil {
			t.Error("the stream goes on")
		}
		stop()
	})
}

// bubbleServer serves over memory, as gRPC over real sockets does not run in a
// bubble. stop ends both sides.
func bubbleServer(t *testing.T, svc *echoService) (*Server, brokerv1.LogServiceClient, healthv1.HealthClient, func()) {
	t.Helper()
	s, err := NewServer(ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	brokerv1.RegisterLogServiceServer(s, svc)
	s.SetServing(true)
	lis := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	conn, err := Dial("bufconn:1", DialConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }})
	if err != nil {
		t.Fatal(err)
	}
	return s, brokerv1.NewLogServiceClient(conn), healthv1.NewHealthClient(conn), func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
