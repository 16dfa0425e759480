package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// goldenHex is a batch of two records computed by hand from Kafka's description
// of the format; only the checksum was computed by a separate bit-by-bit CRC32C.
//
//	record 0: key "k", value "v", header "h"=null, timestamp 1000
//	record 1: null key, empty value, no headers, timestamp 1005
const goldenHex = "0000000000000000" + // base offset 0
	"00000044" + // length 68 = 49 of the header + 12 + 7
	"ffffffff" + // leader epoch -1
	"02" + // magic
	"CRCCRCCR" + // put in below
	"0000" + // attributes
	"00000001" + // last offset delta
	"00000000000003e8" + // base timestamp 1000
	"00000000000003ed" + // max timestamp 1005
	"ffffffffffffffff" + "ffff" + "ffffffff" + // no producer
	"00000002" + // two records
	// 11 bytes: attributes, timestamp +0, offset +0, "k", "v", one header, "h", null
	"16" + "00" + "00" + "00" + "026b" + "0276" + "02" + "0268" + "01" +
	// 6 bytes: attributes, timestamp +5, offset +1, null, empty, no headers
	"0c" + "00" + "0a" + "02" + "01" + "00" + "00"

// bitCRC is CRC32C without a table, to check the package against something else.
func bitCRC(b []byte) uint32 {
	crc := ^uint32(0)
	for _, x := range b {
		crc ^= uint32(x)
		for range 8 {
			if crc&1 != 0 {
				crc = crc>>1 ^ 0x82f63b78
			} else {
				crc >>= 1
			}
		}
	}
	return ^crc
}

func golden(t *testing.T) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Replace(goldenHex, "CRCCRCCR", "00000000", 1))
	if err != nil {
		t.Fatal(err)
	}
	crc := bitCRC(b[21:])
	b[17], b[18], b[19], b[20] = byte(crc>>24), byte(crc>>16), byte(crc>>8), byte(crc)
	return b
}

func goldenRecords() []Record {
	return []Record{
		{Timestamp: 1000, Key: []byte("k"), Value: []byte("v"), Headers: []RecordHeader{{Key: []byte("h")}}},
		{Timestamp: 1005, Value: []byte{}},
	}
}

func build(t testing.TB, o BuilderOptions, records ...Record) []byte {
	t.Helper()
	b, err := NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if ok, err := b.Append(&records[i]); !ok || err != nil {
			t.Fatalf("append of record %d: %v, %v", i, ok, err)
		}
	}
	size := b.Size()
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if o.Compression == CompressionNone && len(out) != size {
		t.Fatalf("the builder announced %d bytes and built %d", size, len(out))
	}
	return out
}

func TestGoldenBatch(t *testing.T) {
	want := golden(t)
	got := build(t, DefaultBuilderOptions(), goldenRecords()...)
	if !bytes.Equal(got, want) {
		t.Fatalf("built\n%x, want\n%x", got, want)
	}
	h, err := Validate([][]byte{want}, ValidateOptions{Fresh: true})
	if err != nil {
		t.Fatal(err)
	}
	if h.Size() != len(want) || h.NumRecords != 2 || h.LastOffset() != 1 || h.NextOffset() != 2 || h.MaxTimestamp != 1005 || h.LastSequence() != NoSequence {
		t.Fatalf("header %+v", h)
	}
	records, err := Decode(want, 0)
	if err != nil {
		t.Fatal(err)
	}
	expect := goldenRecords()
	expect[1].Offset, expect[1].OffsetDelta = 1, 1
	if !reflect.DeepEqual(records, expect) {
		t.Fatalf("decoded %+v, want %+v", records, expect)
	}
}

// case 19
func TestNullEmptyPresent(t *testing.T) {
	values := [][]byte{nil, {}, []byte("x")}
	for c := CompressionNone; c <= CompressionZstd; c++ {
		t.Run(c.String(), func(t *testing.T) {
			var in []Record
			for _, k := range values {
				for _, v := range values {
					in = append(in, Record{Timestamp: 5, Key: k, Value: v, Headers: []RecordHeader{
						{Key: []byte("dup"), Value: values[0]},
						{Key: []byte("dup"), Value: values[1]},
						{Key: []byte("dup"), Value: values[2]},
						{Key: []byte{}, Value: nil},
					}})
				}
			}
			o := DefaultBuilderOptions()
			o.Compression = c
			batch := build(t, o, in...)
			if h, _ := ParseHeader(batch); h.Compression() != c {
				t.Fatalf("the batch has codec %v", h.Compression())
			}
			out, err := Decode(batch, 0)
			if err != nil {
				t.Fatal(err)
			}
			for i := range in {
				in[i].Offset, in[i].OffsetDelta = int64(i), int32(i)
			}
			if !reflect.DeepEqual(in, out) {
				t.Fatalf("got %+v, want %+v", out, in)
			}
		})
	}
}

// case 18
func TestSizeBoundary(t *testing.T) {
	const limit = 1000
	o := DefaultBuilderOptions()
	o.MaxBytes = limit
	sized := func(batch int) *Record {
		r := &Record{Timestamp: 1, Value: make([]byte, batch-HeaderSize-9)}
		if SizeOf(r) != batch {
			t.Fatalf("made a batch of %d bytes, wanted %d", SizeOf(r), batch)
		}
		return r
	}
	for c := CompressionNone; c <= CompressionZstd; c++ {
		o.Compression = c
		b, err := NewBuilder(o)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := b.Append(sized(limit - 1)); !ok || err != nil {
			t.Fatalf("limit-1: %v %v", ok, err)
		}
		// It is full now, but that is no fault of the next record.
		if ok, err := b.Append(sized(limit)); ok || err != nil {
			t.Fatalf("limit into a full batch: %v %v", ok, err)
		}
		var tooLarge *TooLargeError
		if ok, err := b.Append(sized(limit + 1)); ok || !errors.Is(err, ErrRecordTooLarge) || !errors.As(err, &tooLarge) || tooLarge.Size != limit+1 {
			t.Fatalf("limit+1: %v %v", ok, err)
		}
		first, err := b.Build()
		if err != nil || len(first) > limit {
			t.Fatalf("built %d bytes, %v", len(first), err)
		}
		if ok, err := b.Append(sized(limit)); !ok || err != nil {
			t.Fatalf("limit: %v %v", ok, err)
		}
		if second, err := b.Build(); err != nil || len(second) > limit {
			t.Fatalf("built %d bytes, %v", len(second), err)
		}
		if _, err := b.Build(); err == nil {
			t.Fatal("an empty batch was built")
		}
	}
	// Random bytes do not get smaller; the batch must stay within the limit all the same.
	o.Compression = CompressionGzip
	noise := sized(limit)
	for i, x := 0, uint32(1); i < len(noise.Value); i++ {
		x = x*1664525 + 1013904223
		noise.Value[i] = byte(x >> 24)
	}
	if batch := build(t, o, *noise); len(batch) != limit {
		t.Fatalf("incompressible batch has %d bytes", len(batch))
	}
	if _, err := Validate([][]byte{build(t, DefaultBuilderOptions(), *sized(limit + 1))}, ValidateOptions{MaxBytes: limit}); !errors.Is(err, ErrRecordTooLarge) {
		t.Fatalf("validate above the limit: %v", err)
	}
}

func genRecord(t *rapid.T) Record {
	bytesOrNull := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOfN(rapid.Byte(), 0, 200))
	r := Record{
		Timestamp: rapid.OneOf(rapid.Int64(), rapid.Int64Range(0, 1<<41)).Draw(t, "ts"),
		Key:       bytesOrNull.Draw(t, "key"), Value: bytesOrNull.Draw(t, "value"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		r.Headers = append(r.Headers, RecordHeader{
			Key: rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "hkey"), Value: bytesOrNull.Draw(t, "hvalue"),
		})
	}
	return r
}

func TestRoundTripProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := DefaultBuilderOptions()
		o.Compression = Compression(rapid.IntRange(0, 4).Draw(t, "codec"))
		o.ProducerID = rapid.Int64Range(0, math.MaxInt64).Draw(t, "pid")
		o.ProducerEpoch, o.BaseSequence = 3, rapid.Int32Range(0, math.MaxInt32).Draw(t, "seq")
		b, err := NewBuilder(o)
		if err != nil {
			t.Fatal(err)
		}
		in := rapid.SliceOfN(rapid.Custom(genRecord), 1, 20).Draw(t, "records")
		sum := HeaderSize
		for i := range in {
			before := b.Size()
			if ok, err := b.Append(&in[i]); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if grown := b.Size() - before; grown > RecordSizeUpperBound(&in[i]) {
				t.Fatalf("record added %d bytes, bound %d", grown, RecordSizeUpperBound(&in[i]))
			}
			sum += RecordSizeUpperBound(&in[i])
		}
		if len(in) == 1 && b.Size() != SizeOf(&in[0]) || b.Size() > BatchSizeUpperBound(in) || sum != BatchSizeUpperBound(in) {
			t.Fatal("sizes disagree")
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		PatchBaseOffset(batch, 77)
		PatchPartitionLeaderEpoch(batch, 9)
		vecs := cutUp(t, batch)
		h, err := Validate(vecs, ValidateOptions{Fresh: true})
		if err != nil {
			t.Fatal(err)
		}
		if h.BaseOffset != 77 || h.PartitionLeaderEpoch != 9 || h.ProducerID != o.ProducerID || h.BaseSequence != o.BaseSequence {
			t.Fatalf("header %+v", h)
		}
		if err := ValidateRecords(vecs, 1<<20); err != nil {
			t.Fatal(err)
		}
		out, err := Decode(batch, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for i := range in {
			in[i].Offset, in[i].OffsetDelta = int64(77+i), int32(i)
		}
		if !reflect.DeepEqual(in, out) {
			t.Fatalf("got %+v\nwant %+v", out, in)
		}
	})
}

// cutUp splits b at drawn places, as HTTP/2 frames do.
func cutUp(t *rapid.T, b []byte) [][]byte {
	var vecs [][]byte
	for len(b) > 0 {
		n := rapid.IntRange(0, len(b)).Draw(t, "piece")
		if len(vecs) > 10 {
			n = len(b)
		}
		vecs = append(vecs, b[:n])
		b = b[n:]
	}
	return vecs
}
