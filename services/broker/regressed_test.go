package broker

import (
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

func TestServesNothingOnceEtcdWentBack(t *testing.T) {
	etcd, ctl, dir := etcdtest.Start(t), brokertest.Start(t), t.TempDir()
	cfg := testConfig(etcd, ctl, dir)
	r := run(t, cfg)
	r.awaitReady()
	id := ctl.CreateTopic("t", 1, 1, nil)
	r.awaitProduce(id, "a")

	// A fetch stream that is open ends, new requests are refused.
	stream, err := r.conn.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Initial{Initial: &brokerv1.FetchInitial{Handshake: rpc.LocalHandshake()}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	ctl.Change(func(c *brokertest.Controller) { c.Regress(1, 50, 2) })
	if _, err := stream.Recv(); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED) {
		t.Errorf("an open stream ends with %v", err)
	}
	if _, err := r.produce(id, "b"); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED) || rpc.Retryable(err) {
		t.Errorf("produce: %v", err)
	}
	if _, err := r.conn.InitProducerId(t.Context(), &brokerv1.InitProducerIdRequest{}); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED) {
		t.Errorf("a producer id: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	// Neither does the next life of the process, and it touches nothing.
	again := run(t, cfg)
	brokertest.Await(t, "the start is refused", func() bool {
		_, err := again.produce(id, "c")
		return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED)
	})
	if h, err := again.health.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil || h.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health %v, %v", h, err)
	}
	select {
	case <-again.broker.Ready():
		t.Error("ready over metadata that went back")
	case <-time.After(50 * time.Millisecond):
	}
	// The operator restores the mesh: a new generation.
	ctl.Change(func(c *brokertest.Controller) { c.Regress(2, 60, 2) })
	again.awaitReady()
	if offset := again.awaitProduce(id, "d"); offset != 1 {
		t.Errorf("the first record after the restore is at %d", offset)
	}
}

func TestServesAgainOnceARunningMeshIsRestored(t *testing.T) {
	ctl := brokertest.Start(t)
	r := run(t, testConfig(etcdtest.Start(t), ctl, t.TempDir()))
	r.awaitReady()
	id := ctl.CreateTopic("t", 1, 1, nil)
	r.awaitProduce(id, "a")
	ctl.Change(func(c *brokertest.Controller) { c.Regress(1, 50, 2) })
	brokertest.Await(t, "it serves nothing", func() bool {
		_, err := r.produce(id, "b")
		return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED)
	})
	ctl.Change(func(c *brokertest.Controller) { c.Regress(2, 60, 2) })
	if offset := r.awaitProduce(id, "c"); offset < 1 {
		t.Errorf("a record after the restore is at %d", offset)
	}
}
