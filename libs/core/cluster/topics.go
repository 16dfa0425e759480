package cluster

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/topicid"
)

const (
	// MaxPartitions is the most partitions of one topic, and of all topics of one
	// request.
	MaxPartitions = 10_000
	// MaxNameLength is the longest topic name, in bytes.
	MaxNameLength = 249
	// Unset stands for the default of the mesh, as in Kafka's requests.
	Unset = -1
)

// Limits are what the mesh allows and assumes.
type Limits struct {
	DefaultPartitions int32 // num.partitions
	// DefaultReplicationFactor is default.replication.factor; 0: 3, or the number of
	// brokers on record where there are fewer.
	DefaultReplicationFactor int32
	OffsetsPartitions        int32 // offsets.topic.num.partitions
}

// NewTopic asks for a topic.
type NewTopic struct {
	Name              string
	Partitions        int32 // Unset: the default
	ReplicationFactor int32 // Unset: the default
	Configs           map[string]string
	// ID is the new topic's id, drawn by the caller.
	ID topicid.ID
	// Shift chooses the broker of the first replica; drawn by the caller, any
	// number from 0.
	Shift int
}

// TopicOutcome is what becomes of one topic of a request.
type TopicOutcome struct {
	Name              string
	ID                topicid.ID
	Partitions        int32
	ReplicationFactor int32
	Rejection         *Rejection // set if nothing is done for the topic
}

// CreateTopics plans new topics. The outcomes are in the order of the request; a
// topic with a rejection is not in the plan. A rejection of the whole request is
// returned as the error; else the error is an *InvariantError.
func CreateTopics(s *State, limits Limits, topics []NewTopic) (Plan, []TopicOutcome, error) {
	if len(topics) == 0 {
		return Plan{}, nil, reject("INVALID_REQUEST", "no topics to create; name at least one")
	}
	if err := checkRequestSize(limits, topics); err != nil {
		return Plan{}, nil, err
	}
	p := newPlanner(s)
	outcomes := make([]TopicOutcome, 0, len(topics))
	taken := map[string]string{} // folded names of this request
	for _, t := range topics {
		outcome, rejection := createTopic(p, limits, t, taken)
		if rejection != nil && rejection.Reason == "STARTING" {
			return Plan{}, nil, rejection // no topic can be made; try the whole again
		}
		outcome.Rejection = rejection
		outcomes = append(outcomes, outcome)
	}
	plan, err := p.done()
	return plan, outcomes, err
}

// checkRequestSize refuses a request as a whole before anything of it is planned.
func checkRequestSize(limits Limits, topics []NewTopic) error {
	total := int64(0)
	for _, t := range topics {
		if t.Partitions == Unset {
			t.Partitions = limits.DefaultPartitions
		}
		total += max(int64(t.Partitions), 0)
	}
	if total > MaxPartitions {
		return reject("INVALID_PARTITIONS", "%d partitions in one request; at most %d over all its topics. Nothing was created",
			total, MaxPartitions).with("limit", strconv.Itoa(MaxPartitions))
	}
	return nil
}

func createTopic(p *planner, limits Limits, t NewTopic, taken map[string]string) (TopicOutcome, *Rejection) {
	outcome := TopicOutcome{Name: t.Name}
	if err := CheckTopicName(t.Name); err != nil {
		return outcome, err
	}
	if t.Name == OffsetsTopic {
		return outcome, reject("INTERNAL_TOPIC", "%s belongs to Leat itself and is made when the first group needs it; choose another name", t.Name).with("topic", t.Name)
	}
	if other, ok := taken[fold(t.Name)]; ok {
		return outcome, reject("INVALID_TOPIC_NAME", "%q comes beside %q in one request; name each topic once, and keep names apart that differ only in . and _", t.Name, other).with("topic", t.Name)
	}
	if err := checkNameFree(p.state, t.Name); err != nil {
		return outcome, err
	}
	if err := checkConfigs(p.state, nil, t.Configs); err != nil {
		return outcome, err.with("topic", t.Name)
	}
	outcome, rejection := layOut(p, limits, t, false)
	if rejection == nil {
		taken[fold(t.Name)] = t.Name
	}
	return outcome, rejection
}

// CheckTopicName tells whether a name is allowed at all.
func CheckTopicName(name string) *Rejection {
	bad := func(why string) *Rejection {
		shown := name
		if len(shown) > 64 {
			shown = shown[:64] + "…"
		}
		return reject("INVALID_TOPIC_NAME", "topic name %q %s; use 1 to %d of a-z, A-Z, 0-9, '.', '_' and '-'", shown, why, MaxNameLength)
	}
	switch {
	case name == "":
		return bad("is empty")
	case len(name) > MaxNameLength:
		return bad(fmt.Sprintf("has %d characters", len(name)))
	case name == "." || name == "..":
		return bad("is not allowed")
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return bad(fmt.Sprintf("contains %q", r))
		}
	}
	return nil
}

func checkNameFree(s *State, name string) *Rejection {
	if s.TopicByName(name) != nil {
		return reject("TOPIC_EXISTS", "there is a topic %q already; choose another name, or delete it first", name).with("topic", name)
	}
	if other, ok := s.folded[fold(name)]; ok && other != name {
		return reject("INVALID_TOPIC_NAME", "%q collides with the topic %q: '.' and '_' are the same in metric names; choose another name", name, other).with("topic", name)
	}
	return nil
}

// checkConfigs validates configs as they are to be; before is nil for a new topic.
func checkConfigs(s *State, before *Topic, configs map[string]string) *Rejection {
	defaults := s.Cluster().DefaultConfigs
	err := topicconfig.Validate(defaults, configs)
	if err == nil && before != nil {
		err = topicconfig.ValidateChange(defaults, before.Configs, configs)
	}
	if err != nil {
		return reject("INVALID_CONFIG", "%v", err)
	}
	return nil
}

// layOut plans the records of one new topic: its partitions in a stage before the
// topic itself, so that a topic that is seen is whole.
func layOut(p *planner, limits Limits, t NewTopic, internal bool) (TopicOutcome, *Rejection) {
	outcome := TopicOutcome{Name: t.Name, ID: t.ID, Partitions: t.Partitions, ReplicationFactor: t.ReplicationFactor}
	if outcome.Partitions == Unset {
		outcome.Partitions = limits.DefaultPartitions
	}
	if outcome.ReplicationFactor == Unset {
		outcome.ReplicationFactor = defaultReplicationFactor(p.state, limits)
	}
	if outcome.Partitions < 1 || outcome.Partitions > MaxPartitions {
		return TopicOutcome{Name: t.Name}, reject("INVALID_PARTITIONS", "a topic cannot have %d partitions; give 1 to %d", outcome.Partitions, MaxPartitions).
			with("topic", t.Name).with("limit", strconv.Itoa(MaxPartitions))
	}
	hosts, rejection := p.state.hosts(outcome.ReplicationFactor)
	if rejection != nil {
		return TopicOutcome{Name: t.Name}, rejection.with("topic", t.Name)
	}
	config, err := topicconfig.Parse(p.state.Cluster().DefaultConfigs, t.Configs)
	if err != nil {
		return TopicOutcome{Name: t.Name}, reject("INVALID_CONFIG", "%v", err).with("topic", t.Name)
	}
	if _, own := t.Configs[topicconfig.MinInsyncReplicas]; own && config.MinInsyncReplicas > outcome.ReplicationFactor {
		return TopicOutcome{Name: t.Name}, reject("INVALID_CONFIG", "min.insync.replicas=%d is above the replication factor %d; lower it, or raise the replication factor",
			config.MinInsyncReplicas, outcome.ReplicationFactor).with("topic", t.Name)
	}
	floor := value(p.state.names[t.Name]).LeaderEpochFloor
	if floor >= math.MaxInt32-1 {
		return TopicOutcome{Name: t.Name}, reject("INVALID_TOPIC_NAME", "the leader epochs of the name %q are used up; choose another name", t.Name).with("topic", t.Name)
	}
	p.next()
	minISR := config.MinISR(outcome.ReplicationFactor)
	order := p.state.newRing(hosts)
	for n := range outcome.Partitions {
		p.put(newPartition(t.ID, n, order.place(int(n)+t.Shift, outcome.ReplicationFactor), minISR, floor))
	}
	p.next()
	p.put(Topic{ID: t.ID, Name: t.Name, Partitions: outcome.Partitions, Configs: maps.Clone(t.Configs), Internal: internal})
	p.put(TopicName{Name: t.Name, Topic: t.ID, LeaderEpochFloor: floor})
	return outcome, nil
}

// automaticReplicationFactor is default.replication.factor where none is set and
// there are enough brokers.
const automaticReplicationFactor = 3

// defaultReplicationFactor is the replication factor of a topic that is created
// without one.
func defaultReplicationFactor(s *State, limits Limits) int32 {
	if limits.DefaultReplicationFactor > 0 {
		return limits.DefaultReplicationFactor
	}
	return s.automaticReplicas()
}

// newPartition is a partition's first record. It has no leader until the folders of
// its replicas exist durably; its leader epoch, the floor, says that it never had.
func newPartition(topic topicid.ID, n int32, replicas []int32, minISR, floor int32) Partition {
	return Partition{
		Topic: topic, Number: n, LeaderEpoch: floor,
		Replicas: replicas, ISR: slices.Clone(replicas), MinISR: minISR,
	}
}
