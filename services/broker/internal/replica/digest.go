package replica

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// digestChunk is how many bytes of a log a digest holds at a time; a larger batch
// comes alone.
const digestChunk = 256 << 10

// Digest is a hash of a replica's records.
type Digest struct {
	Sum     []byte // SHA-256
	Records int64
}

// AwaitWatermark waits until the replica's high watermark has reached an offset, on
// the leader and on followers, or ctx ends.
func (r *Replica) AwaitWatermark(ctx context.Context, offset int64) *rpc.Error {
	news := make(chan struct{}, 1)
	defer r.Subscribe(func(bool) { signal(news) })()
	for {
		r.mu.Lock()
		hw, down, gone := r.core.HighWatermark(), r.core.Down(), r.gone
		var err *rpc.Error
		switch {
		case gone:
			err = r.readError(commitlog.ErrClosed)
		case down != partition.ReasonNone:
			err = r.refusal(down, partition.Rejected)
		}
		r.mu.Unlock()
		if err != nil || hw >= offset {
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			if ctx.Err() == context.Canceled {
				return rpc.FromError(ctx.Err()).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
			}
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "the high watermark of %s on broker %d is %d and did not reach %d in time: look at its followers, or ask again later", r.Name(), r.m.cfg.Self.Broker, hw, offset).
				WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE).With("topic", r.Topic, "partition", itoa(int64(r.Key.Partition)), "high_watermark", itoa(hw))
		}
	}
}

// Digest hashes the records in [from, to), in the order of their offsets, however
// they are batched and compressed. The caller has waited for the high watermark to
// reach to. Each record counts with these fields, big-endian:
//
//	offset i64 │ leader epoch i32 │ timestamp i64 │ key │ value │ number of headers u32 │ key and value of each
//
// where a field of bytes is its length as i32, −1 for null, and the bytes. A log that
// begins above from is OFFSET_OUT_OF_RANGE.
func (r *Replica) Digest(ctx context.Context, from, to int64, maxDecoded int) (Digest, *rpc.Error) {
	d := digester{hash: sha256.New(), reader: record.NewReader(maxDecoded), from: from, to: to}
	defer d.reader.Close()
	if from < to {
		if log := r.log(); log == nil {
			return Digest{}, r.readError(commitlog.ErrClosed)
		} else if start := log.StartOffset(); start > from {
			return Digest{}, r.readBroken(log, &commitlog.OffsetOutOfRangeError{Offset: from, Start: start, End: log.EndOffset()})
		}
	}
	for at := from; at < to; {
		if ctx.Err() != nil {
			return Digest{}, rpc.FromError(ctx.Err()).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
		}
		next, err := r.digestRun(&d, at)
		if err != nil {
			return Digest{}, err
		}
		if next <= at {
			break // nothing is left up to the high watermark
		}
		at = next
	}
	return Digest{Sum: d.hash.Sum(nil), Records: d.records}, nil
}

// digestRun hashes one run of batches, and tells where the next one begins.
func (r *Replica) digestRun(d *digester, at int64) (int64, *rpc.Error) {
	r.mu.Lock()
	hw := r.core.HighWatermark()
	r.mu.Unlock()
	log := r.log()
	if log == nil {
		return 0, r.readError(commitlog.ErrClosed)
	}
	buf, res, err := r.readBatches(log, at, max(hw, d.to), digestChunk)
	if err != nil {
		return 0, r.readBroken(log, err)
	}
	defer buf.Free()
	for data := res.Data; len(data) > 0; {
		batch, rest, err := record.NextBatch(data)
		if err == nil {
			err = d.add(batch)
		}
		if err != nil {
			// Its checksum is right: it was stored like that, or unpacks to too much.
			return 0, r.readError(&commitlog.CorruptError{Path: log.Dir(), Position: -1, Offset: at, Detail: "a stored batch cannot be decoded", Err: err})
		}
		data = rest
	}
	return res.NextOffset, nil
}

// digester hashes the records of a range.
type digester struct {
	hash     hash.Hash
	reader   *record.Reader
	from, to int64
	records  int64
	scratch  []byte
}

func (d *digester) add(batch []byte) error {
	if err := d.reader.Reset(batch); err != nil {
		return err
	}
	epoch := d.reader.Header().PartitionLeaderEpoch
	for d.reader.Next() {
		rec := d.reader.Record()
		if rec.Offset < d.from || rec.Offset >= d.to {
			continue
		}
		d.records++
		b := binary.BigEndian.AppendUint64(d.scratch[:0], uint64(rec.Offset))
		b = binary.BigEndian.AppendUint32(b, uint32(epoch))
		b = binary.BigEndian.AppendUint64(b, uint64(rec.Timestamp))
		b = appendField(appendField(b, rec.Key, rec.Key == nil), rec.Value, rec.Value == nil)
		b = binary.BigEndian.AppendUint32(b, uint32(len(rec.Headers)))
		for i := range rec.Headers {
			h := &rec.Headers[i]
			b = appendField(appendField(b, h.Key, false), h.Value, h.Value == nil)
		}
		d.scratch = b
		d.hash.Write(b) // never fails
	}
	return d.reader.Err()
}

func appendField(b, field []byte, null bool) []byte {
	if null {
		return binary.BigEndian.AppendUint32(b, ^uint32(0))
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(field))), field...)
}
