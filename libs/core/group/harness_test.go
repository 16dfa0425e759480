package group

import (
	"testing"
	"time"
)

// shard drives a State whose log commits at once unless told otherwise.
type shard struct {
	t       testing.TB
	s       *State
	now     Now
	log     []KV
	lax     bool // do not check everything after each step
	hold    bool // leave appends unanswered
	open    []Op
	pending [][]KV
	fences  []Fence
	replies map[uint64]Reply
	sent    []Send
	wake    time.Duration
	lastReq uint64
	abandon []Abandon
	asked   []ResolveStart
	unasked bool                   // leave questions for starts unanswered
	startAt func(Part) StartResult // nil: at 100, or at 10 for the policy earliest
}

func topicID(n byte) TopicID { return TopicID{n} }

func view(topics ...Topic) *TopicView { return NewTopicView(topics) }

func newShard(t testing.TB, cfg Config, topics ...Topic) *shard {
	t.Helper()
	h := &shard{t: t, s: New(cfg), now: Now{Mono: time.Second, WallMs: 1_000}, replies: make(map[uint64]Reply)}
	h.step(Topics{View: view(topics...)})
	h.step(Claim{Epoch: 1})
	if !h.s.Serving() {
		t.Fatal("the shard does not serve after claim, fence and load")
	}
	return h
}

func (h *shard) step(ev Event) {
	h.t.Helper()
	todo := h.s.Step(h.now, ev)
	h.check()
	for len(todo) > 0 {
		e := todo[0]
		todo = todo[1:]
		var next Event
		switch e := e.(type) {
		case Fence:
			h.fences = append(h.fences, e)
			next = FenceResult{OK: true}
		case Load:
			h.load()
			next = Loaded{}
		case Append:
			next = h.append(e.Op, e.KVs)
		case Barrier:
			next = h.append(e.Op, nil)
		case Reply:
			if _, dup := h.replies[e.Req]; dup {
				h.t.Fatalf("request %d was answered twice", e.Req)
			}
			h.replies[e.Req] = e
		case Send:
			h.sent = append(h.sent, e)
		case ResolveStart:
			h.asked = append(h.asked, e)
			if !h.unasked {
				next = h.found(e)
			}
		case WakeAt:
			h.wake = e.Mono
		case Abandon:
			h.open, h.pending = nil, nil
			h.abandon = append(h.abandon, e)
		}
		if next != nil {
			todo = append(todo, h.s.Step(h.now, next)...)
			h.check()
		}
	}
}

// found answers a question for starts.
func (h *shard) found(e ResolveStart) Start {
	answer := Start{Job: e.Job, Group: e.Group}
	for _, p := range e.Parts {
		r := StartResult{Part: p, Next: 100, LeaderEpoch: -1}
		switch {
		case h.startAt != nil:
			r = h.startAt(p)
		case e.Policy.Kind == StartEarliest:
			r.Next = 10
		}
		answer.Results = append(answer.Results, r)
	}
	return answer
}

func (h *shard) check() {
	h.t.Helper()
	if h.lax {
		return
	}
	if err := h.s.Check(); err != nil {
		h.t.Fatalf("%v", err)
	}
}

func (h *shard) append(op Op, kvs []KV) Event {
	if h.hold {
		h.open, h.pending = append(h.open, op), append(h.pending, kvs)
		return nil
	}
	h.log = append(h.log, kvs...)
	return Committed{Op: op}
}

// commitOpen answers the appends that were held back.
func (h *shard) commitOpen() {
	h.t.Helper()
	for len(h.open) > 0 {
		op, kvs := h.open[0], h.pending[0]
		h.open, h.pending = h.open[1:], h.pending[1:]
		h.log = append(h.log, kvs...)
		h.step(Committed{Op: op})
	}
}

func (h *shard) load() {
	for _, kv := range h.log {
		h.s.Step(h.now, Replayed{KV: kv})
	}
}

// change gives the shard to a new owner.
func (h *shard) change(epoch int64) {
	h.t.Helper()
	h.step(Deposed{})
	h.step(Claim{Epoch: epoch})
}

// pass lets time go by, waking the shard as it asks.
func (h *shard) pass(d time.Duration) {
	h.t.Helper()
	end := h.now.Mono + d
	for h.wake != 0 && h.wake <= end {
		h.now.WallMs += (h.wake - h.now.Mono).Milliseconds()
		h.now.Mono, h.wake = max(h.now.Mono, h.wake), 0
		h.step(Tick{})
	}
	h.now.WallMs += (end - h.now.Mono).Milliseconds()
	h.now.Mono = end
}

func (h *shard) req() uint64 {
	h.lastReq++
	return h.lastReq
}

// ask sends a request and returns its answer, which must have come.
func (h *shard) ask(ev Event) Reply {
	h.t.Helper()
	h.step(ev)
	r, ok := h.replies[h.lastReq]
	if !ok {
		h.t.Fatalf("%T was not answered", ev)
	}
	return r
}

// peer is a member as a well-behaved client plays it.
type peer struct {
	h                   *shard
	group, id, instance string
	topics              []string
	attach, epoch, seq  int64
	held                map[Part]int64
	slow                bool // keeps revoked partitions until giveUp
	revoking            map[Part]int64
	session, rebalance  time.Duration
	assignor            string
	start               StartPolicy
	maxProcessing       time.Duration
	silence             time.Duration // that its frames tell of
	fenced              *Error
	seen                int
	assignments         int
}

func (h *shard) peer(id string, topics ...string) *peer {
	return &peer{h: h, group: "g", id: id, topics: topics, held: make(map[Part]int64), revoking: make(map[Part]int64)}
}

func (p *peer) join() *peer {
	p.h.t.Helper()
	if err := p.tryJoin(); err != nil {
		p.h.t.Fatalf("%s cannot join: %v", p.id, err)
	}
	p.read()
	return p
}

func (p *peer) tryJoin() *Error {
	p.h.t.Helper()
	e := Open{
		Req: p.h.req(), Group: p.group, Member: p.id, Instance: p.instance, Topics: p.topics,
		Attach: p.attach, SessionTimeout: p.session, RebalanceTimeout: p.rebalance, Assignor: p.assignor,
		Start: p.start, MaxProcessing: p.maxProcessing, Silence: p.silence,
	}
	e.Owned = p.owned()
	p.seen = len(p.h.sent)
	r := p.h.ask(e)
	if r.Err != nil {
		return r.Err
	}
	p.attach, p.seq = r.Result.(Opened).Attach, 0
	return nil
}

func (p *peer) owned() []Owned {
	var owned []Owned
	for part, epoch := range p.held {
		owned = append(owned, Owned{Part: part, Epoch: epoch})
	}
	for part, epoch := range p.revoking {
		if _, ok := p.held[part]; !ok {
			owned = append(owned, Owned{Part: part, Epoch: epoch})
		}
	}
	return owned
}

// read takes in what was sent to the member and acknowledges it.
func (p *peer) read() {
	p.h.t.Helper()
	for p.seen < len(p.h.sent) {
		e := p.h.sent[p.seen]
		p.seen++
		if e.Member != p.id || e.Group != p.group || e.Attach != p.attach {
			continue
		}
		switch msg := e.Message.(type) {
		case Fenced:
			p.fenced = msg.Err
			clear(p.held)
			clear(p.revoking)
		case Assignment:
			p.take(msg)
			p.ack()
		}
	}
}

// latest is the newest assignment sent to the member.
func (p *peer) latest() Assignment {
	p.h.t.Helper()
	for i := len(p.h.sent) - 1; i >= 0; i-- {
		if a, ok := p.h.sent[i].Message.(Assignment); ok && p.h.sent[i].Member == p.id {
			return a
		}
	}
	p.h.t.Fatalf("no assignment was sent to %s", p.id)
	return Assignment{}
}

// take changes what the member holds, without saying so.
func (p *peer) take(a Assignment) {
	p.assignments++
	next := make(map[Part]int64)
	for _, at := range a.Partitions {
		next[at.Part] = at.Epoch
	}
	for part, epoch := range p.held {
		if next[part] != epoch && p.slow {
			p.revoking[part] = epoch
		}
	}
	p.held, p.epoch = next, a.Epoch
}

func (p *peer) ack() {
	p.h.t.Helper()
	p.h.step(Ack{Group: p.group, Member: p.id, Attach: p.attach, Epoch: p.epoch, Owned: p.owned(), Silence: p.silence})
}

func (p *peer) giveUp() {
	p.h.t.Helper()
	clear(p.revoking)
	p.ack()
	p.read()
}

func (p *peer) commit(part Part, next int64) *Error {
	p.h.t.Helper()
	p.seq++
	return p.commitAs(p.attach, p.epoch, p.seq, OffsetCommit{Part: part, NextOffset: next, LeaderEpoch: 3, AssignmentEpoch: p.held[part]})
}

func (p *peer) commitAs(attach, epoch, seq int64, o OffsetCommit) *Error {
	p.h.t.Helper()
	r := p.h.ask(Commit{Req: p.h.req(), Group: p.group, Member: p.id, Attach: attach, Epoch: epoch, Sequence: seq, Offsets: []OffsetCommit{o}, Silence: p.silence})
	if r.Err != nil {
		return r.Err
	}
	for _, e := range r.Result.(CommitDone).Refused {
		return e.Err
	}
	return nil
}

func (p *peer) ping(progress ...Progress) *Error {
	p.h.t.Helper()
	return p.h.ask(Ping{Req: p.h.req(), Group: p.group, Member: p.id, Attach: p.attach, Progress: progress, Silence: p.silence}).Err
}

func (p *peer) leave() {
	p.h.t.Helper()
	if r := p.h.ask(Leave{Req: p.h.req(), Group: p.group, Member: p.id, Attach: p.attach}); r.Err != nil {
		p.h.t.Fatalf("%s cannot leave: %v", p.id, r.Err)
	}
	clear(p.held)
}

func (p *peer) gone() {
	p.h.t.Helper()
	p.h.step(Gone{Group: p.group, Member: p.id, Attach: p.attach})
}

// offset asks for the committed offset of a partition.
func (h *shard) offset(part Part) int64 {
	h.t.Helper()
	r := h.ask(FetchOffsets{Req: h.req(), Group: "g", Parts: []Part{part}})
	return r.Result.(Offsets).Offsets[0].NextOffset
}

func (h *shard) describe(g string) Description {
	h.t.Helper()
	r := h.ask(Describe{Req: h.req(), Group: g})
	if r.Err != nil {
		h.t.Fatalf("describe %s: %v", g, r.Err)
	}
	return r.Result.(Described).Description
}
