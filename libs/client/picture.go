package client

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// picture is what polls have told. It is immutable.
type picture struct {
	position  *brokerv1.MetadataPosition
	clusterID string
	brokers   []Node // by id
	coords    []Node // by id
	byName    map[string]*Topic
	byID      map[topicid.ID]*Topic
}

func newPicture() *picture {
	return &picture{byName: make(map[string]*Topic), byID: make(map[topicid.ID]*Topic)}
}

// merge is the picture after an answer: topics that were asked for and are not
// there are gone, the others stay as they were. It also returns the names that are
// unknown. names and ids are what was asked, in the order of the answer.
func (p *picture) merge(resp *brokerv1.GetMetadataResponse, all bool, names []string, ids []topicid.ID) (*picture, []string) {
	n := &picture{position: resp.Position, clusterID: resp.ClusterId}
	for _, b := range resp.Brokers {
		n.brokers = append(n.brokers, Node{ID: b.GetBroker().GetId(), Incarnation: b.GetBroker().GetIncarnation(), Addr: b.Address, Rack: b.Rack})
	}
	for _, c := range resp.Coordinators {
		n.coords = append(n.coords, Node{ID: c.GetCoordinator().GetId(), Incarnation: c.GetCoordinator().GetIncarnation(), Addr: c.Address})
	}
	byID := func(a, b Node) int { return int(a.ID) - int(b.ID) }
	slices.SortFunc(n.brokers, byID)
	slices.SortFunc(n.coords, byID)

	if all || resp.ClusterId != p.clusterID {
		n.byName, n.byID = make(map[string]*Topic), make(map[topicid.ID]*Topic)
	} else {
		n.byName, n.byID = maps.Clone(p.byName), maps.Clone(p.byID)
	}
	for _, name := range names {
		if old := n.byName[name]; old != nil {
			delete(n.byName, name)
			delete(n.byID, old.ID)
		}
	}
	for _, id := range ids {
		if old := n.byID[id]; old != nil {
			delete(n.byID, id)
			if n.byName[old.Name] == old {
				delete(n.byName, old.Name)
			}
		}
	}
	for _, info := range resp.Topics {
		id, err := topicid.FromBytes(info.TopicId)
		if info.Error != nil || err != nil {
			continue
		}
		t := topicFromInfo(info, id)
		n.byName[t.Name], n.byID[t.ID] = t, t
	}
	var unknown []string
	for _, name := range names {
		if n.byName[name] == nil {
			unknown = append(unknown, name)
		}
	}
	return n, unknown
}

// topicFromInfo reads the message form. Partitions come in order; one that is out
// of place is put where its number says, and gaps have no leader.
func topicFromInfo(info *brokerv1.TopicInfo, id topicid.ID) *Topic {
	t := &Topic{Name: info.Name, ID: id, Internal: info.Internal, MaxMessageBytes: info.MaxMessageBytes}
	t.Partitions = make([]Partition, len(info.Partitions))
	for i := range t.Partitions {
		t.Partitions[i] = Partition{Number: int32(i), Leader: -1, ShardOwner: -1}
	}
	for _, p := range info.Partitions {
		if p.Partition < 0 || int(p.Partition) >= len(t.Partitions) {
			continue
		}
		owner := int32(-1)
		if p.ShardOwner != nil {
			owner = p.ShardOwner.GetCoordinator().GetId()
		}
		t.Partitions[p.Partition] = Partition{
			Number: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.Isr, ELR: p.Elr,
			ShardOwner: owner, ShardEpoch: p.ShardOwner.GetShardEpoch(),
		}
	}
	t.setAvailable()
	return t
}

func (t *Topic) setAvailable() {
	for _, p := range t.Partitions {
		if p.Leader >= 0 {
			t.available = append(t.available, p.Number)
		}
	}
}

// topicPauses are how long a source pauses before each asking for a topic that nobody
// knows.
var topicPauses = [...]time.Duration{0, 0, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond}

// Topic implements MetadataSource.
func (s *pollSource) Topic(ctx context.Context, name string) (*Topic, error) {
	// A process that has just started to follow the metadata, or is a moment behind
	// the creation of the topic, does not know it yet: asking again settles that.
	pauses := topicPauses[:]
	if name == OffsetsTopic {
		pauses = pauses[:2] // it is made when it is first needed: whoever looks for it knows what to do
	}
	for _, pause := range pauses {
		if pause > 0 && !sleep(ctx, pause) {
			return nil, contextError(ctx, "find topic "+strconv.Quote(name), unknownTopic(name)).WithOutcome(outcomeNotDone).With("topic", name)
		}
		s.mu.Lock()
		t := s.pic.byName[name]
		if _, ok := s.names[name]; t == nil || !ok {
			s.names[name] = time.Now()
		}
		s.mu.Unlock()
		if t != nil {
			return t, nil
		}
		if err := s.wait(ctx, false); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.pic.byName[name]; t != nil {
		return t, nil
	}
	delete(s.names, name)
	return nil, unknownTopic(name)
}

func unknownTopic(name string) *rpc.Error {
	return rpc.Errorf(reasonUnknownTopic, "there is no topic %q: check its name, or create it first", name).With("topic", name)
}

// TopicByID implements MetadataSource.
func (s *pollSource) TopicByID(ctx context.Context, id topicid.ID) (*Topic, error) {
	for range 2 {
		s.mu.Lock()
		t := s.pic.byID[id]
		if _, ok := s.ids[id]; t == nil || !ok {
			s.ids[id] = time.Now()
		}
		s.mu.Unlock()
		if t != nil {
			return t, nil
		}
		if err := s.wait(ctx, false); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.pic.byID[id]; t != nil {
		return t, nil
	}
	delete(s.ids, id)
	return nil, unknownTopicID(id)
}

func unknownTopicID(id topicid.ID) *rpc.Error {
	return rpc.Errorf(reasonUnknownTopic, "there is no topic with the id %s: it was deleted, or never was", id).With("topic_id", id.String())
}

// Topics implements MetadataSource.
func (s *pollSource) Topics(ctx context.Context) ([]*Topic, error) {
	if err := s.wait(ctx, true); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.pic.byName), func(a, b *Topic) int { return strings.Compare(a.Name, b.Name) }), nil
}

// Leader implements MetadataSource.
func (s *pollSource) Leader(p TopicPartition) (Leader, bool) {
	s.mu.Lock()
	pic := s.pic
	s.mu.Unlock()
	part := pic.partition(p)
	if part == nil {
		return Leader{}, false
	}
	b, ok := nodeByID(pic.brokers, part.Leader)
	return Leader{ID: part.Leader, Addr: b.Addr, Epoch: part.LeaderEpoch}, ok
}

// partition finds a partition; nil: it is not there.
func (p *picture) partition(tp TopicPartition) *Partition {
	t := p.byID[tp.TopicID]
	if t == nil || tp.Partition < 0 || int(tp.Partition) >= len(t.Partitions) {
		return nil
	}
	return &t.Partitions[tp.Partition]
}

// Partition implements MetadataSource.
func (s *pollSource) Partition(p TopicPartition) (Partition, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part := s.pic.partition(p)
	if part == nil {
		return Partition{}, false
	}
	return *part, true
}

// nodeByID finds a node in a list that is sorted by id.
func nodeByID(nodes []Node, id int32) (Node, bool) {
	i, ok := slices.BinarySearchFunc(nodes, id, func(n Node, id int32) int { return int(n.ID) - int(id) })
	if !ok {
		return Node{}, false
	}
	return nodes[i], true
}

// Broker implements MetadataSource.
func (s *pollSource) Broker(id int32) (Node, bool) { return nodeByID(s.Brokers(), id) }

// Brokers implements MetadataSource.
func (s *pollSource) Brokers() []Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pic.brokers
}

// Coordinators implements MetadataSource.
func (s *pollSource) Coordinators() []Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pic.coords
}

// Changed implements MetadataSource.
func (s *pollSource) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
