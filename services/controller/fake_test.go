package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
)

// fakeTTL is how long the lease of a fake lasts: so short that tests may wait for its
// end, and so long that a machine which stands still for two seconds between two
// renewals, the test's process with it, does not end it.
const fakeTTL = 4 * time.Second

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
		Address: f.addr, TTL: fakeTTL, Prober: registry.NewProber(rpc.DialConfig{}), Logger: m.logger(fmt.Sprint(registry.KindName(kind), id)),
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

// vouch registers until the image shows the broker unfenced, and with each new
// elected controller, as brokers do.
func (f *fake) vouch(ctx context.Context, controllers *metadata.Controllers) {
	revision, err := f.reg.WaitRegistered(ctx)
	if err != nil || f.watch.WaitForRevision(ctx, revision) != nil {
		return
	}
	told := int64(0)
	for ctx.Err() == nil {
		image, changed := f.watch.Watch()
		b := image.Broker(f.process.GetId())
		elected := image.ControllerLeader().GetElectionRevision()
		unknown := b.GetFenced() || b.GetBroker().GetIncarnation() != f.process.GetIncarnation()
		if (unknown || elected != told && elected != 0) && !f.leaving.Load() {
			f.mu.Lock()
			req := &controllerv1.RegisterBrokerRequest{
				Handshake: rpc.LocalHandshake(), Broker: f.process, Address: f.addr,
				RegistrationRevision: revision, Vouches: f.vouches,
			}
			f.mu.Unlock()
			call, cancel := context.WithTimeout(ctx, patience)
			if _, err := controllers.RegisterBroker(call, req); err == nil { // the image tells how it went
				told = elected
			}
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
