package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

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

	lists atomic.Int64  // how often everything has been listed
	etcd  atomic.Uint64 // id of the etcd cluster; 0 before its first answer
}

// New makes a store; nothing happens before Run.
func New(client *clientv3.Client, keys registry.Keys, logger *slog.Logger) *Store {
	return &Store{
		client: client, keys: keys, logger: logger, state: cluster.NewState(),
		confirmed: time.Now(), changed: make(chan struct{}), subs: map[*Subscription]struct{}{},
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

// Run follows etcd until ctx ends, and returns nil then. It goes on for ever
// while etcd is away. It returns an error only for what it must not go on with:
// a value of a newer format (*registry.FormatError) or a damaged one, or another
// etcd cluster than it has followed (METADATA_REGRESSED).
func (s *Store) Run(ctx context.Context) error {
	backoff := rpc.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	list := true
	for ctx.Err() == nil {
		before := s.Revision()
		var err error
		if list {
			err = s.list(ctx)
			list = err != nil
		}
		if err == nil {
			err = s.watch(ctx)
		}
		var fatal *valueError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &fatal):
			return fatal.err
		case errors.Is(err, rpctypes.ErrCompacted):
			// What happened meanwhile cannot be watched any more: compare with a list.
			s.logger.Info("etcd has compacted what was missed, listing the metadata again", "revision", s.Revision())
			list = true
		default:
			s.report(err)
		}
		if s.Revision() > before {
			backoff.Reset()
		}
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
		}
	}
	return nil
}

// valueError is an error about what etcd holds, not about reaching it.
type valueError struct{ err error }

func (e *valueError) Error() string { return e.err.Error() }
func (e *valueError) Unwrap() error { return e.err }

// report logs trouble once, and its end once.
func (s *Store) report(err error) {
	switch {
	case err != nil && !s.failing:
		s.failing = true
		s.logger.Warn("etcd trouble, retrying until it passes", "for", "metadata", "error", err)
	case err == nil && s.failing:
		s.failing = false
		s.logger.Info("etcd works again", "for", "metadata")
	}
}

// change is one key's change.
type change struct {
	key         cluster.Key
	record      cluster.Record // nil: the key is gone
	create, mod int64
}

// list reads every key at one revision and applies the difference.
func (s *Store) list(ctx context.Context) error {
	s.lists.Add(1)
	var changes []change
	present := map[cluster.Key]bool{}
	from, end := s.keys.Prefix(), clientv3.GetPrefixRangeEnd(s.keys.Prefix())
	revision := int64(0)
	for {
		page, err := s.page(ctx, from, end, revision)
		if err != nil {
			return err
		}
		if err := s.checkEtcd(page.Header.GetClusterId()); err != nil {
			return err
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			c, ok, err := s.decode(kv)
			if err != nil {
				return err
			}
			if ok {
				present[c.key] = true
				changes = append(changes, c)
			}
		}
		if !page.More {
			break
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.state.Keys() {
		if !present[key] {
			changes = append(changes, change{key: key})
		}
	}
	s.apply(changes, revision)
	return nil
}

func (s *Store) page(ctx context.Context, from, end string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	page, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(listPage))
	if err != nil {
		return nil, fmt.Errorf("list the metadata: %w", err)
	}
	return page, nil
}

func (s *Store) decode(kv *mvccpb.KeyValue) (change, bool, error) {
	key, ok := parseKey(s.keys, string(kv.Key))
	if !ok {
		return change{}, false, nil
	}
	r, err := decode(string(kv.Key), key, kv.Value)
	if err != nil {
		return change{}, false, &valueError{err}
	}
	return change{key: key, record: r, create: kv.CreateRevision, mod: kv.ModRevision}, true, nil
}

// watch applies events from the revision after the state's until the watch ends.
func (s *Store) watch(ctx context.Context) error {
	// With a leader required, a member that is cut off from its quorum ends the
	// watch instead of falling silent. Watches of equal metadata share a stream,
	// and etcd tells progress only when all of a stream have begun: this one gets
	// a stream of its own.
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "leat-watch", "metadata"))
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		s.askProgress(ctx)
	}()
	defer func() {
		cancel()
		<-asking
	}()
	for resp := range s.client.Watch(ctx, s.keys.Prefix(), clientv3.WithPrefix(), clientv3.WithRev(s.Revision()+1), clientv3.WithCreatedNotify()) {
		if err := resp.Err(); err != nil {
			return err
		}
		if err := s.checkEtcd(resp.Header.GetClusterId()); err != nil {
			return err
		}
		if err := s.takeEvents(&resp); err != nil {
			return err
		}
		s.report(nil)
	}
	return errors.New("the watch of the metadata ended")
}

// askProgress asks etcd again and again how far it is, so that silence means
// something. A watch that begins at the revision after etcd's, as each one does
// after a lost connection, gets no progress before the next write; a quiet mesh
// may wait for that for hours, so then the revision itself is asked for.
func (s *Store) askProgress(ctx context.Context) {
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		before := s.lastConfirmed()
		ask, cancel := context.WithTimeout(ctx, progressInterval)
		if err := s.client.RequestProgress(ask); err != nil && ctx.Err() == nil {
			s.logger.Debug("cannot ask etcd for its progress", "error", err)
		}
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if s.lastConfirmed().Equal(before) {
			s.confirm(ctx)
		}
	}
}

func (s *Store) lastConfirmed() time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.confirmed
}

// confirm asks etcd's quorum for its revision; if the state shows just that one,
// it showed all there was when the question was sent.
func (s *Store) confirm(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	asked := time.Now()
	revision, err := s.CurrentRevision(ctx)
	if err != nil {
		s.logger.Debug("cannot ask etcd for its revision", "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision == s.revision && asked.After(s.confirmed) {
		s.confirmed = asked
	}
}

func (s *Store) takeEvents(resp *clientv3.WatchResponse) error {
	revision := int64(0)
	if resp.IsProgressNotify() {
		revision = resp.Header.Revision
	}
	var changes []change
	for _, ev := range resp.Events {
		revision = max(revision, ev.Kv.ModRevision)
		key, ok := parseKey(s.keys, string(ev.Kv.Key))
		if !ok {
			continue
		}
		if ev.Type == clientv3.EventTypeDelete {
			changes = append(changes, change{key: key})
			continue
		}
		c, _, err := s.decode((*mvccpb.KeyValue)(ev.Kv))
		if err != nil {
			return err
		}
		changes = append(changes, c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply(changes, revision)
	return nil
}

// apply takes changes in, under the lock.
func (s *Store) apply(changes []change, revision int64) {
	for _, c := range changes {
		if c.record == nil {
			s.state.Delete(c.key)
		} else {
			s.state.Set(c.record, c.create, c.mod)
		}
	}
	if revision == 0 {
		return // the watch was merely created
	}
	s.confirmed = time.Now()
	if revision <= s.revision && len(changes) == 0 {
		return
	}
	s.revision = max(s.revision, revision)
	for sub := range s.subs {
		sub.mark(changes)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}
