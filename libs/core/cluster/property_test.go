package cluster

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model drives a world by random commands and checks what must always hold.
type model struct {
	*world
	alive  map[int32]bool   // brokers whose process runs
	epochs map[string]int32 // highest leader epoch ever seen for a name's partition
	shards map[PartitionID]int64
	seen   map[PartitionID]Partition
	wiped  map[int32]bool // brokers whose next life finds nothing
}

var modelNames = []string{"a", "a.b", "a_b", "c"}

func newModel(t *rapid.T) *model {
	return &model{
		world: newWorld(t), alive: map[int32]bool{}, epochs: map[string]int32{},
		shards: map[PartitionID]int64{}, seen: map[PartitionID]Partition{}, wiped: map[int32]bool{},
	}
}

func (m *model) brokerID(t *rapid.T) int32 { return rapid.Int32Range(1, 4).Draw(t, "broker") }

// write applies a plan, or only its first stages, as when the controller dies.
func (m *model) write(t *rapid.T, plan Plan, err error) {
	if err != nil {
		if _, ok := err.(*Rejection); ok {
			return
		}
		t.Fatalf("a plan that breaks a rule: %v", err)
	}
	stages := plan.Stages
	if len(stages) > 0 && rapid.IntRange(0, 9).Draw(t, "dies") == 0 {
		stages = stages[:rapid.IntRange(0, len(stages)-1).Draw(t, "stages")]
	}
	m.applyStages(t, stages)
	m.check(t)
}

func (m *model) startBroker(t *rapid.T) {
	id := m.brokerID(t)
	verdict := Intact
	switch rapid.IntRange(0, 9).Draw(t, "verdict") {
	case 0:
		verdict = Cut
	case 1:
		verdict = UncleanOS
	}
	var vouches []Vouch
	if !m.wiped[id] {
		vouches = m.vouchAll(id, verdict)
	}
	delete(m.wiped, id)
	life := m.register(KindBroker, id)
	m.alive[id] = true
	r := BrokerRegistration{Process: life, Address: fmt.Sprintf("h%d:1", id), Vouches: vouches}
	m.SetVouches(r)
	plan, err := RegisterBroker(m.State, r)
	m.write(t, plan, err)
}

func (m *model) stopBroker(t *rapid.T) {
	id := m.brokerID(t)
	if !m.alive[id] {
		return
	}
	m.alive[id] = false
	m.wiped[id] = rapid.IntRange(0, 9).Draw(t, "wiped") == 0
	m.Delete(Key{Type: KeyRegistration, Kind: KindBroker, ID: id})
	if b := m.Broker(id); b != nil {
		plan, err := FenceBroker(m.State, b.Value.Process)
		m.write(t, plan, err)
	}
}

func (m *model) hiccup(t *rapid.T) {
	if b := m.Broker(m.brokerID(t)); b != nil {
		plan, err := FenceBroker(m.State, b.Value.Process)
		m.write(t, plan, err)
		plan, err = UnfenceBroker(m.State, b.Value.Process)
		m.write(t, plan, err)
	}
}

func (m *model) coordinator(t *rapid.T) {
	id := rapid.Int32Range(1, 3).Draw(t, "coordinator")
	if rapid.Bool().Draw(t, "up") {
		m.register(KindCoordinator, id)
	} else {
		m.Delete(Key{Type: KeyRegistration, Kind: KindCoordinator, ID: id})
	}
}

func (m *model) createTopic(t *rapid.T) {
	n := NewTopic{
		Name: rapid.SampledFrom(modelNames).Draw(t, "name"), ID: m.newID(), Shift: rapid.IntRange(0, 9).Draw(t, "shift"),
		Partitions: rapid.Int32Range(1, 3).Draw(t, "partitions"), ReplicationFactor: rapid.Int32Range(1, 3).Draw(t, "replicas"),
	}
	if n.ReplicationFactor == 3 && rapid.Bool().Draw(t, "min") {
		n.Configs = map[string]string{"min.insync.replicas": "2"}
	}
	plan, _, err := CreateTopics(m.State, testLimits(), []NewTopic{n})
	m.write(t, plan, err)
}

func (m *model) alterTopic(t *rapid.T) {
	c := AlterTopicCommand{Name: rapid.SampledFrom(modelNames).Draw(t, "name")}
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		c.Partitions = rapid.Int32Range(1, 5).Draw(t, "partitions")
	case 1:
		c.SetConfigs = map[string]string{"min.insync.replicas": rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "min")}
	default:
		c.SetConfigs = map[string]string{"unclean.leader.election.enable": rapid.SampledFrom([]string{"true", "false"}).Draw(t, "unclean")}
	}
	plan, err := AlterTopic(m.State, c)
	m.write(t, plan, err)
}

func (m *model) deleteTopic(t *rapid.T) {
	plan, _, err := DeleteTopics(m.State, []string{rapid.SampledFrom(modelNames).Draw(t, "name")})
	m.write(t, plan, err)
}

func (m *model) confirm(t *rapid.T) {
	b := m.Broker(m.brokerID(t))
	if b == nil {
		return
	}
	var ids [][16]byte
	for _, d := range m.Deletions() {
		ids = append(ids, d.Value.Topic)
	}
	plan, err := ConfirmDeletion(m.State, b.Value.Process, ids)
	m.write(t, plan, err)
}

func (m *model) propose(t *rapid.T) {
	for _, top := range m.Topics() {
		p := m.Partition(top.Value.ID, 0)
		if p == nil || p.Value.Leader.IsZero() {
			continue
		}
		c := ISRProposal{Leader: p.Value.Leader, Topic: top.Value.ID, LeaderEpoch: p.Value.LeaderEpoch, PartitionEpoch: p.Value.PartitionEpoch, ISR: []Process{p.Value.Leader}}
		for _, r := range p.Value.Replicas {
			if b := m.Broker(r); b != nil && r != p.Value.Leader.ID && rapid.Bool().Draw(t, "in") {
				c.ISR = append(c.ISR, b.Value.Process)
			}
		}
		plan, err := ProposeISR(m.State, c)
		m.write(t, plan, err)
		return
	}
}

// tidy reconciles to the end and checks what then must be true.
func (m *model) tidy(t *rapid.T) {
	m.settle(t)
	m.check(t)
	view := brokerView{state: m.State}
	for _, top := range m.Topics() {
		if top.Value.Deleting {
			t.Fatalf("topic %s is still being deleted", top.Value.Name)
		}
		if n := len(m.Partitions(top.Value.ID)); n != int(top.Value.Partitions) {
			t.Fatalf("topic %s has %d records for %d partitions", top.Value.Name, n, top.Value.Partitions)
		}
		for _, e := range m.Partitions(top.Value.ID) {
			p := e.Value
			electable := slices.ContainsFunc(union(p.ISR, p.ELR), func(b int32) bool {
				_, ok := view.unfenced(b)
				return ok && !slices.Contains(p.Barred, b)
			})
			if m.neverLed(&p) {
				continue
			}
			if p.Leader.IsZero() == electable {
				t.Fatalf("electable %v, and yet: %+v", electable, p)
			}
			if !p.Leader.IsZero() && !view.leads(&p) {
				t.Fatalf("led by a life that is not: %+v", p)
			}
		}
	}
	if len(m.State.partitions) != len(m.State.topics) {
		t.Fatalf("partitions of no topic are left")
	}
	m.checkShards(t)
}

func (m *model) checkShards(t *rapid.T) {
	live := m.Registrations(KindCoordinator)
	top := m.TopicByName(OffsetsTopic)
	if top == nil || len(live) == 0 {
		return
	}
	count := map[Process]int{}
	for _, e := range m.Partitions(top.Value.ID) {
		count[e.Value.ShardOwner]++
	}
	low, high := int(top.Value.Partitions), 0
	for _, r := range live {
		low, high = min(low, count[r.Value.Process]), max(high, count[r.Value.Process])
		delete(count, r.Value.Process)
	}
	if len(count) > 0 || high-low > 1 {
		t.Fatalf("shards: from %d to %d, and of nobody %v", low, high, count)
	}
}

// check is called after every write.
func (m *model) check(t *rapid.T) {
	for id, of := range m.State.partitions {
		for n, e := range of {
			// What a controller left half made is seen by nobody and may be made anew.
			if top := m.Topic(id); top == nil || n >= top.Value.Partitions {
				continue
			}
			key := PartitionID{id, n}
			var before *Partition
			if b, ok := m.seen[key]; ok {
				if samePartition(&b, &e.Value) && b.PartitionEpoch == e.Value.PartitionEpoch {
					continue
				}
				before = &b
			}
			p := e.Value
			if err := checkPartition(before, &p); err != nil {
				t.Fatalf("%v: from %+v to %+v", err, before, p)
			}
			if before == nil {
				m.checkFloor(t, p)
			}
			m.seen[key] = p
		}
	}
	for _, top := range m.Topics() {
		for _, e := range m.Partitions(top.Value.ID) {
			name := fmt.Sprintf("%s-%d", top.Value.Name, e.Value.Number)
			if top.Value.Deleting {
				continue
			}
			if e.Value.LeaderEpoch < m.epochs[name] {
				t.Fatalf("%s: leader epoch %d after %d", name, e.Value.LeaderEpoch, m.epochs[name])
			}
			m.epochs[name] = e.Value.LeaderEpoch
		}
	}
}

// checkFloor: a new partition of a topic that is known starts above every epoch
// its name has had.
func (m *model) checkFloor(t *rapid.T, p Partition) {
	top := m.Topic(p.Topic)
	if top == nil {
		return
	}
	if had := m.epochs[fmt.Sprintf("%s-%d", top.Value.Name, p.Number)]; p.LeaderEpoch < had || p.LeaderEpoch == had && !p.Leader.IsZero() {
		t.Fatalf("%s-%d starts in epoch %d after %d", top.Value.Name, p.Number, p.LeaderEpoch, had)
	}
}

func TestRandomCommandsKeepTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"start broker": m.startBroker,
			"stop broker":  m.stopBroker,
			"hiccup":       m.hiccup,
			"coordinator":  m.coordinator,
			"create":       m.createTopic,
			"alter":        m.alterTopic,
			"delete":       m.deleteTopic,
			"confirm":      m.confirm,
			"propose":      m.propose,
			"offsets": func(t *rapid.T) {
				plan, _, err := EnsureInternalTopic(m.State, testLimits(), OffsetsTopic, m.newID(), 0)
				m.write(t, plan, err)
			},
			"reconcile": func(t *rapid.T) {
				plan, err := Reconcile(m.State, Hints{})
				m.write(t, plan, err)
			},
			"tidy": m.tidy,
			"make folders": func(t *rapid.T) {
				if b := m.Broker(m.brokerID(t)); b != nil {
					m.makeFoldersOf(t, b.Value.Process)
					m.check(t)
				}
			},
			"": m.check,
		})
		m.tidy(t)
	})
}
