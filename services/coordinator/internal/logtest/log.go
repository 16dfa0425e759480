package logtest

import (
	"context"
	"slices"
	"sync"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/offsets"
)

// Log is one partition. It is safe for concurrent use; its zero value is empty.
type Log struct {
	mu      sync.Mutex
	records []record.Record // those of the mesh itself have no key
	fence   offsets.Fence
	appends []offsets.Fence
	fences  []record.Fence
	tried   int
	reads   int
	fault   func(n int) (lands bool, err error)
	gate    chan struct{}
}

// Append lets a batch in if its fence and sequence allow it and no fault is set.
func (l *Log) Append(ctx context.Context, _ int32, fence offsets.Fence, batch []byte) (int64, error) {
	l.mu.Lock()
	gate := l.gate
	l.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return -1, rpc.FromError(ctx.Err()).WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried++
	lands, err := true, error(nil)
	if l.fault != nil {
		lands, err = l.fault(l.tried)
	}
	if !lands {
		return -1, err
	}
	if refused := l.admit(fence); refused != nil {
		return -1, refused
	}
	base, bad := l.land(batch)
	if bad != nil {
		return -1, bad
	}
	return base, err
}

func (l *Log) admit(fence offsets.Fence) error {
	older := fence.ShardEpoch < l.fence.ShardEpoch || fence.ShardEpoch == l.fence.ShardEpoch && fence.Attempt < l.fence.Attempt
	same := fence.ShardEpoch == l.fence.ShardEpoch && fence.Attempt == l.fence.Attempt && len(l.appends) > 0
	if older {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_SHARD_FENCED, "%+v is older than %+v", fence, l.fence)
	}
	if same && fence.Sequence != l.fence.Sequence+1 || !same && fence.Sequence != 0 {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, "%+v does not follow %+v", fence, l.fence)
	}
	l.fence = fence
	l.appends = append(l.appends, fence)
	return nil
}

func (l *Log) land(batch []byte) (int64, error) {
	base := int64(len(l.records))
	r := record.NewReader(0)
	if err := r.Reset(batch); err != nil {
		return -1, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_RECORD, "%w", err)
	}
	for r.Next() {
		if r.Header().Attributes.Control() {
			if kind, fence, ok := record.Control(batch); ok && kind == record.ControlFence {
				l.fences = append(l.fences, fence)
			}
			l.add(nil, nil)
			continue
		}
		l.add(r.Record().Key, r.Record().Value)
	}
	return base, r.Err()
}

func (l *Log) add(key, value []byte) {
	l.records = append(l.records, record.Record{Offset: int64(len(l.records)), Key: key, Value: value})
}

// Read calls f with the records below end.
func (l *Log) Read(_ context.Context, _ int32, end int64, f func(key, value []byte) error) error {
	l.mu.Lock()
	l.reads++
	records := l.records[:end]
	l.mu.Unlock()
	for _, r := range records {
		if r.Key == nil {
			continue
		}
		if err := f(r.Key, r.Value); err != nil {
			return err
		}
	}
	return nil
}

// Seed puts records into the log without a fence.
func (l *Log) Seed(kvs ...group.KV) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kv := range kvs {
		key, value, err := offsets.Encode(kv)
		if err != nil {
			return err
		}
		l.add(key, value)
	}
	return nil
}

// SeedRaw puts a record into the log as it is.
func (l *Log) SeedRaw(key, value []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(key, value)
}

// Fault sets what is asked about each append from now on, given its number from
// the first ever: whether it lands in the log, and the error that is answered. It
// is called with the log locked and must not call it. Nil: no faults.
func (l *Log) Fault(f func(n int) (lands bool, err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
}

// Hold makes appends wait until the returned function is called.
func (l *Log) Hold() (release func()) {
	gate := make(chan struct{})
	l.mu.Lock()
	l.gate = gate
	l.mu.Unlock()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		l.gate = nil
		l.mu.Unlock()
		close(gate)
	})
}

// Appends lists the fences of the appends that were let in, in order.
func (l *Log) Appends() []offsets.Fence {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.appends)
}

// Fences lists the FENCE batches in the log, in order.
func (l *Log) Fences() []record.Fence {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.fences)
}

// Reads tells how often the log was read.
func (l *Log) Reads() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads
}

// Records decodes what is in the log.
func (l *Log) Records() ([]group.KV, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kvs []group.KV
	for _, r := range l.records {
		if r.Key == nil {
			continue
		}
		kv, err := offsets.Decode(r.Key, r.Value)
		if err != nil {
			return nil, err
		}
		kvs = append(kvs, kv)
	}
	return kvs, nil
}
