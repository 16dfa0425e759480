package registry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

const (
	patience = 30 * time.Second
	broker   = controllerv1.ServiceKind_SERVICE_KIND_BROKER
	prefix   = "/leat"
	// steady is a lease that outlives a machine that stands still for a while, and is
	// renewed often enough for a test to see that one was lost.
	steady = 6 * time.Second
)

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

func newClient(t *testing.T, endpoints []string) *clientv3.Client {
	t.Helper()
	c, err := NewEtcd(endpoints, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// listen serves an identity until the test or stop ends it.
func listen(t *testing.T, kind controllerv1.ServiceKind, id int32, incarnation uint64) (addr string, stop func()) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := rpc.NewServer(rpc.ServerConfig{Identity: func() *meshv1.GetIdentityResponse {
		return &meshv1.GetIdentityResponse{Kind: KindName(kind), Process: &typev1.Process{Id: id, Incarnation: incarnation}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.CompareAndSwap(false, true) {
			s.Stop()
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return lis.Addr().String(), stop
}

func registrarConfig(client *clientv3.Client, incarnation uint64, addr string) RegistrarConfig {
	return RegistrarConfig{
		Client: client, Keys: NewKeys(prefix), Kind: broker, Process: &typev1.Process{Id: 1, Incarnation: incarnation},
		Address: addr, TTL: steady, Prober: NewProber(rpc.DialConfig{}), Logger: slog.New(slog.DiscardHandler),
	}
}

// run runs something until the test or stop ends it.
func run(t *testing.T, f func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	var once atomic.Bool
	var result error
	stop = func() error {
		if once.CompareAndSwap(false, true) {
			cancel()
			result = <-ended
		}
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// leave puts a registration as a process would leave it that has crashed: under a
// lease that nobody renews.
func leave(t *testing.T, c *clientv3.Client, incarnation uint64, addr string, ttl int64) {
	t.Helper()
	value, err := proto.Marshal(&storagev1.RegistrationRecord{FormatVersion: 1, Process: &storagev1.ProcessRef{Id: 1, Incarnation: incarnation}, Address: addr})
	if err != nil {
		t.Fatal(err)
	}
	putLeased(t, c, NewKeys(prefix).Registration(broker, 1), string(value), ttl)
}

// putLeased puts a key under a lease of some seconds that nobody renews. A lease that
// has run out before it was used is taken again.
func putLeased(t *testing.T, c *clientv3.Client, key, value string, ttl int64) {
	t.Helper()
	eventually(t, key+" is there under a lease", func() bool {
		l, err := c.Grant(t.Context(), ttl)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Put(t.Context(), key, value, clientv3.WithLease(l.ID))
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func holder(t *testing.T, c *clientv3.Client) uint64 {
	t.Helper()
	got, err := c.Get(t.Context(), NewKeys(prefix).Registration(broker, 1))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) == 0 {
		return 0
	}
	var r storagev1.RegistrationRecord
	if err := proto.Unmarshal(got.Kvs[0].Value, &r); err != nil {
		t.Fatal(err)
	}
	return r.GetProcess().GetIncarnation()
}

func TestRegistrationComesAndGoes(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, broker, 1, 11)
	r := NewRegistrar(registrarConfig(c, 11, addr))
	stop := run(t, r.Run)
	first, err := r.WaitRegistered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if holder(t, c) != 11 || r.Revision() != first || r.FirstRevision() != first {
		t.Fatalf("registered at %d, %d", first, r.Revision())
	}
	// A lease that is lost is replaced, and the key is younger then.
	changed := r.Changed()
	if _, err := c.Delete(t.Context(), NewKeys(prefix).Registration(broker, 1)); err != nil {
		t.Fatal(err)
	}
	<-changed
	eventually(t, "registered again", func() bool { return r.Revision() > first })
	if r.FirstRevision() != first {
		t.Error("the first revision moved")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if holder(t, c) != 0 {
		t.Error("the key outlives a clean stop")
	}
}

func TestDeadPredecessorIsRemovedAtOnce(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, broker, 1, 12)
	gone, stopGone := listen(t, broker, 1, 10)
	stopGone()
	for name, before := range map[string]string{"its port refuses": gone, "its port is the newcomer's": addr} {
		leave(t, c, 10, before, 3600)
		r := NewRegistrar(registrarConfig(c, 12, addr))
		stop := run(t, r.Run)
		if _, err := r.WaitRegistered(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if holder(t, c) != 12 {
			t.Errorf("%s: held by %d", name, holder(t, c))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestLivingPredecessorRefusesTheNewcomer(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t))
	old, _ := listen(t, broker, 1, 10)
	addr, _ := listen(t, broker, 1, 12)
	leave(t, c, 10, old, 3600)
	err := NewRegistrar(registrarConfig(c, 12, addr)).Run(t.Context())
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID) || !strings.Contains(err.Error(), old) {
		t.Fatalf("got %v", err)
	}
	if holder(t, c) != 10 {
		t.Errorf("held by %d", holder(t, c))
	}
}

func TestSilentPredecessorIsWaitedFor(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t))
	// It takes connections and says nothing, as a stopped process does.
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	leave(t, c, 10, lis.Addr().String(), 3)
	addr, _ := listen(t, broker, 1, 12)
	r := NewRegistrar(registrarConfig(c, 12, addr))
	run(t, r.Run)
	if _, err := r.WaitRegistered(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(t.Context(), NewKeys(prefix).Registration(broker, 1))
	if err != nil || len(got.Kvs) != 1 || got.Kvs[0].CreateRevision != r.Revision() {
		t.Fatalf("the key is not the newcomer's own: %v, %v", got, err)
	}
}

func TestUnhealthyProcessLetsItsLeaseRunOut(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, broker, 1, 11)
	var sick atomic.Bool
	cfg := registrarConfig(c, 11, addr)
	cfg.TTL = time.Second // the test waits for it to run out
	cfg.Healthy = func() bool { return !sick.Load() }
	r := NewRegistrar(cfg)
	run(t, r.Run)
	if _, err := r.WaitRegistered(t.Context()); err != nil {
		t.Fatal(err)
	}
	sick.Store(true)
	eventually(t, "the key is gone", func() bool { return holder(t, c) == 0 })
	sick.Store(false)
	eventually(t, "the key is back", func() bool { return holder(t, c) == 11 })
}

func TestNewerFormatStopsTheRegistrar(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t))
	value, err := proto.Marshal(&storagev1.RegistrationRecord{FormatVersion: 7})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(t.Context(), NewKeys(prefix).Registration(broker, 1), string(value)); err != nil {
		t.Fatal(err)
	}
	var format *FormatError
	if err := NewRegistrar(registrarConfig(c, 1, "127.0.0.1:1")).Run(t.Context()); !errors.As(err, &format) {
		t.Fatalf("got %v", err)
	}
}

func TestEtcdComesLater(t *testing.T) {
	t.Parallel()
	s := etcdtest.StartServer(t)
	s.Stop()
	c := newClient(t, s.Endpoints)
	addr, _ := listen(t, broker, 1, 11)
	r := NewRegistrar(registrarConfig(c, 11, addr))
	run(t, r.Run)
	s.Restart()
	if _, err := r.WaitRegistered(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	s := etcdtest.StartServer(t)
	c := newClient(t, s.Endpoints)
	keys := NewKeys(prefix)
	put := func(id int32, r *storagev1.RegistrationRecord) {
		v, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(t.Context(), keys.Registration(controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, id), string(v)); err != nil {
			t.Fatal(err)
		}
	}
	put(1, &storagev1.RegistrationRecord{FormatVersion: 1, Address: "a:1"})
	put(2, &storagev1.RegistrationRecord{FormatVersion: 2, Address: "newer:1"})
	got, err := Discovery(c, keys, []string{"s:1", "a:1"})(t.Context())
	if err != nil || fmt.Sprint(got) != "[a:1 s:1]" {
		t.Fatalf("got %v, %v", got, err)
	}
	s.Stop()
	if got, err := Discovery(c, keys, []string{"s:1"})(t.Context()); err != nil || fmt.Sprint(got) != "[s:1]" {
		t.Errorf("without etcd: %v, %v", got, err)
	}
	if _, err := Discovery(c, keys, nil)(t.Context()); err == nil {
		t.Error("without etcd and static addresses: no error")
	}
}

func TestKeysRoundTrip(t *testing.T) {
	t.Parallel()
	k := NewKeys("/leat/")
	id, err := topicid.New(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Key{
		k.Cluster():                {Type: KeyCluster},
		k.Election():               {Type: KeyElection},
		k.ProducerIDs():            {Type: KeyProducerIDs},
		k.Registration(broker, 7):  {Type: KeyRegistration, Kind: broker, ID: 7},
		k.Broker(3):                {Type: KeyBroker, ID: 3},
		k.Topic(id):                {Type: KeyTopic, Topic: id},
		k.TopicName("a.b-c_D"):     {Type: KeyTopicName, Name: "a.b-c_D"},
		k.Partition(id, 12):        {Type: KeyPartition, Topic: id, ID: 12},
		k.Deletion(id):             {Type: KeyDeletion, Topic: id},
		k.Reassignment("p-1_x"):    {Type: KeyReassignment, Name: "p-1_x"},
		"/leat/reassignments/":     {},
		"/leat/of-the-future/1":    {},
		"/leat/brokers/x":          {},
		"/leat/brokers/-1":         {},
		"/leat/topics/00":          {},
		"/leat/registrations/no/1": {},
		"/leat/cluster/more":       {},
		"/other/cluster":           {},
	} {
		if got := k.Parse(name); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if !strings.HasPrefix(name, "/other") && !strings.HasPrefix(name, k.Prefix()) {
			t.Errorf("%s lies outside %s", name, k.Prefix())
		}
	}
}
