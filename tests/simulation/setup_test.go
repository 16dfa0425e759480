package simulation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/topicid"
)

// newWorld makes the world of a seed.
func newWorld(seed uint64, counts map[string]int, tracing bool) *world {
	w := &world{
		seed: seed, rng: rng{state: seed * 7919}, counts: counts, tracing: tracing, faults: true,
		now: maxPass, down: map[[2]node]bool{}, parts: map[cluster.PartitionID]*part{}, floors: map[string]int32{}, bs: []*broker{nil},
	}
	w.conf = walkConfig{
		Brokers: 3 + w.n(3), Controllers: 2 + w.n(2), Ordered: w.chance(70), Unclean: w.chance(16), OS: w.chance(25), Restore: w.chance(6), Groups: w.chance(40),
		Compact: w.chance(35), Retain: w.chance(25), Delete: w.chance(40),
	}
	w.conf.Delete = w.conf.Delete && !w.conf.Groups // whose members read all topics
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
				b.announce()
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
		t.clean = w.cleaningFor()
		w.addTopic(t, 1+w.n(2))
	}
	if w.conf.Groups {
		w.groups = newGroups(w)
	}
}

// cleaningFor draws how the old records of a topic go.
func (w *world) cleaningFor() cleaning {
	var c cleaning
	ms := time.Millisecond
	if w.conf.Compact && w.chance(75) {
		c = cleaning{compact: true, deleteRetain: ms * time.Duration(w.n(60)), segmentAge: ms * time.Duration(4+w.n(20)), minDirty: float64(w.n(5)) / 10}
		if w.chance(30) {
			c.minLag, c.maxLag = ms*time.Duration(w.n(10)), ms*time.Duration(20+w.n(30))
		}
	}
	if w.conf.Retain && w.chance(75) {
		c.segmentAge = ms * time.Duration(4+w.n(30))
		if w.chance(70) {
			c.retain = ms * time.Duration(30+w.n(150))
		}
		if w.chance(40) {
			c.retainBytes = int64(1000 + w.n(20_000))
		}
	}
	return c
}

// addTopic draws a topic's id and takes its partitions on the books.
func (w *world) addTopic(t *topic, partitions int) {
	t.id = topicid.Derive(fmt.Appendf(nil, "%d-%d", w.seed, len(w.topics)))
	w.topics = append(w.topics, t)
	for n := range partitions {
		p := &part{
			w: w, id: cluster.PartitionID{Topic: t.id, Number: int32(n)}, topic: t, acked: map[int64]int64{}, where: map[int64]int64{},
			owners: map[int32]claimed{}, lost: map[int32]bool{}, kept: map[int64]kept{}, newest: map[string]int64{},
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
		w.createTopic(t, func(r *cluster.Rejection) { w.fail("SETUP", "topic %s: %v", t.name, r) })
	}
}

// createTopic has the controller make a topic; rejected, if not nil, is told why it will
// not.
func (w *world) createTopic(t *topic, rejected func(*cluster.Rejection)) {
	configs := map[string]string{}
	if t.min > 0 {
		configs["min.insync.replicas"] = fmt.Sprint(t.min)
	}
	if t.os {
		configs["durability"] = "os"
	}
	if t.clean.compact {
		configs["cleanup.policy"] = "compact"
	}
	if t.unclean {
		configs["unclean.leader.election.enable"] = "true"
	}
	shift := w.n(10)
	w.admin("create topic", func(s *cluster.State, _ int) (cluster.Plan, error) {
		plan, outcomes, err := cluster.CreateTopics(s, cluster.Limits{DefaultPartitions: 1}, []cluster.NewTopic{{
			Name: t.name, Partitions: int32(len(t.parts)), ReplicationFactor: t.rf, Configs: maps.Clone(configs), ID: t.id, Shift: shift,
		}})
		if err == nil && outcomes[0].Rejection != nil && rejected != nil {
			rejected(outcomes[0].Rejection)
		}
		return plan, err
	})
}
