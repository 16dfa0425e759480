package commitlog

import (
	"encoding/binary"
	"errors"
	"math"
	"sync"

	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// An index entry is of fixed width and carries a checksum of its own, so that a
// lookup that meets a damaged one knows it, and so that each entry can be believed
// whatever became of the others. Big endian:
//
//	.index      relative offset u32 │ position u32 │ crc u32
//	.timeindex  timestamp i64 │ relative offset u32 │ crc u32
//
// The CRC32C covers the kind, the segment's base offset, the entry's number, and
// the fields before it. An offset entry says: the batch with this base offset
// begins at this byte. A time entry says: no record of the segment below this
// offset has a timestamp above this one. Each offset entry has a time entry of the
// same number. A sealed segment has one more of each, for its end: the offset it
// ends before, and its length.
const (
	offsetEntrySize = 12
	timeEntrySize   = 16
	// indexTailEntries is how many entries wait in memory before they are written.
	indexTailEntries = 128

	kindOffset = 'o'
	kindTime   = 't'
)

// noTimestamp is below that of every record.
const noTimestamp = math.MinInt64

// errBadIndex says that an index file does not fit its segment. It never leaves
// the package: the index is rebuilt.
var errBadIndex = errors.New("index does not fit the log")

// entryFile is one index file and the entries not yet written to it. segIndex
// guards it.
type entryFile struct {
	// What a lookup needs comes first, so that it lies together in memory.
	file  vfs.File  // nil until needed, and while parked
	onFS  int       // entries in the file
	keys  blockKeys // of all blocks of the file while it is open
	tail  []byte    // entries after those in the file
	width int
	base  int64
	kind  byte
	known bool // onFS was learnt
	dirty bool // written since the last sync
	fs    vfs.FS
	cache *FileCache
	path  string
	own   entryScratch
}

// entryScratch is room for an entry and what its checksum begins with. A lookup
// takes one from a pool, so that it allocates nothing.
type entryScratch struct {
	entry [timeEntrySize]byte
	seed  [13]byte
}

// entryScratches carries nothing from one use to the next.
var entryScratches = sync.Pool{New: func() any { return new(entryScratch) }}

// load opens the file. An absent one is made: it will be found to be short.
func (e *entryFile) load() error {
	if e.file != nil {
		return nil
	}
	f, err := retryWithFiles(e.cache, func() (vfs.File, error) { return e.fs.Open(e.path) })
	if isNotExist(err) {
		f, err = e.fs.Create(e.path)
	}
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	e.file = f
	e.cache.opening()
	if !e.known {
		// Part of an entry at the end is what a crash left of a write.
		e.known, e.onFS = true, int(min(size/int64(e.width), math.MaxInt32))
	}
	e.keys = e.keys.resized(e.onFS)
	return nil
}

// create makes the file, empty, and does not keep it open: an index that is never
// looked into needs no descriptor.
func (e *entryFile) create() error {
	f, err := e.fs.Create(e.path)
	if err != nil {
		return err
	}
	e.known, e.onFS = true, 0
	return f.Close()
}

func (e *entryFile) len() int { return e.onFS + len(e.tail)/e.width }

func (e *entryFile) checksum(sc *entryScratch, number int, fields []byte) uint32 {
	sc.seed[0] = e.kind
	binary.BigEndian.PutUint64(sc.seed[1:], uint64(e.base))
	binary.BigEndian.PutUint32(sc.seed[9:], uint32(number))
	return record.UpdateChecksum(record.UpdateChecksum(0, sc.seed[:]), fields)
}

// at reads the fields of an entry into sc and returns them, or errBadIndex.
func (e *entryFile) at(number int, sc *entryScratch) ([]byte, error) {
	entry := sc.entry[:e.width]
	if number >= e.onFS {
		i := (number - e.onFS) * e.width
		copy(entry, e.tail[i:i+e.width])
	} else if err := e.readEntries(entry, number); err != nil {
		return nil, err
	}
	return e.check(entry, number, sc)
}

func (e *entryFile) add(fields []byte) error {
	number, at := e.len(), len(e.tail)
	e.tail = append(e.tail, fields...)
	e.tail = binary.BigEndian.AppendUint32(e.tail, e.checksum(&e.own, number, e.tail[at:]))
	if len(e.tail) >= indexTailEntries*e.width {
		return e.flush()
	}
	return nil
}

// flush writes what waits in memory. On a full disk it goes on waiting there: an
// index is wanted for speed only, and the .log has the say over what is stored.
func (e *entryFile) flush() error {
	if len(e.tail) == 0 {
		return nil
	}
	err := e.load()
	if err == nil {
		_, err = e.file.WriteAt(e.tail, int64(e.onFS)*int64(e.width))
	}
	if isNoSpace(err) {
		return nil
	}
	if err != nil {
		return err
	}
	e.onFS += len(e.tail) / e.width
	e.keys = e.keys.resized(e.onFS)
	e.tail = e.tail[:0]
	e.dirty = true
	return nil
}

// keep drops all entries from number n on.
func (e *entryFile) keep(n int) error {
	e.tail = e.tail[:max(0, min(len(e.tail), (n-e.onFS)*e.width))]
	e.onFS = min(e.onFS, n)
	e.keys = e.keys.resized(e.onFS) // other entries may get the numbers of those dropped
	e.dirty = true
	return e.file.Truncate(int64(e.onFS) * int64(e.width))
}

func (e *entryFile) sync() error {
	if !e.dirty {
		return nil
	}
	if err := e.load(); err != nil {
		return err
	}
	e.dirty = false
	return e.file.Sync()
}

func (e *entryFile) close() error {
	if e.file == nil {
		return nil
	}
	f := e.file
	e.file, e.keys = nil, nil
	e.cache.open.Add(-1)
	return f.Close()
}

// segIndex is both indexes of a segment. Lookups and additions may run
// concurrently.
type segIndex struct {
	mu      sync.RWMutex
	loaded  bool
	rebuilt bool  // made anew from the log since it was opened
	since   int64 // bytes of log from the last entry, or the start, to the end
	offsets entryFile
	times   entryFile
}

func newSegIndex(fsys vfs.FS, dir string, base int64) *segIndex {
	cache := NewFileCache(DefaultOpenFiles)
	return &segIndex{
		offsets: entryFile{fs: fsys, cache: cache, path: segmentPath(dir, base, indexSuffix), kind: kindOffset, width: offsetEntrySize, base: base},
		times:   entryFile{fs: fsys, cache: cache, path: segmentPath(dir, base, timeIndexSuffix), kind: kindTime, width: timeEntrySize, base: base},
	}
}

// rlock opens the files if need be and returns with mu held for reading, unless
// there is an error.
func (x *segIndex) rlock() error {
	for {
		x.mu.RLock()
		if x.loaded {
			return nil
		}
		x.mu.RUnlock()
		x.mu.Lock()
		err := x.ensureLocked()
		x.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (x *segIndex) ensureLocked() error {
	if err := errors.Join(x.offsets.load(), x.times.load()); err != nil {
		return err
	}
	x.loaded = true
	return nil
}

// madeAnew reports whether the index was made from the log since it was opened, and
// has each entry that it can have.
func (x *segIndex) madeAnew() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.rebuilt
}

// indexPoint is a place that the index knows.
type indexPoint struct {
	rel int64 // offset less the segment's base
	pos int64 // byte in the .log
}

// point reads entry n; -1 is the start of the segment.
func (x *segIndex) point(n int) (indexPoint, error) {
	if n < 0 {
		return indexPoint{}, nil
	}
	sc := entryScratches.Get().(*entryScratch)
	defer entryScratches.Put(sc)
	f, err := x.offsets.at(n, sc)
	if err != nil {
		return indexPoint{}, err
	}
	return offsetPoint(f), nil
}

// offsetPoint and timeRel read the fields of an entry.
func offsetPoint(f []byte) indexPoint {
	return indexPoint{rel: int64(binary.BigEndian.Uint32(f)), pos: int64(binary.BigEndian.Uint32(f[4:]))}
}

func timeRel(f []byte) int64 { return int64(binary.BigEndian.Uint32(f[8:])) }

// timePoint reads time entry n; -1 says that nothing lies below offset 0.
func (x *segIndex) timePoint(n int) (ts, rel int64, err error) {
	if n < 0 {
		return noTimestamp, 0, nil
	}
	sc := entryScratches.Get().(*entryScratch)
	defer entryScratches.Put(sc)
	f, err := x.times.at(n, sc)
	if err != nil {
		return 0, 0, err
	}
	return int64(binary.BigEndian.Uint64(f)), timeRel(f), nil
}

// floor finds the last point at or below a relative offset.
func (x *segIndex) floor(rel int64) (indexPoint, error) {
	if err := x.rlock(); err != nil {
		return indexPoint{}, err
	}
	defer x.mu.RUnlock()
	_, p, err := x.floorLocked(rel)
	return p, err
}

// floorLocked also returns the point's number, -1 for the start of the segment.
func (x *segIndex) floorLocked(rel int64) (n int, p indexPoint, err error) {
	sc := searchScratches.Get().(*searchScratch)
	defer searchScratches.Put(sc)
	n, f, err := x.offsets.floor(rel, sc)
	if err != nil || n < 0 {
		return -1, indexPoint{}, err
	}
	return n, offsetPoint(f), nil
}

// floorTime finds a relative offset below which every record is older than ts; the
// greatest that the index knows.
func (x *segIndex) floorTime(ts int64) (rel int64, err error) {
	if ts == math.MinInt64 {
		return 0, nil // no record is older
	}
	if err := x.rlock(); err != nil {
		return 0, err
	}
	defer x.mu.RUnlock()
	sc := searchScratches.Get().(*searchScratch)
	defer searchScratches.Put(sc)
	n, f, err := x.times.floor(ts-1, sc)
	if err != nil || n < 0 {
		return 0, err
	}
	return timeRel(f), nil
}

// last reads the last point and what is known of timestamps below it. An index one of
// whose files has more entries than the other is bad: the entries to come would not
// have the same numbers.
func (x *segIndex) last() (p indexPoint, maxTS int64, err error) {
	if err := x.rlock(); err != nil {
		return p, 0, err
	}
	defer x.mu.RUnlock()
	n := x.offsets.len() - 1
	if p, err = x.point(n); err != nil {
		return p, 0, err
	}
	if x.times.len() != n+1 {
		return p, 0, errBadIndex
	}
	ts, rel, err := x.timePoint(n)
	if err == nil && rel != p.rel {
		err = errBadIndex
	}
	return p, ts, err
}

// end reads the entries that seal a segment.
func (x *segIndex) end() (ts int64, p indexPoint, err error) {
	if err := x.rlock(); err != nil {
		return 0, p, err
	}
	defer x.mu.RUnlock()
	n := x.offsets.len() - 1
	if n < 0 || x.times.len() != n+1 {
		return 0, p, errBadIndex
	}
	ts, rel, err := x.timePoint(n)
	if err != nil {
		return 0, p, err
	}
	if p, err = x.point(n); err == nil && rel != p.rel {
		err = errBadIndex
	}
	return ts, p, err
}

// full reports whether another entry, and the one that seals, would pass limit.
func (x *segIndex) full(limit int64) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return int64(x.times.len()+2)*timeEntrySize > limit
}

// note tells the index of a batch of the given size at a place, before which no
// record is younger than maxTS. It adds an entry when the last one is far enough.
func (x *segIndex) note(p indexPoint, size, maxTS, interval int64) error {
	if err := failpoint.Hit(failpoint.LogWritten); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.noteLocked(p, size, maxTS, interval)
}

func (x *segIndex) noteLocked(p indexPoint, size, maxTS, interval int64) error {
	if x.since < interval {
		x.since += size
		return nil
	}
	x.since = size
	return x.addPoint(maxTS, p)
}

func (x *segIndex) addPoint(maxTS int64, p indexPoint) error {
	if err := failpoint.Hit(failpoint.LogIndex); err != nil {
		return err
	}
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], uint32(p.rel))
	binary.BigEndian.PutUint32(b[4:], uint32(p.pos))
	if err := x.offsets.add(b[:]); err != nil {
		return err
	}
	return x.addTime(maxTS, p.rel)
}

func (x *segIndex) addTime(ts, rel int64) error {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:], uint64(ts))
	binary.BigEndian.PutUint32(b[8:], uint32(rel))
	return x.times.add(b[:])
}

// seal adds the entries for the segment's end, an offset and a length, and writes
// everything.
func (x *segIndex) seal(maxTS int64, end indexPoint) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sealLocked(maxTS, end)
}

func (x *segIndex) sealLocked(maxTS int64, end indexPoint) error {
	end.rel = min(end.rel, math.MaxUint32) // a gap may reach farther
	if err := x.addPoint(maxTS, end); err != nil {
		return err
	}
	return errors.Join(x.offsets.flush(), x.times.flush())
}

// sync writes what is in memory and makes the files durable.
func (x *segIndex) sync() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := errors.Join(x.offsets.flush(), x.times.flush()); err != nil {
		return err
	}
	return errors.Join(x.offsets.sync(), x.times.sync())
}

// keepLocked drops all entries from number n on.
func (x *segIndex) keepLocked(n int) error {
	if err := x.ensureLocked(); err != nil {
		return err
	}
	return errors.Join(x.offsets.keep(min(n, x.offsets.len())), x.times.keep(min(n, x.times.len())))
}

// close releases the descriptors. What waits in memory stays, and the files are
// opened again when they are needed.
func (x *segIndex) close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.loaded = false
	return errors.Join(x.offsets.close(), x.times.close())
}
