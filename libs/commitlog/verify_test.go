package commitlog

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// verifiable makes a small log of two segments and several index entries, and
// closes it.
func verifiable(t testing.TB) *memfs.FS {
	t.Helper()
	disk := newFS(t)
	c := newCleanLog(t, disk)
	o := record.DefaultBuilderOptions()
	for i := range 5 {
		o.Compression = record.Compression(i % 5)
		mustAppend(t, c.Log, buildKV(t, int64(i), o, kv{key: fmt.Sprint(i), value: strings.Repeat("v", 100)}, kv{key: "t", tombstone: true}), int32(i/3))
	}
	l := c.Log
	mustAppend(t, l, buildKV(t, 9, record.DefaultBuilderOptions(), kv{key: "big", value: strings.Repeat("b", 64_800)}), 2)
	o.Compression = record.CompressionNone
	for i := range 5 {
		mustAppend(t, l, buildKV(t, int64(20-i), o, kv{key: fmt.Sprint(i), value: strings.Repeat("v", 300)}), int32(2+i/3))
	}
	if l.Segments() != 2 {
		t.Fatalf("%d segments", l.Segments())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return disk
}

// lastBase is where the last segment begins.
func lastBase(t testing.TB, fsys vfs.FS) int64 {
	t.Helper()
	bases, err := listSegments(fsys, testDir)
	if err != nil {
		t.Fatal(err)
	}
	return bases[len(bases)-1]
}

func verify(t testing.TB, fsys vfs.FS, dir string, o VerifyOptions) VerifyReport {
	t.Helper()
	o.IndexIntervalBytes = 512
	r, err := Verify(fsys, dir, o)
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	return r
}

// A log that was closed is without fault and note, under any folder name, and also
// after a compaction.
func TestVerifyWhole(t *testing.T) {
	disk := verifiable(t)
	r := verify(t, disk, testDir, VerifyOptions{DurableBelow: 16})
	if !r.OK() || len(r.Notes) > 0 || r.Segments != 2 || r.Start != 0 || r.End != 16 || r.Records != 16 || r.Batches != 11 || r.IndexEntries < 4 ||
		r.Metadata.Topic != "orders" || r.FirstFault() != nil || r.TornBytes != 0 {
		t.Fatalf("%+v", r)
	}
	if err := disk.Rename(testDir, "/disk/some copy"); err != nil {
		t.Fatal(err)
	}
	if again := verify(t, disk, "/disk/some copy", VerifyOptions{}); !again.OK() || again.Batches != 11 {
		t.Fatalf("%+v", again)
	}
	if _, err := Verify(disk, "/disk", VerifyOptions{}); err == nil || !strings.Contains(err.Error(), "no segment") {
		t.Fatalf("%v", err)
	}
	disk = newFS(t)
	c := newCleanLog(t, disk)
	cleanWorkload(t, c)
	c.clean(cleanOptions(c.DurableEnd()))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, disk, testDir, VerifyOptions{}); !r.OK() || len(r.Notes) > 0 {
		t.Fatalf("%+v", r)
	}
}

// A tail that a crash left is reported and no fault, whatever byte it ends at, and
// so is one of zeroes; the same below what was durable is a fault.
func TestVerifyTornTail(t *testing.T) {
	disk := verifiable(t)
	headers := batches(t, disk)
	last := headers[len(headers)-1]
	path := segmentPath(testDir, lastBase(t, disk), logSuffix)
	whole, err := vfs.ReadFile(disk, path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	at := int64(len(whole) - last.Size())
	for cut := 1; cut < last.Size(); cut++ {
		overwrite(t, disk, path, func([]byte) []byte { return whole[:len(whole)-cut] })
		r := verify(t, disk, testDir, VerifyOptions{DurableBelow: 15})
		if !r.OK() || r.TornAt != at || r.TornBytes != int64(last.Size()-cut) || r.End != 15 || len(r.Notes) == 0 {
			t.Fatalf("cut by %d: %+v", cut, r)
		}
		if r = verify(t, disk, testDir, VerifyOptions{DurableBelow: 16}); r.OK() || r.FirstFault().Path != path || r.FirstFault().Position != at {
			t.Fatalf("cut by %d below what was durable: %+v", cut, r)
		}
	}
	for _, zeroes := range []int{1, 100, 5000} {
		overwrite(t, disk, path, func([]byte) []byte { return append(bytes.Clone(whole), make([]byte, zeroes)...) })
		if r := verify(t, disk, testDir, VerifyOptions{}); !r.OK() || r.TornBytes != int64(zeroes) || r.End != 16 {
			t.Fatalf("%d zeroes: %+v", zeroes, r)
		}
	}
	// Whole batches behind a damaged one: that was no crash.
	overwrite(t, disk, path, func([]byte) []byte {
		b := bytes.Clone(whole)
		clear(b[70:120])
		return b
	})
	if r := verify(t, disk, testDir, VerifyOptions{}); r.OK() {
		t.Fatalf("%+v", r)
	}
}

// Every single bit flipped in any file is a fault, at the right place.
func TestVerifyFindsEveryFlippedBit(t *testing.T) {
	disk := verifiable(t)
	entries, err := disk.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	// The big batch is like the others.
	starts := map[string][]int64{}
	if err := Scan(disk, testDir, func(b BatchInfo) error {
		starts[b.Path] = append(starts[b.Path], b.Position)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	flips := 0
	for _, e := range entries {
		path := joinPath(testDir, e.Name)
		whole, err := vfs.ReadFile(disk, path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		f, err := disk.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for bit := 0; bit < 8*len(whole); bit++ {
			if pos := bit / 8; strings.HasSuffix(path, logSuffix) && len(whole) > 20_000 && pos > 4000 {
				bit += 8*997 - 1
			} else if i, _ := slices.BinarySearch(starts[path], int64(pos+1)); i > 0 && int64(pos)-starts[path][i-1] >= record.HeaderSize {
				bit += 16 // all of each header, and one bit in 17 of the records
			} else if starts[path] == nil && !strings.HasSuffix(path, "index") {
				bit += 2 // one bit in three of text
			}
			pos := min(bit/8, len(whole)-1)
			if _, err := f.WriteAt([]byte{whole[pos] ^ 1<<(bit%8)}, int64(pos)); err != nil {
				t.Fatal(err)
			}
			r := verify(t, disk, testDir, VerifyOptions{})
			checkFlip(t, &r, path, int64(pos), starts[path], bit)
			if _, err := f.WriteAt(whole[pos:pos+1], int64(pos)); err != nil {
				t.Fatal(err)
			}
			flips++
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if r := verify(t, disk, testDir, VerifyOptions{}); !r.OK() {
		t.Fatalf("%+v", r)
	}
	t.Logf("%d bits", flips)
}

func checkFlip(t *testing.T, r *VerifyReport, path string, pos int64, starts []int64, bit int) {
	t.Helper()
	first := r.FirstFault()
	if starts == nil {
		if strings.HasSuffix(path, snapshotSuffix) && first == nil && len(r.Notes) == 1 {
			return // it lacks the newline at the end, and counts as torn
		}
		if first == nil || first.Path != path {
			t.Fatalf("%s: bit %d of byte %d: %+v", path, bit%8, pos, first)
		}
		return
	}
	if first == nil {
		t.Fatalf("%s: bit %d of byte %d: no fault; notes %+v", path, bit%8, pos, r.Notes)
	}
	i, found := slices.BinarySearch(starts, pos)
	if !found {
		i--
	}
	if first.Path != path || first.Position != starts[i] {
		t.Fatalf("%s: bit %d of byte %d, in the batch at %d: %+v", path, bit%8, pos, starts[i], first)
	}
}

// Index files that are cut short, at any byte, or missing, are reported and no
// fault; repairing makes them anew and touches no .log file.
func TestVerifyShortIndexesAndRepair(t *testing.T) {
	disk := verifiable(t)
	entries, err := disk.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, indexSuffix) && !strings.HasSuffix(e.Name, timeIndexSuffix) {
			continue
		}
		path := joinPath(testDir, e.Name)
		whole, err := vfs.ReadFile(disk, path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for n := -1; n < len(whole); n++ {
			if n < 0 {
				if err := disk.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else if f, err := disk.Create(path); err != nil {
				t.Fatal(err)
			} else if _, err := f.WriteAt(whole[:n], 0); err != nil {
				t.Fatal(err)
			} else if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if r := verify(t, disk, testDir, VerifyOptions{}); !r.OK() || len(r.Notes) != 1 {
				t.Fatalf("%s cut to %d of %d bytes: %+v", path, n, len(whole), r)
			}
			if n%7 == 0 || n < 0 {
				repaired(t, disk, path, whole)
			}
		}
		if r := verify(t, disk, testDir, VerifyOptions{}); len(r.Notes) > 0 {
			repaired(t, disk, path, whole)
		}
	}
}

func repaired(t *testing.T, disk *memfs.FS, path string, want []byte) {
	t.Helper()
	logs := logFiles(t, disk)
	r, err := RepairIndexes(disk, testDir, VerifyOptions{IndexIntervalBytes: 512})
	if err != nil || len(r.Indexes) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got, err := vfs.ReadFile(disk, path, 1<<20); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s is not as it was, %v", path, err)
	}
	if !slices.Equal(logFiles(t, disk), logs) {
		t.Fatal("a .log file was changed")
	}
	if r := verify(t, disk, testDir, VerifyOptions{}); !r.OK() || len(r.Notes) > 0 {
		t.Fatalf("%+v", r)
	}
}

func logFiles(t *testing.T, disk *memfs.FS) []string {
	t.Helper()
	bases, err := listSegments(disk, testDir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, base := range bases {
		b, err := vfs.ReadFile(disk, segmentPath(testDir, base, logSuffix), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(b))
	}
	return out
}

// Damaged indexes and epochs are made anew; a damaged .log keeps its fault, and its
// index goes as far as the batches before.
func TestRepairDamage(t *testing.T) {
	disk := verifiable(t)
	for _, name := range []string{"00000000000000000000.index", "00000000000000000000.timeindex", epochFile} {
		overwrite(t, disk, joinPath(testDir, name), func(b []byte) []byte { b[len(b)/2] ^= 4; return b })
	}
	before := verify(t, disk, testDir, VerifyOptions{})
	r, err := RepairIndexes(disk, testDir, VerifyOptions{})
	if err != nil || !r.Epochs || len(r.Indexes) != 1 || r.Before.FaultCount != before.FaultCount || before.FaultCount != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if r := verify(t, disk, testDir, VerifyOptions{}); !r.OK() {
		t.Fatalf("%+v", r)
	}
	if err := disk.Remove(joinPath(testDir, epochFile)); err != nil {
		t.Fatal(err)
	}
	if r, err := RepairIndexes(disk, testDir, VerifyOptions{}); err != nil || !r.Epochs {
		t.Fatalf("%+v, %v", r, err)
	}
	l, report := mustOpen(t, func() Options { o := testOptions(disk); o.CleanShutdown = true; return o }())
	if !report.Clean || report.End != 16 || l.LatestEpoch() != 3 {
		t.Fatalf("%+v", report)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	overwrite(t, disk, segmentPath(testDir, 0, logSuffix), func(b []byte) []byte { b[400] ^= 1; return b })
	if err := disk.Remove(segmentPath(testDir, 0, indexSuffix)); err != nil {
		t.Fatal(err)
	}
	if r, err := RepairIndexes(disk, testDir, VerifyOptions{IndexIntervalBytes: 512}); err != nil || len(r.Indexes) != 1 || r.Before.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	if r := verify(t, disk, testDir, VerifyOptions{}); r.FaultCount != 1 || r.FirstFault().Path != segmentPath(testDir, 0, logSuffix) {
		t.Fatalf("%+v", r)
	}
}

// A folder in which a compaction was interrupted reads as the next start will see it.
func TestVerifyInterruptedReplacement(t *testing.T) {
	disk := verifiable(t)
	if err := disk.Rename(segmentPath(testDir, 0, logSuffix), swapPath(testDir, 0, lastBase(t, disk))); err != nil {
		t.Fatal(err)
	}
	r := verify(t, disk, testDir, VerifyOptions{})
	if !r.OK() || r.End != 16 || r.Segments != 2 || len(r.Notes) == 0 {
		t.Fatalf("%+v", r)
	}
}
