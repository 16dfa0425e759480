package simulation

import (
	"fmt"
	"maps"
	"slices"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/topicid"
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
		{"disk", 30, false, (*world).diskStep},
		{"result", 10, false, (*world).resultStep},
		{"stream", 22, false, (*world).streamStep},
		{"mail", 16, false, (*world).receive},
		{"produce", 12, false, func(w *world) { w.writers[w.n(len(w.writers))].produce() }},
		{"read", 4, false, func(w *world) { w.readers[w.n(len(w.readers))].read() }},
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
		{"time", 14, false, func(w *world) { w.pass(maxPass/8 + maxPass*time64(w.n(8))/8) }},
		{"start", 3, false, (*world).startBroker},
		{"resume", 3, false, (*world).resume},
		{"heal", 2, false, (*world).heal},
		{"etcd back", 3, false, (*world).etcdBack},
		{"late", 3, false, func(w *world) { w.etcd.arrive() }},
		{"checkpoint", 3, false, (*world).checkpoint},
		{"group", 10, false, (*world).groupStep},
		{"crash", 2, true, (*world).crashBroker},
		{"power", 2, true, (*world).powerBroker},
		{"power midway", 2, true, (*world).powerMidway},
		{"mesh power", 1, true, (*world).powerMesh},
		{"stop", 1, true, (*world).stopBroker},
		{"wipe", 2, true, (*world).wipe},
		{"rot", 3, true, (*world).rot},
		{"disk fails", 1, true, (*world).failDisk},
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

// vouchStep has a broker tell a controller of itself, or of its replicas.
func (w *world) vouchStep() {
	if b := w.find(func(b *broker) bool { return b.runs() && b.adopted && !b.regressed && b.of != nil }); b != nil {
		b.register2()
	}
}

// register2 sends registration and vouch, or news of replicas.
func (b *broker) register2() {
	w := b.w
	_, election, ok := b.of.electionAt(b.rev)
	rec, has := b.of.brokerAt(b.id, b.rev)
	shown := has && rec.Process == b.life() && !rec.Fenced
	if b.vouchAt > w.now {
		return
	}
	switch {
	case !shown || ok && b.vouched != election.create:
		b.sendVouch(election.create)
	case b.onRecord():
		b.report()
	}
}

// sendVouch sends registration and vouch to the elected controller.
func (b *broker) sendVouch(election int64) {
	w := b.w
	b.vouchAt = w.now + callTimeout/2
	reg := cluster.BrokerRegistration{Process: b.life(), Address: "h", Vouches: b.vouches()}
	seen, of := b.rev, b.of
	w.ask(b, "vouch", func(c *controller, answer func(func())) {
		if c.of != of && c.of != nil || c.state == nil || c.of.rev < seen {
			if c.of != nil && c.of.rev < seen {
				answer(func() { b.regress("a controller knows nothing of what it has seen") })
			}
			return
		}
		if c.rev < seen {
			return // it is behind; the broker asks again
		}
		for _, v := range reg.Vouches {
			if p := c.state.Partition(v.Topic, v.Partition); p != nil && v.LastEpoch > p.Value.LeaderEpoch {
				answer(func() { b.regress("its records are of later epochs than the metadata knows") })
				return
			}
		}
		if r := c.state.Registration(cluster.KindBroker, b.id); r != nil && r.Value.Process == reg.Process {
			c.state.SetVouches(reg)
			c.tidied = -1
		}
		c.do(&command{name: "register broker", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
			return cluster.RegisterBroker(s, reg)
		}, done: func(rev int64, err error) {
			if err == nil {
				answer(func() { b.vouched = election })
			}
		}})
	}, func() {})
}

// report tells the controller of replicas that were made, or went bad.
func (b *broker) report() {
	w := b.w
	var told []cluster.Vouch
	for _, r := range b.replicas {
		v := cluster.Vouch{Topic: r.id.Topic, Partition: r.id.Number, LastEpoch: -1, Verdict: cluster.Corrupt}
		if at, bad := b.bad[r.id]; bad {
			if at > 0 {
				if b.rev >= at {
					delete(b.bad, r.id) // it shows
					b.apply()
					return
				}
				continue
			}
			if r.log != nil {
				v.LastEpoch, v.End = r.log.LatestEpoch(), r.log.EndOffset()
			}
			told = append(told, v)
			continue
		}
		rec, ok := b.of.partitionAt(r.id, b.rev)
		if ok && rec.Leader.IsZero() && r.log != nil && r.verdict == partition.Intact && r.log.LatestEpoch() < 0 && r.log.EndOffset() == 0 && !b.diskBad {
			v.Verdict = cluster.Intact
			told = append(told, v)
		}
	}
	if len(told) == 0 {
		return
	}
	b.vouchAt = w.now + callTimeout/2
	life := b.life()
	w.ask(b, "report", func(c *controller, answer func(func())) {
		if c.create == 0 || !c.opened || c.state == nil {
			return
		}
		c.state.NoteReplicas(life, told)
		c.tidied = -1
		c.do(&command{name: "report replicas", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
			return cluster.ReportReplicas(s, life, told)
		}, done: func(rev int64, err error) {
			if err != nil {
				return
			}
			answer(func() {
				for _, v := range told {
					id := cluster.PartitionID{Topic: v.Topic, Number: v.Partition}
					if at, bad := b.bad[id]; bad && at == 0 && v.Verdict != cluster.Intact {
						b.bad[id] = rev
					}
				}
			})
		}})
	}, func() {})
}

// newWorld makes the world of a seed.
func newWorld(seed uint64, counts map[string]int, tracing bool) *world {
	w := &world{
		seed: seed, rng: rng{state: seed * 7919}, counts: counts, tracing: tracing, faults: true,
		now: maxPass, down: map[[2]node]bool{}, parts: map[cluster.PartitionID]*part{}, bs: []*broker{nil},
	}
	w.conf = walkConfig{
		Brokers: 3 + w.n(3), Controllers: 2 + w.n(2), Ordered: w.chance(70), Unclean: w.chance(16), OS: w.chance(25), Restore: w.chance(6), Groups: w.chance(40),
	}
	w.etcd = newEtcd(w)
	for i := range w.conf.Controllers {
		w.ctls = append(w.ctls, &controller{w: w, id: int32(i + 1)})
	}
	for i := range w.conf.Brokers {
		w.bs = append(w.bs, &broker{w: w, id: int32(i + 1), disk: newDisk()})
	}
	w.say("seed %d: %v", seed, w.conf)
	for _, c := range w.ctls {
		c.start()
	}
	for _, b := range w.bs[1:] {
		b.start()
	}
	w.setUp()
	return w
}

// setUp brings the mesh to where it serves, in a straight line: brokers registered,
// topics created, first leaders elected.
func (w *world) setUp() {
	w.faults = false
	w.topicsFor()
	created := false
	for range 4000 {
		w.pass(maxPass / 4)
		for _, c := range w.ctls {
			c.watch(100)
			c.campaign()
			c.act()
		}
		w.groupStep()
		for _, b := range w.bs[1:] {
			b.register()
			b.listen()
			if b.adopted {
				b.register2()
			}
		}
		for range len(w.mail) {
			w.receive()
		}
		if !created && w.leader() != nil && w.leader().opened && w.unfenced() == w.conf.Brokers {
			w.createTopics()
			created = true
		}
		if created && w.led() {
			break
		}
		if w.failure != nil {
			return
		}
	}
	if !w.led() {
		w.fail("STUCK", "the mesh does not come up")
	}
	w.faults = true
}

func (w *world) unfenced() int {
	n := 0
	for _, b := range w.bs[1:] {
		if rec, ok := w.etcd.brokerAt(b.id, w.etcd.rev); ok && !rec.Fenced && rec.Process == b.life() {
			n++
		}
	}
	return n
}

// led reports whether every partition has a leader.
func (w *world) led() bool {
	for _, p := range w.order {
		if !p.gone && p.record.Leader.IsZero() {
			return false
		}
	}
	return true
}

// topicsFor draws the topics and who uses them.
func (w *world) topicsFor() {
	for i := range 1 + w.n(2) {
		t := &topic{name: fmt.Sprintf("t%d", i), rf: int32(1 + w.n(3))}
		if i == 0 {
			t.rf = 3
		}
		if t.rf > 1 && w.chance(60) {
			t.min = int32(1 + w.n(int(t.rf)))
		}
		t.os = w.conf.OS && w.chance(60)
		t.unclean = w.conf.Unclean && w.chance(60)
		w.addTopic(t, 1+w.n(2))
	}
	if w.conf.Groups {
		w.groups = newGroups(w)
	}
}

// addTopic draws a topic's id and takes its partitions on the books.
func (w *world) addTopic(t *topic, partitions int) {
	t.id = topicid.Derive(fmt.Appendf(nil, "%d-%d", w.seed, len(w.topics)))
	w.topics = append(w.topics, t)
	for n := range partitions {
		p := &part{
			w: w, id: cluster.PartitionID{Topic: t.id, Number: int32(n)}, topic: t, acked: map[int64]int64{}, where: map[int64]int64{},
			owners: map[int32]claimed{}, lost: map[int32]bool{},
		}
		t.parts = append(t.parts, p)
		w.parts[p.id] = p
		w.order = append(w.order, p)
		if t.internal {
			continue
		}
		for i := range 1 + w.n(2) {
			wr := &writer{w: w, p: p, acks: partition.AcksAll, pid: int64(1000*len(w.order) + i), committed: map[int16]int32{}}
			if w.chance(15) {
				wr.pid = -1
				wr.acks = partition.Acks(w.n(3))
			}
			w.writers = append(w.writers, wr)
		}
		w.readers = append(w.readers, &reader{w: w, p: p, epoch: -1, seen: -1, from: w.chance(50)})
	}
	slices.SortFunc(w.order, func(a, b *part) int { return comparePartitions(a.id, b.id) })
}

// createTopics has the controller make the topics.
func (w *world) createTopics() {
	for _, t := range w.topics {
		if t.internal {
			w.admin("ensure internal topic", func(s *cluster.State, _ int) (cluster.Plan, error) {
				plan, _, err := cluster.EnsureInternalTopic(s, cluster.Limits{OffsetsPartitions: 1}, t.name, t.id, 0)
				return plan, err
			})
			continue
		}
		configs := map[string]string{}
		if t.min > 0 {
			configs["min.insync.replicas"] = fmt.Sprint(t.min)
		}
		if t.os {
			configs["durability"] = "os"
		}
		if t.unclean {
			configs["unclean.leader.election.enable"] = "true"
		}
		shift := w.n(10)
		w.admin("create topic", func(s *cluster.State, _ int) (cluster.Plan, error) {
			plan, outcomes, err := cluster.CreateTopics(s, cluster.Limits{DefaultPartitions: 1}, []cluster.NewTopic{{
				Name: t.name, Partitions: int32(len(t.parts)), ReplicationFactor: t.rf, Configs: maps.Clone(configs), ID: t.id, Shift: shift,
			}})
			if err == nil && outcomes[0].Rejection != nil {
				w.fail("SETUP", "topic %s: %v", t.name, outcomes[0].Rejection)
			}
			return plan, err
		})
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
	w.now += time64(w.n(200)) * 1000
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
