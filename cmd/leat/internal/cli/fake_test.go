package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// fakeGateway keeps one mesh's worth of topics and groups in memory, and breaks
// in the ways that a test asks for.
type fakeGateway struct {
	gatewayv1.UnimplementedProducerServiceServer
	gatewayv1.UnimplementedConsumerServiceServer
	gatewayv1.UnimplementedAdminServiceServer

	addr   string
	server *grpc.Server

	mu        sync.Mutex
	topics    map[string][][]*gatewayv1.ConsumeRecord // by partition
	committed map[string]map[place]int64
	commits   int // messages
	revoked   []place
	joined    []*gatewayv1.ConsumeOpen
	opened    []*gatewayv1.ProduceOpen
	left      int
	produced  int // streams so far
	consumed  int

	// onSend decides about a send of the n-th produce stream, from 1.
	onSend func(stream, send int, s *gatewayv1.ProduceSend) fate
	// refuse gives the error of a record, nil to store it.
	refuse func(*gatewayv1.ProduceRecord) *rpc.Error
	// breakAfter ends the n-th consume stream, from 1, after so many records; 0
	// is never.
	breakAfter func(stream int) int
	// fence ends the n-th consume stream, from 1, after its records, with this
	// error; nil is never.
	fence func(stream int) *rpc.Error
	// failCommits is how many commits are refused for now.
	failCommits int
	// revokeAfter asks for partition 0 back after so many of its records; 0 is never.
	revokeAfter int
	// remade is what the partition 0 holds after its topic was deleted and made
	// again, which happens at the first commit; nil is never.
	remade []string
	// matching are the topics that any pattern of a consumer means.
	matching []string
	// cluster is what DescribeCluster answers.
	cluster *gatewayv1.DescribeClusterResponse

	// settlesAfter is how often the group "late" is asked for before it is stable and the
	// partition 0 is assigned; 1 belongs to another member.
	settlesAfter int
	ratesOver    []time.Duration // of each description of a group
	lacks        error           // answers each description of a group; nil: it is described
	simulated    *gatewayv1.SimulateGroupRequest
	resets       []*gatewayv1.ResetGroupOffsetsRequest
	refuseReset  bool // of partition 1
}

type place struct {
	topic     string
	partition int32
}

// fate is what becomes of a send.
type fate int

const (
	store      fate = iota // and answer
	storeBreak             // store it, then break the stream without an answer
	drop                   // break the stream without storing it
	drain                  // say Drain and refuse it
	ignore                 // neither store nor answer it
)

func startFake(t *testing.T) *fakeGateway {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeGateway{
		addr: listener.Addr().String(), server: grpc.NewServer(grpc.MaxRecvMsgSize(rpc.MaxMessageBytes), grpc.MaxSendMsgSize(rpc.MaxMessageBytes)),
		topics: map[string][][]*gatewayv1.ConsumeRecord{}, committed: map[string]map[place]int64{},
	}
	gatewayv1.RegisterProducerServiceServer(f.server, f)
	gatewayv1.RegisterConsumerServiceServer(f.server, f)
	gatewayv1.RegisterAdminServiceServer(f.server, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.server.Serve(listener)
	}()
	t.Cleanup(func() {
		f.server.Stop()
		<-done
	})
	return f
}

func (f *fakeGateway) topic(name string, partitions int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics[name] = make([][]*gatewayv1.ConsumeRecord, partitions)
}

// fill appends values to a partition.
func (f *fakeGateway) fill(topic string, partition int32, values ...string) {
	for _, v := range values {
		f.append(topic, partition, &gatewayv1.ProduceRecord{Value: []byte(v)})
	}
}

func (f *fakeGateway) append(topic string, partition int32, r *gatewayv1.ProduceRecord) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.topics[topic][partition]
	offset := int64(len(log))
	f.topics[topic][partition] = append(log, &gatewayv1.ConsumeRecord{
		Offset: offset, Key: r.Key, Value: r.Value, Headers: r.Headers, TimestampMs: r.GetTimestampMs(), LeaderEpoch: 4,
	})
	return offset
}

// log is a copy of a partition.
func (f *fakeGateway) log(topic string, partition int32) []*gatewayv1.ConsumeRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int(partition) >= len(f.topics[topic]) {
		return nil
	}
	return append([]*gatewayv1.ConsumeRecord(nil), f.topics[topic][partition]...)
}

func (f *fakeGateway) values(topic string, partition int32) []string {
	var out []string
	for _, r := range f.log(topic, partition) {
		out = append(out, string(r.Value))
	}
	return out
}

func (f *fakeGateway) committedAt(group, topic string, partition int32) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n, ok := f.committed[group][place{topic, partition}]; ok {
		return n
	}
	return -1
}

func unknownTopic(name string) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, "there is no topic %q", name)
}

func (f *fakeGateway) Produce(stream gatewayv1.ProducerService_ProduceServer) error {
	f.mu.Lock()
	f.produced++
	number := f.produced
	f.mu.Unlock()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.opened = append(f.opened, first.GetOpen())
	f.mu.Unlock()
	if err := stream.Send(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Opened{Opened: &gatewayv1.ProduceOpened{MaxInFlightRecords: 2500}}}); err != nil {
		return err
	}
	summary := &gatewayv1.ProduceSummary{}
	draining := false
	for n := 1; ; n++ {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.Send(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Summary{Summary: summary}})
		}
		if err != nil {
			return err
		}
		what := store
		if f.onSend != nil {
			what = f.onSend(number, n, m.GetSend())
		}
		if what == drain && !draining {
			draining = true
			if err := stream.Send(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Drain{Drain: &gatewayv1.ProduceDrain{}}}); err != nil {
				return err
			}
		}
		switch {
		case what == ignore:
			continue
		case what == drop:
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the fake breaks")
		case draining:
			err = f.answer(stream, m.GetSend(), rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "the fake drains"))
		default:
			result := f.storeAll(m.GetSend())
			if what == storeBreak {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the fake breaks")
			}
			err = stream.Send(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Result{Result: result}})
		}
		if err != nil {
			return err
		}
	}
}

func (f *fakeGateway) answer(stream gatewayv1.ProducerService_ProduceServer, s *gatewayv1.ProduceSend, e *rpc.Error) error {
	return stream.Send(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Result{Result: &gatewayv1.ProduceResult{
		Id: s.GetId(), Ranges: []*gatewayv1.RecordRange{{Count: int32(len(s.GetRecords())), Partition: -1, BaseOffset: -1, Error: rpc.ToProto(e)}},
	}}})
}

func (f *fakeGateway) storeAll(s *gatewayv1.ProduceSend) *gatewayv1.ProduceResult {
	result := &gatewayv1.ProduceResult{Id: s.GetId()}
	for i, r := range s.GetRecords() {
		g := &gatewayv1.RecordRange{First: int32(i), Count: 1, Topic: s.GetTopic(), Partition: r.GetPartition(), BaseOffset: -1}
		f.mu.Lock()
		partitions := len(f.topics[s.GetTopic()])
		f.mu.Unlock()
		var e *rpc.Error
		switch {
		case partitions == 0:
			e = unknownTopic(s.GetTopic())
		case int(r.GetPartition()) >= partitions:
			e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, "no partition %d", r.GetPartition())
		case f.refuse != nil:
			e = f.refuse(r)
		}
		if e != nil {
			g.Error = rpc.ToProto(e)
		} else {
			g.BaseOffset = f.append(s.GetTopic(), r.GetPartition(), r)
		}
		result.Ranges = append(result.Ranges, g)
	}
	return result
}

func (f *fakeGateway) DescribeTopic(_ context.Context, q *gatewayv1.DescribeTopicRequest) (*gatewayv1.DescribeTopicResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	log, ok := f.topics[q.GetTopic()]
	if !ok {
		return nil, unknownTopic(q.GetTopic())
	}
	r := &gatewayv1.DescribeTopicResponse{
		Summary: &gatewayv1.TopicSummary{Name: q.GetTopic(), TopicId: []byte("0123456789abcdef"), Partitions: int32(len(log)), ReplicationFactor: 1},
		Configs: []*gatewayv1.ConfigEntry{
			{Name: "retention.ms", Value: "1000", Source: gatewayv1.ConfigSource_CONFIG_SOURCE_TOPIC, DefaultValue: "604800000", Description: "How long."},
		},
	}
	for n := range log {
		leader := int32(1)
		if n == 1 {
			leader = -1
		}
		r.Partitions = append(r.Partitions, &gatewayv1.PartitionDescription{
			Partition: int32(n), Leader: leader, LeaderEpoch: 4, Replicas: []int32{1}, Isr: []int32{1}, HighWatermark: int64(len(log[n])),
		})
	}
	return r, nil
}

func (f *fakeGateway) ListOffsets(_ context.Context, q *gatewayv1.ListOffsetsRequest) (*gatewayv1.ListOffsetsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	log, ok := f.topics[q.GetTopic()]
	if !ok {
		return nil, unknownTopic(q.GetTopic())
	}
	r := &gatewayv1.ListOffsetsResponse{}
	for n := range log {
		o := &gatewayv1.PartitionOffset{Partition: int32(n), LeaderEpoch: -1}
		if q.GetSpec().GetPlace() == typev1.OffsetSpec_PLACE_LATEST {
			o.Offset = int64(len(log[n]))
		}
		r.Offsets = append(r.Offsets, o)
	}
	return r, nil
}

func (f *fakeGateway) DescribeCluster(context.Context, *gatewayv1.DescribeClusterRequest) (*gatewayv1.DescribeClusterResponse, error) {
	return f.cluster, nil
}

func (f *fakeGateway) CommitGroupOffsets(_ context.Context, q *gatewayv1.CommitGroupOffsetsRequest) (*gatewayv1.CommitGroupOffsetsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range q.GetOffsets() {
		f.commitLocked(q.GetGroup(), place{o.GetTopic(), o.GetPartition()}, o.GetNextOffset())
	}
	return &gatewayv1.CommitGroupOffsetsResponse{}, nil
}

func (f *fakeGateway) commitLocked(group string, p place, next int64) {
	if f.committed[group] == nil {
		f.committed[group] = map[place]int64{}
	}
	f.committed[group][p] = next
}
