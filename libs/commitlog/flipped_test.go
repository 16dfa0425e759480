package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// flipper is a log of batches of 1, 2, 3, 1 and 2 records, in which bits flip.
type flipper struct {
	t     *testing.T
	opts  Options
	log   *Log
	file  vfs.File
	whole []byte
	bases []int64 // of the batches, and the end
	at    []int64 // where they begin, and the size
}

func newFlipper(t *testing.T) *flipper {
	f := &flipper{t: t}
	f.make()
	return f
}

// make makes the log anew.
func (f *flipper) make() {
	f.t.Helper()
	fsys := newFS(f.t)
	f.opts = testOptions(fsys)
	f.log, _ = mustOpen(f.t, f.opts)
	f.bases, f.at = []int64{0}, []int64{0}
	for i, n := range []int{1, 2, 3, 1, 2} {
		b := batch(f.t, n, fmt.Sprintf("b%d", i), int64(100+i))
		mustAppend(f.t, f.log, b, int32(i/3))
		f.bases = append(f.bases, f.bases[i]+int64(n))
		f.at = append(f.at, f.at[i]+int64(len(b)))
	}
	mustSync(f.t, f.log)
	path := segmentPath(testDir, 0, logSuffix)
	var err error
	if f.whole, err = vfs.ReadFile(fsys, path, 1<<20); err != nil {
		f.t.Fatal(err)
	}
	if f.file, err = fsys.Open(path); err != nil {
		f.t.Fatal(err)
	}
}

// flip flips a bit of a byte.
func (f *flipper) flip(at int64, bit int) {
	f.t.Helper()
	var b [1]byte
	if _, err := f.file.ReadAt(b[:], at); err != nil {
		f.t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.file.WriteAt(b[:], at); err != nil {
		f.t.Fatal(err)
	}
}

// Where a log is cut must not hang on a flipped bit: a truncation cuts where it would
// have cut, or it changes nothing and tells of the damage.
func TestTruncateDespiteAnyFlippedBit(t *testing.T) {
	f := newFlipper(t)
	cuts, refusals := 0, 0
	for offset := range f.bases[len(f.bases)-1] {
		k := 0 // the batch that has the offset
		for f.bases[k+1] <= offset {
			k++
		}
		want, size := f.bases[k], f.at[k]
		for at := range int64(len(f.whole)) {
			for bit := range 8 {
				f.flip(at, bit)
				end, err := f.log.TruncateTo(offset)
				var corrupt *CorruptError
				if errors.As(err, &corrupt) && f.log.Err() == nil && f.log.EndOffset() == f.bases[len(f.bases)-1] {
					refusals++
					f.flip(at, bit)
					continue
				}
				got, readErr := vfs.ReadFile(f.opts.FS, segmentPath(testDir, 0, logSuffix), 1<<20)
				if err != nil || readErr != nil || end != want || int64(len(got)) != size {
					t.Fatalf("to %d, with bit %d of byte %d: ends at %d, %d bytes, want %d, %d bytes: %v", offset, bit, at, end, len(got), want, size, err)
				}
				cuts++
				f.make()
			}
		}
	}
	if cuts == 0 || refusals == 0 {
		t.Errorf("%d cuts and %d refusals", cuts, refusals)
	}
}

// Below the high watermark a reader is given records or told of damage; it never waits.
func TestReadDespiteAFlippedLength(t *testing.T) {
	f := newFlipper(t)
	alloc := func(n int) []byte { return make([]byte, n) }
	for k, place := range f.at[:len(f.at)-1] {
		for at := place; at < place+record.HeaderSize; at++ {
			for bit := range 8 {
				f.flip(at, bit)
				for j, upTo := range f.bases {
					if j <= k { // the damage lies above
						continue
					}
					for offset := range upTo {
						res, err := f.log.Read(offset, upTo, 1<<20, alloc)
						var corrupt *CorruptError
						if err == nil && len(res.Data) == 0 || err != nil && !errors.As(err, &corrupt) {
							t.Fatalf("bit %d of byte %d of batch %d: nothing is read from %d up to %d: %v", bit, at-place, k, offset, upTo, err)
						}
					}
				}
				f.flip(at, bit)
			}
		}
	}
}

// No checksum covers a batch's base offset and leader epoch. A reader is given no records
// at offsets or of epochs that are not theirs: a copy would have them there too.
func TestReadDespiteAFlippedPlace(t *testing.T) {
	f := newFlipper(t)
	end := f.bases[len(f.bases)-1]
	alloc := func(n int) []byte { return make([]byte, n) }
	for k, place := range f.at[:len(f.at)-1] {
		for bit := range 96 { // the length between them is what the next header tells of
			at := place + int64(bit/8)
			if bit >= 64 {
				at += 4
			}
			f.flip(at, bit%8)
			for offset := range end {
				for _, maxBytes := range []int{1, 1 << 20} {
					res, err := f.log.Read(offset, end, maxBytes, alloc)
					var corrupt *CorruptError
					if err != nil && !errors.As(err, &corrupt) {
						t.Fatal(err)
					}
					if err == nil && len(res.Data) == 0 {
						t.Fatalf("batch %d, bit %d: nothing is read at %d, on to %d", k, bit, offset, res.NextOffset)
					}
					for data := res.Data; len(data) > 0; {
						h, err := record.ParseHeader(data)
						if err != nil {
							t.Fatal(err)
						}
						i := bytes.Index(f.whole, data[8:h.Size()]) - 8
						if j := int(h.BaseOffset); i < 0 || !bytes.Equal(f.whole[i:i+8], data[:8]) {
							t.Fatalf("batch %d, bit %d: read from %d at most %d bytes: a batch is said to begin at %d, of epoch %d", k, bit, offset, maxBytes, j, h.PartitionLeaderEpoch)
						}
						data = data[h.Size():]
					}
				}
			}
			f.flip(at, bit%8)
		}
	}
}
