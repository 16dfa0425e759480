package handler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// fakeController serves the metadata stream and the admin calls of a controller.
type fakeController struct {
	controllerv1.UnimplementedMetadataServiceServer
	mu       sync.Mutex
	revision int64
	changes  []*controllerv1.MetadataChanges // all so far; the first is the snapshot
	news     chan struct{}

	create  func(*controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error)
	remove  func(*controllerv1.DeleteTopicsRequest) (*controllerv1.DeleteTopicsResponse, error)
	alter   func(*controllerv1.AlterTopicRequest) (*controllerv1.AlterTopicResponse, error)
	elect   func(*controllerv1.ElectLeadersRequest) (*controllerv1.ElectLeadersResponse, error)
	cluster func(context.Context) (*controllerv1.DescribeClusterResponse, error)
}

// change sets entries and returns their position.
func (c *fakeController) change(m *controllerv1.MetadataChanges) *controllerv1.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes = append(c.changes, m)
	c.revision++
	close(c.news)
	c.news = make(chan struct{})
	return &controllerv1.Position{Generation: 1, Revision: c.revision}
}

func (c *fakeController) WatchMetadata(_ *controllerv1.WatchMetadataRequest, s controllerv1.MetadataService_WatchMetadataServer) error {
	send := func(revision int64, m *controllerv1.WatchMetadataResponse) error {
		m.Position = &controllerv1.Position{Generation: 1, Revision: revision}
		return s.Send(m)
	}
	if err := send(0, &controllerv1.WatchMetadataResponse{Message: &controllerv1.WatchMetadataResponse_Initial{Initial: &controllerv1.WatchInitial{
		Handshake: rpc.LocalHandshake(), Controller: &typev1.Process{Id: 1}, ClusterId: "c1", HeartbeatIntervalMs: 500,
	}}}); err != nil {
		return err
	}
	beat := time.NewTicker(200 * time.Millisecond)
	defer beat.Stop()
	for sent := 0; ; {
		c.mu.Lock()
		changes, news := c.changes, c.news
		c.mu.Unlock()
		for ; sent < len(changes); sent++ {
			m := &controllerv1.WatchMetadataResponse{Message: &controllerv1.WatchMetadataResponse_Delta{Delta: changes[sent]}}
			if sent == 0 {
				m = &controllerv1.WatchMetadataResponse{Message: &controllerv1.WatchMetadataResponse_Snapshot{Snapshot: &controllerv1.SnapshotPart{Entries: changes[0], Last: true}}}
			}
			if err := send(int64(sent)+1, m); err != nil {
				return err
			}
		}
		select {
		case <-news:
		case <-beat.C:
			if err := send(int64(sent), &controllerv1.WatchMetadataResponse{Message: &controllerv1.WatchMetadataResponse_Heartbeat{Heartbeat: &controllerv1.Heartbeat{}}}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func (c *fakeController) CreateTopics(_ context.Context, r *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
	return c.create(r)
}

func (c *fakeController) DeleteTopics(_ context.Context, r *controllerv1.DeleteTopicsRequest) (*controllerv1.DeleteTopicsResponse, error) {
	return c.remove(r)
}

func (c *fakeController) AlterTopic(_ context.Context, r *controllerv1.AlterTopicRequest) (*controllerv1.AlterTopicResponse, error) {
	return c.alter(r)
}

func (c *fakeController) ElectLeaders(_ context.Context, r *controllerv1.ElectLeadersRequest) (*controllerv1.ElectLeadersResponse, error) {
	return c.elect(r)
}

func (c *fakeController) DescribeCluster(ctx context.Context, _ *controllerv1.DescribeClusterRequest) (*controllerv1.DescribeClusterResponse, error) {
	return c.cluster(ctx)
}

// rig is a handler behind a real server on loopback.
type rig struct {
	*Handler
	mesh       *fakeMesh
	controller *fakeController
	server     *rpc.Server
	addr       string
	produce    gatewayv1.ProducerServiceClient
	consume    gatewayv1.ConsumerServiceClient
	admin      gatewayv1.AdminServiceClient
}

func testLimits() Limits {
	return Limits{
		Produce: session.ProduceLimits{
			MaxInFlightRecords: 100, MaxInFlightBytes: 1 << 20, MaxSendRecords: 1000, OpenTimeout: patience,
			DeliveryTimeout: time.Minute, MaxDeliveryTimeout: time.Hour, Linger: time.Millisecond, MaxLinger: time.Second, DrainTimeout: 5 * time.Second,
		},
		Consume: session.ConsumeLimits{
			OpenTimeout: patience, DrainTimeout: 5 * time.Second, MaxPartitions: 100, MaxCommits: 8, MaxUnread: 100,
			ChunkBytes: 64 << 10, MaxMessageBytes: 16 << 20,
		},
		MaxProduceStreams: 100, MaxConsumeStreams: 100, MaxProduceBytes: 16 << 20, MaxProducers: 4, BatchBytes: 64 << 10,
		FetchBytes: 1 << 20, MaxResponseBytes: 256 << 10, MaxDecodedBytes: 16 << 20, AdminTimeout: patience, MarksTimeout: time.Second, PingAfter: time.Second,
	}
}

// partition is a partition of topic a as the controller tells it; leader 0: none.
func partition(n, leader int32) *controllerv1.Partition {
	p := &controllerv1.Partition{TopicId: topicA[:], Partition: n, LeaderEpoch: 2, Replicas: []int32{1}, Isr: []int32{1}}
	if leader > 0 {
		p.Leader = &typev1.Process{Id: leader, Incarnation: 9}
	}
	return p
}

func topicEntries(partitions int32) *controllerv1.MetadataChanges {
	m := &controllerv1.MetadataChanges{Topics: []*controllerv1.Topic{{TopicId: topicA[:], Name: "a", Partitions: partitions, Configs: map[string]string{"retention.ms": "1000"}}}}
	for n := range partitions {
		m.Partitions = append(m.Partitions, partition(n, 1))
	}
	return m
}

func newRig(t *testing.T, change func(*Limits, *fakeMesh, *Config)) *rig {
	t.Helper()
	r := &rig{mesh: newFakeMesh(), controller: &fakeController{news: make(chan struct{})}}
	r.controller.change(topicEntries(3))
	controllerLis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	controllers := grpc.NewServer()
	controllerv1.RegisterMetadataServiceServer(controllers, r.controller)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := controllers.Serve(controllerLis); err != nil {
			t.Error(err)
		}
	})
	pool := rpc.NewConnPool(rpc.DialConfig{})
	watcher := metadata.NewWatcher(metadata.Options{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, Process: &typev1.Process{Id: 1}, Pool: pool, Logger: slog.New(slog.DiscardHandler),
		Discover: func(context.Context) ([]string, error) { return []string{controllerLis.Addr().String()}, nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		if err := watcher.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	if r.server, err = rpc.NewServer(rpc.ServerConfig{StreamGrace: 5 * time.Second, PingAfter: time.Second, PingTimeout: 9 * time.Second, NoteReads: true}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Limits: testLimits(), Identity: session.Identity{Process: &typev1.Process{Id: 1}}, Mesh: r.mesh, Controllers: r.controller,
		Images: watcher, Draining: r.server.Draining(),
	}
	if change != nil {
		change(&cfg.Limits, r.mesh, &cfg)
	}
	if r.Handler, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.Register(r.server)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = lis.Addr().String()
	wg.Go(func() {
		if err := r.server.Serve(lis); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.produce, r.consume, r.admin = gatewayv1.NewProducerServiceClient(conn), gatewayv1.NewConsumerServiceClient(conn), gatewayv1.NewAdminServiceClient(conn)
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		r.server.Stop()
		r.Close(ctx)
		cancel()
		controllers.Stop()
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	eventually(t, "the first metadata", func() bool { return watcher.Image().TopicByName("a") != nil })
	return r
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func ptr[T any](v T) *T { return &v }

// reason is the reason of a gRPC error as a client sees it.
func reason(err error) string {
	if err == nil || errors.Is(err, io.EOF) {
		return "OK"
	}
	return rpc.ReasonName(rpc.ReasonOf(err))
}
