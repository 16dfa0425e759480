package commitlog

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// Log is one replica's log. Its methods are safe for use by several goroutines.
//
// Lock order: cleaning.mu, changeMu, appendMu, syncMu, filesMu, marksMu, mu; the locks of
// segments and indexes come last.
type Log struct {
	fs  vfs.FS
	dir string
	id  Metadata
	now func() time.Time
	log *slog.Logger
	cfg atomic.Pointer[Config]
	// files closes files of this log that were not used for long.
	files *FileCache

	// changeMu is held by whoever takes segments away or replaces them.
	changeMu sync.Mutex
	graves   []grave // the oldest first; guarded by changeMu

	appendMu sync.Mutex // one appender; guards the next five fields
	head     [record.HeaderSize]byte
	vecs     [][]byte
	// firstAppend is when the active segment got its first batch.
	firstAppend time.Time

	syncMu sync.Mutex // one syncer

	// filesMu is held for reading while files are in use and for writing while they
	// are closed.
	filesMu sync.RWMutex

	marksMu sync.Mutex // one writer of the marks

	mu sync.RWMutex // guards what follows
	// segs are by base; the last one is active. Elements are only appended; every
	// other change makes a new slice, with appendMu held.
	segs     []*segment
	marks    marks // as saved
	end      int64
	durable  int64
	epochs   epochCache // as checkpointed
	unsynced []*segment // sealed since the last Sync
	newNames bool       // files were made since the last Sync
	// unsyncedSince is when the oldest batch that is not durable was appended.
	unsyncedSince time.Time
	failed        *FailedError
	closed        bool
	// unfinished is what a reset found no room for after it was on record; nil: none is
	// under way. The log is shown as it will be, empty, and takes only ResetTo and
	// TruncateTo.
	unfinished *NoSpaceError
	leftovers  []*segment // whose files may be there still; guarded by changeMu
	producers  producerState
	snapshots  []snapshotFile // by offset

	bases    atomic.Pointer[baseTable] // of segs, for lookups
	cursors  cursors
	cleaning cleanState
}

// holdStill keeps appends, syncs and whoever uses files out until the function that it
// returns is called.
func (l *Log) holdStill() (release func()) {
	l.appendMu.Lock()
	l.syncMu.Lock()
	l.filesMu.Lock()
	return func() {
		l.filesMu.Unlock()
		l.syncMu.Unlock()
		l.appendMu.Unlock()
	}
}

// active is the segment that grows. The caller holds mu or appendMu.
func (l *Log) active() *segment { return l.segs[len(l.segs)-1] }

// config is the settings in force.
func (l *Log) config() *Config { return l.cfg.Load() }

// SetConfig changes the topic's settings, with defaults for zero fields. Appends
// that begin later follow them. It changes nothing when they are invalid.
func (l *Log) SetConfig(c Config) error {
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return err
	}
	l.cfg.Store(&c)
	return nil
}

// usable is the error of a log that takes no writes. The caller holds mu.
func (l *Log) usable() error {
	if err := l.whole(); err != nil || l.unfinished == nil {
		return err
	}
	return l.unfinished
}

// whole is usable for what does no harm while a reset is unfinished. The caller holds
// mu.
func (l *Log) whole() error {
	if l.failed != nil {
		return l.failed
	}
	if l.closed {
		return fmt.Errorf("%s: %w", l.dir, ErrClosed)
	}
	return nil
}

// fail makes an error of the disk sticky and returns what is sticky now: the first
// one wins.
func (l *Log) fail(op string, err error) error {
	// Not both: a full disk that could not be undone is a failure.
	var full *NoSpaceError
	if errors.As(err, &full) {
		err = full.Err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = &FailedError{Dir: l.dir, Op: op, Err: err}
	}
	return l.failed
}

// StartOffset is the first offset of the log.
func (l *Log) StartOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.marks.start
}

// EndOffset is one past the last offset appended, durable or not.
func (l *Log) EndOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end
}

// DurableEnd is one past the last offset known to be durable. It goes back only by
// truncation.
func (l *Log) DurableEnd() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.durable
}

// Err is the sticky error of a failed log, a *FailedError, or ErrClosed, or what a
// reset waits for, a *NoSpaceError, or nil.
func (l *Log) Err() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.usable()
}

// Dir is the replica's folder.
func (l *Log) Dir() string { return l.dir }

// Segments is the number of segments.
func (l *Log) Segments() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.segs)
}

// Size is the number of bytes in all .log files. It asks the file system about
// segments that were not read yet.
func (l *Log) Size() (int64, error) {
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	l.mu.RLock()
	segs, closed := l.segs, l.closed
	l.mu.RUnlock()
	if closed {
		return 0, fmt.Errorf("%s: %w", l.dir, ErrClosed)
	}
	var total int64
	for _, seg := range segs {
		n, err := seg.length()
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// LatestEpoch is the newest leader epoch in the log, record.NoLeaderEpoch when it
// is empty.
func (l *Log) LatestEpoch() int32 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.epochs.latest()
}

// EpochAt is the leader epoch of the batch that holds an offset,
// record.NoLeaderEpoch when there is none.
func (l *Log) EpochAt(offset int64) int32 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if offset >= l.end {
		return record.NoLeaderEpoch
	}
	return l.epochs.at(offset)
}

// EndOffsetForEpoch finds the largest epoch in the log that is not above epoch, and
// one past its last offset. ok is false when the log has none as old.
func (l *Log) EndOffsetForEpoch(epoch int32) (_ EpochEnd, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.epochs.endOf(epoch, l.end)
}
