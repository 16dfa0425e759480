package storage

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// BenchmarkClean compacts a log of 1 GB with 10 M keys, or a sixteenth of that, in
// which each key was written once and one in four again: MB of .log files per second
// that go in, counting each once, and the memory of the map of keys.
func BenchmarkClean(b *testing.B) {
	keys := 10_000_000 / 16
	if *full {
		keys *= 16
	}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		dir := workDir(b)
		l, _ := openLog(b, vfs.OS(), dir, 16<<20, nil)
		end := fillKeys(b, l, keys)
		size, err := l.Size()
		must(b, err)
		o := commitlog.DefaultCleanOptions(end)
		o.DedupeBufferBytes = 1 << 30
		b.StartTimer()
		start := time.Now()
		report, err := l.Clean(o)
		took := time.Since(start).Seconds()
		must(b, err)
		b.StopTimer()
		if report.Passes != 1 || report.RecordsRemoved == 0 {
			b.Fatalf("%+v", report)
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(size)/1e6/took, "MB/s")
		b.ReportMetric(float64(report.RecordsRead)/1e6/took, "Mrecords/s")
		b.ReportMetric(float64(report.MapBytes)/float64(report.Keys), "bytes/key")
		b.ReportMetric(float64(size)/1e6, "MB")
		b.ReportMetric(float64(report.Keys), "keys")
		must(b, l.Close())
		b.StartTimer()
	}
}

// fillKeys writes each key once, 80 bytes a record, and one in four again.
func fillKeys(b *testing.B, l *commitlog.Log, keys int) int64 {
	b.Helper()
	o := record.DefaultBuilderOptions()
	o.MaxBytes = batchBytes
	builder, err := record.NewBuilder(o)
	must(b, err)
	flush := func() {
		batch, err := builder.Build()
		must(b, err)
		_, err = l.Append([][]byte{batch}, 0)
		must(b, err)
	}
	value := make([]byte, 50)
	key := make([]byte, 16)
	for i := range keys + keys/4 {
		n := uint64(i)
		if i >= keys {
			n = uint64(i-keys) * 4
		}
		binary.BigEndian.PutUint64(key, n*0x9e3779b97f4a7c15)
		binary.BigEndian.PutUint64(value, uint64(i))
		r := record.Record{Timestamp: 1_700_000_000_000, Key: key, Value: value}
		ok, err := builder.Append(&r)
		must(b, err)
		if !ok {
			flush()
			_, err := builder.Append(&r)
			must(b, err)
		}
	}
	flush()
	end, err := l.Sync()
	must(b, err)
	return end
}
