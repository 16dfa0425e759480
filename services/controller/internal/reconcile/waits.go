package reconcile

import (
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
)

// waits remembers since when partitions wait for something, on the monotonic clock.
// A new term begins anew: it cannot know how long they have waited.
type waits struct {
	since   map[cluster.Wait]time.Time
	folders time.Duration
	unclean time.Duration
}

func newWaits(cfg Config) *waits {
	return &waits{since: map[cluster.Wait]time.Time{}, folders: cfg.FolderWait, unclean: cfg.UncleanWait}
}

// update takes in who waits now, and tells whether one of them has waited long
// enough.
func (w *waits) update(now []cluster.Wait) (overdue bool) {
	next := make(map[cluster.Wait]time.Time, len(now))
	for _, wait := range now {
		since, ok := w.since[wait]
		if !ok {
			since = time.Now()
		}
		next[wait] = since
		overdue = overdue || w.isOver(wait.Kind, since)
	}
	w.since = next
	return overdue
}

// overdue is for cluster.Hints.
func (w *waits) overdue(wait cluster.Wait) bool {
	since, ok := w.since[wait]
	return ok && w.isOver(wait.Kind, since)
}

func (w *waits) isOver(kind cluster.WaitKind, since time.Time) bool {
	limit := w.folders
	if kind == cluster.WaitUnclean {
		limit = w.unclean
	}
	return time.Since(since) >= limit
}
