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
	k.fetcher.Add(FetchStart{TopicPartition: p.position.TopicPartition, Topic: p.assigned.Topic, Offset: p.position.NextOffset,
		LastEpoch: p.position.LeaderEpoch, Paused: p.paused})
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
		fresh = append(fresh, &consumerPart{assigned: AssignedPartition{OwnedPartition: OwnedPartition{TopicPartition: pos.TopicPartition}, Topic: t.Name},
			position: pos, released: pos, saved: -1})
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
		for i, r := range k.client.ListOffsets(k.ctx, queries, k.cfg.Fetch.Isolation) {
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
