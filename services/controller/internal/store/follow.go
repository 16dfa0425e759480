package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/rpc"
)

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
	asked := make(chan error, 1)
	go func() {
		err := s.askProgress(ctx)
		cancel() // what it found out ends the watch
		asked <- err
	}()
	err := s.takeWatch(ctx)
	cancel()
	if found := <-asked; found != nil {
		return found
	}
	return err
}

// takeWatch applies events until the watch ends.
func (s *Store) takeWatch(ctx context.Context) error {
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
// may wait for that for hours, so then the revision itself is asked for. It returns
// nil when ctx ends, or an error that the store must not go on with.
func (s *Store) askProgress(ctx context.Context) error {
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		before := s.lastConfirmed()
		ask, cancel := context.WithTimeout(ctx, progressInterval)
		if err := s.client.RequestProgress(ask); err != nil && ctx.Err() == nil {
			s.logger.Debug("cannot ask etcd for its progress", "error", err)
		}
		cancel()
		doubted := false
		select {
		case <-tick.C:
		case <-s.doubted:
			doubted = true
		case <-ctx.Done():
			return nil
		}
		if doubted || s.lastConfirmed().Equal(before) {
			if err := s.confirm(ctx); err != nil {
				return err
			}
		}
	}
}

func (s *Store) lastConfirmed() time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.confirmed
}

// confirm asks etcd's quorum for its revision; if the state shows just that one,
// it showed all there was when the question was sent. An etcd whose revision is
// behind the state's went back in time.
func (s *Store) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	asked, shown := time.Now(), s.Revision()
	revision, err := s.CurrentRevision(ctx)
	if err != nil {
		s.logger.Debug("cannot ask etcd for its revision", "error", err)
		return nil
	}
	if revision < shown {
		return &valueError{rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED,
			"etcd is at revision %d and this controller has followed it to revision %d: etcd was restored from a backup under a running mesh; restore the mesh, then start the controllers again",
			revision, shown)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision == s.revision && asked.After(s.confirmed) {
		s.confirmed = asked
	}
	return nil
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
