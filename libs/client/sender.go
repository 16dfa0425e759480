package client

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// answerGrace is how long after a batch's own timeout its answer is waited for
// before the connection is taken for dead.
const answerGrace = 5 * time.Second

// unansweredKept bounds what is remembered of batches sent with acks none, for
// the errors that may come for them after all.
const unansweredKept = 256

// produceCall is one batch on its way to one broker.
type produceCall struct {
	part    TopicPartition
	epoch   int32 // leader epoch believed in
	acks    typev1.Acks
	timeout time.Duration // for the broker
	fence   *brokerv1.ShardFence
	trace   *typev1.TraceContext
	bytes   []byte
	// done is called once, on the sender's goroutines, without its lock.
	done func(produceAnswer)

	id      int64     // correlation id
	expires time.Time // when the answer is overdue
}

// produceAnswer is what became of a produceCall.
type produceAnswer struct {
	addr   string
	offset int64
	epoch  int32
	err    *rpc.Error
}

// senders are the produce streams of one owner, one for each broker's address.
type senders struct {
	client *Client
	what   string
	// lost, if not nil, is told of errors that came for batches sent with acks none.
	lost func(TopicPartition, produceAnswer)

	mu     sync.Mutex
	byAddr map[string]*sender
	closed bool
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (c *Client) newSenders(what string) *senders {
	s := &senders{client: c, what: what, byAddr: make(map[string]*sender)}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	return s
}

// submit queues a call for a broker. It does not block; what may be queued is
// bounded by the callers. An error means that the call was not taken, and done will
// not be called.
func (s *senders) submit(addr string, call *produceCall) *rpc.Error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return closedError(s.what)
	}
	snd := s.byAddr[addr]
	if snd == nil {
		snd = &sender{
			owner: s, addr: addr, window: s.client.cfg.MaxInFlightPerStream,
			inflight: make(map[int64]*produceCall), wake: make(chan struct{}, 1),
		}
		s.byAddr[addr] = snd
		s.wg.Go(func() { snd.run(s.ctx) })
	}
	s.mu.Unlock()
	return snd.push(call)
}

// withdraw takes a call back that has not been sent; false: it has been, or has
// ended.
func (s *senders) withdraw(addr string, call *produceCall) bool {
	s.mu.Lock()
	snd := s.byAddr[addr]
	s.mu.Unlock()
	return snd != nil && snd.withdraw(call)
}

// close ends the streams; calls without an answer fail.
func (s *senders) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// sender is the produce stream to one broker. Its run goroutine opens the stream
// when there is something to send and sends; another one, which it waits for,
// receives.
type sender struct {
	owner *senders
	addr  string

	mu       sync.Mutex
	queue    []*produceCall
	inflight map[int64]*produceCall
	silent   []*produceCall // sent with acks none, the last few
	window   int
	lastID   int64
	stopped  bool
	wake     chan struct{} // has a value when there is something to look at
	opens    rpc.Backoff
	downTill time.Time // no new stream before; calls are refused with downErr
	downErr  *rpc.Error
}

func (s *sender) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// push queues a call, unless the broker is known to be away.
func (s *sender) push(call *produceCall) *rpc.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return closedError(s.owner.what)
	case s.downErr != nil && time.Now().Before(s.downTill):
		return s.downErr
	}
	s.queue = append(s.queue, call)
	s.poke()
	return nil
}

func (s *sender) withdraw(call *produceCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, q := range s.queue {
		if q == call {
			s.queue = append(s.queue[:i:i], s.queue[i+1:]...)
			return true
		}
	}
	return false
}

// run opens the stream anew as long as there are calls.
func (s *sender) run(ctx context.Context) {
	defer s.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		s.mu.Lock()
		idle := len(s.queue) == 0
		s.mu.Unlock()
		if idle {
			continue
		}
		s.serve(ctx)
	}
}

// stop fails everything that is left.
func (s *sender) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.failAll(closedError(s.owner.what))
}

// failAll ends all calls: those that were sent with an unknown outcome.
func (s *sender) failAll(err *rpc.Error) {
	err = notOurs(s.owner.ctx, err)
	s.mu.Lock()
	queued, sent := s.queue, s.inflight
	s.queue, s.inflight, s.silent = nil, make(map[int64]*produceCall), nil
	s.mu.Unlock()
	if len(sent) > 0 {
		lost := rpc.Errorf(reasonConnectionLost, "the connection to broker %s broke before the batch was answered: %w", s.addr, err).
			With("address", s.addr)
		lost.Leader = err.Leader
		for _, id := range slices.Sorted(maps.Keys(sent)) { // in the order of sending
			sent[id].done(produceAnswer{addr: s.addr, offset: -1, epoch: -1, err: lost})
		}
	}
	for _, call := range queued {
		call.done(produceAnswer{addr: s.addr, offset: -1, epoch: -1, err: err.WithOutcome(outcomeNotDone)})
	}
}

// serve opens a stream and sends on it until it ends.
func (s *sender) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.open(ctx, cancel)
	if err != nil {
		s.mu.Lock()
		wait := s.opens.Next()
		s.downTill, s.downErr = time.Now().Add(wait), err.WithOutcome(outcomeNotDone).WithRetry(wait)
		s.mu.Unlock()
		s.failAll(err)
		return
	}
	s.mu.Lock()
	s.opens.Reset()
	s.downErr = nil
	s.mu.Unlock()

	ended := make(chan *rpc.Error, 1)
	go func() { ended <- s.receive(stream) }()
	sendErr := s.send(ctx, stream, ended)
	cancel()
	if sendErr == nil {
		sendErr = <-ended
	} else {
		// The receiving side knows why the stream ended; sending only knows that.
		if err := <-ended; err.Reason != reasonCancelled {
			sendErr = err
		}
	}
	s.failAll(sendErr)
	s.poke()
}

// open starts the stream and waits for the broker's greeting.
func (s *sender) open(ctx context.Context, cancel context.CancelFunc) (brokerv1.LogService_ProduceClient, *rpc.Error) {
	cfg := &s.owner.client.cfg
	late := time.AfterFunc(cfg.RequestTimeout, cancel)
	defer late.Stop()
	conn, err := s.owner.client.dataConns.Get(s.addr)
	if err != nil {
		return nil, streamEnd(err, "broker", s.addr)
	}
	stream, err := brokerv1.NewLogServiceClient(conn).Produce(ctx)
	if err != nil {
		return nil, streamEnd(err, "broker", s.addr)
	}
	hello := &brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Initial{Initial: &brokerv1.ProduceInitial{
		Handshake: rpc.LocalHandshake(), ClientId: cfg.ClientID,
	}}}
	// A failed Send shows in Recv, with the reason.
	_ = stream.Send(hello)
	resp, err := stream.Recv()
	if err != nil {
		if !late.Stop() && ctx.Err() != nil && s.owner.ctx.Err() == nil {
			return nil, rpc.Errorf(reasonUnreachable, "broker %s did not answer within %v", s.addr, cfg.RequestTimeout).With("address", s.addr)
		}
		return nil, streamEnd(err, "broker", s.addr)
	}
	initial := resp.GetInitial()
	if initial == nil {
		return nil, rpc.Errorf(reasonStreamProtocol, "broker %s answered the opening of a produce stream with something else; upgrade the older side", s.addr)
	}
	if err := rpc.CheckHandshake(initial.Handshake); err != nil {
		return nil, rpc.FromError(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window = cfg.MaxInFlightPerStream
	if n := int(initial.MaxInFlightBatches); n > 0 {
		s.window = min(s.window, n)
	}
	return stream, nil
}

// send sends what is queued, within the window, until the stream ends (nil) or
// sending fails.
func (s *sender) send(ctx context.Context, stream brokerv1.LogService_ProduceClient, ended chan *rpc.Error) *rpc.Error {
	check := time.NewTicker(answerGrace / 2)
	defer check.Stop()
	for {
		call := s.take()
		if call == nil {
			select {
			case <-ctx.Done():
				return rpc.FromError(ctx.Err())
			case err := <-ended:
				ended <- err
				return nil
			case now := <-check.C:
				if s.overdue(now) {
					return rpc.Errorf(reasonUnreachable, "broker %s leaves batches unanswered past their time", s.addr).With("address", s.addr)
				}
			case <-s.wake:
			}
			continue
		}
		head := &brokerv1.ProduceBatch{
			CorrelationId: call.id, TopicId: call.part.TopicID[:], Partition: call.part.Partition, LeaderEpoch: call.epoch,
			Acks: call.acks, Timeout: durationpb.New(call.timeout), ShardFence: call.fence, Trace: call.trace,
		}
		req := &brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Batch{Batch: head}}
		if err := rpc.Send(stream, req, rpc.NewPayload(call.bytes)); err != nil {
			return streamEnd(err, "broker", s.addr)
		}
		if call.acks == typev1.Acks_ACKS_NONE {
			s.handedOver(call)
		}
	}
}

// take moves the next call from the queue into the window; nil: there is none, or
// no room.
func (s *sender) take() *produceCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 || len(s.inflight) >= s.window {
		return nil
	}
	call := s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	s.lastID++
	call.id = s.lastID
	call.expires = time.Now().Add(call.timeout + answerGrace)
	s.inflight[call.id] = call
	return call
}

func (s *sender) overdue(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range s.inflight {
		if now.After(call.expires) {
			return true
		}
	}
	return false
}

// handedOver ends a call that no answer is awaited for.
func (s *sender) handedOver(call *produceCall) {
	s.mu.Lock()
	_, there := s.inflight[call.id]
	delete(s.inflight, call.id)
	if len(s.silent) >= unansweredKept {
		s.silent = s.silent[1:]
	}
	s.silent = append(s.silent, &produceCall{id: call.id, part: call.part})
	s.mu.Unlock()
	if there {
		call.done(produceAnswer{addr: s.addr, offset: -1, epoch: -1})
	}
}

// receive takes answers until the stream ends.
func (s *sender) receive(stream brokerv1.LogService_ProduceClient) *rpc.Error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return streamEnd(err, "broker", s.addr)
		}
		for _, r := range resp.GetResults().GetResults() {
			s.answer(r)
		}
		s.poke()
	}
}

func (s *sender) answer(r *brokerv1.ProduceResult) {
	a := produceAnswer{addr: s.addr, offset: r.BaseOffset, epoch: r.LeaderEpoch, err: rpc.FromProto(r.Error)}
	if a.err != nil {
		a.offset, a.epoch = -1, -1
	}
	s.mu.Lock()
	call := s.inflight[r.CorrelationId]
	delete(s.inflight, r.CorrelationId)
	var lost *produceCall
	if call == nil && a.err != nil {
		for _, c := range s.silent {
			if c.id == r.CorrelationId {
				lost = c
			}
		}
	}
	s.mu.Unlock()
	if call != nil {
		call.done(a)
	} else if lost != nil && s.owner.lost != nil {
		s.owner.lost(lost.part, a)
	}
}
