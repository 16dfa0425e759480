package partition

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	walkSeed  = flag.Uint64("seed", 0, "replay the walk of this seed, and show the end of its story")
	walkCount = flag.Int("walks", 2000, "how many walks TestWalks takes")
	walkStory = flag.Int("story", 60, "how many lines of a failed walk's story to show")
)

// action is something that may happen in a walk.
type action struct {
	name   string
	weight int
	fault  bool // not while the walk recovers
	do     func(w *world)
}

var actions = []action{
	{"produce", 8, false, func(w *world) { w.produce(w.n(len(w.clients))) }},
	{"read", 4, false, func(w *world) { w.read(w.n(len(w.clients))) }},
	{"log", 24, false, func(w *world) {
		if n := w.anyNode(); n.up && len(n.ops) > 0 {
			w.execute(n, w.n(len(n.ops)))
		}
	}},
	{"result", 24, false, func(w *world) {
		if n := w.anyNode(); n.up && len(n.results) > 0 {
			i := w.n(len(n.results))
			ev := n.results[i]
			n.results = slices.Delete(n.results, i, i+1)
			w.step(n, w.stamp(ev))
		}
	}},
	{"stream", 12, false, func(w *world) {
		if len(w.links) > 0 {
			w.stream(w.links[w.n(len(w.links))])
		}
	}},
	{"deliver", 30, false, func(w *world) {
		if len(w.links) > 0 {
			w.deliver(w.links[w.n(len(w.links))])
		}
	}},
	{"learn", 8, false, func(w *world) { w.learn(w.anyNode()) }},
	{"propose", 6, false, (*world).carryProposal},
	{"time", 5, false, (*world).pass},
	{"lease", 3, false, func(w *world) {
		n := w.anyNode()
		// One that lapsed counts again once the node knows all that happened meanwhile.
		lapsed := w.now >= w.leases[n.id]+simLease
		if n.up && n.st.NeedsLease() && (!lapsed || n.cursor == len(w.ctl.history)-1) {
			w.leases[n.id] = w.now
			n.results = append(n.results, LeaseRenewed{Now: w.now})
		}
	}},
	{"checkpoint", 3, false, func(w *world) { n := w.anyNode(); n.disk.hwSaved = n.disk.hw }},
	{"vouch", 4, false, func(w *world) { w.ctl.vouch(w.anyNode()) }},
	{"review", 3, false, func(w *world) { w.ctl.review() }},
	{"forget", 3, false, (*world).dropLinks},
	{"start", 4, false, func(w *world) {
		if n := w.anyNode(); !n.up {
			w.start(n)
		}
	}},
	{"notice", 4, false, func(w *world) {
		if n := w.anyNode(); !n.up {
			w.ctl.fence(n.id)
		}
	}},
	{"delete records", 1, true, (*world).wantStart},
	{"retain", 1, true, (*world).retain},
	{"flush", 1, true, func(w *world) { w.step(w.anyNode(), Flush{}) }},
	{"fence", 1, true, func(w *world) { w.ctl.fence(w.anyNode().id) }},
	{"move", 2, true, func(w *world) { w.ctl.move() }},
	{"min", 1, true, func(w *world) {
		if !w.losses && len(w.ids) > 2 && w.chance(30) {
			w.ctl.setMin(int32(1 + w.n(2)))
		}
	}},
	{"cut", 2, true, func(w *world) {
		if len(w.links) > 0 {
			w.cutLink(w.links[w.n(len(w.links))])
		}
	}},
	{"crash", 1, true, func(w *world) {
		if n := w.anyNode(); n.up {
			w.crash(n, false)
		}
	}},
	{"power", 1, true, (*world).power},
	{"lose", 1, true, (*world).lose},
}

// carryProposal takes a proposal to the controller, or loses it, and ends its call.
func (w *world) carryProposal() {
	if len(w.proposals) == 0 {
		return
	}
	i := w.n(len(w.proposals))
	p := w.proposals[i]
	if !w.faults || !w.chance(20) { // some arrive more than once, and late
		w.proposals = slices.Delete(w.proposals, i, i+1)
	}
	if !w.faults || !w.chance(20) {
		w.ctl.proposeISR(&p)
	}
	if n := w.nodes[p.from.Broker]; n.up && n.inc == p.from.Incarnation {
		n.results = append(n.results, ProposalHint{ID: p.ID})
	}
}

// pass lets time go by.
func (w *world) pass() {
	w.now += time.Duration(1+w.n(30)) * time.Millisecond
	for _, id := range w.ids {
		if n := w.nodes[id]; n.up && n.wake > 0 && n.wake <= w.now {
			n.wake = 0
			w.step(n, Tick{Now: w.now})
		}
	}
}

// dropLinks forgets links that broke, with what was on its way.
func (w *world) dropLinks() {
	w.links = slices.DeleteFunc(w.links, func(l *link) bool { return l.broken && (!w.faults || w.chance(50)) })
}

func (w *world) wantStart() {
	n := w.anyNode()
	if !n.up {
		return
	}
	w.nextReq++
	w.requests[w.nextReq] = &request{client: -1, node: n}
	w.step(n, &StartWanted{Req: w.nextReq, Offset: n.st.Start() + int64(w.n(3)), Now: w.now, Deadline: w.now + 200*time.Millisecond})
}

// retain lets retention take records below the high watermark.
func (w *world) retain() {
	n := w.anyNode()
	if !n.up || n.st.Down() != ReasonNone || n.disk.absent || len(n.ops) > 0 || len(n.results) > 0 || !w.chance(30) {
		return
	}
	to := min(n.st.HighWatermark(), n.disk.start+int64(w.n(3)))
	if to <= n.disk.start {
		return
	}
	n.disk.moveStart(to)
	w.deleted = max(w.deleted, to)
	w.step(n, StartMoved{Start: to, Now: w.now})
}

// mayLose reports whether a disk may go within what the topic promises.
func (w *world) mayLose(n *node) bool {
	r := &w.ctl.now
	if !w.losses || r.MinISR < 2 {
		return false
	}
	left := 0
	for _, b := range append(slices.Clone(r.ISR), r.ELR...) {
		m := w.nodes[b]
		if m.lost && m != n {
			return false
		}
		if m != n {
			left++
		}
	}
	return left > 0
}

func (w *world) power() {
	n := w.anyNode()
	if !n.up || w.os && !w.mayLose(n) {
		return
	}
	n.lost = n.lost || w.os
	w.crash(n, true)
}

func (w *world) lose() {
	if n := w.anyNode(); w.chance(40) && w.mayLose(n) {
		w.wipe(n)
	}
}

// checkAll looks at what no single step shows.
func (w *world) checkAll() {
	r := &w.ctl.now
	for _, b := range r.ISR {
		if n := w.nodes[b]; n.lost && n.up && r.incarnation[b] == n.inc && n.disk.verdict == Intact && !slices.Contains(r.Barred, b) {
			n.lost = false
		}
	}
	if r.Leader.Broker != 0 && !slices.Contains(r.ISR, r.Leader.Broker) {
		w.fail("the leader %d is not in the in-sync set %v", r.Leader.Broker, r.ISR)
	}
}

// walk takes steps under faults, then none, until the mesh is whole again.
func (w *world) walk() {
	weights := make([]int, len(actions))
	for i, a := range actions {
		weights[i] = a.weight * (1 + w.n(4))
		if a.fault && w.chance(30) {
			weights[i] = 0
		}
	}
	w.steps(weights, 300+w.n(900), nil)
	w.faults = false
	for i, a := range actions {
		weights[i] = a.weight * 2
		if a.fault {
			weights[i] = 0
		}
	}
	for _, l := range w.links {
		w.cutLink(l)
	}
	goal := w.answered + 2
	if !w.steps(weights, 30000, func() bool { return w.whole(goal) }) {
		w.fail("stuck: %d acknowledged, wanted %d; %s", w.answered, goal, w.describe())
	}
}

func (w *world) steps(weights []int, n int, done func() bool) bool {
	sum := 0
	for _, x := range weights {
		sum += x
	}
	for range n {
		at := w.n(sum)
		for i, x := range weights {
			if at -= x; at < 0 {
				actions[i].do(w)
				break
			}
		}
		w.checkAll()
		if w.failed != "" {
			return true
		}
		if done != nil && done() {
			return true
		}
	}
	return done == nil
}

// whole reports whether everything is in sync, equal, and goes on.
func (w *world) whole(goal int) bool {
	r := &w.ctl.now
	if w.answered < goal || (r.Leader == Replica{}) || len(r.ISR) != len(w.ids) || len(r.Barred) > 0 {
		return false
	}
	lead := &w.nodes[r.Leader.Broker].disk
	for _, id := range w.ids {
		n := w.nodes[id]
		if !n.up || n.st.Down() != ReasonNone || n.disk.aside && !w.lossy || n.disk.verdict != Intact || n.st.HighWatermark() < w.nodes[r.Leader.Broker].st.HighWatermark() {
			return false
		}
		for i := max(lead.start, n.disk.start); i < n.st.HighWatermark(); i++ {
			a, _ := n.disk.at(i)
			if b, _ := lead.at(i); a != b {
				w.fail("broker %d holds %v at %d, its leader %v", id, a, i, b)
			}
		}
	}
	for v, at := range w.acked {
		if e, ok := lead.at(at); (!ok || e.value != v) && at >= w.deleted {
			w.fail("LOST: value %d, acknowledged at %d, is not there", v, at)
		}
	}
	return true
}

func (w *world) describe() string {
	var b strings.Builder
	r := &w.ctl.now
	fmt.Fprintf(&b, "leader=%v epoch=%d pe=%d isr=%v elr=%v barred=%v min=%d\n", r.Leader, r.LeaderEpoch, r.PartEpoch, r.ISR, r.ELR, r.Barred, r.MinISR)
	for _, id := range w.ids {
		n := w.nodes[id]
		fmt.Fprintf(&b, "%d#%d up=%v lost=%v fenced=%v %v aside=%v %v ops=%v results=%v\n", id, n.inc, n.up, n.lost, r.fenced[id], n.disk.verdict, n.disk.aside, &n.disk, len(n.ops), len(n.results))
		if n.up {
			fmt.Fprintf(&b, "   role=%d follow=%+v proposal=%+v peers=%+v op=%v now=%v wake=%v down=%v\n", n.st.role, n.st.follow, n.st.proposal, n.st.peers, n.st.log.op, n.st.now, n.wake, n.st.Down())
		}
	}
	return b.String()
}

// TestWalks has replicas live through random faults: records learned late, streams
// that lose, repeat, reorder and break, crashes, power cuts that take what was not
// synced, lost disks, delayed and refused proposals. Whatever happens: nothing
// acknowledged with acks=all is lost, logs are equal below the high watermark, which
// never goes back, an offset has one value, and in the end all is in sync.
//
// It lives through cases 1, 2, 23, 30 and 32 many times in every run.
func TestWalks(t *testing.T) {
	if *walkSeed != 0 {
		replay(t, *walkSeed)
		return
	}
	counts := map[string]int{}
	for seed := uint64(1); seed <= uint64(*walkCount); seed++ {
		w := newWorld(seed, false)
		w.walk()
		for k, v := range w.counts {
			counts[k] += v
		}
		if w.failed != "" {
			t.Errorf("seed %d (replay with -seed=%d): %s", seed, seed, w.failed)
			replay(t, seed)
			return
		}
	}
	// A walk that never comes by the interesting places proves nothing.
	for _, k := range []string{
		"acknowledged", "committed", "duplicate", "truncated", "reset", "start moved", "crash", "power cut", "disk lost",
		"unclean election", "stale proposal", "refused proposal", "proposal applied", "read", "reply NOT_ENOUGH_REPLICAS", "reply NOT_ENOUGH_REPLICAS_AFTER_APPEND",
	} {
		if counts[k] == 0 && *walkCount >= 100 {
			t.Errorf("%d walks never saw: %s", *walkCount, k)
		}
	}
	t.Log(counts)
}

func replay(t *testing.T, seed uint64) {
	w := newWorld(seed, true)
	w.walk()
	story := w.trace
	if len(story) > *walkStory {
		story = story[len(story)-*walkStory:]
	}
	t.Logf("seed %d: os=%v ordered=%v losses=%v brokers=%d\n%s\n%s", seed, w.os, w.ordered, w.losses, len(w.ids), strings.Join(story, "\n"), w.describe())
	if w.failed != "" {
		t.Errorf("seed %d: %s", seed, w.failed)
	}
}
