package coordinator

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take before a test gives up.
const patience = 30 * time.Second

// running is a coordinator that runs over a made-up mesh, with a connection.
type running struct {
	t      *testing.T
	c      *Coordinator
	groups coordinatorv1.GroupServiceClient
	ident  meshv1.IdentityServiceClient
	health healthv1.HealthClient
	stop   func() error
}

func run(t *testing.T, etcd []string, m *fakeMesh, change ...func(*Coordinator)) *running {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.EtcdEndpoints = etcd
	cfg.LeaseTTL = time.Minute // no test waits for it to run out, and a machine that stands still must not let it
	cfg.ControllerAddresses = []string{m.addr}
	c, err := New(cfg, service.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(c)
	}
	conn, err := rpc.Dial(c.Addr(), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { result <- c.Run(ctx) })
	wg.Go(func() { m.follow(c.registrar, c.process, c.Addr(), done) })
	r := &running{
		t: t, c: c, groups: coordinatorv1.NewGroupServiceClient(conn),
		ident: meshv1.NewIdentityServiceClient(conn), health: healthv1.NewHealthClient(conn),
	}
	r.stop = sync.OnceValue(func() error {
		cancel()
		err := <-result
		close(done)
		wg.Wait()
		conn.Close()
		return err
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("the coordinator ended with %v", err)
		}
	})
	select {
	case <-c.Ready():
	case <-time.After(patience):
		t.Fatal("the coordinator does not get ready")
	}
	return r
}

// patiently repeats a call while its error says to.
func patiently[R any](t *testing.T, call func(ctx context.Context) (R, error)) R {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := call(ctx)
		if err == nil {
			return r
		}
		if !rpc.Retryable(err) || ctx.Err() != nil {
			t.Fatal(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (r *running) commit(next int64) {
	r.t.Helper()
	resp := patiently(r.t, func(ctx context.Context) (*coordinatorv1.CommitOffsetsResponse, error) {
		return r.groups.CommitOffsets(ctx, &coordinatorv1.CommitOffsetsRequest{Group: "g", Offsets: []*coordinatorv1.OffsetCommit{
			{TopicId: userID[:], Partition: 1, NextOffset: next, LeaderEpoch: -1},
		}})
	})
	if len(resp.GetPartitionErrors()) > 0 {
		r.t.Fatalf("the commit was refused: %v", resp)
	}
}

func (r *running) offset() int64 {
	r.t.Helper()
	resp := patiently(r.t, func(ctx context.Context) (*coordinatorv1.FetchOffsetsResponse, error) {
		return r.groups.FetchOffsets(ctx, &coordinatorv1.FetchOffsetsRequest{Group: "g"})
	})
	if len(resp.GetOffsets()) != 1 {
		r.t.Fatalf("the offsets are %v, want one", resp)
	}
	return resp.GetOffsets()[0].GetNextOffset()
}

func TestCommitsOutliveTheCoordinator(t *testing.T) {
	etcd := etcdtest.Start(t)
	m := startMesh(t)
	first := run(t, etcd, m)
	id, err := first.ident.GetIdentity(t.Context(), &meshv1.GetIdentityRequest{})
	if err != nil || id.GetKind() != "coordinator" || id.GetProcess().GetIncarnation() != first.c.process.GetIncarnation() {
		t.Fatalf("it says of itself %v (%v)", id, err)
	}
	health, err := first.health.Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("its health is %v (%v)", health, err)
	}
	// The internal topic is created at the first request of a group.
	first.commit(41)
	first.commit(42)
	if got := first.offset(); got != 42 {
		t.Fatalf("the offset is %d, want 42", got)
	}
	if m.ensured == 0 {
		t.Fatal("nobody asked for the internal topic")
	}
	if err := first.stop(); err != nil {
		t.Fatalf("the coordinator ended with %v", err)
	}
	next := run(t, etcd, m)
	if got := next.offset(); got != 42 {
		t.Fatalf("after a restart the offset is %d, want 42", got)
	}
	next.commit(50)
	appends := m.log.Appends()
	if last := appends[len(appends)-1]; last.ShardEpoch <= appends[0].ShardEpoch {
		t.Fatalf("the appends were fenced %+v, want a higher shard epoch after the restart", appends)
	}
}

func TestStopGivesTheRegistrationBack(t *testing.T) {
	etcd := etcdtest.Start(t)
	m := startMesh(t)
	r := run(t, etcd, m)
	client, err := registry.NewEtcd(etcd, "", r.c.logger)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	key := r.c.keys().Registration(kind, 1)
	if got, err := client.Get(t.Context(), key); err != nil || got.Count != 1 {
		t.Fatalf("the registration is %v (%v)", got, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	// The lease outlasts the wait, so that only giving it back removes the key. That is
	// under way at the latest: the coordinator waits for the answer for a while only.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for {
		got, err := client.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if got.Count == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("after the stop the registration is %v", got)
		}
	}
}

func TestSettings(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"group.consumer.session.timeout.ms": "1", "group.consumer.max.size": "0",
		"offsets.commit.timeout.ms": "0", "group.stream.max.members": "-1", "node.id": "0",
	} {
		cfg := DefaultConfig()
		cfg.Listen = "127.0.0.1:0"
		if err := config.Set(&cfg, key, value); err != nil {
			t.Fatal(err)
		}
		if _, err := New(cfg, service.Deps{}); err == nil {
			t.Fatalf("%s=%s was accepted", key, value)
		}
	}
	if cfg.core().SessionTimeout != 15*time.Second || cfg.core().RebalanceTimeout != 15*time.Minute || cfg.core().JoinDelay != 100*time.Millisecond {
		t.Fatalf("the defaults are %+v", cfg.core())
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	cfg := DefaultConfig()
	cfg.Listen = lis.Addr().String()
	_, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg, service.Deps{}); err == nil || !strings.Contains(err.Error(), port) {
		t.Fatalf("a taken port gave %v", err)
	}
}

func TestBeforeItIsReady(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.EtcdEndpoints = []string{"127.0.0.1:1"} // nobody is there yet
	c, err := New(cfg, service.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	go func() { result <- c.Run(ctx) }()
	conn, err := rpc.Dial(c.Addr(), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = coordinatorv1.NewGroupServiceClient(conn).FetchOffsets(t.Context(), &coordinatorv1.FetchOffsetsRequest{Group: "g"})
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STARTING) {
		t.Errorf("before it is registered it answers %v", err)
	}
	cancel()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}
