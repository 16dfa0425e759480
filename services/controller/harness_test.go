package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
)

// patience bounds every wait of a test on a busy machine.
const patience = 30 * time.Second

// eventually waits until check is true.
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

// mesh is an etcd with the processes of a test.
type mesh struct {
	t    *testing.T
	etcd *etcdtest.Server
	pool *rpc.ConnPool
}

func newMesh(t *testing.T) *mesh {
	m := &mesh{t: t, etcd: etcdtest.StartServer(t), pool: rpc.NewConnPool(rpc.DialConfig{})}
	t.Cleanup(func() { _ = m.pool.Close() })
	return m
}

func (m *mesh) logger(name string) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(testWriter{m.t}, &slog.HandlerOptions{Level: slog.LevelInfo})).With("p", name)
}

// testWriter writes a log into the test's output.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	fmt.Fprint(w.t.Output(), string(b))
	return len(b), nil
}

// proc is a running controller.
type proc struct {
	*Controller
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// controller starts a controller and stops it with the test.
func (m *mesh) controller(id int32, change ...func(*Config)) *proc {
	m.t.Helper()
	return m.controllerWith(service.Deps{Logger: m.logger(fmt.Sprintf("controller-%d", id))}, id, change...)
}

func (m *mesh) controllerWith(deps service.Deps, id int32, change ...func(*Config)) *proc {
	m.t.Helper()
	cfg := DefaultConfig()
	cfg.NodeID, cfg.Listen, cfg.EtcdEndpoints = id, "127.0.0.1:0", m.etcd.Endpoints
	for _, c := range change {
		c(&cfg)
	}
	c, err := New(cfg, deps)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	p := &proc{Controller: c, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.err = c.Run(ctx)
	}()
	m.t.Cleanup(p.stop)
	return p
}

// stop stops in order.
func (p *proc) stop() {
	p.cancel()
	<-p.ended
}

// kill ends a controller the way a crash does: its port refuses, and it gives
// nothing back to etcd.
func (p *proc) kill() {
	_ = p.etcd.Close()
	p.server.Stop()
	p.cancel()
	<-p.ended
}

// leader waits for one of several controllers to lead.
func (m *mesh) leader(procs ...*proc) *proc {
	m.t.Helper()
	var leader *proc
	eventually(m.t, "a controller leads", func() bool {
		for _, p := range procs {
			if p.IsLeading() {
				leader = p
			}
		}
		return leader != nil
	})
	return leader
}

// watcher follows the metadata as a gateway would.
func (m *mesh) watcher(kind controllerv1.ServiceKind, process *typev1.Process) *metadata.Watcher {
	m.t.Helper()
	client, err := registry.NewEtcd(m.etcd.Endpoints, "", m.logger("watcher"))
	if err != nil {
		m.t.Fatal(err)
	}
	w := metadata.NewWatcher(metadata.Options{
		Kind: kind, Process: process, Pool: m.pool, Logger: m.logger("watcher"),
		Discover: registry.Discovery(client, registry.NewKeys("/leat"), nil),
	})
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	m.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			m.t.Errorf("watcher: %v", err)
		}
		_ = client.Close()
	})
	return w
}

func (m *mesh) gateway() *metadata.Watcher {
	return m.watcher(controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, &typev1.Process{Id: 1, Incarnation: 1})
}

// controllers calls the elected controller as found by a watcher.
func (m *mesh) controllers(w *metadata.Watcher) *metadata.Controllers {
	client, err := registry.NewEtcd(m.etcd.Endpoints, "", m.logger("controllers"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = client.Close() })
	return metadata.NewControllers(metadata.ControllersOptions{
		Watcher: w, Pool: m.pool, Logger: m.logger("controllers"),
		Discover: registry.Discovery(client, registry.NewKeys("/leat"), nil),
	})
}

// ctx is a context for one call.
func (m *mesh) ctx() context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	m.t.Cleanup(cancel)
	return ctx
}

// ctxFor is a context for one call that is to end sooner.
func (m *mesh) ctxFor(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), limit)
	m.t.Cleanup(cancel)
	return ctx
}

// discover looks controllers up in etcd.
func (m *mesh) discover() func(context.Context) ([]string, error) {
	client, err := registry.NewEtcd(m.etcd.Endpoints, "", m.logger("discovery"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = client.Close() })
	return registry.Discovery(client, registry.NewKeys("/leat"), nil)
}

// fake is a process that is no controller: a broker with a health stream, or
// another kind with an identity only.
type fake struct {
	m       *mesh
	kind    controllerv1.ServiceKind
	process *typev1.Process
	addr    string
	server  *rpc.Server
	reg     *registry.Registrar
	watch   *metadata.Watcher
	cancel  context.CancelFunc
	parts   sync.WaitGroup
	etcd    io.Closer

	// silent makes it neither renew its lease nor answer controllers, as a stopped
	// process does.
	silent atomic.Bool
	// deaf makes it answer no controller's questions, while it keeps its lease.
	deaf atomic.Bool
	// deafTo is the id of a controller whose questions it does not answer.
	deafTo atomic.Int32
	// unregistered makes it let its lease run out, and answer all the same.
	unregistered atomic.Bool
	// badDisks makes its answers say that a disk hangs.
	badDisks atomic.Bool
	// leaving makes it vouch no more.
	leaving atomic.Bool
	// answers counts the answers to controllers' questions.
	answers atomic.Int64
	// lazy makes it make no folders.
	lazy atomic.Bool

	mu          sync.Mutex
	vouches     []*controllerv1.ReplicaVouch
	unreachable []int32
}

// fake starts a process and registers it.
func (m *mesh) fake(kind controllerv1.ServiceKind, id int32, incarnation uint64, vouches ...*controllerv1.ReplicaVouch) *fake {
	m.t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	f := &fake{m: m, kind: kind, process: &typev1.Process{Id: id, Incarnation: incarnation}, addr: lis.Addr().String(), vouches: vouches}
	f.server, err = rpc.NewServer(rpc.ServerConfig{Identity: func() *meshv1.GetIdentityResponse {
		return &meshv1.GetIdentityResponse{Kind: registry.KindName(kind), Process: f.process}
	}})
	if err != nil {
		m.t.Fatal(err)
	}
	brokerv1.RegisterHealthStreamServiceServer(f.server, &healthServer{f: f})
	client, err := registry.NewEtcd(m.etcd.Endpoints, "", m.logger("fake"))
	if err != nil {
		m.t.Fatal(err)
	}
	f.etcd = client
	f.reg = registry.NewRegistrar(registry.RegistrarConfig{
		Client: client, Keys: registry.NewKeys("/leat"), Kind: kind, Process: f.process,
		Address: f.addr, TTL: 2 * time.Second, Prober: registry.NewProber(rpc.DialConfig{}), Logger: m.logger(fmt.Sprint(registry.KindName(kind), id)),
		Healthy: func() bool { return !f.silent.Load() && !f.badDisks.Load() && !f.unregistered.Load() },
	})
	f.watch = m.watcher(kind, f.process)
	ctx, cancel := context.WithCancel(m.t.Context())
	f.cancel = cancel
	f.parts.Go(func() { _ = f.server.Serve(lis) })
	f.parts.Go(func() {
		if err := f.reg.Run(ctx); err != nil {
			m.t.Errorf("registrar: %v", err)
		}
	})
	if kind == controllerv1.ServiceKind_SERVICE_KIND_BROKER {
		controllers := m.controllers(f.watch)
		f.parts.Go(func() { f.vouch(ctx, controllers) })
		f.parts.Go(func() { f.makeFolders(ctx, controllers) })
	}
	m.t.Cleanup(f.stop)
	return f
}

// vouch registers with each new elected controller until the image shows the
// broker unfenced, as brokers do.
func (f *fake) vouch(ctx context.Context, controllers *metadata.Controllers) {
	revision, err := f.reg.WaitRegistered(ctx)
	if err != nil || f.watch.WaitForRevision(ctx, revision) != nil {
		return
	}
	for ctx.Err() == nil {
		image, changed := f.watch.Watch()
		b := image.Broker(f.process.GetId())
		if (b.GetFenced() || b.GetBroker().GetIncarnation() != f.process.GetIncarnation()) && !f.leaving.Load() {
			f.mu.Lock()
			req := &controllerv1.RegisterBrokerRequest{
				Handshake: rpc.LocalHandshake(), Broker: f.process, Address: f.addr,
				RegistrationRevision: revision, Vouches: f.vouches,
			}
			f.mu.Unlock()
			call, cancel := context.WithTimeout(ctx, patience)
			_, _ = controllers.RegisterBroker(call, req) // the image tells how it went
			cancel()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// makeFolders tells of the replicas that it has made, as brokers do: until a record
// shows a leader, and to each new elected controller.
func (f *fake) makeFolders(ctx context.Context, controllers *metadata.Controllers) {
	told, to := map[string]bool{}, int64(0)
	for ctx.Err() == nil {
		image, changed := f.watch.Watch()
		if election := image.ControllerLeader().GetElectionRevision(); election != to {
			told, to = map[string]bool{}, election
		}
		req := &controllerv1.ReportReplicasRequest{Broker: f.process}
		for _, t := range image.Topics() {
			for _, p := range t.Partitions() {
				key := fmt.Sprint(t.ID, p.GetPartition())
				if p.GetLeader() != nil || !slices.Contains(p.GetReplicas(), f.process.GetId()) || told[key] || f.lazy.Load() {
					continue
				}
				told[key] = true
				req.Vouches = append(req.Vouches, &controllerv1.ReplicaVouch{
					TopicId: t.ID.Bytes(), Partition: p.GetPartition(), LastEpoch: -1, Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT,
				})
			}
		}
		b := image.Broker(f.process.GetId())
		if b.GetFenced() || b.GetBroker().GetIncarnation() != f.process.GetIncarnation() {
			told = map[string]bool{}
		} else if len(req.GetVouches()) > 0 {
			call, cancel := context.WithTimeout(ctx, patience)
			if _, err := controllers.ReportReplicas(call, req); err != nil {
				told = map[string]bool{}
			}
			cancel()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// reportUnreachable sets the leaders that it tells controllers it cannot reach.
func (f *fake) reportUnreachable(leaders ...int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unreachable = leaders
}

// stop stops in order and gives the registration back. Twice is harmless.
func (f *fake) stop() {
	f.cancel()
	f.server.Stop()
	f.parts.Wait()
	_ = f.etcd.Close()
}

// kill ends the process the way a crash does.
func (f *fake) kill() {
	_ = f.etcd.Close()
	f.server.Stop()
	f.cancel()
	f.parts.Wait()
}

// healthServer answers controllers' probes.
type healthServer struct {
	brokerv1.UnimplementedHealthStreamServiceServer
	f *fake
}

func (s *healthServer) WatchHealth(stream grpc.BidiStreamingServer[brokerv1.WatchHealthRequest, brokerv1.WatchHealthResponse]) error {
	asker := int32(0)
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if i := req.GetInitial(); i != nil {
			asker = i.GetController().GetId()
		}
		if s.f.silent.Load() || s.f.deaf.Load() || s.f.deafTo.Load() == asker {
			continue
		}
		resp := &brokerv1.WatchHealthResponse{Message: &brokerv1.WatchHealthResponse_Initial{Initial: &brokerv1.HealthInitialResponse{Handshake: rpc.LocalHandshake(), Broker: s.f.process}}}
		s.f.mu.Lock()
		unreachable := s.f.unreachable
		s.f.mu.Unlock()
		if p := req.GetProbe(); p != nil {
			resp.Message = &brokerv1.WatchHealthResponse_Answer{Answer: &brokerv1.HealthAnswer{
				ProbeId: p.GetProbeId(), Broker: s.f.process,
				DisksOk: !s.f.badDisks.Load(), UnreachableLeaders: unreachable, Position: s.f.watch.Image().Position().ClientProto(),
			}}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		s.f.answers.Add(1)
	}
}

func (m *mesh) broker(id int32, incarnation uint64, vouches ...*controllerv1.ReplicaVouch) *fake {
	return m.fake(controllerv1.ServiceKind_SERVICE_KIND_BROKER, id, incarnation, vouches...)
}

// awaitUnfenced waits until a watcher shows a broker's life unfenced.
func (m *mesh) awaitUnfenced(w *metadata.Watcher, f *fake) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("broker %d unfenced", f.process.GetId()), func() bool {
		b := w.Image().Broker(f.process.GetId())
		return b != nil && !b.GetFenced() && b.GetBroker().GetIncarnation() == f.process.GetIncarnation()
	})
}

// create makes one topic of one replica and waits until a watcher shows it led.
func (m *mesh) create(w *metadata.Watcher, c *metadata.Controllers, name string, partitions int32) *metadata.Topic {
	m.t.Helper()
	return m.createReplicated(w, c, name, partitions, 1)
}

func (m *mesh) createReplicated(w *metadata.Watcher, c *metadata.Controllers, name string, partitions, replicas int32) *metadata.Topic {
	m.t.Helper()
	resp, err := c.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{
		{Name: name, Partitions: &partitions, ReplicationFactor: &replicas},
	}})
	if err != nil {
		m.t.Fatal(err)
	}
	if e := resp.GetResults()[0].GetError(); e != nil {
		m.t.Fatal(rpc.FromProto(e))
	}
	if err := w.WaitFor(m.ctx(), metadata.PositionOf(resp.GetPosition())); err != nil {
		m.t.Fatal(err)
	}
	if w.Image().TopicByName(name) == nil {
		m.t.Fatalf("topic %s is not in the image at its position", name)
	}
	var topic *metadata.Topic
	eventually(m.t, name+" is led", func() bool {
		topic = w.Image().TopicByName(name)
		return !slices.ContainsFunc(topic.Partitions(), func(p *controllerv1.Partition) bool { return p.GetLeader() == nil })
	})
	return topic
}
