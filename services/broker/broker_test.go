package broker

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/store"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// running is a broker that runs, with a connection to it.
type running struct {
	t      *testing.T
	broker *Broker
	cancel context.CancelFunc
	result chan error
	raw    *grpc.ClientConn
	conn   brokerv1.LogServiceClient
	meta   brokerv1.MetadataServiceClient
	ident  meshv1.IdentityServiceClient
	health healthv1.HealthClient
}

func testConfig(etcd []string, ctl *brokertest.Controller, dir string) Config {
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.EtcdEndpoints = etcd
	cfg.LogDirs = []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	cfg.LeaseTTL = 30 * time.Second // a registration that is lost and made anew has the broker lead all it has
	if ctl != nil {
		cfg.ControllerAddresses = []string{ctl.Addr}
	}
	return cfg
}

func run(t *testing.T, cfg Config) *running {
	t.Helper()
	b, err := New(cfg, service.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, broker: b, cancel: cancel, result: make(chan error, 1)}
	go func() { r.result <- b.Run(ctx) }()
	conn, err := rpc.Dial(b.Addr(), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r.raw, r.conn, r.meta = conn, brokerv1.NewLogServiceClient(conn), brokerv1.NewMetadataServiceClient(conn)
	r.ident, r.health = meshv1.NewIdentityServiceClient(conn), healthv1.NewHealthClient(conn)
	t.Cleanup(func() {
		if err := errors.Join(r.stop(), conn.Close()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return r
}

func (r *running) stop() error {
	r.cancel()
	select {
	case err := <-r.result:
		r.result <- nil
		return err
	case <-time.After(brokertest.Patience):
		return errors.New("the broker does not stop")
	}
}

func (r *running) awaitReady() {
	r.t.Helper()
	select {
	case <-r.broker.Ready():
	case err := <-r.result:
		r.result <- nil
		r.t.Fatalf("the broker ended: %v", err)
	case <-time.After(brokertest.Patience):
		r.t.Fatal("the broker does not get ready")
	}
}

// produce stores one record and returns its offset.
func (r *running) produce(id topicid.ID, value string) (int64, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), brokertest.Patience)
	defer cancel()
	stream, err := r.conn.Produce(ctx)
	if err != nil {
		return 0, err
	}
	err = stream.Send(&brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Initial{Initial: &brokerv1.ProduceInitial{Handshake: rpc.LocalHandshake()}}})
	if err != nil {
		return 0, endOf(stream, err)
	}
	if _, err := stream.Recv(); err != nil {
		return 0, err
	}
	b, err := record.NewBuilder(record.DefaultBuilderOptions())
	if err != nil {
		return 0, err
	}
	if _, err := b.Append(&record.Record{Value: []byte(value)}); err != nil {
		return 0, err
	}
	batch, err := b.Build()
	if err != nil {
		return 0, err
	}
	req := &brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Batch{Batch: &brokerv1.ProduceBatch{CorrelationId: 1, TopicId: id.Bytes(), LeaderEpoch: -1}}}
	if err := rpc.Send(stream, req, rpc.NewPayload(batch)); err != nil {
		return 0, endOf(stream, err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	result := resp.GetResults().GetResults()[0]
	if result.GetError() != nil {
		return 0, rpc.FromProto(result.GetError())
	}
	return result.GetBaseOffset(), nil
}

// endOf is why a stream ended on which nothing can be sent any more.
func endOf(stream brokerv1.LogService_ProduceClient, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	_, err = stream.Recv()
	return err
}

func (r *running) awaitProduce(id topicid.ID, value string) int64 {
	r.t.Helper()
	var offset int64
	brokertest.Await(r.t, "a record is stored", func() bool {
		o, err := r.produce(id, value)
		offset = o
		return err == nil
	})
	return offset
}

func TestLifeOfABroker(t *testing.T) {
	etcd, ctl, dir := etcdtest.Start(t), brokertest.Start(t), t.TempDir()
	cfg := testConfig(etcd, ctl, dir)
	r := run(t, cfg)
	r.awaitReady()
	ident, err := r.ident.GetIdentity(t.Context(), &meshv1.GetIdentityRequest{})
	if err != nil || ident.GetKind() != "broker" || ident.GetProcess().GetId() != 1 || ident.GetClusterId() != ctl.ClusterID {
		t.Errorf("identity %v, %v", ident, err)
	}
	id := ctl.CreateTopic("t", 1, 1, nil)
	if offset := r.awaitProduce(id, "a"); offset != 0 {
		t.Errorf("the first record is at %d", offset)
	}
	meta, err := r.meta.GetMetadata(t.Context(), &brokerv1.GetMetadataRequest{Topics: []string{"t"}})
	if err != nil || len(meta.GetBrokers()) != 1 || meta.GetBrokers()[0].GetAddress() != r.broker.Addr() || meta.GetTopics()[0].GetPartitions()[0].GetLeader() != 1 {
		t.Errorf("metadata %v, %v", meta, err)
	}
	if h, err := r.health.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v", h, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	again := run(t, cfg)
	again.awaitReady()
	if v := ctl.Vouches(); len(v) != 1 || v[0].GetEndOffset() != 1 || v[0].GetLastEpoch() < 1 || v[0].GetDiskId() == "" {
		t.Errorf("vouches %v", v)
	}
	if !again.broker.store.Replicas()[0].Report.Clean {
		t.Error("the stop was not clean")
	}
	if offset := again.awaitProduce(id, "b"); offset != 1 {
		t.Errorf("the second record is at %d", offset)
	}
}

func TestStartsBeforeEverybodyElse(t *testing.T) {
	server := etcdtest.StartServer(t)
	cfg := testConfig(server.Endpoints, nil, t.TempDir())
	r := run(t, cfg)
	ident := func() *meshv1.GetIdentityResponse {
		resp, err := r.ident.GetIdentity(t.Context(), &meshv1.GetIdentityRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if got := ident(); got.GetProcess().GetIncarnation() == 0 || got.GetClusterId() != "" {
		t.Errorf("identity before there is a mesh: %v", got)
	}
	if _, err := r.produce(topicid.ID{1}, "x"); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STARTING) {
		t.Errorf("produce while starting: %v", err)
	}
	if h, err := r.health.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil || h.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health while starting: %v, %v", h, err)
	}
	select {
	case <-r.broker.Ready():
		t.Error("ready without a controller")
	default:
	}
}

// case 38
func TestServesOnWithoutControllerAndEtcd(t *testing.T) {
	server, ctl := etcdtest.StartServer(t), brokertest.Start(t)
	r := run(t, testConfig(server.Endpoints, ctl, t.TempDir()))
	r.awaitReady()
	id := ctl.CreateTopic("t", 1, 1, nil)
	r.awaitProduce(id, "a")
	server.Stop()
	ctl.Stop()
	for range 5 {
		if _, err := r.produce(id, "b"); err != nil {
			t.Fatalf("with etcd and controller away: %v", err)
		}
	}
}

func TestRefusals(t *testing.T) {
	etcd, ctl, dir := etcdtest.Start(t), brokertest.Start(t), t.TempDir()
	cfg := testConfig(etcd, ctl, dir)
	r := run(t, cfg)
	r.awaitReady()

	failsWith := func(name string, cfg Config, check func(error) bool) {
		t.Helper()
		b, err := New(cfg, service.Deps{})
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), brokertest.Patience)
			err = b.Run(ctx)
			cancel()
		}
		if err == nil || !check(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var locked *store.LockedError
	other := cfg
	other.NodeID = 2
	failsWith("the same folder", other, func(err error) bool { return errors.As(err, &locked) && strings.Contains(err.Error(), dir) })
	sameID := testConfig(etcd, ctl, t.TempDir())
	failsWith("the same id", sameID, func(err error) bool { return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID) })
	taken := testConfig(etcd, ctl, t.TempDir())
	taken.Listen = r.broker.Addr()
	_, port, err := net.SplitHostPort(r.broker.Addr())
	if err != nil {
		t.Fatal(err)
	}
	failsWith("the same port", taken, func(err error) bool {
		return strings.Contains(err.Error(), port) && strings.Contains(err.Error(), "--listen")
	})
	bad := testConfig(etcd, ctl, t.TempDir())
	bad.NodeID, bad.ProduceMaxInFlight, bad.ReserveBytes, bad.CleanerBufferBytes = 0, 0, -2, 1
	failsWith("configuration", bad, func(err error) bool {
		return strings.Contains(err.Error(), "node.id") && strings.Contains(err.Error(), "produce.max.in.flight.batches") &&
			strings.Contains(err.Error(), "log.dir.reserve.bytes") && strings.Contains(err.Error(), "log.cleaner.dedupe.buffer.size")
	})

	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	strange := brokertest.Start(t)
	strange.ClusterID = "BBBBBBBBBBBBBBBBBBBBBB"
	failsWith("another mesh's disks", testConfig(etcdtest.Start(t), strange, dir), func(err error) bool {
		return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER)
	})
	refused := testConfig(etcd, ctl, t.TempDir())
	ctl.Refuse(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, "a newer life is on record"))
	failsWith("an earlier life", refused, func(err error) bool {
		return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION)
	})
}
