package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

// fakeController shows the fake mesh to a watcher.
type fakeController struct {
	controllerv1.UnimplementedMetadataServiceServer
	m *fakeMesh
}

func (c *fakeController) WatchMetadata(req *controllerv1.WatchMetadataRequest, stream controllerv1.MetadataService_WatchMetadataServer) error {
	position := func() *controllerv1.Position { return &controllerv1.Position{Generation: 1, Revision: c.m.revision} }
	c.m.mu.Lock()
	initial := &controllerv1.WatchMetadataResponse{Position: position(), Message: &controllerv1.WatchMetadataResponse_Initial{
		Initial: &controllerv1.WatchInitial{Handshake: rpc.LocalHandshake(), Controller: &typev1.Process{Id: 1, Incarnation: 1}, ClusterId: "fake"},
	}}
	c.m.mu.Unlock()
	if err := stream.Send(initial); err != nil {
		return err
	}
	first := true
	for {
		c.m.mu.Lock()
		changed, all := c.m.changed, c.all()
		resp := &controllerv1.WatchMetadataResponse{Position: position(), Message: &controllerv1.WatchMetadataResponse_Delta{Delta: all}}
		if first {
			resp.Message = &controllerv1.WatchMetadataResponse_Snapshot{Snapshot: &controllerv1.SnapshotPart{Entries: all, Last: true}}
		}
		c.m.mu.Unlock()
		first = false
		if err := stream.Send(resp); err != nil {
			return err
		}
		beat := time.NewTimer(500 * time.Millisecond)
		select {
		case <-changed:
		case <-beat.C:
		case <-stream.Context().Done():
			return rpc.FromError(stream.Context().Err())
		}
		beat.Stop()
	}
}

// all is everything there is. The lock is held.
func (c *fakeController) all() *controllerv1.MetadataChanges {
	ch := &controllerv1.MetadataChanges{}
	for id, b := range c.m.brokers {
		ch.Brokers = append(ch.Brokers, &controllerv1.Broker{Broker: &typev1.Process{Id: id, Incarnation: 1}, Address: b.addr})
	}
	for id, co := range c.m.coords {
		ch.Registrations = append(ch.Registrations, &controllerv1.Registration{
			Kind:    controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR,
			Process: &typev1.Process{Id: id, Incarnation: 1}, Address: co.addr,
		})
	}
	for _, t := range c.m.topics {
		ch.Topics = append(ch.Topics, &controllerv1.Topic{TopicId: t.id.Bytes(), Name: t.name, Partitions: int32(len(t.parts))})
		for i, p := range t.parts {
			rec := &controllerv1.Partition{TopicId: t.id.Bytes(), Partition: int32(i), LeaderEpoch: p.epoch}
			if p.leader > 0 {
				rec.Leader = &typev1.Process{Id: p.leader, Incarnation: 1}
			}
			if p.owner > 0 {
				rec.ShardOwner, rec.ShardEpoch = &typev1.Process{Id: p.owner, Incarnation: 1}, p.shardEpoch
			}
			ch.Partitions = append(ch.Partitions, rec)
		}
	}
	return ch
}

// watcherSource gives the mesh a controller and follows it.
func (m *fakeMesh) watcherSource() *WatcherSource {
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		m.t.Fatal(err)
	}
	controllerv1.RegisterMetadataServiceServer(server, &fakeController{m: m})
	lis := m.net.listen("controller:1")
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	pool := rpc.NewConnPool(rpc.DialConfig{Dialer: m.net.dial})
	w := metadata.NewWatcher(metadata.Options{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, Process: &typev1.Process{Id: 1, Incarnation: 1},
		Discover: func(context.Context) ([]string, error) { return []string{"controller:1"}, nil }, Pool: pool, Logger: Config{}.withDefaults().Logger,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- w.Run(ctx) }()
	m.t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			m.t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			m.t.Error(err)
		}
		if err := pool.Close(); err != nil {
			m.t.Error(err)
		}
	})
	return NewWatcherSource(w)
}

func TestWatcherSource(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		m.startCoordinator(1)
		m.shards(1)
		src := m.watcherSource()
		c := m.client(Config{Source: src})
		go func() { // created a moment after it was asked for
			synctest.Wait()
			m.topic("t", 2, 0)
		}()
		topic, err := src.Topic(soon(t), "t")
		if err != nil || len(topic.Partitions) != 2 || len(topic.Available()) != 2 || topic.MaxMessageBytes <= 0 {
			t.Fatalf("%+v %v", topic, err)
		}
		if again, err := src.TopicByID(soon(t), topic.ID); err != nil || again.Name != "t" {
			t.Error(again, err)
		}
		if _, err := src.Topic(soon(t), "nope"); !rpc.IsReason(err, reasonUnknownTopic) {
			t.Error(err)
		}
		if all, err := src.Topics(soon(t)); err != nil || len(all) != 2 {
			t.Error(all, err)
		}
		if b, ok := src.Broker(2); !ok || b.Addr != "broker-2:1" || len(src.Brokers()) != 2 || len(src.Coordinators()) != 1 {
			t.Errorf("%+v %v %v", b, src.Brokers(), src.Coordinators())
		}
		p := newTestProducer(t, c, ProducerConfig{})
		for _, r := range collect(t, p, "t", 0, 20) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		// News of a moved leader comes by itself: no request fails.
		fake := m.topics[topic.ID]
		m.update(func() { fake.parts[0].leader, fake.parts[0].epoch = 2, 2 })
		synctest.Wait()
		if l, ok := src.Leader(fake.at(0)); !ok || l.ID != 2 || l.Epoch != 2 {
			t.Errorf("%+v", l)
		}
		collect(t, p, "t", 0, 20)
		if s := p.Stats(); s.Retries != 0 || s.Acknowledged != 40 {
			t.Errorf("%+v", s)
		}
		member := join(t, c, MemberConfig{Group: "g", Topics: []string{"t"}})
		if a := nextAssignment(t, member); len(a.Partitions) != 2 {
			t.Errorf("%+v", a)
		}
	})
}

// Many records for a topic that is not there do not wait one after the other; one
// that is made is seen at once.
func TestWatcherSourceWaitsOnceForWhatIsNotThere(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		src := m.watcherSource()
		if _, err := src.Topics(soon(t)); err != nil { // the first picture is there
			t.Fatal(err)
		}
		start := time.Now()
		for range 1000 {
			if _, err := src.Topic(soon(t), "t"); !rpc.IsReason(err, reasonUnknownTopic) {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d != unknownGrace {
			t.Errorf("a thousand questions took %v", d)
		}
		m.topic("t", 1, 0)
		synctest.Wait()
		if _, err := src.Topic(soon(t), "t"); err != nil {
			t.Error(err)
		}
		start = time.Now()
		if _, err := src.Topic(soon(t), "nope"); !rpc.IsReason(err, reasonUnknownTopic) || time.Since(start) != unknownGrace {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// Before the first picture nobody can say that a topic is unknown.
func TestWatcherSourceWithoutController(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		src := NewWatcherSource(metadata.NewWatcher(metadata.Options{}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := src.Topic(ctx, "t"); !rpc.IsReason(err, reasonDeadlineExceeded) || rpc.FromError(err).Outcome != outcomeNotDone {
			t.Error(err)
		}
	})
}
