package storage

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

const (
	bigSegment      = 1 << 30
	batchesPerBig   = bigSegment / batchBytes
	recordsPerBatch = 600
	// sampled is how many batches have a header, and can be looked up.
	sampled = 32 << 10
)

// bigLog makes a log of so many sealed segments of 1 GiB and an empty active one: the
// .log files are sparse, with headers at a sample of batches, and the indexes are
// whole, byte for byte as docs/format.md says. It returns offsets that can be looked
// up.
func bigLog(b *testing.B, dir string, segments int) (*commitlog.Log, []int64) {
	b.Helper()
	l, _ := openLog(b, vfs.OS(), dir, bigSegment, nil)
	folder := l.Dir()
	must(b, l.Close())
	for _, pattern := range []string{"*.log", "*.index", "*.timeindex", "*.snapshot"} {
		paths, err := filepath.Glob(filepath.Join(folder, pattern))
		must(b, err)
		for _, path := range paths {
			must(b, os.Remove(path))
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var offsets []int64
	base := int64(0)
	for range segments {
		offsets = append(offsets, sparseSegment(b, folder, base, sampled/segments, rnd)...)
		base += batchesPerBig * recordsPerBatch
	}
	for _, suffix := range []string{".log", ".index", ".timeindex"} {
		must(b, os.WriteFile(segmentFile(folder, base, suffix), nil, 0o600))
	}
	smallFile(b, filepath.Join(folder, "leader-epoch-checkpoint"), "leat leader-epoch-checkpoint 1\n0 0\n")
	smallFile(b, segmentFile(folder, base, ".snapshot"), fmt.Sprintf("leat producer-snapshot 1\noffset %d\nfence 0 0\n", base))
	l, report := openLog(b, vfs.OS(), dir, bigSegment, func(o *commitlog.Options) { o.CleanShutdown = true })
	if !report.Clean || report.End != base || l.Segments() != segments+1 {
		b.Fatalf("the log was not made as the engine makes it: %+v", report)
	}
	return l, offsets
}

func segmentFile(folder string, base int64, suffix string) string {
	return filepath.Join(folder, fmt.Sprintf("%020d%s", base, suffix))
}

func smallFile(b *testing.B, path, text string) {
	b.Helper()
	text += fmt.Sprintf("crc32c %08x\n", record.UpdateChecksum(0, []byte(text)))
	must(b, os.WriteFile(path, []byte(text), 0o600))
}

func sparseSegment(b *testing.B, folder string, base int64, samples int, rnd *rand.Rand) (offsets []int64) {
	b.Helper()
	log, err := os.Create(segmentFile(folder, base, ".log"))
	must(b, err)
	must(b, log.Truncate(bigSegment))
	for range samples {
		n := rnd.Int64N(batchesPerBig)
		h := record.Header{
			BaseOffset: base + n*recordsPerBatch, Length: batchBytes - record.LengthOverhead, Magic: record.Magic, LastOffsetDelta: recordsPerBatch - 1,
			ProducerID: record.NoProducerID, ProducerEpoch: record.NoProducerEpoch, BaseSequence: record.NoSequence, NumRecords: recordsPerBatch,
		}
		var head [record.HeaderSize]byte
		h.Put(head[:])
		_, err := log.WriteAt(head[:], n*batchBytes)
		must(b, err)
		offsets = append(offsets, h.BaseOffset+rnd.Int64N(recordsPerBatch-1))
	}
	must(b, log.Close())
	be := binary.BigEndian
	index, times := make([]byte, 0, batchesPerBig*12), make([]byte, 0, batchesPerBig*16)
	var room [12]byte
	// The first batch has no entry, and the segment's end has one.
	for n := int64(1); n <= batchesPerBig; n++ {
		entry := be.AppendUint32(be.AppendUint32(room[:0], uint32(n*recordsPerBatch)), uint32(n*batchBytes))
		index = appendEntry(index, 'o', base, uint32(n-1), entry)
		entry = be.AppendUint32(be.AppendUint64(room[:0], 1_700_000_000_000), uint32(n*recordsPerBatch))
		times = appendEntry(times, 't', base, uint32(n-1), entry)
	}
	must(b, os.WriteFile(segmentFile(folder, base, ".index"), index, 0o600))
	must(b, os.WriteFile(segmentFile(folder, base, ".timeindex"), times, 0o600))
	return offsets
}

// appendEntry adds the fields of an index entry with their checksum.
func appendEntry(dst []byte, kind byte, base int64, number uint32, fields []byte) []byte {
	var seed [13]byte
	seed[0] = kind
	binary.BigEndian.PutUint64(seed[1:], uint64(base))
	binary.BigEndian.PutUint32(seed[9:], number)
	crc := record.UpdateChecksum(record.UpdateChecksum(0, seed[:]), fields)
	return binary.BigEndian.AppendUint32(append(dst, fields...), crc)
}

// BenchmarkBigLog looks random offsets up in a log of 1 TiB beside one of 1 GiB, and
// appends to both. Here "bare" is the small log, and the ratio is how many times as
// long the big one takes.
func BenchmarkBigLog(b *testing.B) {
	dir := workDir(b)
	big, bigOffsets := bigLog(b, filepath.Join(dir, "big"), 1024)
	small, smallOffsets := bigLog(b, filepath.Join(dir, "small"), 1)
	alloc := func(n int) []byte { return make([]byte, n) }
	rnd := rand.New(rand.NewPCG(3, 4))
	lookups := func(l *commitlog.Log, offsets []int64) func() {
		return func() {
			for range 20_000 {
				// With this limit the batch is found and not read.
				offset := offsets[rnd.IntN(len(offsets))]
				if res, err := l.Read(offset, offset+1, 1, alloc); err != nil || len(res.Data) > 0 {
					b.Fatal(err, len(res.Data))
				}
			}
		}
	}
	batch := batchOf(b, 4<<10)
	appends := func(l *commitlog.Log) func() {
		return func() {
			for range 2000 {
				if _, err := l.Append([][]byte{batch}, 0); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	run := func(name string, n float64, ours, bare func()) {
		b.Run(name, func(b *testing.B) {
			ours()
			bare()
			var d duel
			for i := 0; b.Loop(); i++ {
				d.round(i, n, ours, bare)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(1e9/median(d.ours), "ns-1TiB")
			b.ReportMetric(1e9/median(d.bare), "ns-1GiB")
			b.ReportMetric(1/median(d.ratios), "ratio")
		})
	}
	run("Lookup", 20_000, lookups(big, bigOffsets), lookups(small, smallOffsets))
	run("Append", 2000, appends(big), appends(small))
	must(b, big.Close())
	must(b, small.Close())
}
