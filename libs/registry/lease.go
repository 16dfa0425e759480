package registry

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// lease is a lease of one's own. One goroutine uses it.
type lease struct {
	client *clientv3.Client
	id     clientv3.LeaseID
	ttl    time.Duration
	asked  time.Time // when the last grant or renewal that succeeded was asked for
}

// grant takes a lease; one attempt.
func grant(ctx context.Context, client *clientv3.Client, ttl time.Duration) (*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	seconds := max(int64((ttl+time.Second-1)/time.Second), 1)
	asked := time.Now()
	resp, err := client.Grant(ctx, seconds)
	if err != nil {
		return nil, err
	}
	return &lease{client: client, id: resp.ID, ttl: time.Duration(resp.TTL) * time.Second, asked: asked}, nil
}

// keep renews the lease until ctx ends (nil) or etcd says that it is gone
// (rpctypes.ErrLeaseNotFound). Other failures are reported to trouble, nil when
// renewing works again, and retried: while etcd is away no lease runs out.
// renewed is called after each renewal and may end the keeping with an error.
func (l *lease) keep(ctx context.Context, trouble func(error), renewed func(context.Context) error) error {
	interval := l.ttl / 3
	for {
		wait := interval
		err := l.renew(ctx)
		if err == nil {
			err = renewed(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			trouble(nil)
		case errors.Is(err, rpctypes.ErrLeaseNotFound), errors.Is(err, errKeyGone):
			return err
		default:
			trouble(err)
			wait = min(interval, 200*time.Millisecond)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// renew renews the lease once. It talks to etcd's own interface, because the
// client's KeepAliveOnce repeats itself without a pause while etcd is away.
func (l *lease) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	asked := time.Now()
	stream, err := etcdserverpb.NewLeaseClient(l.client.ActiveConnection()).LeaseKeepAlive(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil {
		return err
	}
	resp, err := stream.Recv()
	if err != nil {
		return err
	}
	if resp.GetTTL() <= 0 {
		return rpctypes.ErrLeaseNotFound
	}
	l.asked = asked
	return nil
}

// revoke gives the lease back, with every key under it. It also works when the
// caller's context has ended. A failure leaves the lease to run out.
func (l *lease) revoke(ctx context.Context) error {
	if err := l.client.Ctx().Err(); err != nil {
		return err // the client is closed; nothing can be given back any more
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_, err := l.client.Revoke(ctx, l.id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// errKeyGone ends the keeping of a lease whose key was deleted by somebody else.
var errKeyGone = errors.New("the key is gone although its lease is not")
