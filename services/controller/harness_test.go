package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
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

// undisturbed runs a test that holds while every process runs: a broker whose key has
// gone and that says nothing for a second is fenced, and rightly so. Where this process
// has stood still meanwhile, a failure proves nothing, and the test is run anew.
func undisturbed(t *testing.T, test func(m *mesh) error) {
	t.Helper()
	for range 10 {
		stood := standstill(t)
		err := test(newMesh(t))
		if err == nil {
			return
		}
		worst := stood()
		if worst < 500*time.Millisecond {
			t.Fatal(err)
		}
		t.Logf("%v; but the test's process stood still for %v", err, worst)
	}
	t.Fatal("the machine does not run the test's process for long enough")
}

// standstill begins to watch this process; the function that it returns tells the
// longest time for which it has not run since.
func standstill(t *testing.T) func() time.Duration {
	end, ended := make(chan struct{}), make(chan struct{})
	worst := time.Duration(0)
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			now := time.Now()
			worst, last = max(worst, now.Sub(last)), now
		}
	}()
	stop := sync.OnceFunc(func() {
		close(end)
		<-ended
	})
	t.Cleanup(stop)
	return func() time.Duration {
		stop()
		return worst
	}
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

// revokeAll revokes every lease, also one that runs out meanwhile.
func (m *mesh) revokeAll(c *proc) {
	m.t.Helper()
	leases, err := c.etcd.Leases(m.ctx())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, l := range leases.Leases {
		if _, err := c.etcd.Revoke(m.ctx(), l.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			m.t.Fatal(err)
		}
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
