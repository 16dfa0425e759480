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

// neverLed marks an error about a partition that has had no leader yet.
const neverLed = "never_led"

// NeverLed reports whether an error says of a partition that it has had no leader yet: it
// is being made, which takes a moment, and nothing is missing.
func NeverLed(err error) bool { return err != nil && rpc.FromError(err).Metadata[neverLed] != "" }

// noLeader is the error where no leader is known. In its first leader epoch, 0 where the
// topic's name is new, a partition has none; the first leader's is above.
func (c *Client) noLeader(p TopicPartition) *rpc.Error {
	if known, ok := c.source.Partition(p); ok && known.Leader < 0 && known.LeaderEpoch == 0 {
		return rpc.Errorf(reasonLeaderUnavailable, "partition %v is being made, and has had no leader yet", p).With(neverLed, "true")
	}
	return rpc.Errorf(reasonLeaderUnavailable, "partition %v has no leader that is known", p)
}

// ProduceBatch appends one encoded batch, in one attempt, at the partition's
// leader: no batching and no retry. The fence is for shards. The error's outcome
// says whether the batch may have been stored; when ctx ends before an answer, or
// another broker has become the leader, it is UNKNOWN. The batch must not be changed until ProduceBatch returns; not even then
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
		return none, c.noLeader(p)
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
	return c.awaitBatch(ctx, p, leader, call, answered)
}

// batchDesertedWait is how long the answer of a broker that no longer leads is still
// waited for.
const batchDesertedWait = 250 * time.Millisecond

// awaitBatch waits for the answer to a batch, as long as its leader leads.
func (c *Client) awaitBatch(ctx context.Context, p TopicPartition, leader Leader, call *produceCall, answered chan produceAnswer) (Produced, error) {
	none := Produced{BaseOffset: -1, LeaderEpoch: -1}
	changed := c.source.Changed()
	var deserted <-chan time.Time
	for {
		if l, ok := c.leader(p); ok && deserted == nil && l.Epoch > leader.Epoch && l.Addr != leader.Addr {
			timer := time.NewTimer(batchDesertedWait)
			defer timer.Stop()
			deserted = timer.C
		}
		var gaveUp *rpc.Error
		select {
		case a := <-answered:
			if a.err == nil {
				return Produced{BaseOffset: a.offset, LeaderEpoch: a.epoch}, nil
			}
			c.mayPass(p, a.addr, a.err)
			return none, a.err
		case <-changed:
			changed = c.source.Changed()
			continue
		case <-deserted:
			gaveUp = rpc.Errorf(reasonConnectionLost, "broker %s no longer leads partition %v and has not answered", leader.Addr, p)
		case <-ctx.Done():
			gaveUp = contextError(ctx, "wait for the acknowledgement of a batch", nil)
		}
		if c.batches.withdraw(leader.Addr, call) {
			return none, gaveUp.WithOutcome(outcomeNotDone)
		}
		return none, gaveUp.WithOutcome(outcomeUnknown)
	}
}
