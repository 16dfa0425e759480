package client

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Consumer reads records, in a group or from partitions by hand. It is for one
// goroutine at a time; the session is kept alive between Polls by itself, however
// long the application takes.
type Consumer struct {
	client  *Client
	cfg     ConsumerConfig
	fetcher *Fetcher
	member  *Member // nil before the first Poll, and by hand
	parts   map[TopicPartition]*consumerPart
	order   []TopicPartition // of parts, by when they came
	wanted  *Assignment      // to be brought about; nil: it has been

	event   *FetchEvent // being handed out
	next    int         // index of its next record
	handed  []*FetchEvent
	touched []*consumerPart   // with records handed out that are not released
	ahead   *aheadCommit      // at most once: taken, and not handed out yet
	single  [1]ConsumerRecord // what Records hands out next
	errs    []error           // to be returned by Poll, one each
	waiting error             // why there is no membership at the moment, for people
	dead    error             // the membership has ended for good

	starts     chan []startFound
	commits    chan *consumerCommit
	results    chan *consumerCommit // of commits that nobody waits for
	committing int                  // commits of the application without a result
	untold     atomic.Bool          // an auto-commit has a result that is not taken in

	progress consumerProgress

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// consumerPart is a partition being read.
type consumerPart struct {
	assigned AssignedPartition
	position Position // after the last record that was handed out; NextOffset -1: not known yet
	paused   bool
	finding  bool // its start is being looked up
	touched  bool // is in Consumer.touched
	revoking bool // is being given up; it is not read any more
	givingUp bool // what was worked on is being committed before it is let go
	mark     *progressMark
}

// defaultPoll is the number of records of a Poll that names none.
const defaultPoll = 500

// NewConsumer returns a consumer, which must be closed. It joins its group in the
// first Poll.
func (c *Client) NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, rpc.Errorf(reasonInvalidRequest, "%w", err)
	}
	cfg = cfg.withDefaults()
	f, err := c.NewFetcher(cfg.Fetch)
	if err != nil {
		return nil, err
	}
	k := &Consumer{
		client: c, cfg: cfg, fetcher: f, parts: make(map[TopicPartition]*consumerPart), starts: make(chan []startFound),
		commits: make(chan *consumerCommit, maxCommits), results: make(chan *consumerCommit, maxCommits),
	}
	k.progress.born = time.Now()
	k.ctx, k.cancel = context.WithCancel(c.ctx)
	k.wg.Go(k.commitLoop)
	return k, nil
}

// Poll returns up to maxRecords records (0: 500), waiting for the first. What was
// handed out before counts as worked on from now: it is released. Errors of single
// partitions, and of the group's membership, are returned once each; the consumer
// goes on after them, but for an error whose action is STOP. When ctx ends first
// the error is DEADLINE_EXCEEDED or CANCELLED, and nothing is lost.
//
// Assignments and revocations take effect within Poll, and OnAssigned, OnRevoked
// and OnLost are called from there: a revocation waits for what was handed out.
func (k *Consumer) Poll(ctx context.Context, maxRecords int) ([]ConsumerRecord, error) {
	if maxRecords <= 0 {
		maxRecords = defaultPoll
	}
	return k.poll(ctx, nil, maxRecords)
}

// Records hands out records one by one, forever: a record counts as worked on when
// the loop asks for the one after it. Errors come as from Poll, with an empty
// record. The sequence ends when ctx does, and after an error that is for good; a
// loop that is left early leaves its last record unreleased, to be released by the
// next Poll, Records or Release, and not by Close.
func (k *Consumer) Records(ctx context.Context) iter.Seq2[ConsumerRecord, error] {
	return func(yield func(ConsumerRecord, error) bool) {
		for {
			records, err := k.poll(ctx, k.single[:0], 1)
			switch {
			case err != nil && ctx.Err() != nil && k.ctx.Err() == nil:
				return // nothing that the loop does not know
			case err != nil:
				if !yield(ConsumerRecord{}, err) || k.dead != nil || k.ctx.Err() != nil {
					return
				}
			case !yield(records[0], nil):
				return
			}
		}
	}
}

// poll is Poll into out.
func (k *Consumer) poll(ctx context.Context, out []ConsumerRecord, n int) ([]ConsumerRecord, error) {
	k.Release()
	if err := k.join(); err != nil {
		return nil, err
	}
	for {
		k.heed()
		if len(k.errs) > 0 {
			err := k.errs[0]
			k.errs = k.errs[1:]
			return nil, err
		}
		if k.dead != nil {
			return nil, k.dead
		}
		if out = k.handOver(out, n); len(out) > 0 {
			return out, nil
		}
		if len(k.errs) > 0 || k.settled() {
			continue
		}
		if err := k.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// Release says that everything handed out so far has been worked on, as the next
// Poll does: from now on auto-commit covers it.
func (k *Consumer) Release() {
	for _, p := range k.touched {
		pos := p.position
		if k.cfg.AtMostOnce { // it has been taken further than it has been handed out
			pos.NextOffset = p.mark.delivered.Load()
		}
		p.mark.release(pos)
	}
	k.letGo()
}

// letGo gives back the fetcher's credit of what was taken.
func (k *Consumer) letGo() {
	for _, e := range k.handed {
		e.Release()
	}
	clear(k.handed)
	k.handed = k.handed[:0]
	for _, p := range k.touched {
		p.touched = false
	}
	clear(k.touched)
	k.touched = k.touched[:0]
}

// wait waits until something may have changed.
func (k *Consumer) wait(ctx context.Context) error {
	var member <-chan struct{}
	if k.member != nil {
		member = k.member.Ready()
	}
	timer := time.NewTimer(time.Second) // the session may stand again
	defer timer.Stop()
	select {
	case <-k.fetcher.Ready():
	case <-member:
	case found := <-k.starts:
		k.started(found)
	case r := <-k.results:
		k.concluded(r)
	case <-timer.C:
	case <-k.ctx.Done():
		return closedError("consumer")
	case <-ctx.Done():
		why := k.waiting
		for _, err := range k.fetcher.Waiting() {
			why = err
		}
		return contextError(ctx, "wait for records", why).WithOutcome(outcomeNotDone)
	}
	return nil
}

// Close commits what was released, if auto-commit is on, leaves the group and ends
// the streams; the context bounds the first two. What was handed out by the last
// Poll counts as worked on only if Release or Commit said so: it is handed out
// again, to whoever gets the partition. A static member keeps its place for one
// session timeout.
func (k *Consumer) Close(ctx context.Context) error {
	if k.ctx.Err() != nil {
		return nil
	}
	var errs []error
	k.drop()
	k.ahead = nil
	if k.dead == nil {
		errs = append(errs, k.giveUpAll(ctx))
	}
	if k.member != nil {
		errs = append(errs, k.member.Leave(ctx))
	}
	for k.committing > 0 && ctx.Err() == nil {
		select {
		case r := <-k.results:
			k.concluded(r)
		case <-ctx.Done():
		}
	}
	k.cancel()
	k.wg.Wait()
	k.conclude()
	for len(k.commits) > 0 {
		if c := <-k.commits; c.ended == nil {
			c.err = closedError("consumer")
			k.concluded(c)
		}
	}
	errs = append(errs, k.fetcher.Close())
	return errors.Join(errs...)
}

// giveUpAll stops reading, tells the application and commits what it has worked on.
func (k *Consumer) giveUpAll(ctx context.Context) error {
	var gone []AssignedPartition
	for _, tp := range k.order {
		if !k.parts[tp].revoking {
			gone = append(gone, k.parts[tp].assigned)
		}
		k.fetcher.Remove(tp)
	}
	if len(gone) > 0 && k.cfg.OnRevoked != nil {
		k.cfg.OnRevoked(gone)
	}
	var err error
	if positions := k.unsaved(k.order); len(positions) > 0 && k.cfg.AutoCommitInterval > 0 {
		err = k.Commit(ctx, positions...)
	}
	for _, tp := range k.order {
		k.forget(tp)
	}
	k.order = nil
	return err
}

// failed deals with a partition that stands still: a genuine out of range is reset
// as the policy says, everything else is the application's.
func (k *Consumer) failed(p *consumerPart, e *FetchEvent) {
	if rpc.IsReason(e.Err, reasonOffsetOutOfRange) && k.cfg.Reset != ResetNone {
		k.client.cfg.Logger.Warn("a position lies outside the log; reading goes on as the reset policy says",
			"topic", e.Topic, "partition", e.Partition, "position", p.position.NextOffset, "policy", k.cfg.Reset.String(), "error", e.Err)
		k.find([]*consumerPart{p})
		return
	}
	k.errs = append(k.errs, e.Err)
}

// stops reports whether an error ends a membership for good.
func stops(err error) bool { return rpc.FromError(err).Action != typev1.Action_ACTION_REJOIN }
