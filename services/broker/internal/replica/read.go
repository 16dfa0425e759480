package replica

import (
	"errors"
	"math"

	"google.golang.org/protobuf/types/known/durationpb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Position is where a reader stands and what it knows.
type Position struct {
	Offset      int64
	LeaderEpoch int32 // highest leader epoch it has seen, -1: none
	LastEpoch   int32 // leader epoch of the last record it read, -1: none
	Seen        int64 // greatest visible end it has seen, -1: none
	// AllowFollower reads this replica also where it follows, up to the high watermark
	// that it knows.
	AllowFollower bool
}

// Chunk is what a read gave.
type Chunk struct {
	Payload *rpc.Payload // whole batches, nil at the visible end; the caller's
	First   int64        // base offset of the first batch; with a payload
	Next    int64        // where to read on
	More    bool         // there is something to read, and maxBytes was 0
	Visible *brokerv1.VisibleEnd
}

// Subscribe has notify called after everything that may change what Read answers,
// until cancel is called. more says that there may be more to read and nothing
// else changed. notify is called with the replica's lock held.
func (r *Replica) Subscribe(notify func(more bool)) (cancel func()) {
	s := &subscription{notify: notify}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers[s] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.readers, s)
	}
}

// Read reads whole batches from a position on: at most maxBytes, but the first one
// in any case, unless maxBytes is 0, which only looks. Without a payload, More and
// an error the reader stands at the visible end, if Next is its offset.
func (r *Replica) Read(p Position, maxBytes int) (Chunk, *rpc.Error) {
	upTo, visible, rerr := r.admit(partition.ReadFetch, p)
	if rerr != nil {
		if rerr.Reason == typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE {
			// A reader that was here before must not take a cut for a position that it chose.
			if err := r.checkTruncation(p); err != nil {
				return Chunk{}, err
			}
		}
		return Chunk{}, rerr
	}
	if err := r.checkTruncation(p); err != nil {
		return Chunk{}, err
	}
	chunk := Chunk{Next: p.Offset, Visible: visible}
	if upTo == p.Offset {
		return chunk, nil
	}
	if maxBytes <= 0 {
		chunk.More = true
		return chunk, nil
	}
	log := r.log()
	buf, res, err := r.readBatches(log, p.Offset, upTo, maxBytes)
	if err != nil {
		return Chunk{}, r.readBroken(log, err)
	}
	chunk.Next = res.NextOffset
	if len(res.Data) == 0 {
		buf.Free()
		return chunk, nil
	}
	chunk.Payload, chunk.First = buf.Payload(len(res.Data)), res.FirstBatchBase
	r.m.cfg.Metrics.Fetched(len(res.Data), res.NextOffset-p.Offset)
	return chunk, nil
}

// admit asks the core how far a reader may read.
func (r *Replica) admit(kind partition.ReadKind, p Position) (upTo int64, _ *brokerv1.VisibleEnd, _ *rpc.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return 0, nil, r.readError(commitlog.ErrClosed)
	}
	upTo = p.Offset
	read := partition.Read{Kind: kind, Offset: p.Offset, ClientEpoch: p.LeaderEpoch, ClientSeen: p.Seen, AllowFollower: p.AllowFollower}
	for _, e := range r.core.Step(&read) {
		switch e := e.(type) {
		case *partition.Reply:
			return 0, nil, r.refusal(e.Reason, e.Outcome)
		case *partition.Serve:
			upTo = e.UpTo
		}
	}
	return upTo, r.visibleEnd(), nil
}

// visibleEnd tells what may be read. The caller holds mu.
func (r *Replica) visibleEnd() *brokerv1.VisibleEnd {
	_, epoch := r.core.Leader()
	hw := r.core.HighWatermark()
	return &brokerv1.VisibleEnd{LeaderEpoch: epoch, HighWatermark: hw, LastStableOffset: hw, LogStartOffset: r.core.Start()}
}

// checkTruncation finds out whether what the reader read last is still there.
func (r *Replica) checkTruncation(p Position) *rpc.Error {
	if p.LastEpoch < 0 {
		return nil
	}
	end, ok := r.log().EndOffsetForEpoch(p.LastEpoch)
	if !ok || end.Epoch == p.LastEpoch && end.EndOffset >= p.Offset {
		return nil
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LOG_TRUNCATED,
		"%s holds no record of leader epoch %d just below offset %d any more; it agrees up to offset %d (epoch %d): choose a position", r.Name(), p.LastEpoch, p.Offset, end.EndOffset, end.Epoch).
		With("topic", r.Topic, "diverging_epoch", itoa(int64(end.Epoch)), "diverging_offset", itoa(end.EndOffset))
}

// readFailed makes an error of a failed read; a disk that cannot be read is
// offline like one that cannot be written.
func (r *Replica) readFailed(err error) *rpc.Error {
	var corrupt *commitlog.CorruptError
	var outOfRange *commitlog.OffsetOutOfRangeError
	e := r.readError(err)
	if !errors.As(err, &corrupt) && !errors.As(err, &outOfRange) && !errors.Is(err, commitlog.ErrClosed) {
		r.m.cfg.Logger.Error("a read of a log failed", "replica", r.Name(), "dir", r.stored().Dir, "error", err)
		if store.IsDiskFault(err) {
			r.m.diskFailed(r.stored().Disk, err)
		}
	}
	return e
}

// Offset is the answer to an offset query.
type Offset struct {
	Offset      int64 // -1: no record is that new
	Timestamp   int64 // ms; -1 for a place without one
	LeaderEpoch int32
}

// ListOffset resolves a place or, where place is unspecified, a timestamp in ms. The
// latest offset of a follower is its own high watermark.
func (r *Replica) ListOffset(place typev1.OffsetSpec_Place, timestamp int64, clientEpoch int32, allowFollower bool) (Offset, *rpc.Error) {
	kind := partition.ReadEarliest
	if place == typev1.OffsetSpec_PLACE_LATEST {
		kind = partition.ReadLatest
	}
	upTo, visible, rerr := r.admit(kind, Position{LeaderEpoch: clientEpoch, LastEpoch: -1, Seen: -1, AllowFollower: allowFollower})
	if rerr != nil {
		return Offset{}, rerr
	}
	switch place {
	case typev1.OffsetSpec_PLACE_EARLIEST:
		epoch := int32(-1)
		if visible.LogStartOffset < upTo {
			epoch = r.log().EpochAt(visible.LogStartOffset)
		}
		return Offset{Offset: visible.LogStartOffset, Timestamp: -1, LeaderEpoch: epoch}, nil
	case typev1.OffsetSpec_PLACE_LATEST:
		return Offset{Offset: visible.HighWatermark, Timestamp: -1, LeaderEpoch: visible.LeaderEpoch}, nil
	case typev1.OffsetSpec_PLACE_MAX_TIMESTAMP:
		return r.maxTimestamp(upTo)
	}
	return r.atTimestamp(timestamp, upTo)
}

func (r *Replica) atTimestamp(timestamp, upTo int64) (Offset, *rpc.Error) {
	read := r.readBegins()
	found, err := r.log().OffsetForTimestamp(max(timestamp, 0), upTo)
	r.reads.end(read)
	if err != nil {
		return Offset{}, r.readFailed(err)
	}
	if !found.Found {
		return Offset{Offset: -1, Timestamp: -1, LeaderEpoch: -1}, nil
	}
	return Offset{Offset: found.Offset, Timestamp: found.Timestamp, LeaderEpoch: found.LeaderEpoch}, nil
}

// maxTimestamp finds the first record with the greatest timestamp. Whether a
// record of a timestamp or later exists is monotone in the timestamp, so that at
// most 63 lookups find it.
func (r *Replica) maxTimestamp(upTo int64) (Offset, *rpc.Error) {
	best, err := r.atTimestamp(0, upTo)
	if err != nil || best.Offset < 0 {
		return best, err
	}
	low, high := best.Timestamp, int64(math.MaxInt64)
	for low < high {
		mid := low + (high-low)/2 + 1
		found, err := r.atTimestamp(mid, upTo)
		if err != nil {
			return Offset{}, err
		}
		if found.Offset < 0 {
			high = mid - 1
			continue
		}
		// The record found may be newer than asked: at least that new is known.
		best, low = found, max(mid, found.Timestamp)
	}
	return r.atTimestamp(low, upTo)
}

// Describe tells the marks of the replica.
func (r *Replica) Describe() *brokerv1.ReplicaDescription {
	r.mu.Lock()
	leader, epoch := r.core.Leader()
	d := &brokerv1.ReplicaDescription{
		TopicId: r.Key.Topic.Bytes(), Partition: r.Key.Partition, Leads: leader == r.m.cfg.Self && r.core.Leads(), LeaderEpoch: epoch,
		LogStartOffset: r.core.Start(), HighWatermark: r.core.HighWatermark(), LogEndOffset: r.core.End(), DurableEndOffset: r.core.Durable(),
	}
	if down := r.core.Down(); down != partition.ReasonNone {
		d.Error = rpc.ToProto(r.refusal(down, partition.Rejected))
	}
	r.mu.Unlock()
	if r.log() == nil {
		return d
	}
	size, err := r.log().Size()
	if err != nil && d.Error == nil {
		d.Error = rpc.ToProto(r.readError(err))
	}
	d.SizeBytes = size
	return d
}

// tellAge adds to a description how long ago the record at an offset was appended,
// that of the first one for an offset below the log. There is none at or above the end.
func (r *Replica) tellAge(d *brokerv1.ReplicaDescription, offset int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	offset = max(offset, r.core.Start())
	if offset >= r.core.End() {
		return
	}
	age, atLeast := r.ages.of(offset, r.m.now())
	d.Age, d.AgeAtLeast = durationpb.New(age), atLeast
}
