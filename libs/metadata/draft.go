package metadata

import (
	"maps"
	"slices"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/topicid"
)

// draft is the next image while it is being built. It copies a map or a topic
// the first time it is written to, so that an update costs what it touches and
// images in use never change. One goroutine owns it.
type draft struct {
	image *Image

	ownRegistrations, ownBrokers, ownTopics, ownDeletions bool
	fresh                                                 map[topicid.ID]bool // topics copied already
}

// edit begins a draft on top of base.
func edit(base *Image) *draft {
	return &draft{
		image: &Image{
			position: base.position, clusterID: base.clusterID, etcdClusterID: base.etcdClusterID, leader: base.leader,
			registrations: base.registrations, brokers: base.brokers,
			topics: base.topics, byName: base.byName,
			deletions: base.deletions, defaultConfigs: base.defaultConfigs,
		},
		fresh: map[topicid.ID]bool{},
	}
}

// done gives the finished image; the draft must not be used any more.
func (d *draft) done(position Position) *Image {
	d.image.position = position
	return d.image
}

// apply takes a message's changes in. Entries that make no sense (an id of the
// wrong length, a partition of no topic) are left aside: they come from a
// controller of another release at worst, and must not stop the stream.
func (d *draft) apply(c *controllerv1.MetadataChanges) {
	if l := c.GetLeader(); l != nil {
		d.image.leader = l
		if l.GetController().GetId() == 0 {
			d.image.leader = nil
		}
	}
	d.applyProcesses(c)
	if defaults := c.GetDefaultConfigs(); defaults != nil {
		d.image.defaultConfigs = defaults.GetConfigs()
		for id := range d.image.topics {
			t := d.topic(id)
			t.Config = inForce(d.image.defaultConfigs, t.Configs)
		}
	}
	for _, raw := range c.GetRemovedTopics() {
		if id, err := topicid.FromBytes(raw); err == nil {
			d.removeTopic(id)
		}
	}
	for _, t := range c.GetTopics() {
		if id, err := topicid.FromBytes(t.GetTopicId()); err == nil {
			d.setTopic(id, t)
		}
	}
	for _, p := range c.GetPartitions() {
		d.setPartition(p)
	}
	d.applyDeletions(c)
}

func (d *draft) applyProcesses(c *controllerv1.MetadataChanges) {
	if len(c.GetRegistrations())+len(c.GetRemovedRegistrations()) > 0 && !d.ownRegistrations {
		d.image.registrations, d.ownRegistrations = maps.Clone(d.image.registrations), true
	}
	for _, r := range c.GetRemovedRegistrations() {
		delete(d.image.registrations, registrationKey{r.GetKind(), r.GetId()})
	}
	for _, r := range c.GetRegistrations() {
		d.image.registrations[registrationKey{r.GetKind(), r.GetProcess().GetId()}] = r
	}
	if len(c.GetBrokers())+len(c.GetRemovedBrokers()) > 0 && !d.ownBrokers {
		d.image.brokers, d.ownBrokers = maps.Clone(d.image.brokers), true
	}
	for _, id := range c.GetRemovedBrokers() {
		delete(d.image.brokers, id)
	}
	for _, b := range c.GetBrokers() {
		d.image.brokers[b.GetBroker().GetId()] = b
	}
}

func (d *draft) applyDeletions(c *controllerv1.MetadataChanges) {
	if len(c.GetDeletions())+len(c.GetRemovedDeletions()) > 0 && !d.ownDeletions {
		d.image.deletions, d.ownDeletions = maps.Clone(d.image.deletions), true
	}
	for _, raw := range c.GetRemovedDeletions() {
		if id, err := topicid.FromBytes(raw); err == nil {
			delete(d.image.deletions, id)
		}
	}
	for _, del := range c.GetDeletions() {
		if id, err := topicid.FromBytes(del.GetTopicId()); err == nil {
			d.image.deletions[id] = del
		}
	}
}

// ownTopicMaps makes the maps of topics writable.
func (d *draft) ownTopicMaps() {
	if !d.ownTopics {
		d.image.topics, d.image.byName = maps.Clone(d.image.topics), maps.Clone(d.image.byName)
		d.ownTopics = true
	}
}

// topic returns a writable copy of a topic; nil if there is none.
func (d *draft) topic(id topicid.ID) *Topic {
	old := d.image.topics[id]
	if old == nil || d.fresh[id] {
		return old
	}
	d.ownTopicMaps()
	t := *old
	t.partitions = slices.Clone(old.partitions)
	d.image.topics[id] = &t
	if d.image.byName[t.Name] == old {
		d.image.byName[t.Name] = &t
	}
	d.fresh[id] = true
	return &t
}

func (d *draft) setTopic(id topicid.ID, msg *controllerv1.Topic) {
	t := d.topic(id)
	if t == nil {
		d.ownTopicMaps()
		t = &Topic{ID: id}
		d.image.topics[id] = t
		d.fresh[id] = true
	}
	t.Name, t.Internal, t.Deleting, t.Configs = msg.GetName(), msg.GetInternal(), msg.GetDeleting(), msg.GetConfigs()
	t.Config = inForce(d.image.defaultConfigs, t.Configs)
	for n := max(msg.GetPartitions(), 0); int(n) > len(t.partitions); {
		t.partitions = append(t.partitions, nil)
	}
	switch {
	case !t.Deleting:
		d.image.byName[t.Name] = t
	case d.image.byName[t.Name] == t:
		// Its name may be taken by a newer topic at once.
		delete(d.image.byName, t.Name)
	}
}

func (d *draft) removeTopic(id topicid.ID) {
	t := d.image.topics[id]
	if t == nil {
		return
	}
	d.ownTopicMaps()
	delete(d.image.topics, id)
	if d.image.byName[t.Name] == t {
		delete(d.image.byName, t.Name)
	}
}

func (d *draft) setPartition(p *controllerv1.Partition) {
	id, err := topicid.FromBytes(p.GetTopicId())
	if err != nil {
		return
	}
	t := d.topic(id)
	if t == nil || p.GetPartition() < 0 || int(p.GetPartition()) >= len(t.partitions) {
		return
	}
	t.partitions[p.GetPartition()] = p
}

// inForce reads a topic's configs. A value that does not parse, which only a
// newer release can have written, leaves its key at the zero value of a topic
// without it: the whole then falls back to the defaults of the mesh.
func inForce(defaults, configs map[string]string) topicconfig.Config {
	if c, err := topicconfig.Parse(defaults, configs); err == nil {
		return c
	}
	if c, err := topicconfig.Parse(defaults, nil); err == nil {
		return c
	}
	return topicconfig.Default()
}
