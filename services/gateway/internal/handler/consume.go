package handler

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// Consume serves ConsumerService.Consume, whose states are session.Consume's.
//
// The handler's own goroutine only sends, so that a client which does not read
// holds up nothing else: commits, pings and revocations go on. The loop owns the
// session; it gives the sender one message at a time, and takes from the fetcher
// only when the session has handed out what it took before.
func (h *Handler) Consume(stream gatewayv1.ConsumerService_ConsumeServer) error {
	if err := h.started(); err != nil {
		return err
	}
	release, err := admit(&h.consumeStreams, h.cfg.Limits.MaxConsumeStreams, "consume")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(h.tracing.stream(stream.Context()))
	s := &consumeStream{
		h: h, ctx: ctx, stream: stream,
		session:  session.NewConsume(h.cfg.Now(), h.cfg.Limits.Consume, h.cfg.Identity),
		messages: make(chan consumeReceived), permits: make(chan struct{}, 1),
		out: make(chan session.Outgoing), idle: make(chan struct{}),
		news: newQueue[func(time.Time)](), commits: newQueue[session.ConsumeCommit](), began: h.cfg.Now(),
	}
	// The reader ends with the stream, which is only after the handler returned.
	h.readers.Go(s.read)
	var loop sync.WaitGroup
	loop.Go(func() { s.end(s.loop()) })
	err = s.send()
	cancel()
	loop.Wait()
	s.close()
	return err
}

// consumeStream is one stream being served.
type consumeStream struct {
	h       *Handler
	ctx     context.Context // ends with the stream
	stream  gatewayv1.ConsumerService_ConsumeServer
	session *session.Consume

	messages chan consumeReceived // from the reader
	permits  chan struct{}        // to the reader: one more may be read
	wanted   bool                 // a permit is out
	out      chan session.Outgoing
	idle     chan struct{} // the sender waits for a message
	asked    bool          // it does, and none was given yet

	news    *queue[func(time.Time)] // what goroutines have to tell the session
	commits *queue[session.ConsumeCommit]
	fetcher Fetcher
	member  Member
	left    bool // the membership has ended; nothing to detach
	work    sync.WaitGroup

	statusAt time.Time // when to look next what reading waits for
	offered  time.Time // when the sender was last given a message
	began    time.Time
	heard    atomic.Int64 // when the client's last message came, in ns since began
	// progress is what the member tells its coordinator with its next ping; nil: nothing.
	progress atomic.Pointer[[]client.MemberProgress]
	// sessionTimeout is the member's; written before the member begins.
	sessionTimeout time.Duration

	mu  sync.Mutex
	err error // what the loop ended with
}

// consumeReceived is a message of the client, or the end of its side.
type consumeReceived struct {
	message *gatewayv1.ConsumeRequest
	err     error
}

// send gives the client what the loop hands over, until that ends.
func (s *consumeStream) send() error {
	for {
		select {
		case s.idle <- struct{}{}:
		case <-s.ctx.Done():
			return s.ctx.Err()
		case o, ok := <-s.out:
			if !ok {
				return s.result()
			}
			if err := s.deliver(o); err != nil {
				return err
			}
			continue
		}
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case o, ok := <-s.out:
			if !ok {
				return s.result()
			}
			if err := s.deliver(o); err != nil {
				return err
			}
		}
	}
}

// deliver sends one message, in a span where it carries traced records.
func (s *consumeStream) deliver(o session.Outgoing) error {
	end := s.h.tracing.deliver(s.ctx, o.Message.GetRecords(), o.Event, o.Group)
	err := s.stream.Send(o.Message)
	end(err)
	if r := o.Message.GetRecords(); r != nil && err == nil {
		s.h.metrics.delivered(r)
	}
	return err
}

// end tells the sender that the loop is over.
func (s *consumeStream) end(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	close(s.out)
}

func (s *consumeStream) result() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// close ends what the stream used, once the loop is over. A membership that was not
// left stays to be resumed, until its session times out.
func (s *consumeStream) close() {
	if s.member != nil && !s.left {
		s.member.Detach()
	}
	s.work.Wait()
	if s.fetcher != nil {
		if err := s.fetcher.Close(); err != nil {
			s.h.cfg.Logger.Warn("closing a fetcher failed", "error", err)
		}
	}
}

// loop owns the session until it has ended.
func (s *consumeStream) loop() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	draining := s.h.cfg.Draining
	_, changed := s.h.cfg.Images.Watch()
	for {
		now := s.h.cfg.Now()
		s.act(now)
		if err := s.offer(now); err != nil {
			return err
		}
		if ended, err := s.session.Ended(); ended {
			return err
		}
		if s.session.WantsRead() && !s.wanted {
			s.wanted = true
			s.permits <- struct{}{}
		}
		s.setTimer(timer, now)
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case m := <-s.messages:
			s.wanted = false
			s.receive(m)
		case <-s.idleUnlessAsked():
			s.asked = true
		case <-s.news.ready:
			s.news.drain(func(f func(time.Time)) { f(s.h.cfg.Now()) })
		case <-s.fetched():
			s.take()
		case <-changed:
			_, changed = s.h.cfg.Images.Watch()
			s.grown()
		case <-draining:
			draining = nil
			s.session.Drain(s.h.cfg.Now())
		case <-timer.C:
			s.tick(s.h.cfg.Now())
		}
	}
}

func (s *consumeStream) tick(now time.Time) {
	s.session.Tick(now)
	if s.fetcher == nil || now.Before(s.statusAt) {
		return
	}
	s.statusAt = now.Add(statusInterval)
	waiting := s.fetcher.Waiting()
	if s.member != nil {
		told := s.session.Progress(now, waiting, !s.asked && now.Sub(s.offered) > blockedAfter)
		s.progress.Store(&told)
	}
	for _, err := range waiting {
		s.session.Waiting(err)
		return
	}
}

// lastProgress is how far the client had come a moment ago. It is called by the
// member's own goroutine.
func (s *consumeStream) lastProgress() []client.MemberProgress {
	if p := s.progress.Load(); p != nil {
		return *p
	}
	return nil
}

// lastSign is when the client last gave a sign of life: bytes on its own connection,
// where the server's HTTP/2 pings ask for some every PingAfter. Behind a proxy, which
// answers those, messages count, and nothing else. It is called by the member's own
// goroutine.
func (s *consumeStream) lastSign() time.Time {
	heard := s.began.Add(time.Duration(s.heard.Load()))
	if s.h.cfg.Limits.ProxiedClients || s.ctx.Err() != nil {
		return heard
	}
	read, noted := rpc.LastRead(s.ctx)
	if !noted {
		return heard
	}
	// In a short session a client cannot be asked often enough: there a sign is good
	// for a while. The least session is a second; then it is three quarters of one.
	good := read.Add(max(0, s.h.cfg.Limits.PingAfter-s.sessionTimeout/4))
	if now := s.h.cfg.Now(); good.After(now) {
		return now
	}
	return good
}

// heldBackRetry is how often a stream looks whether its session was confirmed.
const heldBackRetry = 100 * time.Millisecond

// blockedAfter is how long a client may take to take a message before it counts as one
// that does not read.
const blockedAfter = time.Second

// statusInterval is how often a stream looks what its reading waits for.
const statusInterval = 2 * time.Second

func (s *consumeStream) setTimer(t *time.Timer, now time.Time) {
	at := s.session.WakeAt()
	if s.fetcher != nil && s.statusAt.IsZero() {
		s.statusAt = now // a zero time would stop the timer instead
	}
	if s.fetcher != nil && (at.IsZero() || s.statusAt.Before(at)) {
		at = s.statusAt
	}
	if retry := now.Add(heldBackRetry); s.session.HoldsBack(now) && (at.IsZero() || retry.Before(at)) {
		at = retry
	}
	resetTimer(t, at, now)
}

func (s *consumeStream) idleUnlessAsked() <-chan struct{} {
	if s.asked {
		return nil
	}
	return s.idle
}

// fetched is the fetcher's channel while the session takes more.
func (s *consumeStream) fetched() <-chan struct{} {
	if s.fetcher == nil || !s.session.WantsData() {
		return nil
	}
	return s.fetcher.Ready()
}

// take gives the session what was fetched, as long as it takes more.
func (s *consumeStream) take() {
	for s.session.WantsData() {
		e := s.fetcher.TryNext()
		if e == nil {
			return
		}
		s.session.Fetched(s.h.cfg.Now(), e)
		s.act(s.h.cfg.Now())
	}
}

// offer gives the sender a message if it waits for one.
func (s *consumeStream) offer(now time.Time) error {
	if !s.asked {
		return nil
	}
	if s.member != nil {
		s.session.SetDeliverUntil(s.member.DeliverUntil())
	}
	o, ok := s.session.Next(now)
	s.act(now)
	if !ok && s.fetcher != nil && s.session.WantsData() {
		// Whatever is there already must not wait for the channel's next value.
		s.take()
		o, ok = s.session.Next(now)
		s.act(now)
	}
	if !ok {
		return nil
	}
	s.asked = false
	select {
	case s.out <- o:
		s.offered = now
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *consumeStream) receive(m consumeReceived) {
	now := s.h.cfg.Now()
	if m.err == nil || errors.Is(m.err, io.EOF) {
		// Nothing else comes from the client: a stream may well break because it is
		// silent, and must not have its session begin anew by that.
		s.heard.Store(int64(now.Sub(s.began)))
	}
	switch {
	case errors.Is(m.err, io.EOF):
		s.session.HalfClose(now)
	case m.err != nil:
		s.session.Fail(m.err)
	default:
		s.session.Receive(now, m.message)
	}
}

// read receives messages as permits come.
func (s *consumeStream) read() {
	for {
		select {
		case <-s.permits:
		case <-s.ctx.Done():
			return
		}
		var m consumeReceived
		m.message, m.err = s.stream.Recv()
		select {
		case s.messages <- m:
		case <-s.ctx.Done():
			return
		}
		if m.err != nil {
			return
		}
	}
}

// grown tells the session about topics that have more partitions than before.
func (s *consumeStream) grown() {
	for _, name := range s.session.WholeTopics() {
		if t := s.h.cfg.Images.Image().TopicByName(name); t != nil {
			grown := session.Topic{Name: name, ID: t.ID, Partitions: t.NumPartitions()}
			for n := range grown.Partitions {
				if s.session.Settings().Replica == nil {
					break // only those who read from one broker care
				}
				grown.Replicas = append(grown.Replicas, t.Partition(n).GetReplicas())
			}
			s.session.Grown(grown)
		}
	}
}

// clientHost is the address of the caller, for people.
func (s *consumeStream) clientHost() string {
	if p, ok := peer.FromContext(s.ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// retryLater waits before a question is asked again; false: the stream has ended.
func (s *consumeStream) retryLater(b *rpc.Backoff) bool {
	t := time.NewTimer(b.Next())
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// ownedPartitions are those of which the client received something on an earlier
// stream. The epoch of their assignment is not known here: the coordinator takes
// them as still in the member's hands, and assigns them anew.
func (s *consumeStream) ownedPartitions(settings session.ConsumeSettings) []client.OwnedPartition {
	var owned []client.OwnedPartition
	ids := map[string]*client.Topic{}
	for _, p := range settings.Positions() {
		t, known := ids[p.GetTopic()]
		if !known {
			var err error
			if t, err = s.h.cfg.Mesh.Topic(s.ctx, p.GetTopic()); err != nil {
				t = nil // gone, or not known here: then it is not held either
			}
			ids[p.GetTopic()] = t
		}
		if id := p.GetTopicId(); t != nil && (len(id) == 0 || bytes.Equal(id, t.ID[:])) {
			owned = append(owned, client.OwnedPartition{TopicPartition: client.TopicPartition{TopicID: t.ID, Partition: p.GetPartition()}})
		}
	}
	return owned
}

// isRetryable reports whether a stream should wait for something instead of ending.
func isRetryable(err error) bool {
	return rpc.Retryable(err) && !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_CANCELLED)
}
