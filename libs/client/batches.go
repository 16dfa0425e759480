package client

import (
	"context"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Produced tells where a batch was stored.
type Produced struct {
	BaseOffset  int64 // -1 with acks none
	LeaderEpoch int32 // -1 with acks none
}

// defaultAckTimeout is how long a broker may wait for acks where ctx does not say.
const defaultAckTimeout = 30 * time.Second

// ProduceBatch appends one encoded batch, in one attempt, at the partition's
// leader: no batching and no retry. The fence is for shards. The error's outcome
// says whether the batch may have been stored; when ctx ends before an answer it is
// UNKNOWN. The batch must not be changed until ProduceBatch returns; not even then
// if it returned an error with an UNKNOWN outcome.
//
// Batches for one partition go out in the order of the calls, if each call begins
// after the one before it has gone out; callers that need an order wait for the
// answers.
func (c *Client) ProduceBatch(ctx context.Context, p TopicPartition, batch []byte, acks typev1.Acks, fence *brokerv1.ShardFence) (Produced, error) {
	none := Produced{BaseOffset: -1, LeaderEpoch: -1}
	leader, ok := c.leader(p)
	if !ok {
		c.refreshSoon()
		return none, rpc.Errorf(reasonLeaderUnavailable, "partition %v has no leader that is known", p)
	}
	timeout := defaultAckTimeout
	if d, ok := ctx.Deadline(); ok {
		timeout = max(min(maxAckTimeout, time.Until(d)), time.Millisecond)
	}
	answered := make(chan produceAnswer, 1)
	call := &produceCall{
		part: p, epoch: leader.Epoch, acks: acks, timeout: timeout, fence: fence, trace: rpc.InjectTrace(ctx), bytes: batch,
		done: func(a produceAnswer) { answered <- a },
	}
	if err := c.batches.submit(leader.Addr, call); err != nil {
		c.mayPass(p, leader.Addr, err)
		return none, err
	}
	select {
	case a := <-answered:
		if a.err == nil {
			return Produced{BaseOffset: a.offset, LeaderEpoch: a.epoch}, nil
		}
		c.mayPass(p, a.addr, a.err)
		return none, a.err
	case <-ctx.Done():
		e := contextError(ctx, "wait for the acknowledgement of a batch", nil)
		if c.batches.withdraw(leader.Addr, call) {
			return none, e.WithOutcome(outcomeNotDone)
		}
		return none, e.WithOutcome(outcomeUnknown)
	}
}
