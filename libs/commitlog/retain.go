package commitlog

import (
	"errors"
	"time"
)

// RetainResult says what Retain did.
type RetainResult struct {
	Start    int64 // log start offset now
	Segments int   // taken out of the log
	Bytes    int64 // of their .log files
	Removed  int   // segments whose files went for good, after file.delete.delay.ms
	Rolled   bool  // the active segment was closed because all of it was too old
	Expired  int   // producers that were forgotten (see ExpireProducers)
}

// grave is a segment whose files wait to be removed.
type grave struct {
	paths []string // of the files as they are called now
	at    time.Time
}

// deletedSuffix ends the names of files that wait to be removed.
const deletedSuffix = ".deleted"

// futureSlack is how far ahead of the clock a timestamp may lie and still be taken
// for the time of a record.
const futureSlack = time.Hour

// AdvanceLogStart deletes the records below an offset for good: when it returns, no
// read, also after a crash, finds any of them. Offsets at or below the log's start
// change nothing. The bytes go with the segments, at the next Retain. The caller
// keeps to offsets at or below the high watermark.
//
// Errors: *OffsetOutOfRangeError above the log's end; *NoSpaceError, ErrClosed;
// *FailedError.
func (l *Log) AdvanceLogStart(offset int64) error {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	l.mu.RLock()
	err, start, end, durable := l.usable(), l.marks.start, l.end, l.durable
	l.mu.RUnlock()
	switch {
	case err != nil:
		return err
	case offset <= start:
		return nil
	case offset > end:
		return &OffsetOutOfRangeError{Offset: offset, Start: start, End: end}
	case offset > durable:
		// A log must not be found to end below its start.
		if _, err := l.Sync(); err != nil {
			return err
		}
	}
	return l.setStart(offset)
}

// setStart moves the log's start, durably. The caller holds changeMu.
func (l *Log) setStart(offset int64) error {
	return l.updateMarks(func(m *marks) { m.start = max(m.start, offset) })
}

// Retain takes old segments out of the log: those that lie wholly below the log's
// start and, with CleanupDelete, those that are older than retention.ms or too many
// for retention.bytes. Only whole, sealed segments below the high watermark go, the
// oldest first. A segment is as old as its youngest record; where that claims to
// come from the future, or has no timestamp, as its last change. When all records
// are too old the active segment is sealed, so that it can go too. What is appended so
// far is durable before a segment goes, and so is what is remembered of its producers.
//
// The files are renamed at once and removed by the first call after
// file.delete.delay.ms. The owner calls it now and then, say every minute.
//
// Errors: *CorruptError, *NoSpaceError, ErrClosed: some of it may be done, and the
// log goes on. *FailedError.
func (l *Log) Retain(now time.Time, highWatermark int64) (RetainResult, error) {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	res := RetainResult{Start: l.StartOffset()}
	if err := l.Err(); err != nil {
		return res, err
	}
	res.Expired = l.ExpireProducers(now)
	removed, err := l.removeGraves(now)
	res.Removed = removed
	if err != nil {
		return res, err
	}
	n, err := l.expired(now, highWatermark)
	if err != nil {
		return res, err
	}
	if n == l.Segments() {
		if res.Rolled, err = l.rollExpired(highWatermark); err != nil {
			return res, err
		}
		if !res.Rolled {
			n--
		}
	}
	if n == 0 {
		return res, nil
	}
	// Recovery must find all that lies behind what goes.
	if _, err := l.Sync(); err != nil {
		return res, err
	}
	err = l.dropHead(n, now, &res)
	res.Start = l.StartOffset()
	return res, err
}

// expired counts the segments, from the first on, that are to go. All of them says
// that the active one is too old as well.
func (l *Log) expired(now time.Time, highWatermark int64) (int, error) {
	cfg := l.config()
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	v, err := l.begin()
	if err != nil {
		return 0, err
	}
	var total int64
	for _, seg := range v.segs {
		n, err := seg.length()
		if err != nil {
			return 0, err
		}
		total += n
	}
	for i, seg := range v.segs {
		active := i+1 == len(v.segs)
		end := seg.sealedAt.Load()
		if active {
			end = v.end
		}
		size, err := seg.length()
		if err != nil {
			return i, err
		}
		if end > highWatermark || active && size == 0 {
			return i, nil
		}
		gone := end <= v.start && !active
		if !gone && cfg.Cleanup&CleanupDelete != 0 {
			tooMany := cfg.RetentionBytes > 0 && total-size >= cfg.RetentionBytes && !active
			old, err := l.tooOld(seg, now, cfg)
			if err != nil {
				return i, err
			}
			gone = tooMany || old
		}
		if !gone {
			return i, nil
		}
		total -= size
	}
	return len(v.segs), nil
}

// tooOld reports whether all records of a segment are older than retention.ms.
func (l *Log) tooOld(seg *segment, now time.Time, cfg *Config) (bool, error) {
	if cfg.RetentionAge <= 0 {
		return false, nil
	}
	ms, err := seg.maxTimestamp(cfg.IndexIntervalBytes)
	if err != nil {
		return false, err
	}
	youngest := time.UnixMilli(ms)
	if ms < 0 || youngest.After(now.Add(futureSlack)) {
		info, err := l.fs.Stat(seg.path())
		if err != nil {
			return false, err
		}
		youngest = info.ModTime
	}
	return now.Sub(youngest) > cfg.RetentionAge, nil
}

// rollExpired seals the active segment, unless something was appended above the
// high watermark meanwhile.
func (l *Log) rollExpired(highWatermark int64) (bool, error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if end := l.EndOffset(); end > highWatermark || l.active().size.Load() == 0 {
		return false, nil
	}
	seg, err := l.roll(l.EndOffset())
	if err != nil {
		return false, err
	}
	return true, seg.close() // it may stay empty for long
}

// dropHead takes the first n segments out of the log. The caller holds changeMu.
func (l *Log) dropHead(n int, now time.Time, res *RetainResult) error {
	l.mu.RLock()
	start := l.segs[n].base
	l.mu.RUnlock()
	if err := l.keepProducersBelow(start); err != nil {
		return err
	}
	// Then the mark: it tells recovery that what is missing was meant to go.
	if err := l.setStart(start); err != nil {
		return err
	}
	gone, err := l.detach(n)
	for _, seg := range gone {
		if size, sizeErr := seg.length(); sizeErr == nil {
			res.Bytes += size
		}
		res.Segments++
		paths := seg.files()
		if err == nil {
			paths, err = l.bury(seg)
		}
		l.graves = append(l.graves, grave{paths, now})
	}
	if err == nil {
		err = l.fs.SyncDir(l.dir)
	}
	if err != nil {
		return l.fail("retain", err)
	}
	return nil
}

// detach hides the first n segments from everybody and closes their files.
func (l *Log) detach(n int) ([]*segment, error) {
	defer l.holdStill()()
	l.mu.Lock()
	gone := l.segs[:n:n]
	l.segs = append([]*segment(nil), l.segs[n:]...)
	l.unsynced = without(l.unsynced, gone)
	// By what is left on disk, not by the log's start: recovery reads all of it.
	l.epochs = l.epochs.from(l.segs[0].base)
	l.mu.Unlock()
	var errs []error
	for _, seg := range gone {
		errs = append(errs, seg.detach())
	}
	return gone, errors.Join(errs...)
}

// without is a copy of segs less those in gone.
func without(segs, gone []*segment) []*segment {
	var out []*segment
	for _, s := range segs {
		keep := true
		for _, g := range gone {
			keep = keep && g != s
		}
		if keep {
			out = append(out, s)
		}
	}
	return out
}

// files names what a segment consists of, the .log last: without it the others are
// ignored, and with it they are made anew.
func (s *segment) files() []string {
	return []string{s.idx.offsets.path, s.idx.times.path, s.logPath}
}

// bury renames a detached segment's files, so that nothing takes them for part of
// the log, and tells what they are called now. The segment keeps its old names: a
// cleaning that still holds it finds them gone, and gives way.
func (l *Log) bury(seg *segment) ([]string, error) {
	paths := seg.files()
	for i, path := range paths {
		to := path + deletedSuffix
		if err := l.fs.Rename(path, to); err != nil && !isNotExist(err) {
			return paths, err
		}
		paths[i] = to
	}
	return paths, nil
}

// removeGraves removes the files whose time has come. The caller holds changeMu.
func (l *Log) removeGraves(now time.Time) (int, error) {
	n := 0
	for n < len(l.graves) && now.Sub(l.graves[n].at) >= l.config().FileDeleteDelay {
		for _, path := range l.graves[n].paths {
			if err := l.fs.Remove(path); err != nil && !isNotExist(err) {
				return n, l.fail("retain", err)
			}
		}
		n++
	}
	l.graves = l.graves[n:]
	return n, nil
}
