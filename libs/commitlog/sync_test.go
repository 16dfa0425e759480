package commitlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
)

// hookFS calls a function when a .log file is synced, before it is.
type hookFS struct {
	vfs.FS
	onSync func()
}

type hookFile struct {
	vfs.File
	fs *hookFS
}

func (h *hookFS) Open(path string) (vfs.File, error) {
	f, err := h.FS.Open(path)
	if err != nil || !strings.HasSuffix(path, logSuffix) {
		return f, err
	}
	return &hookFile{f, h}, nil
}

func (f *hookFile) Sync() error {
	if hook := f.fs.onSync; hook != nil {
		f.fs.onSync = nil
		hook()
	}
	return f.File.Sync()
}

// A Sync answers for what was appended before it began, not for what comes while
// it runs.
func TestAppendDuringSync(t *testing.T) {
	fsys := &hookFS{FS: newFS(t)}
	l, _ := mustOpen(t, testOptions(fsys))
	mustAppend(t, l, batch(t, 2, "before", 1), 0)
	fsys.onSync = func() { mustAppend(t, l, batch(t, 3, "during", 1), 0) }
	if end := mustSync(t, l); end != 2 || l.DurableEnd() != 2 || l.EndOffset() != 5 {
		t.Fatalf("durable end %d of %d", end, l.EndOffset())
	}
	if end := mustSync(t, l); end != 5 {
		t.Fatalf("durable end %d", end)
	}
}

// A log that fails while a Sync runs acknowledges nothing with it.
func TestFailureDuringSync(t *testing.T) {
	fsys := &hookFS{FS: newFS(t)}
	l, _ := mustOpen(t, testOptions(fsys))
	mustAppend(t, l, batch(t, 2, "before", 1), 0)
	boom := errors.New("boom")
	fsys.onSync = func() { _ = l.fail("append", boom) }
	if end, err := l.Sync(); !errors.Is(err, boom) || end != 0 || l.DurableEnd() != 0 {
		t.Fatalf("durable end %d, %v", end, err)
	}
}

// What recovery keeps it has synced: a process that was killed, started, and lost
// power at once has lost nothing that the start called durable.
func TestRecoverySyncsWhatItKeeps(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	for i := range 100 {
		mustAppend(t, l, batch(t, 1, strings.Repeat("v", 1500), 1), int32(i/30))
	}
	if err := l.Abort(); err != nil {
		t.Fatal(err)
	}
	l, report := mustOpen(t, o)
	if l.DurableEnd() != 100 || report.End != 100 || l.Segments() < 3 {
		t.Fatalf("%+v in %d segments", report, l.Segments())
	}
	fsys.Crash(nil)
	o.HighWatermark = 100
	l, report = mustOpen(t, o)
	if report.End != 100 || report.EpochsRebuilt || l.LatestEpoch() != 3 {
		t.Fatalf("%+v", report)
	}
}

// rebuilt says whether any index was made anew since the log was opened.
func rebuilt(l *Log) bool {
	for _, s := range l.segs {
		s.idx.mu.RLock()
		r := s.idx.rebuilt
		s.idx.mu.RUnlock()
		if r {
			return true
		}
	}
	return false
}

// Lookups use the index as it is, whatever the interval, also when batches end
// exactly at it; and notice when it is too sparse.
func TestIndexIsUsed(t *testing.T) {
	size := int64(len(batch(t, 2, "000", 1)))
	for _, interval := range []int64{1, size - 1, size, size + 1, 2*size - 1, 2 * size, 5000} {
		t.Run(fmt.Sprint(interval), func(t *testing.T) {
			fsys := newFS(t)
			o := testOptions(fsys)
			o.Config.IndexIntervalBytes = interval
			l, _ := mustOpen(t, o)
			for i := range 1300 {
				mustAppend(t, l, batch(t, 2, fmt.Sprintf("%03d", i%1000), int64(i)), 0)
			}
			read := func(l *Log) {
				t.Helper()
				for off := l.EndOffset() - 1; off >= 0; off -= 3 {
					if res, err := l.Read(off, 1<<40, 1, alloc); err != nil || res.FirstBatchBase != off/2*2 {
						t.Fatalf("read at %d: %+v, %v", off, res, err)
					}
				}
			}
			read(l)
			for ts := int64(0); ts < 1300; ts += 7 {
				if at, err := l.OffsetForTimestamp(ts, 1<<40); err != nil || at.Offset < 2*ts-1 || at.Offset > 2*ts {
					t.Fatalf("timestamp %d: %+v, %v", ts, at, err)
				}
			}
			if rebuilt(l) || l.Segments() < 2 {
				t.Fatalf("a good index was made anew; %d segments", l.Segments())
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			overwrite(t, fsys, segmentPath(testDir, 0, indexSuffix), func([]byte) []byte { return nil })
			o.CleanShutdown, o.RecoveryPoint = true, 2600
			l, _ = mustOpen(t, o)
			read(l)
			if !rebuilt(l) {
				t.Fatal("a lost index was not made anew")
			}
		})
	}
}

// A clean-shutdown marker that lies: the file is shorter than its index says.
func TestCleanMarkerWithAShortFile(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	l, _ := mustOpen(t, o)
	fill(t, l, 20)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var third int64
	if err := Scan(fsys, testDir, func(b BatchInfo) error {
		if b.Header.BaseOffset == 6 {
			third = b.Position
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	overwrite(t, fsys, segmentPath(testDir, 0, logSuffix), func(b []byte) []byte { return b[:third] })
	o.CleanShutdown = true
	l, report := mustOpen(t, o)
	if report.Clean || report.End != 6 {
		t.Fatalf("%+v", report)
	}
	if info := mustAppend(t, l, batch(t, 1, "next", 1), 1); info.BaseOffset != 6 || info.Position != third {
		t.Fatalf("%+v", info)
	}
}
