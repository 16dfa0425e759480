package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
)

func TestMain(m *testing.M) {
	// The logger that etcd's log rotation starts has no end.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

const patience = 30 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// emptyMesh is a controller that knows nothing but what revision etcd is at.
type emptyMesh struct {
	controllerv1.UnimplementedMetadataServiceServer
	etcd *clientv3.Client
}

func (m *emptyMesh) WatchMetadata(_ *controllerv1.WatchMetadataRequest, s controllerv1.MetadataService_WatchMetadataServer) error {
	// Without the generation, a watcher that comes again would find that it went back.
	if err := s.Send(&controllerv1.WatchMetadataResponse{Position: &controllerv1.Position{Generation: 1}, Message: &controllerv1.WatchMetadataResponse_Initial{Initial: &controllerv1.WatchInitial{
		Handshake: rpc.LocalHandshake(), Controller: &typev1.Process{Id: 1}, ClusterId: "c1",
	}}}); err != nil {
		return err
	}
	for first := true; ; first = false {
		now, err := m.etcd.Get(s.Context(), "x")
		if err != nil {
			return err
		}
		r := &controllerv1.WatchMetadataResponse{
			Position: &controllerv1.Position{Generation: 1, Revision: now.Header.Revision},
			Message:  &controllerv1.WatchMetadataResponse_Heartbeat{Heartbeat: &controllerv1.Heartbeat{}},
		}
		if first {
			r.Message = &controllerv1.WatchMetadataResponse_Snapshot{Snapshot: &controllerv1.SnapshotPart{Last: true}}
		}
		if err := s.Send(r); err != nil {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// rig is a gateway on an etcd, with a controller that a test starts.
type rig struct {
	*Gateway
	t          *testing.T
	etcd       *clientv3.Client
	endpoints  []string
	controller net.Listener
	conn       *grpc.ClientConn
	cancel     context.CancelFunc
	ended      chan error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, endpoints: etcdtest.Start(t)}
	var err error
	if r.etcd, err = registry.NewEtcd(r.endpoints, "", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.etcd.Close(); err != nil {
			t.Error(err)
		}
	})
	if r.controller, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	r.Gateway, r.cancel, r.ended = r.start(r.config())
	t.Cleanup(func() { r.stop(r.cancel, r.ended) })
	if r.conn, err = grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) config() Config {
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.EtcdEndpoints = r.endpoints
	cfg.ControllerAddresses = []string{r.controller.Addr().String()}
	cfg.ShutdownTimeout = 2 * patience // of which streams get a half
	return cfg
}

func (r *rig) start(cfg Config) (*Gateway, context.CancelFunc, chan error) {
	r.t.Helper()
	g, err := New(cfg, service.Deps{})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	return g, cancel, ended
}

// stop ends a gateway once and reports what Run returned.
func (r *rig) stop(cancel context.CancelFunc, ended chan error) {
	cancel()
	if err, ok := <-ended; ok {
		if err != nil {
			r.t.Errorf("run: %v", err)
		}
		close(ended)
	}
}

func (r *rig) startController() {
	s := grpc.NewServer()
	controllerv1.RegisterMetadataServiceServer(s, &emptyMesh{etcd: r.etcd})
	done := make(chan error, 1)
	go func() { done <- s.Serve(r.controller) }()
	r.t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

// TestLife: it answers before the mesh is there, is registered and ready once it
// is, and drains.
func TestLife(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	admin := gatewayv1.NewAdminServiceClient(r.conn)
	if _, err := admin.ListTopics(ctx, &gatewayv1.ListTopicsRequest{}); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STARTING) {
		t.Fatalf("before the mesh: %v", err)
	}
	id, err := meshv1.NewIdentityServiceClient(r.conn).GetIdentity(ctx, &meshv1.GetIdentityRequest{})
	if err != nil || id.GetKind() != "gateway" || id.GetProcess().GetId() != 1 {
		t.Fatalf("identity %v, %v", id, err)
	}
	health := healthv1.NewHealthClient(r.conn)
	if h, err := health.Check(ctx, &healthv1.HealthCheckRequest{}); err != nil || h.Status != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health %v, %v", h, err)
	}
	r.startController()
	select {
	case <-r.Ready():
	case <-ctx.Done():
		t.Fatal("not ready")
	}
	if h, err := health.Check(ctx, &healthv1.HealthCheckRequest{}); err != nil || h.Status != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v", h, err)
	}
	if resp, err := admin.ListTopics(ctx, &gatewayv1.ListTopicsRequest{}); err != nil || len(resp.Topics) != 0 {
		t.Errorf("topics %v, %v", resp, err)
	}
	if resp, err := brokerv1.NewMetadataServiceClient(r.conn).GetMetadata(ctx, &brokerv1.GetMetadataRequest{}); err != nil || resp.GetClusterId() != "c1" {
		t.Errorf("metadata %v, %v", resp, err)
	}
	key := registry.NewKeys("/leat").Registration(controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, 1)
	registered := func() bool {
		got, err := r.etcd.Get(ctx, key)
		return err == nil && got.Count == 1
	}
	if !registered() {
		t.Error("it is not registered")
	}

	p, err := gatewayv1.NewProducerServiceClient(r.conn).Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Send(&gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Open{Open: &gatewayv1.ProduceOpen{}}}); err != nil {
		t.Fatal(err)
	}
	if m, err := p.Recv(); err != nil || m.GetOpened() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	r.cancel()
	if m, err := p.Recv(); err != nil || m.GetDrain() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	eventually(t, "it is out of the registry before its streams end", func() bool { return !registered() })
	if err := p.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if m, err := p.Recv(); err != nil || m.GetSummary() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	if _, err := p.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("ends with %v", err)
	}
	r.stop(r.cancel, r.ended)
}

// TestDuplicateId: a second gateway with the id of one that lives is refused.
func TestDuplicateId(t *testing.T) {
	r := newRig(t)
	r.startController()
	select {
	case <-r.Ready():
	case <-testContext(t).Done():
		t.Fatal("not ready")
	}
	g, err := New(r.config(), service.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(testContext(t)); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID) {
		t.Errorf("run: %v", err)
	}
}

// TestStopBeforeTheMesh: a gateway that never became ready stops all the same.
func TestStopBeforeTheMesh(t *testing.T) {
	r := newRig(t)
	r.stop(r.cancel, r.ended)
	if err := r.controller.Close(); err != nil {
		t.Error(err)
	}
}

func TestTakenPort(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lis.Close(); err != nil {
			t.Error(err)
		}
	}()
	cfg := DefaultConfig()
	cfg.Listen = lis.Addr().String()
	var taken *service.ListenError
	if _, err := New(cfg, service.Deps{}); !errors.As(err, &taken) {
		t.Errorf("new: %v", err)
	}
}

func TestConfig(t *testing.T) {
	if cfg := DefaultConfig(); cfg.MaxSendRecords != 10_000 || cfg.Linger != 5*time.Millisecond {
		t.Errorf("defaults %+v", cfg)
	}
	for _, k := range config.Keys(&Config{}) {
		if k.Help == "" {
			t.Errorf("%s has no help", k.Name)
		}
	}
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.MaxProducers, cfg.MaxBufferedBytes, cfg.Linger, cfg.OpenTimeout = 0, 5, time.Hour, 0
	err := cfg.Validate()
	for _, key := range []string{"max.producers", "max.buffered.bytes", "linger", "open.timeout"} {
		if err == nil || !strings.Contains(err.Error(), key+":") {
			t.Errorf("%s is not named in %v", key, err)
		}
	}
	if _, err := New(cfg, service.Deps{}); err == nil {
		t.Error("it is not taken")
	}
}
