package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
)

// seal fixes length and checksum of a batch after a test has changed it.
func seal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[posLength:], uint32(len(b)-LengthOverhead))
	binary.BigEndian.PutUint32(b[posCRC:], bitCRC(b[posAttributes:]))
	return b
}

// withBody is a batch of n records whose payload is body.
func withBody(n int32, body []byte) []byte {
	h := Header{
		Magic: Magic, LastOffsetDelta: max(0, n-1), NumRecords: n, ProducerID: NoProducerID,
		ProducerEpoch: NoProducerEpoch, BaseSequence: NoSequence, MaxTimestamp: math.MaxInt64,
	}
	b := make([]byte, HeaderSize, HeaderSize+len(body))
	h.Put(b)
	return seal(append(b, body...))
}

// case 20
func TestMalformedHeaders(t *testing.T) {
	put32 := func(pos int, v int32) func(b []byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint32(b[pos:], uint32(v)); return b }
	}
	put64 := func(pos int, v int64) func(b []byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint64(b[pos:], uint64(v)); return b }
	}
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		reason Reason
	}{
		"number of records -1":       {put32(posNumRecords, -1), ReasonBadCount},
		"number of records too high": {put32(posNumRecords, math.MaxInt32), ReasonBadCount},
		"number of records too low":  {put32(posNumRecords, 1), ReasonBadOffsets},
		"no records":                 {put32(posNumRecords, 0), ReasonTrailingBytes},
		"last offset delta -1":       {put32(posLastOffsetDelta, -1), ReasonBadOffsets},
		"last offset delta too high": {put32(posLastOffsetDelta, 2), ReasonBadOffsets},
		"last offset delta 0":        {put32(posLastOffsetDelta, 0), ReasonBadCount},
		"base offset -1":             {put64(posBaseOffset, -1), ReasonBadOffsets},
		"base offset at the top":     {put64(posBaseOffset, math.MaxInt64), ReasonBadOffsets},
		"codec 7":                    {func(b []byte) []byte { b[posAttributes+1] = 7; return b }, ReasonUnsupportedCompression},
		"control":                    {func(b []byte) []byte { b[posAttributes+1] = 0x20; return b }, ReasonControlNotAllowed},
		"log append time":            {func(b []byte) []byte { b[posAttributes+1] = 0x08; return b }, ReasonBadAttributes},
		"transaction of nobody":      {func(b []byte) []byte { b[posAttributes+1] = 0x10; return b }, ReasonBadProducer},
		"producer -2":                {put64(posProducerID, -2), ReasonBadProducer},
		"producer without epoch":     {put64(posProducerID, 5), ReasonBadProducer},
		"magic 1":                    {func(b []byte) []byte { b[posMagic] = 1; return b }, ReasonUnsupportedMagic},
	} {
		t.Run(name, func(t *testing.T) {
			b := seal(c.change(golden(t)))
			var invalid *InvalidError
			if _, err := Validate([][]byte{b}, ValidateOptions{Fresh: true}); !errors.As(err, &invalid) || invalid.Reason != c.reason {
				t.Fatalf("validate: %v, want %v", err, c.reason)
			}
			// Whoever decodes without validating gets an error or what is there.
			if records, err := Decode(b, 0); err == nil && len(records) > 2 {
				t.Fatalf("decoded %d records", len(records))
			}
		})
	}
	b := append(golden(t), 0)
	var invalid *InvalidError
	if _, err := Validate([][]byte{b}, ValidateOptions{}); !errors.As(err, &invalid) || invalid.Reason != ReasonTrailingBytes {
		t.Fatalf("a byte too many: %v", err)
	}
}

// case 20
func TestMalformedRecords(t *testing.T) {
	varint := func(v int64) string { return string(binary.AppendVarint(nil, v)) }
	rec := func(body string) []byte { return []byte(varint(int64(len(body))) + body) }
	good := "\x00\x00\x00\x01\x01\x00"
	for name, body := range map[string][]byte{
		"header count -1":           rec("\x00\x00\x00\x01\x01" + varint(-1)),
		"header count 2³¹-1":        rec("\x00\x00\x00\x01\x01" + varint(math.MaxInt32)),
		"header key null":           rec("\x00\x00\x00\x01\x01\x02\x01\x01"),
		"header key cut short":      rec("\x00\x00\x00\x01\x01\x02\x08a"),
		"header value -2":           rec("\x00\x00\x00\x01\x01\x02\x00\x03"),
		"header without a value":    rec("\x00\x00\x00\x01\x01\x02\x02a"),
		"key length -2":             rec("\x00\x00\x00\x03\x01\x00"),
		"key length 2³¹-1":          rec("\x00\x00\x00" + varint(math.MaxInt32) + "\x01\x00"),
		"value length 2⁴⁰":          rec("\x00\x00\x00\x01" + varint(1<<40) + "\x00"),
		"length -1":                 []byte(varint(-1) + good),
		"length 0":                  append([]byte{0}, good...),
		"length too high":           []byte(varint(100) + good),
		"length too low":            []byte(varint(4) + good + "\x00"),
		"a byte after the fields":   rec(good + "\x00"),
		"a byte after the records":  append(rec(good), 0),
		"offset delta 1":            rec("\x00\x00\x02\x01\x01\x00"),
		"offset delta -1":           rec("\x00\x00\x01\x01\x01\x00"),
		"timestamp varint too long": rec("\x00" + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" + "\x00\x01\x01\x00"),
		"offset varint too long":    rec("\x00\x00\xff\xff\xff\xff\xff\x00\x01\x01\x00"),
		"nothing but its length":    rec(""),
	} {
		t.Run(name, func(t *testing.T) {
			b := withBody(1, body)
			err := ValidateRecords([][]byte{b[:40], b[40:]}, 1<<20)
			var invalid *InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("%v", err)
			}
			if _, err := Decode(b, 1<<20); !errors.As(err, &invalid) {
				t.Fatalf("decode: %v", err)
			}
		})
	}
	if err := ValidateRecords([][]byte{withBody(1, rec(good))}, 1<<20); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	// Two records where one is announced, and the other way round.
	two := append(rec(good), rec("\x00\x00\x02\x01\x01\x00")...)
	if err := ValidateRecords([][]byte{withBody(2, two)}, 1<<20); err != nil {
		t.Fatalf("two records: %v", err)
	}
	if err := ValidateRecords([][]byte{withBody(1, two)}, 1<<20); err == nil {
		t.Fatal("a record too many went unnoticed")
	}
	// A maximum timestamp below a record's would make lookups by time lie.
	b := withBody(1, rec("\x00"+varint(1000)+"\x00\x01\x01\x00"))
	binary.BigEndian.PutUint64(b[posMaxTimestamp:], 999)
	if err := ValidateRecords([][]byte{seal(b)}, 1<<20); err == nil {
		t.Fatal("a timestamp above the maximum went unnoticed")
	}
}

// No bit can flip unnoticed, except in the fields outside the checksum.
func TestFlippedBits(t *testing.T) {
	b := golden(t)
	for bit := range len(b) * 8 {
		i := bit / 8
		b[i] ^= 1 << (bit % 8)
		_, err := Validate([][]byte{b}, ValidateOptions{Fresh: true})
		outside := i < posLength || i >= posLeaderEpoch && i < posMagic
		var corrupt *CorruptError
		var invalid *InvalidError
		if !outside && !errors.As(err, &corrupt) && !errors.As(err, &invalid) {
			t.Fatalf("bit %d of byte %d: %v", bit%8, i, err)
		}
		b[i] ^= 1 << (bit % 8)
	}
	for n := range len(b) {
		var corrupt *CorruptError
		if _, err := Validate([][]byte{b[:n]}, ValidateOptions{}); !errors.As(err, &corrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if _, _, err := NextBatch(b[:n]); !errors.As(err, &corrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func TestNextBatch(t *testing.T) {
	b := golden(t)
	data := append(bytes.Clone(b), b...)
	data = append(data, b[:50]...)
	for range 2 {
		one, rest, err := NextBatch(data)
		if err != nil || !bytes.Equal(one, b) {
			t.Fatalf("%x, %v", one, err)
		}
		data = rest
	}
	if _, rest, err := NextBatch(data); err == nil || len(rest) != 50 {
		t.Fatalf("%v", err)
	}
}

func TestLogAppendTimePatch(t *testing.T) {
	b := golden(t)
	PatchLogAppendTime(b[:70], [][]byte{b[70:75], b[75:]}, 7777)
	h, err := Validate([][]byte{b}, ValidateOptions{})
	if err != nil || h.MaxTimestamp != 7777 || h.Attributes.TimestampType() != LogAppendTime {
		t.Fatalf("%+v, %v", h, err)
	}
	records, err := Decode(b, 0)
	if err != nil || records[0].Timestamp != 7777 || records[1].Timestamp != 7777 {
		t.Fatalf("%+v, %v", records, err)
	}
}

func TestSequences(t *testing.T) {
	h := Header{BaseSequence: math.MaxInt32 - 1, LastOffsetDelta: 3}
	if h.LastSequence() != 1 {
		t.Fatalf("the sequence wraps to %d", h.LastSequence())
	}
}

// What unpacks to more than the cap is refused, having taken little more than it.
func TestDecodedCap(t *testing.T) {
	o := DefaultBuilderOptions()
	o.MaxBytes = 8 << 20
	r := Record{Value: make([]byte, 256<<10)}
	for c := CompressionGzip; c <= CompressionZstd; c++ {
		o.Compression = c
		b := build(t, o, r)
		size := SizeOf(&r) - HeaderSize
		if err := ValidateRecords([][]byte{b}, size); err != nil {
			t.Fatalf("%v at the cap: %v", c, err)
		}
		var invalid *InvalidError
		if err := ValidateRecords([][]byte{b}, size-1); !errors.As(err, &invalid) || invalid.Reason != ReasonDecodedTooLarge {
			t.Fatalf("%v above the cap: %v", c, err)
		}
		// Rubbish in place of the payload.
		for _, rubbish := range []string{"", "x", "\xff\xff\xff\xff\x0f", xerialMagic + "\x00\x00\x00\x01\x00\x00\x00\x01\x7f\xff\xff\xff"} {
			bad := withBody(1, []byte(rubbish))
			bad[posAttributes+1] = byte(c)
			if err := ValidateRecords([][]byte{seal(bad)}, 1<<20); !errors.As(err, &invalid) {
				t.Fatalf("%v, payload %q: %v", c, rubbish, err)
			}
		}
		// Each way to cut the payload short.
		for n := HeaderSize; n < len(b); n += max(1, (len(b)-HeaderSize)/12) {
			if _, err := Decode(seal(bytes.Clone(b[:n])), 8<<20); !errors.As(err, &invalid) {
				t.Fatalf("%v cut to %d of %d bytes: %v", c, n, len(b), err)
			}
		}
	}
}

// Other clients send snappy without the xerial frame, or with blocks of their own.
func TestSnappyFramings(t *testing.T) {
	payload := []byte("\x0c\x00\x00\x00\x01\x01\x00")
	plain := append([]byte{byte(len(payload)), byte(len(payload)-1) << 2}, payload...) // one literal
	block := func(b []byte) []byte { return append([]byte{0, 0, 0, byte(len(b))}, b...) }
	first := append([]byte{3, 2 << 2}, payload[:3]...)
	second := append([]byte{4, 3 << 2}, payload[3:]...)
	head := []byte(xerialMagic + "\x00\x00\x00\x01\x00\x00\x00\x01")
	for name, body := range map[string][]byte{
		"plain": plain,
		"one":   append(bytes.Clone(head), block(plain)...),
		"two":   append(append(bytes.Clone(head), block(first)...), block(second)...),
	} {
		b := withBody(1, body)
		b[posAttributes+1] = byte(CompressionSnappy)
		if err := ValidateRecords([][]byte{seal(b)}, 100); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	big := build(t, BuilderOptions{Compression: CompressionSnappy, MaxBytes: 1 << 20, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1},
		Record{Value: bytes.Repeat([]byte("abcd"), 30_000)})
	if !bytes.HasPrefix(big[HeaderSize:], head) {
		t.Fatalf("not framed: %x", big[HeaderSize:HeaderSize+20])
	}
}

func TestBuilderOptionsValidation(t *testing.T) {
	for _, o := range []BuilderOptions{{}, {MaxBytes: 100, Compression: 5}, {MaxBytes: 100, MaxRecords: -1}, {MaxBytes: -1}} {
		if _, err := NewBuilder(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	o := DefaultBuilderOptions()
	o.MaxRecords = 2
	b, err := NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true, false} {
		if ok, err := b.Append(&Record{}); ok != want || err != nil {
			t.Fatalf("record %d: %v, %v", i, ok, err)
		}
	}
	b.Reset()
	if b.Len() != 0 || b.Size() != HeaderSize {
		t.Fatal("reset keeps records")
	}
}

func TestNames(t *testing.T) {
	for c := CompressionNone; c <= CompressionZstd; c++ {
		if got, ok := ParseCompression(c.String()); !ok || got != c {
			t.Errorf("%v", c)
		}
	}
	if _, ok := ParseCompression("brotli"); ok || Compression(9).String() != "unknown" {
		t.Error("unknown codecs")
	}
	if fmt.Sprint(ReasonBadAttributes, Reason(99), CreateTime, LogAppendTime) != "bad attributes reason 99 CreateTime LogAppendTime" {
		t.Error(fmt.Sprint(ReasonBadAttributes, Reason(99), CreateTime, LogAppendTime))
	}
}
