package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// Consumer reads records, in a group or from partitions by hand. It is for one
// goroutine at a time; the session is kept alive between Polls by itself.
type Consumer struct {
	client  *Client
	cfg     ConsumerConfig
	fetcher *Fetcher
	member  *Member // nil before the first Poll, and by hand
	parts   map[TopicPartition]*consumerPart
	order   []TopicPartition // of parts, by when they came

	event  *FetchEvent // being handed out
	next   int         // index of its next record
	handed []*FetchEvent
	errs   []error // to be returned by Poll, one each
	dead   error   // the membership has ended for good

	starts     chan []startFound
	commits    chan *consumerCommit
	results    chan *consumerCommit // of asynchronous commits
	committing int                  // asynchronous commits without a result
	auto       bool                 // one of them is an auto-commit
	nextAuto   time.Time

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// consumerPart is a partition being read.
type consumerPart struct {
	assigned AssignedPartition
	position Position // after the last record that Poll returned; NextOffset -1: not known yet
	released Position // worked on: returned by an earlier Poll
	saved    int64    // next offset that is committed; -1: none of ours
	paused   bool
	finding  bool // its start is being looked up
}

// startFound is a start that was looked up.
type startFound struct {
	part   *consumerPart
	offset int64
	err    error
}

// consumerCommit is a commit on its way through the consumer's committing
// goroutine, which keeps their order.
type consumerCommit struct {
	ctx       context.Context
	member    *Member
	positions []Position
	epochs    map[TopicPartition]int64
	parts     map[TopicPartition]*consumerPart
	done      func(error) // of an asynchronous one; nil: none
	auto      bool
	async     bool
	err       error
	ended     chan struct{}
}

// maxAsyncCommits bounds the asynchronous commits without a result.
const maxAsyncCommits = 64

// defaultPoll is the number of records of a Poll that names none.
const defaultPoll = 500

// NewConsumer returns a consumer, which must be closed. It joins its group in the
// first Poll.
func (c *Client) NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, rpc.Errorf(reasonInvalidRequest, "%w", err)
	}
	cfg.AutoCommitInterval = or(cfg.AutoCommitInterval, 5*time.Second)
	if cfg.Group == "" {
		cfg.AutoCommitInterval = -1
	}
	f, err := c.NewFetcher(cfg.Fetch)
	if err != nil {
		return nil, err
	}
	k := &Consumer{
		client: c, cfg: cfg, fetcher: f, parts: make(map[TopicPartition]*consumerPart), starts: make(chan []startFound),
		commits: make(chan *consumerCommit, maxAsyncCommits+1), results: make(chan *consumerCommit, maxAsyncCommits+1),
	}
	k.ctx, k.cancel = context.WithCancel(c.ctx)
	k.wg.Go(k.commitLoop)
	return k, nil
}

// Poll returns up to maxRecords records (0: 500), waiting for the first. The
// records of the Poll before count as worked on from now. Errors of single
// partitions, and of the group's membership, are returned once each; the consumer
// goes on after them, but for an error whose action is STOP. When ctx ends first
// the error is DEADLINE_EXCEEDED or CANCELLED, and nothing is lost.
func (k *Consumer) Poll(ctx context.Context, maxRecords int) ([]ConsumerRecord, error) {
	if maxRecords <= 0 {
		maxRecords = defaultPoll
	}
	k.release()
	if err := k.join(); err != nil {
		return nil, err
	}
	for {
		k.heed(ctx)
		if len(k.errs) > 0 {
			err := k.errs[0]
			k.errs = k.errs[1:]
			return nil, err
		}
		if k.dead != nil {
			return nil, k.dead
		}
		if records := k.take(maxRecords); len(records) > 0 {
			return records, nil
		}
		if len(k.errs) > 0 {
			continue
		}
		if err := k.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// release notes that what was handed out has been worked on.
func (k *Consumer) release() {
	for _, e := range k.handed {
		e.Release()
	}
	k.handed = nil
	for _, p := range k.parts {
		p.released = p.position
	}
}

// wait waits until something may have changed.
func (k *Consumer) wait(ctx context.Context) error {
	var member <-chan struct{}
	if k.member != nil {
		member = k.member.Ready()
	}
	pause := time.Second
	if k.cfg.AutoCommitInterval > 0 && !k.nextAuto.IsZero() {
		pause = min(pause, max(time.Until(k.nextAuto), time.Millisecond))
	}
	timer := time.NewTimer(pause)
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
		var why error
		for _, err := range k.fetcher.Waiting() {
			why = err
		}
		return contextError(ctx, "wait for records", why).WithOutcome(outcomeNotDone)
	}
	return nil
}

// take hands out what is there, at most n records. A session that may have lapsed
// hands out nothing.
func (k *Consumer) take(n int) []ConsumerRecord {
	var out []ConsumerRecord
	if k.member != nil {
		if until := k.member.DeliverUntil(); until.IsZero() || time.Now().After(until) {
			return nil
		}
	}
	for len(out) < n {
		if k.event == nil {
			if k.event = k.fetcher.TryNext(); k.event == nil {
				break
			}
			k.next = 0
		}
		e := k.event
		p := k.parts[e.TopicPartition]
		if p == nil {
			k.drop()
			continue
		}
		switch e.Kind {
		case FetchError:
			k.drop()
			k.failed(p, e)
			if len(k.errs) > 0 {
				return out
			}
			continue
		case FetchProgress:
			if e.NextOffset > p.position.NextOffset {
				p.position.NextOffset, p.position.LeaderEpoch = e.NextOffset, e.LeaderEpoch
			}
			k.drop()
			continue
		}
		for ; k.next < len(e.Records) && len(out) < n; k.next++ {
			r := &e.Records[k.next]
			out = append(out, ConsumerRecord{
				Topic: e.Topic, TopicPartition: e.TopicPartition, Offset: r.Offset, LeaderEpoch: e.LeaderEpoch,
				Timestamp: time.UnixMilli(r.Timestamp), Key: r.Key, Value: r.Value, Headers: r.Headers, Trace: e.Trace,
			})
			p.position.NextOffset, p.position.LeaderEpoch = r.Offset+1, e.LeaderEpoch
		}
		if k.next == len(e.Records) {
			p.position.NextOffset = max(p.position.NextOffset, e.NextOffset)
			k.handed = append(k.handed, e)
			k.event = nil
		}
	}
	return out
}

// drop gives up the event that is being handed out.
func (k *Consumer) drop() {
	if k.event != nil {
		k.event.Release()
		k.event = nil
	}
}

// failed deals with a partition that stands still: a genuine out of range is reset
// as the policy says, everything else is the application's.
func (k *Consumer) failed(p *consumerPart, e *FetchEvent) {
	if rpc.IsReason(e.Err, reasonOffsetOutOfRange) && k.cfg.Reset != ResetNone {
		k.find([]*consumerPart{p})
		return
	}
	k.errs = append(k.errs, e.Err)
}

// Close commits, if auto-commit is on, leaves the group and ends the streams. The
// context bounds the first two.
func (k *Consumer) Close(ctx context.Context) error {
	if k.ctx.Err() != nil {
		return nil
	}
	var errs []error
	k.drop()
	k.release()
	if k.dead == nil {
		errs = append(errs, k.giveUp(ctx, slices.Clone(k.order)))
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
		c := <-k.commits
		c.err = closedError("consumer")
		k.concluded(c)
	}
	errs = append(errs, k.fetcher.Close())
	return errors.Join(errs...)
}
