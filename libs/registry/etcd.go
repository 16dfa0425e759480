package registry

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// MaxTxnOps is the most operations that this project puts into one etcd
// transaction; etcd's own limit is 128 in each branch.
const MaxTxnOps = 100

const (
	// requestTimeout bounds one request to etcd.
	requestTimeout = 3 * time.Second
	// releaseTimeout bounds what is given back to etcd at the end.
	releaseTimeout = 2 * time.Second
)

// NewEtcd makes a client for the given host:port endpoints, which dials from the
// local address dialSource unless that is empty. It connects in the background
// and goes on trying for ever, so that etcd may come later than the process. The
// caller closes it.
func NewEtcd(endpoints []string, dialSource string, logger *slog.Logger) (*clientv3.Client, error) {
	if len(endpoints) == 0 {
		return nil, fmt.Errorf("no etcd endpoints; set etcd.endpoints")
	}
	dialer := &net.Dialer{KeepAlive: 15 * time.Second}
	if dialSource != "" {
		ip := net.ParseIP(dialSource)
		if ip == nil {
			return nil, fmt.Errorf("dial.source.address %q is not an IP address; give one of this host's, or leave it empty", dialSource)
		}
		dialer.LocalAddr = &net.TCPAddr{IP: ip}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		DialTimeout:          requestTimeout,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		// etcd ends connections that are pinged without a request or watch on them.
		PermitWithoutStream: false,
		// Changes of state are logged here, by those who wait; the client's own
		// logs are one line per attempt.
		Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", addr)
			}),
			grpc.WithConnectParams(grpc.ConnectParams{
				// gRPC's own limit of two minutes would keep the mesh waiting long
				// after etcd is back.
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: requestTimeout,
			}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a client for etcd at %v: %w", endpoints, err)
	}
	logger.Debug("etcd client ready", "endpoints", endpoints)
	return client, nil
}
