package handler

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/topicid"
)

// partBytes is about how large a message of the metadata stream gets; a stub's
// default limit is 4 MiB.
const partBytes = 2 << 20

// collector turns records into messages for one receiver.
type collector struct {
	state  *cluster.State
	kind   controllerv1.ServiceKind
	broker int32
	done   []*controllerv1.MetadataChanges
	part   *controllerv1.MetadataChanges
	bytes  int
}

func newCollector(state *cluster.State, kind controllerv1.ServiceKind, broker int32) *collector {
	return &collector{state: state, kind: kind, broker: broker, part: &controllerv1.MetadataChanges{}}
}

// parts returns the messages; none if there is nothing to tell.
func (c *collector) parts() []*controllerv1.MetadataChanges {
	if c.bytes > 0 {
		c.cut()
	}
	return c.done
}

func (c *collector) cut() {
	c.done = append(c.done, c.part)
	c.part, c.bytes = &controllerv1.MetadataChanges{}, 0
}

// add counts an entry that has been put into the part.
func (c *collector) add(bytes int) {
	c.bytes += bytes + 8
	if c.bytes >= partBytes {
		c.cut()
	}
}

// everything collects the whole state.
func (c *collector) everything() {
	c.defaults()
	c.leader()
	for _, r := range c.state.Registrations(0) {
		c.registration(r)
	}
	for _, b := range c.state.Brokers() {
		c.setBroker(b.Value)
	}
	for _, t := range c.state.Topics() {
		c.topic(t.Value)
	}
	for _, d := range c.state.Deletions() {
		c.deletion(d.Value)
	}
}

// keys collects what has changed, in an order in which it can be applied: a
// topic before its partitions.
func (c *collector) keys(dirty map[cluster.Key]struct{}) {
	whole := map[topicid.ID]bool{} // topics sent with all partitions
	byType := map[cluster.KeyType][]cluster.Key{}
	for key := range maps.Keys(dirty) {
		byType[key.Type] = append(byType[key.Type], key)
	}
	if len(byType[cluster.KeyCluster]) > 0 {
		c.defaults()
	}
	if len(byType[cluster.KeyElection]) > 0 {
		c.leader()
	}
	for _, key := range byType[cluster.KeyRegistration] {
		c.registrationKey(key)
	}
	for _, key := range byType[cluster.KeyBroker] {
		if b := c.state.Broker(key.ID); b != nil {
			c.setBroker(b.Value)
			continue
		}
		c.part.RemovedBrokers = append(c.part.RemovedBrokers, key.ID)
		c.add(4)
	}
	for _, key := range byType[cluster.KeyTopic] {
		if t := c.state.Topic(key.Topic); t != nil {
			whole[key.Topic] = true
			c.topic(t.Value)
			continue
		}
		c.part.RemovedTopics = append(c.part.RemovedTopics, key.Topic.Bytes())
		c.add(topicid.Size)
	}
	for _, key := range byType[cluster.KeyPartition] {
		// A partition whose topic is not there yet comes with the topic.
		t, p := c.state.Topic(key.Topic), c.state.Partition(key.Topic, key.ID)
		if t != nil && p != nil && !whole[key.Topic] && key.ID < t.Value.Partitions {
			c.partition(p.Value)
		}
	}
	for _, key := range byType[cluster.KeyDeletion] {
		if d := c.state.Deletion(key.Topic); d != nil {
			c.deletion(d.Value)
			continue
		}
		c.part.RemovedDeletions = append(c.part.RemovedDeletions, key.Topic.Bytes())
		c.add(topicid.Size)
	}
}

func (c *collector) defaults() {
	c.part.DefaultConfigs = &controllerv1.DefaultConfigs{Configs: c.state.Cluster().DefaultConfigs}
	c.add(proto.Size(c.part.DefaultConfigs))
}

func (c *collector) leader() {
	c.part.Leader = leaderMessage(c.state)
	c.add(proto.Size(c.part.Leader))
}

func (c *collector) registration(r *cluster.Entry[cluster.Registration]) {
	m := registrationMessage(r)
	c.part.Registrations = append(c.part.Registrations, m)
	c.add(proto.Size(m))
}

func (c *collector) registrationKey(key cluster.Key) {
	if r := c.state.Registration(key.Kind, key.ID); r != nil {
		c.registration(r)
		return
	}
	c.part.RemovedRegistrations = append(c.part.RemovedRegistrations,
		&controllerv1.RegistrationKey{Kind: controllerv1.ServiceKind(key.Kind), Id: key.ID})
	c.add(8)
}

func (c *collector) setBroker(b cluster.Broker) {
	m := brokerMessage(b)
	c.part.Brokers = append(c.part.Brokers, m)
	c.add(proto.Size(m))
}

// topic collects a topic with its partitions.
func (c *collector) topic(t cluster.Topic) {
	m := topicMessage(t)
	c.part.Topics = append(c.part.Topics, m)
	c.add(proto.Size(m))
	for _, p := range c.state.Partitions(t.ID) {
		if p.Value.Number < t.Partitions {
			c.partition(p.Value)
		}
	}
}

func (c *collector) partition(p cluster.Partition) {
	full := c.kind == controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR ||
		c.kind == controllerv1.ServiceKind_SERVICE_KIND_BROKER && slices.Contains(p.Replicas, c.broker)
	m := partitionMessage(p, full)
	c.part.Partitions = append(c.part.Partitions, m)
	c.add(proto.Size(m))
}

func (c *collector) deletion(d cluster.Deletion) {
	m := deletionMessage(d)
	c.part.Deletions = append(c.part.Deletions, m)
	c.add(proto.Size(m))
}
