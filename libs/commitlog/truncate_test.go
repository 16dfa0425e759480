package commitlog

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/errorfs"
)

// at sets what a leader would have set in a batch.
func at(b []byte, offset int64, epoch int32) []byte {
	b = append([]byte(nil), b...)
	record.PatchBaseOffset(b, offset)
	record.PatchPartitionLeaderEpoch(b, epoch)
	return b
}

func mustAppendAt(t testing.TB, l *Log, b []byte) AppendInfo {
	t.Helper()
	info, err := l.AppendAt([][]byte{b[:70], b[70:]})
	if err != nil {
		t.Fatalf("append at: %v", err)
	}
	return info
}

// A truncation down into a segment whose index has lost entries leaves one that is whole:
// lookups and the next start go by it.
func TestTruncationMakesAMissingIndexAnew(t *testing.T) {
	for kept := range 3 {
		fsys := newFS(t)
		o := testOptions(fsys)
		o.Config.IndexIntervalBytes = 1
		l, _ := mustOpen(t, o)
		for i := range 6 {
			mustAppend(t, l, batch(t, 2, strings.Repeat("t", 7000), int64(i)), 1)
		}
		end := l.EndOffset()
		if l.Segments() < 2 || l.segs[1].base < 6 {
			t.Fatalf("%d segments", l.Segments())
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		overwrite(t, fsys, segmentPath(testDir, 0, indexSuffix), func(b []byte) []byte { return b[:kept*offsetEntrySize] })
		o.RecoveryPoint, o.HighWatermark, o.CleanShutdown = end, 0, true
		l, _ = mustOpen(t, o)
		if end, err := l.TruncateTo(6); err != nil || end != 6 {
			t.Fatal(end, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.RecoveryPoint = 6
		if _, report := mustOpen(t, o); !report.Clean || report.End != 6 {
			t.Fatalf("%d entries left: %+v after a clean stop", kept, report)
		}
	}
}

// Truncation at every offset of a log of several segments and epochs, in batches of
// two records: what is left is what was there, and the log goes on from there, also
// after a crash.
func TestTruncateTo(t *testing.T) {
	disk := newFS(t)
	fill := func(l *Log) []string {
		var all []string
		for i := 0; l.Segments() < 4; i++ {
			tag := fmt.Sprintf("%d:%s", i, strings.Repeat("t", 7000))
			mustAppend(t, l, batch(t, 2, tag, int64(100+i)), int32(i/4))
			all = append(all, tag+"-0", tag+"-1")
		}
		return all
	}
	for offset := int64(0); ; offset++ {
		if err := disk.RemoveAll(testDir); err != nil {
			t.Fatal(err)
		}
		o := testOptions(disk)
		l, _ := mustOpen(t, o)
		want := fill(l)
		if offset > int64(len(want)) {
			break
		}
		if offset%3 != 0 {
			mustSync(t, l)
		}
		end, err := l.TruncateTo(offset)
		if err != nil || end != offset/2*2 || l.EndOffset() != end || l.DurableEnd() > end {
			t.Fatalf("truncated to %d: %d, %v; durable %d", offset, end, err, l.DurableEnd())
		}
		check := func(l *Log, when string) {
			t.Helper()
			got := values(readAll(t, l, 0, 1<<40))
			if len(got) != int(end) {
				t.Fatalf("truncated to %d, %s: %d records", offset, when, len(got))
			}
			for i, v := range got {
				if v != want[i] {
					t.Fatalf("truncated to %d, %s: record %d is another one", offset, when, i)
				}
			}
			lastBatch := (end - 2) / 2
			for e := int32(0); e < 30; e++ {
				epochEnd, ok := l.EndOffsetForEpoch(e)
				if wantEnd := min(int64(e+1)*8, end); ok != (end > 0) || ok && epochEnd.EndOffset != wantEnd && int64(e) <= lastBatch/4 {
					t.Fatalf("truncated to %d, %s: epoch %d ends at %+v", offset, when, e, epochEnd)
				}
			}
			// case 6: lookups by timestamp are rolled back as well.
			for i := int64(0); i < int64(len(want))/2; i++ {
				at, err := l.OffsetForTimestamp(100+i, 1<<40)
				if found := i <= lastBatch+1 && end > 0; err != nil || i <= lastBatch && (!found || at.Offset > 2*i) || i > lastBatch+1 && at.Found {
					t.Fatalf("truncated to %d, %s: timestamp %d: %+v, %v", offset, when, 100+i, at, err)
				}
			}
		}
		check(l, "at once")
		if offset%2 == 0 {
			disk.Crash(nil)
		} else if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.RecoveryPoint, o.CleanShutdown = l.DurableEnd(), offset%2 != 0
		l, report := mustOpen(t, o)
		if offset%3 == 0 && offset%2 == 0 && report.End < end {
			continue // it was not synced
		}
		if report.Clean != o.CleanShutdown || report.CutBytes != 0 {
			t.Fatalf("truncated to %d: %+v", offset, report)
		}
		check(l, "opened again")
		if rebuilt(l) {
			t.Fatalf("truncated to %d: an index was made anew", offset)
		}
		if info := mustAppend(t, l, batch(t, 2, "next", 1), 50); info.BaseOffset != end {
			t.Fatalf("truncated to %d: %+v", offset, info)
		}
		want = append(want[:end], "next-0", "next-1")
		end += 2
		mustSync(t, l)
		if got := values(readAll(t, l, 0, 1<<40)); len(got) != int(end) || got[end-1] != "next-1" {
			t.Fatalf("truncated to %d: %d records after an append", offset, len(got))
		}
		if err := l.Abort(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTruncateBounds(t *testing.T) {
	disk := newFS(t)
	o := testOptions(disk)
	l, _ := mustOpen(t, o)
	for range 5 {
		mustAppend(t, l, batch(t, 4, "x", 1), 3)
	}
	if err := l.AdvanceLogStart(6); err != nil {
		t.Fatal(err)
	}
	var outOfRange *OffsetOutOfRangeError
	if _, err := l.TruncateTo(5); !errors.As(err, &outOfRange) {
		t.Fatalf("%v", err)
	}
	if end, err := l.TruncateTo(99); err != nil || end != 20 {
		t.Fatal(end, err)
	}
	// The batch that holds the log's start reaches across: nothing can stay.
	if end, err := l.TruncateTo(7); err != nil || end != 6 || l.StartOffset() != 6 || l.EndOffset() != 6 || l.LatestEpoch() != record.NoLeaderEpoch {
		t.Fatal(end, err, l.StartOffset(), l.EndOffset())
	}
	if info := mustAppend(t, l, batch(t, 1, "y", 1), 4); info.BaseOffset != 6 {
		t.Fatalf("%+v", info)
	}
	mustSync(t, l)
	disk.Crash(nil)
	if l, r := mustOpen(t, o); r.Start != 6 || r.End != 7 || l.LatestEpoch() != 4 {
		t.Fatalf("%+v", r)
	}
}

// A follower whose leader begins above its end starts anew there.
func TestResetTo(t *testing.T) {
	for _, to := range []int64{0, 7, 5_000_000_000} {
		disk := newFS(t)
		l, _ := segmented(t, disk, 4)
		if err := l.ResetTo(to); err != nil || l.StartOffset() != to || l.EndOffset() != to || l.DurableEnd() != to || l.Segments() != 1 {
			t.Fatalf("%v: %d to %d", err, l.StartOffset(), l.EndOffset())
		}
		mustAppendAt(t, l, at(batch(t, 2, "r", 1), to, 8))
		mustSync(t, l)
		disk.Crash(nil)
		l, r := mustOpen(t, testOptions(disk))
		if r.Start != to || r.End != to+2 {
			t.Fatalf("%+v", r)
		}
		if got := values(readAll(t, l, to, 1<<40)); len(got) != 2 || got[1] != "r-1" {
			t.Fatalf("%v", got)
		}
	}
}

// Truncation, and a reset, cut at every step.
func TestCrashDuringTruncation(t *testing.T) {
	cuts := 0
	for name, keeper := range keepers() {
		for _, reset := range []bool{false, true} {
			for step := 0; ; step += crashStride {
				disk := newFS(t)
				faulty := errorfs.Wrap(disk)
				l, want := segmented(t, faulty, 5)
				to := l.segs[1].base + 3
				powerCut(faulty, step)
				var err error
				if reset {
					err = l.ResetTo(1000)
				} else {
					_, err = l.TruncateTo(to)
				}
				disk.Crash(keeper(step))
				cuts++
				where := fmt.Sprintf("%s, reset %v, cut at step %d", name, reset, step)
				for cut := range 10 {
					again := errorfs.Wrap(disk)
					powerCut(again, cut)
					o := testOptions(again)
					if l, _, err := Open(o); err == nil {
						_ = l.Abort()
						break
					}
					disk.Crash(keeper(step + cut))
				}
				o := testOptions(disk)
				o.RecoveryPoint = to
				if reset {
					o.RecoveryPoint = 0
				}
				again, r := mustOpen(t, o)
				switch {
				case reset && r.Start == 1000:
					if r.End != 1000 {
						t.Fatalf("%s: %+v", where, r)
					}
				case err == nil && (reset || r.End != to), r.End < to, r.Start != 0:
					t.Fatalf("%s: %+v", where, r)
				default:
					got := values(readAll(t, again, 0, 1<<40))
					if int64(len(got)) != r.End {
						t.Fatalf("%s: %d records of %d", where, len(got), r.End)
					}
					for i, v := range got {
						if v != want[i] {
							t.Fatalf("%s: record %d is another one", where, i)
						}
					}
				}
				mustAppend(t, again, batch(t, 1, "next", 1), 70)
				mustSync(t, again)
				if err == nil {
					break
				}
			}
		}
	}
	t.Logf("%d cuts", cuts)
	if cuts < 60/crashStride {
		t.Fatal("too few points were met")
	}
}

// case 5: batches of a compacted leader, whose offsets leave gaps, some more than
// 2^31 wide: the segment rolls at the batch's own base offset before the append.
func TestAppendAtAcrossGaps(t *testing.T) {
	disk := newFS(t)
	o := testOptions(disk)
	l, _ := mustOpen(t, o)
	bases := []int64{
		0, 2, 10, 11_000_000, 11_000_002, math.MaxInt32 - 3, math.MaxInt32 - 1, math.MaxInt32 + 1, math.MaxInt32 + 5,
		3 * math.MaxInt32, 1 << 40, 1<<40 + 2, 1<<40 + math.MaxInt32 - 2, 1<<40 + math.MaxInt32,
	}
	for i, base := range bases {
		info := mustAppendAt(t, l, at(batch(t, 2, fmt.Sprint(base), int64(i)), base, int32(i/3)))
		if info.BaseOffset != base || info.LastOffset != base+1 || base+1-info.SegmentBase > math.MaxInt32 || info.MaxTimestamp != int64(i+1) {
			t.Fatalf("%+v", info)
		}
	}
	var order *OutOfOrderError
	if _, err := l.AppendAt([][]byte{at(batch(t, 1, "x", 1), bases[len(bases)-1]+1, 9)}); !errors.As(err, &order) {
		t.Fatalf("%v", err)
	}
	var stale *StaleEpochError
	if _, err := l.AppendAt([][]byte{at(batch(t, 1, "x", 1), bases[len(bases)-1]+2, 1)}); !errors.As(err, &stale) {
		t.Fatalf("%v", err)
	}
	end := mustSync(t, l)
	check := func(l *Log) {
		t.Helper()
		got := readAll(t, l, 0, 1<<50)
		if len(got) != 2*len(bases) {
			t.Fatalf("%d records", len(got))
		}
		for i, r := range got {
			if base := bases[i/2]; r.Offset != base+int64(i%2) || string(r.Value) != fmt.Sprintf("%d-%d", base, i%2) {
				t.Fatalf("record %d: offset %d, %q", i, r.Offset, r.Value)
			}
		}
		for i, base := range bases {
			from := int64(0)
			if i > 0 {
				from = bases[i-1] + 2
			}
			for _, offset := range []int64{from, (from + base) / 2, base, base + 1} {
				if res, err := l.Read(offset, 1<<50, 1, alloc); err != nil || res.FirstBatchBase != base {
					t.Fatalf("offset %d: %+v, %v", offset, res, err)
				}
			}
			// Up to the middle of a gap there is nothing, and reading goes on there.
			if mid := (from + base) / 2; mid > from {
				if res, err := l.Read(from, mid, 1, alloc); err != nil || len(res.Data) > 0 || res.NextOffset != mid {
					t.Fatalf("from %d up to %d: %+v, %v", from, mid, res, err)
				}
			}
		}
	}
	check(l)
	disk.Crash(nil)
	o.HighWatermark = end
	l, r := mustOpen(t, o)
	if r.End != end || r.CutBytes != 0 {
		t.Fatalf("%+v", r)
	}
	check(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o.CleanShutdown = true
	l, r = mustOpen(t, o)
	if !r.Clean || r.End != end {
		t.Fatalf("%+v", r)
	}
	check(l)
	// Truncated into a gap, the log ends there all the same: offsets below were perhaps
	// committed, and are not given away again. So it does after a crash.
	gapEnd := int64(1<<40 + 100)
	if got, err := l.TruncateTo(gapEnd); err != nil || got != gapEnd {
		t.Fatal(got, err)
	}
	disk.Crash(nil)
	o.CleanShutdown, o.HighWatermark, o.RecoveryPoint = false, gapEnd, 0
	l, r = mustOpen(t, o)
	if r.End != gapEnd || l.LatestEpoch() != 3 {
		t.Fatalf("%+v, epoch %d", r, l.LatestEpoch())
	}
	if info := mustAppendAt(t, l, at(batch(t, 1, "on", 1), gapEnd, 9)); info.BaseOffset != gapEnd {
		t.Fatalf("%+v", info)
	}
	// And where the log starts in the gap.
	if err := l.AdvanceLogStart(gapEnd - 5); err != nil {
		t.Fatal(err)
	}
	if got, err := l.TruncateTo(gapEnd); err != nil || got != gapEnd || l.StartOffset() != gapEnd-5 {
		t.Fatal(got, err, l.StartOffset())
	}
}

// A batch that was to open a segment behind a gap finds no room. What comes instead may
// lie in that gap, from another leader or from this log as the leader: it is found there,
// and not taken for damage after a restart.
func TestNoRoomBehindAGap(t *testing.T) {
	for name, appendIn := range map[string]func(l *Log, offset int64, b []byte) (AppendInfo, error){
		"follows": func(l *Log, offset int64, b []byte) (AppendInfo, error) {
			return l.AppendAt([][]byte{at(b, offset+2, 1)})
		},
		"leads": func(l *Log, _ int64, b []byte) (AppendInfo, error) { return l.Append([][]byte{b}, 1) },
	} {
		for _, gap := range []int64{500, 2 * math.MaxInt32} {
			disk := newFS(t)
			fsys := errorfs.Wrap(disk)
			l, _ := mustOpen(t, testOptions(fsys))
			big := strings.Repeat("b", 9000)
			for l.active().size.Load()+9000 < MinSegmentBytes {
				mustAppend(t, l, batch(t, 1, big, 1), 0)
			}
			end := l.EndOffset()
			fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite}, Path: "*.log", Err: syscall.ENOSPC, Times: 1})
			var full *NoSpaceError
			if _, err := l.AppendAt([][]byte{at(batch(t, 1, big, 1), end+gap, 0)}); !errors.As(err, &full) {
				t.Fatal(err)
			}
			info, err := appendIn(l, end, batch(t, 1, big, 1))
			if gap > math.MaxInt32 {
				// No segment reaches so far. Rather none than one that is not found again.
				if !errors.Is(err, ErrFailed) {
					t.Fatalf("%s: %+v, %v", name, info, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for range 2 {
				if got := readAll(t, l, end, math.MaxInt64); len(got) != 1 || got[0].Offset != info.BaseOffset {
					t.Fatalf("%s: %d records, want one at %d", name, len(got), info.BaseOffset)
				}
				o := testOptions(disk)
				o.HighWatermark = mustSync(t, l)
				if err := l.Abort(); err != nil {
					t.Fatal(err)
				}
				disk.Crash(nil)
				l, _ = mustOpen(t, o)
			}
		}
	}
}

// A follower's log with gaps that loses, with the power, the end of one segment and
// not the next: what comes behind is not taken for the other side of a gap.
func TestGapIsNoHole(t *testing.T) {
	disk := newFS(t)
	l, _ := mustOpen(t, testOptions(disk))
	mustAppendAt(t, l, at(batch(t, 1, "a", 1), 0, 0))
	mustSync(t, l)
	next := int64(10)
	for l.Segments() < 3 {
		mustAppendAt(t, l, at(batch(t, 1, strings.Repeat("g", 9000), 1), next, 0))
		next += 3
	}
	second := l.segs[1].base
	// Whatever the disk keeps, it keeps all of the first segment.
	if err := disk.SyncDir(testDir); err != nil {
		t.Fatal(err)
	}
	disk.Crash(nil)
	l, r := mustOpen(t, testOptions(disk))
	got := offsets(readAll(t, l, 0, 1<<40))
	for i, offset := range got[1:] {
		if offset != 10+3*int64(i) {
			t.Fatalf("offset %d at place %d: %v", offset, i+1, r)
		}
	}
	if want := 1 + (second-10)/3; int64(len(got)) < want {
		t.Fatalf("%d records, want %d: %+v", len(got), want, r)
	}
}

// A truncation that meets damage below the place where it cuts, or a full disk, changes
// nothing, and the log goes on.
func TestTruncateChangesNothingWhereItFails(t *testing.T) {
	disk := newFS(t)
	faulty := errorfs.Wrap(disk)
	l, _ := mustOpen(t, testOptions(faulty))
	for i := range 6 {
		mustAppend(t, l, batch(t, 1, strings.Repeat("d", 1000), int64(100+i)), int32(i/3))
	}
	mustSync(t, l)
	unchanged := func(what string) {
		t.Helper()
		if l.Err() != nil || l.EndOffset() != 6 || l.LatestEpoch() != 1 {
			t.Fatalf("%s: the log ends at %d in epoch %d: %v", what, l.EndOffset(), l.LatestEpoch(), l.Err())
		}
	}

	faulty.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpCreate, errorfs.OpWrite}, Err: syscall.ENOSPC})
	var full *NoSpaceError
	if _, err := l.TruncateTo(3); !errors.As(err, &full) {
		t.Fatalf("on a full disk: %v", err)
	}
	faulty.Clear()
	unchanged("after a full disk")

	f, err := disk.Open(segmentPath(testDir, 0, logSuffix))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	magic := make([]byte, 1)
	if _, err := f.ReadAt(magic, 16); err != nil {
		t.Fatal(err)
	}
	flip := func(to byte) {
		t.Helper()
		if _, err := f.WriteAt([]byte{to}, 16); err != nil {
			t.Fatal(err)
		}
	}
	flip(7)
	var corrupt *CorruptError
	if _, err := l.TruncateTo(5); !errors.As(err, &corrupt) || errors.Is(err, ErrFailed) {
		t.Fatalf("in a damaged log: %v", err)
	}
	unchanged("after damage")
	flip(magic[0])
	if end, err := l.TruncateTo(3); err != nil || end != 3 || l.LatestEpoch() != 0 {
		t.Fatalf("ends at %d in epoch %d: %v", end, l.LatestEpoch(), err)
	}
}
