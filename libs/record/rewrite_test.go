package record

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// Records that are kept stay as they were, whatever the codec, and so does all of
// the header that the survivors and the producer's sequence depend on.
func TestRewriteKeepsSurvivors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := DefaultBuilderOptions()
		o.Compression = Compression(rapid.IntRange(0, 4).Draw(t, "codec"))
		o.ProducerID, o.ProducerEpoch, o.BaseSequence = 7, 3, 100
		b, err := NewBuilder(o)
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(1, 12).Draw(t, "records")
		for i := range n {
			r := Record{Timestamp: rapid.Int64Range(-1, 1<<41).Draw(t, "ts"), Key: fmt.Appendf(nil, "k%d", i), Value: bytes.Repeat([]byte{'v'}, i*10)}
			if i%3 == 0 {
				r.Value, r.Headers = nil, []RecordHeader{{Key: []byte("h"), Value: nil}, {Key: []byte("h"), Value: []byte{}}}
			}
			if ok, err := b.Append(&r); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		PatchBaseOffset(batch, 1000)
		PatchPartitionLeaderEpoch(batch, 5)
		if rapid.Bool().Draw(t, "stamped by the log") {
			PatchLogAppendTime(batch[:HeaderSize], [][]byte{batch[HeaderSize:]}, 1<<42)
		}
		mask := rapid.IntRange(0, 1<<n-1).Draw(t, "kept")
		horizon := rapid.SampledFrom([]int64{NoTimestamp, 0, 1 << 40}).Draw(t, "horizon")
		w := NewRewriter(0)
		got, err := w.Rewrite(batch, horizon, func(r *Record) bool { return mask>>r.OffsetDelta&1 == 1 })
		if err != nil {
			t.Fatal(err)
		}
		before, after := mustHeader(t, batch), mustHeader(t, got.Batch)
		if _, err := Validate([][]byte{got.Batch}, ValidateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := ValidateRecords([][]byte{got.Batch}, 0); err != nil {
			t.Fatal(err)
		}
		if after.NextOffset() != before.NextOffset() || after.BaseOffset != 1000 || after.PartitionLeaderEpoch != 5 ||
			after.LastSequence() != before.LastSequence() || after.ProducerID != 7 || after.ProducerEpoch != 3 || after.Compression() != before.Compression() {
			t.Fatalf("%+v became %+v", before, after)
		}
		if after.Attributes.HasDeleteHorizon() != (horizon != NoTimestamp) || horizon != NoTimestamp && after.BaseTimestamp != horizon {
			t.Fatalf("horizon %d: %+v", horizon, after)
		}
		want, err := Decode(batch, 0)
		if err != nil {
			t.Fatal(err)
		}
		have, err := Decode(got.Batch, 0)
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		for _, r := range want {
			if mask>>r.OffsetDelta&1 == 0 {
				continue
			}
			if i >= len(have) || fmt.Sprintf("%#v", r) != fmt.Sprintf("%#v", have[i]) {
				t.Fatalf("record %d changed", i)
			}
			i++
		}
		if i != len(have) || i != got.Kept || int(after.NumRecords) != i {
			t.Fatalf("%d records, %d wanted", len(have), i)
		}
	})
}

func mustHeader(t *rapid.T, b []byte) Header {
	h, err := ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// case 10: a batch that keeps no record still says where its producer was.
func TestRewriteToEmpty(t *testing.T) {
	for c := CompressionNone; c <= CompressionZstd; c++ {
		o := DefaultBuilderOptions()
		o.Compression, o.ProducerID, o.ProducerEpoch, o.BaseSequence = c, 1, 0, 5
		batch := build(t, o, Record{Timestamp: 9, Value: bytes.Repeat([]byte("x"), 300)}, Record{Timestamp: 8})
		got, err := NewRewriter(0).Rewrite(batch, NoTimestamp, func(*Record) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		h, err := Validate([][]byte{got.Batch}, ValidateOptions{})
		if err != nil || h.Size() != HeaderSize || h.LastSequence() != 6 || h.NextOffset() != 2 || h.MaxTimestamp != 9 {
			t.Fatalf("%s: %+v, %v", c, h, err)
		}
		if records, err := Decode(got.Batch, 0); err != nil || len(records) != 0 {
			t.Fatalf("%s: %v, %v", c, records, err)
		}
	}
}

// A rewriter that has grown its buffers allocates nothing more.
func TestRewriteAllocates(t *testing.T) {
	batch := build(t, DefaultBuilderOptions(), Record{Timestamp: 9, Key: []byte("k"), Value: bytes.Repeat([]byte("x"), 300)}, Record{Timestamp: 8})
	w := NewRewriter(0)
	keep := func(r *Record) bool { return r.OffsetDelta == 1 }
	if n := testing.AllocsPerRun(100, func() {
		if _, err := w.Rewrite(batch, NoTimestamp, keep); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Fatalf("%v allocations", n)
	}
}
