package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// File names of a segment: its base offset in 20 digits and one of these.
const (
	logSuffix       = ".log"
	indexSuffix     = ".index"
	timeIndexSuffix = ".timeindex"
	offsetDigits    = 20
)

func segmentPath(dir string, base int64, suffix string) string {
	return filepath.Join(dir, fmt.Sprintf("%0*d%s", offsetDigits, base, suffix))
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// listSegments finds the base offsets of the segments in a folder, in order.
func listSegments(fsys vfs.FS, dir string) ([]int64, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	return segmentBases(entries), nil
}

// segmentBases picks the base offsets of segments out of the names in a folder.
func segmentBases(entries []vfs.DirEntry) []int64 {
	var bases []int64
	for _, e := range entries {
		digits, isLog := strings.CutSuffix(e.Name, logSuffix)
		if !isLog || e.IsDir || len(digits) != offsetDigits {
			continue
		}
		if base, err := strconv.ParseInt(digits, 10, 64); err == nil && base >= 0 {
			bases = append(bases, base)
		}
	}
	sort.Slice(bases, func(i, j int) bool { return bases[i] < bases[j] })
	return bases
}

const (
	unknownSize = -1 // size of a segment that was not opened yet
	notSealed   = -1 // sealedAt of the active segment
	// maxRebuilds bounds how often one lookup makes an index anew. More than once
	// can only be a disk that does not keep what is written.
	maxRebuilds = 2
)

// segment is one .log file with its indexes. Only the last segment of a log grows.
type segment struct {
	// What a lookup needs comes first, so that it lies together in memory.
	base     int64
	idx      *segIndex
	file     atomic.Pointer[vfs.File]
	size     atomic.Int64 // bytes that readers may see
	sealedAt atomic.Int64 // offset the segment ends before; notSealed while it grows

	cache    *FileCache
	prev     *segment // in the cache's ring; cache.mu guards these four
	next     *segment
	pins     int
	detached bool
	// writes counts the writes to the .log, synced those that a sync covered.
	writes atomic.Int64
	synced atomic.Int64
	// readOnly keeps the .log of a log that nobody has open from being opened for
	// writing.
	readOnly bool

	fs  vfs.FS
	dir string
	// logPath is the .log; Log.filesMu guards it and the indexes' paths, as they
	// change when the segment takes the place of others.
	logPath string

	mu         sync.Mutex   // guards opening
	maxTS      atomic.Int64 // greatest timestamp; noTimestamp when empty
	maxTSKnown atomic.Bool
}

func newSegment(fsys vfs.FS, dir string, base int64) *segment {
	return newCachedSegment(fsys, dir, base, NewFileCache(DefaultOpenFiles))
}

func newCachedSegment(fsys vfs.FS, dir string, base int64, cache *FileCache) *segment {
	s := &segment{
		fs: fsys, dir: dir, base: base, idx: newSegIndex(fsys, dir, base), cache: cache,
		logPath: segmentPath(dir, base, logSuffix),
	}
	s.idx.offsets.cache, s.idx.times.cache = cache, cache
	s.size.Store(unknownSize)
	s.sealedAt.Store(notSealed)
	s.maxTS.Store(noTimestamp)
	return s
}

// createSegment makes the files of an empty segment. Their names are not durable
// before the directory is synced.
func createSegment(fsys vfs.FS, dir string, base int64, cache *FileCache) (_ *segment, err error) {
	s := newCachedSegment(fsys, dir, base, cache)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for _, e := range []*entryFile{&s.idx.offsets, &s.idx.times} {
		if err := e.create(); err != nil {
			return nil, err
		}
	}
	f, err := retryWithFiles(cache, func() (vfs.File, error) { return fsys.Create(s.path()) })
	if err != nil {
		return nil, err
	}
	s.file.Store(&f)
	cache.opening()
	s.size.Store(0)
	s.maxTSKnown.Store(true)
	return s, nil
}

func (s *segment) path() string { return s.logPath }

// acquire opens the .log, if need be, for writing too if this is the active segment,
// and learns its size. The file stays open until release.
func (s *segment) acquire() (vfs.File, error) {
	s.pin()
	f, err := s.open()
	if err != nil {
		s.unpin()
	}
	return f, err
}

// release ends what acquire began.
func (s *segment) release() { s.unpin() }

// open is acquire for who has the segment pinned already.
func (s *segment) open() (vfs.File, error) {
	if f := s.file.Load(); f != nil {
		return *f, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.file.Load(); f != nil {
		return *f, nil
	}
	open := s.fs.OpenRead
	if s.sealedAt.Load() == notSealed && !s.readOnly {
		open = s.fs.Open
	}
	f, err := retryWithFiles(s.cache, func() (vfs.File, error) { return open(s.path()) })
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if s.size.Load() == unknownSize {
		s.size.Store(size)
	}
	s.file.Store(&f)
	s.cache.opening()
	return f, nil
}

// length is the size in bytes, without opening a file that is not open.
func (s *segment) length() (int64, error) {
	if n := s.size.Load(); n != unknownSize {
		return n, nil
	}
	info, err := s.fs.Stat(s.path())
	if err == nil && s.sealedAt.Load() != notSealed {
		s.size.CompareAndSwap(unknownSize, info.Size)
	}
	return info.Size, err
}

// checkLength compares the length of a sealed segment that is not to be read with
// what its index says. An index that does not know has nothing to say.
func (s *segment) checkLength() error {
	size, err := s.length()
	if err != nil {
		return err
	}
	s.pin()
	defer s.unpin()
	_, end, err := s.idx.end()
	if err != nil {
		return ignoreBadIndex(err)
	}
	if end.rel == s.endRel() && end.pos > size {
		return &CorruptError{
			Path: s.path(), Position: size, Offset: -1,
			Detail: fmt.Sprintf("the file has %d bytes and had %d when the segment was sealed", size, end.pos),
		}
	}
	return nil
}

// closeFiles closes what is open. The caller knows that nobody uses it.
func (s *segment) closeFiles() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.idx.close()
	if f := s.file.Swap(nil); f != nil {
		s.cache.open.Add(-1)
		err = errors.Join(err, (*f).Close())
	}
	return err
}

// fault dresses an error met at a byte of the segment.
func (s *segment) fault(pos, offset int64, err error) error {
	if !isBatchFault(err) {
		return err
	}
	return &CorruptError{Path: s.path(), Position: pos, Offset: offset, Detail: "a batch that was durable cannot be read", Err: err}
}

// find returns the first batch whose last offset is at or above offset, which is
// not below the segment's base. found is false when the segment ends before. Gaps
// between batches are believed below gapsBelow only.
func (s *segment) find(offset, interval, gapsBelow int64, buf []byte) (pos int64, h record.Header, found bool, err error) {
	f, err := s.acquire()
	if err != nil {
		return 0, h, false, err
	}
	defer s.release()
	rel := min(offset-s.base, math.MaxUint32)
	for try := 0; ; try++ {
		p, err := s.idx.floor(rel)
		if err == nil {
			pos, h, found, err = s.scanTo(f, p, offset, interval, gapsBelow, buf)
		}
		if !errors.Is(err, errBadIndex) {
			return pos, h, found, err
		}
		if try == maxRebuilds {
			return 0, h, false, s.indexFault()
		}
		if err := s.rebuild(interval); err != nil {
			return 0, h, false, err
		}
	}
}

// scanTo reads headers from a point of the index on. A point that is wrong, or
// farther away than an index with all its entries would leave it, is errBadIndex,
// unless the index was made anew already.
func (s *segment) scanTo(f vfs.File, p indexPoint, offset, interval, gapsBelow int64, buf []byte) (int64, record.Header, bool, error) {
	sc := newScanner(f, s.size.Load(), buf)
	rebuilt := s.idx.madeAnew()
	next := s.base + p.rel
	for pos := p.pos; pos < sc.size; {
		h, err := sc.header(pos)
		if err == nil {
			err = checkPlace(h.BaseOffset, next, gapsBelow)
		}
		if pos == p.pos && pos > 0 && !rebuilt && (err != nil || h.BaseOffset != next) {
			return 0, h, false, errBadIndex
		}
		if err != nil {
			return 0, h, false, s.fault(pos, next, err)
		}
		if next = h.NextOffset(); next > offset {
			// Behind a gap the nearest point may be that far away.
			if !rebuilt && pos > p.pos && pos-p.pos >= interval && h.BaseOffset <= offset {
				return 0, h, false, errBadIndex
			}
			return pos, h, true, nil
		}
		pos += int64(h.Size())
	}
	if p.pos > sc.size && !rebuilt {
		return 0, record.Header{}, false, errBadIndex
	}
	return 0, record.Header{}, false, nil
}

// checkPlace checks a batch's base offset, which no checksum covers: it is next, the
// end of the batch before, or lies behind a gap that compaction may have left.
func checkPlace(base, next, gapsBelow int64) error {
	switch {
	case base == next || base > next && base <= gapsBelow:
		return nil
	case next < gapsBelow:
		return &record.CorruptError{Detail: fmt.Sprintf("the base offset is %d where one from %d to %d belongs", base, next, gapsBelow)}
	}
	return &record.CorruptError{Detail: fmt.Sprintf("the base offset is %d where %d belongs", base, next)}
}

func (s *segment) indexFault() error {
	return &CorruptError{Path: s.idx.offsets.path, Offset: -1, Detail: "the index was made anew and still cannot be read back"}
}

// rebuild makes both indexes anew from the batches' headers.
func (s *segment) rebuild(interval int64) error {
	f, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	s.idx.mu.Lock()
	defer s.idx.mu.Unlock()
	if err := s.idx.keepLocked(0); err != nil {
		return err
	}
	s.idx.since = 0
	sc := newScanner(f, s.size.Load(), make([]byte, scanBuffer))
	maxTS, next, pos := int64(noTimestamp), s.base, int64(0)
	for pos < sc.size {
		h, err := sc.header(pos)
		if err == nil {
			err = checkPlace(h.BaseOffset, next, math.MaxInt64)
		}
		if err != nil {
			return s.fault(pos, next, err)
		}
		if err := s.idx.noteLocked(indexPoint{h.BaseOffset - s.base, pos}, int64(h.Size()), maxTS, interval); err != nil {
			return err
		}
		maxTS, next = max(maxTS, h.MaxTimestamp), h.NextOffset()
		pos += int64(h.Size())
	}
	s.idx.rebuilt = true
	end := s.sealedAt.Load()
	if end == notSealed {
		return nil
	}
	s.maxTS.Store(maxTS)
	s.maxTSKnown.Store(true)
	return s.idx.sealLocked(maxTS, indexPoint{end - s.base, pos})
}

// endRel is where a sealed segment ends, as its index says it.
func (s *segment) endRel() int64 { return min(s.sealedAt.Load()-s.base, math.MaxUint32) }

// endsInGap tells a sealed segment whose last batches were compacted away from one
// whose file has lost its end. An index that was made anew knows no better than the
// file.
func (s *segment) endsInGap(gapsBelow, interval int64) (bool, error) {
	end := s.sealedAt.Load()
	if end == notSealed || end > gapsBelow {
		return false, nil
	}
	s.pin()
	defer s.unpin()
	if _, err := s.maxTimestamp(interval); err != nil { // makes the index anew if it does not fit
		return false, err
	}
	_, p, err := s.idx.end()
	if err != nil {
		return false, ignoreBadIndex(err)
	}
	return p.rel == s.endRel() && p.pos == s.size.Load(), nil
}

// maxTimestamp is the greatest timestamp of the segment.
func (s *segment) maxTimestamp(interval int64) (int64, error) {
	if s.maxTSKnown.Load() {
		return s.maxTS.Load(), nil
	}
	s.pin()
	defer s.unpin()
	ts, end, err := s.idx.end()
	if err == nil && end.rel == s.endRel() {
		s.maxTS.Store(ts)
		s.maxTSKnown.Store(true)
		return ts, nil
	}
	if err != nil && !errors.Is(err, errBadIndex) {
		return 0, err
	}
	if err := s.rebuild(interval); err != nil {
		return 0, err
	}
	return s.maxTS.Load(), nil
}
