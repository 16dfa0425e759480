package record

import "fmt"

// Rewriter makes batches anew with only some of their records, as compaction does.
// The zero value is not usable; NewRewriter makes one. It keeps its buffers from
// one batch to the next and is not safe for use by several goroutines at once.
type Rewriter struct {
	r   *Reader
	raw []byte // HeaderSize bytes, then the records kept
	out []byte // the packed batch
}

// NewRewriter returns a rewriter that decompresses at most maxDecoded bytes per
// batch; 0 or less means DefaultMaxDecodedBytes.
func NewRewriter(maxDecoded int) *Rewriter { return &Rewriter{r: NewReader(maxDecoded)} }

// Rewritten is what Rewrite made of a batch.
type Rewritten struct {
	Batch []byte // valid until the following Rewrite
	Kept  int    // records in it
}

// Rewrite copies a batch with only the records that keep answers true for. Their
// offsets, timestamps, keys, values and headers stay as they were, and so do the
// batch's range of offsets, leader epoch, producer fields, codec and attributes; so
// that its last sequence is known even when it keeps no record. The maximum
// timestamp becomes that of the records kept, unless the log set it or none is kept.
//
// A horizon other than NoTimestamp becomes the base timestamp, in ms, and the
// attribute that says so is set; with NoTimestamp one that the batch has stays.
//
// The record given to keep is valid during the call only. The checksum of the batch
// is not looked at. Errors are *CorruptError and *InvalidError.
func (w *Rewriter) Rewrite(batch []byte, horizon int64, keep func(*Record) bool) (Rewritten, error) {
	if err := w.r.Reset(batch); err != nil {
		return Rewritten{}, err
	}
	h := w.r.Header()
	if horizon != NoTimestamp {
		h.BaseTimestamp, h.Attributes = horizon, h.Attributes|attrDeleteHorizon
	}
	if cap(w.raw) < HeaderSize {
		w.raw = make([]byte, HeaderSize, 4<<10)
	}
	raw, kept, maxTS := w.raw[:HeaderSize], int32(0), int64(0)
	for w.r.Next() {
		rec := w.r.Record()
		if !keep(rec) {
			continue
		}
		// The difference may wrap around; so will the sum when it is read.
		delta := rec.Timestamp - h.BaseTimestamp
		if h.Attributes.TimestampType() == LogAppendTime {
			delta = 0
		}
		raw = appendRecord(raw, rec, bodySize(rec, delta, rec.OffsetDelta), delta, rec.OffsetDelta)
		if maxTS = max(maxTS, rec.Timestamp); kept == 0 {
			maxTS = rec.Timestamp
		}
		kept++
	}
	w.raw = raw
	if err := w.r.Err(); err != nil {
		return Rewritten{}, err
	}
	h.NumRecords = kept
	if kept > 0 && h.Attributes.TimestampType() == CreateTime {
		h.MaxTimestamp = maxTS
	}
	out, err := w.pack(&h, raw)
	return Rewritten{Batch: out, Kept: int(kept)}, err
}

// pack compresses the records as they were and puts the header before them. A batch
// without records has no payload, whatever its codec.
func (w *Rewriter) pack(h *Header, raw []byte) ([]byte, error) {
	out := raw
	if c := h.Compression(); c != CompressionNone && h.NumRecords > 0 {
		if cap(w.out) < HeaderSize {
			w.out = make([]byte, HeaderSize, HeaderSize+len(raw)/2)
		}
		packed, err := compress(w.out[:HeaderSize], c, raw[HeaderSize:])
		if err != nil {
			return nil, fmt.Errorf("rewrite a record batch: %s: %w", c, err)
		}
		w.out, out = packed, packed
	}
	if len(out) > MaxBatchSize {
		return nil, &TooLargeError{Size: len(out), Limit: MaxBatchSize}
	}
	h.Length = int32(len(out) - LengthOverhead)
	h.Put(out)
	h.CRC = Checksum(out)
	h.Put(out)
	return out, nil
}
