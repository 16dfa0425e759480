package handler

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/services/gateway/internal/session"
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
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	r := newRig(t, func(_ *Limits, _ *fakeMesh, c *Config) { c.Now = now })
	join := func(n int, session time.Duration) client.MemberConfig {
		r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, SessionTimeout: durationpb.New(session)})
		return r.mesh.member(t, n).cfg
	}
	short, long := join(0, time.Second), join(1, 15*time.Second)
	ahead.Store(int64(time.Hour)) // no sign is as young as that
	// Both are on one connection; the sign of the second is as old as the bytes.
	var of, good time.Time
	eventually(t, "nothing comes between two looks", func() bool {
		of, good = long.LastSign(), short.LastSign()
		return of.Equal(long.LastSign())
	})
	if d := good.Sub(of); d != 750*time.Millisecond {
		t.Errorf("a sign is good for %v, want three quarters of the least session", d)
	}
	ahead.Store(int64(-time.Hour)) // every sign is younger
	if sign := short.LastSign(); sign.After(now()) {
		t.Error("a sign in the future")
	}
}

// TestBrokenStreamIsNoSign: a stream may break because its client has been silent for
// long, and what the gateway notices of that is no sign of life. The end of the
// client's side is one.
func TestBrokenStreamIsNoSign(t *testing.T) {
	var ahead atomic.Int64
	r := newRig(t, func(_ *Limits, _ *fakeMesh, c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s := &consumeStream{h: r.Handler, ctx: ended, session: session.NewConsume(r.cfg.Now(), r.cfg.Limits.Consume, r.cfg.Identity), began: r.cfg.Now()}
	ahead.Store(int64(10 * time.Second))
	s.receive(consumeReceived{err: status.Error(codes.Unavailable, "keepalive ping not acked")})
	if sign := s.lastSign(); !sign.Equal(s.began) {
		t.Errorf("a sign %v after the last message, of a stream that broke", sign.Sub(s.began))
	}
	s.receive(consumeReceived{err: io.EOF})
	if sign := s.lastSign(); sign.Sub(s.began) < 10*time.Second {
		t.Errorf("the end of the client's side came, and its last sign is %v after the beginning", sign.Sub(s.began))
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
