package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
)

// echoService answers produce streams with fetch-like echoes through hooks that
// tests set.
type echoService struct {
	brokerv1.UnimplementedLogServiceServer
	produce func(brokerv1.LogService_ProduceServer) error
	fetch   func(brokerv1.LogService_FetchServer) error
	list    func(context.Context, *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error)
}

func (s *echoService) Produce(st brokerv1.LogService_ProduceServer) error { return s.produce(st) }

func (s *echoService) Fetch(st brokerv1.LogService_FetchServer) error { return s.fetch(st) }

func (s *echoService) ListOffsets(ctx context.Context, r *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
	return s.list(ctx, r)
}

// logBuffer collects JSON log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// lines gives the lines so far, decoded.
func (b *logBuffer) lines(t *testing.T) []map[string]any {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []map[string]any
	for line := range strings.SplitSeq(strings.TrimSpace(b.buf.String()), "\n") {
		if line == "" {
			continue
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// startServer runs a server with the service on a free port until the test ends.
func startServer(t *testing.T, cfg ServerConfig, svc *echoService) (*Server, string) {
	t.Helper()
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	brokerv1.RegisterLogServiceServer(s, svc)
	s.SetServing(true)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, lis.Addr().String()
}

func dial(t *testing.T, addr string, cfg DialConfig) *grpc.ClientConn {
	t.Helper()
	conn, err := Dial(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// waitFor polls until cond holds, and fails the test if it does not for long.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// idle reports whether nothing of the pool is out.
func (p *countingPool) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.out) == 0
}

// rawCodec sends and receives bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// countProduce answers each produce with the length of its payload and the sum of
// its bytes.
func countProduce(st brokerv1.LogService_ProduceServer) error {
	for {
		var m brokerv1.ProduceRequest
		p, err := Recv(st, &m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		sum := int64(0)
		for _, v := range p.Vecs() {
			for _, b := range v {
				sum += int64(b)
			}
		}
		n := p.Len()
		p.Free()
		err = st.Send(&brokerv1.ProduceResponse{Message: &brokerv1.ProduceResponse_Results{Results: &brokerv1.ProduceResults{
			Results: []*brokerv1.ProduceResult{{CorrelationId: m.GetBatch().GetCorrelationId(), BaseOffset: sum, LeaderEpoch: int32(n)}},
		}}})
		if err != nil {
			return err
		}
	}
}
