package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// fill appends n batches of about 1.5 KiB and syncs.
func fill(t testing.TB, l *Log, n int) {
	t.Helper()
	for i := range n {
		mustAppend(t, l, batch(t, 2, fmt.Sprintf("%d-%s", i, strings.Repeat("v", 700)), int64(1000+i)), 1)
	}
	mustSync(t, l)
}

// case 4
func TestTornTailAtEveryByte(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	mustAppend(t, l, batch(t, 3, "kept", 1), 1)
	last := mustAppend(t, l, batch(t, 2, "torn", 2), 1)
	mustSync(t, l)
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	path := segmentPath(testDir, 0, logSuffix)
	whole, err := vfs.ReadFile(fsys, path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for keep := int(last.Position); keep <= len(whole); keep++ {
		for _, zeroes := range []int{0, 1, 100} {
			file := append(bytes.Clone(whole[:keep]), make([]byte, zeroes)...)
			overwrite(t, fsys, path, func([]byte) []byte { return file })
			l, report := mustOpen(t, o)
			wantEnd, wantSize := int64(3), last.Position
			if bytes.HasPrefix(file, whole) { // its last byte is a zero
				wantEnd, wantSize = 5, int64(len(whole))
			}
			if report.End != wantEnd || l.DurableEnd() != wantEnd || report.CutBytes != int64(keep+zeroes)-wantSize {
				t.Fatalf("%d+%d bytes kept of %d: %+v, want end %d", keep, zeroes, len(whole), report, wantEnd)
			}
			if info, err := fsys.Stat(path); err != nil || info.Size != wantSize {
				t.Fatalf("%d bytes kept: the file has %d, want %d, %v", keep, info.Size, wantSize, err)
			}
			if info := mustAppend(t, l, batch(t, 1, "next", 3), 1); info.BaseOffset != wantEnd {
				t.Fatalf("%d bytes kept: the next offset is %d", keep, info.BaseOffset)
			}
			mustSync(t, l)
			if err := l.Abort(); err != nil {
				t.Fatal(err)
			}
			l, report = mustOpen(t, o)
			if got := values(readAll(t, l, 0, 1<<40)); report.CutBytes != 0 || got[len(got)-1] != "next-0" || len(got) != int(wantEnd)+1 {
				t.Fatalf("%d bytes kept: %v after another start, %+v", keep, got, report)
			}
			if err := l.Abort(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A cut below what was durable is an error with a place, and changes nothing.
func TestCutBelowDurable(t *testing.T) {
	for name, mark := range map[string]func(o *Options, at int64){
		"recovery point": func(o *Options, at int64) { o.RecoveryPoint = at },
		"high watermark": func(o *Options, at int64) { o.HighWatermark = at },
	} {
		t.Run(name, func(t *testing.T) {
			fsys := newFS(t)
			o := testOptions(fsys)
			l, _ := mustOpen(t, o)
			fill(t, l, 100)
			end := l.EndOffset()
			if err := l.Abort(); err != nil {
				t.Fatal(err)
			}
			last := segmentPath(testDir, l.active().base, logSuffix)
			overwrite(t, fsys, last, func(b []byte) []byte { return b[:len(b)-1] })
			before := snapshot(t, fsys)
			for _, clean := range []bool{false, true} {
				o.CleanShutdown = clean
				mark(&o, end)
				var corrupt *CorruptError
				if _, _, err := Open(o); !errors.As(err, &corrupt) || corrupt.Path != last || corrupt.Position == 0 || corrupt.Offset != end-2 {
					t.Fatalf("%v", err)
				}
				if !reflect.DeepEqual(before, snapshot(t, fsys)) {
					t.Fatal("a log that is withheld was changed")
				}
			}
			o.CleanShutdown = false
			mark(&o, end-2)
			if _, report := mustOpen(t, o); report.End != end-2 || report.CutBytes == 0 {
				t.Fatalf("at the mark: %+v", report)
			}
			// Segments that are gone are no torn tail either.
			if err := fsys.RemoveAll(testDir); err != nil {
				t.Fatal(err)
			}
			var corrupt *CorruptError
			if _, _, err := Open(o); !errors.As(err, &corrupt) {
				t.Fatalf("an empty folder: %v", err)
			}
		})
	}
}

// snapshot is the content of all .log files.
func snapshot(t testing.TB, fsys vfs.FS) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	entries, err := fsys.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name, logSuffix) {
			if out[e.Name], err = vfs.ReadFile(fsys, joinPath(testDir, e.Name), 1<<30); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

// case 21, the log's part: with everything below the high watermark, no flipped
// bit passes; above it, what it touches is cut and said so.
func TestEveryBitFlipped(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	for i := range 3 {
		mustAppend(t, l, batch(t, 2, fmt.Sprintf("b%d", i), 100), int32(3+i))
	}
	mustSync(t, l)
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	path := segmentPath(testDir, 0, logSuffix)
	whole, err := vfs.ReadFile(fsys, path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	epochs, err := vfs.ReadFile(fsys, joinPath(testDir, epochFile), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	size := len(whole) / 3
	for bit := range len(whole) * 8 {
		overwrite(t, fsys, path, func([]byte) []byte {
			b := bytes.Clone(whole)
			b[bit/8] ^= 1 << (bit % 8)
			return b
		})
		overwrite(t, fsys, joinPath(testDir, epochFile), func([]byte) []byte { return epochs })
		o.HighWatermark = 6
		var corrupt *CorruptError
		if _, _, err := Open(o); !errors.As(err, &corrupt) || corrupt.Path != path {
			t.Fatalf("bit %d of byte %d: %v", bit%8, bit/8, err)
		}
		o.HighWatermark = 0
		l, report := mustOpen(t, o)
		kept := bit / 8 / size // batches before the one that was hit
		if report.End != int64(2*kept) || report.CutBytes != int64(len(whole)-kept*size) || report.CutPosition != int64(kept*size) {
			t.Fatalf("bit %d of byte %d: %+v", bit%8, bit/8, report)
		}
		if err := l.Abort(); err != nil {
			t.Fatal(err)
		}
	}
}

// A clean stop saves the scan, but where the log ends is read from its last batch: that
// is looked at, lest a flipped bit give the log another end.
func TestLastBatchDamagedAfterACleanStop(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	mustAppend(t, l, batch(t, 2, "a", 100), 3)
	mustAppend(t, l, batch(t, 2, "b", 100), 3)
	mustSync(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	path := segmentPath(testDir, 0, logSuffix)
	overwrite(t, fsys, path, func(b []byte) []byte {
		b[len(b)/2+23] ^= 1 // of the last offset delta
		return b
	})
	o.CleanShutdown, o.RecoveryPoint = true, 4
	var corrupt *CorruptError
	if l, _, err := Open(o); !errors.As(err, &corrupt) || corrupt.Path != path {
		t.Fatalf("%v, %v", l, err)
	}
}

// Under durability=os records are acknowledged before they are synced, and the high
// watermark may be past what was; the page cache outlives the process.
func TestProcessKilledWithoutSync(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	mustAppend(t, l, batch(t, 2, "synced", 1), 1)
	mustSync(t, l)
	mustAppend(t, l, batch(t, 2, "not synced", 1), 4)
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	o.RecoveryPoint, o.HighWatermark = 2, 4
	l, report := mustOpen(t, o)
	if report.End != 4 || report.CutBytes != 0 || l.EpochAt(2) != 4 {
		t.Fatalf("%+v, epoch %d", report, l.EpochAt(2))
	}
}

// case 3
func TestDamagedIndexes(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	fill(t, l, 200)
	end := l.EndOffset()
	var bases []int64
	for _, s := range l.segs {
		bases = append(bases, s.base)
	}
	if len(bases) < 4 {
		t.Fatalf("only %d segments", len(bases))
	}
	type answer struct {
		first int64
		at    TimestampOffset
	}
	ask := func(l *Log) []answer {
		t.Helper()
		var out []answer
		for off := int64(0); off < end; off += 3 {
			res, err := l.Read(off, end, 1, alloc)
			if err != nil {
				t.Fatalf("read at %d: %v", off, err)
			}
			at, err := l.OffsetForTimestamp(1000+off/2, end)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, answer{res.FirstBatchBase, at})
		}
		return out
	}
	want := ask(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	good := map[string][]byte{}
	each := func(f func(path string)) {
		for _, base := range bases {
			f(segmentPath(testDir, base, indexSuffix))
			f(segmentPath(testDir, base, timeIndexSuffix))
		}
	}
	each(func(path string) {
		b, err := vfs.ReadFile(fsys, path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		good[path] = b
	})
	damages := map[string]func(b []byte) []byte{
		"zeroed":    func(b []byte) []byte { return make([]byte, len(b)) },
		"emptied":   func(b []byte) []byte { return nil },
		"halved":    func(b []byte) []byte { return b[:len(b)/2] },
		"odd":       func(b []byte) []byte { return b[:len(b)-len(b)/3-1] },
		"too long":  func(b []byte) []byte { return append(b, make([]byte, 96)...) },
		"scrambled": func(b []byte) []byte { scramble(b, 7); return b },
		"swapped":   func(b []byte) []byte { return append(b[len(b)/2/48*48:], b[:len(b)/2/48*48]...) },
		"other segment's": func(b []byte) []byte {
			return good[segmentPath(testDir, bases[1], indexSuffix)]
		},
	}
	for name, damage := range damages {
		for _, how := range []Options{{CleanShutdown: true, RecoveryPoint: end}, {RecoveryPoint: end}, {RecoveryPoint: end / 2}, {}} {
			t.Run(fmt.Sprintf("%s/clean=%v/recovery=%d", name, how.CleanShutdown, how.RecoveryPoint), func(t *testing.T) {
				each(func(path string) {
					overwrite(t, fsys, path, func([]byte) []byte { return damage(bytes.Clone(good[path])) })
				})
				o.CleanShutdown, o.RecoveryPoint = how.CleanShutdown, how.RecoveryPoint
				l, _ := mustOpen(t, o)
				if got := ask(l); !reflect.DeepEqual(got, want) {
					t.Fatal("lookups have changed")
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				// The files are what a log that was never damaged has.
				each(func(path string) {
					b, err := vfs.ReadFile(fsys, path, 1<<20)
					if err != nil || !bytes.Equal(b, good[path]) {
						t.Fatalf("%s was not made anew: %d bytes, want %d, %v", path, len(b), len(good[path]), err)
					}
				})
			})
		}
	}
	// Removed altogether.
	each(func(path string) {
		if err := fsys.Remove(path); err != nil {
			t.Fatal(err)
		}
	})
	o.CleanShutdown, o.RecoveryPoint = true, end
	l, _ = mustOpen(t, o)
	if got := ask(l); !reflect.DeepEqual(got, want) {
		t.Fatal("lookups have changed")
	}
}

// The index of the segment that grows is made anew where one of its files has lost
// entries and the other has not, lest those to come have other numbers in each.
func TestAnIndexFileThatIsShorterThanTheOther(t *testing.T) {
	const batches = 3
	for suffix, width := range map[string]int{indexSuffix: offsetEntrySize, timeIndexSuffix: timeEntrySize} {
		for kept := range batches {
			t.Run(fmt.Sprintf("%s/%d", suffix, kept), func(t *testing.T) {
				fsys := newFS(t)
				o := testOptions(fsys)
				o.Config.IndexIntervalBytes = 1
				l, _ := mustOpen(t, o)
				for i := range batches {
					mustAppend(t, l, batch(t, 1, "a", int64(i)), 1)
				}
				// The entry for a batch that is cut off stays: the next one begins there too.
				mustAppend(t, l, batch(t, 2, "cut off", batches), 1)
				if end, err := l.TruncateTo(batches + 1); err != nil || end != batches {
					t.Fatal(end, err)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				overwrite(t, fsys, segmentPath(testDir, 0, suffix), func(b []byte) []byte { return b[:kept*width] })
				o.CleanShutdown, o.RecoveryPoint, o.HighWatermark = true, batches, batches
				l, report := mustOpen(t, o)
				if report.Clean || report.IndexesRebuilt != 1 || report.End != batches {
					t.Fatalf("%+v: the index was not made anew", report)
				}
				mustAppend(t, l, batch(t, 1, "b", batches), 1)
				mustAppend(t, l, batch(t, 1, "b", batches), 1)
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				o.RecoveryPoint, o.HighWatermark = batches+2, batches+2
				if _, report := mustOpen(t, o); !report.Clean || report.End != batches+2 {
					t.Fatalf("%+v after a clean stop", report)
				}
			})
		}
	}
}

func scramble(b []byte, seed uint32) {
	for i := range b {
		seed = seed*1664525 + 1013904223
		b[i] = byte(seed >> 24)
	}
}

// Recovery reads from the recovery point on, not the whole log.
func TestRecoveryReadsFromTheRecoveryPoint(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	fill(t, l, 200)
	if err := l.active().idx.sync(); err != nil {
		t.Fatal(err)
	}
	end := l.EndOffset()
	total, err := l.Size()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	o.RecoveryPoint = end - 10
	_, report := mustOpen(t, o)
	if report.ScannedFrom > end-10 || report.ScannedFrom < end-14 || report.ScannedBytes > 12<<10 {
		t.Fatalf("%+v of %d bytes", report, total)
	}
	o.RecoveryPoint = 0
	if _, report := mustOpen(t, o); report.ScannedFrom != 0 || report.ScannedBytes != total {
		t.Fatalf("%+v of %d bytes", report, total)
	}
}

// A segment in the middle that lost its tail takes the later ones with it, whether
// or not the loss begins inside a batch.
func TestCutInAnEarlierSegment(t *testing.T) {
	for _, inside := range []bool{true, false} {
		fsys := newFS(t)
		o := testOptions(fsys)
		l, _ := mustOpen(t, o)
		fill(t, l, 200)
		second, third, segs := l.segs[1].base, l.segs[2].base, l.Segments()
		if err := l.Abort(); err != nil {
			t.Fatal(err)
		}
		path := segmentPath(testDir, second, logSuffix)
		var last int64
		if err := Scan(fsys, testDir, func(b BatchInfo) error {
			if b.Path == path {
				last = b.Position
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		overwrite(t, fsys, path, func(b []byte) []byte {
			if inside {
				return b[:len(b)-100]
			}
			return b[:last]
		})
		o.HighWatermark = third
		var corrupt *CorruptError
		if _, _, err := Open(o); !errors.As(err, &corrupt) || corrupt.Path != path || corrupt.Position != last {
			t.Fatalf("%v", err)
		}
		o.HighWatermark = 0
		l, report := mustOpen(t, o)
		if report.End != third-2 || l.Segments() != 2 || report.BatchesPastCut < 40 || segs < 4 || report.CutPosition != last {
			t.Fatalf("%+v in %d segments of %d", report, l.Segments(), segs)
		}
		mustAppend(t, l, batch(t, 1, "next", 1), 1)
		mustSync(t, l)
		fsys.Crash(nil)
		l, report = mustOpen(t, o)
		if report.End != third-1 || report.CutBytes != 0 {
			t.Fatalf("%+v", report)
		}
		if got := readAll(t, l, 0, 1<<40); len(got) != int(third-1) {
			t.Fatalf("%d records", len(got))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		clean := o
		clean.CleanShutdown, clean.RecoveryPoint = true, third-1
		if _, report := mustOpen(t, clean); !report.Clean {
			t.Fatalf("%+v", report)
		}
	}
}

// case 46
func TestNewSegmentSurvivesPowerCut(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	fill(t, l, 45)
	for l.Segments() == 2 {
		mustAppend(t, l, batch(t, 2, strings.Repeat("w", 700), 1), 1)
	}
	end := mustSync(t, l)
	fsys.Crash(nil)
	o.HighWatermark = end
	if l, report := mustOpen(t, o); report.End != end || l.Segments() != 3 {
		t.Fatalf("%+v in %d segments", report, l.Segments())
	}
}

// case 6
func TestOffsetForTimestamp(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	for _, ts := range []int64{100, 50, 200, 10} {
		mustAppend(t, l, batch(t, 1, "a", ts), 7)
	}
	mustSync(t, l)
	check := func(l *Log) {
		t.Helper()
		for _, c := range []struct {
			ts, upTo int64
			want     TimestampOffset
		}{
			{60, 4, TimestampOffset{true, 0, 100, 7}},
			{100, 4, TimestampOffset{true, 0, 100, 7}},
			{101, 4, TimestampOffset{true, 2, 200, 7}},
			{101, 2, TimestampOffset{false, -1, record.NoTimestamp, record.NoLeaderEpoch}},
			{201, 4, TimestampOffset{false, -1, record.NoTimestamp, record.NoLeaderEpoch}},
			{0, 4, TimestampOffset{true, 0, 100, 7}},
			{60, 0, TimestampOffset{false, -1, record.NoTimestamp, record.NoLeaderEpoch}},
			{TimestampEarliest, 4, TimestampOffset{true, 0, record.NoTimestamp, 7}},
			{TimestampLatest, 3, TimestampOffset{true, 3, record.NoTimestamp, 7}},
			{TimestampLatest, 99, TimestampOffset{true, 4, record.NoTimestamp, 7}},
		} {
			if got, err := l.OffsetForTimestamp(c.ts, c.upTo); err != nil || got != c.want {
				t.Fatalf("timestamp %d below %d: %+v, want %+v, %v", c.ts, c.upTo, got, c.want, err)
			}
		}
	}
	check(l)
	fsys.Crash(nil)
	l, _ = mustOpen(t, o)
	check(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o.CleanShutdown, o.RecoveryPoint = true, 4
	l, _ = mustOpen(t, o)
	check(l)
}

func TestScan(t *testing.T) {
	fsys := newFS(t)
	l, _ := mustOpen(t, testOptions(fsys))
	fill(t, l, 100)
	count := 0
	visit := func(b BatchInfo) error {
		if b.Err != nil {
			return b.Err
		}
		if _, err := record.Validate([][]byte{b.Batch}, record.ValidateOptions{}); err != nil || b.Header.BaseOffset != int64(2*count) {
			t.Fatalf("batch %d: %+v, %v", count, b.Header, err)
		}
		count++
		return nil
	}
	if err := Scan(fsys, testDir, visit); err != nil || count != 100 {
		t.Fatalf("%d batches, %v", count, err)
	}
	path := l.segs[1].path()
	overwrite(t, fsys, path, func(b []byte) []byte { b[100] ^= 4; return b })
	good, bad := 0, 0
	if err := Scan(fsys, testDir, func(b BatchInfo) error {
		if b.Err == nil {
			good++
		} else if bad++; b.Path != path || b.Position != 0 {
			t.Fatalf("fault at %s:%d", b.Path, b.Position)
		}
		return nil
	}); err != nil || good != 99 || bad != 1 {
		t.Fatalf("%d good, %d bad, %v", good, bad, err)
	}
	stop := errors.New("stop")
	if err := Scan(fsys, testDir, func(BatchInfo) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("%v", err)
	}
	if err := Scan(memfs.New(), "/nowhere", nil); err == nil {
		t.Fatal("an absent folder was scanned")
	}
}

// A sealed segment below the recovery point is not read at start; when it turns out
// to have lost its end, whoever asks for what was there is told.
func TestLossBelowTheRecoveryPoint(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	fill(t, l, 100)
	first, second := l.segs[0].path(), l.segs[1].base
	end := l.EndOffset()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	overwrite(t, fsys, first, func(b []byte) []byte { return b[:len(b)/2/1533*1533] })
	o.CleanShutdown, o.RecoveryPoint = true, end
	l, _ = mustOpen(t, o)
	var corrupt *CorruptError
	if _, err := l.Read(second-1, end, 1, alloc); !errors.As(err, &corrupt) || corrupt.Path != first {
		t.Fatalf("read: %v", err)
	}
	if _, err := l.OffsetForTimestamp(1000+second/2-1, end); !errors.As(err, &corrupt) || corrupt.Path != first {
		t.Fatalf("lookup: %v", err)
	}
	if res, err := l.Read(second, end, 1, alloc); err != nil || res.FirstBatchBase != second {
		t.Fatalf("%+v, %v", res, err)
	}
}
