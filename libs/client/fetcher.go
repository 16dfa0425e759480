package client

import (
	"context"
	"slices"
	"sync"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Fetcher reads partitions, following their leaders. Its methods are safe for
// concurrent use, but Next and TryNext are for one goroutine at a time. Once Add,
// Remove, Pause or Close has returned, Next returns no event of an earlier asking.
type Fetcher struct {
	client *Client
	cfg    FetcherConfig

	mu      sync.Mutex
	parts   map[TopicPartition]*fetchPart
	streams map[streamKey]*fetchStream
	down    map[string]*downBroker // by address
	held    map[streamKey]int64    // bytes received and not released
	queue   []*fetchChunk          // received, in order
	lastGen int64
	lastID  int64
	closed  bool

	lookedNear time.Time // when metadata was asked for because followers are read

	ready chan struct{} // has a value when the queue may have something
	wake  chan struct{} // has a value when partitions need looking at

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// fetchPart is a partition being read. The fetcher's lock guards it.
type fetchPart struct {
	start FetchStart
	gen   int64 // of the caller's asking; chunks of an earlier one are dropped
	id    int64 // of the asking at a broker; 0: none stands
	at    *fetchStream
	epoch int32 // leader epoch under which it was asked for
	near  bool  // it was asked for at a replica in the reader's rack

	nearTries int       // in a row that found that replica behind
	nearAfter time.Time // until then the leader is read

	received, delivered           int64 // next offsets
	receivedEpoch, deliveredEpoch int32 // of the record before
	seenEpoch                     int32
	seenEnd                       int64
	last                          *fetchChunk // of the queue, if it is the partition's newest

	paused, failed bool
	checking       bool // whether the topic is still there
	failures       int
	troubled       time.Time // when the failures in a row began
	notBefore      time.Time
	waiting        *rpc.Error
}

// downBroker is a broker that could not be reached.
type downBroker struct {
	until   time.Time
	backoff rpc.Backoff
}

// NewFetcher returns a fetcher without partitions, which must be closed.
func (c *Client) NewFetcher(cfg FetcherConfig) (*Fetcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f := &Fetcher{
		client: c, cfg: cfg.withDefaults(), parts: make(map[TopicPartition]*fetchPart), streams: make(map[streamKey]*fetchStream),
		down: make(map[string]*downBroker), held: make(map[streamKey]int64), ready: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	f.ctx, f.cancel = context.WithCancel(c.ctx)
	f.wg.Go(f.run)
	return f, nil
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Add starts reading partitions; one that is there already is moved, and is no
// longer paused unless Paused says so.
func (f *Fetcher) Add(starts ...FetchStart) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	for _, s := range starts {
		p := f.parts[s.TopicPartition]
		if p == nil {
			p = &fetchPart{epoch: -1, seenEpoch: -1, seenEnd: -1}
			f.parts[s.TopicPartition] = p
		}
		f.interrupt(p)
		p.start, p.paused, p.failed, p.failures, p.notBefore, p.waiting = s, s.Paused, false, 0, time.Time{}, nil
		p.received, p.delivered = s.Offset, s.Offset
		p.receivedEpoch, p.deliveredEpoch = s.LastEpoch, s.LastEpoch
	}
	poke(f.wake)
}

// Remove stops reading partitions; unknown ones are ignored.
func (f *Fetcher) Remove(partitions ...TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, tp := range partitions {
		if p := f.parts[tp]; p != nil {
			f.interrupt(p)
			delete(f.parts, tp)
		}
	}
	poke(f.wake)
}

// Pause stops reading partitions and keeps their positions: those after the last
// event that Next returned.
func (f *Fetcher) Pause(partitions ...TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, tp := range partitions {
		if p := f.parts[tp]; p != nil && !p.paused {
			f.interrupt(p)
			p.paused, p.waiting = true, nil
			p.received, p.receivedEpoch = p.delivered, p.deliveredEpoch
		}
	}
	poke(f.wake)
}

// Resume goes on with paused partitions.
func (f *Fetcher) Resume(partitions ...TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, tp := range partitions {
		if p := f.parts[tp]; p != nil {
			p.paused = false
		}
	}
	poke(f.wake)
}

// interrupt ends the asking of a partition and drops what was received for it. The
// lock is held.
func (f *Fetcher) interrupt(p *fetchPart) {
	f.detach(p)
	f.lastGen++
	p.gen, p.last = f.lastGen, nil
	f.queue = slices.DeleteFunc(f.queue, func(c *fetchChunk) bool {
		if c.part != p {
			return false
		}
		c.unref(f)
		return true
	})
}

// detach ends a partition's asking at the broker, if one stands. The lock is held.
func (f *Fetcher) detach(p *fetchPart) {
	if p.at == nil {
		return
	}
	p.at.drop(p.id)
	p.at, p.id = nil, 0
}

// Position is the offset after the last event that Next returned for the
// partition, or its start; false if the partition is not there.
func (f *Fetcher) Position(tp TopicPartition) (int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.parts[tp]
	if p == nil {
		return 0, false
	}
	return p.delivered, true
}

// Waiting tells which partitions cannot be read at the moment and why, as errors
// that are being retried.
func (f *Fetcher) Waiting() map[TopicPartition]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[TopicPartition]error)
	for tp, p := range f.parts {
		if p.waiting != nil {
			all[tp] = p.waiting
		}
	}
	return all
}

// Ready returns a channel that has a value when TryNext may have an event.
func (f *Fetcher) Ready() <-chan struct{} { return f.ready }

// Next returns the next event, waiting for it. The errors are those of ctx, and
// CANCELLED after Close.
func (f *Fetcher) Next(ctx context.Context) (*FetchEvent, error) {
	for {
		if e := f.TryNext(); e != nil {
			return e, nil
		}
		select {
		case <-f.ready:
		case <-ctx.Done():
			return nil, contextError(ctx, "wait for records", nil).WithOutcome(outcomeNotDone)
		case <-f.ctx.Done():
			return nil, closedError("fetcher")
		}
	}
}

// Close ends the streams and waits for them.
func (f *Fetcher) Close() error {
	f.mu.Lock()
	f.closed = true
	f.queue = nil
	clear(f.parts)
	f.mu.Unlock()
	f.cancel()
	f.wg.Wait()
	return nil
}

// run finds leaders for partitions that are not being read, and follows changes.
func (f *Fetcher) run() {
	changed := f.client.source.Changed()
	for news := false; ; {
		timer := time.NewTimer(f.assign(time.Now(), news))
		news = false
		select {
		case <-f.ctx.Done():
			timer.Stop()
			return
		case <-f.wake:
		case <-timer.C:
		case <-changed:
			changed = f.client.source.Changed()
			news = true
		}
		timer.Stop()
	}
}

// idleStream is how long a stream without partitions stays open.
const idleStream = 10 * time.Second

// assign asks for every partition that is due, and returns how long nothing more
// will be due. With news of the metadata it looks for moved leaders, too.
func (f *Fetcher) assign(now time.Time, news bool) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := now.Add(idleStream)
	if f.cfg.Rack != "" {
		if at := f.lookNear(now); at.Before(next) {
			next = at
		}
	}
	keen := false
	for tp, p := range f.parts {
		if p.paused || p.failed {
			continue
		}
		if news {
			f.follow(tp, p, now)
		}
		if p.at != nil {
			continue
		}
		if !now.Before(p.notBefore) {
			f.ask(tp, p, now)
		}
		if p.at == nil && p.notBefore.Before(next) {
			next = p.notBefore
		}
		keen = keen || news && p.at == nil && p.failures > 0 && now.Sub(p.troubled) < keenPolling
	}
	if keen {
		f.client.refreshElsewhere()
	}
	for _, s := range f.streams {
		switch {
		case len(s.byID) > 0:
			s.idleSince = time.Time{}
		case s.idleSince.IsZero():
			s.idleSince = now
		case now.Sub(s.idleSince) >= idleStream:
			s.cancel()
		}
	}
	return max(next.Sub(now), time.Millisecond)
}

// noSource says why a partition cannot be read.
func (f *Fetcher) noSource(tp TopicPartition, p *fetchPart) *rpc.Error {
	if r := f.cfg.Replica; r != nil {
		return rpc.Errorf(reasonUnreachable, "broker %d, whose replica of partition %d of topic %q is asked for, is not in service", *r, tp.Partition, p.start.Topic)
	}
	return rpc.Errorf(reasonLeaderUnavailable, "partition %d of topic %q (%v) has no leader that is known", tp.Partition, p.start.Topic, tp.TopicID)
}

// ask asks for a partition where it is to be read, or puts it off. The lock is held.
func (f *Fetcher) ask(tp TopicPartition, p *fetchPart, now time.Time) {
	src, ok := f.source(tp, p, now)
	if d := f.down[src.Addr]; ok && src.near && d != nil && now.Before(d.until) {
		p.nearAfter = d.until
		src, ok = f.source(tp, p, now)
	}
	if !ok {
		f.client.refreshSoon()
		f.putOff(p, now, f.noSource(tp, p))
		f.checkTopic(tp, p)
		return
	}
	if d := f.down[src.Addr]; d != nil && now.Before(d.until) {
		p.notBefore = d.until
		return
	}
	s := f.stream(src.key())
	f.lastID++
	p.at, p.id, p.epoch, p.near = s, f.lastID, src.Epoch, src.near
	p.seenEpoch = max(p.seenEpoch, src.Epoch)
	// One replica that is asked for may well be behind what was seen of others; one in
	// the rack is asked again for the same, not for what others have seen meanwhile.
	if f.cfg.Replica == nil && (!src.near || p.nearTries == 0) {
		marks := f.client.seen.of(tp)
		p.seenEpoch, p.seenEnd = max(p.seenEpoch, marks.epoch), max(p.seenEnd, marks.end)
	}
	s.add(p, &brokerv1.FetchPartition{
		FetchId: p.id, TopicId: tp.TopicID.Bytes(), Partition: tp.Partition, FetchOffset: p.received,
		CurrentLeaderEpoch: p.seenEpoch, LastFetchedEpoch: p.receivedEpoch, SeenVisibleEnd: p.seenEnd,
	})
}

// putOff makes a partition wait before it is asked for again.
func (f *Fetcher) putOff(p *fetchPart, now time.Time, why *rpc.Error) {
	if p.failures == 0 {
		p.troubled = now
	}
	p.failures++
	wait := f.client.cfg.backoff(p.failures)
	if why.Leader == nil || why.Leader.Id < 0 {
		wait = max(wait, min(why.RetryDelay, f.client.cfg.RetryBackoffMax))
	}
	p.notBefore, p.waiting = now.Add(wait), why
}

// checkTopic looks, now and then, whether the topic of a partition without a
// leader is still there, and fails the partition if not. The lock is held.
func (f *Fetcher) checkTopic(tp TopicPartition, p *fetchPart) {
	if p.checking || p.failures < 2 || f.closed {
		return
	}
	p.checking = true
	gen := p.gen
	f.wg.Go(func() {
		t, err := f.client.source.TopicByID(f.ctx, tp.TopicID)
		if err == nil && int(tp.Partition) >= len(t.Partitions) {
			err = unknownPartition(t, tp.Partition)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		p.checking = false
		if p.gen == gen && rpc.IsReason(err, reasonUnknownTopic, reasonTopicDeleted, reasonUnknownPartition) {
			f.fail(p, rpc.FromError(err))
		}
	})
}

// fail ends a partition with an error that the caller has to deal with, in line
// behind what was received. The lock is held.
func (f *Fetcher) fail(p *fetchPart, err *rpc.Error) {
	f.detach(p)
	p.failed, p.waiting = true, nil
	f.push(&fetchChunk{part: p, gen: p.gen, err: err.With("topic", p.start.Topic, "partition", itoa(p.start.Partition))})
}

// push puts a chunk in line. The lock is held.
func (f *Fetcher) push(c *fetchChunk) {
	if f.closed {
		return
	}
	c.refs = 1
	f.queue = append(f.queue, c)
	c.part.last = c
	poke(f.ready)
}
