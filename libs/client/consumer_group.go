package client

import (
	"context"
	"errors"
	"slices"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// revokeCommitTimeout bounds the commit of what is revoked.
const revokeCommitTimeout = 10 * time.Second

// join begins the membership, if there is to be one.
func (k *Consumer) join() error {
	if !k.cfg.subscribes() || k.member != nil || k.dead != nil {
		return nil
	}
	m, err := k.client.JoinGroup(k.cfg.member())
	if err != nil {
		return err
	}
	k.member = m
	return nil
}

// heed works on what has come in besides records, and commits when it is time.
func (k *Consumer) heed(ctx context.Context) {
	for more := true; more; {
		select {
		case found := <-k.starts:
			k.started(found)
		case r := <-k.results:
			k.concluded(r)
		default:
			more = false
		}
	}
	for k.member != nil {
		e, ok := k.member.TryNext()
		if !ok {
			break
		}
		switch {
		case e.Assignment != nil:
			k.assigned(ctx, e.Assignment)
		case e.Fenced != nil:
			k.fenced(e.Fenced)
		}
	}
	k.autoCommit()
}

// assigned brings the partitions in line with an assignment: what is revoked is
// given up first, and only then acknowledged.
func (k *Consumer) assigned(ctx context.Context, a *Assignment) {
	want := make(map[TopicPartition]AssignedPartition, len(a.Partitions))
	for _, p := range a.Partitions {
		want[p.TopicPartition] = p
	}
	var revoked []TopicPartition
	var begun []OwnedPartition
	for _, tp := range k.order {
		held := k.parts[tp].assigned
		if w, ok := want[tp]; !ok || w.AssignmentEpoch != held.AssignmentEpoch {
			revoked = append(revoked, tp)
			begun = append(begun, held.OwnedPartition)
		}
	}
	if len(revoked) > 0 {
		k.member.Revoking(begun...)
		ctx, cancel := context.WithTimeout(ctx, revokeCommitTimeout)
		if err := k.giveUp(ctx, revoked); err != nil {
			k.errs = append(k.errs, err)
		}
		cancel()
	}
	var fresh []AssignedPartition
	owned := make([]OwnedPartition, 0, len(a.Partitions))
	for _, p := range a.Partitions {
		owned = append(owned, p.OwnedPartition)
		if k.parts[p.TopicPartition] == nil {
			fresh = append(fresh, p)
		}
	}
	k.member.Ack(a.MemberEpoch, owned)
	var find []*consumerPart
	for _, p := range fresh {
		pos := Position{TopicPartition: p.TopicPartition, NextOffset: p.StartOffset, LeaderEpoch: p.StartLeaderEpoch}
		part := &consumerPart{assigned: p, position: pos, released: pos, saved: p.StartOffset}
		k.parts[p.TopicPartition] = part
		k.order = append(k.order, p.TopicPartition)
		if p.StartOffset < 0 {
			find = append(find, part)
		} else {
			k.read(part)
		}
	}
	if len(fresh) > 0 && k.cfg.OnAssigned != nil {
		k.cfg.OnAssigned(fresh)
	}
	k.find(find)
}

// giveUp stops reading partitions, tells the application and commits what it has
// worked on.
func (k *Consumer) giveUp(ctx context.Context, revoked []TopicPartition) error {
	var gone []AssignedPartition
	for _, tp := range revoked {
		gone = append(gone, k.parts[tp].assigned)
		k.fetcher.Remove(tp)
		if k.event != nil && k.event.TopicPartition == tp {
			k.drop()
		}
	}
	if len(gone) > 0 && k.cfg.OnRevoked != nil {
		k.cfg.OnRevoked(gone)
	}
	var err error
	if k.cfg.AutoCommitInterval > 0 {
		var positions []Position
		for _, tp := range revoked {
			if p := k.parts[tp]; p.released.NextOffset >= 0 && p.released.NextOffset != p.saved {
				positions = append(positions, p.released)
			}
		}
		if len(positions) > 0 {
			err = k.Commit(ctx, positions...)
		}
	}
	for _, tp := range revoked {
		delete(k.parts, tp)
	}
	k.order = slices.DeleteFunc(k.order, func(tp TopicPartition) bool { return k.parts[tp] == nil })
	return err
}

// fenced drops everything: another member has it by now. The next Poll joins anew,
// unless another process has taken this one's place.
func (k *Consumer) fenced(err error) {
	var gone []AssignedPartition
	for _, tp := range k.order {
		gone = append(gone, k.parts[tp].assigned)
		k.forget(tp)
	}
	k.order = nil
	k.member.Detach()
	k.member = nil
	if len(gone) > 0 && k.cfg.OnRevoked != nil {
		k.cfg.OnRevoked(gone)
	}
	if rpc.FromError(err).Action == typev1.Action_ACTION_REJOIN {
		k.errs = append(k.errs, err)
	} else {
		k.dead = err
	}
}

// autoCommit commits what was worked on, if it is time and nothing is under way.
func (k *Consumer) autoCommit() {
	if k.cfg.AutoCommitInterval <= 0 || k.auto {
		return
	}
	now := time.Now()
	if k.nextAuto.IsZero() {
		k.nextAuto = now.Add(k.cfg.AutoCommitInterval)
	}
	if now.Before(k.nextAuto) {
		return
	}
	k.nextAuto = now.Add(k.cfg.AutoCommitInterval)
	var positions []Position
	for _, tp := range k.order {
		if p := k.parts[tp]; p.released.NextOffset >= 0 && p.released.NextOffset != p.saved {
			positions = append(positions, p.released)
		}
	}
	if len(positions) == 0 {
		return
	}
	k.auto = true
	k.submit(&consumerCommit{ctx: k.ctx, positions: positions, auto: true, async: true, done: func(err error) {
		if err != nil && !rpc.IsReason(err, reasonCancelled) {
			k.errs = append(k.errs, err)
		}
	}})
}

// Commit commits positions; without any, those after everything that Poll has
// returned. It waits for commits that were begun before.
func (k *Consumer) Commit(ctx context.Context, positions ...Position) error {
	c := &consumerCommit{ctx: ctx, positions: k.orAll(positions), ended: make(chan struct{})}
	if len(c.positions) == 0 {
		return nil
	}
	if err := k.submit(c); err != nil {
		return err
	}
	for {
		select {
		case <-c.ended:
			k.conclude()
			k.note(c)
			return c.err
		case r := <-k.results:
			k.concluded(r)
		case <-k.ctx.Done():
			return closedError("consumer")
		}
	}
}

// CommitAsync is Commit that does not wait: done, if not nil, is called from a
// later Poll, Commit or Close. At most 64 may be without a result.
func (k *Consumer) CommitAsync(done func(error), positions ...Position) {
	c := &consumerCommit{ctx: k.ctx, positions: k.orAll(positions), done: done, async: true}
	if err := k.submit(c); err != nil && done != nil {
		done(err)
	}
}

func (k *Consumer) orAll(positions []Position) []Position {
	if len(positions) > 0 {
		return positions
	}
	for _, tp := range k.order {
		if p := k.parts[tp]; p.position.NextOffset >= 0 {
			positions = append(positions, p.position)
		}
	}
	return positions
}

// submit hands a commit to the committing goroutine.
func (k *Consumer) submit(c *consumerCommit) error {
	switch {
	case k.cfg.Group == "":
		return rpc.Errorf(reasonInvalidRequest, "the consumer has no group to commit for: name one in its configuration")
	case k.ctx.Err() != nil:
		return closedError("consumer")
	case c.async && k.committing >= maxAsyncCommits:
		return rpc.Errorf(reasonLimitExceeded, "%d commits have no result yet: wait for some, or commit less often", k.committing).With("limit", "async.commits")
	}
	c.member = k.member
	c.epochs, c.parts = make(map[TopicPartition]int64), make(map[TopicPartition]*consumerPart)
	for _, pos := range c.positions {
		p := k.parts[pos.TopicPartition]
		if p == nil {
			return k.notRead(pos.TopicPartition)
		}
		c.epochs[pos.TopicPartition], c.parts[pos.TopicPartition] = p.assigned.AssignmentEpoch, p
	}
	if c.async {
		k.committing++
	}
	k.commits <- c // there is room: one that waits, and the asynchronous ones
	return nil
}

// commitLoop makes commits one after the other.
func (k *Consumer) commitLoop() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case c := <-k.commits:
			c.err = k.commit(c)
			if c.async {
				k.results <- c // there is room for all of them
			} else {
				close(c.ended)
			}
		}
	}
}

func (k *Consumer) commit(c *consumerCommit) error {
	offsets := make([]CommitOffset, 0, len(c.positions))
	for _, p := range c.positions {
		offsets = append(offsets, CommitOffset{
			TopicPartition: p.TopicPartition, NextOffset: p.NextOffset, LeaderEpoch: p.LeaderEpoch,
			AssignmentEpoch: c.epochs[p.TopicPartition],
		})
	}
	var r CommitResult
	var err error
	if c.member != nil {
		ctx, cancel := k.client.bounded(c.ctx)
		defer cancel()
		r, err = c.member.Commit(ctx, offsets)
	} else {
		r, err = k.client.CommitOffsets(c.ctx, k.cfg.Group, offsets)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range c.positions {
		if refused := r.Refused[p.TopicPartition]; refused != nil {
			errs = append(errs, rpc.FromError(refused).With("partition", itoa(p.Partition)))
			delete(c.parts, p.TopicPartition)
		}
	}
	return errors.Join(errs...)
}

// conclude tells of the asynchronous commits that have ended.
func (k *Consumer) conclude() {
	for {
		select {
		case r := <-k.results:
			k.concluded(r)
		default:
			return
		}
	}
}

func (k *Consumer) concluded(c *consumerCommit) {
	k.committing--
	if c.auto {
		k.auto = false
	}
	k.note(c)
	if c.done != nil {
		c.done(c.err)
	}
}

// note remembers what is committed now.
func (k *Consumer) note(c *consumerCommit) {
	if c.err != nil && len(c.parts) == len(c.positions) {
		return // nothing took effect
	}
	for _, pos := range c.positions {
		if p := c.parts[pos.TopicPartition]; p != nil {
			p.saved = pos.NextOffset
		}
	}
}
