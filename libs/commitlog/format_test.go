package commitlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// The bytes below are those of docs/format.md; their checksums were computed apart
// from this program.
const (
	goldenMetadata = "leat partition.metadata 1\ntopic orders\npartition 0\ntopic_id 0102030000000000000000000000000a\ncrc32c df172ea1\n"
	goldenEpochs   = "leat leader-epoch-checkpoint 1\n4 0\n9 1500\ncrc32c f431ea15\n"
)

func TestGoldenSmallFiles(t *testing.T) {
	fsys := newFS(t)
	m := Metadata{Topic: "orders", TopicID: [16]byte{1, 2, 3, 15: 10}}
	if err := writeMetadata(fsys, "/disk", m); err != nil {
		t.Fatal(err)
	}
	if b, err := vfs.ReadFile(fsys, "/disk/"+metadataFile, 1000); err != nil || string(b) != goldenMetadata {
		t.Fatalf("%q, %v", b, err)
	}
	if got, err := ReadMetadata(fsys, "/disk"); err != nil || got != m {
		t.Fatalf("%+v, %v", got, err)
	}
	c := epochCache{{4, 0}, {9, 1500}}
	if err := c.save(fsys, "/disk"); err != nil {
		t.Fatal(err)
	}
	if b, err := vfs.ReadFile(fsys, "/disk/"+epochFile, 1000); err != nil || string(b) != goldenEpochs {
		t.Fatalf("%q, %v", b, err)
	}
	if got, err := loadEpochs(fsys, "/disk"); err != nil || !equalEpochs(got, c) {
		t.Fatalf("%+v, %v", got, err)
	}
	// No flipped bit passes.
	for name, read := range map[string]func() error{
		metadataFile: func() error { _, err := ReadMetadata(fsys, "/disk"); return err },
		epochFile:    func() error { _, err := loadEpochs(fsys, "/disk"); return err },
	} {
		path := "/disk/" + name
		whole, err := vfs.ReadFile(fsys, path, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for bit := range len(whole) * 8 {
			overwrite(t, fsys, path, func([]byte) []byte {
				b := bytes.Clone(whole)
				b[bit/8] ^= 1 << (bit % 8)
				return b
			})
			var corrupt *CorruptError
			if err := read(); !errors.As(err, &corrupt) {
				t.Fatalf("%s, bit %d of byte %d: %v", name, bit%8, bit/8, err)
			}
		}
	}
}

// bitCRC is CRC32C without a table.
func bitCRC(b []byte) uint32 {
	crc := ^uint32(0)
	for _, x := range b {
		crc ^= uint32(x)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78&-(crc&1)
		}
	}
	return ^crc
}

func TestGoldenIndexes(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	o.Config.IndexIntervalBytes = 1
	l, _ := mustOpen(t, o)
	b := batch(t, 2, "a", 50)
	for range 3 {
		mustAppend(t, l, b, 0)
	}
	mustAppend(t, l, bytes.Clone(batch(t, 2000, "a long batch that fills the segment", 40)), 0) // rolls
	if l.Segments() != 2 {
		t.Fatalf("%d segments", l.Segments())
	}
	entry := func(kind byte, number uint32, fields ...byte) []byte {
		seed := append([]byte{kind}, make([]byte, 8)...) // base offset 0
		seed = binary.BigEndian.AppendUint32(seed, number)
		return binary.BigEndian.AppendUint32(bytes.Clone(fields), bitCRC(append(seed, fields...)))
	}
	size := byte(len(b))
	wantOffsets := append(entry('o', 0, 0, 0, 0, 2, 0, 0, 0, size), entry('o', 1, 0, 0, 0, 4, 0, 0, 0, 2*size)...)
	wantOffsets = append(wantOffsets, entry('o', 2, 0, 0, 0, 6, 0, 0, 0, 3*size)...)
	wantTimes := append(entry('t', 0, 0, 0, 0, 0, 0, 0, 0, 51, 0, 0, 0, 2), entry('t', 1, 0, 0, 0, 0, 0, 0, 0, 51, 0, 0, 0, 4)...)
	wantTimes = append(wantTimes, entry('t', 2, 0, 0, 0, 0, 0, 0, 0, 51, 0, 0, 0, 6)...)
	for suffix, want := range map[string][]byte{indexSuffix: wantOffsets, timeIndexSuffix: wantTimes} {
		if got, err := vfs.ReadFile(fsys, segmentPath(testDir, 0, suffix), 1000); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s:\n%x, want\n%x, %v", suffix, got, want, err)
		}
	}
}

// FuzzOpen opens a folder whose files hold anything: no panic, typed errors, and
// what is served is valid.
func FuzzOpen(f *testing.F) {
	fsys := memfs.New()
	if err := fsys.MkdirAll("/disk"); err != nil {
		f.Fatal(err)
	}
	l, _, err := Open(testOptions(fsys))
	if err != nil {
		f.Fatal(err)
	}
	for i := range 12 {
		mustAppend(f, l, batch(f, 3, "some text to fill the batch", int64(i)), int32(i/5))
	}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	var files [4][]byte
	names := [4]string{segmentPath(testDir, 0, logSuffix), segmentPath(testDir, 0, indexSuffix), segmentPath(testDir, 0, timeIndexSuffix), joinPath(testDir, epochFile)}
	for i, name := range names {
		if files[i], err = vfs.ReadFile(fsys, name, 1<<20); err != nil {
			f.Fatal(err)
		}
	}
	metadata, err := vfs.ReadFile(fsys, joinPath(testDir, metadataFile), 1<<20)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(files[0], files[1], files[2], files[3], true, int64(36))
	f.Add(files[0][:200], []byte{}, files[2], files[3], false, int64(0))
	f.Add(files[0], files[2], files[1], []byte{}, false, int64(10))
	f.Fuzz(func(t *testing.T, log, index, times, epochs []byte, clean bool, mark int64) {
		// A disk of its own: a failing input fails by itself, too.
		disk := memfs.New()
		if err := disk.MkdirAll(testDir); err != nil {
			t.Fatal(err)
		}
		for i, b := range [4][]byte{log, index, times, epochs} {
			if err := vfs.WriteFileAtomic(disk, names[i], b); err != nil {
				t.Fatal(err)
			}
		}
		if err := vfs.WriteFileAtomic(disk, joinPath(testDir, metadataFile), metadata); err != nil {
			t.Fatal(err)
		}
		o := testOptions(disk)
		o.CleanShutdown, o.RecoveryPoint = clean, max(0, mark)
		l, report, err := Open(o)
		if err != nil {
			var corrupt *CorruptError
			var newer *UnsupportedVersionError
			if !errors.As(err, &corrupt) && !errors.As(err, &newer) {
				t.Fatalf("an error without a type: %v", err)
			}
			return
		}
		defer func() {
			if err := l.Abort(); err != nil {
				t.Fatal(err)
			}
		}()
		for off := report.Start; off < report.End; {
			res, err := l.Read(off, report.End, 300, alloc)
			if err != nil {
				var corrupt *CorruptError
				if !errors.As(err, &corrupt) {
					t.Fatalf("read at %d: %v", off, err)
				}
				return
			}
			if res.NextOffset <= off {
				t.Fatalf("read at %d does not move on", off)
			}
			if off >= report.ScannedFrom {
				for data := res.Data; len(data) > 0; {
					b, rest, err := record.NextBatch(data)
					if err == nil {
						_, err = record.Validate([][]byte{b}, record.ValidateOptions{})
					}
					if err != nil {
						t.Fatalf("recovery let a bad batch pass at %d: %v", off, err)
					}
					data = rest
				}
			}
			off = res.NextOffset
		}
		if _, err := l.OffsetForTimestamp(5, report.End); err != nil {
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) {
				t.Fatalf("lookup: %v", err)
			}
		}
	})
}
