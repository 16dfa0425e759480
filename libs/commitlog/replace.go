package commitlog

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/leat-io/leat/libs/vfs"
)

// A segment takes the place of a run of sealed ones in these steps, each durable
// before the next:
//
//  1. <base>.log.cleaned and its indexes are written and synced.
//  2. Rename <base>.log.cleaned to <base>-<end>.log.swap and sync the folder. From
//     here on the replacement is a fact: recovery completes it.
//  3. Remove the old segments but <base>.log, and its indexes; sync the folder.
//  4. Rename the .swap file to <base>.log, over the old one, and the indexes to
//     their names; sync the folder.
//
// Whatever a crash leaves behind has one meaning: .cleaned files are of no use; a
// .swap file stands for all segments whose base lies in [base, end).
const (
	cleanedSuffix = ".cleaned"
	swapSuffix    = ".log.swap"
)

// errSegmentsChanged says that the segments to be replaced are not all there any
// more: the log was truncated, or retention took some. Nothing was done.
var errSegmentsChanged = errors.New("segments changed while their replacement was written")

// segmentWriter writes the segment that is to take the place of others. It is used
// by one goroutine.
type segmentWriter struct {
	seg      *segment
	file     vfs.File
	interval int64
	buf      []byte // not written yet
	size     int64  // bytes written and waiting
	next     int64  // smallest base offset of the next batch
	end      int64  // the segment ends before this offset
	maxTS    int64
	records  int64
	batches  int64
	fault    error // of the disk
}

// replacementBuffer is what a segmentWriter gathers before it writes.
const replacementBuffer = 256 << 10

// append adds one encoded batch, with its offsets. They must rise. The batch is
// copied.
func (w *segmentWriter) append(batch []byte) error {
	h, err := parseHeader(batch)
	if err != nil {
		return err
	}
	if h.Size() != len(batch) || h.BaseOffset < w.next || h.NextOffset() > w.end || w.size+int64(len(batch)) > math.MaxInt32 {
		return fmt.Errorf("replace segments: a batch of %d bytes at offset %d cannot follow %d bytes that end before %d, below %d",
			len(batch), h.BaseOffset, w.size, w.next, w.end)
	}
	if err := w.seg.idx.note(indexPoint{h.BaseOffset - w.seg.base, w.size}, int64(len(batch)), w.maxTS, w.interval); err != nil {
		w.fault = err
		return err
	}
	if len(w.buf)+len(batch) > replacementBuffer {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.buf = append(w.buf, batch...)
	w.size += int64(len(batch))
	w.next = h.NextOffset()
	if h.NumRecords > 0 {
		w.maxTS = max(w.maxTS, h.MaxTimestamp)
	}
	w.records += int64(h.NumRecords)
	w.batches++
	return nil
}

func (w *segmentWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.file.WriteAt(w.buf, w.size-int64(len(w.buf)))
	w.buf = w.buf[:0]
	w.fault = err
	return err
}

// finish makes the files durable.
func (w *segmentWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	err := w.seg.idx.seal(w.maxTS, indexPoint{w.end - w.seg.base, w.size})
	if err == nil {
		err = errors.Join(w.file.Sync(), w.seg.idx.sync())
	}
	if err != nil {
		w.fault = err
		return err
	}
	w.seg.size.Store(w.size)
	w.seg.sealedAt.Store(w.end)
	w.seg.maxTS.Store(w.maxTS)
	w.seg.maxTSKnown.Store(true)
	return nil
}

func (w *segmentWriter) close() error {
	err := w.seg.idx.close()
	if w.file != nil {
		err = errors.Join(err, w.file.Close())
		w.file = nil
	}
	return err
}

// newSegmentWriter makes the files of a segment that begins at base and will end
// before end.
func (l *Log) newSegmentWriter(base, end int64) (*segmentWriter, error) {
	seg := newCachedSegment(l.fs, l.dir, base, l.files)
	seg.logPath += cleanedSuffix
	seg.idx.offsets.path += cleanedSuffix
	seg.idx.times.path += cleanedSuffix
	w := &segmentWriter{seg: seg, interval: l.config().IndexIntervalBytes, next: base, end: end, maxTS: noTimestamp}
	for _, e := range []*entryFile{&seg.idx.offsets, &seg.idx.times} {
		if w.fault = e.create(); w.fault != nil {
			return w, w.fault
		}
	}
	f, err := l.fs.Create(seg.logPath)
	if err != nil {
		w.fault = err
		return w, err
	}
	w.file = f
	return w, nil
}

// replaceSegments writes one segment that takes the place of old, which are
// successive, sealed and synced. fill writes its batches: those of old that are to
// stay, in order. The log goes on meanwhile; readers see the old segments until the
// new one is durable, and every batch once. When fill fails, nothing has changed.
//
// One replacement of a log may run at a time.
//
// Errors: what fill returned; errSegmentsChanged; *NoSpaceError: nothing was done;
// *FailedError, ErrClosed.
func (l *Log) replaceSegments(old []*segment, fill func(w *segmentWriter) error) error {
	truncations := l.cleaning.truncations.Load()
	base, end := old[0].base, old[len(old)-1].sealedAt.Load()
	if len(old) > 1 && end-1-base > math.MaxInt32 {
		return fmt.Errorf("replace segments: offsets from %d up to %d do not fit in one segment", base, end)
	}
	w, err := l.newSegmentWriter(base, end)
	if err == nil {
		err = fill(w)
	}
	if err == nil {
		err = w.finish()
	}
	err = errors.Join(err, w.close())
	if err == nil {
		err = l.commitReplacement(old, w, truncations)
	}
	if err == nil || errors.Is(err, ErrFailed) {
		return err
	}
	switch {
	case isNoSpace(w.fault):
		err = &NoSpaceError{Dir: l.dir, Op: "replace segments", Err: w.fault}
	case w.fault != nil:
		return l.fail("replace segments", w.fault)
	}
	return errors.Join(err, l.abandon(w))
}

// abandon removes what was written for nothing. A crash leaves that to recovery.
func (l *Log) abandon(w *segmentWriter) error {
	var errs []error
	for _, path := range []string{w.seg.logPath, w.seg.idx.offsets.path, w.seg.idx.times.path} {
		if err := l.fs.Remove(path); err != nil && !isNotExist(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// commitReplacement is steps 2 to 4.
func (l *Log) commitReplacement(old []*segment, w *segmentWriter, truncations int64) error {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	if err := l.replaceable(old, truncations); err != nil {
		return err
	}
	if err := l.updateMarks(func(m *marks) { m.gapsBelow = max(m.gapsBelow, w.end) }); err != nil {
		return err
	}
	swap := swapPath(l.dir, w.seg.base, w.end)
	err := l.fs.Rename(w.seg.logPath, swap)
	if err == nil {
		err = l.fs.SyncDir(l.dir)
	}
	if err != nil {
		return l.fail("replace segments", err)
	}
	w.seg.logPath = swap
	if err := l.install(old, w.seg); err != nil {
		return l.fail("replace segments", err)
	}
	if err := removeReplaced(l.fs, old); err != nil {
		return l.fail("replace segments", err)
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return l.fail("replace segments", err)
	}
	if err := l.takeNames(w.seg); err != nil {
		return l.fail("replace segments", err)
	}
	return nil
}

func swapPath(dir string, base, end int64) string {
	return filepath.Join(dir, fmt.Sprintf("%0*d-%0*d%s", offsetDigits, base, offsetDigits, end, swapSuffix))
}

// replaceable checks that segments may be replaced now: they are in their place, and
// the log was truncated so many times before. The caller holds changeMu.
func (l *Log) replaceable(old []*segment, truncations int64) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if err := l.usable(); err != nil {
		return err
	}
	i := 0
	for i < len(l.segs) && l.segs[i] != old[0] {
		i++
	}
	if len(l.segs)-i <= len(old) || l.cleaning.truncations.Load() != truncations {
		return errSegmentsChanged
	}
	for n, seg := range old {
		if l.segs[i+n] != seg {
			return errSegmentsChanged
		}
	}
	if end := old[len(old)-1].sealedAt.Load(); end > l.durable {
		return fmt.Errorf("replace segments: offsets up to %d are durable and the segments reach to %d; sync first", l.durable, end)
	}
	return nil
}

// install shows the new segment to readers in place of the old ones, whose files
// are closed.
func (l *Log) install(old []*segment, seg *segment) error {
	defer l.holdStill()()
	l.mu.Lock()
	segs := make([]*segment, 0, len(l.segs)+1)
	for _, s := range l.segs {
		switch {
		case s == old[0]:
			segs = append(segs, seg)
		case s.base < seg.base || s.base >= seg.sealedAt.Load():
			segs = append(segs, s)
		}
	}
	l.segs = segs
	// What they hold was durable; those sealed since the last Sync need no other.
	l.unsynced = slices.DeleteFunc(l.unsynced, func(s *segment) bool { return slices.Contains(old, s) })
	l.mu.Unlock()
	var errs []error
	for _, s := range old {
		errs = append(errs, s.detach())
	}
	return errors.Join(errs...)
}

// removeReplaced deletes the files of replaced segments, but not the first .log,
// over which the new one will be renamed.
func removeReplaced(fsys vfs.FS, old []*segment) error {
	for i, s := range old {
		paths := []string{s.idx.offsets.path, s.idx.times.path}
		if i > 0 {
			paths = append(paths, s.logPath)
		}
		for _, path := range paths {
			if err := fsys.Remove(path); err != nil && !isNotExist(err) {
				return err
			}
		}
	}
	return nil
}

// takeNames gives the new segment's files their final names, while nobody opens
// them.
func (l *Log) takeNames(seg *segment) error {
	l.filesMu.Lock()
	defer l.filesMu.Unlock()
	for _, f := range []struct {
		path   *string
		suffix string
	}{
		{&seg.logPath, logSuffix},
		{&seg.idx.offsets.path, indexSuffix},
		{&seg.idx.times.path, timeIndexSuffix},
	} {
		to := segmentPath(l.dir, seg.base, f.suffix)
		if err := l.fs.Rename(*f.path, to); err != nil {
			return err
		}
		*f.path = to
	}
	return l.fs.SyncDir(l.dir)
}

// finishReplacements brings to an end what a crash left of replacements, and of
// segments that waited to be removed. It changes nothing that a reader could still
// need: a .swap file is durable as a whole. It takes the names in the folder and
// returns those that are there afterwards.
func (l *Log) finishReplacements(entries []vfs.DirEntry) ([]vfs.DirEntry, error) {
	changed := false
	for _, e := range entries {
		if strings.HasSuffix(e.Name, cleanedSuffix) || strings.HasSuffix(e.Name, deletedSuffix) {
			changed = true
			if err := l.fs.Remove(joinPath(l.dir, e.Name)); err != nil {
				return nil, err
			}
		}
	}
	for _, e := range entries {
		if base, end, ok := parseSwap(e.Name); ok {
			changed = true
			if err := l.finishSwap(e.Name, base, end); err != nil {
				return nil, err
			}
		}
	}
	if !changed {
		return entries, nil
	}
	return l.fs.ReadDir(l.dir)
}

// parseSwap reads the name of a .swap file.
func parseSwap(name string) (base, end int64, ok bool) {
	digits, isSwap := strings.CutSuffix(name, swapSuffix)
	if !isSwap || len(digits) != 2*offsetDigits+1 || digits[offsetDigits] != '-' {
		return 0, 0, false
	}
	base, err1 := strconv.ParseInt(digits[:offsetDigits], 10, 64)
	end, err2 := strconv.ParseInt(digits[offsetDigits+1:], 10, 64)
	return base, end, err1 == nil && err2 == nil && base >= 0 && end > base
}

func (l *Log) finishSwap(name string, base, end int64) error {
	bases, err := listSegments(l.fs, l.dir)
	if err != nil {
		return err
	}
	replaced := []*segment{newSegment(l.fs, l.dir, base)}
	for _, b := range bases {
		if b > base && b < end {
			replaced = append(replaced, newSegment(l.fs, l.dir, b))
		}
	}
	if err := removeReplaced(l.fs, replaced); err != nil {
		return err
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	if err := l.fs.Rename(joinPath(l.dir, name), segmentPath(l.dir, base, logSuffix)); err != nil {
		return err
	}
	return l.fs.SyncDir(l.dir)
}
