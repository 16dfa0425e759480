package storage

import (
	"runtime"
	"sync"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

const (
	batchBytes  = 64 << 10
	segmentSize = 64 << 20
	roundBytes  = 256 << 20 // four segments
)

// BenchmarkAppend appends batches of 64 KiB without fsync, validated as a broker
// does, beside a loop of CRC32C and write(2) over the same files.
func BenchmarkAppend(b *testing.B) {
	dir := workDir(b)
	l, _ := openLog(b, newWarmFS(dir), dir, segmentSize, nil)
	batch := batchOf(b, batchBytes)
	vecs := [][]byte{batch}
	count := roundBytes / len(batch)
	ours := func() {
		for range count {
			if _, err := record.Validate(vecs, record.ValidateOptions{Fresh: true}); err != nil {
				b.Fatal(err)
			}
			if _, err := l.Append(vecs, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	beginAnew(b, l, batch)
	ours()
	bare := bareWriter(b, l.Dir(), batch, count)
	bare(0)
	d := duel{prepare: func() { beginAnew(b, l, batch) }}
	for i := 0; b.Loop(); i++ {
		d.round(i, float64(count*len(batch)), ours, func() { bare(0) })
	}
	beginAnew(b, l, batch)
	n := allocations(count, ours)
	d.report(b, "MB/s", 1e6)
	b.ReportMetric(n, "allocs/batch")
	must(b, l.Close())
}

// beginAnew empties the log, whose files will be used again, so that dirty pages do
// not pile up. Its first batch enters a leader epoch, which takes an fsync, as it
// does once whenever a partition's leader changes.
func beginAnew(b *testing.B, l *commitlog.Log, batch []byte) {
	b.Helper()
	must(b, l.ResetTo(0))
	_, err := l.Append([][]byte{batch}, 0)
	must(b, err)
}

// allocations is how many the function makes for each of count things.
func allocations(count int, f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(int64(float64(after.Mallocs-before.Mallocs)/float64(count)*100)) / 100
}

// bareWriter returns a loop that checks and writes a batch count times, with about
// syncs calls of fdatasync, over the very files of a log that has as many batches;
// what the log held is lost. The log may pass its files on from segment to segment:
// they stay the same ones.
func bareWriter(b *testing.B, folder string, batch []byte, count int) func(syncs int) {
	b.Helper()
	per := segmentSize / len(batch)
	paths := logPaths(b, folder)
	if need := (count + per - 1) / per; len(paths) < need {
		b.Fatalf("the log has %d files, and %d are needed", len(paths), need)
	}
	var files []vfs.File
	for _, path := range paths {
		f, err := vfs.OS().Open(path)
		must(b, err)
		b.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	want := record.Checksum(batch)
	return func(syncs int) {
		done := 0
		for i := range count {
			if record.Checksum(batch) != want {
				b.Fatal("checksum")
			}
			if _, err := files[i/per].WriteAt(batch, int64(i%per*len(batch))); err != nil {
				b.Fatal(err)
			}
			for done < syncs && (i+1)*syncs >= (done+1)*count {
				if err := files[i/per].Sync(); err != nil {
					b.Fatal(err)
				}
				done++
			}
		}
	}
}

// BenchmarkGroupCommit has 16 appenders, each waiting for its batch to be durable,
// and one goroutine that syncs; beside a loop that writes the same bytes with as
// many fsyncs.
func BenchmarkGroupCommit(b *testing.B) {
	const appenders, each = 16, 64
	dir := workDir(b)
	fsys := newWarmFS(dir)
	l, _ := openLog(b, fsys, dir, segmentSize, nil)
	batch := batchOf(b, batchBytes)
	const count = appenders * each
	syncs := 0
	ours := func() {
		before := fsys.syncs.Load()
		g := newGroupCommit(l.Sync)
		var wg sync.WaitGroup
		for range appenders {
			wg.Add(1)
			go func() {
				defer wg.Done()
				vecs := [][]byte{batch}
				for range each {
					if _, err := record.Validate(vecs, record.ValidateOptions{Fresh: true}); err != nil {
						b.Error(err)
						return
					}
					info, err := l.Append(vecs, 0)
					if err == nil {
						err = g.wait(info.LastOffset + 1)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			}()
		}
		wg.Wait()
		g.close()
		syncs = int(fsys.syncs.Load() - before)
	}
	beginAnew(b, l, batch)
	ours()
	bare := bareWriter(b, l.Dir(), batch, count)
	bare(syncs)
	d := duel{prepare: func() { beginAnew(b, l, batch) }}
	for i := 0; b.Loop(); i++ {
		d.round(2*i, float64(count*len(batch)), ours, func() { bare(syncs) })
	}
	d.report(b, "MB/s", 1e6)
	b.ReportMetric(float64(count)/float64(syncs), "batches/fsync")
	must(b, l.Close())
}

// groupCommit syncs for as long as somebody waits.
type groupCommit struct {
	mu      sync.Mutex
	wake    sync.Cond // for the syncer
	done    sync.Cond // for who waits
	wanted  int64
	durable int64
	err     error
	closed  bool
	ended   chan struct{}
}

func newGroupCommit(sync func() (int64, error)) *groupCommit {
	g := &groupCommit{ended: make(chan struct{})}
	g.wake.L, g.done.L = &g.mu, &g.mu
	go func() {
		defer close(g.ended)
		g.mu.Lock()
		defer g.mu.Unlock()
		for {
			for g.wanted <= g.durable && !g.closed {
				g.wake.Wait()
			}
			if g.closed || g.err != nil {
				return
			}
			g.mu.Unlock()
			end, err := sync()
			g.mu.Lock()
			g.durable, g.err = max(g.durable, end), err
			g.done.Broadcast()
		}
	}()
	return g
}

func (g *groupCommit) wait(end int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wanted = max(g.wanted, end)
	g.wake.Signal()
	for g.durable < end && g.err == nil {
		g.done.Wait()
	}
	return g.err
}

func (g *groupCommit) close() {
	g.mu.Lock()
	g.closed = true
	g.wake.Signal()
	g.mu.Unlock()
	<-g.ended
}
