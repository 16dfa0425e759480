package simulation

import (
	"fmt"
	"slices"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
)

// admin has the elected controller carry out a command, as one that an operator sent.
func (w *world) admin(name string, plan func(s *cluster.State, attempt int) (cluster.Plan, error)) {
	t := w.altered
	w.altered = nil
	c := w.leader()
	if c == nil || !c.runs() || c.create == 0 || !c.opened {
		return
	}
	if t != nil {
		t.altering++
	}
	c.do(&command{name: name, plan: plan, done: func(rev int64, err error) {
		if t != nil {
			t.altering--
		}
		if err == nil {
			w.count("admin: " + name)
		} else {
			w.count("admin refused: " + name)
		}
	}})
}

func (w *world) anyTopic() *topic {
	t := w.topics[w.n(len(w.topics))]
	if t.internal || t.parts[0].gone {
		return nil
	}
	return t
}

const alterMin = "alter min.insync.replicas"

// changeMin changes min.insync.replicas.
func (w *world) changeMin() {
	t := w.anyTopic()
	if t == nil || t.rf < 2 {
		return
	}
	m := int32(1 + w.n(int(t.rf)))
	for _, p := range t.parts {
		// Lowering it leaves less to be lost than is lost already.
		if int(m)-1 < len(p.lost) {
			return
		}
	}
	if t.altering == 0 {
		t.low = m
	}
	t.low = min(t.low, m)
	w.altered = t
	w.admin(alterMin, func(s *cluster.State, _ int) (cluster.Plan, error) {
		for _, p := range t.parts {
			if int(m)-1 < len(p.lost) {
				return cluster.Plan{}, nil
			}
		}
		return cluster.AlterTopic(s, cluster.AlterTopicCommand{Name: t.name, SetConfigs: map[string]string{"min.insync.replicas": fmt.Sprint(m)}})
	})
}

// reassign moves partitions, or takes a running move back.
func (w *world) reassign() {
	if len(w.etcdReassignments()) > 0 && w.chance(60) {
		action := cluster.CancelReassignment
		if w.chance(30) {
			action = cluster.PauseReassignment + cluster.ReassignmentAction(w.n(2))
		}
		ids := w.etcdReassignments()
		id := ids[w.n(len(ids))]
		name := []string{"", "pause reassignment", "resume reassignment", "cancel reassignment"}[action]
		w.admin(name, func(s *cluster.State, _ int) (cluster.Plan, error) { return cluster.ControlReassignment(s, id, action) })
		return
	}
	t := w.anyTopic()
	if t == nil {
		return
	}
	p := t.parts[w.n(len(t.parts))]
	all := w.shuffled()
	n := len(p.record.Replicas)
	if w.chance(25) {
		n = 1 + w.n(3)
	}
	if n == 0 || n > len(all) {
		return
	}
	to := all[:n]
	w.admin("reassign", func(s *cluster.State, _ int) (cluster.Plan, error) {
		plan, err := cluster.PlanReassignment(s, cluster.ReassignmentRequest{Assignments: []cluster.Move{{PartitionName: cluster.PartitionName{Topic: t.name, Partition: p.id.Number}, To: to}}})
		if err != nil {
			return cluster.Plan{}, err
		}
		if len(plan.Moves) == 0 {
			return cluster.Plan{}, nil
		}
		return cluster.ApplyReassignment(s, plan.ID, plan.Moves)
	})
}

func (w *world) etcdReassignments() []string {
	var ids []string
	for _, c := range w.etcd.log {
		if c.key.Type == cluster.KeyReassignment && !slices.Contains(ids, c.key.Name) {
			if _, ok := w.etcd.get(c.key); ok {
				ids = append(ids, c.key.Name)
			}
		}
	}
	return ids
}

func (w *world) shuffled() []int32 {
	var ids []int32
	for _, b := range w.bs[1:] {
		ids = slices.Insert(ids, w.n(len(ids)+1), b.id)
	}
	return ids
}

// elect forces elections.
func (w *world) elect() {
	t := w.anyTopic()
	if t == nil {
		return
	}
	p := t.parts[w.n(len(t.parts))]
	for _, q := range w.order {
		if w.conf.Unclean && !q.gone && !q.topic.internal && q.record.Leader.IsZero() && w.chance(50) {
			t, p = q.topic, q // where an unclean election changes something
		}
	}
	names := []cluster.PartitionName{{Topic: t.name, Partition: p.id.Number}}
	kind, name := cluster.ElectPreferred, "elect preferred"
	if w.conf.Unclean && w.chance(50) {
		kind, name = cluster.ElectUnclean, "elect unclean"
		p.asked = true
	}
	w.admin(name, func(s *cluster.State, _ int) (cluster.Plan, error) {
		plan, _, err := cluster.ElectLeaders(s, kind, names)
		return plan, err
	})
}

// fenceFalsely fences a broker that lives.
func (w *world) fenceFalsely() {
	b := w.anyBroker()
	if !b.up {
		return
	}
	life := b.life()
	w.admin("false fencing", func(s *cluster.State, _ int) (cluster.Plan, error) { return cluster.FenceBroker(s, life) })
}

// leave grants a broker its leave, after which it stops.
func (w *world) leave() {
	b := w.anyBroker()
	c := w.leader()
	if !b.runs() || c == nil || !c.runs() || c.create == 0 || !c.opened {
		return
	}
	life := b.life()
	granted := false
	c.do(&command{name: "leave", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
		plan, blockers, err := cluster.Leave(s, life, c.probes(), false)
		granted = len(blockers) == 0 && err == nil
		return plan, err
	}, done: func(_ int64, err error) {
		if err == nil && granted && b.up && b.inc == life.Incarnation {
			w.count("leave granted")
			w.say("broker %d#%d has leave, and stops", b.id, b.inc)
			b.stop()
		}
	}})
}

// deleteRecords lets a log begin later.
func (w *world) deleteRecords() {
	p := w.order[w.n(len(w.order))]
	b := w.broker(p.record.Leader.ID)
	if p.gone || p.topic.internal || b == nil || !b.runs() {
		return
	}
	r := b.get(p.id)
	if r == nil || r.core == nil || r.gone || r.core.Start() >= r.core.HighWatermark() {
		return
	}
	to := r.core.Start() + 1 + int64(w.n(int(r.core.HighWatermark()-r.core.Start())))
	r.nextReq++
	r.starts[r.nextReq] = func(o partition.Outcome) {
		if o == partition.OK {
			w.count("delete records done")
		}
	}
	p.deleted = max(p.deleted, to) // it may happen, whatever the answer
	r.step(&partition.StartWanted{Req: r.nextReq, Offset: to, Now: w.now, Deadline: w.now + produceLimit})
}
