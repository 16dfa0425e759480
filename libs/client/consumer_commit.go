package client

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// maxAsyncCommits bounds the application's asynchronous commits without a result.
const maxAsyncCommits = 64

// maxCommits is the room for commits: those, one that is waited for, and one each of
// an auto-commit, a revocation and an at-most-once consumer.
const maxCommits = maxAsyncCommits + 4

// consumerCommit is a commit on its way through the consumer's committing
// goroutine, which keeps their order.
type consumerCommit struct {
	ctx       context.Context
	patience  time.Duration // bounds it, too; 0: Config.RetryTimeout
	member    *Member
	positions []Position
	epochs    map[TopicPartition]int64
	parts     map[TopicPartition]*consumerPart // without those that were refused
	done      func(error)                      // of one that nobody waits for; nil: none
	async     bool                             // asked for by CommitAsync
	err       error
	ended     chan struct{}
	// state tells one that is waited for and has begun from one that was given up.
	state atomic.Int32
}

// States of a consumerCommit; 0: it has not begun.
const (
	commitBegun = iota + 1
	commitGivenUp
)

// unsaved lists what was worked on and is not committed.
func (k *Consumer) unsaved(of []TopicPartition) []Position {
	var positions []Position
	for _, tp := range of {
		if released, saved := k.parts[tp].mark.place(); released.NextOffset >= 0 && released.NextOffset != saved {
			positions = append(positions, released)
		}
	}
	return positions
}

// commitFailed tells the application of a failed commit of the consumer's own, unless
// the end of the membership, which was told, explains it.
func (k *Consumer) commitFailed(c *consumerCommit, err error) {
	if err != nil && c.member == k.member && k.ctx.Err() == nil {
		k.errs = append(k.errs, err)
	}
}

// Commit commits positions; without any, those after everything that was handed
// out. It waits for commits that were begun before. What it commits may also be
// less than before, after a Seek.
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
		case <-ctx.Done():
			if c.state.CompareAndSwap(0, commitGivenUp) {
				return contextError(ctx, "wait for earlier commits", nil).WithOutcome(outcomeNotDone)
			}
			<-c.ended // its context is the same
			ctx = context.WithoutCancel(ctx)
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

// Committed tells what the group has committed for partitions, whoever did; for all
// that are being read where none are given. NextOffset is -1 where nothing is.
func (k *Consumer) Committed(ctx context.Context, partitions ...TopicPartition) ([]CommittedOffset, error) {
	if k.cfg.Group == "" {
		return nil, noGroup()
	}
	if len(partitions) == 0 {
		if partitions = k.order; len(partitions) == 0 {
			return nil, nil
		}
	}
	return k.client.FetchOffsets(ctx, k.cfg.Group, partitions)
}

func noGroup() *rpc.Error {
	return rpc.Errorf(reasonInvalidRequest, "the consumer has no group to commit for: name one in its configuration")
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
		return noGroup()
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
	select {
	case k.commits <- c:
	default: // commits that were given up are still in line
		return rpc.Errorf(reasonLimitExceeded, "too many commits wait for an earlier one: commit less often").With("limit", "async.commits")
	}
	if c.async {
		k.committing++
	}
	return nil
}

// commitLoop makes commits one after the other, and those of auto-commit by itself:
// the application may take its time.
func (k *Consumer) commitLoop() {
	var tick <-chan time.Time
	if k.cfg.AutoCommitInterval > 0 {
		ticker := time.NewTicker(k.cfg.AutoCommitInterval)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-tick:
			k.autoCommit()
		case c := <-k.commits:
			if !c.state.CompareAndSwap(0, commitBegun) {
				continue
			}
			c.err = k.commit(c)
			if c.ended == nil {
				k.results <- c // there is room for all of them
			} else {
				close(c.ended)
			}
		}
	}
}

// autoCommit commits what was released since the last time. The application is told
// of one result at a time; what failed is tried again, whether it was told or not.
func (k *Consumer) autoCommit() {
	c := k.progress.unsaved()
	if c == nil {
		return
	}
	c.ctx = k.ctx
	if c.err = k.commit(c); c.err != nil {
		k.client.cfg.Logger.Debug("an auto-commit failed; it is made again in time", "group", k.cfg.Group, "error", c.err)
	}
	k.note(c)
	if c.err == nil || k.untold.Swap(true) {
		return
	}
	c.done = func(err error) {
		k.untold.Store(false)
		k.commitFailed(c, err)
	}
	k.results <- c // there is room
}

func (k *Consumer) commit(c *consumerCommit) error {
	offsets := make([]CommitOffset, 0, len(c.positions))
	for _, p := range c.positions {
		offsets = append(offsets, CommitOffset{
			TopicPartition: p.TopicPartition, NextOffset: p.NextOffset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata,
			AssignmentEpoch: c.epochs[p.TopicPartition],
		})
	}
	ctx, cancel := k.client.bounded(c.ctx)
	defer cancel()
	if c.patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.patience)
		defer cancel()
	}
	var r CommitResult
	var err error
	if c.member != nil {
		r, err = c.member.Commit(ctx, offsets)
	} else {
		r, err = k.client.CommitOffsets(ctx, k.cfg.Group, offsets)
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

// conclude tells of the commits that have ended and nobody waits for.
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
	if c.async {
		k.committing--
	}
	k.note(c)
	if c.done != nil {
		c.done(c.err)
	}
}

// took reports whether a commit took effect for a partition, as far as is known.
func (c *consumerCommit) took(tp TopicPartition) bool {
	if c.err != nil && len(c.parts) == len(c.epochs) {
		return false // nothing did
	}
	return c.parts[tp] != nil
}

// note remembers what is committed now.
func (k *Consumer) note(c *consumerCommit) {
	for _, pos := range c.positions {
		if c.took(pos.TopicPartition) {
			c.parts[pos.TopicPartition].mark.save(pos.NextOffset)
		}
	}
}
