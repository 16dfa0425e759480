package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// mesh is brokers without clients: real stores, managers and streams, a made-up
// controller.
type mesh struct {
	t     testing.TB
	ctl   *brokertest.Controller
	nodes map[int32]*node
	o     meshOptions
}

type meshOptions struct {
	lag    time.Duration // replica.lag.time.max.ms
	window int64
	root   string // folder of the disks; empty: the root of fs
	fs     func(id int32) vfs.FS
	keep   func() int // how much a crash leaves of what was not synced, as memfs has it; nil: nothing
	tracer func(id int32) trace.Tracer
	logger *slog.Logger
	upkeep replica.Upkeep
}

// node is one life of one broker.
type node struct {
	m           *mesh
	id          int32
	incarnation uint64
	fs          vfs.FS
	store       *store.Store
	manager     *replica.Manager
	watcher     *metadata.Watcher
	fetchers    *Fetchers
	server      *Server
	grpc        *rpc.Server
	addr        string
	registry    *prometheus.Registry
	stop        func(clean bool)
	deafen      func()        // the broker hears no controller any more
	dead        chan struct{} // closed once it has stopped
}

func newMesh(t testing.TB, brokers int32, o meshOptions) *mesh {
	t.Helper()
	if o.lag == 0 {
		o.lag = time.Minute // nobody falls out of an in-sync set by being slow
	}
	if o.fs == nil {
		o.fs = func(int32) vfs.FS { return memfs.New() }
	}
	if o.logger == nil {
		o.logger = slog.New(slog.DiscardHandler)
	}
	m := &mesh{t: t, ctl: brokertest.Start(t), nodes: map[int32]*node{}, o: o}
	for id := range brokers {
		m.start(id+1, 1, o.fs(id+1))
	}
	return m
}

// start begins a life of a broker.
func (m *mesh) start(id int32, incarnation uint64, fs vfs.FS) *node {
	t := m.t
	t.Helper()
	n := &node{m: m, id: id, incarnation: incarnation, fs: fs, registry: prometheus.NewRegistry(), dead: make(chan struct{})}
	self := &typev1.Process{Id: id, Incarnation: incarnation}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	logger := m.o.logger.With("broker", id)
	var err error
	n.store, err = store.Open(store.Options{FS: fs, Dirs: []string{fmt.Sprintf("%s/broker%d", m.o.root, id)}, BrokerID: id, Incarnation: incarnation, Logger: logger, Space: store.Space{Reserve: 0}})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	pool := rpc.NewConnPool(rpc.DialConfig{})
	n.watcher = metadata.NewWatcher(metadata.Options{Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: self, Discover: m.ctl.Discover, Pool: pool, Logger: logger})
	controllers := metadata.NewControllers(metadata.ControllersOptions{Watcher: n.watcher, Discover: m.ctl.Discover, Pool: pool, Logger: logger})
	metrics, err := replica.NewMetrics(n.registry)
	must(err)
	n.fetchers = NewFetchers(FetchersConfig{Broker: self, Pool: pool, Logger: logger, Image: n.watcher.Image, Metrics: metrics, Window: m.o.window})
	var tracer trace.Tracer
	if m.o.tracer != nil {
		tracer = m.o.tracer(id)
	}
	n.manager = replica.NewManager(replica.Config{
		Self: partition.Replica{Broker: id, Incarnation: incarnation}, Store: n.store, Logger: logger, Metrics: metrics, Tracer: tracer,
		WatermarkInterval: 20 * time.Millisecond, RecoveryInterval: 50 * time.Millisecond, DiskTimeout: time.Minute, CreateParallelism: 4,
		Confirm:  func(context.Context, [][]byte) error { return nil },
		Settings: partition.Settings{LagTimeMax: m.o.lag}, Leaders: n.fetchers, ProposeISR: controllers.ProposeIsr, Upkeep: m.o.upkeep,
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	n.addr = lis.Addr().String()
	n.grpc, err = rpc.NewServer(rpc.ServerConfig{})
	must(err)
	n.server = NewServer(ServerConfig{Broker: self, Logger: logger, Draining: n.grpc.Draining(), Image: n.watcher.Image, Metrics: metrics})
	brokerv1.RegisterReplicationServiceServer(n.grpc, n.server)
	var loops sync.WaitGroup
	watching, stopWatching := context.WithCancel(ctx)
	watched := make(chan struct{})
	n.deafen = func() {
		stopWatching()
		<-watched // or it might hear of one more change
	}
	loops.Go(func() {
		defer close(watched)
		n.watcher.Run(watching)
	})
	loops.Go(func() { n.grpc.Serve(lis) })
	loops.Go(func() { n.fetchers.Run(ctx) })
	loops.Go(func() { n.manager.Run(ctx) })
	must(n.watcher.WaitForRevision(ctx, 1))
	must(n.store.Adopt(m.ctl.ClusterID, n.expected()))
	m.ctl.SetBroker(self, n.addr)
	brokertest.Await(t, "the metadata shows the broker", func() bool {
		return n.watcher.Image().Broker(id).GetBroker().GetIncarnation() == incarnation
	})
	loops.Go(func() {
		for {
			image, changed := n.watcher.Watch()
			n.manager.Apply(image)
			n.server.Open(n.manager)
			select {
			case <-changed:
			case <-n.manager.Again():
			case <-ctx.Done():
				return
			}
		}
	})
	brokertest.Await(t, "the broker serves followers", func() bool { return n.server.replicas.Load() != nil })
	stopped := false
	n.stop = func(clean bool) {
		if stopped {
			return
		}
		stopped = true
		n.grpc.Stop()
		n.server.Wait()
		n.fetchers.Close()
		stopCtx, stopCancel := context.WithTimeout(context.WithoutCancel(ctx), brokertest.Patience)
		defer stopCancel()
		if !clean {
			stopCancel() // a crash waits for nobody
		}
		err := n.manager.Stop(stopCtx)
		if !clean {
			err = nil
		}
		cancel()
		loops.Wait()
		close(n.dead)
		err = errors.Join(err, pool.Close())
		if clean {
			err = errors.Join(err, n.store.Close())
		}
		if err != nil {
			t.Errorf("stop broker %d: %v", id, err)
		}
	}
	m.nodes[id] = n
	t.Cleanup(func() { n.stop(false) })
	return n
}

func (n *node) expected() []store.Key {
	var keys []store.Key
	for _, t := range n.watcher.Image().Topics() {
		for _, p := range t.Partitions() {
			for _, b := range p.GetReplicas() {
				if b == n.id {
					keys = append(keys, store.Key{Topic: t.ID, Partition: p.GetPartition()})
				}
			}
		}
	}
	return keys
}

type controllerPartition = controllerv1.Partition

// kill ends a broker as a crash does: what was not synced is lost.
func (m *mesh) kill(id int32) {
	n := m.nodes[id]
	n.stop(false)
	if fs, ok := n.fs.(*memfs.FS); ok {
		fs.Crash(m.o.keep)
	}
}

// restart begins the next life of a broker on the same disk.
func (m *mesh) restart(id int32) *node { return m.start(id, m.nodes[id].incarnation+1, m.nodes[id].fs) }

func (n *node) replica(id topicid.ID, p int32) *replica.Replica {
	n.m.t.Helper()
	r, err := n.manager.Lookup(id.Bytes(), p)
	if err != nil {
		n.m.t.Fatalf("broker %d: %v", n.id, err)
	}
	return r
}

func (n *node) describe(id topicid.ID, p int32) *brokerv1.ReplicaDescription {
	r, err := n.manager.Lookup(id.Bytes(), p)
	if err != nil {
		return nil
	}
	return r.Describe()
}

// awaitLeads waits until a broker leads a partition and has sessions of nobody in
// particular.
func (m *mesh) awaitLeads(broker int32, id topicid.ID, p int32) {
	m.t.Helper()
	brokertest.Await(m.t, fmt.Sprintf("broker %d leads partition %d", broker, p), func() bool { return m.nodes[broker].describe(id, p).GetLeads() })
}

// produce appends one batch on a broker and waits for its answer.
func (n *node) produce(id topicid.ID, p int32, acks partition.Acks, values ...string) replica.Result {
	n.m.t.Helper()
	return <-n.begin(id, p, acks, values...)
}

// begin appends one batch and gives the channel of its answer.
func (n *node) begin(id topicid.ID, p int32, acks partition.Acks, values ...string) <-chan replica.Result {
	n.m.t.Helper()
	return n.beginWithin(brokertest.Patience, id, p, acks, values...)
}

// beginWithin is begin with a timeout of the batch.
func (n *node) beginWithin(timeout time.Duration, id topicid.ID, p int32, acks partition.Acks, values ...string) <-chan replica.Result {
	n.m.t.Helper()
	batch := encode(n.m.t, values...)
	h, err := record.ParseHeader(batch)
	if err != nil {
		n.m.t.Fatal(err)
	}
	done := make(chan replica.Result, 1)
	n.replica(id, p).Produce(&replica.Batch{
		Payload: rpc.NewPayload(batch), Header: h, Acks: acks, LeaderEpoch: -1, Timeout: timeout,
		Done: func(res replica.Result) { done <- res },
	})
	return done
}

// mustStore produces with acks=all, again where nothing was appended since the leader
// has not heard yet that enough are in sync.
func (n *node) mustStore(id topicid.ID, p int32, values ...string) int64 {
	n.m.t.Helper()
	var res replica.Result
	brokertest.Await(n.m.t, fmt.Sprintf("broker %d counts enough in sync", n.id), func() bool {
		res = n.produce(id, p, partition.AcksAll, values...)
		return !rpc.IsReason(res.Err, typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS)
	})
	if res.Err != nil {
		n.m.t.Fatalf("broker %d refused a batch: %v", n.id, res.Err)
	}
	return res.Base
}

// awaitSame waits until the logs of brokers are the same, up to an end, and committed.
func (m *mesh) awaitSame(id topicid.ID, p int32, end int64, brokers ...int32) {
	m.t.Helper()
	for _, b := range brokers {
		brokertest.Await(m.t, fmt.Sprintf("broker %d has partition %d up to %d", b, p, end), func() bool {
			d := m.nodes[b].describe(id, p)
			return d != nil && d.GetLogEndOffset() == end && d.GetHighWatermark() == end
		})
	}
	first := m.nodes[brokers[0]].logBytes(id, p)
	for _, b := range brokers[1:] {
		if other := m.nodes[b].logBytes(id, p); string(other) != string(first) {
			m.t.Errorf("the logs of brokers %d and %d differ: %d and %d bytes", brokers[0], b, len(first), len(other))
		}
	}
}

// logBytes is the whole log of a replica.
func (n *node) logBytes(id topicid.ID, p int32) []byte {
	n.m.t.Helper()
	log := n.store.Replica(store.Key{Topic: id, Partition: p}).Log
	var all []byte
	for at := log.StartOffset(); at < log.EndOffset(); {
		res, err := log.Read(at, log.EndOffset(), 1<<20, func(size int) []byte { return make([]byte, size) })
		if err != nil {
			n.m.t.Fatal(err)
		}
		all = append(all, res.Data...)
		at = res.NextOffset
	}
	return all
}

// awaitISR waits until the record has so many members in sync.
func (m *mesh) awaitISR(id topicid.ID, p int32, size int) {
	m.t.Helper()
	brokertest.Await(m.t, fmt.Sprintf("partition %d has %d replicas in sync", p, size), func() bool { return len(m.ctl.Partition(id, p).GetIsr()) == size })
}

// encode makes a batch of records with the given values.
func encode(t testing.TB, values ...string) []byte {
	t.Helper()
	b, err := record.NewBuilder(record.DefaultBuilderOptions())
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if ok, err := b.Append(&record.Record{Timestamp: int64(1000 + i), Value: []byte(v)}); err != nil || !ok {
			t.Fatalf("append to a batch: %v, %v", ok, err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}
