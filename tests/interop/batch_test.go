package interop

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/leat-io/leat/libs/record"
)

var update = flag.Bool("update", false, "write the golden files anew")

// batchCase is one batch, written with every codec by both sides.
type batchCase struct {
	name    string
	options func(*record.BuilderOptions)
	records []record.Record
}

func cases() []batchCase {
	const ts = 1_700_000_000_000
	long := bytes.Repeat([]byte("a long value that packs well; "), 300)
	return []batchCase{
		{name: "plain", records: []record.Record{
			{Timestamp: ts, Key: []byte("key"), Value: []byte("value")},
			{Timestamp: ts + 5, Key: []byte("key 2"), Value: []byte("value 2")},
		}},
		// case 19
		{name: "null-and-empty", records: []record.Record{
			{Timestamp: ts},
			{Timestamp: ts, Key: []byte{}, Value: []byte{}},
			{Timestamp: ts, Key: []byte("k")},
			{Timestamp: ts, Value: []byte("v")},
		}},
		// case 19
		{name: "headers", records: []record.Record{{
			Timestamp: ts, Key: []byte("k"), Value: []byte("v"),
			Headers: []record.RecordHeader{
				{Key: []byte("h"), Value: []byte("1")},
				{Key: []byte("h"), Value: []byte{}},
				{Key: []byte("h"), Value: nil},
				{Key: []byte{}, Value: []byte("empty key")},
				{Key: []byte("ключ"), Value: []byte{0, 0xff}},
			},
		}}},
		{name: "long", records: []record.Record{
			{Timestamp: ts, Key: []byte("k"), Value: long},
			{Timestamp: ts + 1, Value: long[1:]},
		}},
		{name: "timestamps-go-back", records: []record.Record{
			{Timestamp: ts, Value: []byte("a")},
			{Timestamp: ts - 1000, Value: []byte("b")},
			{Timestamp: ts + 1<<33, Value: []byte("c")},
			{Timestamp: 0, Value: []byte("d")},
			{Timestamp: -1, Value: []byte("e")},
		}},
		{name: "idempotent", options: func(o *record.BuilderOptions) {
			o.ProducerID, o.ProducerEpoch, o.BaseSequence = 1<<40, 7, 1<<31-2
		}, records: []record.Record{{Timestamp: ts, Value: []byte("a")}, {Timestamp: ts, Value: []byte("b")}, {Timestamp: ts, Value: []byte("c")}}},
		{name: "transactional", options: func(o *record.BuilderOptions) {
			o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional = 9, 0, 0, true
		}, records: []record.Record{{Timestamp: ts, Value: []byte("a")}}},
		{name: "control", options: func(o *record.BuilderOptions) {
			o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional, o.Control = 9, 1, -1, true, true
		}, records: []record.Record{{Timestamp: ts, Key: []byte{0, 0, 0, 1}, Value: []byte{0, 0, 0, 0, 0, 1}}}},
		{name: "many", records: many(ts)},
	}
}

// many crosses the widths of offset and timestamp deltas.
func many(ts int64) []record.Record {
	out := make([]record.Record, 9000)
	for i := range out {
		out[i] = record.Record{Timestamp: ts + int64(i)*37, Key: fmt.Appendf(nil, "key-%d", i%100), Value: fmt.Appendf(nil, "value-%d", i)}
	}
	return out
}

// each runs a test over every case and codec.
func each(t *testing.T, fn func(t *testing.T, c batchCase, o record.BuilderOptions)) {
	for _, c := range cases() {
		for codec := record.CompressionNone; codec <= record.CompressionZstd; codec++ {
			t.Run(c.name+"/"+codec.String(), func(t *testing.T) {
				o := record.DefaultBuilderOptions()
				o.Compression = codec
				if c.options != nil {
					c.options(&o)
				}
				fn(t, c, o)
			})
		}
	}
}

func leatEncode(t *testing.T, records []record.Record, o record.BuilderOptions) []byte {
	t.Helper()
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if ok, err := b.Append(&records[i]); !ok || err != nil {
			t.Fatalf("append record %d: %v, %v", i, ok, err)
		}
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// leatDecode does what a server does with a batch from the network, and what a
// consumer does.
func leatDecode(t *testing.T, b []byte) (record.Header, []record.Record) {
	t.Helper()
	h, err := record.Validate([][]byte{b}, record.ValidateOptions{Fresh: true, AllowControl: true})
	if err != nil {
		t.Fatalf("validate: %v", err)
	}
	if err := record.ValidateRecords([][]byte{b}, 0); err != nil {
		t.Fatalf("validate records: %v", err)
	}
	records, err := record.Decode(b, 0)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	return h, records
}

// placed is records with the offsets that a batch with base offset 0 gives them.
func placed(records []record.Record) []record.Record {
	out := append([]record.Record(nil), records...)
	for i := range out {
		out[i].Offset = int64(i)
	}
	return out
}

func sameHeader(t *testing.T, h *record.Header, k *kafkaBatch) {
	t.Helper()
	ours := fmt.Sprint(h.BaseOffset, h.Length, h.PartitionLeaderEpoch, h.Magic, int32(h.CRC), int16(h.Attributes), h.LastOffsetDelta,
		h.BaseTimestamp, h.MaxTimestamp, h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.NumRecords)
	theirs := fmt.Sprint(k.FirstOffset, k.Length, k.PartitionLeaderEpoch, k.Magic, k.CRC, k.Attributes, k.LastOffsetDelta,
		k.FirstTimestamp, k.MaxTimestamp, k.ProducerID, k.ProducerEpoch, k.FirstSequence, k.NumRecords)
	if ours != theirs {
		t.Fatalf("the headers differ:\n%s\n%s", ours, theirs)
	}
}

// What we write, kmsg reads.
func TestLeatToFranz(t *testing.T) {
	each(t, func(t *testing.T, c batchCase, o record.BuilderOptions) {
		b := leatEncode(t, c.records, o)
		k := franzDecode(t, b)
		if got, want := describeTheirs(&k), describeOurs(placed(c.records)); got != want {
			t.Fatalf("kmsg reads:\n%.500s\nwant:\n%.500s", got, want)
		}
		h, _ := leatDecode(t, b)
		sameHeader(t, &h, &k)
		if k.ProducerID != o.ProducerID || k.ProducerEpoch != o.ProducerEpoch || k.FirstSequence != o.BaseSequence ||
			k.Attributes&16 != 0 != o.Transactional || k.Attributes&32 != 0 != o.Control {
			t.Fatalf("kmsg reads producer %d %d %d, attributes %x", k.ProducerID, k.ProducerEpoch, k.FirstSequence, k.Attributes)
		}
	})
}

// What kmsg writes, we read; and uncompressed, both write the same bytes.
func TestFranzToLeat(t *testing.T) {
	each(t, func(t *testing.T, c batchCase, o record.BuilderOptions) {
		b := franzEncode(t, c.records, o)
		h, got := leatDecode(t, b)
		if got, want := describeOurs(got), describeOurs(placed(c.records)); got != want {
			t.Fatalf("we read:\n%.500s\nwant:\n%.500s", got, want)
		}
		k := franzDecode(t, b)
		sameHeader(t, &h, &k)
		if o.Compression == record.CompressionNone && !bytes.Equal(b, leatEncode(t, c.records, o)) {
			t.Fatal("the same records have other bytes")
		}
	})
}

// The golden files are what either side wrote when this test was made: both must
// still read them, whatever their codecs write today.
func TestGolden(t *testing.T) {
	each(t, func(t *testing.T, c batchCase, o record.BuilderOptions) {
		if c.name == "many" {
			return // large, and like the others
		}
		for side, encode := range map[string]func(*testing.T, []record.Record, record.BuilderOptions) []byte{"leat": leatEncode, "franz": franzEncode} {
			path := filepath.Join("testdata", fmt.Sprintf("%s.%s.%s", c.name, o.Compression, side))
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, encode(t, c.records, o), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v; write it with: go test -run Golden -update", err)
			}
			want := describeOurs(placed(c.records))
			_, records := leatDecode(t, b)
			if got := describeOurs(records); got != want {
				t.Fatalf("%s: we read:\n%.500s\nwant:\n%.500s", path, got, want)
			}
			k := franzDecode(t, b)
			if got := describeTheirs(&k); got != want {
				t.Fatalf("%s: kmsg reads:\n%.500s\nwant:\n%.500s", path, got, want)
			}
			if o.Compression == record.CompressionNone && !bytes.Equal(b, encode(t, c.records, o)) {
				t.Fatalf("%s: the same records are written otherwise today", path)
			}
		}
	})
}
