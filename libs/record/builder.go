package record

import (
	"errors"
	"fmt"
	"math"
)

// DefaultMaxBytes is the default of BuilderOptions.MaxBytes (max.message.bytes).
const DefaultMaxBytes = 1 << 20

// BuilderOptions configures a Builder. Start from DefaultBuilderOptions: the zero
// value would claim producer id 0.
type BuilderOptions struct {
	Compression   Compression
	MaxBytes      int // limit of the encoded batch, header included
	MaxRecords    int // 0: no limit of its own
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	Control       bool
}

// DefaultBuilderOptions has no compression, no producer and a limit of
// DefaultMaxBytes.
func DefaultBuilderOptions() BuilderOptions {
	return BuilderOptions{
		MaxBytes: DefaultMaxBytes, ProducerID: NoProducerID, ProducerEpoch: NoProducerEpoch, BaseSequence: NoSequence,
	}
}

// Validate joins everything that is wrong with the options.
func (o BuilderOptions) Validate() error {
	var errs []error
	if o.Compression < CompressionNone || o.Compression > CompressionZstd {
		errs = append(errs, fmt.Errorf("compression %d is not one of Kafka's codecs; choose one from %d to %d", o.Compression, CompressionNone, CompressionZstd))
	}
	if o.MaxBytes <= HeaderSize || o.MaxBytes > MaxBatchSize {
		errs = append(errs, fmt.Errorf("the batch limit is %d bytes; choose a value from %d to %d", o.MaxBytes, HeaderSize+1, MaxBatchSize))
	}
	if o.MaxRecords < 0 {
		errs = append(errs, fmt.Errorf("the batch limit is %d records; it must not be negative", o.MaxRecords))
	}
	return errors.Join(errs...)
}

// Builder encodes one batch after another. It is not safe for use by several
// goroutines at once. It copies what Append is given.
type Builder struct {
	o      BuilderOptions
	buf    []byte // HeaderSize bytes kept free, then records; nil when empty
	n      int
	baseTS int64
	maxTS  int64
	last   int // size of the last batch: the next one will be about as long
}

// NewBuilder checks the options and returns an empty builder.
func NewBuilder(o BuilderOptions) (*Builder, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.MaxRecords == 0 {
		o.MaxRecords = math.MaxInt32
	}
	return &Builder{o: o}, nil
}

// Append adds a record. False without an error means that the batch is full:
// Build it, Reset, and append the same record again. A record whose batch of its
// own would pass MaxBytes is a *TooLargeError and leaves the batch as it was.
//
// The limit is applied to the bytes before compression; Build never returns more.
func (b *Builder) Append(r *Record) (bool, error) {
	if b.n >= b.o.MaxRecords {
		return false, b.fitsAlone(r)
	}
	baseTS, maxTS := b.baseTS, max(b.maxTS, r.Timestamp)
	if b.n == 0 {
		baseTS, maxTS = r.Timestamp, r.Timestamp
	}
	// The difference may wrap around; so will the sum when it is read.
	delta := r.Timestamp - baseTS
	body := bodySize(r, delta, int32(b.n))
	size := withLength(body)
	if b.Size()+size > b.o.MaxBytes {
		return false, b.fitsAlone(r)
	}
	if b.buf == nil {
		b.buf = make([]byte, HeaderSize, max(HeaderSize+size, min(b.o.MaxBytes, max(4<<10, b.last+b.last/8))))
	}
	b.buf = appendRecord(b.buf, r, body, delta, int32(b.n))
	b.baseTS, b.maxTS = baseTS, maxTS
	b.n++
	return true, nil
}

// fitsAlone is the error of a record that no batch can take.
func (b *Builder) fitsAlone(r *Record) error {
	if alone := SizeOf(r); alone > b.o.MaxBytes {
		return &TooLargeError{Size: alone, Limit: b.o.MaxBytes}
	}
	return nil
}

// SetProducer sets the producer fields of the batch being built and of later ones.
// The sequence does not advance by itself.
func (b *Builder) SetProducer(id int64, epoch int16, baseSequence int32) {
	b.o.ProducerID, b.o.ProducerEpoch, b.o.BaseSequence = id, epoch, baseSequence
}

// Len is the number of records in the batch being built.
func (b *Builder) Len() int { return b.n }

// Size is the exact size of the batch being built, before compression, in bytes.
func (b *Builder) Size() int { return max(len(b.buf), HeaderSize) }

// Build encodes the batch, with base offset 0 and no leader epoch, and returns
// bytes that the caller owns. The builder is empty afterwards. A payload that its
// codec does not make smaller is left uncompressed, so that the limit holds. An
// empty batch is an error.
func (b *Builder) Build() ([]byte, error) {
	if b.n == 0 {
		return nil, errors.New("build a record batch: it holds no records; append one first")
	}
	h := Header{
		PartitionLeaderEpoch: NoLeaderEpoch,
		Magic:                Magic,
		LastOffsetDelta:      int32(b.n - 1),
		BaseTimestamp:        b.baseTS,
		MaxTimestamp:         b.maxTS,
		ProducerID:           b.o.ProducerID,
		ProducerEpoch:        b.o.ProducerEpoch,
		BaseSequence:         b.o.BaseSequence,
		NumRecords:           int32(b.n),
	}
	if b.o.Transactional {
		h.Attributes |= attrTransactional
	}
	if b.o.Control {
		h.Attributes |= attrControl
	}
	out := b.buf
	b.last = len(out)
	if b.o.Compression != CompressionNone {
		packed, err := compress(make([]byte, HeaderSize, HeaderSize+len(b.buf)/2), b.o.Compression, b.buf[HeaderSize:])
		if err != nil {
			return nil, fmt.Errorf("build a record batch: %s: %w", b.o.Compression, err)
		}
		if len(packed) < len(out) {
			out = packed
			h.Attributes |= Attributes(b.o.Compression)
		}
	}
	h.Length = int32(len(out) - LengthOverhead)
	h.Put(out)
	h.CRC = Checksum(out)
	h.Put(out)
	b.reuse(out)
	return out, nil
}

// reuse empties the builder, keeping its buffer unless it was given away.
func (b *Builder) reuse(given []byte) {
	if len(given) > 0 && len(b.buf) > 0 && &given[0] == &b.buf[0] {
		b.buf = nil
	}
	b.Reset()
}

// Reset drops the records of the batch being built. Producer fields stay.
func (b *Builder) Reset() {
	if b.buf != nil {
		b.buf = b.buf[:HeaderSize]
	}
	b.n = 0
}
