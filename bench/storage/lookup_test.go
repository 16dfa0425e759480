package storage

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

const (
	bigSegment      = 1 << 30
	batchesPerBig   = bigSegment / batchBytes
	recordsPerBatch = 600
	// sampled is how many batches have a header, and can be looked up: all of the lone
	// log's, and as many of the others, which have 1024 times more.
	sampled   = batchesPerBig
	bigCount  = 1024
	openFiles = 16 << 10
)

// target is a log and offsets in it that can be looked up.
type target struct {
	log     *commitlog.Log
	offsets []int64
}

// bigLog makes a log of so many sealed segments of 1 GiB and an empty active one: the
// .log files are sparse, with headers at a sample of batches of each segment, and the
// indexes are whole, byte for byte as docs/format.md says.
func bigLog(b *testing.B, dir string, files *commitlog.FileCache, segments, samples int, rnd *rand.Rand) target {
	b.Helper()
	shared := func(o *commitlog.Options) { o.Files = files }
	l, _ := openLog(b, vfs.OS(), dir, bigSegment, shared)
	folder := l.Dir()
	must(b, l.Close())
	for _, pattern := range []string{"*.log", "*.index", "*.timeindex", "*.snapshot"} {
		paths, err := filepath.Glob(filepath.Join(folder, pattern))
		must(b, err)
		for _, path := range paths {
			must(b, os.Remove(path))
		}
	}
	var offsets []int64
	base := int64(0)
	for range segments {
		offsets = append(offsets, sparseSegment(b, folder, base, samples, rnd)...)
		base += batchesPerBig * recordsPerBatch
	}
	for _, suffix := range []string{".log", ".index", ".timeindex"} {
		must(b, os.WriteFile(segmentFile(folder, base, suffix), nil, 0o600))
	}
	smallFile(b, filepath.Join(folder, "leader-epoch-checkpoint"), "leat leader-epoch-checkpoint 1\n0 0\n")
	smallFile(b, segmentFile(folder, base, ".snapshot"), fmt.Sprintf("leat producer-snapshot 1\noffset %d\nfence 0 0\n", base))
	l, report := openLog(b, vfs.OS(), dir, bigSegment, func(o *commitlog.Options) { o.Files, o.CleanShutdown = files, true })
	if !report.Clean || report.End != base || l.Segments() != segments+1 {
		b.Fatalf("the log was not made as the engine makes it: %+v", report)
	}
	return target{l, offsets}
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
	for _, k := range rnd.Perm(batchesPerBig)[:samples] {
		n := int64(k)
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

// BenchmarkBigLog looks random offsets up in a log of 1 TiB, and appends to it, beside
// logs of 1 GiB; "ratio" is how many times as long the big one takes.
//
// In Lookup the yardstick is 1024 logs of 1 GiB each: as many bytes, files and index
// entries as in the big log, and the processor's caches hold as little of them. In
// LookupLone it is a single log of 1 GiB, and nothing else is going on, so that all of
// its index is in those caches; PreadsLone is what two preads alone, of a block of the
// index and of a header at the same places of the same files, make of that.
func BenchmarkBigLog(b *testing.B) {
	dir := workDir(b)
	files := commitlog.NewFileCache(openFiles)
	rnd := rand.New(rand.NewPCG(1, 2))
	big := []target{bigLog(b, filepath.Join(dir, "big"), files, bigCount, sampled/bigCount, rnd)}
	lone := []target{bigLog(b, filepath.Join(dir, "lone"), files, 1, sampled, rnd)}
	var many []target
	for i := range bigCount {
		many = append(many, bigLog(b, filepath.Join(dir, fmt.Sprint("small-", i)), files, 1, sampled/bigCount, rnd))
	}
	const each, appended = 20_000, 2000
	lookups := func(targets []target) func() {
		alloc := func(n int) []byte { return make([]byte, n) }
		return func() {
			for range each {
				t := &targets[rnd.IntN(len(targets))]
				// With this limit the batch is found and not read.
				offset := t.offsets[rnd.IntN(len(t.offsets))]
				if res, err := t.log.Read(offset, offset+1, 1, alloc); err != nil || len(res.Data) > 0 {
					b.Fatal(err, len(res.Data))
				}
			}
		}
	}
	b.Run("Lookup", func(b *testing.B) {
		compare(b, each, lookups(big), lookups(many)).reportTimes(b)
	})
	b.Run("LookupLone", func(b *testing.B) {
		compare(b, each, lookups(big), lookups(lone)).reportTimes(b)
	})
	b.Run("PreadsLone", func(b *testing.B) {
		compare(b, each, bareLookups(b, big[0], rnd, each), bareLookups(b, lone[0], rnd, each)).reportTimes(b)
	})
	batch := batchOf(b, 4<<10)
	appends := func(l *commitlog.Log) func() {
		return func() {
			for range appended {
				if _, err := l.Append([][]byte{batch}, 0); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.Run("Append", func(b *testing.B) {
		compare(b, appended, appends(big[0].log), appends(lone[0].log)).reportTimes(b)
	})
	for _, t := range append(append(many, lone...), big...) {
		must(b, t.log.Close())
	}
}

// compare warms both sides up and runs them in turns.
func compare(b *testing.B, n float64, ours, bare func()) *duel {
	d := new(duel)
	for range 3 {
		ours()
		bare()
	}
	for i := 0; b.Loop(); i++ {
		d.round(i, n, ours, bare)
	}
	return d
}

// reportTimes is report for how long one thing takes.
func (d *duel) reportTimes(b *testing.B) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(1e9/median(d.ours), "ns-1TiB")
	b.ReportMetric(1e9/median(d.bare), "ns-1GiB")
	b.ReportMetric(1/median(d.ratios), "ratio")
}

// bareLookups reads what a lookup at least reads, with nothing around it.
func bareLookups(b *testing.B, t target, rnd *rand.Rand, n int) func() {
	b.Helper()
	logs := logFiles(b, t.log.Dir())
	indexes := make([]*os.File, len(logs))
	for i, f := range logs {
		var err error
		indexes[i], err = os.Open(strings.TrimSuffix(f.Name(), ".log") + ".index")
		must(b, err)
		b.Cleanup(func() { _ = indexes[i].Close() })
	}
	const block = 128 * 12
	buf := make([]byte, 8<<10)
	return func() {
		for range n {
			number := t.offsets[rnd.IntN(len(t.offsets))] / recordsPerBatch
			seg, number := number/batchesPerBig, number%batchesPerBig
			if _, err := indexes[seg].ReadAt(buf[:block], number*12/block*block); err != nil {
				b.Fatal(err)
			}
			if _, err := logs[seg].ReadAt(buf, number*batchBytes); err != nil {
				b.Fatal(err)
			}
		}
	}
}
