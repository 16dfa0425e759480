package replica

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/services/broker/internal/store"
)

func (m *Manager) checkpointLoop(ctx context.Context, requests <-chan bool) {
	for {
		select {
		case <-ctx.Done():
			return
		case recoveryPoints := <-requests:
			m.Checkpoint(recoveryPoints)
		}
	}
}

// Checkpoint writes the marks; with recoveryPoints logs that are not synced by
// themselves are synced first, in the background.
func (m *Manager) Checkpoint(recoveryPoints bool) {
	if recoveryPoints {
		for _, r := range m.all() {
			r.mu.Lock()
			if r.log() != nil && !r.gone {
				r.step(partition.Flush{})
			}
			r.mu.Unlock()
		}
		m.checkpointLogs()
	}
	ended := m.io.begin(m.now())
	failed := m.cfg.Store.Checkpoint(recoveryPoints)
	ended()
	for d, err := range failed {
		if store.IsDiskFault(err) {
			m.diskFailed(d, err)
		}
	}
	m.tellMarks(failed)
}

// tellMarks logs disks whose marks begin or cease to be writable, once each: a full
// disk stays full for long, and loses nothing but speed at the next start.
func (m *Manager) tellMarks(failed map[*store.Disk]error) {
	m.faultMu.Lock()
	defer m.faultMu.Unlock()
	for _, d := range m.cfg.Store.Disks() {
		err, was := failed[d], m.marksFaults[d]
		switch {
		case err != nil && !was:
			m.cfg.Logger.Error("could not write the marks of a disk; a start after a crash reads more until it succeeds", "dir", d.Dir, "error", err)
		case err == nil && was && d.Err() == nil:
			m.cfg.Logger.Info("the marks of a disk are written again", "dir", d.Dir)
		}
		m.marksFaults[d] = err != nil
	}
}

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
