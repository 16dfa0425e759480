package client

import (
	"context"
	"slices"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
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
	if first, ok := k.firstAhead(tp); ok {
		return first, true
	}
	return p.position.NextOffset, true
}

// Lag is how many offsets lie between the position of a partition and its visible
// end, as far as that is known: news of it comes with the records, so that the lag of
// a partition that is not read at the moment (it is paused, or the application is
// slow) is at least that. False: it is not being read, or nothing is known yet.
func (k *Consumer) Lag(tp TopicPartition) (int64, bool) {
	position, ok := k.Position(tp)
	end, known := k.fetcher.visibleEnd(tp)
	if !ok || !known {
		return 0, false
	}
	return max(end-position, 0), true
}

// Seek moves a partition; the next Poll returns nothing from before. What was
// handed out counts as worked on, and auto-commit commits the new position, also
// where that is a step back.
func (k *Consumer) Seek(tp TopicPartition, offset int64) error {
	p := k.parts[tp]
	if p == nil || p.revoking {
		return k.notRead(tp)
	}
	if offset < 0 {
		return rpc.Errorf(reasonInvalidRequest, "offset %d is below 0: give one that a record may have", offset)
	}
	k.moveTo(p, offset)
	return nil
}

// SeekTo is Seek to a place or a time, which is looked up in the background:
// Earliest, Latest or AtTimestamp.
func (k *Consumer) SeekTo(tp TopicPartition, spec *typev1.OffsetSpec) error {
	p := k.parts[tp]
	if p == nil || p.revoking {
		return k.notRead(tp)
	}
	k.halt(p)
	p.position = Position{TopicPartition: tp, NextOffset: -1, LeaderEpoch: -1}
	p.mark.moved(p.position)
	k.lookUp(spec, []*consumerPart{p})
	return nil
}

// moveTo goes on from another offset.
func (k *Consumer) moveTo(p *consumerPart, offset int64) {
	k.halt(p)
	p.position = Position{TopicPartition: p.assigned.TopicPartition, NextOffset: offset, LeaderEpoch: -1}
	p.finding = false
	p.mark.moved(p.position)
	k.read(p)
}

// halt drops what was read of a partition and not handed out.
func (k *Consumer) halt(p *consumerPart) {
	tp := p.assigned.TopicPartition
	if k.ahead != nil && k.ahead.parts[tp] == p {
		delete(k.ahead.parts, tp)
	}
	if k.event != nil && k.event.TopicPartition == tp {
		k.drop()
	}
	k.fetcher.Remove(tp)
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

// Pause stops handing out partitions; Resume goes on. An at-most-once consumer still
// hands out what it has committed already.
func (k *Consumer) Pause(partitions ...TopicPartition) {
	for _, tp := range partitions {
		if p := k.parts[tp]; p != nil && !p.paused && !p.revoking {
			p.paused = true
			if p.position.NextOffset >= 0 && !p.finding {
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
	names := make([]string, 0, len(positions))
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
		names = append(names, t.Name)
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
	k.order, k.ahead = nil, nil
	var find []*consumerPart
	for i, pos := range positions {
		if k.parts[pos.TopicPartition] != nil {
			continue // named twice
		}
		saved := int64(-1)
		if o, ok := committed[pos.TopicPartition]; ok && o.NextOffset >= 0 {
			pos.NextOffset, pos.LeaderEpoch, saved = o.NextOffset, o.LeaderEpoch, o.NextOffset
		}
		p := k.newPart(AssignedPartition{OwnedPartition: OwnedPartition{TopicPartition: pos.TopicPartition}, Topic: names[i]}, pos, saved)
		if pos.NextOffset < 0 {
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
	k.progress.remove(tp)
}

// find looks up starts as the reset policy says, in the background.
func (k *Consumer) find(parts []*consumerPart) {
	if len(parts) == 0 {
		return
	}
	spec := k.cfg.resetSpec(time.Now())
	if spec == nil {
		for _, p := range parts {
			k.errs = append(k.errs, startFailed(p))
		}
		return
	}
	k.lookUp(spec, parts)
}

// lookUp finds starts in the background. Where no record is as young as asked for,
// it is the visible end.
func (k *Consumer) lookUp(spec *typev1.OffsetSpec, parts []*consumerPart) {
	queries := make([]OffsetQuery, len(parts))
	for i, p := range parts {
		p.finding = true
		queries[i] = OffsetQuery{TopicPartition: p.assigned.TopicPartition, Spec: spec}
	}
	k.wg.Go(func() {
		replica, isolation := k.cfg.Fetch.Replica, k.cfg.Fetch.Isolation
		found := make([]startFound, len(parts))
		var ends []OffsetResult
		if spec.GetTimestamp() != nil {
			// Before the time is looked for: a record that comes in between is found by it.
			last := make([]OffsetQuery, len(queries))
			for i, q := range queries {
				last[i] = OffsetQuery{TopicPartition: q.TopicPartition, Spec: Latest()}
			}
			ends = k.client.listOffsets(k.ctx, replica, last, isolation)
		}
		for i, r := range k.client.listOffsets(k.ctx, replica, queries, isolation) {
			if r.Err == nil && r.Offset < 0 && ends != nil {
				r = ends[i]
			}
			found[i] = startFound{part: parts[i], spec: spec, offset: r.Offset, err: r.Err}
		}
		select {
		case k.starts <- found:
		case <-k.ctx.Done():
		}
	})
}

// startFound is a start that was looked up.
type startFound struct {
	part   *consumerPart
	spec   *typev1.OffsetSpec
	offset int64
	err    error
}

// started takes in starts that were looked up; what failed for now is looked up
// again.
func (k *Consumer) started(found []startFound) {
	again := make(map[*typev1.OffsetSpec][]*consumerPart)
	for _, s := range found {
		p := s.part
		if !p.finding || p.revoking || k.parts[p.assigned.TopicPartition] != p {
			continue
		}
		p.finding = false
		switch {
		case s.err != nil && (rpc.Retryable(s.err) || rpc.IsReason(s.err, reasonDeadlineExceeded)):
			again[s.spec] = append(again[s.spec], p)
		case s.err != nil:
			k.errs = append(k.errs, s.err)
		default:
			k.moveTo(p, s.offset)
		}
	}
	for spec, parts := range again {
		k.lookUp(spec, parts)
	}
}
