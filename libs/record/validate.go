package record

import (
	"fmt"
	"hash/crc32"
	"math"
)

// ValidateOptions says what Validate asks of a batch beyond being whole.
type ValidateOptions struct {
	// MaxBytes is the largest encoded batch; 0 means no limit but the format's.
	MaxBytes int
	// Fresh says that the batch comes from a producer and has no place in a log yet:
	// it has at least one record, its last offset delta is the count less one, and
	// it claims neither the log's own timestamps nor a delete horizon.
	Fresh bool
	// AllowControl lets a fresh batch be a control batch.
	AllowControl bool
}

// Validate checks that vecs hold exactly one batch, whole and consistent, without
// decompressing it or copying more than its header. It reads every byte once, for
// the checksum. The errors are *CorruptError, *InvalidError and *TooLargeError.
//
// It does not look inside records; ValidateRecords does.
func Validate(vecs [][]byte, o ValidateOptions) (Header, error) {
	size := VecLen(vecs)
	h, err := ParseHeaderVec(vecs)
	if err != nil {
		return h, err
	}
	if o.MaxBytes > 0 && h.Size() > o.MaxBytes {
		return h, &TooLargeError{Size: h.Size(), Limit: o.MaxBytes}
	}
	if size < h.Size() {
		return h, corrupt(size, "the length field says that the batch has %d bytes", h.Size())
	}
	if size > h.Size() {
		return h, invalid(ReasonTrailingBytes, h.Size(), "%d bytes follow the batch", size-h.Size())
	}
	if crc := checksumVec(vecs); crc != h.CRC {
		return h, corrupt(posCRC, "the checksum is %08x and the bytes have %08x", h.CRC, crc)
	}
	if err := h.Check(); err != nil {
		return h, err
	}
	if o.Fresh {
		return h, h.checkFresh(o.AllowControl)
	}
	return h, nil
}

// checksumVec is Checksum over vecs, from the attributes on.
func checksumVec(vecs [][]byte) uint32 {
	skip := posAttributes
	crc := uint32(0)
	for _, v := range vecs {
		if skip >= len(v) {
			skip -= len(v)
			continue
		}
		crc = crc32.Update(crc, castagnoli, v[skip:])
		skip = 0
	}
	return crc
}

// Check is what holds for the header of every batch in a log, whatever its
// payload. Validate calls it; so does who computes the checksum in pieces.
func (h *Header) Check() error {
	if c := h.Compression(); c > CompressionZstd {
		return invalid(ReasonUnsupportedCompression, posAttributes, "codec number %d is not assigned", c)
	}
	if h.NumRecords < 0 {
		return invalid(ReasonBadCount, posNumRecords, "the number of records is %d", h.NumRecords)
	}
	if h.LastOffsetDelta < 0 {
		return invalid(ReasonBadOffsets, posLastOffsetDelta, "the last offset delta is %d", h.LastOffsetDelta)
	}
	if int64(h.NumRecords) > int64(h.LastOffsetDelta)+1 {
		return invalid(ReasonBadCount, posNumRecords, "%d records do not fit in %d offsets", h.NumRecords, int64(h.LastOffsetDelta)+1)
	}
	if h.BaseOffset < 0 || h.BaseOffset > math.MaxInt64-int64(h.LastOffsetDelta)-1 {
		return invalid(ReasonBadOffsets, posBaseOffset, "the base offset is %d", h.BaseOffset)
	}
	payload := h.Size() - HeaderSize
	if h.Compression() == CompressionNone && int64(h.NumRecords)*minRecordSize > int64(payload) {
		return invalid(ReasonBadCount, posNumRecords, "%d records do not fit in %d bytes", h.NumRecords, payload)
	}
	if h.NumRecords == 0 && payload > 0 && h.Compression() == CompressionNone {
		return invalid(ReasonTrailingBytes, HeaderSize, "%d bytes follow although there are no records", payload)
	}
	if h.ProducerID < NoProducerID {
		return invalid(ReasonBadProducer, posProducerID, "the producer id is %d", h.ProducerID)
	}
	if h.ProducerID == NoProducerID && h.Attributes.Transactional() {
		return invalid(ReasonBadProducer, posProducerID, "a transactional batch names no producer")
	}
	if h.ProducerID >= 0 && (h.ProducerEpoch < 0 || h.BaseSequence < 0 && !h.Attributes.Control()) {
		return invalid(ReasonBadProducer, posProducerEpoch, "producer %d has epoch %d and sequence %d", h.ProducerID, h.ProducerEpoch, h.BaseSequence)
	}
	return nil
}

// checkFresh is what holds besides for a batch that a producer sends.
func (h *Header) checkFresh(allowControl bool) error {
	if h.NumRecords == 0 {
		return invalid(ReasonBadCount, posNumRecords, "there are no records")
	}
	if h.LastOffsetDelta != h.NumRecords-1 {
		return invalid(ReasonBadOffsets, posLastOffsetDelta, "the last offset delta is %d with %d records", h.LastOffsetDelta, h.NumRecords)
	}
	if h.Attributes.Control() && !allowControl {
		return invalid(ReasonControlNotAllowed, posAttributes, "only the mesh itself writes control batches")
	}
	if h.Attributes.TimestampType() == LogAppendTime || h.Attributes.HasDeleteHorizon() {
		return invalid(ReasonBadAttributes, posAttributes, "attributes %#x claim what only a log may set", int16(h.Attributes))
	}
	return nil
}

// ValidateRecords decodes every record of a batch that passed Validate and checks
// that the fields of each add up, that there are as many as the header says, that
// offsets rise within the batch's range and that no timestamp is above the
// header's maximum. At most maxDecoded bytes are decompressed
// (max.decoded.bytes). Only a compressed batch, or one in pieces, is copied. The
// errors are *InvalidError and *CorruptError.
func ValidateRecords(vecs [][]byte, maxDecoded int) error {
	return validateRecords(vecs, maxDecoded, false)
}

// ValidateKeyedRecords is ValidateRecords for a log that is compacted: a record
// whose key is null is an *InvalidError too, since it would be lost.
func ValidateKeyedRecords(vecs [][]byte, maxDecoded int) error {
	return validateRecords(vecs, maxDecoded, true)
}

func validateRecords(vecs [][]byte, maxDecoded int, keyed bool) error {
	r := NewReader(maxDecoded)
	defer r.Close()
	if err := r.resetVec(vecs); err != nil {
		return err
	}
	h := r.Header()
	for r.Next() {
		rec := r.Record()
		if keyed && rec.Key == nil {
			return &InvalidError{
				Reason: ReasonNoKey, Position: HeaderSize, Record: r.index - 1,
				Detail: "its key is null, and compaction keeps only records that have one: give it a key, or use a topic whose cleanup.policy is delete",
			}
		}
		if h.Attributes.TimestampType() == CreateTime && rec.Timestamp > h.MaxTimestamp {
			return &InvalidError{
				Reason: ReasonBadRecord, Position: posMaxTimestamp, Record: r.index - 1,
				Detail: fmt.Sprintf("its timestamp %d is above the batch's maximum %d", rec.Timestamp, h.MaxTimestamp),
			}
		}
	}
	return r.Err()
}

// NextBatch splits the first whole batch off data, which is a run of batches as
// fetched. A batch that is cut short, as the last one may be, is a *CorruptError;
// so callers stop at it and fetch again from its base offset. Both results alias
// data. The checksum is not looked at.
func NextBatch(data []byte) (batch, rest []byte, err error) {
	h, err := ParseHeader(data)
	if err != nil {
		return nil, data, err
	}
	if h.Size() > len(data) {
		return nil, data, corrupt(len(data), "the length field says that the batch has %d bytes", h.Size())
	}
	return data[:h.Size():h.Size()], data[h.Size():], nil
}
