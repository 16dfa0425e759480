package commitlog

import (
	"encoding/binary"
	"errors"
	"io"
	"math"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// entryReader reads an index file from its beginning, through a buffer.
type entryReader struct {
	entries *entryFile
	file    vfs.File // nil when the file is missing
	size    int64
	number  int
	buf     []byte
	at, n   int64
	scratch entryScratch
}

func (e *entryReader) open() error {
	f, err := e.entries.fs.OpenRead(e.entries.path)
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	e.file, e.buf = f, make([]byte, 4096*e.entries.width)
	e.size, err = f.Size()
	return err
}

// next reads the fields of the next entry. At the end it is io.EOF, at a wrong
// checksum errBadIndex.
func (e *entryReader) next() ([]byte, error) {
	width := int64(e.entries.width)
	pos := int64(e.number) * width
	if e.file == nil || pos+width > e.size {
		return nil, io.EOF
	}
	if pos >= e.at+e.n {
		n, err := e.file.ReadAt(e.buf, pos)
		if int64(n) < width {
			return nil, errors.Join(err, io.ErrUnexpectedEOF)
		}
		e.at, e.n = pos, int64(n)/width*width
	}
	entry := e.buf[pos-e.at : pos-e.at+width]
	fields := entry[:width-4]
	if binary.BigEndian.Uint32(entry[width-4:]) != e.entries.checksum(&e.scratch, e.number, fields) {
		return nil, errBadIndex
	}
	e.number++
	return fields, nil
}

func (e *entryReader) close() error {
	if e.file == nil {
		return nil
	}
	return e.file.Close()
}

// indexCheck walks both indexes of a segment beside its batches.
type indexCheck struct {
	v       *verifier
	seg     *segment
	offsets entryReader
	times   entryReader
	point   indexPoint // the entry that was read and not met yet
	ts      int64
	have    bool
	done    bool // nothing more can be said: the end, or a fault
	bad     bool
	short   string
	since   int64 // bytes since the last entry
	tail    int64 // the same, without the last batch
	gap     int64 // the greatest since that an entry ended
	upTo    int64 // .log bytes that are valid
}

func (v *verifier) openIndexes(seg *segment) (*indexCheck, error) {
	x := newSegIndex(v.fs, v.dir, seg.base)
	c := &indexCheck{v: v, seg: seg, offsets: entryReader{entries: &x.offsets}, times: entryReader{entries: &x.times}, upTo: math.MaxInt64}
	if err := errors.Join(c.offsets.open(), c.times.open()); err != nil {
		return nil, errors.Join(err, c.close())
	}
	for _, e := range []*entryReader{&c.offsets, &c.times} {
		if e.file == nil {
			c.short = "the file " + e.entries.path + " is missing"
		} else if rest := e.size % int64(e.entries.width); rest != 0 {
			c.short = "the file ends within an entry"
		}
	}
	return c, c.advance()
}

func (c *indexCheck) close() error { return errors.Join(c.offsets.close(), c.times.close()) }

func (c *indexCheck) fault(e *entryReader, number int, format string, args ...any) {
	c.bad, c.done, c.have = true, true, false
	c.v.r.fault(e.entries.path, int64(number)*int64(e.entries.width), -1, format, args...)
}

// advance reads the next entry of each index.
func (c *indexCheck) advance() error {
	c.have = false
	if c.done {
		return nil
	}
	number := c.offsets.number
	f, err := c.offsets.next()
	switch {
	case errors.Is(err, io.EOF):
		c.done = true
		if _, err := c.times.next(); err == nil {
			c.note("it has fewer entries than the time index")
		} else if errors.Is(err, errBadIndex) {
			c.fault(&c.times, number, "the entry's checksum does not match")
		}
		return nil
	case errors.Is(err, errBadIndex):
		c.fault(&c.offsets, number, "the entry's checksum does not match")
		return nil
	case err != nil:
		return err
	}
	c.point = indexPoint{rel: int64(binary.BigEndian.Uint32(f)), pos: int64(binary.BigEndian.Uint32(f[4:]))}
	f, err = c.times.next()
	switch {
	case errors.Is(err, io.EOF):
		c.done = true
		c.note("the time index has fewer entries than it")
		return nil
	case errors.Is(err, errBadIndex):
		c.fault(&c.times, number, "the entry's checksum does not match")
		return nil
	case err != nil:
		return err
	}
	c.ts = int64(binary.BigEndian.Uint64(f))
	if rel := int64(binary.BigEndian.Uint32(f[8:])); rel != c.point.rel {
		c.fault(&c.times, number, "the entry is for relative offset %d, and that of the offset index for %d", rel, c.point.rel)
		return nil
	}
	c.have = true
	c.v.r.IndexEntries += 2
	return nil
}

func (c *indexCheck) note(what string) {
	if c.short == "" {
		c.short = what
	}
}

// at compares the entries with a valid batch; maxTS is the greatest timestamp
// before it.
func (c *indexCheck) at(pos int64, h *record.Header, maxTS int64) error {
	if pos >= c.upTo {
		return nil
	}
	for c.have && c.point.pos <= pos {
		n := c.offsets.number - 1
		switch {
		case c.point.pos < pos:
			c.fault(&c.offsets, n, "the entry points to byte %d of the .log, which is within a batch", c.point.pos)
			return nil
		case c.seg.base+c.point.rel != h.BaseOffset:
			c.fault(&c.offsets, n, "the entry says that offset %d is at byte %d of the .log, and it is %d", c.seg.base+c.point.rel, pos, h.BaseOffset)
			return nil
		case c.ts < maxTS:
			c.fault(&c.times, n, "the entry says that no record before has a timestamp above %d, and one has %d", c.ts, maxTS)
			return nil
		}
		c.gap, c.since = max(c.gap, c.since), 0
		if err := c.advance(); err != nil {
			return err
		}
	}
	c.tail = c.since
	c.since += int64(h.Size())
	return nil
}

// finish compares what is left with the end of the segment.
func (c *indexCheck) finish(size, maxTS int64) error {
	end := c.seg.sealedAt.Load()
	sealed := false
	for c.have && c.upTo == math.MaxInt64 {
		n := c.offsets.number - 1
		switch {
		case c.point.pos == size:
			// A segment that was sealed last may not have a successor yet.
			if end != notSealed && c.point.rel != min(end-c.seg.base, math.MaxUint32) || end == notSealed && c.seg.base+c.point.rel < c.v.next {
				c.fault(&c.offsets, n, "the entry says that the segment ends at offset %d, and it ends at %d", c.seg.base+c.point.rel, max(end, c.v.next))
			} else if c.ts < maxTS {
				c.fault(&c.times, n, "the entry says that no record has a timestamp above %d, and one has %d", c.ts, maxTS)
			}
			sealed = true
		case end == notSealed:
			c.note("it speaks of bytes that were not written")
			c.done = true
		case c.point.pos < size:
			c.fault(&c.offsets, n, "the entry points to byte %d of the .log, which is within a batch", c.point.pos)
		default:
			c.fault(&c.offsets, n, "the entry points to byte %d of the .log, which has %d", c.point.pos, size)
		}
		if err := c.advance(); err != nil {
			return err
		}
	}
	if end != notSealed && !sealed && !c.bad && c.upTo == math.MaxInt64 {
		c.note("the entry for the segment's end is missing")
	}
	if end == notSealed && !sealed && c.tail >= 2*max(c.gap, c.v.o.IndexIntervalBytes) {
		c.note("entries are missing at its end")
	}
	if c.short != "" && !c.bad {
		c.v.r.note(c.offsets.entries.path, -1, -1, "the indexes are short: %s; the next start makes them anew when they are needed", c.short)
	}
	if c.short != "" || c.bad {
		c.v.r.repair = append(c.v.r.repair, repairWork{base: c.seg.base, sealed: end, upTo: min(c.upTo, size)})
	}
	return nil
}
