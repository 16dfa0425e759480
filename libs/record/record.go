package record

import (
	"encoding/binary"
	"math"
)

// Record is one record.
type Record struct {
	Offset      int64          // absolute; set by readers, ignored by builders
	OffsetDelta int32          // from the batch's base offset; set by readers, ignored by builders
	Timestamp   int64          // ms since 1970, or NoTimestamp
	Key, Value  []byte         // nil is null, empty and non-nil is empty
	Headers     []RecordHeader // in order; keys may repeat
}

// RecordHeader is one header of a record.
type RecordHeader struct {
	Key   []byte // never null; nil counts as empty
	Value []byte // nil is null
}

// minRecordSize is what a record with nothing in it takes: seven fields of a byte.
const minRecordSize = 7

// nullLength is how the length of a null field is written.
const nullLength = -1

// SizeOf is the exact size in bytes of an uncompressed batch that holds only r.
func SizeOf(r *Record) int { return HeaderSize + withLength(bodySize(r, 0, 0)) }

// BatchSizeUpperBound is at least as large as the uncompressed batch of the
// records, whatever their order: a cheap bound for choosing a buffer. It is in
// bytes.
func BatchSizeUpperBound(records []Record) int {
	n := HeaderSize
	for i := range records {
		n += RecordSizeUpperBound(&records[i])
	}
	return n
}

// RecordSizeUpperBound is at least what r adds to any batch, in bytes.
func RecordSizeUpperBound(r *Record) int {
	return withLength(bodySize(r, math.MinInt64, math.MaxInt32))
}

// bodySize is the length of an encoded record after its own length field.
func bodySize(r *Record, timestampDelta int64, offsetDelta int32) int {
	n := 1 + varintSize(timestampDelta) + varintSize(int64(offsetDelta)) +
		fieldSize(r.Key) + fieldSize(r.Value) + varintSize(int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintSize(int64(len(h.Key))) + len(h.Key) + fieldSize(h.Value)
	}
	return n
}

func withLength(body int) int { return varintSize(int64(body)) + body }

func fieldSize(b []byte) int {
	if b == nil {
		return 1
	}
	return varintSize(int64(len(b))) + len(b)
}

// varintSize is the length of the zigzag varint of v.
func varintSize(v int64) int {
	u := uint64(v)<<1 ^ uint64(v>>63)
	n := 1
	for u >= 0x80 {
		u >>= 7
		n++
	}
	return n
}

// appendRecord encodes r, whose bodySize is body. The layout:
//
//	length varint │ attributes int8 │ timestamp delta varlong │ offset delta varint │
//	key length varint │ key │ value length varint │ value │ header count varint │
//	then for each header: key length │ key │ value length │ value
func appendRecord(dst []byte, r *Record, body int, timestampDelta int64, offsetDelta int32) []byte {
	dst = binary.AppendVarint(dst, int64(body))
	dst = append(dst, 0)
	dst = binary.AppendVarint(dst, timestampDelta)
	dst = binary.AppendVarint(dst, int64(offsetDelta))
	dst = appendField(dst, r.Key)
	dst = appendField(dst, r.Value)
	dst = binary.AppendVarint(dst, int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		dst = binary.AppendVarint(dst, int64(len(h.Key)))
		dst = append(dst, h.Key...)
		dst = appendField(dst, h.Value)
	}
	return dst
}

func appendField(dst, field []byte) []byte {
	if field == nil {
		return binary.AppendVarint(dst, nullLength)
	}
	return append(binary.AppendVarint(dst, int64(len(field))), field...)
}
