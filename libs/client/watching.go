package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/topicid"
)

// unknownGrace is how long a topic that the watcher does not know may still
// appear: another gateway may have created it a moment ago.
const unknownGrace = 250 * time.Millisecond

// WatcherSource is a MetadataSource over the controller's stream, for processes
// that follow it anyway. It learns of every change as it happens.
type WatcherSource struct {
	watcher *metadata.Watcher

	mu    sync.Mutex
	cache map[topicid.ID]cachedTopic
	// absent says until when a topic, by its name or its id, is not waited for once
	// more: somebody has just done so in vain. Without it a stream of records for a
	// topic that is gone would take a pause for each few of them.
	absent map[string]time.Time
}

// maxAbsent bounds what is remembered of topics that are not there.
const maxAbsent = 1024

// cachedTopic is a topic and what it was made from.
type cachedTopic struct {
	from  *metadata.Topic
	topic *Topic
}

var _ MetadataSource = (*WatcherSource)(nil)

// NewWatcherSource returns a source over a watcher that the caller runs.
func NewWatcherSource(w *metadata.Watcher) *WatcherSource {
	return &WatcherSource{watcher: w, cache: make(map[topicid.ID]cachedTopic), absent: make(map[string]time.Time)}
}

// Topic implements MetadataSource.
func (s *WatcherSource) Topic(ctx context.Context, name string) (*Topic, error) {
	t, err := s.find(ctx, "name "+name, func(i *metadata.Image) *metadata.Topic { return i.TopicByName(name) })
	if t == nil && err == nil {
		return nil, unknownTopic(name)
	}
	return t, err
}

// TopicByID implements MetadataSource.
func (s *WatcherSource) TopicByID(ctx context.Context, id topicid.ID) (*Topic, error) {
	t, err := s.find(ctx, "id "+id.String(), func(i *metadata.Image) *metadata.Topic { return i.TopicByID(id) })
	if t == nil && err == nil {
		return nil, unknownTopicID(id)
	}
	return t, err
}

// find waits for the first picture, and for a topic as long as it may still
// appear; nil without an error: there is none. key tells the topics that are looked
// for apart.
func (s *WatcherSource) find(ctx context.Context, key string, look func(*metadata.Image) *metadata.Topic) (*Topic, error) {
	var grace <-chan time.Time
	for {
		image, changed := s.watcher.Watch()
		known := image.Position().Generation > 0 || image.Position().Revision > 0
		if known {
			if t := look(image); t != nil && !t.Deleting {
				return s.convert(image, t), nil
			}
			if grace == nil {
				if s.isAbsent(key, time.Now()) {
					return nil, nil
				}
				timer := time.NewTimer(unknownGrace)
				defer timer.Stop()
				grace = timer.C
			}
		}
		select {
		case <-changed:
		case <-grace:
			s.noteAbsent(key, time.Now())
			return nil, nil
		case <-ctx.Done():
			return nil, contextError(ctx, "wait for metadata", nil).WithOutcome(outcomeNotDone)
		}
	}
}

// isAbsent reports whether a topic has just been waited for in vain.
func (s *WatcherSource) isAbsent(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(s.absent[key])
}

// noteAbsent notes that a topic has been waited for in vain.
func (s *WatcherSource) noteAbsent(key string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.absent) >= maxAbsent {
		clear(s.absent) // they are waited for once more, which is all
	}
	s.absent[key] = now.Add(unknownGrace)
}

// convert makes a Topic, or finds the one that was made of the same entry.
func (s *WatcherSource) convert(image *metadata.Image, from *metadata.Topic) *Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.cache[from.ID]; ok && c.from == from {
		return c.topic
	}
	t := &Topic{Name: from.Name, ID: from.ID, Internal: from.Internal, MaxMessageBytes: int32(from.Config.MaxMessageBytes)}
	t.Partitions = make([]Partition, from.NumPartitions())
	for i := range t.Partitions {
		t.Partitions[i] = partitionOf(int32(i), from.Partition(int32(i)))
	}
	t.setAvailable()
	if len(s.cache) > 64+2*len(image.Topics()) {
		clear(s.cache) // mostly topics that are gone
	}
	s.cache[from.ID] = cachedTopic{from: from, topic: t}
	return t
}

// partitionOf reads the message form.
func partitionOf(n int32, p *controllerv1.Partition) Partition {
	leader, owner := int32(-1), int32(-1)
	if p.GetLeader() != nil {
		leader = p.GetLeader().GetId()
	}
	if p.GetShardOwner() != nil {
		owner = p.GetShardOwner().GetId()
	}
	return Partition{
		Number: n, Leader: leader, LeaderEpoch: p.GetLeaderEpoch(),
		Replicas: p.GetReplicas(), ISR: p.GetIsr(), ELR: p.GetElr(), ShardOwner: owner, ShardEpoch: p.GetShardEpoch(),
	}
}

// Partition implements MetadataSource.
func (s *WatcherSource) Partition(p TopicPartition) (Partition, bool) {
	rec := s.watcher.Image().Partition(p.TopicID, p.Partition)
	if rec == nil {
		return Partition{}, false
	}
	return partitionOf(p.Partition, rec), true
}

// Topics implements MetadataSource.
func (s *WatcherSource) Topics(ctx context.Context) ([]*Topic, error) {
	for {
		image, changed := s.watcher.Watch()
		if image.Position().Generation > 0 || image.Position().Revision > 0 {
			var all []*Topic
			for _, t := range image.Topics() {
				if !t.Deleting {
					all = append(all, s.convert(image, t))
				}
			}
			return all, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, contextError(ctx, "wait for metadata", nil).WithOutcome(outcomeNotDone)
		}
	}
}

// Leader implements MetadataSource.
func (s *WatcherSource) Leader(p TopicPartition) (Leader, bool) {
	image := s.watcher.Image()
	rec := image.Partition(p.TopicID, p.Partition)
	if rec.GetLeader() == nil {
		return Leader{}, false
	}
	b := image.Broker(rec.GetLeader().GetId())
	if b == nil || b.Fenced {
		return Leader{}, false
	}
	return Leader{ID: rec.GetLeader().GetId(), Addr: b.Address, Epoch: rec.GetLeaderEpoch()}, true
}

// Broker implements MetadataSource.
func (s *WatcherSource) Broker(id int32) (Node, bool) {
	b := s.watcher.Image().Broker(id)
	if b == nil || b.Fenced {
		return Node{}, false
	}
	return brokerNode(b), true
}

func brokerNode(b *controllerv1.Broker) Node {
	return Node{ID: b.GetBroker().GetId(), Incarnation: b.GetBroker().GetIncarnation(), Addr: b.Address, Rack: b.Rack}
}

// Brokers implements MetadataSource.
func (s *WatcherSource) Brokers() []Node {
	var all []Node
	for _, b := range s.watcher.Image().Brokers() {
		if !b.Fenced {
			all = append(all, brokerNode(b))
		}
	}
	return all
}

// Coordinators implements MetadataSource.
func (s *WatcherSource) Coordinators() []Node {
	var all []Node
	for _, r := range s.watcher.Image().Registrations(controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR) {
		all = append(all, Node{ID: r.GetProcess().GetId(), Incarnation: r.GetProcess().GetIncarnation(), Addr: r.Address, Rack: r.Rack})
	}
	return all
}

// Refresh implements MetadataSource: news comes by itself, so that there is only
// the next change, or a pause, to wait for.
func (s *WatcherSource) Refresh(ctx context.Context) error {
	t := time.NewTimer(pollPause/2 + rand.N(pollPause))
	defer t.Stop()
	select {
	case <-s.watcher.Changed():
		return nil
	case <-t.C:
		return nil
	case <-ctx.Done():
		return contextError(ctx, "wait for metadata", nil).WithOutcome(outcomeNotDone)
	}
}

// Changed implements MetadataSource.
func (s *WatcherSource) Changed() <-chan struct{} { return s.watcher.Changed() }
