package record

import "errors"

var errStub = errors.New("under construction")

// Record is one record.
type Record struct {
	Offset      int64  // absolute; set by readers, ignored by builders
	OffsetDelta int32  // from the batch's base offset; set by readers, ignored by builders
	Timestamp   int64  // ms since 1970, or NoTimestamp
	Key, Value  []byte // nil is null
	Headers     []RecordHeader
}

// RecordHeader is one header; keys may repeat and their order is kept.
type RecordHeader struct {
	Key   []byte // never null; nil counts as empty
	Value []byte // nil is null
}

// ValidateOptions says what Validate asks of a batch beyond being whole.
type ValidateOptions struct {
	MaxBytes     int  // largest encoded batch; 0 means no limit of its own
	Fresh        bool // from a producer: at least one record, last delta = count-1
	AllowControl bool
}

// Validate checks exactly one batch without decompressing.
func Validate(vecs [][]byte, o ValidateOptions) (Header, error) { return Header{}, errStub }

// ValidateRecords decodes and checks every record of a batch.
func ValidateRecords(vecs [][]byte, maxDecoded int) error { return errStub }

// NextBatch splits the first batch off fetched bytes.
func NextBatch(data []byte) (batch, rest []byte, err error) { return nil, nil, errStub }

// BuilderOptions configures a Builder.
type BuilderOptions struct {
	Compression   Compression
	MaxBytes      int // limit of the encoded batch
	MaxRecords    int // 0: no limit of its own
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	Control       bool
}

// DefaultBuilderOptions has no producer id and 1 MiB.
func DefaultBuilderOptions() BuilderOptions {
	return BuilderOptions{MaxBytes: 1 << 20, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}
}

// Builder encodes one batch after another.
type Builder struct{}

// NewBuilder checks the options.
func NewBuilder(o BuilderOptions) (*Builder, error) { return nil, errStub }

// Append adds a record; false without an error means the batch is full. A record
// that cannot fit alone is a *TooLargeError, and the batch is as before.
func (b *Builder) Append(r *Record) (bool, error) { return false, errStub }

// SetProducer sets the producer fields of the batch being built.
func (b *Builder) SetProducer(id int64, epoch int16, baseSequence int32) {}

// Len is the number of records, Size the encoded bytes before compression.
func (b *Builder) Len() int { return 0 }

// Size is the encoded bytes before compression.
func (b *Builder) Size() int { return 0 }

// Build returns the encoded batch, owned by the caller.
func (b *Builder) Build() ([]byte, error) { return nil, errStub }

// Reset starts the next batch.
func (b *Builder) Reset() {}

// SizeOf is the size of a batch that holds only r, uncompressed.
func SizeOf(r *Record) int { return 0 }

// BatchSizeUpperBound is at least the size of an uncompressed batch of records.
func BatchSizeUpperBound(records []Record) int { return 0 }

// Reader iterates over one batch's records.
type Reader struct{}

// NewReader has a cap on decompressed bytes per batch.
func NewReader(maxDecoded int) *Reader { return nil }

// Reset starts on a batch.
func (r *Reader) Reset(batch []byte) error { return errStub }

// Next moves to the next record.
func (r *Reader) Next() bool { return false }

// Record is valid until the next Next.
func (r *Reader) Record() *Record { return nil }

// Header is that of the batch.
func (r *Reader) Header() Header { return Header{} }

// Err is the first fault.
func (r *Reader) Err() error { return nil }

// Close gives buffers back.
func (r *Reader) Close() {}

// Decode returns all records of a batch, independent of its bytes.
func Decode(batch []byte, maxDecoded int) ([]Record, error) { return nil, errStub }
