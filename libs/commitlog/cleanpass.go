package commitlog

import (
	"errors"
	"io"
	"slices"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// cleanReadBuffer is what a pass reads at once, if batches are no larger.
const cleanReadBuffer = 512 << 10

// eachBatch reads a segment from a batch that begins at or below an offset to its
// end, checks every checksum, and calls fn with whole batches. They are valid
// during the call. io.EOF from fn ends it early and is no error.
func (c *cleaning) eachBatch(seg *segment, from int64, fn func(h *record.Header, batch []byte) error) (err error) {
	f, pos, size, err := c.openAt(seg, from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if c.buf == nil {
		c.buf = make([]byte, cleanReadBuffer)
	}
	next := seg.base
	for have := c.buf[:0]; pos < size; {
		if have, err = c.fill(f, have, pos, size); err != nil {
			return err
		}
		h, batch, err := splitBatch(have, next)
		if err != nil {
			return seg.fault(pos, next, err)
		}
		if err := fn(&h, batch); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return seg.fault(pos, h.BaseOffset, err)
		}
		have, pos, next = have[len(batch):], pos+int64(len(batch)), h.NextOffset()
	}
	return nil
}

// openAt opens a descriptor of its own, which stays good whatever becomes of the
// segment, and finds where to begin.
func (c *cleaning) openAt(seg *segment, from int64) (f vfs.File, pos, size int64, err error) {
	l := c.l
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	if err := c.usable(); err != nil {
		return nil, 0, 0, err
	}
	if from > seg.base {
		buf := lookupBuffers.Get().(*[]byte)
		defer lookupBuffers.Put(buf)
		at, _, found, err := seg.find(from, l.config().IndexIntervalBytes, l.currentMarks().gapsBelow, *buf)
		if err != nil {
			return nil, 0, 0, err
		}
		if pos = at; !found {
			pos = int64(1) << 62 // there is nothing at or above
		}
	}
	f, err = l.fs.OpenRead(seg.path())
	if isNotExist(err) && !c.inPlace(seg) {
		err = errSegmentsChanged
	}
	if err != nil {
		return nil, 0, 0, err
	}
	// The active segment's file may hold part of a batch that is being written.
	if size = seg.size.Load(); size == unknownSize {
		if size, err = f.Size(); err != nil {
			return nil, 0, 0, errors.Join(err, f.Close())
		}
	}
	return f, pos, size, nil
}

// inPlace reports whether a segment is still part of the log.
func (c *cleaning) inPlace(seg *segment) bool {
	c.l.mu.RLock()
	defer c.l.mu.RUnlock()
	return slices.Contains(c.l.segs, seg)
}

// fill makes sure that have, the bytes from pos on, begins with a whole batch if
// the file has one.
func (c *cleaning) fill(f vfs.File, have []byte, pos, size int64) ([]byte, error) {
	for {
		want := record.HeaderSize
		if len(have) >= want {
			h, err := record.ParseHeader(have)
			if err != nil {
				return have, nil // the caller will see what is wrong
			}
			want = h.Size()
		}
		if len(have) >= want || int64(len(have)) >= size-pos {
			return have, nil
		}
		if int64(want) > size-pos {
			want = int(size - pos)
		}
		if cap(c.buf) < want {
			// What was read stays where it is.
			c.buf = make([]byte, want+want/4)
		}
		n := copy(c.buf[:cap(c.buf)], have)
		end := int(min(int64(cap(c.buf)), size-pos))
		got, err := f.ReadAt(c.buf[n:end], pos+int64(n))
		if n+got < want && err != nil && !errors.Is(err, io.EOF) {
			return have, err
		}
		c.report.BytesRead += int64(got)
		have = c.buf[:n+got]
		if err := c.pace(got); err != nil {
			return have, err
		}
		if n+got < want {
			return have, nil
		}
	}
}

// splitBatch takes the first batch of b, whole and with the right checksum.
func splitBatch(b []byte, next int64) (record.Header, []byte, error) {
	h, err := parseHeader(b)
	if err != nil {
		return h, nil, err
	}
	if h.Size() > len(b) {
		return h, nil, &record.CorruptError{Position: len(b), Detail: "the file ends within the batch"}
	}
	b = b[:h.Size():h.Size()]
	if h.BaseOffset < next {
		return h, nil, &record.CorruptError{Detail: "the base offset is below the end of the batch before"}
	}
	if record.Checksum(b) != h.CRC {
		return h, nil, &record.CorruptError{Position: record.ChecksumStart, Detail: "the checksum does not match"}
	}
	return h, b, nil
}

// mapKeys notes the newest offset of each key from the first dirty offset on, until
// the map is full or the limit is reached.
func (c *cleaning) mapKeys(segs []*segment, from, limit int64) error {
	c.latest = max(from, limit) - 1
	if from > limit {
		c.latest = limit - 1
	}
	// There are no more keys than offsets.
	entries := min(mapEntries(c.o.DedupeBufferBytes), max(limit-from, 1))
	c.offsets = newOffsetMap(entries, c.offsets)
	c.report.MapBytes = max(c.report.MapBytes, int64(len(c.offsets.slots))*mapSlotBytes)
	for _, seg := range segs {
		if seg.sealedAt.Load() <= from {
			continue
		}
		err := c.eachBatch(seg, from, func(h *record.Header, batch []byte) error {
			full, err := c.mapBatch(h, batch, from)
			if err == nil && full {
				return errMapFull
			}
			return err
		})
		if errors.Is(err, errMapFull) {
			break
		}
		if err != nil {
			return err
		}
	}
	c.report.Keys += int64(c.offsets.count)
	return nil
}

// errMapFull says that the map of keys takes no more. It never leaves the package.
var errMapFull = errors.New("the map of keys is full")

func (c *cleaning) mapBatch(h *record.Header, batch []byte, from int64) (full bool, err error) {
	if h.Attributes.Control() || h.LastOffset() < from {
		return false, nil
	}
	if err := c.readKeys(batch); err != nil {
		return false, err
	}
	for i := range c.keys {
		k := &c.keys[i]
		if k.offset < from || k.null {
			continue
		}
		if !c.offsets.put(c.hashes[i], k.offset) {
			c.latest = k.offset - 1
			return true, nil
		}
	}
	return false, nil
}

// keyOf is what the cleaner needs of a record, beside the hash of its key.
type keyOf struct {
	offset    int64
	null      bool // of the key
	tombstone bool
}

// readKeys reads a batch's records into keys and hashes, and has their slots of the
// map at hand.
func (c *cleaning) readKeys(batch []byte) error {
	if err := c.reader.Reset(batch); err != nil {
		return err
	}
	c.keys, c.hashes = c.keys[:0], c.hashes[:0]
	for c.reader.Next() {
		r := c.reader.Record()
		c.keys = append(c.keys, keyOf{r.Offset, r.Key == nil, r.Value == nil})
		c.hashes = append(c.hashes, hashKey(r.Key))
	}
	c.touched += c.offsets.touch(c.hashes)
	return c.reader.Err()
}

// cleanGroup makes one segment out of a group, unless the group is one segment that
// would stay as it is.
func (c *cleaning) cleanGroup(group []*segment) error {
	c.keepFrom = c.askKeepFrom()
	if len(group) == 1 {
		same, err := c.unchanged(group[0])
		if err != nil || same {
			return err
		}
	}
	before := c.report // what a group that was taken away would have counted
	horizon := c.horizon
	removed := int64(-1)
	was, err := totalLength(group)
	if err != nil {
		return err
	}
	var size int64
	err = c.l.replaceSegments(group, func(w *segmentWriter) error {
		if c.truncations != c.l.cleaning.truncations.Load() {
			return errSegmentsChanged
		}
		for _, seg := range group {
			err := c.eachBatch(seg, seg.base, func(h *record.Header, batch []byte) error {
				v, err := c.judge(h, batch)
				if err != nil {
					return err
				}
				removed = max(removed, v.tombstone)
				out, err := c.rewrite(batch, &v)
				if err != nil || out == nil {
					return err
				}
				c.report.BytesWritten += int64(len(out))
				return errors.Join(w.append(out), c.pace(len(out)))
			})
			if err != nil {
				return err
			}
		}
		size = w.size
		// Before they are gone it must be known, for followers that lag, that they are.
		err := c.l.updateMarks(func(m *marks) { m.tombstonesBelow = max(m.tombstonesBelow, removed+1) })
		if err == nil && removed >= 0 && removed >= c.askKeepFrom() {
			return errSegmentsChanged // somebody began to copy meanwhile, and was not warned
		}
		return err
	})
	if err != nil {
		before.BytesRead, before.BytesWritten = c.report.BytesRead, c.report.BytesWritten
		c.report, c.horizon = before, horizon
		return err
	}
	c.report.BytesFreed += was - size
	c.report.SegmentsBefore += len(group)
	c.report.SegmentsAfter++
	return nil
}

// unchanged reports whether a segment would stay as it is, reading no farther than
// to the first batch that would not.
func (c *cleaning) unchanged(seg *segment) (bool, error) {
	before, horizon := c.report, c.horizon
	same := true
	err := c.eachBatch(seg, seg.base, func(h *record.Header, batch []byte) error {
		v, err := c.judge(h, batch)
		if err == nil && v.fate != asIs {
			same, err = false, io.EOF
		}
		return err
	})
	if !same || err != nil {
		before.BytesRead = c.report.BytesRead
		c.report, c.horizon = before, horizon
	}
	return same, err
}

func totalLength(segs []*segment) (int64, error) {
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
