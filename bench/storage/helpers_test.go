package storage

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

var (
	full    = flag.Bool("full", false, "compact 1 GB with 10 M keys instead of a sixteenth of that")
	baseDir = flag.String("dir", "", "folder to work in, instead of one for temporary files")
)

// workDir is a folder of its own, removed at the end.
func workDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp(*baseDir, "leat-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	return dir
}

// batchOf makes one batch of about size bytes from records of 100 bytes.
func batchOf(b *testing.B, size int) []byte {
	b.Helper()
	o := record.DefaultBuilderOptions()
	o.MaxBytes = size
	builder, err := record.NewBuilder(o)
	if err != nil {
		b.Fatal(err)
	}
	value := make([]byte, 80)
	for i := uint64(0); ; i++ {
		for j := 0; j < len(value); j += 8 {
			binary.LittleEndian.PutUint64(value[j:], (i+1)*0x9e3779b97f4a7c15+uint64(j))
		}
		ok, err := builder.Append(&record.Record{Timestamp: 1_700_000_000_000, Key: fmt.Appendf(nil, "key-%06d", i), Value: value})
		if err != nil {
			b.Fatal(err)
		}
		if !ok {
			break
		}
	}
	out, err := builder.Build()
	if err != nil {
		b.Fatal(err)
	}
	return out
}

func openLog(b *testing.B, fsys vfs.FS, dir string, segment int64, change func(*commitlog.Options)) (*commitlog.Log, commitlog.RecoveryReport) {
	b.Helper()
	o := commitlog.Options{
		FS: fsys, Dir: filepath.Join(dir, "bench-0"), Topic: "bench", TopicID: [16]byte{1},
		Config: commitlog.Config{SegmentBytes: segment, MaxMessageBytes: 8 << 20},
		Files:  commitlog.NewFileCache(4096),
	}
	if change != nil {
		change(&o)
	}
	l, report, err := commitlog.Open(o)
	if err != nil {
		b.Fatal(err)
	}
	return l, report
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

// duel collects rounds of two sides, each in bytes per second or the like.
type duel struct {
	prepare            func() // untimed, before each round of ours; may be nil
	ours, bare, ratios []float64
}

// round times both sides, in turns first, and compares how much each gets done: n
// is the work in a round.
func (d *duel) round(i int, n float64, ours, bare func()) {
	var a, c time.Duration
	if i%2 != 0 {
		c = timed(bare)
	}
	if d.prepare != nil {
		d.prepare()
	}
	a = timed(ours)
	if i%2 == 0 {
		c = timed(bare)
	}
	d.ours = append(d.ours, n/a.Seconds())
	d.bare = append(d.bare, n/c.Seconds())
	d.ratios = append(d.ratios, c.Seconds()/a.Seconds())
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// report prints medians. The time per operation that the package testing prints
// covers both sides, and is hidden.
func (d *duel) report(b *testing.B, unit string, scale float64) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(d.ours)/scale, unit)
	b.ReportMetric(median(d.bare)/scale, "bare-"+unit)
	b.ReportMetric(median(d.ratios), "ratio")
}
