package commitlog

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"sync"
	"sync/atomic"
)

// A lookup in an index file is a search in memory, among the keys of every
// blockEntries-th entry, and then one read of the block that it leads to. The keys
// are remembered as lookups meet them, so that opening an index costs nothing and
// the first lookups read no more than a binary search would. They take 8 bytes for
// blockEntries entries, and are forgotten when the file is closed: FileCache bounds
// them too.
const blockEntries = 128

// unknownKey stands for a key that no lookup has met. An entry that really has it,
// which only a timestamp could, is read each time.
const unknownKey = math.MaxInt64

// blockKeys are the keys of the first entries of the blocks of one file. Its length
// changes with segIndex.mu held for writing; its elements are filled in by readers,
// concurrently: whoever meets a key notes the same value, as an entry never changes
// while it is there.
type blockKeys []atomic.Int64

// resized returns keys for the blocks that so many entries make, those that were
// known among them.
func (k blockKeys) resized(entries int) blockKeys {
	known, blocks := len(k), (entries+blockEntries-1)/blockEntries
	if blocks <= known {
		return k[:blocks]
	}
	k = append(k, make(blockKeys, blocks-known)...)
	for i := known; i < blocks; i++ {
		k[i].Store(unknownKey)
	}
	return k
}

// searchScratch is room for a block of entries. A lookup takes one from a pool, so
// that it allocates nothing.
type searchScratch struct {
	entryScratch
	block [blockEntries * timeEntrySize]byte
}

// searchScratches carries nothing from one use to the next.
var searchScratches = sync.Pool{New: func() any { return new(searchScratch) }}

// key is what the entries of a file are in order of: relative offsets or timestamps.
func (e *entryFile) key(fields []byte) int64 {
	if e.kind == kindTime {
		return int64(binary.BigEndian.Uint64(fields))
	}
	return int64(binary.BigEndian.Uint32(fields))
}

// floor finds the last entry whose key is at or below k: its number, -1 if there is
// none, and its fields, which are in sc. An entry met on the way that is damaged is
// errBadIndex. The caller has segIndex.mu, for reading at least.
func (e *entryFile) floor(k int64, sc *searchScratch) (n int, fields []byte, err error) {
	if len(e.tail) > 0 {
		n, fields, err := e.floorIn(e.tail, e.onFS, k, sc)
		if err != nil || n >= e.onFS {
			return n, fields, err
		}
	}
	block, err := e.blockOf(k, sc)
	if err != nil || block < 0 {
		return -1, nil, err
	}
	first := block * blockEntries
	b := sc.block[:min(blockEntries, e.onFS-first)*e.width]
	if err := e.readEntries(b, first); err != nil {
		return -1, nil, err
	}
	n, fields, err = e.floorIn(b, first, k, sc)
	if err == nil && n < first {
		// Its key was at or below k when it was met.
		err = errBadIndex
	}
	return n, fields, err
}

// floorIn is floor among the entries in b, the first of which has the number first;
// first-1 says that all keys are above k.
func (e *entryFile) floorIn(b []byte, first int, k int64, sc *searchScratch) (n int, fields []byte, err error) {
	lo, hi := -1, len(b)/e.width
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		f, err := e.check(b[mid*e.width:(mid+1)*e.width], first+mid, &sc.entryScratch)
		if err != nil {
			return -1, nil, err
		}
		if e.key(f) <= k {
			lo, fields = mid, f
		} else {
			hi = mid
		}
	}
	return first + lo, fields, nil
}

// blockOf finds the last block of the file whose first key is at or below k, -1 if
// there is none.
func (e *entryFile) blockOf(k int64, sc *searchScratch) (int, error) {
	lo, hi := -1, len(e.keys)
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		key := e.keys[mid].Load()
		if key == unknownKey {
			f, err := e.at(mid*blockEntries, &sc.entryScratch)
			if err != nil {
				return -1, err
			}
			key = e.key(f)
			e.keys[mid].Store(key)
		}
		if key <= k {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, nil
}

// readEntries reads whole entries of the file, from number first on.
func (e *entryFile) readEntries(b []byte, first int) error {
	n, err := e.file.ReadAt(b, int64(first)*int64(e.width))
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return errBadIndex
	}
	return err
}

// check returns the fields of an entry, or errBadIndex.
func (e *entryFile) check(entry []byte, number int, sc *entryScratch) ([]byte, error) {
	fields := entry[:e.width-4]
	if binary.BigEndian.Uint32(entry[e.width-4:]) != e.checksum(sc, number, fields) {
		return nil, errBadIndex
	}
	return fields, nil
}
