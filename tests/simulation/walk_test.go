package simulation

import (
	"slices"
	"time"
)

// action is something that may happen in a step.
type action struct {
	name   string
	weight int
	fault  bool // not once the faults have stopped
	do     func(w *world)
}

func actions() []action {
	return []action{
		{"disk", 34, false, (*world).diskStep},
		{"result", 10, false, (*world).resultStep},
		{"stream", 22, false, (*world).streamStep},
		{"mail", 16, false, (*world).receive},
		{"produce", 12, false, (*world).produceStep},
		{"read", 4, false, (*world).readStep},
		{"listen", 10, false, (*world).listenStep},
		{"watch", 8, false, func(w *world) { w.ctls[w.n(len(w.ctls))].watch(1 + w.n(8)) }},
		{"controller", 14, false, (*world).controllerStep},
		{"campaign", 2, false, func(w *world) { w.ctls[w.n(len(w.ctls))].campaign() }},
		{"register", 3, false, func(w *world) {
			if b := w.find(func(b *broker) bool { return b.runs() && (b.regRev == 0 || b.lease == nil || b.lease.gone) }); b != nil {
				b.register()
			}
		}},
		{"vouch", 4, false, (*world).vouchStep},
		{"time", 14, false, func(w *world) { w.pass(maxPass/8 + maxPass*time.Duration(w.n(8))/8) }},
		{"start", 3, false, (*world).startBroker},
		{"resume", 3, false, (*world).resume},
		{"heal", 2, false, (*world).heal},
		{"etcd back", 3, false, (*world).etcdBack},
		{"late", 3, false, func(w *world) { w.etcd.arrive() }},
		{"checkpoint", 3, false, (*world).checkpoint},
		{"upkeep", 5, false, (*world).upkeepStep},
		{"room", 3, false, (*world).makeRoom},
		{"deletion", 4, false, (*world).deletionStep},
		{"group", 10, false, (*world).groupStep},
		{"crash", 2, true, (*world).crashBroker},
		{"power", 2, true, (*world).powerBroker},
		{"power midway", 2, true, (*world).powerMidway},
		{"mesh power", 1, true, (*world).powerMesh},
		{"stop", 1, true, (*world).stopBroker},
		{"wipe", 2, true, (*world).wipe},
		{"rot", 3, true, (*world).rot},
		{"disk fails", 1, true, (*world).failDisk},
		{"disk full", 2, true, (*world).fillDisk},
		{"pause", 2, true, (*world).pauseBroker},
		{"hang", 1, true, (*world).hangDisk},
		{"cut", 2, true, (*world).cut},
		{"break", 2, true, (*world).breakStream},
		{"etcd away", 1, true, (*world).etcdAway},
		{"lease", 2, true, (*world).loseLease},
		{"controller crash", 1, true, (*world).crashController},
		{"controller pause", 1, true, (*world).pauseController},
		{"min", 3, true, (*world).changeMin},
		{"reassign", 3, true, (*world).reassign},
		{"elect", 2, true, (*world).elect},
		{"fence", 1, true, (*world).fenceFalsely},
		{"leave", 2, true, (*world).leave},
		{"delete records", 1, true, (*world).deleteRecords},
		{"delete topic", 1, true, (*world).deleteTopic},
		{"make topic again", 2, true, (*world).makeAgain},
		{"group fault", 2, true, (*world).groupFault},
	}
}

// diskStep has a disk carry out one operation.
func (w *world) diskStep() {
	b := w.find(func(b *broker) bool {
		return b.runs() && !b.diskHung && slices.ContainsFunc(b.replicas, (*replica).busy)
	})
	if b == nil {
		return
	}
	at := w.n(len(b.replicas))
	for i := range b.replicas {
		if r := b.replicas[(at+i)%len(b.replicas)]; r.busy() {
			r.operate()
			return
		}
	}
}

// resultStep tells a core what an operation reported.
func (w *world) resultStep() {
	b := w.find(func(b *broker) bool {
		return b.runs() && slices.ContainsFunc(b.replicas, func(r *replica) bool { return len(r.results) > 0 })
	})
	if b == nil {
		return
	}
	for _, r := range b.replicas {
		if n := len(r.results); n > 0 {
			i := w.n(n)
			ev := r.results[i]
			r.results = slices.Delete(r.results, i, i+1)
			r.tellResult(ev)
			return
		}
	}
}

// streamStep moves something in a session of a follower.
func (w *world) streamStep() {
	if len(w.links) == 0 {
		return
	}
	at := w.n(len(w.links))
	for i := range w.links {
		l := w.links[(at+i)%len(w.links)]
		switch {
		case l.hasMore() && w.chance(50):
			w.stream(l)
			return
		case l.broken || len(l.up)+len(l.down) > 0:
			w.deliver(l)
			return
		case l.hasMore():
			w.stream(l)
			return
		}
	}
}

func (w *world) produceStep() {
	if w.step >= calmRecovery && !w.chance(25) {
		return // so that copies which lag catch up
	}
	if n := len(w.writers); n > 0 {
		w.writers[w.n(n)].produce()
	}
}

func (w *world) readStep() {
	if n := len(w.readers); n > 0 {
		w.readers[w.n(n)].read()
	}
}

func (w *world) listenStep() {
	b := w.find(func(b *broker) bool {
		c := w.ctls[b.source]
		return b.runs() && (!c.runs() || c.rev > b.rev || c.of != b.of)
	})
	if b != nil {
		b.listen()
	}
}

func (w *world) controllerStep() {
	c := w.leader()
	if c == nil || w.chance(10) {
		c = w.ctls[w.n(len(w.ctls))]
	}
	if c.create != 0 && w.chance(50) {
		c.watch(4)
	}
	for range 1 + w.n(3) {
		c.act()
	}
}

// run takes the steps of a walk that are given, then steps without faults until the
// mesh is whole.
func run(seed uint64, steps []int, counts map[string]int, tracing bool) *world {
	w := newWorld(seed, counts, tracing)
	all := actions()
	w.weights = make([]int, len(all))
	for i, a := range all {
		w.weights[i] = 2 * a.weight * []int{1, 2, 2, 3, 4}[w.n(5)]
		if a.fault {
			w.weights[i] = a.weight * []int{0, 1, 1, 2, 4}[w.n(5)]
		}
		w.sum += w.weights[i]
	}
	w.steps = 2000 + w.n(600)
	whole := steps == nil
	if whole {
		steps = allSteps(w.steps)
	}
	for _, i := range steps {
		if w.failure != nil {
			return w
		}
		w.take(all, i)
	}
	for whole && w.failure == nil && w.hit < minFaults && w.steps < maxSteps {
		w.take(all, w.steps)
		w.steps++
	}
	if w.failure == nil && w.conf.Restore {
		w.restoreEtcd(all)
		return w
	}
	if w.failure == nil {
		w.recover(all)
	}
	return w
}

// A walk goes on until it has had as many faults, up to a bound.
const (
	minFaults = 10
	maxSteps  = 6000
)

func allSteps(n int) []int {
	steps := make([]int, n)
	for i := range steps {
		steps[i] = i
	}
	return steps
}

// take takes one step.
func (w *world) take(all []action, i int) {
	w.step = i
	w.rng.state = mix(w.seed, i)
	at := w.n(w.sum)
	k := 0
	for at >= w.weights[k] {
		at -= w.weights[k]
		k++
	}
	w.now += time.Duration(w.n(200)) * 1000
	all[k].do(w)
	if i%64 == 0 {
		for _, p := range w.order {
			p.settleLosses()
		}
	}
	if i%512 == 511 && w.failure == nil {
		w.compareCopies()
	}
}
