package replica

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Upkeep says how old records are taken out of the logs.
type Upkeep struct {
	// RetentionInterval is how often retention looks at every log; 0: the default.
	RetentionInterval time.Duration
	// CleanerOff switches compaction off.
	CleanerOff bool
	// CleanerBackoff is how long the cleaner rests when nothing was due; 0: the
	// default.
	CleanerBackoff time.Duration
	// CleanerBuffer bounds the cleaner's memory for keys, in bytes; 0: the default.
	CleanerBuffer int64
	// CleanerRate bounds what the cleaner reads and writes, in bytes a second; 0: no
	// bound.
	CleanerRate int64
	// MaxDecodedBytes is the most that a batch may unpack to.
	MaxDecodedBytes int
}

// Defaults of Upkeep.
const (
	defaultRetentionInterval = 5 * time.Minute
	defaultCleanerBackoff    = 15 * time.Second
)

func (u Upkeep) withDefaults() Upkeep {
	u.RetentionInterval = cmp.Or(u.RetentionInterval, defaultRetentionInterval)
	u.CleanerBackoff = cmp.Or(u.CleanerBackoff, defaultCleanerBackoff)
	u.CleanerBuffer = cmp.Or(u.CleanerBuffer, commitlog.DefaultDedupeBufferBytes)
	return u
}

const (
	// spaceInterval is how often the system is asked how much room the disks have.
	spaceInterval = 100 * time.Millisecond
	// urgentInterval is how often retention looks at disks that have little room.
	urgentInterval = 10 * time.Second
)

// spaceLoop keeps what is known about the disks until ctx ends.
func (m *Manager) spaceLoop(ctx context.Context) {
	tick := time.NewTicker(spaceInterval)
	defer tick.Stop()
	for {
		for _, d := range m.cfg.Store.RefreshSpace() {
			if d.Stage() >= store.Throttled {
				offer(m.retainNow, true)
			}
		}
		for _, d := range m.cfg.Store.NewlyFailed() {
			m.diskFailed(d, d.Err())
		}
		m.cfg.Metrics.disks(m.cfg.Store)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// retentionLoop applies retention until ctx ends.
func (m *Manager) retentionLoop(ctx context.Context) {
	all := time.NewTicker(m.cfg.Upkeep.RetentionInterval)
	defer all.Stop()
	urgent := time.NewTicker(urgentInterval)
	defer urgent.Stop()
	for {
		onlyShort := true
		select {
		case <-ctx.Done():
			return
		case <-all.C:
			onlyShort = false
		case <-urgent.C:
		case <-m.retainNow:
		}
		for _, r := range m.all() {
			if ctx.Err() != nil {
				return
			}
			if r.log() != nil && (!onlyShort || r.stored().Disk.Stage() >= store.Throttled) {
				m.retain(r)
			}
		}
	}
}

// retain takes what is too old or too much out of one log.
func (m *Manager) retain(r *Replica) {
	hw, ok := r.upkeepMark()
	if !ok {
		return
	}
	log := r.log()
	res, err := log.Retain(time.Now(), hw)
	m.cfg.Metrics.retainedBytes.Add(float64(res.Bytes))
	m.cfg.Metrics.retainedSegments.Add(float64(res.Segments))
	if res.Segments > 0 {
		m.cfg.Logger.Info("retention took segments out of a log", "replica", r.Name(), "segments", res.Segments, "bytes", res.Bytes, "start", res.Start)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The log may have begun anew meanwhile, anywhere.
	if start := log.StartOffset(); r.log() == log && !r.resetting && start > r.core.Start() && !r.gone {
		r.step(partition.StartMoved{Start: start})
		r.tellReaders(false)
	}
	r.upkeepFailed("retention", err, &r.retainFault)
}

// upkeepMark is the high watermark, beyond which nothing is taken away; ok is false
// for a log that is left alone.
func (r *Replica) upkeepMark() (hw int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log() == nil || r.gone || r.core.Down() != partition.ReasonNone || r.stored().Disk.Err() != nil || r.log().Err() != nil {
		return 0, false
	}
	return r.core.HighWatermark(), true
}

// upkeepFailed deals with what retention or cleaning ran into; said is what was last
// told about it, so that a fault that stays is told once. The caller holds mu.
func (r *Replica) upkeepFailed(what string, err error, said *string) {
	switch {
	case err == nil:
		*said = ""
		return
	case errors.Is(err, commitlog.ErrClosed), errors.Is(err, context.Canceled):
		return // it is going away
	case errors.Is(err, commitlog.ErrFailed):
		r.failed(0, err)
		return
	case store.IsDiskFault(err):
		r.m.diskFailed(r.stored().Disk, err)
	}
	var corrupt *commitlog.CorruptError
	if errors.As(err, &corrupt) {
		r.suspect(corrupt)
	}
	r.m.cfg.Metrics.upkeepFailures.WithLabelValues(what).Inc()
	if text := err.Error(); text != *said {
		*said = text
		r.m.cfg.Logger.Error("upkeep of a log failed; it is tried again", "what", what, "replica", r.Name(), "dir", r.stored().Dir, "error", err)
	}
}

// cleanerLoop compacts, one log at a time, until ctx ends.
func (m *Manager) cleanerLoop(ctx context.Context) {
	if m.cfg.Upkeep.CleanerOff {
		return
	}
	rest := time.NewTicker(m.cfg.Upkeep.CleanerBackoff)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
			m.cleanAll(ctx)
		}
	}
}

// due is a log that is to be cleaned.
type due struct {
	r     *Replica
	ratio float64
}

// cleanAll cleans every log for which it is due, the dirtiest first.
func (m *Manager) cleanAll(ctx context.Context) {
	var list []due
	for _, r := range m.all() {
		o, ok := r.cleanOptions()
		if !ok {
			continue
		}
		state, err := r.log().Cleanable(o)
		if err == nil && state.Due {
			list = append(list, due{r, state.Ratio})
		}
		if err != nil {
			r.mu.Lock()
			r.upkeepFailed("cleaning", err, &r.cleanFault)
			r.mu.Unlock()
		}
	}
	slices.SortFunc(list, func(a, b due) int { return cmp.Compare(b.ratio, a.ratio) })
	for _, d := range list {
		if ctx.Err() != nil {
			return
		}
		m.clean(ctx, d.r)
	}
}

// cleanOptions are those of the replica's topic; ok is false where nothing is
// cleaned.
func (r *Replica) cleanOptions() (o commitlog.CleanOptions, ok bool) {
	c := r.Config()
	if !c.CleanupCompact {
		return o, false
	}
	hw, ok := r.upkeepMark()
	if !ok {
		return o, false
	}
	o = commitlog.DefaultCleanOptions(hw)
	o.MinDirtyRatio = c.MinCleanableDirtyRatio
	o.MinLag, o.DeleteRetention = milliseconds(c.MinCompactionLagMs), milliseconds(c.DeleteRetentionMs)
	if c.MaxCompactionLagMs < maxMs {
		o.MaxLag = milliseconds(c.MaxCompactionLagMs)
	}
	o.KeepTombstonesFrom = r.copies.lowest
	o.DedupeBufferBytes, o.MaxDecodedBytes = r.m.cfg.Upkeep.CleanerBuffer, r.m.cfg.Upkeep.MaxDecodedBytes
	return o, true
}

// clean compacts one log.
func (m *Manager) clean(ctx context.Context, r *Replica) {
	o, ok := r.cleanOptions()
	if !ok {
		return
	}
	began := time.Now()
	o.Pace = m.pace(ctx)
	report, err := r.log().Clean(o)
	m.cfg.Metrics.cleanedBytes.Add(float64(report.BytesRead))
	m.cfg.Metrics.cleanedRecords.Add(float64(report.RecordsRemoved))
	if report.Ran && err == nil {
		m.cfg.Metrics.cleanings.Inc()
		m.cfg.Logger.Info("compacted a log", "replica", r.Name(), "why", report.Why, "from", report.From, "to", report.To, "bytes_freed", report.BytesFreed,
			"records_removed", report.RecordsRemoved, "passes", report.Passes, "took", time.Since(began).Round(time.Millisecond))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upkeepFailed("cleaning", err, &r.cleanFault)
}

// pace slows the cleaner down to its rate and ends it with ctx.
func (m *Manager) pace(ctx context.Context) func(int) error {
	began, done := time.Now(), int64(0)
	return func(bytes int) error {
		done += int64(bytes)
		rate := m.cfg.Upkeep.CleanerRate
		if rate <= 0 {
			return ctx.Err()
		}
		ahead := time.Duration(float64(done)/float64(rate)*float64(time.Second)) - time.Since(began)
		if ahead <= 0 {
			return ctx.Err()
		}
		timer := time.NewTimer(ahead)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
}
