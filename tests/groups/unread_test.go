package groups

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestUnreadStreams: a thousand streams (fewer in the short form) that are opened and
// not read, over a topic of which each may hold a part only, cost the gateway and the
// broker a bounded amount of memory each, and another reader gets everything
// meanwhile.
//
// case 43
func TestUnreadStreams(t *testing.T) {
	const (
		records = 1000
		size    = 30 << 10
	)
	streams := count(60, 1000)
	r := start(t, rig.Options{})
	topic(t, r, "unread", 1)
	fillLarge(t, newClient(t, r, "unread"), "unread", records, size)
	names := []string{"gateway-1", "broker-1"}
	before := map[string]float64{}
	for _, name := range names {
		before[name] = metric(t, r, name, "process_resident_memory_bytes")
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var conn *grpc.ClientConn
	for n := range streams {
		if n%50 == 0 {
			var err error
			if conn, err = rpc.Dial(r.Addr("gateway-1"), rpc.DialConfig{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
		}
		s, err := gatewayv1.NewConsumerServiceClient(conn).Consume(ctx)
		if err != nil {
			t.Fatal(err)
		}
		open := &gatewayv1.ConsumeOpen{ClientId: fmt.Sprint("unread ", n), Topics: []string{"unread"}, StartAt: gatewayv1.StartAt_START_AT_EARLIEST}
		if err := s.Send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: open}}); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Recv(); err != nil || m.GetOpened() == nil {
			t.Fatalf("stream %d: %v, %v", n, m, err)
		}
	}
	sent, still := -1.0, time.Now()
	mesh.Eventually(t, 2*limit, "the broker sends no more", func() (bool, string) {
		now := metric(t, r, "broker-1", "leat_broker_fetch_bytes_total")
		if now != sent {
			sent, still = now, time.Now()
		}
		return time.Since(still) > 2*time.Second, fmt.Sprint(now)
	})
	for _, name := range names {
		more := (metric(t, r, name, "process_resident_memory_bytes") - before[name]) / (1 << 20)
		t.Logf("%d unread streams cost %s %.0f MiB; the broker has sent %.0f MiB of %d", streams, name, more, sent/(1<<20), streams*records*size>>20)
		if most := 200 + float64(streams)*2.5; more > most {
			t.Errorf("%s has grown by %.0f MiB, more than %.0f", name, more, most)
		}
	}
	out := r.MustLeat("consume", "unread", "--from-beginning", "--follow=false", "--format", "%o")
	if n := strings.Count(out, "\n"); n != records {
		t.Errorf("another reader got %d records of %d", n, records)
	}
}

// fillLarge appends records of a size to a topic.
func fillLarge(t *testing.T, c *client.Client, name string, n, size int) {
	t.Helper()
	p, err := c.NewProducer(client.ProducerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 2*time.Minute)
	value := make([]byte, size)
	for range n {
		if err := p.Send(ctx, client.Record{Topic: name, Value: value}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
