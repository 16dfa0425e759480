package commitlog

import (
	"fmt"
	"log/slog"
	"math"
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

	// changeMu is held by whoever takes segments away or replaces them.
	changeMu sync.Mutex

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
	failed   *FailedError
	closed   bool

	cursors  cursors
	cleaning cleanState
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

// usable is the error of a log that takes no more writes. The caller holds mu.
func (l *Log) usable() error {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = &FailedError{Dir: l.dir, Op: op, Err: err}
	}
	return l.failed
}

// Append adds one batch, given as the concatenation of vecs, and returns the
// offsets that it got. The caller has validated it (record.Validate). Base offset,
// leader epoch and, with LogAppendTime, the timestamp are set on the way to disk;
// vecs are neither changed nor kept. The batch is readable at once and durable
// after a Sync that begins later.
//
// Errors: *record.TooLargeError above max.message.bytes, *record.InvalidError and
// *record.CorruptError when the header and the bytes do not agree,
// *StaleEpochError, ErrClosed: nothing was appended and the log goes on.
// *FailedError: the write failed, now or earlier, and the log is done.
func (l *Log) Append(vecs [][]byte, leaderEpoch int32) (AppendInfo, error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	cfg := l.config()
	h, err := l.admit(vecs, leaderEpoch, cfg)
	if err != nil {
		return AppendInfo{}, err
	}
	now := l.now()
	seg, err := l.rollFor(&h, now, cfg)
	if err != nil {
		return AppendInfo{}, l.fail("roll", err)
	}
	if cfg.TimestampType == record.LogAppendTime {
		h.MaxTimestamp = now.UnixMilli()
	}
	if err := l.enterEpoch(&h); err != nil {
		return AppendInfo{}, l.fail("append", err)
	}
	pos := seg.size.Load()
	if err := l.write(seg, pos, vecs, &h, cfg); err != nil {
		return AppendInfo{}, l.fail("append", err)
	}
	if pos == 0 {
		l.firstAppend = now
	}
	point := indexPoint{h.BaseOffset - seg.base, pos}
	if err := seg.idx.note(point, int64(h.Size()), seg.maxTS.Load(), cfg.IndexIntervalBytes); err != nil {
		return AppendInfo{}, l.fail("append", err)
	}
	l.publish(seg, &h)
	return AppendInfo{
		BaseOffset: h.BaseOffset, LastOffset: h.LastOffset(), SegmentBase: seg.base, Position: pos,
		Size: h.Size(), MaxTimestamp: h.MaxTimestamp, AppendTime: now.UnixMilli(),
	}, nil
}

// admit refuses what must not reach the disk, and gives the batch its place.
func (l *Log) admit(vecs [][]byte, leaderEpoch int32, cfg *Config) (record.Header, error) {
	l.mu.RLock()
	err, end, latest := l.usable(), l.end, l.epochs.latest()
	l.mu.RUnlock()
	if err != nil {
		return record.Header{}, err
	}
	h, err := record.ParseHeaderVec(vecs)
	if err != nil {
		return h, err
	}
	if h.Size() > cfg.MaxMessageBytes {
		return h, &record.TooLargeError{Size: h.Size(), Limit: cfg.MaxMessageBytes}
	}
	if n := record.VecLen(vecs); n != h.Size() {
		return h, &record.CorruptError{Position: min(n, h.Size()), Detail: fmt.Sprintf("the batch should have %d bytes and %d came", h.Size(), n)}
	}
	if leaderEpoch < 0 || leaderEpoch < latest {
		return h, &StaleEpochError{Epoch: leaderEpoch, Latest: latest}
	}
	h.BaseOffset, h.PartitionLeaderEpoch = end, leaderEpoch
	return h, h.Check()
}

// rollFor returns the segment that takes a batch, a new one if the active one is
// full, old, or too far behind in offsets.
func (l *Log) rollFor(h *record.Header, now time.Time, cfg *Config) (*segment, error) {
	seg := l.active()
	size := seg.size.Load()
	if size == 0 || size+int64(h.Size()) <= cfg.SegmentBytes &&
		now.Sub(l.firstAppend) < cfg.SegmentAge &&
		!seg.idx.full(cfg.SegmentIndexBytes) &&
		h.LastOffset()-seg.base < math.MaxInt32 {
		return seg, nil
	}
	// Where gaps are allowed, a file that lost its end could pass for one with a gap
	// behind it. So it is durable before there is a next one.
	if h.BaseOffset <= l.currentMarks().gapsBelow {
		if err := syncSegment(seg); err != nil {
			return nil, err
		}
	}
	seg.sealedAt.Store(h.BaseOffset)
	if err := seg.idx.seal(seg.maxTS.Load(), indexPoint{h.BaseOffset - seg.base, size}); err != nil {
		return nil, err
	}
	next, err := createSegment(l.fs, l.dir, h.BaseOffset)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segs = append(l.segs, next)
	l.unsynced = append(l.unsynced, seg)
	l.newNames = true
	return next, nil
}

// enterEpoch checkpoints a leader epoch, durably, before its first batch is
// written. So the checkpoint knows the epoch of every batch on disk, whether or not
// that was synced, and recovery can tell a damaged epoch from a new one. The caller
// holds appendMu, and nobody else changes epochs.
func (l *Log) enterEpoch(h *record.Header) error {
	l.mu.RLock()
	epochs, changed := l.epochs.assign(h.PartitionLeaderEpoch, h.BaseOffset)
	l.mu.RUnlock()
	if !changed {
		return nil
	}
	return epochs.save(l.fs, l.dir)
}

// write puts the batch at a byte of the segment: the patched copy of its header,
// then the rest as it came, in one call.
func (l *Log) write(seg *segment, pos int64, vecs [][]byte, h *record.Header, cfg *Config) error {
	record.CopyVec(l.head[:], vecs)
	l.vecs = append(l.vecs[:0], l.head[:])
	skip := record.HeaderSize
	for _, v := range vecs {
		if skip < len(v) {
			l.vecs = append(l.vecs, v[skip:])
		}
		skip = max(0, skip-len(v))
	}
	record.PatchBaseOffset(l.head[:], h.BaseOffset)
	record.PatchPartitionLeaderEpoch(l.head[:], h.PartitionLeaderEpoch)
	if cfg.TimestampType == record.LogAppendTime {
		record.PatchLogAppendTime(l.head[:], l.vecs[1:], h.MaxTimestamp)
	}
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	f, err := seg.open(true)
	if err == nil {
		_, err = f.WriteVecAt(l.vecs, pos)
	}
	clear(l.vecs) // the caller's buffers are not kept
	return err
}

// publish lets readers see the batch.
func (l *Log) publish(seg *segment, h *record.Header) {
	seg.maxTS.Store(max(seg.maxTS.Load(), h.MaxTimestamp))
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.size.Add(int64(h.Size()))
	l.end = h.NextOffset()
	l.epochs, _ = l.epochs.assign(h.PartitionLeaderEpoch, h.BaseOffset)
}

// StartOffset is the first offset of the log.
func (l *Log) StartOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.segs[0].base
}

// EndOffset is one past the last offset appended, durable or not.
func (l *Log) EndOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end
}

// DurableEnd is one past the last offset known to be durable. It never goes back.
func (l *Log) DurableEnd() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.durable
}

// Err is the sticky error of a failed log, a *FailedError, or ErrClosed, or nil.
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
