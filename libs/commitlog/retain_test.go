package commitlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/vfs/errorfs"
)

// aged fills a log with segments of one-record batches, a minute apart from one
// segment to the next by their timestamps.
func aged(t testing.TB, o Options, segments int) *Log {
	t.Helper()
	l, _ := mustOpen(t, o)
	start := o.Now().UnixMilli()
	for l.Segments() < segments {
		n := l.Segments()
		mustAppend(t, l, batch(t, 1, strings.Repeat("a", 9000), start+int64(n)*60_000), 0)
	}
	mustSync(t, l)
	return l
}

func mustRetain(t testing.TB, l *Log, now time.Time, hw int64) RetainResult {
	t.Helper()
	res, err := l.Retain(now, hw)
	if err != nil {
		t.Fatalf("retain: %v", err)
	}
	return res
}

func TestRetentionByTime(t *testing.T) {
	disk := newFS(t)
	clock := newClock()
	o := testOptions(disk)
	o.Now = clock.Now
	o.Config.RetentionAge = 10 * time.Minute
	o.Config.SegmentAge = 24 * time.Hour
	l := aged(t, o, 5)
	hw := l.EndOffset()
	if res := mustRetain(t, l, clock.now.Add(11*time.Minute), hw); res.Segments != 0 {
		t.Fatalf("%+v", res)
	}
	second := l.segs[1].base
	now := clock.now.Add(11*time.Minute + time.Second)
	if res := mustRetain(t, l, now, hw); res.Segments != 1 || res.Start != second || l.StartOffset() != second || res.Bytes < 60_000 {
		t.Fatalf("%+v", res)
	}
	var outOfRange *OffsetOutOfRangeError
	if _, err := l.Read(second-1, hw, 1, alloc); !errors.As(err, &outOfRange) || outOfRange.Start != second {
		t.Fatalf("%v", err)
	}
	if got := readAll(t, l, second, hw); int64(len(got)) != hw-second {
		t.Fatalf("%d records", len(got))
	}
	if at, err := l.OffsetForTimestamp(TimestampEarliest, hw); err != nil || at.Offset != second {
		t.Fatalf("%+v, %v", at, err)
	}
	// The files lie there for a while, under a name of their own.
	if n := len(mustReadDir(t, disk)); n != 4*3+3+3 {
		t.Fatalf("%v", mustReadDir(t, disk))
	}
	if res := mustRetain(t, l, now.Add(DefaultFileDeleteDelay), hw); res.Removed != 1 || len(mustReadDir(t, disk)) != 4*3+3 {
		t.Fatalf("%+v, %v", res, mustReadDir(t, disk))
	}
	// When even the youngest record is too old, the active segment goes too. (The
	// second one has gone with the last call.)
	res := mustRetain(t, l, clock.now.Add(time.Hour), hw)
	if res.Segments != 3 || !res.Rolled || l.StartOffset() != hw || l.Segments() != 1 {
		t.Fatalf("%+v", res)
	}
	if info := mustAppend(t, l, batch(t, 1, "next", 1), 0); info.BaseOffset != hw {
		t.Fatalf("%+v", info)
	}
	end := mustSync(t, l)
	disk.Crash(nil)
	o.HighWatermark = end
	l, report := mustOpen(t, o)
	if report.Start != hw || report.End != end || l.StartOffset() != hw {
		t.Fatalf("%+v", report)
	}
	if n := len(mustReadDir(t, disk)); n != 3+3 {
		t.Fatalf("%v", mustReadDir(t, disk))
	}
}

// case 7: a record stamped with the year 2100 keeps nothing.
func TestRetentionIgnoresTheFuture(t *testing.T) {
	for _, stamp := range []int64{time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(), -1} {
		disk := newFS(t)
		clock := newClock()
		o := testOptions(disk)
		o.Now = clock.Now
		o.Config.RetentionAge = time.Hour
		l, _ := mustOpen(t, o)
		for l.Segments() < 4 {
			mustAppend(t, l, batch(t, 1, strings.Repeat("f", 9000), stamp), 0)
		}
		hw := mustSync(t, l)
		if res := mustRetain(t, l, clock.now, hw); res.Segments != 0 {
			t.Fatalf("%+v", res)
		}
		if res := mustRetain(t, l, clock.now.Add(2*time.Hour), hw); res.Segments != 4 || l.StartOffset() != hw {
			t.Fatalf("stamp %d: %+v", stamp, res)
		}
	}
}

// case 8: retention.bytes below one segment, and a high watermark that lags: the
// active segment and everything at or above the high watermark stay.
func TestRetentionBySize(t *testing.T) {
	disk := newFS(t)
	o := testOptions(disk)
	o.Config.RetentionBytes = 1000
	l := aged(t, o, 6)
	now := o.Now()
	third, end := l.segs[2].base, l.EndOffset()
	if res := mustRetain(t, l, now, third+1); res.Segments != 2 || l.StartOffset() != third {
		t.Fatalf("%+v", res)
	}
	if got := readAll(t, l, third, end); int64(len(got)) != end-third {
		t.Fatalf("%d records", len(got))
	}
	if res := mustRetain(t, l, now, end); res.Segments != 3 || l.Segments() != 1 || l.active().size.Load() == 0 {
		t.Fatalf("%+v", res)
	}
	if res := mustRetain(t, l, now, end); res.Segments != 0 {
		t.Fatalf("%+v", res)
	}
	cfg := o.Config
	cfg.RetentionBytes, cfg.Cleanup = 1, CleanupCompact
	if err := l.SetConfig(cfg); err != nil {
		t.Fatal(err)
	}
	for l.Segments() < 3 {
		mustAppend(t, l, batch(t, 1, strings.Repeat("a", 9000), 1), 0)
	}
	if res := mustRetain(t, l, now, mustSync(t, l)); res.Segments != 0 {
		t.Fatalf("a compacted log lost %+v", res)
	}
}

// case 12, the log's part: DeleteRecords into the middle of segments and into the
// active one; also of a log that is compacted.
func TestDeleteRecords(t *testing.T) {
	for _, cleanup := range []Cleanup{CleanupDelete, CleanupCompact} {
		disk := newFS(t)
		o := testOptions(disk)
		o.Config.Cleanup = cleanup
		l := aged(t, o, 4)
		end := l.EndOffset()
		for _, start := range []int64{0, 3, l.segs[1].base + 2, l.segs[3].base + 1, end} {
			if err := l.AdvanceLogStart(start); err != nil {
				t.Fatal(err)
			}
			if err := l.AdvanceLogStart(max(0, start-2)); err != nil || l.StartOffset() != start {
				t.Fatalf("start %d, %v", l.StartOffset(), err)
			}
			if got := readAll(t, l, start, end); int64(len(got)) != end-start {
				t.Fatalf("%d records from %d", len(got), start)
			}
			if at, err := l.OffsetForTimestamp(0, end); err != nil || at.Found != (start < end) || at.Found && at.Offset != start {
				t.Fatalf("%+v, %v", at, err)
			}
			mustRetain(t, l, o.Now(), end)
			if first := l.segs[0]; first.base > start || first.sealedAt.Load() != notSealed && first.sealedAt.Load() <= start {
				t.Fatalf("the first segment begins at %d, the log at %d", first.base, start)
			}
			disk.Crash(nil)
			o.HighWatermark = end
			l, _ = mustOpen(t, o)
			if l.StartOffset() != start || l.EndOffset() != end {
				t.Fatalf("%d to %d, want %d to %d", l.StartOffset(), l.EndOffset(), start, end)
			}
		}
		var outOfRange *OffsetOutOfRangeError
		if err := l.AdvanceLogStart(end + 1); !errors.As(err, &outOfRange) {
			t.Fatalf("%v", err)
		}
		if info := mustAppend(t, l, batch(t, 1, "next", 1), 0); info.BaseOffset != end {
			t.Fatalf("%+v", info)
		}
	}
}

// What is deleted beyond the durable end makes it durable first.
func TestDeleteRecordsNotYetSynced(t *testing.T) {
	disk := newFS(t)
	o := testOptions(disk)
	l, _ := mustOpen(t, o)
	for range 5 {
		mustAppend(t, l, batch(t, 1, "x", 1), 0)
	}
	if err := l.AdvanceLogStart(4); err != nil {
		t.Fatal(err)
	}
	disk.Crash(nil)
	if _, report := mustOpen(t, o); report.Start != 4 || report.End != 5 {
		t.Fatalf("%+v", report)
	}
}

// A first segment that vanished is noticed at open, also after a clean stop.
func TestLostFirstSegment(t *testing.T) {
	disk := newFS(t)
	o := testOptions(disk)
	l := aged(t, o, 5)
	end := l.EndOffset()
	if err := l.AdvanceLogStart(l.segs[1].base); err != nil {
		t.Fatal(err)
	}
	mustRetain(t, l, o.Now(), end)
	path := l.segs[0].path()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := disk.Remove(path); err != nil {
		t.Fatal(err)
	}
	o.CleanShutdown, o.RecoveryPoint = true, end
	var corrupt *CorruptError
	if _, _, err := Open(o); !errors.As(err, &corrupt) || corrupt.Path != path {
		t.Fatalf("%v", err)
	}
}

// Retention and DeleteRecords cut at every step: a log that begins at the old start
// or at the new one, and is whole from there on.
func TestCrashDuringRetention(t *testing.T) {
	for name, keeper := range keepers() {
		for step := 0; ; step += crashStride {
			disk := newFS(t)
			faulty := errorfs.Wrap(disk)
			o := testOptions(faulty)
			o.Config.RetentionBytes = 100_000
			l := aged(t, o, 6)
			end := l.DurableEnd()
			starts := []int64{0, 2, l.segs[3].base}
			powerCut(faulty, step)
			err := l.AdvanceLogStart(2)
			floor := int64(0)
			if err == nil {
				floor = 2
				_, err = l.Retain(o.Now(), end)
			}
			if err == nil {
				floor = starts[2]
				_, err = l.Retain(o.Now().Add(time.Hour), end)
			}
			disk.Crash(keeper(step))
			where := fmt.Sprintf("%s, cut at step %d", name, step)
			o = testOptions(disk)
			o.RecoveryPoint, o.HighWatermark = end, end
			again, report := mustOpen(t, o)
			if !slices.Contains(starts, report.Start) || report.Start < floor || report.End != end {
				t.Fatalf("%s: %+v", where, report)
			}
			if got := readAll(t, again, report.Start, end); int64(len(got)) != end-report.Start {
				t.Fatalf("%s: %d records", where, len(got))
			}
			if err == nil {
				break
			}
		}
	}
}

// With durability=os a high watermark lies above what is durable. Retention cut at every
// step there: the log opens, and does not end below its start.
func TestCrashDuringRetentionOfWhatIsNotSynced(t *testing.T) {
	for step := 0; ; step++ {
		disk := newFS(t)
		faulty := errorfs.Wrap(disk)
		o := testOptions(faulty)
		o.Config.RetentionBytes = 1
		l, _ := mustOpen(t, o)
		for l.Segments() < 3 {
			mustAppend(t, l, batch(t, 1, strings.Repeat("a", 9000), 5), 0)
		}
		powerCut(faulty, step)
		_, err := l.Retain(o.Now(), l.EndOffset())
		disk.Crash(nil)
		again, report, openErr := Open(testOptions(disk))
		if openErr != nil || report.End < report.Start {
			t.Fatalf("cut at step %d: %+v, %v", step, report, openErr)
		}
		if err := again.Abort(); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			break
		}
	}
}

// What is remembered of producers whose records go outlives a power cut: the next batch
// of an idempotent one is taken, and is not said to be out of order for good.
func TestRetentionKeepsProducers(t *testing.T) {
	disk := newFS(t)
	clock := newClock()
	o := testOptions(disk)
	o.Now = clock.Now
	o.Config.RetentionAge = 10 * time.Minute
	l, _ := mustOpen(t, o)
	mustAppend(t, l, produced(t, 7, 0, 0, 3, false, 10), 0)
	if _, err := l.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, produced(t, 7, 0, 3, 2, false, 10), 0)
	o.RecoveryPoint = mustSync(t, l)
	o.HighWatermark = o.RecoveryPoint
	clock.now = clock.now.Add(time.Hour)
	if res := mustRetain(t, l, clock.now, 5); !res.Rolled || res.Start != 5 {
		t.Fatalf("%+v", res)
	}
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	disk.Crash(nil)
	l, report := mustOpen(t, o)
	if l.StartOffset() != 5 || l.EndOffset() != 5 {
		t.Fatalf("[%d,%d), %+v", l.StartOffset(), l.EndOffset(), report)
	}
	if got := l.CheckProducer(header(t, produced(t, 7, 0, 5, 1, false, 10))); got.Verdict != ProducerOK {
		t.Errorf("the next batch: %+v", got)
	}
	if got := l.CheckProducer(header(t, produced(t, 7, 0, 3, 2, false, 10))); got.Verdict != ProducerDuplicate || got.BaseOffset != 3 {
		t.Errorf("a retry of the last: %+v", got)
	}
}

// fillSegments appends batches of producer 8 from a sequence on, each of them durable,
// until the log has so many segments. Each begins behind a gap.
func fillSegments(t testing.TB, l *Log, segments int, gap int64) {
	t.Helper()
	for l.Segments() < segments {
		offset := l.EndOffset()
		if l.active().size.Load() > MinSegmentBytes-9000 {
			offset += gap
		}
		seq := int32(0)
		if p := l.producers.byID[8]; p != nil {
			seq = p.latest().lastSeq + 1
		}
		mustAppendAt(t, l, at(produced(t, 8, 0, seq, 1, false, 9000), offset, 0))
		mustSync(t, l)
	}
}

// deleteFirstSegment makes a log of many segments, takes the first one, in which there is
// all that producer 7 ever sent, out of it, and goes on. It returns where the log begins.
func deleteFirstSegment(t testing.TB, l *Log, gap int64) int64 {
	t.Helper()
	mustAppend(t, l, produced(t, 7, 0, 0, 3, false, 10), 0)
	fillSegments(t, l, 8, gap)
	base := l.segs[1].base
	if err := l.AdvanceLogStart(base); err != nil {
		t.Fatal(err)
	}
	if res := mustRetain(t, l, l.now(), base); res.Start != base || res.Segments != 1 {
		t.Fatalf("%+v, want one segment less, from %d on", res, base)
	}
	fillSegments(t, l, 12, gap)
	return base
}

func isKnownBelow(t testing.TB, l *Log, base int64) {
	t.Helper()
	if end, err := l.TruncateTo(base); end != base || err != nil {
		t.Fatal(end, err)
	}
	if got := l.CheckProducer(header(t, produced(t, 7, 0, 0, 3, false, 10))); got.Verdict != ProducerDuplicate || got.BaseOffset != 0 {
		t.Errorf("a retry of a batch that was deleted: %+v", got)
	}
}

// A truncation may go down to the log's start, however far what is durable lies above:
// what is remembered of producers whose records are deleted is not forgotten by it.
func TestTruncationKeepsProducersOfWhatIsDeleted(t *testing.T) {
	for _, gap := range []int64{0, 5} {
		l, _ := mustOpen(t, testOptions(newFS(t)))
		isKnownBelow(t, l, deleteFirstSegment(t, l, gap))
	}
}

// Where the disk was full when a segment was made, nothing tells yet what is remembered
// at its base: the segments before it stay until that is written down.
func TestRetentionWaitsForRoomForProducers(t *testing.T) {
	disk := newFS(t)
	fsys := errorfs.Wrap(disk)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	noRoom := func(files string) {
		fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite}, Path: files, Err: syscall.ENOSPC, Short: 7})
	}
	noRoom("*" + snapshotSuffix)
	noRoom("*" + snapshotSuffix + ".tmp")
	mustAppend(t, l, produced(t, 7, 0, 0, 3, false, 10), 0)
	fillSegments(t, l, 8, 0)
	base := l.segs[1].base
	if err := l.AdvanceLogStart(base); err != nil {
		t.Fatal(err)
	}
	var full *NoSpaceError
	if res, err := l.Retain(l.now(), base); !errors.As(err, &full) || res.Segments != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	// A restart does not take them either.
	o.RecoveryPoint = l.DurableEnd()
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	disk.Crash(nil)
	l, _ = mustOpen(t, o)
	if l.segs[0].base != 0 {
		t.Fatalf("the first segment begins at %d", l.segs[0].base)
	}
	fsys.Clear()
	if res := mustRetain(t, l, l.now(), base); res.Segments != 1 {
		t.Fatalf("%+v", res)
	}
	isKnownBelow(t, l, base)
}

// A process that was killed leaves a snapshot that the system has not written to disk yet.
// It is there when the log is opened again, and must not be all that is left, for a power
// cut to take: neither by a retention, nor where one that was cut short is ended.
func TestRetentionAfterAKill(t *testing.T) {
	for _, retain := range []bool{true, false} {
		disk := newFS(t)
		o := testOptions(disk)
		l, _ := mustOpen(t, o)
		reopen := func() {
			t.Helper()
			if err := l.Abort(); err != nil {
				t.Fatal(err)
			}
			l, _ = mustOpen(t, o)
		}
		mustAppend(t, l, produced(t, 7, 0, 0, 3, false, 10), 0)
		for l.Segments() < 2 {
			mustAppend(t, l, batch(t, 1, strings.Repeat("b", 9000), 1), 0)
		}
		base := l.segs[1].base
		if retain {
			reopen()
		}
		if err := l.setStart(base); err != nil {
			t.Fatal(err)
		}
		if retain {
			mustRetain(t, l, l.now(), base)
		} else {
			reopen()
		}
		if l.Segments() != 1 {
			t.Fatalf("there are %d segments", l.Segments())
		}
		disk.Crash(nil)
		reopen()
		isKnownBelow(t, l, base)
	}
}
