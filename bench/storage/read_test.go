package storage

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// BenchmarkRead reads a log from its beginning to its end from the page cache, in
// chunks of 1 MiB, beside pread of the same files in the same chunks.
func BenchmarkRead(b *testing.B) {
	const total, chunk = 256 << 20, 1 << 20
	dir := workDir(b)
	l, _ := openLog(b, vfs.OS(), dir, segmentSize, nil)
	batch := batchOf(b, batchBytes)
	for range total / len(batch) {
		_, err := l.Append([][]byte{batch}, 0)
		must(b, err)
	}
	_, err := l.Sync()
	must(b, err)
	buf := make([]byte, 2*chunk)
	alloc := func(int) []byte { return buf }
	batches, bytes := 0, int64(0)
	ours := func() {
		batches, bytes = 0, 0
		for offset, end := int64(0), l.EndOffset(); offset < end; {
			res, err := l.Read(offset, end, chunk, alloc)
			if err != nil {
				b.Fatal(err)
			}
			offset = res.NextOffset
			bytes += int64(len(res.Data))
			batches += len(res.Data) / len(batch)
		}
	}
	ours()
	files := logFiles(b, l.Dir())
	bare := func() {
		for _, f := range files {
			for pos := int64(0); ; {
				// As much as the log gives at once: whole batches.
				n, err := f.ReadAt(buf[:chunk/len(batch)*len(batch)], pos)
				pos += int64(n)
				if err != nil {
					break
				}
			}
		}
	}
	bare()
	var d duel
	for i := 0; b.Loop(); i++ {
		d.round(i, float64(bytes), ours, bare)
	}
	d.report(b, "MB/s", 1e6)
	b.ReportMetric(allocations(batches, ours), "allocs/batch")
	must(b, l.Close())
}

// logPaths finds all .log files of a folder, in order.
func logPaths(b *testing.B, dir string) []string {
	b.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.log"))
	must(b, err)
	slices.Sort(paths)
	return paths
}

// logFiles opens them.
func logFiles(b *testing.B, dir string) []*os.File {
	b.Helper()
	var files []*os.File
	for _, path := range logPaths(b, dir) {
		f, err := os.Open(path)
		must(b, err)
		b.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	return files
}

// BenchmarkRecovery opens a log after an unclean stop, beside pread and CRC32C of
// the same files.
func BenchmarkRecovery(b *testing.B) {
	const total = 256 << 20
	dir := workDir(b)
	l, _ := openLog(b, vfs.OS(), dir, segmentSize, nil)
	batch := batchOf(b, batchBytes)
	for range total / len(batch) {
		_, err := l.Append([][]byte{batch}, 0)
		must(b, err)
	}
	end, err := l.Sync()
	must(b, err)
	folder := l.Dir()
	must(b, l.Close())
	files := logFiles(b, folder)
	buf := make([]byte, 256<<10)
	bare := func() {
		crc := uint32(0)
		for _, f := range files {
			for pos := int64(0); ; {
				n, err := f.ReadAt(buf, pos)
				crc = record.UpdateChecksum(crc, buf[:n])
				pos += int64(n)
				if err != nil {
					break
				}
			}
		}
	}
	var scanned, half int64
	ours := func() {
		l, report := openLog(b, vfs.OS(), dir, segmentSize, func(o *commitlog.Options) { o.HighWatermark = end })
		scanned = report.ScannedBytes
		must(b, l.Abort())
	}
	ours()
	bare()
	var d duel
	for i := 0; b.Loop(); i++ {
		d.round(i, float64(scanned), ours, bare)
	}
	l, report := openLog(b, vfs.OS(), dir, segmentSize, func(o *commitlog.Options) { o.HighWatermark, o.RecoveryPoint = end, end-end/8 })
	half = report.ScannedBytes
	must(b, l.Abort())
	d.report(b, "MB/s", 1e6)
	b.ReportMetric(float64(half)/float64(scanned), "scanned-with-recovery-point-at-7/8")
}
