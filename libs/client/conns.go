package client

import (
	"google.golang.org/grpc"

	"github.com/leat-io/leat/libs/rpc"
)

// conns gives shared connections of one lane, so that what one carries does not
// delay another.
type conns struct {
	pool *rpc.ConnPool
	name string
}

// Get gives the connection to addr.
func (c conns) Get(addr string) (*grpc.ClientConn, error) { return c.pool.GetLane(addr, c.name) }

// newPool makes the client's own pool.
func newPool(cfg Config) *rpc.ConnPool {
	return rpc.NewConnPool(rpc.DialConfig{
		SourceAddress: cfg.DialSource, TLS: cfg.TLS, TracerProvider: cfg.TracerProvider, Logger: cfg.Logger,
	})
}
