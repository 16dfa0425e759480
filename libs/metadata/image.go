package metadata

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/topicid"
)

// Image is a picture of the mesh at one position. It is immutable and safe for
// concurrent use; what it returns must not be written to.
type Image struct {
	position       Position
	clusterID      string
	etcdClusterID  uint64
	leader         *controllerv1.ControllerLeader
	registrations  map[registrationKey]*controllerv1.Registration
	brokers        map[int32]*controllerv1.Broker
	topics         map[topicid.ID]*Topic
	byName         map[string]*Topic
	deletions      map[topicid.ID]*controllerv1.Deletion
	defaultConfigs map[string]string

	sortOnce     sync.Once
	sortedTopics []*Topic
}

type registrationKey struct {
	kind controllerv1.ServiceKind
	id   int32
}

// Topic is one life of a topic, with its partitions.
type Topic struct {
	ID       topicid.ID         // of this life
	Name     string             // shared by its lives
	Internal bool               // belongs to Leat itself
	Deleting bool               // serves nothing, takes nothing
	Configs  map[string]string  // set on the topic itself
	Config   topicconfig.Config // in force

	partitions []*controllerv1.Partition
}

// NumPartitions is the number of partitions; they are numbered from 0.
func (t *Topic) NumPartitions() int32 { return int32(len(t.partitions)) }

// Partition returns a partition's record, nil if there is none of that number.
func (t *Topic) Partition(n int32) *controllerv1.Partition {
	if n < 0 || int(n) >= len(t.partitions) {
		return nil
	}
	return t.partitions[n]
}

// Partitions returns the records in the order of their numbers. An entry is nil
// only while a topic is being deleted.
func (t *Topic) Partitions() []*controllerv1.Partition { return t.partitions }

func newImage() *Image {
	return &Image{
		registrations: map[registrationKey]*controllerv1.Registration{},
		brokers:       map[int32]*controllerv1.Broker{},
		topics:        map[topicid.ID]*Topic{},
		byName:        map[string]*Topic{},
		deletions:     map[topicid.ID]*controllerv1.Deletion{},
	}
}

// Position is the state that the image shows. It is zero until the first
// snapshot has come.
func (i *Image) Position() Position { return i.position }

// ClusterID is the id of the mesh; empty until the first snapshot has come.
func (i *Image) ClusterID() string { return i.clusterID }

// EtcdClusterID is the id of the etcd cluster that the image comes from; 0 until
// the first snapshot has come.
func (i *Image) EtcdClusterID() uint64 { return i.etcdClusterID }

// ControllerLeader is the elected controller; nil if none leads.
func (i *Image) ControllerLeader() *controllerv1.ControllerLeader { return i.leader }

// DefaultConfigs are the defaults of the mesh for topic configs.
func (i *Image) DefaultConfigs() map[string]string { return i.defaultConfigs }

// Broker returns a broker record, nil if there is none.
func (i *Image) Broker(id int32) *controllerv1.Broker { return i.brokers[id] }

// Brokers returns every broker record by id, of living and dead brokers.
func (i *Image) Brokers() []*controllerv1.Broker {
	return slices.SortedFunc(maps.Values(i.brokers), func(a, b *controllerv1.Broker) int {
		return cmp.Compare(a.GetBroker().GetId(), b.GetBroker().GetId())
	})
}

// Registration returns who is registered under an id, nil if nobody is.
func (i *Image) Registration(kind controllerv1.ServiceKind, id int32) *controllerv1.Registration {
	return i.registrations[registrationKey{kind, id}]
}

// Registrations returns the registered processes of a kind by id.
func (i *Image) Registrations(kind controllerv1.ServiceKind) []*controllerv1.Registration {
	var all []*controllerv1.Registration
	for key, r := range i.registrations {
		if key.kind == kind {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *controllerv1.Registration) int {
		return cmp.Compare(a.GetProcess().GetId(), b.GetProcess().GetId())
	})
	return all
}

// Topics returns every topic by name, those being deleted included. The slice is
// shared: read only.
func (i *Image) Topics() []*Topic {
	i.sortOnce.Do(func() {
		i.sortedTopics = slices.SortedFunc(maps.Values(i.topics), func(a, b *Topic) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), a.ID.Compare(b.ID))
		})
	})
	return i.sortedTopics
}

// TopicByName returns the living topic of a name, nil if there is none.
func (i *Image) TopicByName(name string) *Topic { return i.byName[name] }

// TopicByID returns a topic, also one that is being deleted; nil if there is none.
func (i *Image) TopicByID(id topicid.ID) *Topic { return i.topics[id] }

// Partition returns a partition's record, nil if there is none.
func (i *Image) Partition(id topicid.ID, n int32) *controllerv1.Partition {
	if t := i.topics[id]; t != nil {
		return t.Partition(n)
	}
	return nil
}

// Deletions returns the topics whose replicas are to be deleted, by id.
func (i *Image) Deletions() []*controllerv1.Deletion {
	ids := slices.SortedFunc(maps.Keys(i.deletions), topicid.ID.Compare)
	all := make([]*controllerv1.Deletion, 0, len(ids))
	for _, id := range ids {
		all = append(all, i.deletions[id])
	}
	return all
}

// Deletion returns a topic's deletion record, nil if there is none.
func (i *Image) Deletion(id topicid.ID) *controllerv1.Deletion { return i.deletions[id] }
