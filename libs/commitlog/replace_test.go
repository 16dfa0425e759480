package commitlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// segmented opens a log of about n segments of one-record batches, all synced, and
// returns the values by offset.
func segmented(t testing.TB, fsys vfs.FS, n int) (*Log, []string) {
	t.Helper()
	l, _, err := Open(testOptions(fsys))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := 0; l.Segments() < n; i++ {
		tag := fmt.Sprintf("%d:%s", i, strings.Repeat("r", 7000))
		mustAppend(t, l, batch(t, 1, tag, int64(100+i)), int32(i/6))
		want = append(want, tag+"-0")
	}
	mustSync(t, l)
	return l, want
}

// thin copies the batches of segments for which keep says so.
func thin(l *Log, old []*segment, keep func(offset int64) bool) func(w *segmentWriter) error {
	return func(w *segmentWriter) error {
		for offset, end := old[0].base, old[len(old)-1].sealedAt.Load(); offset < end; {
			res, err := l.Read(offset, end, 1, alloc)
			if err != nil {
				return err
			}
			if len(res.Data) > 0 && keep(res.FirstBatchBase) {
				if err := w.append(res.Data); err != nil {
					return err
				}
			}
			offset = res.NextOffset
		}
		return nil
	}
}

// offsets lists where records are.
func offsets(records []record.Record) []int64 {
	out := make([]int64, len(records))
	for i, r := range records {
		out[i] = r.Offset
	}
	return out
}

// checkThinned compares a log with its values less those that were taken out.
func checkThinned(t testing.TB, l *Log, want []string, gone func(offset int64) bool, where string) {
	t.Helper()
	var survivors []int64
	for i := range want {
		if !gone(int64(i)) {
			survivors = append(survivors, int64(i))
		}
	}
	got := readAll(t, l, l.StartOffset(), 1<<40)
	if !slices.Equal(offsets(got), survivors) {
		t.Fatalf("%s: offsets %v, want %v", where, offsets(got), survivors)
	}
	for _, r := range got {
		if string(r.Value) != want[r.Offset] {
			t.Fatalf("%s: offset %d has another value", where, r.Offset)
		}
	}
	// Every offset can be asked for, also those that are gone, and every timestamp.
	for i := range want {
		next, _ := slices.BinarySearch(survivors, int64(i))
		res, err := l.Read(int64(i), 1<<40, 1, alloc)
		at, err2 := l.OffsetForTimestamp(int64(100+i), 1<<40)
		if err != nil || err2 != nil {
			t.Fatalf("%s: offset %d: %v, %v", where, i, err, err2)
		}
		if next == len(survivors) {
			if len(res.Data) > 0 || at.Found {
				t.Fatalf("%s: offset %d: %d bytes, %+v", where, i, len(res.Data), at)
			}
			continue
		}
		if s := survivors[next]; res.FirstBatchBase != s || res.NextOffset != s+1 || at.Offset != s {
			t.Fatalf("%s: offset %d: batch %d, next %d, by timestamp %+v; want %d", where, i, res.FirstBatchBase, res.NextOffset, at, s)
		}
	}
}

func TestReplaceSegments(t *testing.T) {
	for name, gone := range map[string]func(base, end int64) func(int64) bool{
		"every other batch": func(base, end int64) func(int64) bool {
			return func(o int64) bool { return o >= base && o < end && o%2 == 0 }
		},
		"all": func(base, end int64) func(int64) bool { return func(o int64) bool { return o >= base && o < end } },
		"all but one": func(base, end int64) func(int64) bool {
			return func(o int64) bool { return o >= base && o < end && o != base+3 }
		},
		"none": func(base, end int64) func(int64) bool { return func(int64) bool { return false } },
	} {
		for first := range 3 {
			t.Run(fmt.Sprintf("%s from segment %d", name, first), func(t *testing.T) {
				disk := newFS(t)
				l, want := segmented(t, disk, 6)
				old := l.segs[first : first+3]
				missing := gone(old[0].base, old[2].sealedAt.Load())
				if err := l.replaceSegments(old, thin(l, old, func(o int64) bool { return !missing(o) })); err != nil {
					t.Fatal(err)
				}
				if l.Segments() != 4 {
					t.Fatalf("%d segments", l.Segments())
				}
				checkThinned(t, l, want, missing, "at once")
				if rebuilt(l) {
					t.Fatal("an index was made anew")
				}
				mustAppend(t, l, batch(t, 1, "more", int64(100+len(want))), 90)
				want = append(want, "more-0")
				end := mustSync(t, l)
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				o := testOptions(disk)
				for _, o.CleanShutdown = range []bool{true, false} {
					o.HighWatermark = end
					l, report := mustOpen(t, o)
					if report.Clean != o.CleanShutdown || report.End != end || report.CutBytes != 0 {
						t.Fatalf("%+v", report)
					}
					checkThinned(t, l, want, missing, fmt.Sprintf("opened, clean %v", o.CleanShutdown))
					if err := l.Abort(); err != nil {
						t.Fatal(err)
					}
				}
				for _, suffix := range []string{indexSuffix, timeIndexSuffix} {
					overwrite(t, disk, segmentPath(testDir, old[0].base, suffix), func([]byte) []byte { return nil })
				}
				o.CleanShutdown = true
				l, _ = mustOpen(t, o)
				checkThinned(t, l, want, missing, "without indexes")
			})
		}
	}
}

// case 13: a replacement cut between any two steps leaves every survivor exactly
// once: the old segments or the new one.
func TestCrashDuringReplacement(t *testing.T) {
	cuts, replaced, kept := 0, 0, 0
	for name, keeper := range keepers() {
		for step := 0; ; step += crashStride {
			disk := newFS(t)
			faulty := errorfs.Wrap(disk)
			l, want := segmented(t, faulty, 5)
			end := l.DurableEnd()
			old := l.segs[1:4]
			base, limit := old[0].base, old[2].sealedAt.Load()
			missing := func(o int64) bool { return o >= base && o < limit && o%3 != 0 }
			powerCut(faulty, step)
			err := l.replaceSegments(old, thin(l, old, func(o int64) bool { return !missing(o) }))
			done := err == nil
			disk.Crash(keeper(step))
			cuts++
			where := fmt.Sprintf("%s, cut at step %d", name, step)
			// Recovery is cut as well.
			for cut := range 8 {
				again := errorfs.Wrap(disk)
				powerCut(again, cut)
				if reopen(again, &history{noted: end, synced: end}) == nil {
					break
				}
				disk.Crash(keeper(step + cut))
			}
			o := testOptions(disk)
			o.RecoveryPoint, o.HighWatermark = end, end
			l, _ = mustOpen(t, o)
			if l.Segments() == 3 {
				replaced++
				checkThinned(t, l, want, missing, where)
			} else {
				kept++
				checkThinned(t, l, want, func(int64) bool { return false }, where)
			}
			entries, err := disk.ReadDir(testDir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if strings.Contains(e.Name, cleanedSuffix) || strings.Contains(e.Name, swapSuffix) {
					t.Fatalf("%s: %s is left", where, e.Name)
				}
			}
			if done {
				break
			}
		}
	}
	t.Logf("%d cuts: %d times the new segment, %d times the old ones", cuts, replaced, kept)
	if cuts < 50/crashStride || replaced < 10/crashStride || kept < 10/crashStride {
		t.Fatal("too few points were met")
	}
}

// A full disk, met at any call, undoes the replacement; the log goes on.
func TestReplacementWithoutSpace(t *testing.T) {
	for _, op := range []errorfs.Op{errorfs.OpWrite, errorfs.OpCreate} {
		met := 0
		for after := 0; ; after++ {
			disk := newFS(t)
			faulty := errorfs.Wrap(disk)
			l, want := segmented(t, faulty, 5)
			old := l.segs[1:4]
			faulty.Add(errorfs.Rule{Ops: []errorfs.Op{op}, After: after, Times: 1, Err: syscall.ENOSPC})
			err := l.replaceSegments(old, thin(l, old, func(o int64) bool { return true }))
			if err == nil {
				break
			}
			met++
			var full *NoSpaceError
			if !errors.As(err, &full) || l.Err() != nil {
				t.Fatalf("%s %d: %v, %v", op, after, err, l.Err())
			}
			if n := len(mustReadDir(t, disk)); n != 3*5+3 && n != 3*5+2 {
				t.Fatalf("%s %d: %d files", op, after, n)
			}
			if err := l.replaceSegments(old, thin(l, old, func(o int64) bool { return true })); err != nil {
				t.Fatal(err)
			}
			checkThinned(t, l, want, func(int64) bool { return false }, fmt.Sprintf("%s %d", op, after))
			if err := l.Abort(); err != nil {
				t.Fatal(err)
			}
		}
		// A full disk keeps no index from being used: it is made anew.
		if met < 1 {
			t.Fatalf("%s was met %d times", op, met)
		}
	}
}

// mustReadDir lists the replica's folder, but for unfinished small files and
// snapshots of producers.
func mustReadDir(t testing.TB, disk *memfs.FS) []string {
	t.Helper()
	entries, err := disk.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, ".tmp") && !strings.HasSuffix(e.Name, snapshotSuffix) {
			names = append(names, e.Name)
		}
	}
	return names
}

// Segments that went away while their replacement was written stay away.
func TestReplaceWhatIsGone(t *testing.T) {
	disk := newFS(t)
	l, want := segmented(t, disk, 6)
	old := l.segs[1:3]
	err := l.replaceSegments(old, func(*segmentWriter) error {
		return l.replaceSegments(old, thin(l, old, func(int64) bool { return true }))
	})
	if !errors.Is(err, errSegmentsChanged) {
		t.Fatalf("%v", err)
	}
	checkThinned(t, l, want, func(int64) bool { return false }, "afterwards")
	boom := errors.New("boom")
	if err := l.replaceSegments(l.segs[:2], func(*segmentWriter) error { return boom }); !errors.Is(err, boom) || l.Err() != nil {
		t.Fatalf("%v, %v", err, l.Err())
	}
}
