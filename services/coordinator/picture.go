package coordinator

import (
	"slices"
	"sync"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

// pictures shows the metadata the way the shards need it. It is safe for concurrent
// use.
type pictures struct {
	watcher *metadata.Watcher

	mu      sync.Mutex
	image   *metadata.Image // that picture was made of
	picture *shard.Picture
	topics  []group.Topic // that picture.Topics.View was made of
}

var _ shard.Metadata = (*pictures)(nil)

// Picture implements shard.Metadata.
func (p *pictures) Picture() (*shard.Picture, <-chan struct{}) {
	image, changed := p.watcher.Watch()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.image != image {
		p.image, p.picture = image, p.draw(image)
	}
	return p.picture, changed
}

// draw makes a picture. The view of topics is kept while they do not change, since
// most changes are of leaders, and every shard looks over its groups for a new one.
func (p *pictures) draw(image *metadata.Image) *shard.Picture {
	next := &shard.Picture{}
	var topics []group.Topic
	for _, t := range image.Topics() {
		if !t.Deleting {
			topics = append(topics, group.Topic{ID: group.TopicID(t.ID), Name: t.Name, Partitions: t.NumPartitions(), Internal: t.Internal})
		}
	}
	if p.picture != nil && slices.Equal(topics, p.topics) {
		next.Topics.View = p.picture.Topics.View
	} else {
		next.Topics.View, p.topics = group.NewTopicView(topics), topics
	}
	for _, d := range image.Deletions() {
		if id, err := topicid.FromBytes(d.GetTopicId()); err == nil {
			next.Topics.Deleted = append(next.Topics.Deleted, group.TopicID(id))
		}
	}
	internal := image.TopicByName(client.OffsetsTopic)
	if internal == nil || internal.Deleting {
		return next
	}
	next.Known, next.Topic, next.MaxMessageBytes = true, internal.ID, int(internal.Config.MaxMessageBytes)
	for n := range internal.NumPartitions() {
		next.Shards = append(next.Shards, owner(image, internal.Partition(n)))
	}
	return next
}

func owner(image *metadata.Image, p *controllerv1.Partition) shard.Owner {
	process := p.GetShardOwner()
	if process == nil {
		return shard.Owner{}
	}
	o := shard.Owner{ID: process.GetId(), Incarnation: process.GetIncarnation(), Epoch: p.GetShardEpoch()}
	r := image.Registration(controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR, o.ID)
	if r != nil && r.GetProcess().GetIncarnation() == o.Incarnation {
		o.Addr = r.GetAddress()
	}
	return o
}
