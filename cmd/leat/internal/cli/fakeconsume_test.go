package cli

import (
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// fakeReader is one consume stream of the fake.
type fakeReader struct {
	f         *fakeGateway
	stream    gatewayv1.ConsumerService_ConsumeServer
	open      *gatewayv1.ConsumeOpen
	next      map[place]int64
	order     []place
	breakAt   int
	delivered int
	revoking  bool
	topicID   string
}

// The ids of a topic before and after it was made again.
const (
	firstTopicID  = "the first topic."
	secondTopicID = "the second topic"
)

func (f *fakeGateway) Consume(stream gatewayv1.ConsumerService_ConsumeServer) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.consumed++
	f.joined = append(f.joined, m.GetOpen())
	r := &fakeReader{f: f, stream: stream, open: m.GetOpen(), next: map[place]int64{}, topicID: firstTopicID}
	var fence *rpc.Error
	if f.fence != nil {
		fence = f.fence(f.consumed)
	}
	if f.breakAfter != nil {
		r.breakAt = f.breakAfter(f.consumed)
	}
	f.mu.Unlock()
	opened := &gatewayv1.ConsumeOpened{}
	if r.open.GetGroup() != "" {
		opened.MemberId, opened.Attach = "member-1", r.open.GetAttach()+1
	}
	if err := stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	if r.open.GetGroup() == "late" {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for !f.settled() {
			select {
			case <-tick.C:
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
	}
	if err := r.assign(); err != nil {
		return err
	}
	if err := r.deliver(); err != nil {
		return err
	}
	if fence != nil {
		if err := stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Fenced{Fenced: &gatewayv1.ConsumeFenced{Error: rpc.ToProto(fence)}}}); err != nil {
			return err
		}
		return fence
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if done, err := r.receive(m); done || err != nil {
			return err
		}
	}
}

// assign decides where each partition starts and says so.
func (r *fakeReader) assign() error {
	wanted := map[place]int64{}
	for _, p := range r.open.GetPartitions() {
		at := int64(-1)
		if p.Offset != nil {
			at = p.GetOffset()
		}
		wanted[place{p.GetTopic(), p.GetPartition()}] = at
	}
	topics := slices.Clone(r.open.GetTopics())
	if r.open.GetTopicPattern() != "" {
		topics = append(topics, r.f.matching...)
	}
	for _, topic := range topics {
		r.f.mu.Lock()
		for n := range r.f.topics[topic] {
			wanted[place{topic, int32(n)}] = -1
		}
		r.f.mu.Unlock()
	}
	for p, at := range wanted {
		if c := r.f.committedAt(r.open.GetGroup(), p.topic, p.partition); r.open.GetGroup() != "" && c >= 0 {
			at = c
		}
		for _, pos := range r.open.GetPositions() {
			if pos.GetTopic() == p.topic && pos.GetPartition() == p.partition {
				at = pos.GetNextOffset()
			}
		}
		end := int64(len(r.f.log(p.topic, p.partition)))
		if at < 0 {
			at = end
			if r.open.GetStartAt() == gatewayv1.StartAt_START_AT_EARLIEST {
				at = 0
			}
		}
		r.next[p] = at
		r.order = append(r.order, p)
	}
	slices.SortFunc(r.order, func(a, b place) int { return int(a.partition - b.partition) })
	if r.open.GetGroup() == "late" {
		r.order = r.order[:1]
	}
	for _, p := range r.order {
		if err := r.stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Assigned{Assigned: &gatewayv1.ConsumeAssigned{
			Topic: p.topic, Partition: p.partition, StartOffset: r.next[p], TopicId: []byte(r.topicID),
		}}}); err != nil {
			return err
		}
	}
	return nil
}

// deliver sends what there is, two records a message.
func (r *fakeReader) deliver() error {
	for _, p := range r.order {
		log := r.f.log(p.topic, p.partition)
		if r.next[p] > int64(len(log)) {
			e := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "offset %d is behind the end, %d", r.next[p], len(log))
			if err := r.stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_PartitionError{
				PartitionError: &gatewayv1.ConsumePartitionError{Topic: p.topic, Partition: p.partition, Error: rpc.ToProto(e)},
			}}); err != nil {
				return err
			}
			continue
		}
		for at := r.next[p]; at < int64(len(log)) && !(r.revoking && p.partition == 0); {
			records := log[at:min(at+2, int64(len(log)))]
			at += int64(len(records))
			r.delivered += len(records)
			if err := r.stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Records{Records: &gatewayv1.ConsumeRecords{
				Topic: p.topic, Partition: p.partition, Records: records, NextOffset: at, Cost: 10, HighWatermark: int64(len(log)),
			}}}); err != nil {
				return err
			}
			if r.breakAt > 0 && r.delivered >= r.breakAt {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the fake breaks")
			}
			if n := r.f.revokeAfter; n > 0 && p.partition == 0 && r.delivered >= n && !r.revoking {
				r.revoking = true
				if err := r.stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Revoke{Revoke: &gatewayv1.ConsumeRevoke{
					Topic: p.topic, Partition: p.partition,
				}}}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// remake makes topic t again before it answers a commit of the old one.
func (r *fakeReader) remake(c *gatewayv1.ConsumeCommit) error {
	r.topicID = secondTopicID
	gone := rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED, "the fake has made it again"))
	records := &gatewayv1.ConsumeRecords{Topic: "t", NextOffset: int64(len(r.f.remade)), Cost: 10}
	for i, v := range r.f.remade {
		records.Records = append(records.Records, &gatewayv1.ConsumeRecord{Offset: int64(i), Value: []byte(v)})
	}
	for _, m := range []*gatewayv1.ConsumeResponse{
		{Message: &gatewayv1.ConsumeResponse_Assigned{Assigned: &gatewayv1.ConsumeAssigned{Topic: "t", TopicId: []byte(r.topicID)}}},
		{Message: &gatewayv1.ConsumeResponse_Records{Records: records}},
		{Message: &gatewayv1.ConsumeResponse_CommitResult{CommitResult: &gatewayv1.ConsumeCommitResult{
			Sequence: c.GetSequence(), Refused: []*gatewayv1.ConsumePartitionError{{Topic: "t", Error: gone}},
		}}},
	} {
		if err := r.stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// receive handles a message of the client; true ends the stream well.
func (r *fakeReader) receive(m *gatewayv1.ConsumeRequest) (bool, error) {
	f := r.f
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m := m.GetMessage().(type) {
	case *gatewayv1.ConsumeRequest_Commit:
		f.commits++
		if f.commits <= f.failCommits {
			e := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, "the fake is loading")
			return false, r.stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_CommitResult{
				CommitResult: &gatewayv1.ConsumeCommitResult{Sequence: m.Commit.GetSequence(), Error: rpc.ToProto(e)},
			}})
		}
		if f.remade != nil && r.topicID == firstTopicID {
			return false, r.remake(m.Commit)
		}
		for _, p := range m.Commit.GetPositions() {
			f.commitLocked(r.open.GetGroup(), place{p.GetTopic(), p.GetPartition()}, p.GetNextOffset())
		}
		return false, r.stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_CommitResult{
			CommitResult: &gatewayv1.ConsumeCommitResult{Sequence: m.Commit.GetSequence(), Committed: m.Commit.GetPositions()},
		}})
	case *gatewayv1.ConsumeRequest_Revoked:
		for _, p := range m.Revoked.GetPartitions() {
			f.revoked = append(f.revoked, place{p.GetTopic(), p.GetPartition()})
		}
	case *gatewayv1.ConsumeRequest_Leave:
		f.left++
		return true, r.stream.Send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Closed{Closed: &gatewayv1.ConsumeClosed{}}})
	case *gatewayv1.ConsumeRequest_Open:
		return true, status.Error(codes.InvalidArgument, "a second open")
	}
	return false, nil
}
