package client

import (
	"context"
	"math/rand/v2"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// seat is where a member is served: an address, and the shard epoch in which it owns
// the group's shard; -1: unknown.
type seat struct {
	addr  string
	epoch int64
	shard TopicPartition // zero: unknown
}

// shardOf finds the shard of a group, asking where that is needed; zero: it is not
// known.
func (c *Client) shardOf(ctx context.Context, group string) TopicPartition {
	t, err := c.source.Topic(ctx, OffsetsTopic)
	if err != nil || len(t.Partitions) == 0 {
		return TopicPartition{} // told by whoever looks for the coordinator
	}
	return TopicPartition{TopicID: t.ID, Partition: GroupShard(group, int32(len(t.Partitions)))}
}

// shardOwner is who owns a shard and in which shard epoch, as known now; an empty
// address: nobody is known to.
func (c *Client) shardOwner(shard TopicPartition) (addr string, epoch int64) {
	p, ok := c.source.Partition(shard)
	if !ok {
		return "", -1
	}
	n, _ := nodeByID(c.source.Coordinators(), p.ShardOwner)
	return n.Addr, p.ShardEpoch
}

// coordinator finds who serves a group: the one in the hint, else the owner of the
// group's shard, else, while the shards do not exist, anyone, who will have them
// made.
func (c *Client) coordinator(ctx context.Context, group string, hint *typev1.LeaderHint) (seat, *rpc.Error) {
	if hint.GetAddress() != "" {
		at := seat{addr: hint.Address, epoch: -1, shard: c.shardOf(ctx, group)}
		if owner, epoch := c.shardOwner(at.shard); owner == at.addr {
			at.epoch = epoch
		}
		at.epoch = max(at.epoch, hint.Epoch)
		return at, nil
	}
	t, err := c.source.Topic(ctx, OffsetsTopic)
	if err != nil && !rpc.IsReason(err, reasonUnknownTopic) {
		return seat{}, rpc.FromError(err)
	}
	nodes := c.source.Coordinators()
	if len(nodes) == 0 {
		c.refreshSoon()
		return seat{}, rpc.Errorf(reasonCoordUnavailable, "no coordinator is registered: start one, or wait for it")
	}
	if err != nil || len(t.Partitions) == 0 {
		return seat{addr: nodes[rand.IntN(len(nodes))].Addr, epoch: -1}, nil
	}
	n := GroupShard(group, int32(len(t.Partitions)))
	at := seat{shard: TopicPartition{TopicID: t.ID, Partition: n}, epoch: t.Partitions[n].ShardEpoch}
	if owner, ok := nodeByID(nodes, t.Partitions[n].ShardOwner); ok {
		at.addr = owner.Addr
		return at, nil
	}
	c.refreshSoon()
	return seat{}, rpc.Errorf(reasonCoordUnavailable, "shard %d of %s, where group %q lives, has no owner at the moment", n, OffsetsTopic, group).
		With("group", group)
}

// seated gives a context for a question at a seat, which ends once the metadata names
// a later owner: one that was paused, or cut off from its clients alone, cannot say so
// itself. While there is no answer fresh metadata is asked for. end must be called
// after the question; it tells if that was given up, with an outcome that is unknown.
func (c *Client) seated(ctx context.Context, group string, at seat) (_ context.Context, end func() *rpc.Error) {
	ctx, cancel := context.WithCancel(ctx)
	var gone *rpc.Error
	done := make(chan struct{})
	go func() {
		defer close(done)
		doubt := time.NewTicker(silenceDoubt)
		defer doubt.Stop()
		for {
			changed := c.source.Changed()
			if c.moved(at) {
				gone = shardMoved(group, at).WithOutcome(outcomeUnknown)
				cancel()
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-doubt.C:
				c.refreshSoon()
			case <-changed:
			}
		}
	}()
	return ctx, func() *rpc.Error {
		cancel()
		<-done
		return gone
	}
}

// moved reports whether the metadata names another owner than the one of a seat, and
// a later one. A hint may be ahead of the metadata, so that a difference alone says
// nothing.
func (c *Client) moved(s seat) bool {
	addr, epoch := c.shardOwner(s.shard)
	return addr != "" && addr != s.addr && epoch > s.epoch
}

// shardMoved is why a member leaves a coordinator whose shard has gone elsewhere.
func shardMoved(group string, from seat) *rpc.Error {
	return rpc.Errorf(reasonNotCoordinator, "coordinator %s does not own the shard of group %q any more: the metadata names another", from.addr, group)
}

// awaitSeat waits before a member is opened again.
func (m *Member) awaitSeat(ctx context.Context, failed seat, wait time.Duration, troubled time.Time) {
	m.client.awaitSeat(ctx, m.cfg.Group, failed, wait, troubled)
}

// awaitSeat waits before a member is opened again or a question asked again, but no
// longer than until the metadata names a later owner than the one that failed.
func (c *Client) awaitSeat(ctx context.Context, group string, failed seat, wait time.Duration, troubled time.Time) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if failed.shard == (TopicPartition{}) {
		failed.epoch, failed.shard = -1, c.shardOf(ctx, group)
	}
	for {
		changed := c.source.Changed()
		if addr, epoch := c.shardOwner(failed.shard); addr != "" && epoch > failed.epoch {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if time.Since(troubled) < keenPolling {
				c.refreshElsewhere() // somebody will know the next owner first
			}
		}
	}
}
