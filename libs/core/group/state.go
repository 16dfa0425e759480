package group

import (
	"maps"
	"slices"
	"time"
)

// phase is where a shard stands.
type phase uint8

const (
	idle    phase = iota // not ours
	fencing              // ours, the first append of this attempt is on its way
	loading              // fenced, reading the log
	serving
)

// State is one shard. It is not safe for use by several goroutines at once.
type State struct {
	cfg     Config
	phase   phase
	epoch   int64
	attempt int32
	groups  map[string]*group
	view    *TopicView
	// deleted holds every topic id seen with a deletion record: nothing is
	// committed for them any more. Nor is it for those in vanished, which an earlier
	// view had and the present one lacks; what was committed for them stays.
	deleted, vanished map[TopicID]bool
	// lastAttach is the highest attach number given out or read. A number is never
	// given twice, also not to a later membership of the same id: what is still on
	// its way from a stream of the earlier one must not count for the later.
	lastAttach int64

	// flight is the append on its way, gathering what the next one will carry. An
	// answer is put into gathering when its cause arrives, and released when the
	// append that carries it has committed, which therefore began later.
	flight, gathering *op
	lastOp            Op
	retryAt           time.Duration // when flight, or the fence, is tried again; 0: no need
	wake              time.Duration // earliest time at which something may be due; 0: none
	toldWake          time.Duration
	dirty             map[string]bool // groups to rebalance at the end of this step
	moved             map[string]bool // groups in which holders changed in this step
	asking            map[string]bool // groups with starts to be asked for
	resetting         map[string]bool // groups with resets under way
	lastJob           uint64          // of ResolveStart
	step              uint64
	out               []Effect
}

// op is one append or barrier with the answers that wait for it.
type op struct {
	id    Op
	kvs   []KV
	bytes int // of kvs, about
	held  []held
	began uint64 // step in which its append was asked for; 0: not yet
}

// held is an answer with the step of its cause.
type held struct {
	effect Effect
	cause  uint64
}

// New makes a shard that nobody owns. The config must be valid.
func New(cfg Config) *State {
	return &State{
		cfg:       cfg,
		groups:    make(map[string]*group),
		view:      NewTopicView(nil),
		deleted:   make(map[TopicID]bool),
		vanished:  make(map[TopicID]bool),
		dirty:     make(map[string]bool),
		moved:     make(map[string]bool),
		asking:    make(map[string]bool),
		resetting: make(map[string]bool),
	}
}

// Serving says whether the shard is fenced and loaded.
func (s *State) Serving() bool { return s.phase == serving }

// Quiet says that no append is on its way and no answer waits for one.
func (s *State) Quiet() bool { return s.flight == nil && s.gathering == nil }

// Step takes in one event and returns what to do, in order. Now never goes back.
func (s *State) Step(now Now, ev Event) []Effect {
	s.step++
	s.out = nil
	switch e := ev.(type) {
	case Claim:
		s.claim(e)
	case FenceResult:
		s.fenceResult(now, e)
	case LoadFailed:
		if s.phase == loading {
			s.phase = fencing
			s.fenceResult(now, FenceResult{OK: false})
		}
	case Replayed:
		if s.phase == loading {
			s.replay(e.KV)
		}
	case Loaded:
		if s.phase == loading {
			s.loaded(now)
		}
	case Deposed:
		s.drop(false)
		s.phase = idle
	case Topics:
		s.topics(now, e)
	case Start:
		s.start(now, e)
	case Committed:
		s.committed(e)
	case Failed:
		s.failed(now, e)
	case Tick:
		s.tick(now)
	default:
		s.request(now, ev)
	}
	s.finish(now)
	return s.out
}

// request handles what comes from members and administrators.
func (s *State) request(now Now, ev Event) {
	if refusal := s.refusal(); refusal != nil {
		if req, ok := requestOf(ev); ok {
			s.out = append(s.out, Reply{Req: req, Err: refusal})
			return
		}
		if s.phase != serving {
			return
		}
	}
	switch e := ev.(type) {
	case Open:
		s.open(now, e)
	case Ack:
		s.ack(now, e)
	case Commit:
		s.commit(now, e)
	case AdminCommit:
		s.adminCommit(now, e)
	case Ping:
		s.ping(now, e)
	case Revoking:
		s.heed(now, e)
	case Leave:
		s.leave(now, e)
	case Gone:
		s.gone(now, e)
	case FetchOffsets:
		s.fetchOffsets(e)
	case Describe:
		s.describe(now, e)
	case ResetOffsets:
		s.resetOffsets(now, e)
	case Simulate:
		s.simulate(e)
	case Delete:
		s.deleteGroup(e)
	}
}

// refusal says why no request can be looked at now; nil: it can.
func (s *State) refusal() *Error {
	switch {
	case s.phase == idle:
		return errorf(ReasonShardLost, "this coordinator does not own the group's shard; ask for the owner and try there")
	case s.phase != serving:
		return errorf(ReasonLoading, "the group's shard is being loaded; try again shortly")
	case s.gathering != nil && (len(s.gathering.held) >= s.cfg.MaxQueued || s.gathering.bytes >= s.cfg.MaxQueuedBytes):
		return errorf(ReasonOverloaded, "%d answers with %d bytes already wait for the log of the group's shard; try again later",
			len(s.gathering.held), s.gathering.bytes)
	}
	return nil
}

// requestOf finds the request number of events that are answered.
func requestOf(ev Event) (uint64, bool) {
	switch e := ev.(type) {
	case Open:
		return e.Req, true
	case Commit:
		return e.Req, true
	case AdminCommit:
		return e.Req, true
	case Ping:
		return e.Req, true
	case Leave:
		return e.Req, true
	case FetchOffsets:
		return e.Req, true
	case Describe:
		return e.Req, true
	case ResetOffsets:
		return e.Req, true
	case Simulate:
		return e.Req, true
	case Delete:
		return e.Req, true
	}
	return 0, false
}

// claim begins a new ownership. A repeated or older claim changes nothing.
func (s *State) claim(e Claim) {
	if s.phase != idle && e.Epoch <= s.epoch {
		return
	}
	if s.phase != idle {
		s.drop(true)
	}
	s.epoch, s.attempt = e.Epoch, 0
	s.phase, s.retryAt = fencing, 0
	s.out = append(s.out, Fence{Epoch: s.epoch, Attempt: s.attempt})
}

func (s *State) fenceResult(now Now, e FenceResult) {
	if s.phase != fencing {
		return
	}
	if !e.OK {
		s.attempt++
		s.due(&s.retryAt, now.Mono+s.cfg.RetryDelay)
		return
	}
	s.phase = loading
	s.groups = make(map[string]*group)
	s.out = append(s.out, Load{})
}

// drop forgets everything, answering what waits. What was gathered was never sent,
// so it is not done; of what is in flight nothing is known.
func (s *State) drop(reload bool) {
	if s.phase == idle {
		return
	}
	reason, text := ReasonShardLost, "this coordinator lost the group's shard; ask for the owner"
	if reload {
		reason, text = ReasonLoading, "the group's shard is loaded again after an append whose outcome is unknown; try again shortly"
	}
	for _, o := range []*op{s.flight, s.gathering} {
		if o == nil {
			continue
		}
		for _, h := range o.held {
			if r, ok := h.effect.(Reply); ok {
				s.out = append(s.out, Reply{Req: r.Req, Err: &Error{Reason: reason, Message: text, Unknown: o.began != 0}})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.resetting)) {
		if g := s.groups[name]; g != nil {
			g.refuseResets(func(req uint64) {
				s.out = append(s.out, Reply{Req: req, Err: &Error{Reason: reason, Message: text, Unknown: true}})
			})
		}
	}
	s.flight, s.gathering, s.retryAt = nil, nil, 0
	s.groups = make(map[string]*group)
	clear(s.dirty)
	clear(s.moved)
	clear(s.asking)
	clear(s.resetting)
	s.wake = 0
	s.out = append(s.out, Abandon{Reload: reload})
}

func (s *State) committed(e Committed) {
	if s.flight == nil || s.flight.id != e.Op {
		return
	}
	done := s.flight
	s.flight = nil
	for _, h := range done.held {
		s.out = append(s.out, h.effect)
	}
}

func (s *State) failed(now Now, e Failed) {
	if s.flight == nil || s.flight.id != e.Op {
		return
	}
	if e.Kind == NotDone {
		s.due(&s.retryAt, now.Mono+s.cfg.RetryDelay)
		return
	}
	s.drop(true)
	s.phase = fencing
	s.attempt++
	s.out = append(s.out, Fence{Epoch: s.epoch, Attempt: s.attempt})
}

// due sets a deadline and sees to it that a Tick comes by then.
func (s *State) due(at *time.Duration, when time.Duration) {
	*at = when
	s.wakeBy(when)
}

func (s *State) wakeBy(when time.Duration) {
	if s.wake == 0 || when < s.wake {
		s.wake = when
	}
}

// hold keeps an answer until an append or barrier begun after now has committed.
func (s *State) hold(e Effect) {
	if s.gathering == nil {
		s.gathering = &op{}
	}
	s.gathering.held = append(s.gathering.held, held{effect: e, cause: s.step})
}

func (s *State) reply(req uint64, r Result)  { s.hold(Reply{Req: req, Result: r}) }
func (s *State) refuse(req uint64, e *Error) { s.hold(Reply{Req: req, Err: e}) }

// write adds a record to the next append.
func (s *State) write(k Key, v Value) {
	if s.gathering == nil {
		s.gathering = &op{}
	}
	s.gathering.kvs = append(s.gathering.kvs, KV{Key: k, Value: v})
	s.gathering.bytes += sizeOf(k, v)
}

// finish does what is due at the end of each step: rebalances, the next append,
// and the wake-up.
func (s *State) finish(now Now) {
	if s.phase == serving {
		for _, name := range slices.Sorted(maps.Keys(s.dirty)) {
			if g := s.groups[name]; g != nil {
				s.rebalance(now, g)
			}
		}
		clear(s.dirty)
		s.finishGroups(now)
		if s.flight == nil && s.gathering != nil {
			s.flight, s.gathering = s.gathering, nil
			s.lastOp++
			s.flight.id, s.flight.began = s.lastOp, s.step
			s.emitFlight()
		}
	}
	if s.wake != 0 && s.wake != s.toldWake {
		s.out = append(s.out, WakeAt{Mono: s.wake})
	}
	s.toldWake = s.wake
}

// finishGroups does what is due once holders and targets are what they will be after
// this step: resets of what has come free, questions for starts, and the end of
// rebalances.
func (s *State) finishGroups(now Now) {
	for _, name := range slices.Sorted(maps.Keys(s.resetting)) {
		g := s.groups[name]
		if g != nil {
			s.applyResets(now, g)
		}
		if g == nil || len(g.resets) == 0 {
			delete(s.resetting, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.asking)) {
		if g := s.groups[name]; g != nil {
			s.askStarts(g)
		}
	}
	clear(s.asking)
	for _, name := range slices.Sorted(maps.Keys(s.moved)) {
		if g := s.groups[name]; g != nil {
			s.settled(now, g)
		}
	}
	clear(s.moved)
}

func (s *State) emitFlight() {
	if len(s.flight.kvs) == 0 {
		s.out = append(s.out, Barrier{Op: s.flight.id})
		return
	}
	s.out = append(s.out, Append{Op: s.flight.id, KVs: s.flight.kvs})
}

// tick retries, expels the silent and the slow, and starts rebalances whose time
// has come. Deadlines of members only move away as they give signs of life, so
// wake is a lower bound and looking at everything is needed only when it passes.
func (s *State) tick(now Now) {
	if s.wake == 0 || now.Mono < s.wake {
		s.toldWake = 0 // woken early: ask again
		return
	}
	s.wake, s.toldWake = 0, 0
	if s.retryAt != 0 {
		if now.Mono >= s.retryAt {
			s.retryAt = 0
			switch {
			case s.phase == fencing:
				s.out = append(s.out, Fence{Epoch: s.epoch, Attempt: s.attempt})
			case s.flight != nil:
				s.emitFlight()
			}
		} else {
			s.wakeBy(s.retryAt)
		}
	}
	if s.phase != serving {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		s.tickGroup(now, s.groups[name])
	}
}

func (s *State) tickGroup(now Now, g *group) {
	for _, m := range g.sorted() {
		at, why := m.deadline()
		if now.Mono >= at {
			s.expel(now, g, m, why())
			continue
		}
		s.wakeBy(at)
	}
	if g.expireAt != 0 && now.Mono >= g.expireAt {
		s.purge(g)
		return
	}
	s.giveBackResets(now, g)
	if g.startsAt != 0 && now.Mono >= g.startsAt {
		s.retryStarts(g)
	}
	for _, at := range []time.Duration{g.expireAt, g.rebalanceAt, g.startsAt} {
		if at > now.Mono {
			s.wakeBy(at)
		}
	}
	if g.rebalanceAt != 0 && now.Mono >= g.rebalanceAt {
		s.dirty[g.name] = true
	}
}

// topics takes in a new view. Groups that subscribe to what changed get a new
// target; offsets go with deletion records.
func (s *State) topics(now Now, e Topics) {
	old := s.view
	if e.View != nil {
		s.view = e.View
		s.vanish(old)
	}
	var gone []TopicID
	for _, id := range e.Deleted {
		if !s.deleted[id] {
			s.deleted[id] = true
			gone = append(gone, id)
		}
	}
	if s.phase != serving {
		return
	}
	changed := changedNames(old, s.view)
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		g := s.groups[name]
		s.dropOffsets(g, gone)
		if len(changed) > 0 && g.subscribes(changed) {
			g.because("the topics subscribed to changed")
			s.dirty[g.name] = true
		}
	}
}

// vanish notes what the view before had and the present one lacks. Views are never
// older than the one before.
func (s *State) vanish(old *TopicView) {
	for id := range old.byID {
		s.vanished[id] = true
	}
	for id := range s.view.byID {
		delete(s.vanished, id)
	}
}
