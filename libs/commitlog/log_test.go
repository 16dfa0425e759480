package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
)

func TestAppendReadReopen(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, report := mustOpen(t, o)
	if !report.Created || l.EndOffset() != 0 || l.LatestEpoch() != record.NoLeaderEpoch {
		t.Fatalf("a new log: %+v, end %d", report, l.EndOffset())
	}
	want := []string{}
	for i := range 300 {
		tag := fmt.Sprintf("b%d", i)
		info := mustAppend(t, l, batch(t, 3, tag, int64(1000+10*i)), 4)
		if info.BaseOffset != int64(3*i) || info.LastOffset != int64(3*i+2) || info.MaxTimestamp != int64(1002+10*i) || info.AppendTime != 1_700_000_000_000 {
			t.Fatalf("append %d: %+v", i, info)
		}
		want = append(want, tag+"-0", tag+"-1", tag+"-2")
	}
	check := func(l *Log) {
		t.Helper()
		if got := values(readAll(t, l, 0, 1<<40)); !reflect.DeepEqual(got, want) {
			t.Fatalf("read %d records, want %d", len(got), len(want))
		}
		for _, off := range []int64{0, 1, 2, 3, 500, 898, 899} {
			if got := values(readAll(t, l, off, 900)); !reflect.DeepEqual(got, want[off:900]) {
				t.Fatalf("read from %d: %d records", off, len(got))
			}
		}
	}
	check(l)
	if l.DurableEnd() != 0 {
		t.Fatalf("durable end before a sync is %d", l.DurableEnd())
	}
	if end := mustSync(t, l); end != 900 || l.DurableEnd() != 900 {
		t.Fatalf("durable end is %d", end)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append([][]byte{batch(t, 1, "x", 0)}, 4); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}
	if err := l.Close(); !errors.Is(err, ErrClosed) {
		t.Fatalf("second close: %v", err)
	}
	o.CleanShutdown, o.RecoveryPoint = true, 900
	l, report = mustOpen(t, o)
	if !report.Clean || report.ScannedBytes != 0 || report.End != 900 || l.LatestEpoch() != 4 {
		t.Fatalf("clean open: %+v", report)
	}
	check(l)
	mustAppend(t, l, batch(t, 1, "after", 9999), 4)
	want = append(want, "after-0")
	check(l)
}

func TestReadLimits(t *testing.T) {
	l, _ := mustOpen(t, testOptions(newFS(t)))
	var sizes []int
	for i := range 10 {
		b := batch(t, 2, strings.Repeat("v", 50*i), 1)
		sizes = append(sizes, len(b))
		mustAppend(t, l, b, 0)
	}
	res, err := l.Read(5, 20, 1, alloc)
	if err != nil || len(res.Data) != sizes[2] || res.FirstBatchBase != 4 || res.NextOffset != 6 {
		t.Fatalf("first batch whatever its size: %d bytes, %+v, %v", len(res.Data), res.NextOffset, err)
	}
	res, err = l.Read(4, 20, sizes[2]+sizes[3]-1, alloc)
	if err != nil || len(res.Data) != sizes[2] {
		t.Fatalf("one byte short of two batches: %d bytes, %v", len(res.Data), err)
	}
	res, err = l.Read(4, 20, sizes[2]+sizes[3], alloc)
	if err != nil || len(res.Data) != sizes[2]+sizes[3] || res.NextOffset != 8 {
		t.Fatalf("two batches: %d bytes, %v", len(res.Data), err)
	}
	// Only batches wholly below the limit.
	for upTo, next := range map[int64]int64{4: 4, 5: 4, 6: 6, 7: 6} {
		res, err = l.Read(4, upTo, 1<<20, alloc)
		if err != nil || res.NextOffset != next || (len(res.Data) == 0) != (next == 4) {
			t.Fatalf("up to %d: next %d, %v", upTo, res.NextOffset, err)
		}
	}
	res, err = l.Read(20, 1<<40, 1<<20, alloc)
	if err != nil || len(res.Data) != 0 || res.NextOffset != 20 {
		t.Fatalf("at the end: %+v, %v", res, err)
	}
	for _, off := range []int64{-1, 21} {
		var oor *OffsetOutOfRangeError
		if _, err := l.Read(off, 1<<40, 1, alloc); !errors.As(err, &oor) || oor.Start != 0 || oor.End != 20 || oor.Offset != off {
			t.Fatalf("offset %d: %v", off, err)
		}
	}
	if _, err := l.Read(0, 20, 1, func(int) []byte { return nil }); err == nil {
		t.Fatal("a short buffer went unnoticed")
	}
}

// Batches in pieces are written as if whole, and neither changed nor kept.
func TestAppendVectors(t *testing.T) {
	l, _ := mustOpen(t, testOptions(newFS(t)))
	b := batch(t, 5, "pieces", 7)
	for _, cut := range []int{0, 1, 60, 61, 62, len(b)} {
		in := bytes.Clone(b)
		mustAppend(t, l, b, 0)
		vecs := [][]byte{in[:cut], {}, in[cut:]}
		if _, err := l.Append(vecs, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(in, b) {
			t.Fatal("the caller's bytes were changed")
		}
		clear(in)
	}
	if got := readAll(t, l, 0, 1<<40); len(got) != 60 {
		t.Fatalf("%d records", len(got))
	}
}

func TestAppendRefusals(t *testing.T) {
	o := testOptions(newFS(t))
	o.Config.MaxMessageBytes = 500
	l, _ := mustOpen(t, o)
	mustAppend(t, l, batch(t, 1, "a", 1), 3)
	var stale *StaleEpochError
	if _, err := l.Append([][]byte{batch(t, 1, "a", 1)}, 2); !errors.As(err, &stale) || stale.Latest != 3 {
		t.Fatalf("older epoch: %v", err)
	}
	if _, err := l.Append([][]byte{batch(t, 50, "a", 1)}, 3); !errors.Is(err, record.ErrRecordTooLarge) {
		t.Fatalf("too large: %v", err)
	}
	b := batch(t, 2, "a", 1)
	var corrupt *record.CorruptError
	if _, err := l.Append([][]byte{b[:len(b)-1]}, 3); !errors.As(err, &corrupt) {
		t.Fatalf("cut short: %v", err)
	}
	if _, err := l.Append(nil, 3); !errors.As(err, &corrupt) {
		t.Fatalf("nothing: %v", err)
	}
	b[57], b[58] = 0xff, 0xff // number of records
	var invalid *record.InvalidError
	if _, err := l.Append([][]byte{b}, 3); !errors.As(err, &invalid) || invalid.Reason != record.ReasonBadCount {
		t.Fatalf("bad count: %v", err)
	}
	if l.EndOffset() != 1 || l.Err() != nil {
		t.Fatalf("end %d, %v", l.EndOffset(), l.Err())
	}
}

func TestRolls(t *testing.T) {
	clock := newClock()
	o := testOptions(newFS(t))
	o.Now = clock.Now
	o.Config.SegmentAge = time.Hour
	o.Config.SegmentIndexBytes = MinSegmentIndexBytes
	o.Config.IndexIntervalBytes = 1
	l, _ := mustOpen(t, o)
	segments := func(want int, why string) {
		t.Helper()
		if l.Segments() != want {
			t.Fatalf("%s: %d segments, want %d", why, l.Segments(), want)
		}
	}
	big := batch(t, 1, strings.Repeat("x", MinSegmentBytes), 1)
	mustAppend(t, l, big, 0)
	segments(1, "a batch larger than a segment, in an empty one")
	mustAppend(t, l, batch(t, 1, "y", 1), 0)
	segments(2, "behind it")
	mustAppend(t, l, big, 0)
	segments(3, "a batch larger than a segment")
	info := mustAppend(t, l, batch(t, 1, "z", 1), 0)
	segments(4, "behind it again")
	if info.SegmentBase != 3 || info.Position != 0 {
		t.Fatalf("%+v", info)
	}
	clock.now = clock.now.Add(time.Hour - 1)
	mustAppend(t, l, batch(t, 1, "z", 1), 0)
	segments(4, "just young enough")
	clock.now = clock.now.Add(1)
	mustAppend(t, l, batch(t, 1, "z", 1), 0)
	segments(5, "an hour old")
	// The index holds 4096/16 time entries, one of which seals the segment.
	for range 255 {
		mustAppend(t, l, batch(t, 1, "z", 1), 0)
	}
	segments(5, "index nearly full")
	mustAppend(t, l, batch(t, 1, "z", 1), 0)
	segments(6, "index full")
	file, err := l.fs.Stat(segmentPath(testDir, 5, timeIndexSuffix))
	if err != nil || file.Size > MinSegmentIndexBytes {
		t.Fatalf("the time index has %d bytes, %v", file.Size, err)
	}
	if got := len(readAll(t, l, 0, 1<<40)); got != int(l.EndOffset()) {
		t.Fatalf("%d records of %d", got, l.EndOffset())
	}
}

// case 5, the appending part: an offset never lies more than 31 bits above its
// segment's base.
func TestRollByOffsetSpan(t *testing.T) {
	fsys := newFS(t)
	l, _ := mustOpen(t, testOptions(fsys))
	// A batch may span many offsets with few records, as after compaction.
	wide := batch(t, 1, "w", 1)
	h, err := record.ParseHeader(wide)
	if err != nil {
		t.Fatal(err)
	}
	h.LastOffsetDelta = 1<<30 - 1
	h.Put(wide)
	h.CRC = record.Checksum(wide)
	h.Put(wide)
	mustAppend(t, l, wide, 0)
	if info := mustAppend(t, l, wide, 0); info.LastOffset != 1<<31-1 || l.Segments() != 2 {
		t.Fatalf("%+v in %d segments", info, l.Segments())
	}
	mustAppend(t, l, batch(t, 1, "n", 1), 0)
	for _, off := range []int64{0, 1<<30 - 1, 1 << 30, 1<<31 - 1, 1 << 31} {
		res, err := l.Read(off, 1<<40, 1, alloc)
		if err != nil || res.FirstBatchBase > off || res.NextOffset <= off {
			t.Fatalf("read at %d: %+v, %v", off, res, err)
		}
	}
}

// case 11
func TestZeroRecordBatch(t *testing.T) {
	l, _ := mustOpen(t, testOptions(newFS(t)))
	mustAppend(t, l, batch(t, 2, "a", 1), 0)
	empty := record.Header{
		Length: record.HeaderSize - record.LengthOverhead, Magic: record.Magic, LastOffsetDelta: 4,
		ProducerID: record.NoProducerID, ProducerEpoch: record.NoProducerEpoch, BaseSequence: record.NoSequence,
	}
	b := make([]byte, record.HeaderSize)
	empty.Put(b)
	empty.CRC = record.Checksum(b)
	empty.Put(b)
	mustAppend(t, l, b, 0)
	mustAppend(t, l, batch(t, 1, "z", 1), 0)
	for off := int64(2); off < 7; off++ {
		res, err := l.Read(off, 1<<40, 1, alloc)
		if err != nil || res.NextOffset != 7 || res.FirstBatchBase != 2 {
			t.Fatalf("read at %d: %+v, %v", off, res, err)
		}
	}
	if got := values(readAll(t, l, 0, 1<<40)); !reflect.DeepEqual(got, []string{"a-0", "a-1", "z-0"}) {
		t.Fatalf("%v", got)
	}
}

func TestLogAppendTime(t *testing.T) {
	o := testOptions(newFS(t))
	o.Config.TimestampType = record.LogAppendTime
	l, _ := mustOpen(t, o)
	info := mustAppend(t, l, batch(t, 3, "a", 5), 0)
	if info.MaxTimestamp != info.AppendTime {
		t.Fatalf("%+v", info)
	}
	for _, r := range readAll(t, l, 0, 3) {
		if r.Timestamp != info.AppendTime {
			t.Fatalf("record %d has timestamp %d", r.Offset, r.Timestamp)
		}
	}
}

func TestEpochs(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	if _, ok := l.EndOffsetForEpoch(5); ok {
		t.Fatal("an empty log knows an epoch")
	}
	for _, e := range []int32{2, 2, 5, 9} {
		mustAppend(t, l, batch(t, 2, "a", 1), e)
	}
	check := func(l *Log) {
		t.Helper()
		for epoch, want := range map[int32]EpochEnd{2: {2, 4}, 3: {2, 4}, 5: {5, 6}, 8: {5, 6}, 9: {9, 8}, 100: {9, 8}} {
			if got, ok := l.EndOffsetForEpoch(epoch); !ok || got != want {
				t.Fatalf("epoch %d: %+v, want %+v", epoch, got, want)
			}
		}
		if _, ok := l.EndOffsetForEpoch(1); ok {
			t.Fatal("epoch 1 is known")
		}
		if l.EpochAt(3) != 2 || l.EpochAt(4) != 5 || l.EpochAt(7) != 9 || l.EpochAt(8) != record.NoLeaderEpoch {
			t.Fatal("EpochAt")
		}
	}
	check(l)
	mustSync(t, l)
	fsys.Crash(nil)
	l, _ = mustOpen(t, o)
	check(l)
	// A checkpoint that is damaged or gone is made anew, even if all is below the recovery point.
	path := joinPath(testDir, epochFile)
	o.RecoveryPoint = 8
	for _, damage := range []func() error{
		func() error { return fsys.Remove(path) },
		func() error {
			overwrite(t, fsys, path, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
			return nil
		},
		func() error { overwrite(t, fsys, path, func([]byte) []byte { return nil }); return nil },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		for _, clean := range []bool{true, false} {
			o.CleanShutdown = clean
			l, report := mustOpen(t, o)
			check(l)
			if report.EpochsRebuilt != clean {
				t.Fatalf("%+v", report)
			}
		}
	}
}

// case 15, the log's part
func TestTopicID(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	other := o
	other.TopicID = [16]byte{9}
	var mismatch *TopicIDMismatchError
	if _, _, err := Open(other); !errors.As(err, &mismatch) || mismatch.Got != testID || mismatch.Want != other.TopicID {
		t.Fatalf("%v", err)
	}
	m, err := ReadMetadata(fsys, testDir)
	if err != nil || m != (Metadata{Topic: "orders", TopicID: testID}) {
		t.Fatalf("%+v, %v", m, err)
	}
	path := joinPath(testDir, metadataFile)
	var newer *UnsupportedVersionError
	overwrite(t, fsys, path, func([]byte) []byte { return encodeSmallFile(metadataKind, 2, nil) })
	if _, _, err := Open(o); !errors.As(err, &newer) || newer.Version != 2 {
		t.Fatalf("%v", err)
	}
	var corrupt *CorruptError
	overwrite(t, fsys, path, func(b []byte) []byte { b[0] ^= 1; return b })
	if _, _, err := Open(o); !errors.As(err, &corrupt) || corrupt.Path != path {
		t.Fatalf("%v", err)
	}
	if err := fsys.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(o); !errors.As(err, &corrupt) {
		t.Fatalf("segments without an identity: %v", err)
	}
}

// case 14, the log's part
func TestDelete(t *testing.T) {
	fsys := newFS(t)
	l, _ := mustOpen(t, testOptions(fsys))
	mustAppend(t, l, batch(t, 1, "a", 1), 0)
	if err := l.Delete(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Sync(); !errors.Is(err, ErrClosed) {
		t.Fatalf("sync: %v", err)
	}
	if _, err := l.Read(0, 1, 1, alloc); !errors.Is(err, ErrClosed) {
		t.Fatalf("read: %v", err)
	}
	fsys.Crash(nil)
	if entries, err := fsys.ReadDir("/disk"); err != nil || len(entries) != 0 {
		t.Fatalf("left over: %v, %v", entries, err)
	}
	// Interrupted after the rename: the rest is purged later.
	l, _ = mustOpen(t, testOptions(fsys))
	faulty := errorfs.Wrap(fsys)
	faulty.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpRemoveAll}, After: 1, Err: errors.New("boom")})
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := DeleteFolder(faulty, testDir, l.id); err == nil {
		t.Fatal("the fault went unnoticed")
	}
	if _, err := fsys.Stat(testDir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the folder is still there: %v", err)
	}
	if n, err := PurgeDeleted(fsys, "/disk"); n != 1 || err != nil {
		t.Fatalf("purged %d, %v", n, err)
	}
	if err := DeleteFolder(fsys, testDir, l.id); err != nil {
		t.Fatalf("an absent folder: %v", err)
	}
}

func TestOptionsValidation(t *testing.T) {
	_, _, err := Open(Options{Config: Config{SegmentBytes: 1, IndexIntervalBytes: -1}, Partition: -1, RecoveryPoint: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"segment.bytes is 1", "index.interval.bytes is -1", "set Dir", "set Topic", "partition is -1", "set TopicID", "recovery point"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
	l, _ := mustOpen(t, testOptions(newFS(t)))
	if err := l.SetConfig(Config{SegmentBytes: 1}); err == nil {
		t.Fatal("accepted")
	}
	if err := l.SetConfig(Config{MaxMessageBytes: 100}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append([][]byte{batch(t, 10, "a", 1)}, 0); !errors.Is(err, record.ErrRecordTooLarge) {
		t.Fatalf("%v", err)
	}
}

// The same on a real disk.
func TestRealDisk(t *testing.T) {
	o := testOptions(vfs.OS())
	o.Dir = t.TempDir() + "/orders-0"
	l, _ := mustOpen(t, o)
	for i := range 400 {
		b := batch(t, 3, fmt.Sprintf("b%d", i), int64(i))
		if _, err := l.Append([][]byte{b[:30], b[30:90], b[90:]}, 1); err != nil {
			t.Fatal(err)
		}
	}
	mustSync(t, l)
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	l, report := mustOpen(t, o)
	if report.Clean || report.End != 1200 || report.CutBytes != 0 {
		t.Fatalf("%+v", report)
	}
	if got := len(readAll(t, l, 0, 1<<40)); got != 1200 {
		t.Fatalf("%d records", got)
	}
	if size, err := l.Size(); err != nil || size < 1200 {
		t.Fatalf("%d, %v", size, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o.CleanShutdown = true
	if _, report := mustOpen(t, o); !report.Clean || report.End != 1200 {
		t.Fatalf("%+v", report)
	}
}
