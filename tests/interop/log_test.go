package interop

import (
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// A batch that franz-go wrote goes through a log, which gives it its place and,
// where the topic says so, its timestamp, and franz-go reads it back.
func TestThroughLog(t *testing.T) {
	for _, stamp := range []record.TimestampType{record.CreateTime, record.LogAppendTime} {
		disk := memfs.New()
		if err := disk.MkdirAll("/disk"); err != nil {
			t.Fatal(err)
		}
		l, _, err := commitlog.Open(commitlog.Options{
			FS: disk, Dir: "/disk/interop-0", Topic: "interop", TopicID: [16]byte{1},
			Config: commitlog.Config{TimestampType: stamp, MaxMessageBytes: 8 << 20},
		})
		if err != nil {
			t.Fatal(err)
		}
		next := int64(0)
		each(t, func(t *testing.T, c batchCase, o record.BuilderOptions) {
			o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional, o.Control = -1, -1, -1, false, false
			b := franzEncode(t, c.records, o)
			info, err := l.Append([][]byte{b}, 3)
			if err != nil {
				t.Fatal(err)
			}
			if info.BaseOffset != next {
				t.Fatalf("base offset %d, want %d", info.BaseOffset, next)
			}
			res, err := l.Read(next, info.LastOffset+1, 1, func(n int) []byte { return make([]byte, n) })
			if err != nil {
				t.Fatal(err)
			}
			next = res.NextOffset
			k := franzDecode(t, res.Data)
			if k.FirstOffset != info.BaseOffset || k.PartitionLeaderEpoch != 3 || k.MaxTimestamp != info.MaxTimestamp {
				t.Fatalf("kmsg reads offset %d, epoch %d, max timestamp %d; want %+v", k.FirstOffset, k.PartitionLeaderEpoch, k.MaxTimestamp, info)
			}
			want := placed(c.records)
			for i := range want {
				want[i].Offset += info.BaseOffset
				if stamp == record.LogAppendTime {
					want[i].Timestamp = info.MaxTimestamp
				}
			}
			if got, want := describeTheirs(&k), describeOurs(want); got != want {
				t.Fatalf("kmsg reads:\n%.500s\nwant:\n%.500s", got, want)
			}
		})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What compaction makes of a batch, franz-go reads: the survivors as they were, a
// batch without any, and one with a delete horizon.
func TestRewrittenToFranz(t *testing.T) {
	each(t, func(t *testing.T, c batchCase, o record.BuilderOptions) {
		b := leatEncode(t, c.records, o)
		record.PatchBaseOffset(b, 700)
		w := record.NewRewriter(0)
		for name, keep := range map[string]func(*record.Record) bool{
			"none": func(*record.Record) bool { return false },
			"odd":  func(r *record.Record) bool { return r.OffsetDelta%2 == 1 },
			"all":  func(*record.Record) bool { return true },
		} {
			for _, horizon := range []int64{record.NoTimestamp, 1_800_000_000_000} {
				out, err := w.Rewrite(b, horizon, keep)
				if err != nil {
					t.Fatal(err)
				}
				var want []record.Record
				for i, r := range placed(c.records) {
					if r.OffsetDelta = int32(i); keep(&r) {
						r.Offset += 700
						want = append(want, r)
					}
				}
				k := franzDecode(t, out.Batch)
				if got, want := describeTheirs(&k), describeOurs(want); got != want {
					t.Fatalf("%s: kmsg reads:\n%.500s\nwant:\n%.500s", name, got, want)
				}
				if k.LastOffsetDelta != int32(len(c.records)-1) || k.ProducerID != o.ProducerID || k.FirstSequence != o.BaseSequence {
					t.Fatalf("%s: kmsg reads %+v", name, k.RecordBatch)
				}
				if horizon != record.NoTimestamp && (k.Attributes&64 == 0 || k.FirstTimestamp != horizon) {
					t.Fatalf("%s: no horizon in attributes %x, first timestamp %d", name, k.Attributes, k.FirstTimestamp)
				}
			}
		}
	})
}
