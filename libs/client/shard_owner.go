package client

import (
	"context"
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

// seatOf is the seat at an address that a hint or the metadata has named.
func (c *Client) seatOf(ctx context.Context, group, addr string, hint *typev1.LeaderHint) seat {
	s := seat{addr: addr, epoch: -1, shard: c.shardOf(ctx, group)}
	if hint.GetAddress() == addr && hint.GetEpoch() > 0 {
		s.epoch = hint.Epoch
	} else if owner, epoch := c.shardOwner(s.shard); owner == addr {
		s.epoch = epoch
	}
	return s
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

// awaitSeat waits before a member is opened again, but no longer than until the
// metadata names a later owner than the one that failed.
func (m *Member) awaitSeat(ctx context.Context, failed seat, wait time.Duration, troubled time.Time) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if failed.shard == (TopicPartition{}) {
		failed.epoch, failed.shard = -1, m.client.shardOf(ctx, m.cfg.Group)
	}
	for {
		changed := m.client.source.Changed()
		if addr, epoch := m.client.shardOwner(failed.shard); addr != "" && epoch > failed.epoch {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if time.Since(troubled) < keenPolling {
				m.client.refreshElsewhere() // somebody will know the next owner first
			}
		}
	}
}
