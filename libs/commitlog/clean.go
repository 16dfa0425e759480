package commitlog

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leat-io/leat/libs/record"
)

// CleanOptions says how far, and whether, to compact. Start from
// DefaultCleanOptions: zero durations mean zero.
type CleanOptions struct {
	// UpTo is the last stable offset, or the high watermark where there are no
	// transactions. Nothing at or above it is touched.
	UpTo int64
	// MinDirtyRatio is the share of bytes that were appended since the last
	// cleaning at which a cleaning is due (min.cleanable.dirty.ratio).
	MinDirtyRatio float64
	// MinLag is how long a record stays as it is at least (min.compaction.lag.ms).
	MinLag time.Duration
	// MaxLag is after how long a record is cleaned whatever the ratio; 0 is never
	// (max.compaction.lag.ms). The owner sees to it that segments are sealed as soon
	// (segment.ms).
	MaxLag time.Duration
	// DeleteRetention is how long a tombstone stays readable after the first
	// cleaning that covered it, at least (delete.retention.ms).
	DeleteRetention time.Duration
	// DedupeBufferBytes bounds the memory that maps keys to offsets. When the keys
	// of the dirty part do not fit, the log is passed over several times.
	DedupeBufferBytes int64
	// MaxDecodedBytes is the most that one batch may unpack to; 0 is
	// record.DefaultMaxDecodedBytes (max.decoded.bytes).
	MaxDecodedBytes int
	// MaxPasses ends the call after so many passes over the log; 0 is no limit.
	MaxPasses int
	// Force cleans whether or not it is due.
	Force bool
	// KeepTombstonesFrom, if it is set, tells an offset from which on tombstones stay
	// for now, although they were readable long enough: somebody who copies the log has
	// come no farther, and may hold what they delete. It is asked again before any goes,
	// once TombstonesBelow tells of it; so who begins to copy afterwards is warned. It
	// may call the log as Pace may.
	KeepTombstonesFrom func() int64
	// Now is the time; zero asks the log's clock.
	Now time.Time
	// Pace, if it is set, is called after every MiB or so that was read or written,
	// with the bytes since the last call. It may wait, to leave the disk to others,
	// and call the log, but for Clean, Close, Abort and Delete: those wait for it. An
	// error ends the cleaning, which leaves the log whole, and is returned.
	Pace func(bytes int) error
}

// Defaults of CleanOptions, as in Kafka.
const (
	DefaultMinDirtyRatio     = 0.5
	DefaultDeleteRetention   = 24 * time.Hour
	DefaultDedupeBufferBytes = 128 << 20
)

// DefaultCleanOptions cleans below an offset, by Kafka's defaults.
func DefaultCleanOptions(upTo int64) CleanOptions {
	return CleanOptions{
		UpTo: upTo, MinDirtyRatio: DefaultMinDirtyRatio, DeleteRetention: DefaultDeleteRetention,
		DedupeBufferBytes: DefaultDedupeBufferBytes,
	}
}

// Validate joins everything that is wrong with the options.
func (o *CleanOptions) Validate() error {
	var errs []error
	if o.UpTo < 0 {
		errs = append(errs, fmt.Errorf("the offset to clean up to is %d; it must not be negative", o.UpTo))
	}
	if !(o.MinDirtyRatio >= 0 && o.MinDirtyRatio <= 1) {
		errs = append(errs, fmt.Errorf("min.cleanable.dirty.ratio is %v; choose a value from 0 to 1", o.MinDirtyRatio))
	}
	if o.MinLag < 0 || o.MaxLag < 0 || o.DeleteRetention < 0 {
		errs = append(errs, fmt.Errorf("min.compaction.lag.ms, max.compaction.lag.ms and delete.retention.ms are %v, %v and %v; they must not be negative",
			o.MinLag, o.MaxLag, o.DeleteRetention))
	}
	if o.DedupeBufferBytes < MinDedupeBufferBytes {
		errs = append(errs, fmt.Errorf("the cleaner's buffer is %d bytes; choose %d or more", o.DedupeBufferBytes, MinDedupeBufferBytes))
	}
	return errors.Join(errs...)
}

// CleanReport says what Clean did.
type CleanReport struct {
	// Ran is false when cleaning was not due; Why says so in words either way.
	Ran bool
	Why string
	// From and To are the offsets that were dirty and no longer are.
	From, To int64
	// More is true when part of the dirty range was left, by MaxPasses or because
	// the log was changed meanwhile.
	More   bool
	Passes int

	BytesRead       int64 // of .log files, all passes together
	BytesWritten    int64
	BytesFreed      int64 // by which the .log files shrank
	SegmentsBefore  int   // replaced
	SegmentsAfter   int   // that took their place
	RecordsRead     int64 // whose fate was decided
	RecordsRemoved  int64
	Tombstones      int64 // among those removed
	NullKeys        int64 // among those removed; a compacted topic should have none
	EmptyBatches    int64 // that were kept for their producer's or their epoch's sake
	Keys            int64 // different keys of the dirty range, per pass
	MapBytes        int64 // memory of the largest map of keys
	NextHorizon     int64 // ms; when the next tombstone may go, -1 when there is none
	TombstonesBelow int64 // offset up to which tombstones were removed, ever
}

// heldDelay is after how long tombstones are looked at again that stayed for the sake of
// somebody who copies the log.
const heldDelay = 5 * time.Minute

// chunk is about how much is read or written between two calls of Pace.
const cleanChunk = 1 << 20

// cleanState is what a log keeps for Clean.
type cleanState struct {
	mu   sync.Mutex // one cleaning; taken before all other locks
	stop atomic.Bool
	// truncations counts those of the log, whose offsets mean something else
	// afterwards. They hold changeMu.
	truncations atomic.Int64
}

// stopCleaning ends a cleaning that runs, keeps others from beginning, for good,
// and returns what lets go of the lock. Whoever closes the log calls it first.
func (l *Log) stopCleaning() (unlock func()) {
	l.cleaning.stop.Store(true)
	l.cleaning.mu.Lock()
	return l.cleaning.mu.Unlock
}

// Clean compacts the log: of each key below UpTo the newest record stays, as it is
// and where it is, and so does everything the active segment holds, every control
// batch, and the last batch of every producer, if only as a header. Records without
// a key go. Tombstones go once they were readable long enough.
//
// It does one cleaning, if one is due, on the caller's goroutine. Everything else
// may go on meanwhile: what retention or truncation takes away is left for the next
// cleaning, and Close, Abort and Delete wait for a MiB of work at most. Memory is bounded by DedupeBufferBytes, a few MiB, and one batch
// unpacked. A crash at any moment leaves every survivor exactly once.
//
// Errors: *CorruptError when a batch is damaged (nothing was changed where it
// lies); *NoSpaceError, after which the log goes on; *FailedError; ErrClosed; what
// Pace returned.
func (l *Log) Clean(o CleanOptions) (CleanReport, error) {
	if err := o.Validate(); err != nil {
		return CleanReport{}, fmt.Errorf("clean %s: %w", l.dir, err)
	}
	if o.Now.IsZero() {
		o.Now = l.now()
	}
	c := &cleaning{
		l: l, o: o, now: o.Now.UnixMilli(),
		reader: record.NewReader(o.MaxDecodedBytes), rewriter: record.NewRewriter(o.MaxDecodedBytes),
	}
	l.cleaning.mu.Lock()
	defer l.cleaning.mu.Unlock()
	err := c.run()
	var corrupt *CorruptError
	if errors.Is(err, errSegmentsChanged) || errors.As(err, &corrupt) && c.truncations != l.cleaning.truncations.Load() {
		// What was read may have been gone already. The next cleaning begins anew.
		c.report.More = true
		if err = c.usable(); err == nil {
			l.log.Debug("cleaning gave way to a change of the log", "dir", l.dir)
		}
	}
	m := l.currentMarks()
	c.report.TombstonesBelow, c.report.NextHorizon = m.tombstonesBelow, m.nextHorizon
	return c.report, err
}

// cleaning is one run of Clean. It holds Log.cleaning.mu.
type cleaning struct {
	l           *Log
	o           CleanOptions
	now         int64 // ms
	report      CleanReport
	reader      *record.Reader
	rewriter    *record.Rewriter
	offsets     *offsetMap
	latest      int64           // offset up to which the keys are known
	last        map[int64]int64 // producer id → last offset of its last batch
	firsts      map[int64]bool  // base offsets of the first batches of leader epochs
	horizon     int64           // the earliest one that was seen in this pass, -1 for none
	keepFrom    int64           // tombstones from this offset on stay for now
	fates       []bool          // of the records of one batch
	keys        []keyOf         // of one batch
	hashes      []keyHash       // of those
	truncations int64           // of the log, when the pass began
	touched     uint64          // keeps offsetMap.touch from being optimized away
	buf         []byte          // what was read
	work        int             // bytes since the last call of Pace
}

func (c *cleaning) run() error {
	for {
		if err := c.usable(); err != nil {
			return err
		}
		state, err := c.l.cleanable(&c.o)
		if err != nil {
			return err
		}
		if c.report.Passes == 0 {
			c.report.Ran, c.report.Why = state.Due || c.o.Force && state.Any(), state.Why
			c.report.From, c.report.To = state.FirstDirty, state.FirstDirty
		}
		switch {
		case !c.report.Ran, c.report.Passes > 0 && state.DirtyBytes == 0:
			return nil
		case c.o.MaxPasses > 0 && c.report.Passes == c.o.MaxPasses:
			c.report.More = true
			return nil
		}
		c.report.Passes++
		if err := c.pass(&state); err != nil {
			return err
		}
		c.report.To = c.latest + 1
	}
}

// pass maps as much of the dirty range as fits in memory, rewrites every segment
// from the log's start to there, and notes how far it came.
func (c *cleaning) pass(state *Cleanable) error {
	l := c.l
	segs := c.segmentsBelow(state.Limit)
	c.truncations = l.cleaning.truncations.Load()
	c.findLandmarks()
	if err := c.mapKeys(segs, state.FirstDirty, state.Limit); err != nil {
		return err
	}
	// From here on there may be gaps, and readers and recovery must know.
	if err := l.updateMarks(func(m *marks) { m.gapsBelow = max(m.gapsBelow, state.Limit) }); err != nil {
		return err
	}
	c.horizon = noHorizon
	groups, err := groupSegments(segs, l.config())
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g[0].base > c.latest {
			break
		}
		if err := c.cleanGroup(g); err != nil {
			return err
		}
	}
	if c.truncations != l.cleaning.truncations.Load() {
		return errSegmentsChanged
	}
	return l.updateMarks(func(m *marks) {
		m.cleanedBelow = max(m.cleanedBelow, min(c.latest+1, l.EndOffset()))
		m.nextHorizon = c.horizon
	})
}

// segmentsBelow are the sealed segments that end at or below an offset.
func (c *cleaning) segmentsBelow(limit int64) []*segment {
	c.l.mu.RLock()
	defer c.l.mu.RUnlock()
	n := 0
	for n < len(c.l.segs)-1 && c.l.segs[n+1].base <= limit {
		n++
	}
	return c.l.segs[:n:n]
}

// pace counts bytes read or written, and now and then lets others have the disk and
// looks whether the log is still there.
func (c *cleaning) pace(n int) error {
	if c.work += n; c.work < cleanChunk {
		return nil
	}
	n, c.work = c.work, 0
	if c.o.Pace != nil {
		if err := c.o.Pace(n); err != nil {
			return err
		}
	}
	return c.usable()
}

// askKeepFrom asks from where on tombstones stay for now.
func (c *cleaning) askKeepFrom() int64 {
	if c.o.KeepTombstonesFrom == nil {
		return math.MaxInt64
	}
	return c.o.KeepTombstonesFrom()
}

// usable is the error of a log that cannot be cleaned any more.
func (c *cleaning) usable() error {
	if c.l.cleaning.stop.Load() {
		return fmt.Errorf("clean %s: %w", c.l.dir, ErrClosed)
	}
	return c.l.Err()
}

// TombstonesBelow is the highest offset up to which tombstones were removed, ever; 0
// when none were. A follower whose log ends below it may have missed deletions, and
// has to begin anew at the log's start.
func (l *Log) TombstonesBelow() int64 { return l.currentMarks().tombstonesBelow }

// CleanedBelow is the offset up to which the log has been compacted.
func (l *Log) CleanedBelow() int64 { return l.currentMarks().cleanedBelow }
