package handler

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
)

// TestJoinPassesOnWhatIsAsked: the coordinator finds and commits starts, but for a
// client that wants its offsets left alone.
func TestJoinPassesOnWhatIsAsked(t *testing.T) {
	r := newRig(t, nil)
	for i, c := range []struct {
		open   *gatewayv1.ConsumeOpen
		policy coordinatorv1.OffsetResetPolicy
	}{
		{&gatewayv1.ConsumeOpen{}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_LATEST},
		{&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_EARLIEST, LeaveOffsets: true}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_EARLIEST},
		{&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_NONE}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_NONE},
		{&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_TIMESTAMP, StartTimestampMs: 1500}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_TIMESTAMP},
		{&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_BY_DURATION, StartByDuration: durationpb.New(time.Hour), MaxProcessing: durationpb.New(time.Minute)}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION},
	} {
		c.open.Group, c.open.Topics = "g", []string{"a"}
		r.subscribe(t, testContext(t), c.open)
		m := r.mesh.member(t, i).cfg
		if m.ResetPolicy != c.policy || m.LeaveStarts != c.open.LeaveOffsets || m.ResetTimestamp.UnixMilli() != c.open.StartTimestampMs ||
			m.ResetDuration != c.open.StartByDuration.AsDuration() || m.MaxProcessing != c.open.MaxProcessing.AsDuration() {
			t.Errorf("%v joins as %+v", c.open, m)
		}
	}
}

// TestMemberTellsItsProgress with its pings: what the client has, has not finished, and
// waits for.
func TestMemberTellsItsProgress(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = serve(record.Record{Offset: 0, Value: []byte("x")}, record.Record{Offset: 1, Value: []byte("y")})
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, CreditBytes: 1, ClientRack: "west"})
	m := r.mesh.member(t, 0)
	if told := m.cfg.Progress(); told != nil {
		t.Errorf("before anything: %v", told)
	}
	m.assign(1, 0)
	c.until("records", func(m *gatewayv1.ConsumeResponse) bool { return m.GetRecords() != nil })
	eventually(t, "progress is told", func() bool {
		told := m.cfg.Progress()
		return len(told) == 1 && told[0].TopicPartition == partA(0) && told[0].DeliveredNext == 1 && told[0].OldestUnprocessed > 0 &&
			told[0].Waiting == coordinatorv1.WaitingFor_WAITING_FOR_CREDIT
	})
	r.mesh.mu.Lock()
	defer r.mesh.mu.Unlock()
	if rack := r.mesh.fetchers[0].cfg.Rack; rack != "west" {
		t.Errorf("reads in rack %q", rack)
	}
}

// pausingConn is a client's connection that stands still while pause is locked, as
// that of a process does which is stopped.
type pausingConn struct {
	net.Conn
	pause sync.RWMutex
}

func (c *pausingConn) wait() {
	c.pause.RLock()
	defer c.pause.RUnlock()
}

func (c *pausingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

func (c *pausingConn) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

// TestSignsOfLife come from the client's own connection: while it stands still there
// are none, although the stream goes on, and records wait to be read.
//
// case 42: there are some of a client that reads nothing.
func TestSignsOfLife(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = func(f *fakeFetcher, _ client.FetchStart) {
			f.mu.Lock()
			f.endless = 32 << 10
			f.mu.Unlock()
			f.push()
		}
	})
	link := &pausingConn{}
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(_ context.Context, addr string) (net.Conn, error) {
		raw, err := net.Dial("tcp", addr)
		link.Conn = raw
		return link, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	s, err := gatewayv1.NewConsumerServiceClient(conn).Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: &gatewayv1.ConsumeOpen{
		Group: "g", Topics: []string{"a"}, SessionTimeout: durationpb.New(10 * time.Second),
	}}}); err != nil {
		t.Fatal(err)
	}
	m := r.mesh.member(t, 0)
	m.assign(1, 0, 1)
	joined := m.cfg.LastSign()
	eventually(t, "an unread client answers pings", func() bool { return m.cfg.LastSign().Sub(joined) > 2*time.Second })
	link.pause.Lock()
	eventually(t, "a client that stands still gives no sign", func() bool { return time.Since(m.cfg.LastSign()) > 3*time.Second })
	stopped := m.cfg.LastSign()
	if m.has("detach")() {
		t.Error("its stream has ended")
	}
	link.pause.Unlock()
	eventually(t, "it goes on", func() bool { return m.cfg.LastSign().After(stopped) })
}

// TestShortSession: where the client cannot be asked often enough, a sign of life is
// good for a while, so that a session of a second does not lapse between two.
func TestShortSession(t *testing.T) {
	r := newRig(t, nil)
	r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, SessionTimeout: durationpb.New(time.Second)})
	r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, SessionTimeout: durationpb.New(15 * time.Second)})
	short, long := r.mesh.member(t, 0).cfg, r.mesh.member(t, 1).cfg
	eventually(t, "a sign is good for three quarters of a second", func() bool {
		// Both are on one connection; the sign of the second is as old as the bytes.
		of, s, again := long.LastSign(), short.LastSign(), long.LastSign()
		return of.Equal(again) && s.Sub(of) == 750*time.Millisecond
	})
	if early := short.LastSign().After(time.Now()); early {
		t.Error("a sign in the future")
	}
}

// TestProxiedClients live by their messages alone.
func TestProxiedClients(t *testing.T) {
	var ahead atomic.Int64
	r := newRig(t, func(l *Limits, _ *fakeMesh, c *Config) {
		l.ProxiedClients = true
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, SessionTimeout: durationpb.New(15 * time.Second)})
	m := r.mesh.member(t, 0)
	c.get()
	opened := m.cfg.LastSign()
	ahead.Store(int64(10 * time.Second))
	if sign := m.cfg.LastSign(); !sign.Equal(opened) {
		t.Errorf("it has sent nothing, and its last sign is %v younger", sign.Sub(opened))
	}
	c.ping(1)
	c.until("pong", func(m *gatewayv1.ConsumeResponse) bool { return m.GetPong() != nil })
	if sign := m.cfg.LastSign(); sign.Sub(opened) < 9*time.Second {
		t.Errorf("it has sent a message, and its last sign is only %v younger", sign.Sub(opened))
	}
}
