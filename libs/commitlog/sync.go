package commitlog

import (
	"errors"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/failpoint"
)

// Sync makes durable everything whose Append returned before Sync began: bytes of
// sealed segments and of the active one, names of new files. (A leader epoch is
// durable before its first batch is written.) It returns one past the last durable offset. Appends may go on meanwhile. With
// nothing to do it is cheap. It fails with *FailedError, for good, or ErrClosed.
func (l *Log) Sync() (durableEnd int64, err error) {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	return l.sync()
}

// NeedsFlush reports whether so much, or something so old, is unsynced that
// flush.messages or flush.ms ask for a Sync now.
func (l *Log) NeedsFlush(now time.Time) bool {
	cfg := l.config()
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.end == l.durable || l.usable() != nil {
		return false
	}
	return cfg.FlushMessages > 0 && l.end-l.durable >= cfg.FlushMessages ||
		cfg.FlushAge > 0 && now.Sub(l.unsyncedSince) >= cfg.FlushAge
}

// syncWork is what one Sync has to do.
type syncWork struct {
	end    int64
	sealed []*segment
	active *segment
	names  bool
}

// sync is Sync; the caller holds syncMu.
func (l *Log) sync() (int64, error) {
	now := l.now()
	l.mu.Lock()
	if err := l.whole(); err != nil {
		durable := l.durable
		l.mu.Unlock()
		return durable, err
	}
	w := syncWork{end: l.end, sealed: l.unsynced, names: l.newNames}
	if l.end > l.durable {
		w.active = l.active()
	}
	l.unsynced, l.newNames = nil, false
	// What is appended from here on is younger; nothing else is unsynced afterwards.
	l.unsyncedSince = now
	l.mu.Unlock()

	err := failpoint.Hit(failpoint.LogFsync)
	if err == nil {
		err = l.doSync(&w)
	}
	if err == nil {
		err = failpoint.Hit(failpoint.LogSynced)
	}
	if err != nil {
		err = l.fail("sync", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.failed != nil {
		err = l.failed
	}
	if err != nil {
		return l.durable, err
	}
	l.durable = max(l.durable, w.end)
	return l.durable, nil
}

func (l *Log) doSync(w *syncWork) error {
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	for _, seg := range w.sealed {
		if err := syncSegment(seg); err != nil {
			return err
		}
		// It is of no more use to the appender; lookups open it again.
		if err := seg.syncIndex(); err != nil {
			return err
		}
	}
	if w.active != nil {
		if err := syncSegment(w.active); err != nil {
			return err
		}
	}
	if len(w.sealed) > 0 {
		if err := l.syncSnapshots(); err != nil {
			return err
		}
	}
	if w.names {
		return l.fs.SyncDir(l.dir)
	}
	return nil
}

func syncSegment(seg *segment) error {
	f, err := seg.acquire()
	if err != nil {
		return err
	}
	defer seg.release()
	writes := seg.writes.Load()
	if err := f.Sync(); err != nil {
		return err
	}
	seg.synced.Store(max(seg.synced.Load(), writes))
	return nil
}

// syncIndex makes a segment's indexes durable.
func (s *segment) syncIndex() error {
	s.pin()
	defer s.unpin()
	return s.idx.sync()
}

// Close syncs everything, writes the indexes out and releases the files. When it
// returns nil, the owner may note a clean shutdown. Reads that run are waited for.
// A log that failed is closed all the same, and Close returns why it failed. A
// second Close returns ErrClosed.
func (l *Log) Close() error {
	defer l.stopCleaning()()
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	_, err := l.sync()
	if errors.Is(err, ErrClosed) {
		return err
	}
	if err == nil && l.Err() == nil {
		err = l.syncRest()
	}
	return errors.Join(err, l.release())
}

// syncRest makes durable what a Sync leaves to a clean stop: indexes, and what is
// remembered of producers. A log that nothing was appended to since it was opened
// has nothing of the kind. The caller holds appendMu and syncMu.
func (l *Log) syncRest() error {
	if err := l.active().syncIndex(); err != nil {
		return err
	}
	if l.end == l.segs[0].base {
		return nil
	}
	known := len(l.snapshots)
	if err := l.writeSnapshot(true); err != nil || len(l.snapshots) == known {
		return err
	}
	return errors.Join(l.syncSnapshots(), l.fs.SyncDir(l.dir))
}

// Abort releases the files without writing anything, as if the process had ended
// here: the next Open must not be told of a clean shutdown. Reads that run are
// waited for. After Close it does nothing.
func (l *Log) Abort() error {
	defer l.stopCleaning()()
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	return l.release()
}

// release closes the files and marks the log closed. The caller holds appendMu and
// syncMu.
func (l *Log) release() error {
	l.filesMu.Lock()
	defer l.filesMu.Unlock()
	l.mu.Lock()
	segs := slices.Concat(l.leftovers, l.segs)
	done := l.closed
	l.closed = true
	l.mu.Unlock()
	if done {
		return nil
	}
	var errs []error
	for _, seg := range segs {
		errs = append(errs, seg.close())
	}
	return errors.Join(append(errs, l.files.takeErrors())...)
}
