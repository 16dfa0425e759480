package commitlog

import (
	"errors"
	"fmt"
	"math"

	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// TruncateTo takes away everything from an offset on, durably: batches, index
// entries, leader epochs and producer state. A batch that reaches across the offset
// goes as a whole. It returns the new end, which lies below offset where there is
// such a batch. Where compaction has left a gap there, a batch without records fills
// it: offsets that were seen to be committed are not given to other records. An
// offset at or above the end changes nothing. Where no whole batch would be left
// above the log's start, the log begins anew there, empty.
//
// The caller has first lowered, durably, the recovery point and the high-watermark
// checkpoint that it hands to Open, where they lie above the offset; it never
// truncates below the high watermark. A crash during the call leaves the log cut
// somewhere between the offset and the old end.
//
// Errors: *OffsetOutOfRangeError below the log's start (see ResetTo), *CorruptError
// (where the log is cut is never told by a batch that is not whole), *NoSpaceError,
// ErrClosed: nothing was changed, unless a *NoSpaceError says that the log begins anew.
// *FailedError.
func (l *Log) TruncateTo(offset int64) (end int64, err error) {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	defer l.holdStill()()
	l.mu.RLock()
	err, start, end := l.whole(), l.marks.start, l.end
	v, unfinished := view{segs: l.segs}, l.unfinished != nil
	l.mu.RUnlock()
	switch {
	case err != nil:
		return end, err
	case unfinished && offset >= start:
		return end, l.reset(start)
	case offset < start:
		return end, &OffsetOutOfRangeError{Offset: offset, Start: start, End: end}
	case offset >= end:
		return end, nil
	}
	i := v.segmentOf(offset)
	at, err := l.findCut(v.segs[i], offset)
	if err != nil {
		return end, err
	}
	l.fillGap(&at, offset)
	if at.filler == nil && at.end < start {
		return start, l.reset(start)
	}
	// What may meet damage and what needs room come first: neither changes anything.
	state, snapshots, err := l.producersAt(v.segs[:i+1], l.snapshots, at.end)
	if err != nil {
		var corrupt *CorruptError
		if errors.As(err, &corrupt) {
			return end, err
		}
		return end, l.fail("truncate", err)
	}
	epochs := l.epochs.below(at.end)
	staged, err := epochs.stage(l.fs, l.dir)
	if err != nil {
		return end, l.diskError("truncate", err)
	}
	if err := l.updateMarks(func(m *marks) { m.cleanedBelow = min(m.cleanedBelow, at.end) }); err != nil {
		return end, err
	}
	err = l.cutAt(i, &at, epochs, staged)
	if err == nil {
		err = l.adoptProducers(state, snapshots, at.end)
	}
	if err != nil {
		return end, l.fail("truncate", err)
	}
	return at.end, nil
}

// cutPlace is where a segment is to end.
type cutPlace struct {
	pos   int64
	end   int64 // one past the last offset that stays
	maxTS int64 // of what stays
	point indexPoint
	keep  int // index entries that stay
	// across says that a batch reaches across the offset, so that end lies below it
	// for want of records, not because there is a gap.
	across bool
	filler []byte // a batch that fills the gap from the last batch that stays up to end
}

// fillGap lets a log that is cut in a gap end at the offset asked for.
func (l *Log) fillGap(at *cutPlace, offset int64) {
	if at.across || at.end >= offset || offset-at.end > math.MaxInt32 {
		return
	}
	at.filler = record.BuildFiller(at.end, offset, max(l.epochs.at(offset-1), 0))
	at.end = offset
}

// findCut finds the first batch of a segment that does not lie wholly below an
// offset.
func (l *Log) findCut(seg *segment, offset int64) (cutPlace, error) {
	for try := 0; ; try++ {
		at, err := l.tryFindCut(seg, offset)
		if !errors.Is(err, errBadIndex) {
			return at, err
		}
		if try == maxRebuilds {
			return at, seg.indexFault()
		}
		if err := seg.rebuild(l.config().IndexIntervalBytes); err != nil {
			return at, err
		}
	}
}

func (l *Log) tryFindCut(seg *segment, offset int64) (cutPlace, error) {
	f, err := seg.acquire()
	if err != nil {
		return cutPlace{}, err
	}
	defer seg.release()
	at, err := seg.idx.cutPlace(offset - seg.base)
	if err != nil {
		return at, err
	}
	sc := newScanner(f, seg.size.Load(), make([]byte, lookupBuffer))
	gapsBelow, interval := l.currentMarks().gapsBelow, l.config().IndexIntervalBytes
	rebuilt := seg.idx.madeAnew()
	at.pos, at.end = at.point.pos, seg.base+at.point.rel
	for at.pos < sc.size {
		h, err := sc.header(at.pos)
		if err == nil {
			err = checkPlace(h.BaseOffset, at.end, gapsBelow)
		}
		if at.pos == at.point.pos && at.pos > 0 && (err != nil || h.BaseOffset != at.end) {
			return at, errBadIndex
		}
		// An entry that is missing here would be missing in what is left, too.
		if !rebuilt && err == nil && h.BaseOffset < offset && at.pos > at.point.pos && at.pos-at.point.pos >= interval {
			return at, errBadIndex
		}
		if err == nil && at.end < offset {
			// Where the log is cut must not hang on a bit that has flipped.
			err = sc.verify(at.pos, &h)
		}
		if err != nil {
			return at, seg.fault(at.pos, at.end, err)
		}
		if h.NextOffset() > offset {
			if at.across = h.BaseOffset < offset; at.end < offset {
				err = l.checkBehind(seg, &sc, at.pos, &h, gapsBelow)
			}
			return at, err
		}
		at.end = h.NextOffset()
		if h.NumRecords > 0 {
			at.maxTS = max(at.maxTS, h.MaxTimestamp)
		}
		at.pos += int64(h.Size())
	}
	return at, nil
}

// checkBehind checks the base offset of a batch by what comes behind it.
func (l *Log) checkBehind(seg *segment, sc *scanner, pos int64, h *record.Header, gapsBelow int64) error {
	next := h.NextOffset()
	if pos += int64(h.Size()); pos < sc.size {
		behind, err := sc.header(pos)
		if err == nil {
			err = checkPlace(behind.BaseOffset, next, gapsBelow)
		}
		if err != nil {
			return seg.fault(pos, next, err)
		}
		return nil
	}
	if limit := l.endOf(seg); next > limit {
		return seg.fault(pos, next, &record.CorruptError{Detail: fmt.Sprintf("the batch reaches to offset %d and its segment ends at %d", next, limit)})
	}
	return nil
}

// endOf is where a segment's offsets end: where the next one begins, or the log's end.
func (l *Log) endOf(seg *segment) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for i, s := range l.segs[:len(l.segs)-1] {
		if s == seg {
			return l.segs[i+1].base
		}
	}
	return l.end
}

// cutPlace reads the last point strictly below a relative offset, or the start of
// the segment, and what is known of timestamps below it.
func (x *segIndex) cutPlace(rel int64) (cutPlace, error) {
	if err := x.rlock(); err != nil {
		return cutPlace{}, err
	}
	defer x.mu.RUnlock()
	n, p, err := x.floorLocked(rel - 1)
	if err != nil {
		return cutPlace{}, err
	}
	at := cutPlace{point: p, keep: n + 1, maxTS: noTimestamp}
	if n >= x.times.len() {
		return at, errBadIndex
	}
	ts, timeRel, err := x.timePoint(n)
	if err == nil && timeRel != p.rel {
		err = errBadIndex
	}
	at.maxTS = ts
	return at, err
}

// cutAt makes a segment end at a place and removes the later ones, the last one
// first, each durably: a crash in between leaves a log without holes. epochs are those of
// what is left, and staged is their checkpoint.
func (l *Log) cutAt(i int, at *cutPlace, epochs epochCache, staged vfs.StagedFile) error {
	if err := failpoint.Hit(failpoint.LogTruncate); err != nil {
		return err
	}
	l.cleaning.truncations.Add(1)
	segs := l.segs
	for k := len(segs) - 1; k > i; k-- {
		if err := l.removeSegment(segs[k]); err != nil {
			return err
		}
		if err := l.fs.SyncDir(l.dir); err != nil {
			return err
		}
	}
	seg := segs[i]
	f, err := seg.grow()
	if err != nil {
		return err
	}
	defer seg.release()
	// The filler comes first: whatever a crash leaves of the two, the log does not end
	// below the offset.
	if _, err := f.WriteAt(at.filler, at.pos); len(at.filler) > 0 && err != nil {
		return err
	}
	at.pos += int64(len(at.filler))
	if err := f.Truncate(at.pos); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	seg.synced.Store(seg.writes.Load())
	if err := seg.idx.cut(at.keep, at.pos-at.point.pos); err != nil {
		return err
	}
	seg.size.Store(at.pos)
	seg.maxTS.Store(at.maxTS)
	seg.maxTSKnown.Store(true)
	if err := staged.Commit(); err != nil {
		return err
	}
	l.cursors.clear()
	l.firstAppend = l.now()
	left := append([]*segment(nil), segs[:i+1]...)
	l.mu.Lock()
	l.unsynced = without(l.unsynced, segs[i:])
	l.segs = left
	l.end, l.durable, l.epochs = at.end, min(l.durable, at.end), epochs
	l.mu.Unlock()
	return nil
}

// cut drops all entries from number keep on, durably, and notes how many bytes of
// log lie behind the last one.
func (x *segIndex) cut(keep int, since int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.keepLocked(keep); err != nil {
		return err
	}
	x.since = since
	return errors.Join(x.offsets.flush(), x.times.flush(), x.offsets.sync(), x.times.sync())
}

// ResetTo takes everything away, durably, and lets the log begin anew, empty, at an
// offset, which may lie anywhere: a follower does this when its leader's log begins
// above its own end. The caller's duties are those of TruncateTo.
//
// Errors: *NoSpaceError, ErrClosed: nothing was changed, unless the first says that it
// was begun. *FailedError.
func (l *Log) ResetTo(offset int64) error {
	if offset < 0 {
		return &OffsetOutOfRangeError{Offset: offset}
	}
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	defer l.holdStill()()
	l.mu.RLock()
	err := l.whole()
	l.mu.RUnlock()
	if err != nil {
		return err
	}
	return l.reset(offset)
}

// reset marks the log, durably, as one that is to begin anew, and sees to it. Where
// there is no room for that, it may be called again. The caller holds every lock but mu.
func (l *Log) reset(offset int64) error {
	l.cleaning.truncations.Add(1)
	if err := l.updateMarks(func(m *marks) { m.reset = offset }); err != nil {
		return err
	}
	err := l.finishReset(append(l.leftovers, l.segs...))
	l.cursors.clear()
	if err == nil {
		return nil
	}
	var unchanged *vfs.UnchangedError
	if !errors.As(err, &unchanged) || !isNoSpace(err) {
		return l.fail("reset", err)
	}
	full := &NoSpaceError{Dir: l.dir, Op: "reset", Err: unchanged.Err, Begun: true}
	l.mu.Lock()
	l.unfinished = full
	l.mu.Unlock()
	return full
}

// finishReset removes segments, the last one first, and makes the first one of the
// new log. It is repeated after a crash, and where there was no room; what may be tried
// again is a *vfs.UnchangedError.
func (l *Log) finishReset(segs []*segment) error {
	m := l.currentMarks()
	seg := newCachedSegment(l.fs, l.dir, m.reset, l.files)
	seg.size.Store(0)
	seg.maxTSKnown.Store(true)
	// Nobody is to see what is going.
	l.mu.Lock()
	l.segs, l.unsynced, l.epochs = []*segment{seg}, nil, nil
	l.end, l.durable, l.marks.start = m.reset, m.reset, m.reset
	l.producers, l.snapshots = newProducerState(m.reset), nil
	l.mu.Unlock()
	for k := len(segs) - 1; k >= 0; k-- {
		l.leftovers = segs[:k+1]
		if err := l.removeSegment(segs[k]); err != nil {
			return l.again(err)
		}
	}
	l.leftovers = nil
	if err := l.removeSnapshots(); err != nil {
		return l.again(err)
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	var epochs epochCache
	if err := epochs.save(l.fs, l.dir); err != nil {
		return err
	}
	seg, err := createSegment(l.fs, l.dir, m.reset, l.files)
	if err != nil {
		return l.again(err)
	}
	if err := errors.Join(seg.close(), l.fs.SyncDir(l.dir)); err != nil {
		return err
	}
	l.mu.Lock()
	l.segs = []*segment{seg}
	l.mu.Unlock()
	l.firstAppend = l.now()
	err = l.updateMarks(func(m *marks) {
		m.start, m.cleanedBelow, m.reset = m.reset, min(m.cleanedBelow, m.reset), noReset
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.unfinished = nil
	l.mu.Unlock()
	return nil
}

// again lets a step of a reset be tried again that found no room. It is not for a sync,
// which may have failed for good although the next one does not.
func (l *Log) again(err error) error {
	if isNoSpace(err) {
		return &vfs.UnchangedError{Path: l.dir, Err: err}
	}
	return err
}
