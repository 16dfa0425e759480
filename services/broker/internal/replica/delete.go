package replica

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// deletion is how far a deletion on record has come here.
type deletion struct {
	name    string
	pending bool // this broker is to confirm it
	gone    bool // nothing of the topic is on the disks any more
	told    bool // confirmed
	waits   bool // part of it is on a disk that is offline; the next start goes on
}

// maxConfirm bounds one confirmation.
const maxConfirm = 1000

// applyDeletions takes replicas of deleted topics out of service and leaves their
// files to the background.
func (m *Manager) applyDeletions(image *metadata.Image) {
	m.deletionMu.Lock()
	defer m.deletionMu.Unlock()
	for id, d := range m.deletions {
		if d.gone && image.Deletion(id) == nil {
			delete(m.deletions, id)
		}
	}
	for _, record := range image.Deletions() {
		id, err := topicid.FromBytes(record.GetTopicId())
		if err != nil {
			m.cfg.Logger.Error("a deletion record names no topic id", "topic", record.GetName(), "error", err)
			continue
		}
		if m.deletions[id] == nil {
			m.deletions[id] = &deletion{name: record.GetName(), pending: slices.Contains(record.GetPendingBrokers(), m.cfg.Self.Broker)}
			select {
			case m.deletionCh <- struct{}{}:
			default: // the loop has been woken already
			}
		}
	}
}

func (m *Manager) isDeleting(id topicid.ID) bool {
	m.deletionMu.Lock()
	defer m.deletionMu.Unlock()
	return m.deletions[id] != nil
}

// deletionsWhere lists deletions for which want holds.
func (m *Manager) deletionsWhere(want func(*deletion) bool) []topicid.ID {
	m.deletionMu.Lock()
	defer m.deletionMu.Unlock()
	var ids []topicid.ID
	for id, d := range m.deletions {
		if want(d) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, topicid.ID.Compare)
	return ids
}

// mark changes deletions.
func (m *Manager) mark(ids []topicid.ID, change func(*deletion)) {
	m.deletionMu.Lock()
	defer m.deletionMu.Unlock()
	for _, id := range ids {
		if d := m.deletions[id]; d != nil {
			change(d)
		}
	}
}

// deletionLoop deletes and confirms until ctx ends.
func (m *Manager) deletionLoop(ctx context.Context) {
	backoff := rpc.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.deletionCh:
		}
		for ctx.Err() == nil {
			deleted := m.deleteTopics(ctx)
			confirmed := m.confirmDeletions(ctx)
			removed := m.removeReplicas(ctx)
			if deleted && confirmed && removed {
				backoff.Reset()
				break
			}
			select {
			case <-ctx.Done():
			case <-time.After(backoff.Next()):
			}
		}
	}
}

// deleteTopics deletes what is not gone yet; false: something is left.
func (m *Manager) deleteTopics(ctx context.Context) bool {
	ids := m.deletionsWhere(func(d *deletion) bool { return !d.gone && !d.waits })
	if len(ids) == 0 {
		return true
	}
	byTopic := map[topicid.ID][]store.Key{}
	for _, k := range m.keys() {
		byTopic[k.Topic] = append(byTopic[k.Topic], k)
	}
	for _, k := range m.cfg.Store.Keys() {
		if m.get(k) == nil {
			byTopic[k.Topic] = append(byTopic[k.Topic], k)
		}
	}
	all := true
	for _, id := range ids {
		if ctx.Err() != nil {
			return false
		}
		done, waits := m.deleteTopic(id, byTopic[id])
		if !done {
			all = false
			continue
		}
		m.mark([]topicid.ID{id}, func(d *deletion) { d.gone, d.waits = !waits, waits })
		// A topic of the same name may be waiting for the folders' names.
		m.applyAgain()
	}
	return all
}

// deleteTopic removes everything of a topic from the disks. It is not done while
// some of it can be tried again, and waits if some is on a disk that is offline.
func (m *Manager) deleteTopic(id topicid.ID, keys []store.Key) (done, waits bool) {
	began := time.Now()
	var failed, offline atomic.Bool
	var g errgroup.Group
	g.SetLimit(max(m.cfg.CreateParallelism, 1))
	for _, k := range keys {
		g.Go(func() error {
			stored := m.cfg.Store.Replica(k)
			isOffline := m.cfg.Store.Offline(k)
			m.retire(k)
			if isOffline {
				offline.Store(true)
				return nil
			}
			// One that is missing, or was until a moment ago, may have left something.
			switch err := m.cfg.Store.Delete(k); {
			case errors.Is(err, store.ErrDiskOffline):
				offline.Store(true)
			case err != nil:
				failed.Store(true)
				m.deleteFailed("could not delete a replica; trying again", k, stored, err)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions report through failed
	if err := m.cfg.Store.ForgetTopic(id); err != nil {
		failed.Store(true)
		m.cfg.Logger.Error("could not delete what was set aside of a topic; trying again", "topic_id", id, "error", err)
	}
	if failed.Load() {
		return false, false
	}
	if offline.Load() {
		m.cfg.Logger.Warn("replicas of a deleted topic are on a disk that is offline; they go when the broker starts with that disk repaired or replaced", "topic_id", id)
		return true, true
	}
	m.cfg.Logger.Info("deleted the replicas of a topic", "topic_id", id, "count", len(keys), "took", time.Since(began).Round(time.Millisecond))
	return true, false
}

// deleteFailed tells of a replica that could not be deleted; stored is nil where it was
// not on the books.
func (m *Manager) deleteFailed(what string, k store.Key, stored *store.Replica, err error) {
	m.cfg.Logger.Error(what, "replica", k.String(), "error", err)
	if stored != nil && store.IsDiskFault(err) {
		m.diskFailed(stored.Disk, err)
	}
}

// confirmDeletions tells the controller what is gone; false: it has not heard.
func (m *Manager) confirmDeletions(ctx context.Context) bool {
	for {
		ids := m.deletionsWhere(func(d *deletion) bool { return d.gone && d.pending && !d.told })
		if len(ids) == 0 {
			return true
		}
		ids = ids[:min(len(ids), maxConfirm)]
		raw := make([][]byte, len(ids))
		for i, id := range ids {
			raw[i] = id.Bytes()
		}
		if err := m.cfg.Confirm(ctx, raw); err != nil {
			if !errors.Is(err, context.Canceled) {
				m.cfg.Logger.Warn("could not confirm deletions; trying again", "topics", len(ids), "error", err)
			}
			return false
		}
		m.mark(ids, func(d *deletion) { d.told = true })
	}
}
