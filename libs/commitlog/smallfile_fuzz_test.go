package commitlog

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// FuzzSmallFiles hands arbitrary lines, under a checksum that is right, to the
// readers of the small files: they answer with typed errors, or with something that
// they write and read back the same.
func FuzzSmallFiles(f *testing.F) {
	f.Add("start 5\ngaps_below 9")
	f.Add("offset 20\nfence 3 1\nproducer 9 2 1700000000000 -1 0 4 10 14 1000 5 5 19 19 1001")
	f.Add("offset 20\nproducer 9 2 1 -1 0")
	f.Add("4 0\n9 1500")
	f.Add("start -1")
	f.Add("producer 1 99999999 1 1")
	f.Fuzz(func(t *testing.T, text string) {
		disk := memfs.New()
		lines := strings.Split(text, "\n")
		write := func(path, kind string) {
			if err := vfs.WriteFileAtomic(disk, path, encodeSmallFile(kind, 1, lines)); err != nil {
				t.Fatal(err)
			}
		}
		write(joinPath("/", marksFile), marksKind)
		write(joinPath("/", epochFile), epochKind)
		write(segmentPath("/", 20, snapshotSuffix), snapshotKind)
		var corrupt *CorruptError
		m, err := loadMarks(disk, "/")
		if err == nil {
			if err := m.save(disk, "/"); err != nil {
				t.Fatal(err)
			}
			if again, err := loadMarks(disk, "/"); err != nil || again != m {
				t.Fatalf("%+v, %v; want %+v", again, err, m)
			}
		} else if !errors.As(err, &corrupt) {
			t.Fatalf("%v", err)
		}
		c, err := loadEpochs(disk, "/")
		if err == nil {
			if err := c.save(disk, "/"); err != nil {
				t.Fatal(err)
			}
			if again, err := loadEpochs(disk, "/"); err != nil || !equalEpochs(again, c) {
				t.Fatalf("%+v, %v; want %+v", again, err, c)
			}
		} else if !errors.As(err, &corrupt) {
			t.Fatalf("%v", err)
		}
		s, err := loadSnapshot(disk, "/", 20)
		if err == nil {
			data := s.encode()
			if err := vfs.WriteFileAtomic(disk, segmentPath("/", 20, snapshotSuffix), data); err != nil {
				t.Fatal(err)
			}
			if again, err := loadSnapshot(disk, "/", 20); err != nil || !bytes.Equal(again.encode(), data) {
				t.Fatalf("%v", err)
			}
		} else if !errors.As(err, &corrupt) {
			t.Fatalf("%v", err)
		}
	})
}
