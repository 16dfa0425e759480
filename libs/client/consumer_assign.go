package client

import (
	"context"
	"slices"

	"github.com/leat-io/leat/libs/rpc"
)

// Assigned lists the partitions being read and their positions: the offsets after
// the last records that Poll returned; -1 where the start is still being looked up.
func (k *Consumer) Assigned() []Position {
	all := make([]Position, 0, len(k.parts))
	for _, tp := range k.order {
		all = append(all, k.parts[tp].position)
	}
	return all
}

// Position is the offset of the next record that Poll will return for the
// partition; false if it is not being read, or its start is still being looked up.
func (k *Consumer) Position(tp TopicPartition) (int64, bool) {
	p := k.parts[tp]
	if p == nil || p.position.NextOffset < 0 {
		return 0, false
	}
	return p.position.NextOffset, true
}

// Seek moves a partition; the next Poll returns nothing from before.
func (k *Consumer) Seek(tp TopicPartition, offset int64) error {
	p := k.parts[tp]
	if p == nil {
		return k.notRead(tp)
	}
	if offset < 0 {
		return rpc.Errorf(reasonInvalidRequest, "offset %d is below 0: give one that a record may have", offset)
	}
	p.position = Position{TopicPartition: tp, NextOffset: offset, LeaderEpoch: -1}
	p.released, p.finding = p.position, false
	k.read(p)
	return nil
}

func (k *Consumer) notRead(tp TopicPartition) *rpc.Error {
	return rpc.Errorf(reasonInvalidRequest, "partition %v is not one of this consumer's: see Assigned", tp)
}

// read has a partition read from its position.
func (k *Consumer) read(p *consumerPart) {
	if k.event != nil && k.event.TopicPartition == p.position.TopicPartition {
		k.drop()
	}
	k.fetcher.Add(FetchStart{
		TopicPartition: p.position.TopicPartition, Topic: p.assigned.Topic, Offset: p.position.NextOffset,
		LastEpoch: p.position.LeaderEpoch, Paused: p.paused,
	})
}

// Pause stops handing out partitions; Resume goes on.
func (k *Consumer) Pause(partitions ...TopicPartition) {
	for _, tp := range partitions {
		if p := k.parts[tp]; p != nil && !p.paused {
			p.paused = true
			if p.position.NextOffset >= 0 {
				k.read(p)
			}
		}
	}
}

// Resume goes on with paused partitions.
func (k *Consumer) Resume(partitions ...TopicPartition) {
	for _, tp := range partitions {
		if p := k.parts[tp]; p != nil && p.paused {
			p.paused = false
			k.fetcher.Resume(tp)
		}
	}
}

// Assign reads partitions by hand instead of those read before. A position with
// NextOffset -1 starts where the group has committed, if there is a group and it
// has, and else as the reset policy says.
func (k *Consumer) Assign(ctx context.Context, positions ...Position) error {
	if k.cfg.subscribes() {
		return rpc.Errorf(reasonInvalidRequest, "the consumer is subscribed to topics: partitions by hand need a consumer of their own")
	}
	fresh := make([]*consumerPart, 0, len(positions))
	var unplaced []TopicPartition
	for _, pos := range positions {
		t, err := k.client.source.TopicByID(ctx, pos.TopicID)
		if err != nil {
			return err
		}
		if pos.Partition < 0 || int(pos.Partition) >= len(t.Partitions) {
			return unknownPartition(t, pos.Partition)
		}
		if r := k.cfg.Fetch.Replica; r != nil && !slices.Contains(t.Partitions[pos.Partition].Replicas, *r) {
			return noReplica(t, pos.Partition, *r)
		}
		fresh = append(fresh, &consumerPart{
			assigned: AssignedPartition{OwnedPartition: OwnedPartition{TopicPartition: pos.TopicPartition}, Topic: t.Name},
			position: pos, released: pos, saved: -1,
		})
		if pos.NextOffset < 0 {
			unplaced = append(unplaced, pos.TopicPartition)
		}
	}
	committed := make(map[TopicPartition]CommittedOffset)
	if k.cfg.Group != "" && len(unplaced) > 0 {
		offsets, err := k.client.FetchOffsets(ctx, k.cfg.Group, unplaced)
		if err != nil {
			return err
		}
		for _, o := range offsets {
			committed[o.TopicPartition] = o
		}
	}
	for _, tp := range k.order {
		k.forget(tp)
	}
	k.order = nil
	var find []*consumerPart
	for _, p := range fresh {
		tp := p.position.TopicPartition
		if o, ok := committed[tp]; ok && o.NextOffset >= 0 {
			p.position = Position{TopicPartition: tp, NextOffset: o.NextOffset, LeaderEpoch: o.LeaderEpoch}
			p.released, p.saved = p.position, o.NextOffset
		}
		k.parts[tp] = p
		k.order = append(k.order, tp)
		if p.position.NextOffset < 0 {
			find = append(find, p)
		} else {
			k.read(p)
		}
	}
	k.find(find)
	return nil
}

func noReplica(t *Topic, partition, broker int32) *rpc.Error {
	return rpc.Errorf(reasonInvalidRequest, "broker %d has no replica of partition %d of topic %q: choose one of %v", broker, partition, t.Name, t.Partitions[partition].Replicas).
		With("topic", t.Name, "partition", itoa(partition))
}

// forget stops reading a partition.
func (k *Consumer) forget(tp TopicPartition) {
	if k.event != nil && k.event.TopicPartition == tp {
		k.drop()
	}
	k.fetcher.Remove(tp)
	delete(k.parts, tp)
}

// find looks up starts as the reset policy says, in the background.
func (k *Consumer) find(parts []*consumerPart) {
	if len(parts) == 0 {
		return
	}
	spec := k.cfg.Reset.spec()
	if spec == nil {
		for _, p := range parts {
			tp := p.assigned.TopicPartition
			k.errs = append(k.errs, rpc.Errorf(reasonOffsetOutOfRange, "partition %d of topic %q has no committed offset, and the reset policy is none: seek to choose a start", tp.Partition, p.assigned.Topic).
				With("topic", p.assigned.Topic, "partition", itoa(tp.Partition)))
		}
		return
	}
	queries := make([]OffsetQuery, len(parts))
	for i, p := range parts {
		p.finding = true
		queries[i] = OffsetQuery{TopicPartition: p.assigned.TopicPartition, Spec: spec}
	}
	k.wg.Go(func() {
		found := make([]startFound, len(parts))
		for i, r := range k.client.listOffsets(k.ctx, k.cfg.Fetch.Replica, queries, k.cfg.Fetch.Isolation) {
			found[i] = startFound{part: parts[i], offset: r.Offset, err: r.Err}
		}
		select {
		case k.starts <- found:
		case <-k.ctx.Done():
		}
	})
}

// started takes in starts that were looked up; what failed for now is looked up
// again.
func (k *Consumer) started(found []startFound) {
	var again []*consumerPart
	for _, s := range found {
		p := s.part
		if !p.finding || k.parts[p.assigned.TopicPartition] != p {
			continue
		}
		p.finding = false
		switch {
		case s.err != nil && (rpc.Retryable(s.err) || rpc.IsReason(s.err, reasonDeadlineExceeded)):
			again = append(again, p)
		case s.err != nil:
			k.errs = append(k.errs, s.err)
		default:
			p.position = Position{TopicPartition: p.assigned.TopicPartition, NextOffset: s.offset, LeaderEpoch: -1}
			p.released = p.position
			k.read(p)
		}
	}
	k.find(again)
}
