package rpc

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// LastRead tells when bytes last came from the client of the call that ctx belongs
// to, on the connection of that call: frames of any stream, and answers to the
// server's HTTP/2 pings, which a client's transport gives whatever its application
// does. So a client that is there gives a sign within PingAfter and a round trip.
// False: the server does not note it (ServerConfig.NoteReads). A connection that
// nobody asks for a sign any more is cut off here.
func LastRead(ctx context.Context) (time.Time, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return time.Time{}, false
	}
	info, ok := p.AuthInfo.(notedInfo)
	if !ok {
		return time.Time{}, false
	}
	c := info.conn
	last := c.lastRead.Load()
	if c.unasked(last) {
		_ = c.Close() // the client comes again
	}
	return c.made.Add(time.Duration(last)), true
}

// notedConn notes when it was last read from.
type notedConn struct {
	net.Conn
	made     time.Time
	now      func() clocks
	after    time.Duration // ServerConfig.PingAfter
	lastRead atomic.Int64  // ns since made, by the monotonic clock
	ahead    atomic.Int64  // the most, ns, that the wall clock was ahead of lastRead's
}

func newNotedConn(raw net.Conn, after time.Duration, now func() clocks) *notedConn {
	c := &notedConn{Conn: raw, made: now().mono, now: now, after: after}
	c.note() // to come is a sign
	return c
}

// clocks are one moment by both clocks.
type clocks struct{ mono, wall time.Time }

func readClocks() clocks {
	now := time.Now()
	return clocks{mono: now, wall: now.Round(0)}
}

func (c *notedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.note()
	}
	return n, err
}

func (c *notedConn) note() {
	now := c.now()
	since := now.mono.Sub(c.made)
	c.lastRead.Store(int64(since))
	// There is one reader at a time.
	if ahead := now.wall.UnixNano() - int64(since); ahead > c.ahead.Load() {
		c.ahead.Store(ahead)
	}
}

// clockSlack is how far a wall clock may be set back without consequences.
const clockSlack = time.Second

// unasked reports whether a silent connection is one that gRPC may not be testing.
// gRPC reckons by the wall clock when to ping: where that is set back by an hour, no
// ping goes out for an hour, and a client that has nothing to say seems to be dead.
func (c *notedConn) unasked(last int64) bool {
	now := c.now()
	since := now.mono.Sub(c.made)
	if since-time.Duration(last) <= 2*c.after {
		return false
	}
	return now.wall.UnixNano()-int64(since) < c.ahead.Load()-int64(clockSlack)
}

// notedInfo carries a call's connection, beside what its credentials tell.
type notedInfo struct {
	credentials.AuthInfo
	conn *notedConn
}

// notingCredentials make connections note their reads. gRPC tells calls about the
// credentials of their connection, and about nothing else of it. Wrapping the
// listener's connections instead would take TCP_USER_TIMEOUT from them.
type notingCredentials struct {
	credentials.TransportCredentials
	after time.Duration
}

func (c notingCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	noted := newNotedConn(raw, c.after, readClocks)
	conn, info, err := c.TransportCredentials.ServerHandshake(noted)
	if err != nil {
		return nil, nil, err
	}
	return conn, notedInfo{info, noted}, nil
}

func (c notingCredentials) Clone() credentials.TransportCredentials {
	return notingCredentials{c.TransportCredentials.Clone(), c.after}
}

// serverCredentials are those of a server; nil: plain text, and nothing is noted.
func serverCredentials(cfg *ServerConfig) credentials.TransportCredentials {
	var creds credentials.TransportCredentials
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS)
	}
	if !cfg.NoteReads {
		return creds
	}
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return notingCredentials{creds, cfg.PingAfter}
}
