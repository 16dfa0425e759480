package replication

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// etcdElection measures a session granted and an election won.
func etcdElection(ctx context.Context, endpoint string) (_ time.Duration, err error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if _, err := c.Get(ctx, "connect"); err != nil {
		return 0, err
	}
	began := time.Now()
	session, err := concurrency.NewSession(c, concurrency.WithTTL(5), concurrency.WithContext(ctx))
	if err != nil {
		return 0, err
	}
	election := concurrency.NewElection(session, "/bench/election")
	if err := election.Campaign(ctx, "bench"); err != nil {
		return 0, errors.Join(err, session.Close())
	}
	took := time.Since(began)
	return took, errors.Join(election.Resign(ctx), session.Close())
}
