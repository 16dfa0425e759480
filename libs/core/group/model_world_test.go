package group

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"
)

type world struct {
	s       *State
	now     Now
	log     []KV
	flight  *Append
	epoch   int64
	fence   bool
	load    bool
	wake    time.Duration
	clients []*client
	gones   []Gone
	links   map[link]linked
	routes  map[uint64]func(*rapid.T, Reply)
	req     uint64
	born    int
	topics  map[string]Topic
	deleted []TopicID
	topicNo byte
	asked   []ResolveStart
	resets  int64          // offsets that resets set: resetBase and above
	resetAt map[Part]int64 // group epoch of the newest reset that was applied
	seen    map[Part]int64 // its offset
}

// resetBase is above every offset that is committed or found otherwise.
const resetBase = 1 << 20

type link struct {
	member string
	attach int64
}

type linked struct {
	c   *client
	gen int
}

// client is a process with one member of group g.
type client struct {
	id, instance string
	topics       []string
	start        StartPolicy
	gen          int // of its stream
	up, dead     bool
	attached     bool
	attach       int64
	epoch, seq   int64
	held         map[Part]int64 // in use, by assignment epoch
	ending       map[Part]int64 // revoked, and still in use
	next         map[Part]int64 // given again while an older tenure is ending
	mustAck      bool
	outbox       []Event
	inbox        []Effect
}

func newWorld(t *rapid.T) *world {
	w := &world{
		s: New(DefaultConfig()), now: Now{Mono: time.Second, WallMs: 1}, links: make(map[link]linked),
		routes: make(map[uint64]func(*rapid.T, Reply)), topics: make(map[string]Topic),
		resets: resetBase, resetAt: make(map[Part]int64), seen: make(map[Part]int64),
	}
	w.setTopic("a", 3)
	w.start(t)
	return w
}

func (w *world) setTopic(name string, partitions int32) {
	old, ok := w.topics[name]
	if !ok {
		w.topicNo++
		old = Topic{ID: topicID(w.topicNo), Name: name}
	}
	old.Partitions = partitions
	w.topics[name] = old
}

func (w *world) view() Topics {
	return Topics{View: NewTopicView(slices.Collect(maps.Values(w.topics))), Deleted: w.deleted}
}

// start lets a coordinator claim the shard.
func (w *world) start(t *rapid.T) {
	w.epoch++
	w.s = New(DefaultConfig())
	w.wake = 0
	w.step(t, w.view())
	w.step(t, Claim{Epoch: w.epoch})
}

func (w *world) step(t *rapid.T, ev Event) {
	for _, e := range w.s.Step(w.now, ev) {
		switch e := e.(type) {
		case Fence:
			w.fence = true
		case Load:
			w.load = true
		case ResolveStart:
			w.asked = append(w.asked, e)
		case Append:
			w.flight = &e
		case Barrier:
			w.flight = &Append{Op: e.Op}
		case Reply:
			route := w.routes[e.Req]
			if route == nil {
				t.Fatalf("request %d was answered twice", e.Req)
			}
			delete(w.routes, e.Req)
			route(t, e)
		case Send:
			if l, ok := w.links[link{e.Member, e.Attach}]; ok && l.gen == l.c.gen {
				l.c.inbox = append(l.c.inbox, e)
			}
		case WakeAt:
			w.wake = e.Mono
		case Abandon:
			w.flight = nil
			for _, l := range w.links {
				if l.gen == l.c.gen {
					l.c.disconnect()
				}
			}
			clear(w.links)
		}
	}
	if err := w.s.Check(); err != nil {
		t.Fatalf("after %T: %v", ev, err)
	}
	w.checkResets(t)
}

// some picks one client that fits; nil: none does.
func (w *world) some(t *rapid.T, fits func(*client) bool) *client {
	var all []*client
	for _, c := range w.clients {
		if !c.dead && fits(c) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[rapid.IntRange(0, len(all)-1).Draw(t, "client")]
}

func (c *client) disconnect() {
	c.gen++
	c.up, c.attached, c.mustAck = false, false, false
	c.inbox, c.outbox = nil, nil
}

// end stops a client for good: it uses nothing any more.
func (c *client) end() {
	c.disconnect()
	c.dead = true
	clear(c.held)
	clear(c.ending)
	clear(c.next)
}

func (c *client) owned() []Owned {
	var out []Owned
	for _, p := range sortedParts(c.held) {
		out = append(out, Owned{Part: p, Epoch: c.held[p]})
	}
	for _, p := range sortedParts(c.ending) {
		out = append(out, Owned{Part: p, Epoch: c.ending[p]})
	}
	return out
}

func (w *world) newClient(t *rapid.T) {
	alive := 0
	for _, c := range w.clients {
		if !c.dead {
			alive++
		}
	}
	if alive >= 5 {
		return
	}
	w.born++
	c := &client{id: fmt.Sprintf("c%d", w.born), held: make(map[Part]int64), ending: make(map[Part]int64), next: make(map[Part]int64)}
	c.instance = rapid.SampledFrom([]string{"", "", "i0", "i1"}).Draw(t, "instance")
	c.topics = rapid.SampledFrom([][]string{{"a"}, {"a", "b"}, {"b"}}).Draw(t, "topics")
	c.start.Kind = rapid.SampledFrom([]StartKind{StartLeft, StartEarliest, StartLatest}).Draw(t, "start")
	w.clients = append(w.clients, c)
	w.sendOpen(c)
}

func (w *world) sendOpen(c *client) {
	c.up = true
	gen := c.gen
	e := Open{Req: w.nextReq(), Group: "g", Member: c.id, Instance: c.instance, Topics: c.topics, Attach: c.attach, Owned: c.owned(), Start: c.start}
	w.routes[e.Req] = func(_ *rapid.T, r Reply) {
		opened, ok := r.Result.(Opened)
		current := gen == c.gen && !c.dead
		if ok && current {
			w.links[link{c.id, opened.Attach}] = linked{c, gen}
		} else if ok {
			w.gones = append(w.gones, Gone{"g", c.id, opened.Attach})
		}
		if current {
			c.inbox = append(c.inbox, r)
		}
	}
	c.outbox = append(c.outbox, e)
}

func (w *world) nextReq() uint64 {
	w.req++
	return w.req
}

func (w *world) reopen(t *rapid.T) {
	if c := w.some(t, func(c *client) bool { return !c.up }); c != nil {
		w.sendOpen(c)
	}
}

// toServer lets one frame of one client arrive.
func (w *world) toServer(t *rapid.T) {
	if c := w.some(t, func(c *client) bool { return len(c.outbox) > 0 }); c != nil {
		w.arrive(t, c)
	}
}

func (w *world) arrive(t *rapid.T, c *client) {
	ev := c.outbox[0]
	c.outbox = c.outbox[1:]
	if req, ok := requestOf(ev); ok && w.routes[req] == nil {
		w.routes[req] = w.toInbox(c)
	}
	commit, isCommit := ev.(Commit)
	before := w.offset(commit)
	w.step(t, ev)
	if isCommit && w.offset(commit) != before {
		w.checkCommitter(t, c, commit.Offsets[0].Part)
		if o := commit.Offsets[0]; o.AssignmentEpoch < w.resetAt[o.Part] {
			t.Fatalf("%s committed %+v, read before the reset in epoch %d", c.id, o, w.resetAt[o.Part])
		}
	}
}

// offset is the offset that a commit is about.
func (w *world) offset(e Commit) OffsetValue {
	if g := w.s.groups["g"]; g != nil && len(e.Offsets) > 0 {
		return g.offsets[e.Offsets[0].Part]
	}
	return OffsetValue{}
}

// checkCommitter says that nobody else who is a member uses the partition.
func (w *world) checkCommitter(t *rapid.T, c *client, p Part) {
	for _, other := range w.clients {
		if other != c && other.uses(p) && w.member(other) != nil {
			t.Fatalf("%s committed %v while %s uses it", c.id, p, other.id)
		}
	}
}

func (c *client) uses(p Part) bool {
	_, held := c.held[p]
	_, ending := c.ending[p]
	return held || ending
}

func (w *world) member(c *client) *member {
	if g := w.s.groups["g"]; g != nil {
		return g.members[c.id]
	}
	return nil
}

// toInbox routes an answer back on the stream it came from.
func (w *world) toInbox(c *client) func(*rapid.T, Reply) {
	gen := c.gen
	return func(_ *rapid.T, r Reply) {
		if gen == c.gen {
			c.inbox = append(c.inbox, r)
		}
	}
}

// toClient lets one message reach one client.
func (w *world) toClient(t *rapid.T) {
	if c := w.some(t, func(c *client) bool { return len(c.inbox) > 0 }); c != nil {
		w.receive(t, c, rapid.Bool().Draw(t, "slow"), rapid.Bool().Draw(t, "acknowledge at once"))
	}
}

func (w *world) receive(t *rapid.T, c *client, slow, ack bool) {
	e := c.inbox[0]
	c.inbox = c.inbox[1:]
	switch e := e.(type) {
	case Send:
		switch m := e.Message.(type) {
		case Assignment:
			for _, at := range m.Partitions {
				if at.Start < 0 && c.start.Kind != StartLeft {
					t.Fatalf("%s is assigned %+v without a start", c.id, at)
				}
			}
			c.take(m, slow)
			if ack {
				w.sendAck(c)
			}
		case Fenced:
			c.end()
		}
	case Reply:
		w.answered(c, e)
	}
}

func (w *world) answered(c *client, r Reply) {
	if r.Err != nil {
		if r.Err.Reason == ReasonLoading || r.Err.Reason == ReasonShardLost {
			c.disconnect()
			return
		}
		c.end()
		return
	}
	if o, ok := r.Result.(Opened); ok {
		c.attach, c.epoch, c.seq, c.attached = o.Attach, max(c.epoch, o.MemberEpoch), 0, true
	}
}

// take changes what the client uses. A slow one goes on with what it must give up.
func (c *client) take(a Assignment, slow bool) {
	clear(c.next)
	assigned := make(map[Part]int64)
	for _, at := range a.Partitions {
		assigned[at.Part] = at.Epoch
	}
	for p, epoch := range c.held {
		if assigned[p] != epoch {
			delete(c.held, p)
			if slow {
				c.ending[p] = epoch
			}
		}
	}
	for p, epoch := range assigned {
		if _, busy := c.ending[p]; busy {
			c.next[p] = epoch
			continue
		}
		c.held[p] = epoch
	}
	c.epoch, c.mustAck = a.Epoch, true
}

func (w *world) sendAck(c *client) {
	c.mustAck = false
	c.outbox = append(c.outbox, Ack{Group: "g", Member: c.id, Attach: c.attach, Epoch: c.epoch, Owned: c.owned()})
}

func (w *world) acknowledge(t *rapid.T) {
	if c := w.some(t, func(c *client) bool { return c.mustAck && c.attached }); c != nil {
		w.sendAck(c)
	}
}

func (w *world) giveUp(t *rapid.T) {
	if c := w.some(t, func(c *client) bool { return len(c.ending) > 0 }); c != nil {
		w.finishEnding(c)
	}
}

// finishEnding gives up what was revoked and takes what was waiting for it.
func (w *world) finishEnding(c *client) {
	for p := range c.ending {
		delete(c.ending, p)
		if epoch, ok := c.next[p]; ok {
			c.held[p] = epoch
			delete(c.next, p)
		}
	}
	if c.attached {
		w.sendAck(c)
	}
}

func (w *world) commit(t *rapid.T) {
	c := w.some(t, func(c *client) bool { return c.attached && !c.mustAck && len(c.owned()) > 0 })
	if c == nil {
		return
	}
	o := rapid.SampledFrom(c.owned()).Draw(t, "partition")
	c.seq++
	e := Commit{
		Req: w.nextReq(), Group: "g", Member: c.id, Attach: c.attach, Epoch: c.epoch, Sequence: c.seq,
		Offsets: []OffsetCommit{{Part: o.Part, NextOffset: rapid.Int64Range(0, 100).Draw(t, "offset"), AssignmentEpoch: o.Epoch}},
	}
	back := w.toInbox(c)
	w.routes[e.Req] = func(t *rapid.T, r Reply) {
		if done, ok := r.Result.(CommitDone); ok && len(done.Refused) == 0 {
			w.checkInLog(t, e)
		}
		back(t, r)
	}
	c.outbox = append(c.outbox, e)
}

// checkInLog says that an acknowledged commit is in the log.
func (w *world) checkInLog(t *rapid.T, e Commit) {
	for _, kv := range w.log {
		if v, ok := kv.Value.(OffsetValue); ok && kv.Key.Part == e.Offsets[0].Part && v.Member == e.Member &&
			v.Attach == e.Attach && v.Sequence == e.Sequence && v.NextOffset == e.Offsets[0].NextOffset {
			return
		}
	}
	t.Fatalf("commit %+v was acknowledged and is not in the log", e)
}

// staleCommit is a commit with arbitrary numbers, as of a process that slept.
func (w *world) staleCommit(t *rapid.T) {
	if len(w.clients) == 0 || w.s.groups["g"] == nil {
		return
	}
	g := w.s.groups["g"]
	c := rapid.SampledFrom(w.clients).Draw(t, "any client")
	e := Commit{
		Req: w.nextReq(), Group: "g", Member: c.id, Sequence: rapid.Int64Range(0, 9).Draw(t, "sequence"),
		Attach: rapid.Int64Range(0, c.attach+1).Draw(t, "attach"), Epoch: rapid.Int64Range(0, g.epoch+1).Draw(t, "epoch"),
	}
	p := Part{topicID(byte(rapid.IntRange(1, 3).Draw(t, "topic"))), int32(rapid.IntRange(0, 3).Draw(t, "partition"))}
	e.Offsets = []OffsetCommit{{Part: p, NextOffset: 1000, AssignmentEpoch: rapid.Int64Range(0, g.epoch).Draw(t, "assignment epoch")}}
	w.routes[e.Req] = func(*rapid.T, Reply) {}
	before := w.offset(e)
	m := w.member(c)
	var h *holding
	if m != nil {
		h = m.owned[p]
	}
	allowed := h != nil && m.value.ReplacedBy == "" && e.Attach == m.value.Attach && h.epoch == e.Offsets[0].AssignmentEpoch &&
		h.epoch <= e.Epoch && e.Epoch <= m.value.Epoch
	w.step(t, e)
	if w.offset(e) != before && !allowed {
		t.Fatalf("the stale commit %+v changed the offset", e)
	}
}

func (w *world) ping(t *rapid.T) {
	if c := w.some(t, func(c *client) bool { return c.attached }); c != nil {
		c.outbox = append(c.outbox, Ping{Req: w.nextReq(), Group: "g", Member: c.id, Attach: c.attach})
	}
}

func (w *world) leave(t *rapid.T) {
	c := w.some(t, func(c *client) bool { return c.attached })
	if c == nil {
		return
	}
	for w.s.phase == serving && len(c.outbox) > 0 {
		w.arrive(t, c)
	}
	if c.dead || !c.attached {
		return
	}
	e := Leave{Req: w.nextReq(), Group: "g", Member: c.id, Attach: c.attach}
	w.routes[e.Req] = func(*rapid.T, Reply) {}
	c.end()
	w.step(t, e)
}

// breakStream ends a client's stream; the coordinator hears of it later.
func (w *world) breakStream(t *rapid.T) {
	if c := w.some(t, func(c *client) bool { return c.up }); c != nil {
		w.cut(c)
	}
}

func (w *world) cut(c *client) {
	if c.attached {
		w.gones = append(w.gones, Gone{"g", c.id, c.attach})
	}
	c.disconnect()
}

func (w *world) newsOfBreak(t *rapid.T) {
	if len(w.gones) > 0 {
		e := w.gones[0]
		w.gones = w.gones[1:]
		w.step(t, e)
	}
}

func (w *world) crash(t *rapid.T) {
	if c := w.some(t, func(*client) bool { return true }); c != nil {
		w.cut(c)
		c.end()
	}
}

func (w *world) time(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{50 * time.Millisecond, time.Second, 10 * time.Second, 20 * time.Minute}).Draw(t, "time")
	w.now.Mono += d
	w.now.WallMs += d.Milliseconds()
	w.step(t, Tick{})
}

func (w *world) logCommits(t *rapid.T) {
	if f := w.flight; f != nil {
		w.flight = nil
		w.log = append(w.log, f.KVs...)
		w.step(t, Committed{Op: f.Op})
	}
}

// logFails lets an append fail: not done, or with any part of it in the log.
func (w *world) logFails(t *rapid.T) {
	f := w.flight
	if f == nil {
		return
	}
	w.flight = nil
	if rapid.Bool().Draw(t, "not done") {
		w.step(t, Failed{Op: f.Op, Kind: NotDone})
		return
	}
	w.land(t, f)
	w.step(t, Failed{Op: f.Op, Kind: Unknown})
}

func (w *world) land(t *rapid.T, f *Append) {
	if len(f.KVs) > 0 {
		w.log = append(w.log, f.KVs[:rapid.IntRange(0, len(f.KVs)).Draw(t, "landed")]...)
	}
}

// coordinatorDies starts another one over what is in the log.
func (w *world) coordinatorDies(t *rapid.T) {
	if w.flight != nil {
		w.land(t, w.flight)
		w.flight = nil
	}
	for _, c := range w.clients {
		if !c.dead {
			c.disconnect()
		}
	}
	w.gones, w.fence, w.load, w.asked = nil, false, false, nil
	clear(w.links)
	clear(w.routes)
	w.start(t)
}

func (w *world) fenced(t *rapid.T) {
	switch {
	case w.fence:
		w.fence = false
		w.step(t, FenceResult{OK: rapid.IntRange(0, 3).Draw(t, "fence works") > 0})
	case w.load:
		w.load = false
		w.reload(t)
	}
}

func (w *world) reload(t *rapid.T) {
	for _, kv := range w.log {
		w.step(t, Replayed{KV: kv})
	}
	w.step(t, Loaded{})
}

func (w *world) changeTopics(t *rapid.T) {
	switch rapid.SampledFrom([]string{"a grows", "b comes", "b goes"}).Draw(t, "change") {
	case "a grows":
		if n := w.topics["a"].Partitions; n < 5 {
			w.setTopic("a", n+1)
		}
	case "b comes":
		w.setTopic("b", 2)
	case "b goes":
		if b, ok := w.topics["b"]; ok && w.topicNo < 6 {
			delete(w.topics, "b")
			w.deleted = append(w.deleted, b.ID)
		}
	}
	w.step(t, w.view())
}
