package replica

import (
	"context"
	"errors"
	"time"

	"github.com/leat-io/leat/services/broker/internal/store"
)

// remove takes a replica out of service whose partition lives on without it, and
// leaves its files to the background. The image that says so is at or past the
// revision at which the replica was removed: a broker applies none that is older than
// its registration, and its folder was made for an earlier one.
func (m *Manager) remove(k store.Key) {
	m.deletionMu.Lock()
	known := m.removing[k]
	m.removing[k] = true
	m.deletionMu.Unlock()
	if known {
		return
	}
	m.retire(k)
	select {
	case m.deletionCh <- struct{}{}:
	default: // the loop has been woken already
	}
}

func (m *Manager) isRemoving(k store.Key) bool {
	m.deletionMu.Lock()
	defer m.deletionMu.Unlock()
	return m.removing[k]
}

// removeReplicas deletes what remove has left to it; false: something is left. What
// lies on a disk that is offline is left to the next start.
func (m *Manager) removeReplicas(ctx context.Context) bool {
	m.deletionMu.Lock()
	keys := make([]store.Key, 0, len(m.removing))
	for k := range m.removing {
		keys = append(keys, k)
	}
	m.deletionMu.Unlock()
	all := true
	for _, k := range keys {
		if ctx.Err() != nil {
			return false
		}
		stored, began := m.cfg.Store.Replica(k), time.Now()
		switch err := m.cfg.Store.Delete(k); {
		case err == nil && stored != nil:
			m.cfg.Logger.Info("deleted a replica that was moved away from this broker", "dir", stored.Dir, "topic_id", k.Topic, "took", time.Since(began).Round(time.Millisecond))
		case err != nil && !errors.Is(err, store.ErrDiskOffline):
			all = false
			m.deleteFailed("could not delete a replica that was moved away; trying again", k, stored, err)
			continue
		}
		m.deletionMu.Lock()
		delete(m.removing, k)
		m.deletionMu.Unlock()
		// It may be wanted here again by now.
		m.applyAgain()
	}
	return all
}
