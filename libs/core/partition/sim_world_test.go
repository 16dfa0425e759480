package partition

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"
)

// request is a produce on its way.
type request struct {
	client, value int
	acks          Acks
	node          *node
	read          bool
}

// client produces one value after the other, each until it is acknowledged, and
// reads.
type client struct {
	value int // being produced, 0: none
	acks  Acks
	busy  bool
	seen  int64
	epoch int32
}

// world is one walk: brokers, a controller, clients and the network between them.
type world struct {
	rng       *rand.Rand
	os        bool
	ordered   bool // streams lose, repeat and reorder nothing
	losses    bool // disks may be lost
	unclean   bool // unclean elections are allowed
	lossy     bool // there was one: what was committed may be gone
	faults    bool
	calm      bool // nothing goes wrong by chance, and power cuts take all that they may
	now       time.Duration
	nodes     map[int32]*node
	ids       []int32
	ctl       *simController
	leases    map[int32]time.Duration // when each broker's was renewed last
	links     []*link
	proposals []proposed
	clients   []client
	requests  map[int64]*request
	values    map[int64]int // of produces, by request
	nextReq   int64
	nextSess  int64
	nextInc   uint64
	nextValue int

	owner      map[int32]Replica // who appended in a leader epoch
	committed  []entry
	acked      map[int]int64 // value → offset, acks=all
	deleted    int64         // offsets below may be gone
	answered   int           // produces with acks=all that were acknowledged
	lastServed int64

	counts  map[string]int
	failed  string
	tracing bool
	trace   []string
}

func newWorld(seed uint64, tracing bool) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 7)), nodes: map[int32]*node{}, requests: map[int64]*request{}, values: map[int64]int{}, owner: map[int32]Replica{}, leases: map[int32]time.Duration{},
		acked: map[int]int64{}, counts: map[string]int{}, tracing: tracing, faults: true, now: time.Millisecond,
	}
	w.os, w.ordered, w.losses = w.chance(30), w.chance(50), w.chance(60)
	w.unclean = w.chance(10)
	w.clients = make([]client, 3)
	w.ids = []int32{1, 2, 3}
	if w.chance(15) {
		w.ids = w.ids[:2]
	}
	minISR := int32(2)
	if w.chance(25) {
		minISR = 1
	}
	w.ctl = &simController{w: w, now: simRecord{incarnation: map[int32]uint64{}, fenced: map[int32]bool{}}}
	r := &w.ctl.now
	r.Generation, r.Revision, r.PartEpoch, r.LeaderEpoch = 1, 1, 0, 1
	r.Replicas, r.ISR, r.MinISR, r.Unclean = w.ids, slices.Clone(w.ids), minISR, w.unclean
	for _, id := range w.ids {
		w.nodes[id] = &node{id: id}
		w.nextInc++
		r.incarnation[id], r.fenced[id] = w.nextInc, false
	}
	r.Leader = Replica{Broker: 1, Incarnation: r.incarnation[1]}
	w.ctl.lastLeader = 1
	w.ctl.save("create")
	w.nextInc = 0
	for range w.n(6) {
		w.nextValue++
		w.committed = append(w.committed, entry{1, w.nextValue})
	}
	for _, id := range w.ids {
		d := &w.nodes[id].disk
		d.append(w.committed...)
		d.hw = int64(len(w.committed))
		d.hwSaved = d.hw
		w.start(w.nodes[id])
	}
	return w
}

func (w *world) n(k int) int         { return w.rng.IntN(k) }
func (w *world) chance(pct int) bool { return w.rng.IntN(100) < pct }
func (w *world) count(what string)   { w.counts[what]++ }

func (w *world) say(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf(format, args...)
		w.say("FAILED: %s", w.failed)
	}
}

func (w *world) anyNode() *node { return w.nodes[w.ids[w.n(len(w.ids))]] }

// stamp tells an event the time.
func (w *world) stamp(ev Event) Event {
	if _, ok := ev.(LeaseRenewed); ok {
		return ev // it tells when it was sent
	}
	v := reflect.ValueOf(ev)
	if v.Kind() == reflect.Pointer {
		if f := v.Elem().FieldByName("Now"); f.IsValid() {
			f.SetInt(int64(w.now))
		}
		return ev
	}
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	if f := c.FieldByName("Now"); f.IsValid() {
		f.SetInt(int64(w.now))
	}
	return c.Interface().(Event)
}

// learn has a node apply the next records of the stream, or only the last of them.
func (w *world) learn(n *node) {
	last := len(w.ctl.history) - 1
	if !n.up {
		return
	}
	next := max(n.cursor+1, n.floor)
	switch {
	case n.cursor >= 0 && w.chance(10):
		next = n.floor + w.n(last-n.floor+1) // the answer to a proposal may bring a newer one first
	case n.cursor == last:
		return
	default:
		next += w.n(last - next + 1)
	}
	n.cursor = max(n.cursor, next)
	h := w.ctl.history[next]
	r := h.Record
	r.Now = w.now
	r.OnRecord = h.incarnation[n.id] == n.inc
	w.step(n, &r)
}

// deliver hands over one message of a link.
func (w *world) deliver(l *link) {
	up := w.chance(50)
	msgs := &l.down
	if up {
		msgs = &l.up
	}
	if len(*msgs) == 0 {
		return
	}
	i := 0
	if !w.ordered && w.faults {
		i = w.n(len(*msgs))
	}
	ev := (*msgs)[i]
	keep := !w.ordered && w.faults && w.chance(10)
	if !keep {
		*msgs = slices.Delete(*msgs, i, i+1)
	}
	if !w.ordered && w.faults && w.chance(3) {
		return
	}
	to, inc := l.follower, l.fInc
	if up {
		to, inc = l.leader, l.lInc
	}
	if !to.up || to.inc != inc {
		w.cutLink(l)
		return
	}
	if b, ok := ev.(*Batch); ok {
		c := *b
		to.nextRef++
		c.Ref = to.nextRef
		to.refs[c.Ref] = l.carried[b]
		ev = &c
	}
	w.step(to, w.stamp(ev))
}

// stream has a leader send what its log holds, also what its core has not heard of.
func (w *world) stream(l *link) {
	n := l.leader
	if l.broken || l.from < 0 || !n.up || n.inc != l.lInc || len(l.down) > 6 {
		return
	}
	d := &n.disk
	if l.from < d.start {
		w.cutLink(l)
		return
	}
	to := min(d.end(), l.from+1+int64(w.n(3)))
	if to <= l.from {
		return
	}
	_, epoch := n.st.Leader()
	b := &Batch{Sess: l.fSess, LeaderEpoch: epoch, Base: l.from, End: to, HW: n.st.HighWatermark(), Start: n.st.Start()}
	l.carried[b] = slices.Clone(d.entries[l.from-d.base : to-d.base])
	l.down = append(l.down, b)
	l.from = to
}

// produce has a client send its value to a broker.
func (w *world) produce(c int) {
	cl := &w.clients[c]
	if cl.busy {
		return
	}
	if cl.value == 0 {
		w.nextValue++
		cl.value, cl.acks = w.nextValue, AcksAll
		if w.chance(30) {
			cl.acks = AcksLeader
		}
	}
	n := w.nodes[w.ids[w.n(len(w.ids))]]
	if l := w.ctl.now.Leader.Broker; l != 0 && w.chance(70) {
		n = w.nodes[l]
	}
	if !n.up {
		return
	}
	w.nextReq++
	cl.busy = true
	w.values[w.nextReq] = cl.value
	w.requests[w.nextReq] = &request{client: c, value: cl.value, acks: cl.acks, node: n}
	w.step(n, &Produce{Req: w.nextReq, LeaderEpoch: -1, Acks: cl.acks, Now: w.now, Deadline: w.now + 300*time.Millisecond, Records: 1})
}

// replied takes the answer to a produce, a read or a wish for the log start.
func (w *world) replied(n *node, e *Reply) {
	r := w.requests[e.Req]
	if r == nil {
		w.fail("broker %d: request %d was answered twice", n.id, e.Req)
		return
	}
	delete(w.requests, e.Req)
	if r.client < 0 {
		return
	}
	cl := &w.clients[r.client]
	cl.busy = false
	w.count("reply " + e.Reason.String())
	if e.Outcome != OK {
		return
	}
	if r.acks == AcksAll {
		if at, ok := w.acked[r.value]; ok && at != e.Base {
			w.fail("value %d was acknowledged at %d and at %d", r.value, at, e.Base)
		}
		w.acked[r.value] = e.Base
		if w.lossy {
			delete(w.acked, r.value)
		} else if int64(len(w.committed)) <= e.Base || w.committed[e.Base].value != r.value {
			w.fail("value %d was acknowledged at %d, which is not committed", r.value, e.Base)
		}
		w.count("acknowledged")
		w.answered++
	}
	cl.value = 0
}

// read has a client look at the visible end of some replica.
func (w *world) read(c int) {
	n := w.anyNode()
	cl := &w.clients[c]
	if !n.up {
		return
	}
	w.nextReq++
	w.requests[w.nextReq] = &request{client: -1, node: n, read: true}
	kind := ReadLatest
	if w.chance(30) {
		kind = ReadEarliest
	}
	req := w.nextReq
	w.step(n, &Read{Req: req, Kind: kind, ClientEpoch: cl.epoch, ClientSeen: cl.seen, AllowFollower: w.chance(50)})
	if w.requests[req] != nil {
		return // refused reads are gone by now, served ones too
	}
	if w.lastServed >= 0 {
		if w.lastServed < cl.seen && !w.lossy {
			w.fail("a client saw %d, and %d afterwards from broker %d", cl.seen, w.lastServed, n.id)
		}
		_, epoch := n.st.Leader()
		cl.seen, cl.epoch = w.lastServed, max(cl.epoch, epoch)
		w.count("read")
	}
	w.lastServed = -1
}

// served takes what a read may have.
func (w *world) served(n *node, e *Serve) {
	delete(w.requests, e.Req)
	w.lastServed = e.UpTo
	if w.lossy {
		return
	}
	for i := e.From; i < e.UpTo; i++ {
		if got, ok := n.disk.at(i); ok && (i >= int64(len(w.committed)) || got != w.committed[i]) {
			w.fail("broker %d serves %v at %d, which was not committed there", n.id, got, i)
		}
	}
}

// claimEpoch notes who appends in a leader epoch.
func (w *world) claimEpoch(n *node, epoch int32) {
	me := Replica{Broker: n.id, Incarnation: n.inc}
	if o, ok := w.owner[epoch]; ok && o != me {
		w.fail("leader epoch %d: %v appends beside %v", epoch, me, o)
	}
	w.owner[epoch] = me
}

// checkNode compares what a replica holds for committed with what was committed.
func (w *world) checkNode(n *node) {
	st := n.st
	hw := st.HighWatermark()
	if w.lossy {
		if st.role == leading && hw > n.hw && len(st.rec.isr) == 1 && st.rec.leaderEpoch < w.ctl.now.UncleanEpoch {
			w.fail("broker %d commits alone in leader epoch %d, after the unclean election of epoch %d", n.id, st.rec.leaderEpoch, w.ctl.now.UncleanEpoch)
		}
		return
	}
	if st.role == leading && hw > int64(len(w.committed)) {
		for i := int64(len(w.committed)); i < hw; i++ {
			e, ok := n.disk.at(i)
			if !ok {
				w.fail("broker %d commits offset %d without having it", n.id, i)
				return
			}
			w.committed = append(w.committed, e)
			w.count("committed")
		}
	}
	if hw > int64(len(w.committed)) {
		w.fail("broker %d has the high watermark %d where %d records are committed", n.id, hw, len(w.committed))
		return
	}
	for i := max(n.disk.base, n.disk.start); i < hw && st.log.op.kind != opReset; i++ {
		if e, ok := n.disk.at(i); !ok || e != w.committed[i] {
			w.fail("broker %d holds %v at %d, below its high watermark %d; committed was %v", n.id, e, i, hw, w.committed[i])
			return
		}
	}
	if st.role == leading && st.rec.leaderEpoch == w.ctl.now.LeaderEpoch { // not one that was deposed and has not heard of it
		for i := max(n.disk.start, n.disk.base); i < int64(len(w.committed)); i++ {
			if e, ok := n.disk.at(i); !ok || e != w.committed[i] {
				w.fail("LOST: broker %d leads with %v at %d, committed was %v", n.id, e, i, w.committed[i])
				return
			}
		}
		if n.disk.start > w.deleted || n.disk.base > w.deleted {
			w.fail("LOST: broker %d leads with a log that begins at %d/%d; %d was deleted", n.id, n.disk.base, n.disk.start, w.deleted)
		}
	}
}

func deref(ev Event) any {
	v := reflect.ValueOf(ev)
	if v.Kind() == reflect.Pointer {
		return v.Elem().Interface()
	}
	return ev
}

func renderAll(effects []Effect) string {
	var b strings.Builder
	for _, e := range effects {
		v := reflect.ValueOf(e)
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		fmt.Fprintf(&b, "%s%+v ", v.Type().Name(), v.Interface())
	}
	return b.String()
}
