package cluster

import (
	"maps"
	"slices"
	"strconv"

	"github.com/leat-io/leat/libs/core/topicconfig"
)

// AlterTopicCommand changes one topic, all or nothing.
type AlterTopicCommand struct {
	Name          string
	SetConfigs    map[string]string
	DeleteConfigs []string
	Partitions    int32 // 0: unchanged
}

// AlterTopic plans a topic's change. The plan is empty if it is so already. The
// error is a *Rejection or an *InvariantError.
func AlterTopic(s *State, c AlterTopicCommand) (Plan, error) {
	t, rejection := userTopic(s, c.Name)
	if rejection != nil {
		return Plan{}, rejection
	}
	configs := maps.Clone(t.Configs)
	if configs == nil {
		configs = map[string]string{}
	}
	for _, key := range c.DeleteConfigs {
		if _, both := c.SetConfigs[key]; both {
			return Plan{}, reject("INVALID_CONFIG", "topic config %s is both set and put back to its default; do one", key).with("topic", c.Name)
		}
		if _, known := topicconfig.Lookup(key); !known && configs[key] == "" {
			return Plan{}, checkConfigs(s, nil, map[string]string{key: ""}).with("topic", c.Name)
		}
		delete(configs, key)
	}
	maps.Copy(configs, c.SetConfigs)
	if rejection := checkConfigs(s, &t, configs); rejection != nil {
		return Plan{}, rejection.with("topic", c.Name)
	}
	if rejection := checkMinISR(s, t, c, configs); rejection != nil {
		return Plan{}, rejection
	}
	p := newPlanner(s)
	next := t
	next.Configs = configs
	if c.Partitions != 0 {
		if rejection := addPartitions(p, t, c.Partitions, configs); rejection != nil {
			return Plan{}, rejection.with("topic", c.Name)
		}
		next.Partitions = c.Partitions
	}
	p.next()
	if next.Partitions != t.Partitions || !maps.Equal(next.Configs, t.Configs) {
		p.put(next)
	}
	return p.done()
}

// userTopic finds a living topic that users may change.
func userTopic(s *State, name string) (Topic, *Rejection) {
	t := s.TopicByName(name)
	if t == nil {
		return Topic{}, reject("UNKNOWN_TOPIC", "there is no topic %q; check the name, or list the topics", name).with("topic", name)
	}
	if t.Value.Internal {
		return Topic{}, reject("INTERNAL_TOPIC", "the topic %q belongs to Leat itself and cannot be changed or deleted", name).with("topic", name)
	}
	return t.Value, nil
}

// checkMinISR refuses a smallest sufficient ISR that the topic can never have.
func checkMinISR(s *State, t Topic, c AlterTopicCommand, configs map[string]string) *Rejection {
	if _, set := c.SetConfigs[topicconfig.MinInsyncReplicas]; !set {
		return nil
	}
	config, err := topicconfig.Parse(s.Cluster().DefaultConfigs, configs)
	if err != nil {
		return reject("INVALID_CONFIG", "%v", err).with("topic", c.Name)
	}
	for _, e := range s.partitions[t.ID] {
		n := min(e.Value.ReplicationFactor(), s.plannedFactor(e))
		if config.MinInsyncReplicas > n {
			return reject("INVALID_CONFIG", "min.insync.replicas=%d is above the replication factor %d; lower it, or raise the replication factor first", config.MinInsyncReplicas, n).with("topic", c.Name)
		}
	}
	return nil
}

// addPartitions plans the records of more partitions. The topic is raised in a
// later stage.
func addPartitions(p *planner, t Topic, want int32, configs map[string]string) *Rejection {
	if want <= t.Partitions {
		return reject("INVALID_PARTITIONS", "the topic has %d partitions and can only get more, not %d; partitions are never taken away", t.Partitions, max(want, 0))
	}
	if want > MaxPartitions {
		return reject("INVALID_PARTITIONS", "a topic cannot have %d partitions; give at most %d", want, MaxPartitions).with("limit", strconv.Itoa(MaxPartitions))
	}
	last := p.state.Partition(t.ID, t.Partitions-1)
	if last == nil {
		return reject("INTERNAL_BUG", "partition %d of the topic has no record; please report this", t.Partitions-1)
	}
	replicationFactor := last.Value.ReplicationFactor()
	hosts, rejection := p.state.hosts(replicationFactor)
	if rejection != nil {
		return rejection
	}
	config, err := topicconfig.Parse(p.state.Cluster().DefaultConfigs, configs)
	if err != nil {
		return reject("INVALID_CONFIG", "%v", err)
	}
	// Go on round the brokers where the last partition is.
	order := p.state.newRing(hosts)
	at := order.position(last.Value.Replicas[0])
	floor := value(p.state.names[t.Name]).LeaderEpochFloor
	for n := t.Partitions; n < want; n++ {
		if p.state.Partition(t.ID, n) != nil {
			// Left by a controller that died while it added partitions; Reconcile
			// removes it, and then this can be asked again.
			return reject("CONTROLLER_NOT_AVAILABLE", "an unfinished change of the topic is being cleaned up; try again")
		}
		replicas := order.place(at+1+int(n-t.Partitions), replicationFactor)
		p.put(newPartition(t.ID, n, replicas, config.MinISR(replicationFactor), floor))
	}
	return nil
}

// DeleteTopics plans the beginning of topics' deletion: from the plan on they are
// gone for clients and their names are free. Reconcile removes the records.
func DeleteTopics(s *State, names []string) (Plan, []TopicOutcome, error) {
	if len(names) == 0 {
		return Plan{}, nil, reject("INVALID_REQUEST", "no topics to delete; name at least one")
	}
	p := newPlanner(s)
	outcomes := make([]TopicOutcome, 0, len(names))
	planned := map[string]bool{}
	for _, name := range names {
		outcome := TopicOutcome{Name: name}
		t, rejection := userTopic(s, name)
		switch {
		case rejection != nil:
			outcome.Rejection = rejection
		case planned[name]:
			outcome.Rejection = reject("INVALID_REQUEST", "topic %q is named twice in one request", name).with("topic", name)
		default:
			planned[name] = true
			outcome.ID, outcome.Partitions = t.ID, t.Partitions
			p.next()
			beginDeletion(p, t)
		}
		outcomes = append(outcomes, outcome)
	}
	plan, err := p.done()
	return plan, outcomes, err
}

// beginDeletion plans one stage, which must be one transaction; it is three
// writes.
func beginDeletion(p *planner, t Topic) {
	floor := value(p.state.names[t.Name]).LeaderEpochFloor
	var holders []int32
	for _, e := range p.state.Partitions(t.ID) {
		floor = max(floor, e.Value.LeaderEpoch)
		holders = union(holders, e.Value.Replicas)
	}
	slices.Sort(holders)
	deleting := t
	deleting.Deleting = true
	p.put(deleting)
	p.put(TopicName{Name: t.Name, LeaderEpochFloor: floor})
	p.put(Deletion{Topic: t.ID, Name: t.Name, Pending: holders})
}

// ConfirmDeletion plans that a broker holds no replica of some topics any more.
func ConfirmDeletion(s *State, broker Process, topics [][16]byte) (Plan, error) {
	b := s.Broker(broker.ID)
	if b == nil || b.Value.Process != broker {
		return Plan{}, reject("STALE_INCARNATION", "broker %d is on record with another incarnation; register first", broker.ID)
	}
	p := newPlanner(s)
	seen := map[[16]byte]bool{}
	for _, id := range topics {
		d := s.Deletion(id)
		if d == nil || seen[id] || !slices.Contains(d.Value.Pending, broker.ID) {
			continue
		}
		seen[id] = true
		next := d.Value
		next.Pending = keep(next.Pending, func(b int32) bool { return b != broker.ID })
		p.put(next)
	}
	return p.done()
}
