package brokertest

import (
	"context"
	"encoding/binary"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// Controller is the only controller of a mesh that a test makes up.
type Controller struct {
	controllerv1.UnimplementedMetadataServiceServer
	controllerv1.UnimplementedControllerServiceServer

	Addr      string
	ClusterID string
	t         testing.TB
	stop      func()

	mu         sync.Mutex
	revision   int64
	topics     map[topicid.ID]*controllerv1.Topic
	partitions map[topicid.ID][]*controllerv1.Partition
	deletions  map[topicid.ID]*controllerv1.Deletion
	brokers    map[int32]*controllerv1.Broker
	changed    chan struct{}
	vouches    []*controllerv1.ReplicaVouch
	confirmed  []topicid.ID
	refuse     error
	control    control
}

// Start serves a controller on loopback until the test ends.
func Start(t testing.TB) *Controller {
	t.Helper()
	c := &Controller{
		t: t, ClusterID: "AAAAAAAAAAAAAAAAAAAAAA", revision: 100,
		topics: map[topicid.ID]*controllerv1.Topic{}, partitions: map[topicid.ID][]*controllerv1.Partition{},
		deletions: map[topicid.ID]*controllerv1.Deletion{}, brokers: map[int32]*controllerv1.Broker{}, changed: make(chan struct{}),
		control: control{generation: 1, etcd: 1},
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Addr = lis.Addr().String()
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	controllerv1.RegisterMetadataServiceServer(server, c)
	controllerv1.RegisterControllerServiceServer(server, c)
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	c.stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("controller: %v", err)
		}
	})
	t.Cleanup(c.stop)
	return c
}

// Stop ends the controller before the test does.
func (c *Controller) Stop() { c.stop() }

// Discover is a lookup of controllers that finds this one.
func (c *Controller) Discover(context.Context) ([]string, error) { return []string{c.Addr}, nil }

// Change changes the state under a new revision, which it returns.
func (c *Controller) Change(change func(c *Controller)) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	change(c)
	close(c.changed)
	c.changed = make(chan struct{})
	return c.revision
}

// ReachRevision raises the revision, as a write of somebody else would.
func (c *Controller) ReachRevision(revision int64) {
	c.Change(func(c *Controller) { c.revision = max(c.revision, revision) })
}

// CreateTopic makes a topic led by a broker, if that is registered.
func (c *Controller) CreateTopic(name string, broker, partitions int32, configs map[string]string) topicid.ID {
	c.t.Helper()
	id := c.NewID()
	c.CreateTopicWithID(id, name, broker, partitions, configs)
	return id
}

// NewID makes a topic id that no other topic of the test has.
func (c *Controller) NewID() topicid.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	var id topicid.ID
	binary.BigEndian.PutUint64(id[:], uint64(c.revision))
	for i := range id {
		id[i] += byte(i)
	}
	return id
}

// CreateTopicWithID is CreateTopic for an id that is given.
func (c *Controller) CreateTopicWithID(id topicid.ID, name string, broker, partitions int32, configs map[string]string) {
	c.Change(func(c *Controller) {
		c.topics[id] = &controllerv1.Topic{TopicId: id.Bytes(), Name: name, Partitions: partitions, Configs: configs, Internal: len(name) > 1 && name[:2] == "__"}
		c.partitions[id] = make([]*controllerv1.Partition, partitions)
		for n := range partitions {
			p := &controllerv1.Partition{
				TopicId: id.Bytes(), Partition: n, Replicas: []int32{broker}, Isr: []int32{broker}, MinIsr: 1, PartitionEpoch: 1, LeaderEpoch: 1,
			}
			if b := c.brokers[broker]; b != nil {
				p.Leader = b.GetBroker()
			}
			c.partitions[id][n] = p
		}
	})
}

// SetPartition changes a partition's record, under a new partition epoch.
func (c *Controller) SetPartition(id topicid.ID, n int32, change func(p *controllerv1.Partition)) {
	c.Change(func(c *Controller) { c.Record(id, n, change) })
}

func cloneOf(p *controllerv1.Partition) *controllerv1.Partition { return proto.CloneOf(p) }

// SetConfigs changes a topic's configs.
func (c *Controller) SetConfigs(id topicid.ID, configs map[string]string) {
	c.Change(func(c *Controller) {
		t := proto.CloneOf(c.topics[id])
		t.Configs = configs
		c.topics[id] = t
	})
}

// DeleteTopic begins a deletion that the brokers have to confirm.
func (c *Controller) DeleteTopic(id topicid.ID, brokers ...int32) {
	c.Change(func(c *Controller) {
		c.deletions[id] = &controllerv1.Deletion{TopicId: id.Bytes(), Name: c.topics[id].GetName(), PendingBrokers: brokers}
		delete(c.topics, id)
		delete(c.partitions, id)
	})
}

// ForgetTopic removes a topic without a deletion record, as no mesh may.
func (c *Controller) ForgetTopic(id topicid.ID) {
	c.Change(func(c *Controller) {
		delete(c.topics, id)
		delete(c.partitions, id)
	})
}

// Refuse has RegisterBroker fail from now on; nil ends that.
func (c *Controller) Refuse(err error) { c.Change(func(c *Controller) { c.refuse = err }) }

// Vouches are those of the last registration.
func (c *Controller) Vouches() []*controllerv1.ReplicaVouch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.vouches)
}

// Confirmed are the topics whose deletion brokers have confirmed.
func (c *Controller) Confirmed() []topicid.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.confirmed)
}

// RegisterBroker accepts a broker, and has it lead all that it vouches for as
// intact and all that is not on its disks yet. The rest is barred.
func (c *Controller) RegisterBroker(_ context.Context, req *controllerv1.RegisterBrokerRequest) (*controllerv1.RegisterBrokerResponse, error) {
	bad := map[string]bool{}
	for _, v := range req.GetVouches() {
		if v.GetVerdict() != controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT {
			bad[string(v.GetTopicId())+string(rune(v.GetPartition()))] = true
		}
	}
	c.mu.Lock()
	refuse := c.refuse
	c.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	rev := c.Change(func(c *Controller) {
		c.vouches = req.GetVouches()
		c.revision = max(c.revision, req.GetRegistrationRevision())
		id := req.GetBroker().GetId()
		c.brokers[id] = &controllerv1.Broker{Broker: req.GetBroker(), Address: req.GetAddress()}
		for tid, parts := range c.partitions {
			for n, old := range parts {
				if !slices.Contains(old.GetReplicas(), id) {
					continue
				}
				p := proto.CloneOf(old)
				p.PartitionEpoch++
				p.Leader, p.Barred = nil, nil
				if bad[string(p.GetTopicId())+string(rune(p.GetPartition()))] {
					p.Barred = []int32{id}
				} else {
					p.LeaderEpoch++
					p.Leader = req.GetBroker()
				}
				c.partitions[tid][n] = p
			}
		}
	})
	return &controllerv1.RegisterBrokerResponse{Position: &controllerv1.Position{Generation: c.Generation(), Revision: rev}, Unfenced: true}, nil
}

// ConfirmDeletion takes note.
func (c *Controller) ConfirmDeletion(_ context.Context, req *controllerv1.ConfirmDeletionRequest) (*controllerv1.ConfirmDeletionResponse, error) {
	c.Change(func(c *Controller) {
		for _, raw := range req.GetTopicIds() {
			id := topicid.ID(raw)
			c.confirmed = append(c.confirmed, id)
			delete(c.deletions, id)
		}
	})
	return &controllerv1.ConfirmDeletionResponse{}, nil
}

// WatchMetadata sends the whole state after each change.
func (c *Controller) WatchMetadata(_ *controllerv1.WatchMetadataRequest, stream controllerv1.MetadataService_WatchMetadataServer) error {
	c.mu.Lock()
	position, etcd := &controllerv1.Position{Generation: c.control.generation, Revision: c.revision}, c.control.etcd
	c.mu.Unlock()
	err := stream.Send(&controllerv1.WatchMetadataResponse{Position: position, Message: &controllerv1.WatchMetadataResponse_Initial{
		Initial: &controllerv1.WatchInitial{Handshake: rpc.LocalHandshake(), ClusterId: c.ClusterID, EtcdClusterId: etcd, HeartbeatIntervalMs: 500},
	}})
	if err != nil {
		return err
	}
	beat := time.NewTicker(200 * time.Millisecond)
	defer beat.Stop()
	sent := int64(-1)
	for {
		c.mu.Lock()
		anew := c.control.etcd != etcd || c.control.generation != position.GetGeneration()
		c.mu.Unlock()
		if anew {
			return nil // the controller was started anew over another etcd
		}
		msg, revision, changed := c.snapshot()
		if revision == sent {
			msg.Message = &controllerv1.WatchMetadataResponse_Heartbeat{Heartbeat: &controllerv1.Heartbeat{}}
		}
		sent = revision
		if err := stream.Send(msg); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-beat.C:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (c *Controller) snapshot() (*controllerv1.WatchMetadataResponse, int64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries := &controllerv1.MetadataChanges{
		Leader:  &controllerv1.ControllerLeader{Controller: &typev1.Process{Id: 1, Incarnation: 1}, Address: c.Addr, ElectionRevision: 1 + c.control.elections},
		Topics:  slices.Collect(maps.Values(c.topics)),
		Brokers: slices.Collect(maps.Values(c.brokers)), Deletions: slices.Collect(maps.Values(c.deletions)),
	}
	for _, p := range c.partitions {
		entries.Partitions = append(entries.Partitions, p...)
	}
	return &controllerv1.WatchMetadataResponse{
		Position: &controllerv1.Position{Generation: c.control.generation, Revision: c.revision},
		Message:  &controllerv1.WatchMetadataResponse_Snapshot{Snapshot: &controllerv1.SnapshotPart{Entries: entries, Last: true}},
	}, c.revision, c.changed
}
