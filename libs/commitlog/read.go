package commitlog

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/leat-io/leat/libs/record"
)

// view is what a reader works on: a state of the log that stays true while it does.
type view struct {
	segs      []*segment
	bases     []int64 // of segs; nil when not at hand
	start     int64
	end       int64
	gapsBelow int64
	epochs    epochCache
}

// begin takes a view. The caller holds filesMu for reading.
func (l *Log) begin() (view, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return view{}, fmt.Errorf("%s: %w", l.dir, ErrClosed)
	}
	return view{segs: l.segs, bases: l.segmentBases(), start: l.marks.start, end: l.end, gapsBelow: l.marks.gapsBelow, epochs: l.epochs}, nil
}

// baseTable has the bases of a log's segments side by side: a search among thousands
// of segments would wait for memory at each step if it had to look into them.
type baseTable struct {
	segs  []*segment
	last  *segment
	bases []int64
}

// segmentBases returns the bases of l.segs. The caller holds mu, for reading at least.
func (l *Log) segmentBases() []int64 {
	n := len(l.segs)
	t := l.bases.Load()
	if t == nil || len(t.segs) != n || &t.segs[0] != &l.segs[0] || t.last != l.segs[n-1] {
		t = &baseTable{segs: l.segs, last: l.segs[n-1], bases: make([]int64, n)}
		for i, seg := range l.segs {
			t.bases[i] = seg.base
		}
		l.bases.Store(t)
	}
	return t.bases
}

// segmentOf is the index of the last segment that begins at or below offset.
func (v *view) segmentOf(offset int64) int {
	if v.bases != nil {
		i, found := slices.BinarySearch(v.bases, offset)
		if found {
			return i
		}
		return i - 1
	}
	return sort.Search(len(v.segs), func(i int) bool { return v.segs[i].base > offset }) - 1
}

// Read reads whole batches: first the one that contains offset or, where compaction
// took that one out, the next one, whatever its size; then as many as follow in the
// same segment and fit in maxBytes. Batches that do not lie wholly below upTo are
// left out. With nothing to read, Data is empty and NextOffset is offset, or the
// end of the gap that offset lies in.
//
// alloc is called at most once, with the number of bytes wanted, and returns a
// slice of at least that length that the caller owns; Data is the beginning of it.
//
// An offset below the log's start or above its end is *OffsetOutOfRangeError.
// Damage met on the way is *CorruptError. Checksums are not looked at: whoever
// uses the records does that. Base offsets and leader epochs are, since no checksum
// covers them.
func (l *Log) Read(offset, upTo int64, maxBytes int, alloc func(n int) []byte) (ReadResult, error) {
	none := ReadResult{FirstBatchBase: -1, NextOffset: offset}
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	v, err := l.begin()
	if err != nil {
		return none, err
	}
	if offset < v.start || offset > v.end {
		return none, &OffsetOutOfRangeError{Offset: offset, Start: v.start, End: v.end}
	}
	upTo = min(upTo, v.end)
	if offset >= upTo {
		return none, nil
	}
	buf := lookupBuffers.Get().(*[]byte)
	defer lookupBuffers.Put(buf)
	i := v.segmentOf(offset)
	if pos, ok := l.cursors.find(offset, v.segs[i]); ok {
		if h, ok := v.segs[i].headerAt(pos, (*buf)[:record.HeaderSize]); ok && h.BaseOffset == offset {
			return l.readFrom(&v, v.segs[i], pos, &h, offset, upTo, maxBytes, alloc)
		}
	}
	interval := l.config().IndexIntervalBytes
	for ; ; i++ {
		pos, h, found, err := v.segs[i].find(offset, interval, v.gapsBelow, *buf)
		if err != nil {
			return none, err
		}
		if found {
			return l.readFrom(&v, v.segs[i], pos, &h, offset, upTo, maxBytes, alloc)
		}
		if i+1 == len(v.segs) {
			return none, v.segs[i].endsEarly(offset)
		}
		if ok, err := v.segs[i].endsInGap(v.gapsBelow, interval); err != nil || !ok {
			return none, errors.Join(err, v.segs[i].endsEarly(offset))
		}
		// Nothing is left of what lay here.
		none.NextOffset = min(upTo, v.segs[i+1].base)
		if v.segs[i+1].base >= upTo {
			return none, nil
		}
	}
}

// verify checks the checksum of a batch whose header was read at pos.
func (s *segment) verify(pos int64, h *record.Header) error {
	f, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	sc := newScanner(f, s.size.Load(), make([]byte, lookupBuffer))
	if err := sc.verify(pos, h); err != nil {
		return s.fault(pos, h.BaseOffset, err)
	}
	return nil
}

// headerAt reads the header of the batch at pos, if there is one.
func (s *segment) headerAt(pos int64, buf []byte) (record.Header, bool) {
	f, err := s.acquire()
	if err != nil {
		return record.Header{}, false
	}
	defer s.release()
	sc := newScanner(f, s.size.Load(), buf)
	h, err := sc.header(pos)
	return h, err == nil
}

// endsEarly says that a segment turned out to end before an offset that, by the
// bases, it should hold.
func (s *segment) endsEarly(offset int64) error {
	return &CorruptError{Path: s.path(), Position: s.size.Load(), Offset: offset, Detail: "the file ends before this offset, although the log goes on"}
}

// readFrom reads from the batch at pos on, whose header is h.
func (l *Log) readFrom(v *view, seg *segment, pos int64, h *record.Header, offset, upTo int64, maxBytes int, alloc func(n int) []byte) (ReadResult, error) {
	res := ReadResult{FirstBatchBase: -1, NextOffset: offset}
	if h.NextOffset() > v.end {
		return res, seg.fault(pos, h.BaseOffset, &record.CorruptError{Detail: fmt.Sprintf("the batch reaches to offset %d and the log ends at %d", h.NextOffset(), v.end)})
	}
	if h.NextOffset() > upTo {
		if h.BaseOffset < upTo {
			// It is rare that a batch reaches across. One that merely says so would have
			// its readers wait for ever.
			if err := seg.verify(pos, h); err != nil {
				return res, err
			}
		}
		// Between offset and the batch there may be a gap.
		res.NextOffset = max(offset, min(upTo, h.BaseOffset))
		return res, nil
	}
	n := max(h.Size(), int(min(int64(maxBytes), seg.size.Load()-pos)))
	buf := alloc(n)
	if len(buf) < n {
		return res, fmt.Errorf("read %s: alloc gave %d bytes where %d were asked for", seg.path(), len(buf), n)
	}
	buf = buf[:n]
	f, err := seg.acquire()
	if err != nil {
		return res, err
	}
	defer seg.release()
	if got, err := f.ReadAt(buf, pos); got < n {
		if errors.Is(err, io.EOF) {
			err = &CorruptError{Path: seg.path(), Position: pos + int64(got), Offset: h.BaseOffset, Detail: "the file has become shorter"}
		}
		return res, err
	}
	used := 0
	next := h.BaseOffset
	for used+record.HeaderSize <= n {
		bh, err := parseHeader(buf[used:])
		if err == nil && (bh.BaseOffset < upTo || bh.BaseOffset < next) { // the others may be newer than the view
			err = v.check(&bh, next)
		}
		if err != nil {
			return res, seg.fault(pos+int64(used), next, err)
		}
		if bh.Size() > n-used || bh.NextOffset() > upTo {
			break
		}
		used += bh.Size()
		next = bh.NextOffset()
	}
	if used == 0 {
		return res, seg.fault(pos, next, &record.CorruptError{Detail: "the batch changed while it was read"})
	}
	l.cursors.put(cursor{offset: next, seg: seg, pos: pos + int64(used)})
	return ReadResult{Data: buf[:used], FirstBatchBase: h.BaseOffset, NextOffset: next}, nil
}

// check checks what no checksum of a batch covers; next is where the one before ends.
func (v *view) check(h *record.Header, next int64) error {
	if err := checkPlace(h.BaseOffset, next, v.gapsBelow); err != nil {
		return err
	}
	return checkEpoch(h, v.epochs)
}

// checkEpoch compares a batch's leader epoch with the log's list of them.
func checkEpoch(h *record.Header, epochs epochCache) error {
	if want := epochs.at(h.BaseOffset); h.PartitionLeaderEpoch != want {
		return &record.CorruptError{Detail: fmt.Sprintf("the leader epoch is %d, and the checkpoint says %d", h.PartitionLeaderEpoch, want)}
	}
	return nil
}

// cursor is where a reader left off.
type cursor struct {
	offset int64
	seg    *segment
	pos    int64
}

// cursors remembers where the last few reads ended, because most reads begin where
// one ended: they need no lookup. A wrong cursor costs nothing but time, as the
// header found there is checked.
type cursors struct {
	mu   sync.Mutex
	ring [8]cursor
	next int
}

func (c *cursors) find(offset int64, seg *segment) (pos int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.ring {
		if r := &c.ring[i]; r.offset == offset && r.seg == seg {
			return r.pos, true
		}
	}
	return 0, false
}

func (c *cursors) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring = [len(c.ring)]cursor{}
}

func (c *cursors) put(r cursor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring[c.next] = r
	c.next = (c.next + 1) % len(c.ring)
}

// Filler makes a batch without records for offsets [from, to) of a gap that compaction has
// left at the log's end: a Read from there up to the end gives nothing, and goes on at to.
// A copy of the log that has no batch for these offsets stays behind the log's end until
// something is appended. It returns where the filler ends: below to where no batch spans
// the gap.
func (l *Log) Filler(from, to int64) (batch []byte, next int64) {
	next = min(to, from+math.MaxInt32)
	return record.BuildFiller(from, next, max(l.EpochAt(next-1), 0)), next
}
