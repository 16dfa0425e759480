package commitlog

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// case 47, the log's part: a log that is opened and left alone keeps no descriptor,
// one that is used no more than it may, and a closed one none.
func TestDescriptors(t *testing.T) {
	fsys := newFS(t)
	o := testOptions(fsys)
	o.Files = NewFileCache(16)
	l, _ := mustOpen(t, o)
	check := func(want int, when string) {
		t.Helper()
		if n := fsys.OpenFiles(); n != want || o.Files.Open() != want {
			t.Fatalf("%s: %d files are open, %d are counted, want %d", when, n, o.Files.Open(), want)
		}
	}
	check(0, "a new log")
	mustAppend(t, l, batch(t, 1, "x", 1), 1)
	check(1, "one batch appended")
	for l.Segments() < 40 {
		mustAppend(t, l, batch(t, 2, strings.Repeat("v", 9000), 1), 1)
	}
	// What is unsynced stays open.
	if n := fsys.OpenFiles(); n < 40 {
		t.Fatalf("%d files are open", n)
	}
	end := mustSync(t, l)
	if n := fsys.OpenFiles(); n > 17 || n != o.Files.Open() {
		t.Fatalf("synced: %d files are open, %d are counted", n, o.Files.Open())
	}
	for offset := int64(0); offset < end; offset += 5 {
		if _, err := l.Read(offset, end, 1, alloc); err != nil {
			t.Fatal(err)
		}
		if n := fsys.OpenFiles(); n > 18 || n != o.Files.Open() {
			t.Fatalf("reading: %d files are open, %d are counted", n, o.Files.Open())
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	check(0, "closed")
	o.RecoveryPoint = end
	for _, o.CleanShutdown = range []bool{true, false} {
		l, _ = mustOpen(t, o)
		check(0, "opened")
		if _, err := l.Read(0, end, 1, alloc); err != nil {
			t.Fatal(err)
		}
		check(3, "one sealed segment read")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		check(0, "closed")
	}
}

// Many logs share a small cache, with appenders, readers, lookups, truncation and
// retention at once.
func TestSharedFileCache(t *testing.T) {
	t.Parallel()
	disk := newFS(t)
	cache := NewFileCache(16)
	const logs = 8
	var all []*Log
	for i := range logs {
		o := testOptions(disk)
		o.Dir, o.Partition, o.Files = fmt.Sprintf("/disk/orders-%d", i), int32(i), cache
		o.Config.RetentionBytes = 200_000
		l, _ := mustOpen(t, o)
		all = append(all, l)
	}
	big := batch(t, 2, strings.Repeat("v", 9000), 1)
	var work sync.WaitGroup
	for i, l := range all {
		work.Go(func() {
			for n := range 60 {
				if _, err := l.Append([][]byte{big}, 1); err != nil {
					t.Error(err)
					return
				}
				if n%3 == 0 {
					if _, err := l.Sync(); err != nil {
						t.Error(err)
						return
					}
				}
				if n%20 == 19 {
					if _, err := l.TruncateTo(max(l.StartOffset(), l.EndOffset()-10)); err != nil {
						t.Error(err)
						return
					}
					if _, err := l.Retain(l.now(), l.DurableEnd()); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		work.Go(func() {
			for n := range 300 {
				start, end := l.StartOffset(), l.EndOffset()
				var outOfRange *OffsetOutOfRangeError
				offset := start + (end-start)*int64((n*7+i)%11)/11
				if _, err := l.Read(offset, end, 20_000, alloc); err != nil && !errors.As(err, &outOfRange) {
					t.Errorf("read: %v", err)
					return
				}
				if _, err := l.OffsetForTimestamp(2, end); err != nil {
					t.Errorf("lookup: %v", err)
					return
				}
			}
		})
	}
	work.Wait()
	for _, l := range all {
		mustSync(t, l)
	}
	if n := cache.Open(); n > 16+logs || n != disk.OpenFiles() {
		t.Fatalf("%d files are counted, %d are open", n, disk.OpenFiles())
	}
	for _, l := range all {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := disk.OpenFiles(); n != 0 || cache.Open() != 0 {
		t.Fatalf("%d files are open, %d are counted", n, cache.Open())
	}
}

// Opening many clean replicas costs a few small reads each, whatever they hold, and
// leaves nothing open.
func TestOpenManyReplicas(t *testing.T) {
	t.Parallel()
	const replicas = 10_000 / raceScale
	disk := memfs.New()
	if err := disk.MkdirAll("/disk"); err != nil {
		t.Fatal(err)
	}
	cache := NewFileCache(100)
	options := func(fsys vfs.FS, i int) Options {
		o := testOptions(fsys)
		o.Dir, o.Partition, o.Files = fmt.Sprintf("/disk/t-%d", i), int32(i), cache
		return o
	}
	small := batch(t, 3, "x", 1)
	for i := range replicas {
		l, _, err := Open(options(disk, i))
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, small, 1)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	counted := errorfs.Wrap(disk)
	logs := make([]*Log, replicas)
	began := time.Now()
	for i := range logs {
		o := options(counted, i)
		o.CleanShutdown, o.RecoveryPoint, o.HighWatermark = true, 3, 3
		l, report, err := Open(o)
		if err != nil || !report.Clean {
			t.Fatal(report, err)
		}
		logs[i] = l
	}
	opens, reads, syncs := counted.Count(errorfs.OpOpen), counted.Count(errorfs.OpRead), counted.Count(errorfs.OpSync)+counted.Count(errorfs.OpSyncDir)
	t.Logf("opened %d clean replicas in %v: %d opens, %d reads, %d syncs each; %d files open", replicas, time.Since(began), opens/replicas, reads/replicas, syncs, cache.Open())
	if opens > 8*replicas || reads > 8*replicas || syncs > 0 || disk.OpenFiles() != 0 {
		t.Fatalf("%d opens, %d reads, %d syncs, %d files are open", opens, reads, syncs, disk.OpenFiles())
	}
	for _, l := range logs {
		if err := l.Abort(); err != nil {
			t.Fatal(err)
		}
	}
}
