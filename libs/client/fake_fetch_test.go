package client

import (
	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// fakeReader is one asking of a fetch stream.
type fakeReader struct {
	ask  *brokerv1.FetchPartition
	next int64
	told int64 // high watermark told
	// follower lets it read a replica that does not lead.
	follower bool
}

func (b *fakeBroker) Fetch(stream brokerv1.LogService_FetchServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := stream.Send(&brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Initial{
		Initial: &brokerv1.FetchInitialResponse{Handshake: rpc.LocalHandshake()},
	}}); err != nil {
		return err
	}
	credit, follower := first.GetInitial().CreditBytes, first.GetInitial().AllowFollower
	requests := make(chan *brokerv1.FetchRequest)
	go func() {
		defer close(requests)
		for {
			req, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- req:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	var readers []*fakeReader
	for {
		b.m.mu.Lock()
		changed := b.m.changed
		var out []*brokerv1.FetchResponse
		var bytes [][]byte
		keep := readers[:0]
		for _, r := range readers {
			resp, data, ended := b.serve(r, &credit)
			if resp != nil {
				out, bytes = append(out, resp), append(bytes, data)
			}
			if !ended {
				keep = append(keep, r)
			}
		}
		readers = keep
		b.m.mu.Unlock()
		for i := range out {
			if err := rpc.Send(stream, out[i], rpc.NewPayload(bytes[i])); err != nil {
				return err
			}
		}
		if len(out) > 0 {
			continue
		}
		select {
		case <-changed:
		case req, ok := <-requests:
			if !ok {
				return nil
			}
			credit += req.GetCredit().GetBytes()
			for _, id := range req.GetUpdate().GetRemoveFetchIds() {
				for i, r := range readers {
					if r.ask.FetchId == id {
						readers = append(readers[:i:i], readers[i+1:]...)
						break
					}
				}
			}
			for _, a := range req.GetUpdate().GetAdd() {
				readers = append(readers, &fakeReader{ask: a, next: a.FetchOffset, told: -1, follower: follower})
			}
		}
	}
}

// serve gives the next message for a reader, if there is any. The lock is held.
func (b *fakeBroker) serve(r *fakeReader, credit *int64) (resp *brokerv1.FetchResponse, data []byte, ended bool) {
	fail := func(err *rpc.Error) (*brokerv1.FetchResponse, []byte, bool) {
		return &brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_PartitionError{
			PartitionError: &brokerv1.FetchPartitionError{FetchId: r.ask.FetchId, Error: rpc.ToProto(err)},
		}}, nil, true
	}
	p, err := b.part(r.ask.TopicId, r.ask.Partition, -1)
	if t := b.m.topics[topicid.ID(r.ask.TopicId)]; r.follower && t != nil {
		p, err = t.parts[r.ask.Partition], nil
	}
	if err == nil && b.m.onFetch != nil && r.told < 0 {
		err = b.m.onFetch(b, r.ask)
	}
	if err != nil {
		return fail(err)
	}
	end := p.end - p.hidden
	if r.follower {
		end -= p.behind[b.id]
	}
	switch {
	case r.ask.CurrentLeaderEpoch > p.epoch:
		return fail(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH, "epoch %d is not known", r.ask.CurrentLeaderEpoch))
	case r.told < 0 && r.next >= p.start && r.next <= p.end && (r.next > end || r.ask.SeenVisibleEnd > end):
		return fail(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE, "up to %d only", end))
	}
	if r.next < p.start || r.next > p.end {
		return fail(rpc.Errorf(reasonOffsetOutOfRange, "%d is not in %d to %d", r.next, p.start, p.end))
	}
	if r.told < 0 && r.ask.LastFetchedEpoch >= 0 && r.next > 0 {
		if e := p.epochBefore(r.next); e != r.ask.LastFetchedEpoch {
			return fail(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LOG_TRUNCATED, "epoch %d before %d, not %d", e, r.next, r.ask.LastFetchedEpoch))
		}
	}
	visible := &brokerv1.VisibleEnd{LeaderEpoch: p.epoch, HighWatermark: end, LastStableOffset: end, LogStartOffset: p.start}
	for _, batch := range p.batches {
		h, perr := record.ParseHeader(batch)
		if perr != nil || h.NextOffset() <= r.next || h.NextOffset() > end {
			continue
		}
		if *credit <= 0 {
			return nil, nil, false
		}
		*credit -= int64(len(batch))
		r.next, r.told = h.NextOffset(), end
		b.m.read[b.id]++
		return &brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Batches{Batches: &brokerv1.FetchBatches{
			FetchId: r.ask.FetchId, NextOffset: r.next, VisibleEnd: visible, CreditCost: int64(len(batch)),
		}}}, batch, false
	}
	if r.told >= end && r.next >= end { // a replica's own high watermark never goes back
		return nil, nil, false
	}
	r.next, r.told = end, end
	return &brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Watermarks{Watermarks: &brokerv1.FetchWatermarks{
		Watermarks: []*brokerv1.FetchWatermark{{FetchId: r.ask.FetchId, NextOffset: r.next, VisibleEnd: visible}},
	}}}, nil, false
}

// epochBefore is the epoch under which the offset before one was written: that of
// its batch, or the present one where compaction has left nothing.
func (p *fakePart) epochBefore(offset int64) int32 {
	for _, batch := range p.batches {
		h, err := record.ParseHeader(batch)
		if err == nil && h.BaseOffset < offset && offset <= h.NextOffset() {
			return h.PartitionLeaderEpoch
		}
	}
	return p.epoch
}
