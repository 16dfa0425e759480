package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

var topicA = topicid.ID{0xa}

func partA(n int32) client.TopicPartition {
	return client.TopicPartition{TopicID: topicA, Partition: n}
}

// fakeMesh is a mesh in memory. Hooks that are nil mean the friendly answer.
type fakeMesh struct {
	mu        sync.Mutex
	producers []*fakeProducer
	fetchers  []*fakeFetcher
	members   []*fakeMember
	topics    map[string]int32

	onSend       func(r client.Record, done func(client.Result)) error
	onTopic      func(name string) (*client.Topic, error)
	onOffsets    func(q client.OffsetQuery) client.OffsetResult
	onFetch      func(f *fakeFetcher, s client.FetchStart)
	onReplicas   func(p []client.TopicPartition) []client.ReplicaResult
	groups       []*coordinatorv1.GroupSummary
	group        *coordinatorv1.DescribeGroupResponse
	commitResult client.CommitResult
	committed    []client.CommitOffset
	groupErr     error
}

func newFakeMesh() *fakeMesh { return &fakeMesh{topics: map[string]int32{"a": 3}} }

func (m *fakeMesh) NewProducer(cfg client.ProducerConfig) (Producer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &fakeProducer{mesh: m, cfg: cfg, next: map[int32]int64{}}
	m.producers = append(m.producers, p)
	return p, nil
}

func (m *fakeMesh) NewFetcher(cfg client.FetcherConfig) (Fetcher, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &fakeFetcher{mesh: m, cfg: cfg, starts: map[client.TopicPartition]client.FetchStart{}, ready: make(chan struct{}, 1)}
	m.fetchers = append(m.fetchers, f)
	return f, nil
}

func (m *fakeMesh) JoinGroup(cfg client.MemberConfig) (Member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &fakeMember{cfg: cfg, events: make(chan client.MemberEvent, 16), commit: func([]client.CommitOffset) (client.CommitResult, error) { return client.CommitResult{}, nil }}
	m.members = append(m.members, f)
	f.events <- client.MemberEvent{Attached: &client.Attached{MemberID: "m1", Attach: cfg.Attach + 1}}
	return f, nil
}

// member waits for the n-th member.
func (m *fakeMesh) member(t *testing.T, n int) *fakeMember {
	t.Helper()
	var f *fakeMember
	eventually(t, "a member joins", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.members) > n {
			f = m.members[n]
		}
		return f != nil
	})
	return f
}

func (m *fakeMesh) Topic(_ context.Context, name string) (*client.Topic, error) {
	if m.onTopic != nil {
		return m.onTopic(name)
	}
	n, ok := m.topics[name]
	if !ok {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, "there is no topic %q", name)
	}
	return &client.Topic{Name: name, ID: topicA, Partitions: make([]client.Partition, n)}, nil
}

func (m *fakeMesh) ListOffsets(_ context.Context, queries []client.OffsetQuery, _ typev1.IsolationLevel) []client.OffsetResult {
	out := make([]client.OffsetResult, len(queries))
	for i, q := range queries {
		out[i] = client.OffsetResult{OffsetQuery: q, Offset: 0, TimestampMs: -1}
		if m.onOffsets != nil {
			out[i] = m.onOffsets(q)
			out[i].OffsetQuery = q
		}
	}
	return out
}

func (m *fakeMesh) DescribeReplicas(_ context.Context, p []client.TopicPartition, _ bool) []client.ReplicaResult {
	if m.onReplicas == nil {
		return nil
	}
	return m.onReplicas(p)
}

func (m *fakeMesh) ListGroups(context.Context) ([]*coordinatorv1.GroupSummary, error) {
	return m.groups, m.groupErr
}

func (m *fakeMesh) DescribeGroup(context.Context, string) (*coordinatorv1.DescribeGroupResponse, error) {
	return m.group, m.groupErr
}

func (m *fakeMesh) CommitOffsets(_ context.Context, _ string, offsets []client.CommitOffset) (client.CommitResult, error) {
	m.committed = offsets
	return m.commitResult, m.groupErr
}

func (m *fakeMesh) DeleteGroup(context.Context, string) error { return m.groupErr }

// fakeProducer stores records at once, unless the mesh's hook does otherwise.
type fakeProducer struct {
	mesh *fakeMesh
	cfg  client.ProducerConfig

	mu     sync.Mutex
	next   map[int32]int64
	sent   []client.Record
	spans  []trace.SpanContext
	closed bool
}

func (p *fakeProducer) Send(ctx context.Context, r client.Record, done func(client.Result)) error {
	p.mu.Lock()
	p.sent = append(p.sent, r)
	p.spans = append(p.spans, trace.SpanContextFromContext(ctx))
	p.mu.Unlock()
	if p.mesh.onSend != nil {
		return p.mesh.onSend(r, done)
	}
	done(p.store(r))
	return nil
}

func (p *fakeProducer) store(r client.Record) client.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := int32(0)
	if r.Partition != nil {
		n = *r.Partition
	}
	o := p.next[n]
	p.next[n]++
	return client.Result{Topic: r.Topic, Partition: n, Offset: o, LeaderEpoch: 2}
}

func (p *fakeProducer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}

func (p *fakeProducer) Close(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

// fakeFetcher hands out what was pushed.
type fakeFetcher struct {
	mesh *fakeMesh
	cfg  client.FetcherConfig

	mu       sync.Mutex
	starts   map[client.TopicPartition]client.FetchStart
	events   []*client.FetchEvent
	endless  int // bytes of the value of records made on demand; 0: none are
	taken    int
	position map[client.TopicPartition]int64
	closed   bool
	ready    chan struct{}
}

func (f *fakeFetcher) Add(starts ...client.FetchStart) {
	for _, s := range starts {
		f.mu.Lock()
		f.starts[s.TopicPartition] = s
		f.mu.Unlock()
		if f.mesh.onFetch != nil {
			f.mesh.onFetch(f, s)
		}
	}
}

func (f *fakeFetcher) Remove(parts ...client.TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range parts {
		delete(f.starts, p)
	}
}

func (f *fakeFetcher) Ready() <-chan struct{}                   { return f.ready }
func (f *fakeFetcher) Waiting() map[client.TopicPartition]error { return nil }

func (f *fakeFetcher) TryNext() *client.FetchEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endless > 0 {
		for p, s := range f.starts {
			o := s.Offset
			s.Offset++
			f.starts[p] = s
			f.taken++
			return &client.FetchEvent{
				TopicPartition: p, Topic: "a", Tag: s.Tag, Kind: client.FetchRecords, Offset: o, NextOffset: o + 1,
				HighWatermark: 1 << 40, Records: []record.Record{{Offset: o, Value: make([]byte, f.endless)}},
			}
		}
	}
	for len(f.events) > 0 {
		e := f.events[0]
		f.events = f.events[1:]
		if s, ok := f.starts[e.TopicPartition]; ok && s.Tag == e.Tag {
			f.taken++
			return e
		}
	}
	return nil
}

func (f *fakeFetcher) push(events ...*client.FetchEvent) {
	f.mu.Lock()
	f.events = append(f.events, events...)
	f.mu.Unlock()
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

func (f *fakeFetcher) takenSoFar() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.taken
}

func (f *fakeFetcher) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// serve pushes a batch of records for each start.
func serve(records ...record.Record) func(*fakeFetcher, client.FetchStart) {
	return func(f *fakeFetcher, s client.FetchStart) {
		e := &client.FetchEvent{TopicPartition: s.TopicPartition, Topic: "a", Tag: s.Tag, Kind: client.FetchRecords, Offset: s.Offset, HighWatermark: 100}
		for _, r := range records {
			if r.Offset >= s.Offset {
				e.Records = append(e.Records, r)
				e.NextOffset = r.Offset + 1
			}
		}
		if len(e.Records) > 0 {
			f.push(e)
		}
	}
}

// fakeMember is a membership that a test plays the coordinator of.
type fakeMember struct {
	cfg    client.MemberConfig
	events chan client.MemberEvent
	commit func([]client.CommitOffset) (client.CommitResult, error)

	mu       sync.Mutex
	log      []string
	until    time.Time
	left     bool
	detached bool
}

func (f *fakeMember) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fakeMember) has(line string) func() bool {
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, l := range f.log {
			if l == line {
				return true
			}
		}
		return false
	}
}

func (f *fakeMember) Next(ctx context.Context) (client.MemberEvent, error) {
	select {
	case e := <-f.events:
		return e, nil
	case <-ctx.Done():
		return client.MemberEvent{}, ctx.Err()
	}
}

func (f *fakeMember) Revoking(p ...client.OwnedPartition) { f.note("revoking %d", len(p)) }
func (f *fakeMember) Ack(epoch int64, owned []client.OwnedPartition) {
	f.note("ack %d %d", epoch, len(owned))
}

func (f *fakeMember) Commit(_ context.Context, offsets []client.CommitOffset) (client.CommitResult, error) {
	for _, o := range offsets {
		f.note("commit %d@%d", o.Partition, o.NextOffset)
	}
	return f.commit(offsets)
}

func (f *fakeMember) DeliverUntil() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.until
}

func (f *fakeMember) Leave(context.Context) error { f.note("leave"); return nil }
func (f *fakeMember) Detach()                     { f.note("detach") }

func (f *fakeMember) assign(epoch int64, parts ...int32) {
	a := &client.Assignment{MemberEpoch: epoch, GroupEpoch: epoch, RevocationTimeout: time.Minute}
	for _, n := range parts {
		a.Partitions = append(a.Partitions, client.AssignedPartition{
			OwnedPartition: client.OwnedPartition{TopicPartition: partA(n), AssignmentEpoch: 1}, Topic: "a", StartOffset: 0, StartLeaderEpoch: -1,
		})
	}
	f.events <- client.MemberEvent{Assignment: a}
}

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

func (c *fakeController) DescribeCluster(ctx context.Context, _ *controllerv1.DescribeClusterRequest) (*controllerv1.DescribeClusterResponse, error) {
	return c.cluster(ctx)
}

// rig is a handler behind a real server on loopback.
type rig struct {
	*Handler
	mesh       *fakeMesh
	controller *fakeController
	server     *rpc.Server
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
		FetchBytes: 1 << 20, MaxResponseBytes: 256 << 10, MaxDecodedBytes: 16 << 20, AdminTimeout: 5 * time.Second, MarksTimeout: time.Second,
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
	if r.server, err = rpc.NewServer(rpc.ServerConfig{StreamGrace: 5 * time.Second}); err != nil {
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
