package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
)

// stallingConn is a client's connection that can stand still: nothing is read or
// written from then on, as if its host had died.
type stallingConn struct {
	net.Conn
	rate    int // bytes that it reads in a second; 0: any number
	once    sync.Once
	stalled chan struct{} // closed when it stands still
	closed  chan struct{}
}

func (c *stallingConn) hang() bool {
	select {
	case <-c.stalled:
		<-c.closed
		return true
	default:
		return false
	}
}

func (c *stallingConn) Read(b []byte) (int, error) {
	if c.hang() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b)
	if c.rate > 0 {
		<-time.After(time.Duration(n) * time.Second / time.Duration(c.rate))
	}
	if c.hang() {
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *stallingConn) Write(b []byte) (int, error) {
	if c.hang() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *stallingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// case 42: a client that reads nothing for ten minutes, of a stream with data or
// without, gives a sign of life at least every PingAfter; one whose link data fills
// all the time soon after that. One that stands still gives none, and is cut off
// PingTimeout later.
func TestLastRead(t *testing.T) {
	for name, tt := range map[string]struct {
		data bool
		rate int
		late time.Duration
	}{
		"idle":      {late: 10 * time.Millisecond},
		"unread":    {data: true, late: 10 * time.Millisecond},
		"saturated": {data: true, rate: 128 << 10, late: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tenMinutes(t, tt.data, tt.rate, tt.late) })
		})
	}
}

func tenMinutes(t *testing.T, data bool, rate int, late time.Duration) {
	const after, timeout = time.Second, 9 * time.Second
	lis := bufconn.Listen(1 << 16)
	s, err := NewServer(ServerConfig{PingAfter: after, PingTimeout: timeout, NoteReads: true})
	if err != nil {
		t.Fatal(err)
	}
	streams := make(chan context.Context, 1)
	ended := make(chan time.Time, 1)
	brokerv1.RegisterLogServiceServer(s, &echoService{fetch: func(st brokerv1.LogService_FetchServer) error {
		streams <- st.Context()
		defer func() { ended <- time.Now() }()
		for data {
			if err := st.Send(&brokerv1.FetchResponse{Records: make([]byte, 32<<10)}); err != nil {
				return err
			}
		}
		<-st.Context().Done()
		return nil
	}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	var link *stallingConn
	conn, err := Dial("bufconn:1", DialConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
		raw, err := lis.DialContext(ctx)
		if err != nil || link != nil {
			return nil, net.ErrClosed
		}
		link = &stallingConn{Conn: raw, rate: rate, stalled: make(chan struct{}), closed: make(chan struct{})}
		return link, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	fetch, err := brokerv1.NewLogServiceClient(conn).Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	bytes := 0
	if rate > 0 {
		reader.Go(func() {
			for m, err := fetch.Recv(); err == nil; m, err = fetch.Recv() {
				bytes += len(m.Records)
			}
		})
	}
	ctx := <-streams
	for range 6000 {
		<-time.After(100 * time.Millisecond)
		if last, ok := LastRead(ctx); !ok || time.Since(last) > after+late {
			t.Fatalf("%v after the last sign of life (noted: %t)", time.Since(last), ok)
		}
	}
	close(link.stalled)
	synctest.Wait()
	stopped, _ := LastRead(ctx)
	if cut := (<-ended).Sub(stopped); cut < timeout || cut > after+timeout {
		t.Errorf("cut off %v after its last sign", cut)
	}
	if last, _ := LastRead(ctx); !last.Equal(stopped) {
		t.Errorf("a client that stands still gave a sign %v later", last.Sub(stopped))
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	s.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if reader.Wait(); bytes < rate*500 {
		t.Errorf("only %d bytes came: nothing was saturated", bytes)
	}
}

func TestLastReadIsNoted(t *testing.T) {
	cert, pool := selfSigned(t)
	served, trusted := &tls.Config{Certificates: []tls.Certificate{cert}}, &tls.Config{RootCAs: pool}
	for name, tt := range map[string]struct {
		noted          bool
		server, client *tls.Config
	}{
		"noted":          {noted: true},
		"not noted":      {},
		"noted, TLS":     {noted: true, server: served, client: trusted},
		"not noted, TLS": {server: served, client: trusted},
	} {
		t.Run(name, func(t *testing.T) {
			told := make(chan bool, 1)
			_, addr := startServer(t, ServerConfig{NoteReads: tt.noted, TLS: tt.server}, &echoService{list: func(ctx context.Context, _ *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
				last, ok := LastRead(ctx)
				told <- ok && last.Before(time.Now())
				return &brokerv1.ListOffsetsResponse{}, nil
			}})
			if _, err := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{TLS: tt.client})).ListOffsets(testContext(t), &brokerv1.ListOffsetsRequest{}); err != nil {
				t.Fatal(err)
			}
			if ok := <-told; ok != tt.noted {
				t.Errorf("%t", ok)
			}
		})
	}
	if _, ok := LastRead(t.Context()); ok {
		t.Error("without a call")
	}
}

// closingConn tells whether it was closed; each Read brings a byte.
type closingConn struct {
	net.Conn
	closed bool
}

func (c *closingConn) Read([]byte) (int, error) { return 1, nil }

func (c *closingConn) Close() error {
	c.closed = true
	return nil
}

// Where the wall clock is set back, gRPC sends no pings for as long: a connection that
// has become silent since is cut off, so that its client comes again, and others stay.
func TestClockSetBack(t *testing.T) {
	const after = time.Second
	for name, tt := range map[string]struct {
		before, step  time.Duration // of the wall clock: while reads come, and then
		readAfterStep bool
		silence       time.Duration
		closed        bool
	}{
		"no step":                 {silence: time.Hour},
		"set back":                {step: -time.Hour, silence: 3 * time.Second, closed: true},
		"read since":              {step: -time.Hour, readAfterStep: true, silence: 3 * time.Second, closed: true},
		"set right":               {before: time.Hour, step: -time.Hour, silence: 3 * time.Second, closed: true},
		"not silent":              {step: -time.Hour, silence: 2 * time.Second},
		"set forward":             {step: time.Hour, silence: time.Hour},
		"a leap second":           {step: -time.Second, silence: time.Hour},
		"forward, and a bit back": {before: time.Hour, step: -time.Second, silence: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			var passed, stepped time.Duration
			raw := &closingConn{}
			conn := newNotedConn(raw, after, func() clocks {
				return clocks{mono: start.Add(passed), wall: start.Round(0).Add(passed + stepped)}
			})
			ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: notedInfo{conn: conn}})
			read := func() {
				passed += time.Second
				if _, err := conn.Read(nil); err != nil {
					t.Fatal(err)
				}
			}
			stepped += tt.before
			read()
			stepped += tt.step
			if tt.readAfterStep {
				read()
			}
			want := start.Add(passed)
			passed += tt.silence
			if last, ok := LastRead(ctx); !ok || !last.Equal(want) {
				t.Errorf("last read %v after the last one", last.Sub(want))
			}
			if raw.closed != tt.closed {
				t.Errorf("cut off: %t", raw.closed)
			}
		})
	}
}
