package store

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
)

const (
	// progressInterval is the time between questions to etcd how far it is.
	progressInterval = 400 * time.Millisecond
	// listPage is the number of keys read at once.
	listPage = 2000
	// requestTimeout bounds one request to etcd.
	requestTimeout = 5 * time.Second
	// confirmTimeout bounds the question for etcd's revision where its progress
	// is not told; it is asked again.
	confirmTimeout = time.Second
)

// Store is the picture. Its methods are safe for concurrent use; Run is called
// once.
//
// Lock order: Store.mu before Subscription.mu.
type Store struct {
	client *clientv3.Client
	keys   registry.Keys
	logger *slog.Logger

	mu        sync.RWMutex
	state     *cluster.State
	revision  int64     // state is etcd's at this revision; 0 before the first list
	memories  int64     // how often something was remembered
	confirmed time.Time // when etcd last confirmed the revision
	changed   chan struct{}
	subs      map[*Subscription]struct{}

	failing bool // Run's: trouble has been logged
	doubted chan struct{}

	lists atomic.Int64  // how often everything has been listed
	etcd  atomic.Uint64 // id of the etcd cluster; 0 before its first answer
}

// New makes a store; nothing happens before Run.
func New(client *clientv3.Client, keys registry.Keys, logger *slog.Logger) *Store {
	return &Store{
		client: client, keys: keys, logger: logger, state: cluster.NewState(),
		confirmed: time.Now(), changed: make(chan struct{}), doubted: make(chan struct{}, 1), subs: map[*Subscription]struct{}{},
	}
}

// Doubt has the store ask etcd at once whether it has gone back in time. Whoever is
// elected calls it: elections raise etcd's revision, and once that has passed what the
// store has followed nothing is to be seen any more.
func (s *Store) Doubt() {
	select {
	case s.doubted <- struct{}{}:
	default:
	}
}

// Lists is how often the store has listed everything; once, unless etcd compacted
// what it missed.
func (s *Store) Lists() int64 { return s.lists.Load() }

// EtcdClusterID is the id of the etcd cluster that the state comes from; 0 before
// the first list.
func (s *Store) EtcdClusterID() uint64 { return s.etcd.Load() }

// checkEtcd refuses answers of another etcd cluster than the first: the state would
// be of neither history.
func (s *Store) checkEtcd(id uint64) error {
	if id == 0 || s.etcd.CompareAndSwap(0, id) || s.etcd.Load() == id {
		return nil
	}
	return &valueError{rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED,
		"etcd answers as the cluster %x and this controller has followed %x: etcd was made anew or restored from a backup under a running mesh; restore the mesh, then start the controllers again",
		id, s.etcd.Load())}
}

// View calls read with the state and its revision; 0: nothing has been read yet.
// The state must not be changed or kept; records in it may be kept.
func (s *Store) View(read func(state *cluster.State, revision int64)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	read(s.state, s.revision)
}

// Remember changes what the state holds beside etcd's records.
func (s *Store) Remember(change func(state *cluster.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.state)
	s.memories++
}

// Version tells states apart, also by what was remembered: the revision alone stays
// in a quiet mesh.
func (s *Store) Version() Version {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Version{revision: s.revision, memories: s.memories}
}

// Version is a state of the store; the zero value is none.
type Version struct{ revision, memories int64 }

// Revision is the etcd revision that the state shows; 0 before the first.
func (s *Store) Revision() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision
}

// Silent is how long ago etcd last confirmed the revision.
func (s *Store) Silent() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return time.Since(s.confirmed)
}

// Changed returns a channel that is closed when the revision next moves.
func (s *Store) Changed() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.changed
}

// WaitRevision waits until the state has reached a revision; at least 1, the
// first list. The error is ctx's.
func (s *Store) WaitRevision(ctx context.Context, revision int64) error {
	for {
		changed := s.Changed()
		if s.Revision() >= max(revision, 1) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Sync waits until the state shows everything that had happened in etcd before
// the call.
func (s *Store) Sync(ctx context.Context) error {
	revision, err := s.CurrentRevision(ctx)
	if err != nil {
		return err
	}
	return s.WaitRevision(ctx, revision)
}

// CurrentRevision asks etcd for its revision, by its quorum.
func (s *Store) CurrentRevision(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	got, err := s.client.Get(ctx, s.keys.Election(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("ask etcd for its revision: %w", err)
	}
	return got.Header.Revision, nil
}
