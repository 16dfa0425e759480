package handler

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/coordinator/internal/logtest"
	"github.com/leat-io/leat/services/coordinator/internal/offsets"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take before a test gives up; nothing waits for
// it to pass.
const patience = 20 * time.Second

var topicA = group.Topic{ID: group.TopicID{1}, Name: "a", Partitions: 4}

// logs is the internal topic in memory.
type logs []*logtest.Log

func (l logs) Append(ctx context.Context, n int32, fence offsets.Fence, batch []byte) (int64, error) {
	return l[n].Append(ctx, n, fence, batch)
}

func (l logs) Read(ctx context.Context, n int32, end int64, f func(key, value []byte) error) error {
	return l[n].Read(ctx, n, end, f)
}

// view is the metadata that a test shows.
type view struct {
	mu      sync.Mutex
	picture *shard.Picture
	changed chan struct{}
}

func (v *view) Picture() (*shard.Picture, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.picture, v.changed
}

func (v *view) show(p *shard.Picture) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.picture = p
	close(v.changed)
	v.changed = make(chan struct{})
}

// mesh is a coordinator without its mesh, served over loopback.
type mesh struct {
	t       *testing.T
	logs    logs
	starts  *logtest.Starts
	view    *view
	handler *Handler
	client  coordinatorv1.GroupServiceClient
}

const shards = 3

func pictureOf(owner shard.Owner, topics ...group.Topic) *shard.Picture {
	p := &shard.Picture{Known: true, Topic: topicid.ID{9}, Topics: group.Topics{View: group.NewTopicView(topics)}}
	for range shards {
		p.Shards = append(p.Shards, owner)
	}
	return p
}

func me(epoch int64) shard.Owner {
	return shard.Owner{ID: 1, Incarnation: 11, Addr: "me:1", Epoch: epoch}
}

func newMesh(t *testing.T, change func(*Config, *shard.ManagerConfig)) *mesh {
	t.Helper()
	m := &mesh{t: t, starts: &logtest.Starts{First: 3, Last: 100}, view: &view{picture: pictureOf(me(1), topicA), changed: make(chan struct{})}}
	for range shards {
		m.logs = append(m.logs, &logtest.Log{})
	}
	logger := slog.New(slog.DiscardHandler)
	managed := shard.ManagerConfig{
		Config: shard.Config{
			Group: group.DefaultConfig(), AppendTimeout: patience, LoadTimeout: patience, MaxBatchBytes: 1 << 20,
			MaxRequests: 100, DrainTimeout: time.Second, Logger: logger, Starts: m.starts,
		},
		ID: 1, Incarnation: 11, Metadata: m.view, MaxLoads: 4,
		OpenLog:     func(topicid.ID) shard.Log { return m.logs },
		EnsureTopic: func(context.Context) error { return nil },
	}
	managed.Group.JoinDelay = 5 * time.Millisecond
	cfg := Config{Process: &typev1.Process{Id: 1, Incarnation: 11}, MaxQueuedFrames: 1000, MaxMembersPerStream: 100, Logger: logger}
	if change != nil {
		change(&cfg, &managed)
	}
	manager := shard.NewManager(managed)
	cfg.Manager = manager
	m.handler = New(cfg)
	m.serve(manager)
	return m
}

// serve runs manager and server until the test ends.
func (m *mesh) serve(manager *shard.Manager) {
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		m.t.Fatal(err)
	}
	coordinatorv1.RegisterGroupServiceServer(server, m.handler)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	conn, err := rpc.Dial(lis.Addr().String(), rpc.DialConfig{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.client = coordinatorv1.NewGroupServiceClient(conn)
	run, stopManager := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(lis); err != nil {
			m.t.Error(err)
		}
	})
	running := make(chan struct{})
	once := sync.OnceFunc(func() { close(running) })
	wg.Go(func() {
		if err := manager.Run(run, once); err != nil {
			m.t.Error(err)
		}
	})
	<-running
	m.t.Cleanup(func() {
		m.handler.Drain()
		stopManager()
		conn.Close()
		server.Stop()
		m.handler.Wait()
		wg.Wait()
	})
}

func (m *mesh) ctx() context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	m.t.Cleanup(cancel)
	return ctx
}

// stream is one Join stream.
type stream struct {
	t      *testing.T
	s      grpc.BidiStreamingClient[coordinatorv1.JoinRequest, coordinatorv1.JoinResponse]
	cancel context.CancelFunc
}

func (m *mesh) stream() *stream {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.ctx())
	s, err := m.client.Join(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	out := &stream{t: m.t, s: s, cancel: cancel}
	out.send(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Initial{Initial: &coordinatorv1.JoinInitial{Handshake: rpc.LocalHandshake()}}})
	if r := out.recv(); r.GetInitial().GetCoordinator().GetId() != 1 {
		m.t.Fatalf("the first answer is %v", r)
	}
	return out
}

func (s *stream) send(r *coordinatorv1.JoinRequest) {
	s.t.Helper()
	if err := s.s.Send(r); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stream) recv() *coordinatorv1.JoinResponse {
	s.t.Helper()
	r, err := s.s.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// member is a member of group g on a stream.
type member struct {
	*stream
	id     string
	attach int64
	epoch  int64
	held   []*coordinatorv1.AssignedPartition
	seq    int64

	instance string
	session  time.Duration // 0: the default
}

func (s *stream) member(id string) *member { return &member{stream: s, id: id} }

func (m *member) frame(r *coordinatorv1.JoinRequest) {
	m.t.Helper()
	r.Group, r.MemberId = "g", m.id
	m.send(r)
}

func (m *member) owned() []*coordinatorv1.OwnedPartition {
	var out []*coordinatorv1.OwnedPartition
	for _, p := range m.held {
		out = append(out, &coordinatorv1.OwnedPartition{TopicId: p.TopicId, Partition: p.Partition, AssignmentEpoch: p.AssignmentEpoch})
	}
	return out
}

func (m *member) open() *coordinatorv1.JoinResponse {
	m.t.Helper()
	open := &coordinatorv1.MemberOpen{
		Topics: []string{"a"}, Attach: m.attach, Owned: m.owned(), ClientId: "c", ClientHost: "h", InstanceId: m.instance,
	}
	if m.session > 0 {
		open.SessionTimeout = durationpb.New(m.session)
	}
	m.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Open{Open: open}})
	return m.next()
}

// next returns the next frame for the member that is no assignment; assignments are
// taken in and acknowledged.
func (m *member) next() *coordinatorv1.JoinResponse {
	m.t.Helper()
	for {
		r := m.recv()
		if r.GetGroup() != "g" || r.GetMemberId() != m.id {
			m.t.Fatalf("got %v, want a frame of %s", r, m.id)
		}
		if r.GetAssignment() == nil {
			return r
		}
		m.take(r.GetAssignment())
	}
}

func (m *member) take(a *coordinatorv1.Assignment) {
	m.t.Helper()
	m.held, m.epoch = a.GetPartitions(), a.GetMemberEpoch()
	m.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Ack{Ack: &coordinatorv1.AssignmentAck{
		Attach: m.attach, MemberEpoch: m.epoch, Owned: m.owned(),
	}}})
}

// join opens the member, trying again while its shard loads.
func (m *member) join() *member {
	m.t.Helper()
	for {
		r := m.open()
		if f := r.GetFenced(); f != nil {
			if f.GetError().GetAction() == typev1.Action_ACTION_RETRY {
				continue
			}
			m.t.Fatalf("%s cannot join: %v", m.id, f)
		}
		m.attach, m.epoch, m.seq = r.GetOpened().GetAttach(), r.GetOpened().GetMemberEpoch(), 0
		if m.attach == 0 {
			m.t.Fatalf("the answer to open is %v", r)
		}
		return m
	}
}

// holding takes in assignments until there are n partitions.
func (m *member) holding(n int) *member {
	m.t.Helper()
	for len(m.held) != n {
		r := m.recv()
		if r.GetAssignment() == nil {
			m.t.Fatalf("got %v, want an assignment", r)
		}
		m.take(r.GetAssignment())
	}
	return m
}

func (m *member) commit(next int64) *coordinatorv1.CommitResult {
	m.t.Helper()
	m.seq++
	c := &coordinatorv1.MemberCommit{Attach: m.attach, MemberEpoch: m.epoch, Sequence: m.seq}
	for _, p := range m.held {
		c.Offsets = append(c.Offsets, &coordinatorv1.OffsetCommit{
			TopicId: p.TopicId, Partition: p.Partition, NextOffset: next, LeaderEpoch: 2, AssignmentEpoch: p.AssignmentEpoch,
		})
	}
	m.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Commit{Commit: c}})
	r := m.next().GetCommitResult()
	if r.GetSequence() != m.seq {
		m.t.Fatalf("commit %d was answered %v", m.seq, r)
	}
	return r
}

func wantReason(t *testing.T, err error, want typev1.ErrorReason) {
	t.Helper()
	if !rpc.IsReason(err, want) {
		t.Fatalf("got %v, want %s", err, rpc.ReasonName(want))
	}
}

// eventually tries until f answers true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("in vain waited for %s", what)
		}
	}
}
