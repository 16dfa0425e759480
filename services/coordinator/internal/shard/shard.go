package shard

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/offsets"
)

// Log is the partitions of the internal topic.
type Log interface {
	// Append appends one batch under the fence with acks=all and returns the offset
	// of its first record. The error is a *rpc.Error whose outcome says whether the
	// batch may be in the log.
	Append(ctx context.Context, shard int32, fence offsets.Fence, batch []byte) (int64, error)
	// Read calls f with every record from the log's start up to the offset end,
	// exclusive; it stops at the first error of f. Key and value may be kept.
	Read(ctx context.Context, shard int32, end int64, f func(key, value []byte) error) error
}

// Starts finds where partitions start.
type Starts interface {
	// Resolve has a result for each partition, in order, at the latest when ctx ends.
	Resolve(ctx context.Context, policy group.StartPolicy, parts []group.Part) []group.StartResult
}

// Peer is a stream that carries members. The methods are called from the shard's
// loop and must not block.
type Peer interface {
	// Send brings a message for a member that was opened on this stream.
	Send(group, member string, attach int64, m group.Message)
	// Lost says that the shard serves the member no more on this stream: with reload
	// it will again shortly, else it belongs to somebody else.
	Lost(group, member string, attach int64, reload bool)
	// Ended says whether the stream has ended. It turns true before Detach is called.
	Ended() bool
}

// Config is what all shards of a coordinator share.
type Config struct {
	Group group.Config
	// AppendTimeout bounds one append; afterwards its outcome is unknown.
	AppendTimeout time.Duration
	// LoadTimeout bounds one attempt to read a shard.
	LoadTimeout time.Duration
	// Starts finds where partitions without a committed offset start.
	Starts Starts
	// MaxBatchBytes is the most bytes of one batch.
	MaxBatchBytes int
	// MaxRequests is the most requests that may wait for a shard's loop; beyond it
	// callers wait.
	MaxRequests int
	// DrainTimeout is how long a stop waits for what is being appended.
	DrainTimeout time.Duration
	Logger       *slog.Logger
	metrics      *metrics
}

// Request is one event for the core. Make is given the number that the event must
// carry; Done, if not nil, is called exactly once from the loop and must not block.
type Request struct {
	Make func(req uint64) group.Event
	Done func(group.Reply)
	// Refuse, if not nil, is called instead of Done for a question, or for a change of
	// which nothing has been begun, that the log cannot confirm: it has no leader or too
	// few in-sync replicas. Without it the request waits.
	Refuse func(*rpc.Error)
	haste  haste // set by the loop
	// Peer is set for Open: where the member's messages go once it is answered.
	Peer Peer
	// Group, Member and Attach name the member for Open and Leave.
	Group, Member string
	Attach        int64
	// detach and list are set instead of Make.
	detach Peer
	list   func([]group.Summary, *rpc.Error)
}

// errStopping is the cause of a stop in which the shard is not lost.
var errStopping = errors.New("the coordinator is stopping")

// link is a member on a stream.
type link struct {
	group, member string
	attach        int64
}

// Shard is one shard that this coordinator owns, or did until a moment ago.
type Shard struct {
	cfg       Config
	log       Log
	partition int32
	epoch     int64
	logger    *slog.Logger
	loads     chan struct{} // bounds loads over all shards
	resolving chan struct{} // bounds questions for starts
	again     chan struct{} // bounds those that are asked again
	first     group.Topics  // as of the start

	slots   chan struct{} // one for each request in queue
	notify  chan struct{}
	results chan result
	stopped chan struct{} // closed once every request has been answered
	serving atomic.Bool

	mu      sync.Mutex
	queue   []Request
	closed  bool
	topics  *group.Topics // newer than the core's; nil: none
	refused *rpc.Error    // why the shard cannot be served at all; nil: it can
	waiting time.Time     // since when the log has been asked for something in vain; zero: it is not
	worked  time.Time     // when an append or fence last committed

	// What follows belongs to the loop.
	state    *group.State
	began    time.Time
	timer    *time.Timer
	requests map[uint64]Request
	lastReq  uint64
	links    map[link]Peer
	fence    offsets.Fence // of the next append
	end      int64         // offset after the fencing record
	warned   bool
	work     sync.WaitGroup // appends and loads

	failingSince time.Time // zero: the log works
	lack         lack
}

// result is what an append, a fence or a load came to.
type result struct {
	event   group.Event
	kvs     []group.KV // to be replayed before the event
	end     int64      // of a fence: the offset after it
	attempt int32      // of a fence or a load: results of earlier ones are ignored
	used    int64      // sequences used up
	refused *rpc.Error
	start   *group.Start // of a question for starts; nothing else is set then
	err     error        // for the log, where the event is a failure
}

func newShard(cfg Config, log Log, partition int32, epoch int64, topics group.Topics, loads chan struct{}) *Shard {
	return &Shard{
		cfg: cfg, log: log, partition: partition, epoch: epoch, loads: loads, first: topics,
		logger:    cfg.Logger.With("shard", partition, "shard_epoch", epoch),
		slots:     make(chan struct{}, cfg.MaxRequests),
		notify:    make(chan struct{}, 1),
		results:   make(chan result),
		resolving: make(chan struct{}, maxResolving),
		again:     make(chan struct{}, maxAgain),
		stopped:   make(chan struct{}),
		state:     group.New(cfg.Group),
		requests:  make(map[uint64]Request),
		links:     make(map[link]Peer),
	}
}

// Partition is the shard's number, Epoch the shard epoch of this ownership.
func (s *Shard) Partition() int32 { return s.partition }

// Epoch is the shard epoch of this ownership.
func (s *Shard) Epoch() int64 { return s.epoch }

// Do gives a request to the shard and waits for its answer, but not for a log that has
// no leader or too few in-sync replicas, where it only asks or nothing of it has been
// begun. When ctx ends first the outcome is unknown.
func (s *Shard) Do(ctx context.Context, event func(req uint64) group.Event) (group.Reply, error) {
	answered := newAnswer()
	refused := make(chan *rpc.Error, 1)
	if err := s.Post(ctx, Request{Make: event, Done: answered.set, Refuse: func(e *rpc.Error) { refused <- e }}); err != nil {
		return group.Reply{}, err
	}
	select {
	case r := <-answered.ch:
		return r, nil
	case e := <-refused:
		return group.Reply{}, e
	case <-ctx.Done():
		return group.Reply{}, rpc.FromError(ctx.Err()).WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
	}
}

// answer passes one reply on without blocking.
type answer struct{ ch chan group.Reply }

func newAnswer() answer            { return answer{make(chan group.Reply, 1)} }
func (a answer) set(r group.Reply) { a.ch <- r }

// List tells the groups of the shard. It has no barrier: a hint. A shard that is not
// loaded cannot tell, and says why.
func (s *Shard) List(ctx context.Context) ([]group.Summary, error) {
	got := make(chan []group.Summary, 1)
	refused := make(chan *rpc.Error, 1)
	answer := func(l []group.Summary, e *rpc.Error) {
		if e != nil {
			refused <- e
		} else {
			got <- l
		}
	}
	if err := s.Post(ctx, Request{list: answer}); err != nil {
		return nil, err
	}
	select {
	case l := <-got:
		return l, nil
	case e := <-refused:
		return nil, e
	case <-ctx.Done():
		return nil, rpc.FromError(ctx.Err())
	}
}

// Detach tells that a peer has ended. It does nothing if the shard has stopped.
func (s *Shard) Detach(ctx context.Context, p Peer) error {
	return s.Post(ctx, Request{detach: p})
}

// DetachMember tells that a peer carries a member no more. It does nothing if it does
// not, or if the shard has stopped.
func (s *Shard) DetachMember(ctx context.Context, p Peer, group, member string, attach int64) error {
	return s.Post(ctx, Request{detach: p, Group: group, Member: member, Attach: attach})
}

// Post puts a request in line, waiting while the line is full. An error means that
// it was not taken, and Done will not be called.
func (s *Shard) Post(ctx context.Context, r Request) error {
	select {
	case s.slots <- struct{}{}:
	case <-s.stopped:
		return s.lost()
	case <-ctx.Done():
		return rpc.FromError(ctx.Err()).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.slots
		return s.lost()
	}
	if refused := s.refused; refused != nil && r.Make != nil {
		s.mu.Unlock()
		<-s.slots
		return refused
	}
	s.queue = append(s.queue, r)
	s.mu.Unlock()
	s.wakeLoop()
	return nil
}

func (s *Shard) lost() *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR,
		"this coordinator does not serve shard %d any more; ask for its owner", s.partition)
}

// setTopics brings newer topics.
func (s *Shard) setTopics(t group.Topics) {
	s.mu.Lock()
	s.topics = &t
	s.mu.Unlock()
	s.wakeLoop()
}

// asked notes that the log is asked for an append.
func (s *Shard) asked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting.IsZero() {
		s.waiting = time.Now()
	}
}

// answered notes that an append or a fence has committed.
func (s *Shard) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.worked = time.Time{}, time.Now()
}

// patience tells since when the log has been asked in vain, zero if it is not being
// asked, and when it last worked.
func (s *Shard) patience() (waiting, worked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting, s.worked
}

func (s *Shard) wakeLoop() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// take empties the line.
func (s *Shard) take() ([]Request, *group.Topics) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue, topics := s.queue, s.topics
	s.queue, s.topics = nil, nil
	for range queue {
		<-s.slots
	}
	return queue, topics
}

// run is the shard's loop. It returns once the shard is lost or ctx has ended,
// every request has been answered, and nothing of it runs any more.
func (s *Shard) run(ctx context.Context) {
	s.began = time.Now()
	s.timer = time.NewTimer(time.Hour)
	defer s.timer.Stop()
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer s.work.Wait()
	defer cancel()
	s.step(work, s.first)
	s.step(work, group.Claim{Epoch: s.epoch})
	for ctx.Err() == nil {
		s.once(work, ctx.Done())
	}
	if errors.Is(context.Cause(ctx), errStopping) {
		s.drain(work)
	}
	s.close(work)
}

// once waits for one thing to happen and works on it.
func (s *Shard) once(ctx context.Context, stop <-chan struct{}) {
	select {
	case <-stop:
	case <-s.notify:
		s.refresh(ctx)
	case r := <-s.results:
		s.result(ctx, r)
	case <-s.timer.C:
		s.step(ctx, group.Tick{})
	}
}

// drain takes nothing new and gives what is being appended a while to commit, so
// that an orderly stop leaves no outcome unknown.
func (s *Shard) drain(ctx context.Context) {
	s.refuseNew()
	s.refresh(ctx)
	limit := time.NewTimer(s.cfg.DrainTimeout)
	defer limit.Stop()
	for s.state.Serving() && !s.state.Quiet() {
		select {
		case <-limit.C:
			return
		case r := <-s.results:
			s.result(ctx, r)
		case <-s.timer.C:
			s.step(ctx, group.Tick{})
		}
	}
}

// refuseNew makes Post fail from now on.
func (s *Shard) refuseNew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// refusesNew reports whether Post fails: the shard is being given up.
func (s *Shard) refusesNew() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// close answers everything that still waits, in the core and in line.
func (s *Shard) close(ctx context.Context) {
	s.refuseNew()
	s.lack = lack{} // the log is somebody else's concern
	s.step(ctx, group.Deposed{})
	s.refresh(ctx)
	close(s.stopped)
}

// refresh works on everything in line.
func (s *Shard) refresh(ctx context.Context) {
	queue, topics := s.take()
	if topics != nil {
		s.step(ctx, *topics)
	}
	for _, r := range queue {
		switch {
		case r.detach != nil:
			s.detach(ctx, r)
		case r.list != nil:
			r.list(s.groups())
		default:
			s.request(ctx, r)
		}
	}
}

// groups lists the groups, once they are known.
func (s *Shard) groups() ([]group.Summary, *rpc.Error) {
	switch {
	case s.state.Serving():
		return s.state.List(), nil
	case s.lacks():
		return nil, s.lacking()
	case s.refusesNew():
		return nil, s.lost()
	}
	return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING,
		"partition %d of %s, a shard of groups, is being loaded; try again shortly", s.partition, client.OffsetsTopic)
}

// request gives the core a request, unless the log could not confirm its answer.
func (s *Shard) request(ctx context.Context, r Request) {
	s.lastReq++
	ev := r.Make(s.lastReq)
	if r.haste = hasteOf(ev); r.haste != waits && r.Refuse != nil && s.lacks() {
		r.Refuse(s.lacking())
		return
	}
	if r.Done != nil {
		s.requests[s.lastReq] = r
	}
	s.step(ctx, ev)
}

// detach tells the core that the members of a peer, or one of them, are gone.
func (s *Shard) detach(ctx context.Context, r Request) {
	gone := func(l link) {
		delete(s.links, l)
		s.step(ctx, group.Gone{Group: l.group, Member: l.member, Attach: l.attach})
	}
	if l := (link{r.Group, r.Member, r.Attach}); r.Member != "" {
		if s.links[l] == r.detach {
			gone(l)
		}
		return
	}
	for l, peer := range s.links {
		if peer == r.detach {
			gone(l)
		}
	}
}

func (s *Shard) now() group.Now {
	now := time.Now()
	return group.Now{Mono: now.Sub(s.began) + 1, WallMs: failpoint.Now().UnixMilli()}
}

// step gives the core an event and runs the effects, all of them before the next
// event: those of a later one must not be overtaken by the rest of these.
func (s *Shard) step(ctx context.Context, ev group.Event) {
	var gone []group.Gone
	for _, e := range s.state.Step(s.now(), ev) {
		switch e := e.(type) {
		case group.Fence:
			s.startFence(ctx, e)
		case group.Load:
			s.startLoad(ctx)
		case group.Append:
			s.startAppend(ctx, e.Op, e.KVs)
		case group.Barrier:
			s.startAppend(ctx, e.Op, []group.KV{offsets.Barrier()})
		case group.ResolveStart:
			s.startResolve(ctx, e)
		case group.Reply:
			if opened := s.reply(e); opened != nil {
				gone = append(gone, *opened)
			}
		case group.Send:
			s.send(e)
		case group.WakeAt:
			s.timer.Reset(e.Mono - s.now().Mono)
		case group.Abandon:
			for l, peer := range s.links {
				peer.Lost(l.group, l.member, l.attach, e.Reload)
			}
			clear(s.links)
		}
	}
	s.serving.Store(s.state.Serving())
	for _, e := range gone {
		s.step(ctx, e)
	}
}

// reply answers a request, binding or unbinding the member first. It returns a
// member that was opened for a peer which has ended.
func (s *Shard) reply(e group.Reply) (gone *group.Gone) {
	r, ok := s.requests[e.Req]
	if !ok {
		return nil
	}
	delete(s.requests, e.Req)
	switch result := e.Result.(type) {
	case group.Opened:
		l := link{r.Group, r.Member, result.Attach}
		if r.Peer == nil || r.Peer.Ended() {
			gone = &group.Gone{Group: r.Group, Member: r.Member, Attach: result.Attach}
		} else {
			s.links[l] = r.Peer
		}
		r.Attach = result.Attach
	case group.Left:
		delete(s.links, link{r.Group, r.Member, r.Attach})
	}
	s.answer(r, e)
	return gone
}

func (s *Shard) answer(r Request, e group.Reply) {
	if r.Done != nil {
		r.Done(e)
	}
}

// send passes a message on to the member's stream, if it is still there.
func (s *Shard) send(e group.Send) {
	l := link{e.Group, e.Member, e.Attach}
	peer := s.links[l]
	if peer == nil {
		return
	}
	if f, ok := e.Message.(group.Fenced); ok && f.Err.Reason != group.ReasonInstanceFenced {
		// A fenced instance stays linked: its partitions move when its stream ends.
		delete(s.links, l)
	}
	peer.Send(e.Group, e.Member, e.Attach, e.Message)
}
