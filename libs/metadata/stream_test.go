package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

const patience = 30 * time.Second

func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !check() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("still not: %s", what)
		}
	}
}

type msg = controllerv1.WatchMetadataResponse

func at(revision int64, m *msg) *msg {
	m.Position = &controllerv1.Position{Generation: 1, Revision: revision}
	return m
}

func initial(cluster string) *msg {
	return &msg{Message: &controllerv1.WatchMetadataResponse_Initial{Initial: &controllerv1.WatchInitial{Handshake: rpc.LocalHandshake(), ClusterId: cluster}}}
}

func snapshot(last bool, c *controllerv1.MetadataChanges) *msg {
	return &msg{Message: &controllerv1.WatchMetadataResponse_Snapshot{Snapshot: &controllerv1.SnapshotPart{Entries: c, Last: last}}}
}

func delta(partial bool, c *controllerv1.MetadataChanges) *msg {
	return &msg{Partial: partial, Message: &controllerv1.WatchMetadataResponse_Delta{Delta: c}}
}

func beat(silent int64) *msg {
	return &msg{Message: &controllerv1.WatchMetadataResponse_Heartbeat{Heartbeat: &controllerv1.Heartbeat{EtcdSilentMs: silent}}}
}

func topics(list ...*controllerv1.Topic) *controllerv1.MetadataChanges {
	return &controllerv1.MetadataChanges{Topics: list}
}

func newTestWatcher() *Watcher {
	return NewWatcher(Options{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, Process: &typev1.Process{Id: 1, Incarnation: 1},
		Logger: slog.New(slog.DiscardHandler),
	})
}

func take(t *testing.T, s *session, m *msg) {
	t.Helper()
	if _, err := s.take(m); err != nil {
		t.Fatal(err)
	}
}

func TestNothingHalfIsShown(t *testing.T) {
	w := newTestWatcher()
	s := &session{w: w}
	take(t, s, at(5, initial("c")))
	take(t, s, at(5, snapshot(false, topics(topicMsg(idA, "a", 1)))))
	if len(w.Image().Topics()) != 0 || w.Image().Position().Revision != 0 {
		t.Fatal("half a snapshot is shown")
	}
	take(t, s, at(5, snapshot(true, topics(topicMsg(idB, "b", 1)))))
	if len(w.Image().Topics()) != 2 || w.Image().Position() != (Position{1, 5}) || w.Image().ClusterID() != "c" {
		t.Fatalf("the snapshot: %v at %v", w.Image().Topics(), w.Image().Position())
	}
	take(t, s, at(6, delta(true, &controllerv1.MetadataChanges{RemovedTopics: [][]byte{idA.Bytes()}})))
	take(t, s, at(6, beat(0)))
	if w.Image().TopicByName("a") == nil || w.Image().Position().Revision != 5 {
		t.Fatal("half a change is shown")
	}
	take(t, s, at(6, delta(false, &controllerv1.MetadataChanges{RemovedTopics: [][]byte{idB.Bytes()}})))
	if len(w.Image().Topics()) != 0 || w.Image().Position().Revision != 6 {
		t.Fatal("the whole change is not shown")
	}
	take(t, s, at(9, beat(0)))
	if w.Image().Position().Revision != 9 {
		t.Fatal("a heartbeat does not move the position")
	}
}

func TestNeverOlder(t *testing.T) {
	w := newTestWatcher()
	s := &session{w: w}
	take(t, s, at(9, initial("c")))
	take(t, s, at(9, snapshot(true, topics(topicMsg(idA, "a", 1)))))
	// Another controller is behind: nothing of it is shown before it has caught up,
	// and then all of it.
	s = &session{w: w}
	take(t, s, at(4, initial("c")))
	take(t, s, at(4, snapshot(true, topics(topicMsg(idB, "old", 1)))))
	take(t, s, at(8, delta(false, topics(topicMsg(idB, "older", 1)))))
	if w.Image().TopicByName("a") == nil || w.Image().Position().Revision != 9 {
		t.Fatal("an older state is shown")
	}
	take(t, s, at(10, delta(false, topics(topicMsg(idA, "a2", 1)))))
	if i := w.Image(); i.Position().Revision != 10 || i.TopicByID(idB) == nil || i.TopicByName("a2") == nil {
		t.Fatalf("having caught up: %v", i.Topics())
	}
	// A generation counts before any revision.
	s = &session{w: w}
	take(t, s, at(1, initial("c")))
	m := snapshot(true, &controllerv1.MetadataChanges{})
	m.Position = &controllerv1.Position{Generation: 2, Revision: 1}
	take(t, s, m)
	if w.Image().Position() != (Position{2, 1}) {
		t.Fatalf("at %v", w.Image().Position())
	}
}

func TestOtherMeshIsRefused(t *testing.T) {
	w := newTestWatcher()
	s := &session{w: w}
	take(t, s, at(1, initial("c")))
	take(t, s, at(1, snapshot(true, &controllerv1.MetadataChanges{})))
	if _, err := (&session{w: w}).take(at(2, initial("d"))); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER) {
		t.Errorf("another mesh: %v", err)
	}
	mine := NewWatcher(Options{ClusterID: "mine", Logger: slog.New(slog.DiscardHandler)})
	if _, err := (&session{w: mine}).take(at(2, initial("d"))); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER) {
		t.Errorf("not the mesh of the disks: %v", err)
	}
	if _, err := (&session{w: mine}).take(at(2, delta(false, topics()))); err == nil {
		t.Error("a change before the state was taken")
	}
}

func TestOtherHistoryIsRefused(t *testing.T) {
	from := func(etcd uint64, generation, revision int64) *msg {
		m := at(revision, initial("c"))
		m.GetInitial().EtcdClusterId = etcd
		m.Position.Generation = generation
		return m
	}
	w := newTestWatcher()
	s := &session{w: w}
	take(t, s, from(7, 1, 9))
	take(t, s, at(9, snapshot(true, &controllerv1.MetadataChanges{})))
	if w.Image().EtcdClusterID() != 7 || w.Regressed() != nil {
		t.Fatalf("followed: etcd %d, %v", w.Image().EtcdClusterID(), w.Regressed())
	}
	// etcd was restored from a backup: another cluster, the same generation, and the
	// revision may be higher by now.
	changed := w.Changed()
	if _, err := (&session{w: w}).take(from(8, 1, 12)); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED) || w.Regressed() == nil {
		t.Errorf("etcd made anew: %v, %v", err, w.Regressed())
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told of the regression")
	}
	// The mesh was restored: a new generation.
	s = &session{w: w}
	take(t, s, from(8, 2, 3))
	m := at(3, snapshot(true, &controllerv1.MetadataChanges{}))
	m.Position.Generation = 2
	take(t, s, m)
	if w.Regressed() != nil || w.Image().EtcdClusterID() != 8 {
		t.Errorf("after the restore: %v, etcd %d", w.Regressed(), w.Image().EtcdClusterID())
	}
	if _, err := (&session{w: w}).take(from(7, 1, 99)); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED) {
		t.Errorf("the generation before: %v", err)
	}
	// What an earlier life has followed counts as well.
	for name, tc := range map[string]struct {
		opts Options
		ok   bool
	}{
		"the same":           {Options{Generation: 1, EtcdClusterID: 8}, true},
		"another etcd":       {Options{Generation: 1, EtcdClusterID: 7}, false},
		"a later generation": {Options{Generation: 2, EtcdClusterID: 8}, false},
		"nothing":            {Options{}, true},
	} {
		tc.opts.Logger = slog.New(slog.DiscardHandler)
		w := NewWatcher(tc.opts)
		if _, err := (&session{w: w}).take(from(8, 1, 5)); (err == nil) != tc.ok || (w.Regressed() == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// scripted is a controller that says what a test tells it to.
type scripted struct {
	controllerv1.UnimplementedMetadataServiceServer
	mu     sync.Mutex
	opened int
	play   func(grpc.ServerStreamingServer[msg]) error
}

func (s *scripted) WatchMetadata(_ *controllerv1.WatchMetadataRequest, stream grpc.ServerStreamingServer[msg]) error {
	s.mu.Lock()
	s.opened++
	play := s.play
	s.mu.Unlock()
	return play(stream)
}

func (s *scripted) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func serve(t *testing.T, play func(grpc.ServerStreamingServer[msg]) error) (*scripted, string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, lis, play), lis.Addr().String()
}

func serveOn(t *testing.T, lis net.Listener, play func(grpc.ServerStreamingServer[msg]) error) *scripted {
	t.Helper()
	srv, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{play: play}
	controllerv1.RegisterMetadataServiceServer(srv, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
}

// steady sends a state and then heartbeats until the receiver goes.
func steady(revision, silent int64) func(grpc.ServerStreamingServer[msg]) error {
	return func(stream grpc.ServerStreamingServer[msg]) error {
		state := &controllerv1.MetadataChanges{Registrations: []*controllerv1.Registration{
			{Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, Process: &typev1.Process{Id: 1}, Address: "127.0.0.1:1"},
			{Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, Process: &typev1.Process{Id: 2}, Address: "127.0.0.1:1"},
		}}
		if err := errors.Join(stream.Send(at(revision, initial("c"))), stream.Send(at(revision, snapshot(true, state)))); err != nil {
			return err
		}
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := stream.Send(at(revision, beat(silent))); err != nil {
					return err
				}
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
	}
}

// mute sends a state and then nothing.
func mute(stream grpc.ServerStreamingServer[msg]) error {
	if err := errors.Join(stream.Send(at(1, initial("c"))), stream.Send(at(1, snapshot(true, &controllerv1.MetadataChanges{})))); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// runWatcher runs a watcher that at first knows one address only.
func runWatcher(t *testing.T, dial rpc.DialConfig, first string, addrs ...string) *Watcher {
	t.Helper()
	var asked atomic.Bool
	pool := rpc.NewConnPool(dial)
	w := newTestWatcher()
	w.opts.Pool = pool
	w.opts.Discover = func(context.Context) ([]string, error) {
		if asked.CompareAndSwap(false, true) {
			return []string{first}, nil
		}
		return addrs, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watcher: %v", err)
		}
		_ = pool.Close()
	})
	return w
}

func TestSilentControllerIsLeft(t *testing.T) {
	quiet, a := serve(t, mute)
	_, b := serve(t, steady(7, 0))
	w := runWatcher(t, rpc.DialConfig{}, a, a, b) // the silent one is all that is known at first
	eventually(t, "the steady one is followed", func() bool { return w.Image().Position().Revision == 7 })
	if quiet.times() != 1 {
		t.Errorf("the silent one was asked %d times", quiet.times())
	}
}

// In a bubble: where the machine stands still, the controllers fall silent as well,
// which is another reason to go.
func TestEtcdsAbsenceDoesNotChaseTheWatcherAround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const a, b = "a:1", "b:1"
		links := map[string]*bufconn.Listener{a: bufconn.Listen(1 << 16), b: bufconn.Listen(1 << 16)}
		one, two := serveOn(t, links[a], steady(7, 9000)), serveOn(t, links[b], steady(7, 9000))
		runWatcher(t, rpc.DialConfig{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			if links[addr] == nil {
				return nil, syscall.ECONNREFUSED // of the controllers that the state names
			}
			return links[addr].DialContext(ctx)
		}}, a, a, b)
		eventually(t, "the other one is tried", func() bool { return one.times() > 0 && two.times() > 0 })
		before := one.times() + two.times()
		// Of the heartbeats that follow, far more than these, each would be a reason to
		// go.
		<-time.After(time.Second)
		if again := one.times() + two.times() - before; again > 1 {
			t.Errorf("changed %d times within a second", again)
		}
		// The waits double, up to half a minute.
		<-time.After(time.Minute)
		if again := one.times() + two.times() - before; again < 3 || again > 6 {
			t.Errorf("changed %d times within a minute", again)
		}
	})
}

func TestControllersFollowHints(t *testing.T) {
	lead := &adminStub{}
	leadAddr := serveAdmin(t, lead)
	standby := &adminStub{err: func(int) error {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_CONTROLLER, "not I").WithLeader(2, leadAddr, 1)
	}}
	standbyAddr := serveAdmin(t, standby)
	busy := &adminStub{err: func(n int) error {
		if n < 3 {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE, "wait")
		}
		return nil
	}}
	busyAddr := serveAdmin(t, busy)
	wrong := &adminStub{err: func(int) error { return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, "none") }}
	wrongAddr := serveAdmin(t, wrong)
	pool := rpc.NewConnPool(rpc.DialConfig{})
	defer pool.Close()
	ask := func(addr string) error {
		c := NewControllers(ControllersOptions{
			Pool: pool, Logger: slog.New(slog.DiscardHandler),
			Discover: func(context.Context) ([]string, error) {
				if addr == "" {
					return nil, fmt.Errorf("none")
				}
				return []string{addr}, nil
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if addr == "" {
			ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
		}
		defer cancel()
		_, err := c.AlterTopic(ctx, &controllerv1.AlterTopicRequest{Topic: "x"})
		return err
	}
	if err := ask(standbyAddr); err != nil || lead.calls() != 1 || standby.calls() != 1 {
		t.Errorf("by the hint: %v, %d, %d", err, lead.calls(), standby.calls())
	}
	if err := ask(busyAddr); err != nil || busy.calls() != 3 {
		t.Errorf("retried: %v after %d calls", err, busy.calls())
	}
	if busy.ids() != 1 {
		t.Errorf("one request had %d ids", busy.ids())
	}
	if err := ask(wrongAddr); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC) || wrong.calls() != 1 {
		t.Errorf("a final answer: %v after %d calls", err, wrong.calls())
	}
	if err := ask(""); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE) {
		t.Errorf("nobody known: %v", err)
	}
}

type adminStub struct {
	controllerv1.UnimplementedAdminServiceServer
	err  func(n int) error
	mu   sync.Mutex
	n    int
	seen map[string]bool
}

func (s *adminStub) AlterTopic(_ context.Context, req *controllerv1.AlterTopicRequest) (*controllerv1.AlterTopicResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	s.seen[req.GetRequestId()] = true
	if s.err != nil {
		if err := s.err(s.n); err != nil {
			return nil, err
		}
	}
	return &controllerv1.AlterTopicResponse{}, nil
}

func (s *adminStub) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func (s *adminStub) ids() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

func serveAdmin(t *testing.T, s *adminStub) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	controllerv1.RegisterAdminServiceServer(srv, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return lis.Addr().String()
}

func TestGetMetadata(t *testing.T) {
	w := newTestWatcher()
	srv := NewServer(w)
	if _, err := srv.GetMetadata(t.Context(), &brokerv1.GetMetadataRequest{}); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STARTING) {
		t.Errorf("without an image: %v", err)
	}
	s := &session{w: w}
	take(t, s, at(5, initial("c")))
	gone := topicMsg(idB, "b", 1)
	gone.Deleting = true
	take(t, s, at(5, snapshot(true, &controllerv1.MetadataChanges{
		Topics:     []*controllerv1.Topic{topicMsg(idA, "a", 2), gone},
		Partitions: []*controllerv1.Partition{partitionMsg(idA, 0, 3), {TopicId: idA.Bytes(), Partition: 1, ShardOwner: &typev1.Process{Id: 7}, ShardEpoch: 4}},
		Brokers:    []*controllerv1.Broker{{Broker: &typev1.Process{Id: 1}, Address: "h:1"}, {Broker: &typev1.Process{Id: 2}, Fenced: true}},
		Registrations: []*controllerv1.Registration{
			{Kind: controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR, Process: &typev1.Process{Id: 7}, Address: "k:1"},
			{Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, Process: &typev1.Process{Id: 8}, Address: "g:1"},
		},
	})))
	resp, err := srv.GetMetadata(t.Context(), &brokerv1.GetMetadataRequest{Topics: []string{"a", "zzz"}, TopicIds: [][]byte{idB.Bytes(), {1}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.GetBrokers()) != 1 || resp.GetBrokers()[0].GetAddress() != "h:1" || len(resp.GetCoordinators()) != 1 || resp.GetClusterId() != "c" {
		t.Errorf("processes: %v", resp)
	}
	a := resp.GetTopics()[0]
	if a.GetName() != "a" || a.GetMaxMessageBytes() != 1<<20 || a.GetPartitions()[0].GetLeader() != 3 || a.GetPartitions()[1].GetLeader() != -1 ||
		a.GetPartitions()[1].GetShardOwner().GetShardEpoch() != 4 {
		t.Errorf("topic a: %v", a)
	}
	for i, want := range []typev1.ErrorReason{typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST} {
		if got := resp.GetTopics()[i+1].GetError().GetReason(); got != want {
			t.Errorf("topic %d: %v, want %v", i+1, got, want)
		}
	}
	all, err := srv.GetMetadata(t.Context(), &brokerv1.GetMetadataRequest{AllTopics: true})
	if err != nil || len(all.GetTopics()) != 1 {
		t.Errorf("all topics: %v, %v", all.GetTopics(), err)
	}
	_, err = srv.GetMetadata(t.Context(), &brokerv1.GetMetadataRequest{MinPosition: &brokerv1.MetadataPosition{Generation: 1, Revision: 99}})
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND) {
		t.Errorf("too new: %v", err)
	}
}
