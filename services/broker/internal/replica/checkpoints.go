package replica

import (
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// checkpointLogs makes every log durable together with what it remembers of its
// producers, so that a recovery from there on reads nothing below. Logs to which
// nothing was appended since the last time are left alone.
func (m *Manager) checkpointLogs() {
	var g errgroup.Group
	g.SetLimit(max(m.cfg.CreateParallelism, 1))
	for _, r := range m.all() {
		r.mu.Lock()
		log := r.log()
		due := log != nil && !r.gone && r.core.Down() == partition.ReasonNone && r.checkpointed != log.EndOffset()+1
		r.mu.Unlock()
		if due {
			g.Go(func() error {
				r.checkpoint(log)
				return nil
			})
		}
	}
	_ = g.Wait() // the functions deal with their errors
}

func (r *Replica) checkpoint(log *commitlog.Log) {
	end := log.EndOffset()
	r.ioBegins(&r.checkpointSince)
	_, err := log.Checkpoint()
	r.checkpointSince.Store(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.checkpointed = end + 1
	case errors.Is(err, commitlog.ErrClosed), r.log() != log:
		// It was deleted or replaced meanwhile.
	default:
		r.failed(0, err)
	}
}

// logConfig is what the log of a replica needs to know.
func (m *Manager) logConfig(k store.Key, c *topicconfig.Config) commitlog.Config {
	lc := logConfig(k, c)
	lc.ProducerExpiration = m.cfg.ProducerExpiration
	return lc
}
