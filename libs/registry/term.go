package registry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/rpc"
)

// Errors of Term's methods, to be told apart with errors.Is.
var (
	// ErrDeposed: the election key is not this term's any more. Nothing of the
	// failed transaction took place, and nothing of a later one will.
	ErrDeposed = errors.New("this controller no longer leads")
	// ErrConflict: a key has changed since it was read. Nothing took place.
	ErrConflict = errors.New("a record has changed since it was read")
	// ErrUnknown: the transaction may have taken place or still may. Settle before
	// anything else is written.
	ErrUnknown = errors.New("the outcome of a transaction is unknown")
)

// Term is one leadership: the time from winning the election to losing it. Commit
// may be called by several goroutines at once; Settle by none beside it.
type Term struct {
	client *clientv3.Client
	key    string
	value  string
	lease  clientv3.LeaseID

	createRevision int64
	modRevision    atomic.Int64
	givesWay       atomic.Bool
}

// GiveWay makes the candidate stand aside for a moment after this term, so that
// another one wins.
func (t *Term) GiveWay() { t.givesWay.Store(true) }

// ElectionRevision is the create revision of the election key; it grows with
// every election.
func (t *Term) ElectionRevision() int64 { return t.createRevision }

// Commit makes one transaction: ops, if this term still leads and every
// comparison holds. It returns the revision at which they took place. Errors are
// ErrDeposed, ErrConflict, ErrUnknown, or, if etcd refused the request as such,
// that refusal. At most MaxTxnOps ops.
func (t *Term) Commit(ctx context.Context, comparisons []clientv3.Cmp, ops []clientv3.Op) (int64, error) {
	if len(ops) > MaxTxnOps {
		return 0, fmt.Errorf("a transaction of %d operations; split it at %d", len(ops), MaxTxnOps)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	guard := t.modRevision.Load()
	all := append([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(t.key), "=", guard)}, comparisons...)
	if err := failpoint.Hit(failpoint.TxnBefore); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	resp, err := t.client.Txn(ctx).If(all...).Then(ops...).Else(clientv3.OpGet(t.key, clientv3.WithKeysOnly())).Commit()
	if err == nil {
		err = failpoint.Hit(failpoint.TxnAfter)
	}
	switch {
	case err != nil && refused(err):
		return 0, fmt.Errorf("etcd refused a transaction of %d operations: %w", len(ops), err)
	case err != nil:
		return 0, fmt.Errorf("%w: %w", ErrUnknown, err)
	case resp.Succeeded:
		return resp.Header.Revision, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 || kvs[0].CreateRevision != t.createRevision || kvs[0].ModRevision != guard {
		return 0, ErrDeposed
	}
	return 0, ErrConflict
}

// refused tells whether etcd answered that it will not do this, ever; then the
// outcome is known.
func refused(err error) bool {
	// With its quota used up, or with too much to do, etcd refuses before it begins.
	if errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.NotFound:
		return true
	}
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		switch e.Code() {
		case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.NotFound:
			return true
		}
	}
	return false
}

// Settle ends the uncertainty that ErrUnknown leaves. It rewrites the election
// key under its old revision until that is known to have happened: every
// transaction made before is then either in the state or dead. It returns a
// revision at or past all of them: read at least up to it, then decide. The
// error is ErrDeposed or ctx's; it retries for as long as etcd is away.
func (t *Term) Settle(ctx context.Context) (int64, error) {
	backoff := rpc.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	for {
		revision, err := t.rewrite(ctx)
		if err == nil || errors.Is(err, ErrDeposed) {
			return revision, err
		}
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// rewrite makes one attempt of Settle.
func (t *Term) rewrite(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := t.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(t.key), "=", t.modRevision.Load())).
		Then(clientv3.OpPut(t.key, t.value, clientv3.WithLease(t.lease))).
		Else(clientv3.OpGet(t.key)).
		Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return 0, ErrDeposed
	case err != nil:
		return 0, err
	case resp.Succeeded:
		t.modRevision.Store(resp.Header.Revision)
		return resp.Header.Revision, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 1 && kvs[0].CreateRevision == t.createRevision && string(kvs[0].Value) == t.value {
		// An earlier attempt took place although its answer was lost.
		t.modRevision.Store(kvs[0].ModRevision)
		return resp.Header.Revision, nil
	}
	return 0, ErrDeposed
}

// Owns tells whether an election key as read is this term's.
func (t *Term) Owns(createRevision int64) bool { return createRevision == t.createRevision }

// resign deletes the key, if it still is this term's.
func (t *Term) resign(ctx context.Context) error {
	if err := t.client.Ctx().Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_, err := t.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.createRevision)).
		Then(clientv3.OpDelete(t.key)).
		Commit()
	return err
}
