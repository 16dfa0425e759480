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
// False: the server does not note it (ServerConfig.NoteReads).
func LastRead(ctx context.Context) (time.Time, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return time.Time{}, false
	}
	info, ok := p.AuthInfo.(notedInfo)
	if !ok {
		return time.Time{}, false
	}
	return info.conn.made.Add(time.Duration(info.conn.lastRead.Load())), true
}

// notedConn notes when it was last read from.
type notedConn struct {
	net.Conn
	made     time.Time
	lastRead atomic.Int64 // ns since made, by the monotonic clock
}

func (c *notedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.lastRead.Store(int64(time.Since(c.made)))
	}
	return n, err
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
}

func (c notingCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	noted := &notedConn{Conn: raw, made: time.Now()}
	conn, info, err := c.TransportCredentials.ServerHandshake(noted)
	if err != nil {
		return nil, nil, err
	}
	return conn, notedInfo{info, noted}, nil
}

func (c notingCredentials) Clone() credentials.TransportCredentials {
	return notingCredentials{c.TransportCredentials.Clone()}
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
	return notingCredentials{creds}
}
