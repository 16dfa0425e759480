package record

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DefaultMaxDecodedBytes is a reasonable cap on what one batch may unpack to
// (max.decoded.bytes).
const DefaultMaxDecodedBytes = 64 << 20

// Reader iterates over the records of one batch after another:
//
//	for r.Reset(batch) == nil && r.Next() { use(r.Record()) }
//
// It is not safe for use by several goroutines at once. Records alias the batch
// or, of a compressed one, the reader's own buffer.
type Reader struct {
	maxDecoded int
	header     Header
	payload    []byte
	pos        int // in payload
	index      int // records read
	lastDelta  int32
	rec        Record
	headers    []RecordHeader
	scratch    []byte // decompressed payload, or the joined pieces of a batch
	err        error
}

// NewReader returns a reader that decompresses at most maxDecoded bytes per batch;
// 0 or less means DefaultMaxDecodedBytes.
func NewReader(maxDecoded int) *Reader {
	if maxDecoded <= 0 {
		maxDecoded = DefaultMaxDecodedBytes
	}
	return &Reader{maxDecoded: maxDecoded}
}

// Reset starts on a batch, decompressing it if need be. The checksum is not looked
// at (see Validate), everything else is. The batch must stay unchanged while its
// records are in use.
func (r *Reader) Reset(batch []byte) error {
	r.header, r.payload, r.pos, r.index, r.lastDelta, r.err = Header{}, nil, 0, 0, -1, nil
	r.err = r.start(batch)
	return r.err
}

// resetVec is Reset over pieces, which it joins.
func (r *Reader) resetVec(vecs [][]byte) error {
	if len(vecs) == 1 {
		return r.Reset(vecs[0])
	}
	joined := make([]byte, VecLen(vecs))
	CopyVec(joined, vecs)
	return r.Reset(joined)
}

func (r *Reader) start(batch []byte) error {
	h, err := ParseHeader(batch)
	if err != nil {
		return err
	}
	if h.Size() > len(batch) {
		return corrupt(len(batch), "the length field says that the batch has %d bytes", h.Size())
	}
	if h.Size() < len(batch) {
		return invalid(ReasonTrailingBytes, h.Size(), "%d bytes follow the batch", len(batch)-h.Size())
	}
	if err := h.Check(); err != nil {
		return err
	}
	r.header = h
	payload := batch[HeaderSize:]
	if c := h.Compression(); c != CompressionNone && h.NumRecords > 0 {
		if r.scratch, err = decompress(r.scratch[:0], c, payload, r.maxDecoded); err != nil {
			return err
		}
		payload = r.scratch
	} else if c != CompressionNone {
		payload = nil
	}
	if int64(h.NumRecords)*minRecordSize > int64(len(payload)) {
		return invalid(ReasonBadCount, posNumRecords, "%d records do not fit in %d bytes", h.NumRecords, len(payload))
	}
	r.payload = payload
	return nil
}

// Next moves to the next record and reports whether there is one. After false, Err
// tells an end from a fault.
func (r *Reader) Next() bool {
	if r.err != nil {
		return false
	}
	if r.index >= int(r.header.NumRecords) {
		if rest := len(r.payload) - r.pos; rest > 0 {
			r.err = invalid(ReasonTrailingBytes, HeaderSize+r.pos, "%d bytes follow the last record", rest)
		}
		return false
	}
	if detail := r.parse(); detail != "" {
		r.err = &InvalidError{Reason: ReasonBadRecord, Position: HeaderSize + r.pos, Record: r.index, Detail: detail}
		return false
	}
	r.index++
	return true
}

// Record is the current one. It, and its slice of headers, are valid until the
// following Next or Reset; the bytes of its fields until Reset or Close, or as
// long as the batch when that is not compressed.
func (r *Reader) Record() *Record { return &r.rec }

// Header is that of the batch.
func (r *Reader) Header() Header { return r.header }

// Err is the first fault, *CorruptError or *InvalidError, or nil.
func (r *Reader) Err() error { return r.err }

// Close drops the reader's buffers. Reset makes it usable again.
func (r *Reader) Close() {
	*r = Reader{maxDecoded: r.maxDecoded}
}

// parse decodes the record at pos. It returns what is wrong with it, or "".
func (r *Reader) parse() string {
	size, ok := r.varint32(len(r.payload))
	if !ok || size < 0 || int(size) > len(r.payload)-r.pos {
		return "its length is not one that fits"
	}
	end := r.pos + int(size)
	if r.pos == end {
		return "it has no fields"
	}
	r.pos++ // attributes: none are assigned
	timestampDelta, n := binary.Varint(r.payload[r.pos:end])
	if n <= 0 {
		return "its timestamp is cut short or too long"
	}
	r.pos += n
	delta, ok := r.varint32(end)
	if !ok {
		return "its offset delta is cut short or too long"
	}
	if delta <= r.lastDelta || delta > r.header.LastOffsetDelta {
		return fmt.Sprintf("its offset delta is %d after %d, in a batch that ends at %d", delta, r.lastDelta, r.header.LastOffsetDelta)
	}
	r.lastDelta = delta
	r.rec.OffsetDelta, r.rec.Offset = delta, r.header.BaseOffset+int64(delta)
	r.rec.Timestamp = r.header.BaseTimestamp + timestampDelta
	if r.header.Attributes.TimestampType() == LogAppendTime {
		r.rec.Timestamp = r.header.MaxTimestamp
	}
	if r.rec.Key, ok = r.field(end, true); !ok {
		return "its key's length is not one that fits"
	}
	if r.rec.Value, ok = r.field(end, true); !ok {
		return "its value's length is not one that fits"
	}
	if detail := r.parseHeaders(end); detail != "" {
		return detail
	}
	if r.pos != end {
		return fmt.Sprintf("%d bytes follow its last field", end-r.pos)
	}
	return ""
}

func (r *Reader) parseHeaders(end int) string {
	count, ok := r.varint32(end)
	// A header takes two bytes at least.
	if !ok || count < 0 || int(count) > (end-r.pos)/2 {
		return "its number of headers is not one that fits"
	}
	r.headers = r.headers[:0]
	r.rec.Headers = nil
	for range count {
		var h RecordHeader
		if h.Key, ok = r.field(end, false); !ok {
			return "the length of a header's key is not one that fits"
		}
		if h.Value, ok = r.field(end, true); !ok {
			return "the length of a header's value is not one that fits"
		}
		r.headers = append(r.headers, h)
	}
	if count > 0 {
		r.rec.Headers = r.headers
	}
	return ""
}

// varint32 reads a varint of at most 32 bits that ends before end.
func (r *Reader) varint32(end int) (int32, bool) {
	v, n := binary.Varint(r.payload[r.pos:min(end, r.pos+5)])
	if n <= 0 || v < math.MinInt32 || v > math.MaxInt32 {
		return 0, false
	}
	r.pos += n
	return int32(v), true
}

// field reads a length and that many bytes. Null is nil; empty is not.
func (r *Reader) field(end int, nullable bool) ([]byte, bool) {
	size, ok := r.varint32(end)
	if !ok || int(size) > end-r.pos || size < 0 && !(nullable && size == nullLength) {
		return nil, false
	}
	if size == nullLength {
		return nil, true
	}
	b := r.payload[r.pos : r.pos+int(size) : r.pos+int(size)]
	r.pos += int(size)
	return b, true
}

// Decode returns all records of a batch. They alias neither the batch nor one
// another's headers, and may be kept. At most maxDecoded bytes are decompressed; 0
// or less means DefaultMaxDecodedBytes. The checksum is not looked at.
func Decode(batch []byte, maxDecoded int) ([]Record, error) {
	r := NewReader(maxDecoded)
	if err := r.Reset(batch); err != nil {
		return nil, err
	}
	if r.header.Compression() == CompressionNone {
		r.payload = append([]byte(nil), r.payload...)
	}
	// A record in memory takes many times its smallest encoding; so no more than a
	// page's worth is trusted to the count.
	records := make([]Record, 0, min(r.header.NumRecords, 1024))
	for r.Next() {
		rec := *r.Record()
		rec.Headers = append([]RecordHeader(nil), rec.Headers...)
		records = append(records, rec)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return records, nil
}
