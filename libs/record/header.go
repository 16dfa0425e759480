package record

import (
	"encoding/binary"
	"math"
)

// Sizes and field positions of a batch, in bytes.
const (
	HeaderSize     = 61 // the fixed header
	LengthOverhead = 12 // base offset and length, which the length field does not count

	posBaseOffset      = 0
	posLength          = 8
	posLeaderEpoch     = 12
	posMagic           = 16
	posCRC             = 17
	posAttributes      = 21 // the CRC covers from here on
	posLastOffsetDelta = 23
	posBaseTimestamp   = 27
	posMaxTimestamp    = 35
	posProducerID      = 43
	posProducerEpoch   = 51
	posBaseSequence    = 53
	posNumRecords      = 57
)

// Magic is the format version this package reads and writes.
const Magic = 2

// Values that stand for "none".
const (
	NoTimestamp     = int64(-1)
	NoProducerID    = int64(-1)
	NoProducerEpoch = int16(-1)
	NoSequence      = int32(-1)
	NoLeaderEpoch   = int32(-1)
)

// MaxBatchSize is the largest batch whose length field still fits, in bytes.
const MaxBatchSize = math.MaxInt32

// Compression is the codec of a batch's payload, numbered as in Kafka.
type Compression int8

// The codecs.
const (
	CompressionNone Compression = iota
	CompressionGzip
	CompressionSnappy
	CompressionLZ4
	CompressionZstd
)

var compressionNames = [...]string{"none", "gzip", "snappy", "lz4", "zstd"}

// String is Kafka's name of the codec (compression.type).
func (c Compression) String() string {
	if c < 0 || int(c) >= len(compressionNames) {
		return "unknown"
	}
	return compressionNames[c]
}

// ParseCompression is the inverse of String; ok is false for any other name.
func ParseCompression(name string) (c Compression, ok bool) {
	for i, n := range compressionNames {
		if n == name {
			return Compression(i), true
		}
	}
	return CompressionNone, false
}

// TimestampType says who set the timestamps of a batch.
type TimestampType int8

// The timestamp types (message.timestamp.type).
const (
	CreateTime    TimestampType = iota // the producer
	LogAppendTime                      // the log; every record has the batch's maximum timestamp
)

func (t TimestampType) String() string {
	if t == LogAppendTime {
		return "LogAppendTime"
	}
	return "CreateTime"
}

// Attributes is the bit set of a batch.
type Attributes int16

// Bits of Attributes.
const (
	attrCompression   Attributes = 0x07
	attrLogAppendTime Attributes = 1 << 3
	attrTransactional Attributes = 1 << 4
	attrControl       Attributes = 1 << 5
	attrDeleteHorizon Attributes = 1 << 6
)

// Compression is the codec number, which may be one that is not assigned.
func (a Attributes) Compression() Compression { return Compression(a & attrCompression) }

// TimestampType says who set the timestamps.
func (a Attributes) TimestampType() TimestampType {
	if a&attrLogAppendTime != 0 {
		return LogAppendTime
	}
	return CreateTime
}

// Transactional reports whether the batch belongs to a transaction.
func (a Attributes) Transactional() bool { return a&attrTransactional != 0 }

// Control reports whether the batch holds control records, which consumers do
// not see.
func (a Attributes) Control() bool { return a&attrControl != 0 }

// HasDeleteHorizon reports whether the base timestamp is a delete horizon, set by
// compaction.
func (a Attributes) HasDeleteHorizon() bool { return a&attrDeleteHorizon != 0 }

// Header is the decoded fixed part of a batch. It holds no reference to the bytes
// it was parsed from.
type Header struct {
	BaseOffset           int64
	Length               int32 // bytes after the length field
	PartitionLeaderEpoch int32
	Magic                int8
	CRC                  uint32
	Attributes           Attributes
	LastOffsetDelta      int32
	BaseTimestamp        int64 // ms
	MaxTimestamp         int64 // ms
	ProducerID           int64
	ProducerEpoch        int16
	BaseSequence         int32
	NumRecords           int32
}

// Size is the length of the whole batch in bytes, header included.
func (h *Header) Size() int { return int(h.Length) + LengthOverhead }

// LastOffset is the offset of the last record the batch was written with.
func (h *Header) LastOffset() int64 { return h.BaseOffset + int64(h.LastOffsetDelta) }

// NextOffset is where reading goes on after the batch, also when it holds no
// records.
func (h *Header) NextOffset() int64 { return h.LastOffset() + 1 }

// LastSequence is the sequence of the last record; sequences wrap from 2³¹−1 to 0.
// It is NoSequence when the batch has none.
func (h *Header) LastSequence() int32 {
	if h.BaseSequence < 0 {
		return NoSequence
	}
	return int32((int64(h.BaseSequence) + int64(h.LastOffsetDelta)) & math.MaxInt32)
}

// Compression is the codec of the payload.
func (h *Header) Compression() Compression { return h.Attributes.Compression() }

// ParseHeader decodes the first HeaderSize bytes of b and checks what must hold
// before any other field means anything: enough bytes, magic 2 and a length that
// covers the header and does not overflow. It does not need, or look at, the
// payload. The errors are *CorruptError and *InvalidError.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, corrupt(len(b), "a batch header has %d bytes and %d are here", HeaderSize, len(b))
	}
	be := binary.BigEndian
	h := Header{
		BaseOffset:           int64(be.Uint64(b[posBaseOffset:])),
		Length:               int32(be.Uint32(b[posLength:])),
		PartitionLeaderEpoch: int32(be.Uint32(b[posLeaderEpoch:])),
		Magic:                int8(b[posMagic]),
		CRC:                  be.Uint32(b[posCRC:]),
		Attributes:           Attributes(be.Uint16(b[posAttributes:])),
		LastOffsetDelta:      int32(be.Uint32(b[posLastOffsetDelta:])),
		BaseTimestamp:        int64(be.Uint64(b[posBaseTimestamp:])),
		MaxTimestamp:         int64(be.Uint64(b[posMaxTimestamp:])),
		ProducerID:           int64(be.Uint64(b[posProducerID:])),
		ProducerEpoch:        int16(be.Uint16(b[posProducerEpoch:])),
		BaseSequence:         int32(be.Uint32(b[posBaseSequence:])),
		NumRecords:           int32(be.Uint32(b[posNumRecords:])),
	}
	if h.Magic != Magic {
		return h, invalid(ReasonUnsupportedMagic, posMagic, "the format version is %d and only %d is understood", h.Magic, Magic)
	}
	if h.Length < HeaderSize-LengthOverhead || h.Length > MaxBatchSize-LengthOverhead {
		return h, corrupt(posLength, "the length field says %d", h.Length)
	}
	return h, nil
}

// ParseHeaderVec is ParseHeader over the concatenation of vecs. It copies at most
// HeaderSize bytes.
func ParseHeaderVec(vecs [][]byte) (Header, error) {
	if len(vecs) > 0 && len(vecs[0]) >= HeaderSize {
		return ParseHeader(vecs[0])
	}
	var buf [HeaderSize]byte
	return ParseHeader(buf[:CopyVec(buf[:], vecs)])
}

// CopyVec copies the concatenation of vecs into dst and returns how many bytes
// that was, at most len(dst).
func CopyVec(dst []byte, vecs [][]byte) int {
	n := 0
	for _, v := range vecs {
		if n == len(dst) {
			break
		}
		n += copy(dst[n:], v)
	}
	return n
}

// VecLen is the number of bytes in vecs.
func VecLen(vecs [][]byte) int {
	n := 0
	for _, v := range vecs {
		n += len(v)
	}
	return n
}

// Put writes the header into the first HeaderSize bytes of b, which must be there.
func (h *Header) Put(b []byte) {
	_ = b[HeaderSize-1]
	be := binary.BigEndian
	be.PutUint64(b[posBaseOffset:], uint64(h.BaseOffset))
	be.PutUint32(b[posLength:], uint32(h.Length))
	be.PutUint32(b[posLeaderEpoch:], uint32(h.PartitionLeaderEpoch))
	b[posMagic] = byte(h.Magic)
	be.PutUint32(b[posCRC:], h.CRC)
	be.PutUint16(b[posAttributes:], uint16(h.Attributes))
	be.PutUint32(b[posLastOffsetDelta:], uint32(h.LastOffsetDelta))
	be.PutUint64(b[posBaseTimestamp:], uint64(h.BaseTimestamp))
	be.PutUint64(b[posMaxTimestamp:], uint64(h.MaxTimestamp))
	be.PutUint64(b[posProducerID:], uint64(h.ProducerID))
	be.PutUint16(b[posProducerEpoch:], uint16(h.ProducerEpoch))
	be.PutUint32(b[posBaseSequence:], uint32(h.BaseSequence))
	be.PutUint32(b[posNumRecords:], uint32(h.NumRecords))
}
