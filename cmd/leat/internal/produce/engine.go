package produce

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// engine is the state of a Run; only its goroutine touches it.
type engine struct {
	ctx     context.Context
	cfg     Config
	open    *gatewayv1.ProduceOpen
	summary Summary
	latency histogram
	started time.Time

	reads    chan readResult
	held     []Item // read, not yet in a chunk
	inputEnd bool
	inputErr error

	pending *list.List // of *chunk in the order of the input
	byID    map[int64]*list.Element
	nextID  int64
	records int // in pending
	bytes   int64
	maxRecs int
	maxSize int64
	// timeout is the delivery timeout that the gateway keeps: the one asked for,
	// rounded up.
	timeout time.Duration

	events      chan event
	session     *session
	everOpened  bool
	everLost    bool
	reconnectAt time.Time
	backoff     *rpc.Backoff

	interrupt      <-chan struct{}
	interruptUntil time.Time
	summaryUntil   time.Time
	paced          int64 // records released by the rate so far
	paceFrom       time.Time
	progressAt     time.Time
}

func newEngine(ctx context.Context, in *Input, cfg Config) *engine {
	if cfg.Settled == nil {
		cfg.Settled = func() error { return nil }
	}
	if cfg.Note == nil {
		cfg.Note = func(string, ...any) {}
	}
	now := time.Now()
	open := proto.Clone(cfg.Open).(*gatewayv1.ProduceOpen)
	open.DeliveryTimeout = durationpb.New(cfg.DeliveryTimeout)
	e := &engine{
		ctx: ctx, cfg: cfg, open: open, started: now, progressAt: now,
		reads: make(chan readResult, 2), pending: list.New(), byID: map[int64]*list.Element{},
		maxRecs: maxInFlightRecords, maxSize: maxInFlightBytes, timeout: cfg.DeliveryTimeout,
		events: make(chan event, 16), interrupt: cfg.Interrupt,
		backoff: &rpc.Backoff{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond},
	}
	e.session = startSession(ctx, cfg.Client, open, e.events)
	go e.read(in)
	return e
}

// read passes on the input. It ends with it, or with the context.
func (e *engine) read(in *Input) {
	for {
		items, err := in.Read()
		select {
		case e.reads <- readResult{items, err}:
		case <-e.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (e *engine) run() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		e.expire(now)
		e.reconnect(now)
		e.fill(now)
		e.push(now)
		e.progress(now)
		if err := e.cfg.Settled(); err != nil {
			return err
		}
		if e.done(now) {
			return e.inputErr
		}
		timer.Reset(e.wakeIn(now))
		select {
		case r := <-e.wanted():
			e.took(r)
		case ev := <-e.events:
			if err := e.handle(ev); err != nil {
				e.giveUp(rpc.FromError(err))
				return errors.Join(err, e.cfg.Settled())
			}
		case <-timer.C:
		case <-e.interrupt:
			e.interrupted()
		case <-e.ctx.Done():
			e.giveUp(rpc.FromError(e.ctx.Err()))
			return errors.Join(e.ctx.Err(), e.cfg.Settled())
		}
	}
}

// wanted is where the next records come from, nil while none are wanted.
func (e *engine) wanted() <-chan readResult {
	if !e.everOpened || e.inputEnd || len(e.held) > 0 || e.windowFull() {
		return nil
	}
	return e.reads
}

func (e *engine) windowFull() bool {
	return e.records >= e.maxRecs || e.bytes >= e.maxSize || e.pending.Len() >= maxInFlightChunks
}

func (e *engine) took(r readResult) {
	if r.err != nil {
		e.inputEnd = true
		if !errors.Is(r.err, io.EOF) {
			e.inputErr = fmt.Errorf("read the input: %w", r.err)
		}
	}
	for _, item := range r.items {
		e.summary.Records++
		if item.Err != nil {
			e.tell(Result{Number: item.Number, Partition: -1, Offset: -1, Err: item.Err})
			continue
		}
		e.summary.Bytes += sizeOf(item.Record)
		e.held = append(e.held, item)
	}
}

// fill makes chunks of what was read, as far as rate and window allow.
func (e *engine) fill(now time.Time) {
	allowed := e.allowance(now)
	for len(e.held) > 0 && allowed > 0 && !e.windowFull() {
		c := &chunk{born: now}
		n := 0
		for n < len(e.held) && n < maxChunkRecords && n < allowed {
			size := sizeOf(e.held[n].Record) + recordOverhead
			if n > 0 && c.bytes+size > maxChunkBytes {
				break
			}
			c.bytes += size
			n++
		}
		c.items, e.held = e.held[:n:n], e.held[n:]
		e.paced += int64(n)
		allowed -= n
		e.add(c, nil)
	}
	if len(e.held) == 0 {
		e.held = nil
	}
}

// allowance is how many records the rate lets go by now.
func (e *engine) allowance(now time.Time) int {
	if e.cfg.Rate <= 0 {
		return len(e.held)
	}
	if len(e.held) == 0 {
		return 0
	}
	if e.paceFrom.IsZero() {
		e.paceFrom = now
	}
	// A pause of the input or the gateway earns no burst of more than a second.
	due := int64(now.Sub(e.paceFrom).Seconds()*e.cfg.Rate) + 1
	if behind := due - e.paced; behind > int64(e.cfg.Rate)+1 {
		e.paced = due - int64(e.cfg.Rate) - 1
	}
	return int(due - e.paced)
}

// add appends a chunk, or puts it before another.
func (e *engine) add(c *chunk, before *list.Element) {
	e.nextID++
	c.id = e.nextID
	if before != nil {
		e.byID[c.id] = e.pending.InsertBefore(c, before)
	} else {
		e.byID[c.id] = e.pending.PushBack(c)
	}
	e.records += len(c.items)
	e.bytes += c.bytes
}

func (e *engine) remove(el *list.Element) *chunk {
	c := e.pending.Remove(el).(*chunk)
	delete(e.byID, c.id)
	e.records -= len(c.items)
	e.bytes -= c.bytes
	if c.sent && e.session != nil {
		e.session.outstanding--
	}
	return c
}

// push hands unsent chunks to the session, in order.
func (e *engine) push(now time.Time) {
	s := e.session
	if s == nil || !s.opened || s.draining {
		return
	}
	for el := e.pending.Front(); el != nil; el = el.Next() {
		c := el.Value.(*chunk)
		if c.sent {
			continue
		}
		select {
		case s.sends <- c.request(e.cfg.Topic):
			c.sent, c.sentAt = true, now
			s.outstanding++
		default:
			return // the queue holds a whole window; answers make room
		}
	}
}

func (e *engine) done(now time.Time) bool {
	if e.pending.Len() > 0 || len(e.held) > 0 || !e.inputEnd {
		return false
	}
	if e.session == nil || !e.everOpened || !e.interruptUntil.IsZero() && now.After(e.interruptUntil) {
		return e.everOpened
	}
	if e.summaryUntil.IsZero() {
		e.summaryUntil = now.Add(summaryGrace)
		e.session.halfClose()
	}
	return now.After(e.summaryUntil)
}

// wakeIn is the time until something is due by itself.
func (e *engine) wakeIn(now time.Time) time.Duration {
	at := now.Add(time.Second)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	earlier(e.reconnectAt)
	earlier(e.interruptUntil)
	earlier(e.summaryUntil)
	if el := e.pending.Front(); el != nil {
		earlier(el.Value.(*chunk).born.Add(e.cfg.DeliveryTimeout))
	}
	if e.cfg.Rate > 0 && len(e.held) > 0 {
		next := e.paceFrom.Add(time.Duration(float64(e.paced) / e.cfg.Rate * float64(time.Second)))
		earlier(maxTime(next, now.Add(2*time.Millisecond)))
	}
	if e.cfg.Progress != nil {
		earlier(e.progressAt.Add(500 * time.Millisecond))
	}
	return max(at.Sub(now), time.Millisecond)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (e *engine) progress(now time.Time) {
	if e.cfg.Progress == nil || now.Sub(e.progressAt) < 500*time.Millisecond {
		return
	}
	e.progressAt = now
	s := e.summary
	s.Elapsed = now.Sub(e.started)
	e.cfg.Progress(s)
}

func (e *engine) tell(r Result) {
	switch {
	case r.Err == nil:
		e.summary.Acked++
		if r.MaybeDuplicated {
			e.summary.MaybeDuplicated++
		}
	case r.Unknown:
		e.summary.Unknown++
	default:
		e.summary.Failed++
	}
	if r.Err != nil && e.summary.FirstErr == nil {
		e.summary.FirstErr = r.Err
	}
	e.cfg.Result(r)
}

// interrupted stops the reading: what was read and not sent fails, what was
// sent gets a little time for its answers.
func (e *engine) interrupted() {
	e.interrupt = nil
	e.inputEnd, e.summary.Interrupted = true, true
	e.interruptUntil = time.Now().Add(interruptGrace)
	err := notDone(typev1.ErrorReason_ERROR_REASON_CANCELLED, "interrupted before it was sent; produce it again")
	for _, item := range e.held {
		e.tell(Result{Number: item.Number, Partition: -1, Offset: -1, Err: err})
	}
	e.held = nil
	for el := e.pending.Front(); el != nil; {
		next := el.Next()
		if c := el.Value.(*chunk); !c.sent && !c.uncertain {
			e.fail(e.remove(el), err)
		}
		el = next
	}
}

// giveUp tells a final error for everything that is left.
func (e *engine) giveUp(err *rpc.Error) {
	for el := e.pending.Front(); el != nil; el = e.pending.Front() {
		e.fail(e.remove(el), err)
	}
	for _, item := range e.held {
		e.tell(Result{Number: item.Number, Partition: -1, Offset: -1, Err: err.WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)})
	}
	e.held = nil
}

// fail tells one error for all records of a chunk that is no longer pending.
func (e *engine) fail(c *chunk, err *rpc.Error) {
	unknown := c.sent || c.uncertain
	for _, item := range c.items {
		e.tell(Result{Number: item.Number, Partition: -1, Offset: -1, Err: err, Unknown: unknown})
	}
}
