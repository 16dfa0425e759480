package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// maxAskedAtOnce bounds the partitions of one question to one broker.
const maxAskedAtOnce = 10_000

// OffsetQuery asks for one offset.
type OffsetQuery struct {
	TopicPartition
	Spec *typev1.OffsetSpec
}

// OffsetResult answers an OffsetQuery.
type OffsetResult struct {
	OffsetQuery
	Offset      int64 // -1: no record has that timestamp or later, or an error
	TimestampMs int64 // of the record there; -1: a place without one
	LeaderEpoch int32 // -1: none
	Err         error // *rpc.Error
}

// Earliest asks for the log start offset.
func Earliest() *typev1.OffsetSpec { return placeSpec(typev1.OffsetSpec_PLACE_EARLIEST) }

// Latest asks for the visible end.
func Latest() *typev1.OffsetSpec { return placeSpec(typev1.OffsetSpec_PLACE_LATEST) }

// AtTimestamp asks for the first record of a time or later.
func AtTimestamp(t time.Time) *typev1.OffsetSpec {
	return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Timestamp{Timestamp: timestamppb.New(t)}}
}

func placeSpec(p typev1.OffsetSpec_Place) *typev1.OffsetSpec {
	return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Place_{Place: p}}
}

// ListOffsets asks the leaders, retrying what can be retried until ctx ends, or
// Config.RetryTimeout has passed where it has no deadline. There is a result for
// each query, in order.
func (c *Client) ListOffsets(ctx context.Context, queries []OffsetQuery, isolation typev1.IsolationLevel) []OffsetResult {
	return c.listOffsets(ctx, nil, queries, isolation)
}

// ListReplicaOffsets is ListOffsets of one broker's replicas, whether they lead or
// follow: the latest offset is the high watermark that the replica knows.
func (c *Client) ListReplicaOffsets(ctx context.Context, broker int32, queries []OffsetQuery, isolation typev1.IsolationLevel) []OffsetResult {
	return c.listOffsets(ctx, &broker, queries, isolation)
}

// listOffsets asks the leaders, or one broker.
func (c *Client) listOffsets(ctx context.Context, replica *int32, queries []OffsetQuery, isolation typev1.IsolationLevel) []OffsetResult {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	results := make([]OffsetResult, len(queries))
	for i, q := range queries {
		results[i] = OffsetResult{OffsetQuery: q, Offset: -1, TimestampMs: -1, LeaderEpoch: -1}
	}
	c.askLeaders(ctx, leaderQuestions{
		count: len(queries), what: "ask for an offset of ", replica: replica,
		of: func(i int) (TopicPartition, *error) { return results[i].TopicPartition, &results[i].Err },
		ask: func(ctx context.Context, addr string, asked []int, epochs map[int]int32) []int {
			return c.listOffsetsAt(ctx, addr, replica != nil, results, asked, epochs, isolation)
		},
	})
	return results
}

// leaderQuestions are questions about partitions to their leaders.
type leaderQuestions struct {
	count int
	what  string // for errors: what is done to the partition whose name follows
	// replica is whom to ask instead; nil: the leaders.
	replica *int32
	// of tells the partition of a question, and where its error goes.
	of func(i int) (TopicPartition, *error)
	// ask asks one broker, and returns the questions to be repeated. It is called
	// for several brokers at once.
	ask func(ctx context.Context, addr string, asked []int, epochs map[int]int32) []int
}

// askLeaders asks until every question has an answer or an error that stays, or ctx
// ends.
func (c *Client) askLeaders(ctx context.Context, q leaderQuestions) {
	open := make([]int, q.count) // indexes without an answer
	for i := range open {
		open[i] = i
	}
	for failures := 1; ; failures++ {
		open = c.askLeadersOnce(ctx, q, open)
		if len(open) == 0 {
			return
		}
		if !sleep(ctx, c.cfg.backoff(failures)) {
			for _, i := range open {
				p, err := q.of(i)
				*err = contextError(ctx, q.what+c.called(p), *err).WithOutcome(outcomeNotDone)
			}
			return
		}
	}
}

// called is a partition's name for people, with that of its topic where it is known.
func (c *Client) called(p TopicPartition) string {
	ended, cancel := context.WithCancel(context.Background())
	cancel() // nothing is asked for the sake of a name
	if t, err := c.source.TopicByID(ended, p.TopicID); err == nil {
		return t.Name + "-" + itoa(p.Partition)
	}
	return p.String()
}

// askLeadersOnce asks each leader once and returns the questions to be repeated.
func (c *Client) askLeadersOnce(ctx context.Context, q leaderQuestions, open []int) []int {
	byAddr := make(map[string][]int)
	epochs := make(map[int]int32)
	var again []int
	for _, i := range open {
		p, err := q.of(i)
		leader, ok := c.whomToAsk(ctx, q.replica, p, err)
		if !ok {
			if rpc.Retryable(*err) {
				again = append(again, i)
			}
			continue
		}
		byAddr[leader.Addr] = append(byAddr[leader.Addr], i)
		epochs[i] = leader.Epoch
		if q.replica == nil {
			epochs[i] = max(leader.Epoch, c.seen.of(p).epoch)
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for addr, all := range byAddr {
		for asked := range slices.Chunk(all, maxAskedAtOnce) {
			wg.Go(func() {
				retry := q.ask(ctx, addr, asked, epochs)
				mu.Lock()
				defer mu.Unlock()
				again = append(again, retry...)
			})
		}
	}
	wg.Wait()
	slices.Sort(again)
	return again
}

// whomToAsk is the leader of a partition, or the broker asked for.
func (c *Client) whomToAsk(ctx context.Context, replica *int32, p TopicPartition, err *error) (Leader, bool) {
	if replica == nil {
		return c.knownLeader(ctx, p, err)
	}
	n, ok := c.source.Broker(*replica)
	if !ok {
		c.refreshSoon()
		*err = rpc.Errorf(reasonUnreachable, "broker %d, whose replica is asked for, is not in service", *replica).WithOutcome(outcomeNotDone)
	}
	return Leader{ID: n.ID, Addr: n.Addr, Epoch: -1}, ok
}

// knownLeader is the leader of a partition; where none is known it says why, and
// looks whether the topic is there at all.
func (c *Client) knownLeader(ctx context.Context, p TopicPartition, err *error) (Leader, bool) {
	if leader, ok := c.leader(p); ok {
		return leader, true
	}
	t, e := c.source.TopicByID(ctx, p.TopicID)
	switch {
	case e != nil:
		*err = e
		return Leader{}, false
	case p.Partition < 0 || int(p.Partition) >= len(t.Partitions):
		*err = unknownPartition(t, p.Partition)
		return Leader{}, false
	}
	if leader, ok := c.leader(p); ok {
		return leader, true
	}
	c.refreshSoon()
	*err = rpc.Errorf(reasonLeaderUnavailable, "partition %d of topic %q has no leader at the moment", p.Partition, t.Name).
		With("topic", t.Name, "partition", itoa(p.Partition))
	return Leader{}, false
}

// listOffsetsAt asks one broker, and returns the queries to be repeated.
func (c *Client) listOffsetsAt(ctx context.Context, addr string, follower bool, results []OffsetResult, asked []int, epochs map[int]int32, isolation typev1.IsolationLevel) []int {
	req := &brokerv1.ListOffsetsRequest{IsolationLevel: isolation, AllowFollower: follower}
	for _, i := range asked {
		q := results[i]
		req.Partitions = append(req.Partitions, &brokerv1.ListOffsetsPartition{
			TopicId: q.TopicID.Bytes(), Partition: q.Partition, Spec: q.Spec, CurrentLeaderEpoch: epochs[i],
		})
	}
	resp, err := askBroker(ctx, c, addr, func(ctx context.Context, b brokerv1.LogServiceClient) (*brokerv1.ListOffsetsResponse, error) {
		return b.ListOffsets(ctx, req)
	})
	var again []int
	for n, i := range asked {
		r := &results[i]
		if r.Err = answerError(addr, err, resp.GetResults(), n, len(asked)); r.Err == nil {
			got := resp.Results[n]
			r.Offset, r.LeaderEpoch = got.Offset, got.LeaderEpoch
			if got.Timestamp != nil {
				r.TimestampMs = got.Timestamp.AsTime().UnixMilli()
			}
			if p, ok := r.Spec.GetSpec().(*typev1.OffsetSpec_Place_); ok && p.Place == typev1.OffsetSpec_PLACE_LATEST {
				c.seen.note(r.TopicPartition, got.LeaderEpoch, got.Offset)
			}
		} else if c.mayPass(r.TopicPartition, addr, rpc.FromError(r.Err)) {
			again = append(again, i)
		}
	}
	return again
}

// answerError is what became of question n of those that a broker was asked at once:
// the error of the call, of an answer that does not fit it, or its own; nil: it is
// answered.
func answerError[A interface{ GetError() *typev1.Error }](addr string, callErr error, answers []A, n, asked int) error {
	switch {
	case callErr != nil:
		return rpc.FromError(callErr)
	case len(answers) != asked:
		return rpc.Errorf(reasonInternalBug, "broker %s answered %d of %d questions", addr, len(answers), asked)
	}
	if e := rpc.FromProto(answers[n].GetError()); e != nil {
		return e
	}
	return nil
}

// askBroker makes one unary call to a broker, bounded by Config.RequestTimeout.
func askBroker[R any](ctx context.Context, c *Client, addr string, call func(context.Context, brokerv1.LogServiceClient) (R, error)) (R, error) {
	var none R
	conn, err := c.askConns.Get(addr)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	return call(ctx, brokerv1.NewLogServiceClient(conn))
}

// ReplicaResult tells the marks of a replica, as its broker sees it.
type ReplicaResult struct {
	TopicPartition
	Broker  int32                        // -1: the partition has no leader
	Replica *brokerv1.ReplicaDescription // nil with an error
	Err     error                        // *rpc.Error
}

// DescribeReplicas asks brokers about replicas of the partitions: the leaders'
// only, or all. One attempt each; results are sorted by partition, in the order
// given, then as the metadata lists the replicas. A partition without a leader has
// a result with Broker -1.
func (c *Client) DescribeReplicas(ctx context.Context, partitions []TopicPartition, leadersOnly bool) []ReplicaResult {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var results []ReplicaResult
	byAddr := make(map[string][]int)
	for _, tp := range partitions {
		for _, r := range c.replicasOf(ctx, tp, leadersOnly) {
			if r.Err == nil {
				if n, ok := c.source.Broker(r.Broker); ok {
					byAddr[n.Addr] = append(byAddr[n.Addr], len(results))
				} else {
					r.Err = rpc.Errorf(reasonUnreachable, "broker %d is not in service", r.Broker).WithOutcome(outcomeNotDone)
				}
			}
			results = append(results, r)
		}
	}
	var wg sync.WaitGroup
	for addr, all := range byAddr {
		for asked := range slices.Chunk(all, maxAskedAtOnce) {
			wg.Go(func() { c.describeAt(ctx, addr, results, asked) })
		}
	}
	wg.Wait()
	return results
}

// replicasOf lists which replicas of a partition to ask about.
func (c *Client) replicasOf(ctx context.Context, tp TopicPartition, leadersOnly bool) []ReplicaResult {
	t, err := c.source.TopicByID(ctx, tp.TopicID)
	if err == nil && (tp.Partition < 0 || int(tp.Partition) >= len(t.Partitions)) {
		err = unknownPartition(t, tp.Partition)
	}
	if err != nil {
		return []ReplicaResult{{TopicPartition: tp, Broker: -1, Err: err}}
	}
	p := t.Partitions[tp.Partition]
	if !leadersOnly {
		var all []ReplicaResult
		for _, id := range p.Replicas {
			all = append(all, ReplicaResult{TopicPartition: tp, Broker: id})
		}
		return all
	}
	if leader, ok := c.leader(tp); ok {
		return []ReplicaResult{{TopicPartition: tp, Broker: leader.ID}}
	}
	return []ReplicaResult{{TopicPartition: tp, Broker: -1, Err: rpc.Errorf(reasonLeaderUnavailable,
		"partition %d of topic %q has no leader at the moment", tp.Partition, t.Name).With("topic", t.Name, "partition", itoa(tp.Partition))}}
}

// describeAt asks one broker.
func (c *Client) describeAt(ctx context.Context, addr string, results []ReplicaResult, asked []int) {
	req := &brokerv1.DescribeReplicasRequest{}
	for _, i := range asked {
		req.Replicas = append(req.Replicas, &brokerv1.ReplicaName{TopicId: results[i].TopicID.Bytes(), Partition: results[i].Partition})
	}
	resp, err := askBroker(ctx, c, addr, func(ctx context.Context, b brokerv1.LogServiceClient) (*brokerv1.DescribeReplicasResponse, error) {
		return b.DescribeReplicas(ctx, req)
	})
	for n, i := range asked {
		if results[i].Err = answerError(addr, err, resp.GetReplicas(), n, len(asked)); results[i].Err == nil {
			results[i].Replica = resp.Replicas[n]
		}
	}
}
