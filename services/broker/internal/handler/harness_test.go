package handler

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"

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
	"github.com/leat-io/leat/services/broker/internal/producerid"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

const brokerID = 1

// harness is a broker without a registration key: disks in memory, replicas by
// the metadata of a made-up controller, handlers on loopback.
type harness struct {
	t        testing.TB
	ctl      *brokertest.Controller
	fs       vfs.FS
	store    *store.Store
	manager  *replica.Manager
	registry *prometheus.Registry
	watcher  *metadata.Watcher
	client   brokerv1.LogServiceClient

	producerIDs *producerid.Pool
	addr        string
	stop        func(clean bool)
}

type harnessOptions struct {
	fs          vfs.FS
	incarnation uint64
	tracer      trace.Tracer
	maxInFlight int
	bootID      string
	fetchMemory int64
	diskTimeout time.Duration
	dirs        []string
	space       store.Space
	upkeep      replica.Upkeep
	openFiles   int
	logger      *slog.Logger
	// noCheckpoints leaves marks and recovery points alone, which sync logs too.
	noCheckpoints bool
}

// start runs a broker over a controller until the test ends or stop is called.
func start(t testing.TB, ctl *brokertest.Controller, o harnessOptions) *harness {
	t.Helper()
	if o.fs == nil {
		o.fs = memfs.New()
	}
	if o.dirs == nil {
		o.dirs = []string{"/disk1", "/disk2"}
	}
	if o.incarnation == 0 {
		o.incarnation = 7
	}
	if o.maxInFlight == 0 {
		o.maxInFlight = DefaultMaxInFlight
	}
	h := &harness{t: t, ctl: ctl, fs: o.fs}
	self := &typev1.Process{Id: brokerID, Incarnation: o.incarnation}
	var err error
	h.store, err = store.Open(store.Options{FS: o.fs, Dirs: o.dirs, BrokerID: brokerID, Incarnation: o.incarnation, BootID: o.bootID, Space: o.space, OpenFiles: o.openFiles, Logger: o.logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	pool := rpc.NewConnPool(rpc.DialConfig{})
	h.watcher = metadata.NewWatcher(metadata.Options{Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: self, Discover: ctl.Discover, Pool: pool, Logger: discard()})
	controllers := metadata.NewControllers(metadata.ControllersOptions{Watcher: h.watcher, Discover: ctl.Discover, Pool: pool, Logger: discard()})
	h.registry = prometheus.NewRegistry()
	metrics, err := replica.NewMetrics(h.registry)
	if err != nil {
		t.Fatal(err)
	}
	marks, points := 20*time.Millisecond, 50*time.Millisecond
	if o.noCheckpoints {
		marks, points = time.Hour, time.Hour
	}
	h.manager = replica.NewManager(replica.Config{
		Self: partition.Replica{Broker: brokerID, Incarnation: o.incarnation}, Store: h.store, Logger: cmp.Or(o.logger, discard()), Upkeep: o.upkeep, Metrics: metrics, Tracer: o.tracer,
		WatermarkInterval: marks, RecoveryInterval: points, DiskTimeout: cmp.Or(o.diskTimeout, time.Minute), CreateParallelism: 4,
		Report: func(ctx context.Context, vouches []store.Vouch) (metadata.Position, error) {
			req := &controllerv1.ReportReplicasRequest{Broker: self}
			for _, v := range vouches {
				verdict := controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT
				if v.Verdict != store.Intact {
					verdict = controllerv1.ReplicaVerdict_REPLICA_VERDICT_CORRUPT
				}
				req.Vouches = append(req.Vouches, &controllerv1.ReplicaVouch{DiskId: v.DiskID, TopicId: v.Key.Topic.Bytes(), Partition: v.Key.Partition, LastEpoch: v.LastEpoch, EndOffset: v.End, Verdict: verdict})
			}
			resp, err := controllers.ReportReplicas(ctx, req)
			return metadata.PositionOf(resp.GetPosition()), err
		},
		Confirm: func(ctx context.Context, ids [][]byte) error {
			_, err := controllers.ConfirmDeletion(ctx, &controllerv1.ConfirmDeletionRequest{Broker: self, TopicIds: ids})
			return err
		},
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	handlers := New(Config{
		Broker: self, Logger: discard(), MaxInFlight: o.maxInFlight, MaxPartitions: 100, PartitionWait: 100 * time.Millisecond, MaxFetchBytes: 1 << 20, FetchMemory: cmp.Or(o.fetchMemory, 256<<20), MaxBatchBytes: rpc.MaxMessageBytes - rpc.MessageOverhead,
		NextProducerID:  func(ctx context.Context) (int64, *rpc.Error) { return h.producerIDs.Next(ctx) },
		ValidateRecords: true, MaxDecodedBytes: 16 << 20, Draining: server.Draining(), Position: func() metadata.Position { return h.watcher.Image().Position() },
	})
	brokerv1.RegisterLogServiceServer(server, handlers)
	brokerv1.RegisterHealthStreamServiceServer(server, handlers)
	h.producerIDs = producerid.New(producerid.Config{Logger: discard(), Allocate: func(ctx context.Context) (producerid.Block, error) {
		resp, err := controllers.AllocateProducerIds(ctx, &controllerv1.AllocateProducerIdsRequest{Process: self})
		return producerid.Block{First: resp.GetFirstProducerId(), Count: resp.GetCount()}, err
	}})
	loops := newLoops()
	loops.Go(func() error { return h.producerIDs.Run(ctx) })
	loops.Go(func() error { return h.watcher.Run(ctx) })
	loops.Go(func() error { return server.Serve(lis) })
	if err := h.watcher.WaitForRevision(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := h.store.Adopt(ctl.ClusterID, expected(h.watcher.Image())); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.RegisterBroker(ctx, &controllerv1.RegisterBrokerRequest{Broker: self, Address: lis.Addr().String(), Vouches: vouches(h)}); err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the metadata shows the broker", func() bool { return h.watcher.Image().Broker(brokerID).GetBroker().GetIncarnation() == o.incarnation })
	loops.Go(func() error { return h.manager.Run(ctx) })
	h.manager.Apply(h.watcher.Image())
	handlers.Open(h.manager)
	loops.Go(func() error {
		for {
			image, changed := h.watcher.Watch()
			h.manager.Apply(image)
			select {
			case <-changed:
			case <-h.manager.Again():
			case <-ctx.Done():
				return nil
			}
		}
	})
	conn, err := rpc.Dial(lis.Addr().String(), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	h.client, h.addr = brokerv1.NewLogServiceClient(conn), lis.Addr().String()
	stopped := false
	h.stop = func(clean bool) {
		if stopped {
			return
		}
		stopped = true
		server.Stop()
		handlers.Wait()
		stopCtx, stopCancel := context.WithTimeout(context.WithoutCancel(ctx), brokertest.Patience)
		defer stopCancel()
		var err error
		if clean {
			err = h.manager.Stop(stopCtx)
		}
		cancel()
		err = errors.Join(err, loops.Wait(), conn.Close(), pool.Close())
		if err != nil {
			t.Errorf("stop: %v", err)
		}
		if clean {
			if err := h.store.Close(); err != nil {
				t.Errorf("close the store: %v", err)
			}
		}
	}
	t.Cleanup(func() { h.stop(false) })
	return h
}

func expected(image *metadata.Image) []store.Key {
	var keys []store.Key
	for _, t := range image.Topics() {
		for _, p := range t.Partitions() {
			if slices.Contains(p.GetReplicas(), brokerID) {
				keys = append(keys, store.Key{Topic: t.ID, Partition: p.GetPartition()})
			}
		}
	}
	return keys
}

func vouches(h *harness) []*controllerv1.ReplicaVouch {
	var all []*controllerv1.ReplicaVouch
	for _, v := range h.store.Vouches(nil) {
		verdict := controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT
		if v.Verdict != store.Intact {
			verdict = controllerv1.ReplicaVerdict_REPLICA_VERDICT_CORRUPT
		}
		all = append(all, &controllerv1.ReplicaVouch{TopicId: v.Key.Topic.Bytes(), Partition: v.Key.Partition, Verdict: verdict})
	}
	return all
}

// topic makes a topic and waits until its partitions are led here.
func (h *harness) topic(name string, partitions int32, configs map[string]string) topicid.ID {
	h.t.Helper()
	id := h.ctl.CreateTopic(name, brokerID, partitions, configs)
	for n := range partitions {
		h.awaitLeader(id, n)
	}
	return id
}

func (h *harness) awaitLeader(id topicid.ID, n int32) {
	h.t.Helper()
	brokertest.Await(h.t, "the partition is led", func() bool {
		r, err := h.manager.Lookup(id.Bytes(), n)
		return err == nil && r.Describe().GetLeads()
	})
}

// producer is an open produce stream.
type producer struct {
	t      testing.TB
	stream brokerv1.LogService_ProduceClient
	next   int64
	got    map[int64]*brokerv1.ProduceResult
}

func (h *harness) producer() *producer {
	h.t.Helper()
	stream, err := h.client.Produce(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	err = stream.Send(&brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Initial{Initial: &brokerv1.ProduceInitial{Handshake: rpc.LocalHandshake(), ClientId: "test"}}})
	if err != nil {
		h.t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || resp.GetInitial() == nil {
		h.t.Fatalf("initial answered with %v, %v", resp, err)
	}
	return &producer{t: h.t, stream: stream, got: map[int64]*brokerv1.ProduceResult{}}
}

// send sends one encoded batch and returns its correlation id.
func (p *producer) send(id topicid.ID, n int32, batch []byte, change func(*brokerv1.ProduceBatch)) int64 {
	p.t.Helper()
	p.next++
	b := &brokerv1.ProduceBatch{CorrelationId: p.next, TopicId: id.Bytes(), Partition: n, LeaderEpoch: -1, Acks: typev1.Acks_ACKS_ALL, Timeout: durationpb.New(10 * time.Second)}
	if change != nil {
		change(b)
	}
	err := rpc.Send(p.stream, &brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Batch{Batch: b}}, rpc.NewPayload(batch))
	if err != nil {
		p.t.Fatal(err)
	}
	return p.next
}

// result waits for the answer to one batch.
func (p *producer) result(correlation int64) *brokerv1.ProduceResult {
	p.t.Helper()
	for p.got[correlation] == nil {
		resp, err := p.stream.Recv()
		if err != nil {
			p.t.Fatalf("while waiting for the answer to batch %d: %v", correlation, err)
		}
		for _, r := range resp.GetResults().GetResults() {
			if p.got[r.GetCorrelationId()] != nil {
				p.t.Fatalf("batch %d was answered twice", r.GetCorrelationId())
			}
			p.got[r.GetCorrelationId()] = r
		}
	}
	return p.got[correlation]
}

func (p *producer) mustStore(id topicid.ID, n int32, values ...string) int64 {
	p.t.Helper()
	r := p.result(p.send(id, n, encode(p.t, values...), nil))
	if r.GetError() != nil {
		p.t.Fatalf("batch refused: %v", r.GetError())
	}
	return r.GetBaseOffset()
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

// fetcher is an open fetch stream.
type fetcher struct {
	t      testing.TB
	stream brokerv1.LogService_FetchClient
}

func (h *harness) fetcher(credit int64, maxResponse int32) *fetcher {
	h.t.Helper()
	stream, err := h.client.Fetch(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	err = stream.Send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Initial{Initial: &brokerv1.FetchInitial{
		Handshake: rpc.LocalHandshake(), ClientId: "test", CreditBytes: credit, MaxResponseBytes: maxResponse,
	}}})
	if err != nil {
		h.t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || resp.GetInitial() == nil {
		h.t.Fatalf("initial answered with %v, %v", resp, err)
	}
	return &fetcher{t: h.t, stream: stream}
}

func (f *fetcher) add(fetchID int64, id topicid.ID, n int32, offset int64) {
	f.t.Helper()
	f.addFull(&brokerv1.FetchPartition{FetchId: fetchID, TopicId: id.Bytes(), Partition: n, FetchOffset: offset, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, SeenVisibleEnd: -1})
}

func (f *fetcher) addFull(p *brokerv1.FetchPartition) {
	f.t.Helper()
	f.send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Update{Update: &brokerv1.FetchUpdate{Add: []*brokerv1.FetchPartition{p}}}})
}

func (f *fetcher) credit(bytes int64) {
	f.t.Helper()
	f.send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Credit{Credit: &brokerv1.FetchCredit{Bytes: bytes}}})
}

func (f *fetcher) send(req *brokerv1.FetchRequest) {
	f.t.Helper()
	if err := f.stream.Send(req); err != nil {
		f.t.Fatal(err)
	}
}

// recv takes the next message with its records decoded to their values.
func (f *fetcher) recv() (*brokerv1.FetchResponse, []string) {
	f.t.Helper()
	var resp brokerv1.FetchResponse
	payload, err := rpc.Recv(f.stream, &resp)
	if err != nil {
		f.t.Fatal(err)
	}
	defer payload.Free()
	var values []string
	data := payload.Bytes()
	if got, want := int64(len(data)), resp.GetBatches().GetCreditCost(); got != want {
		f.t.Fatalf("%d bytes of records cost %d", got, want)
	}
	for len(data) > 0 {
		batch, rest, err := record.NextBatch(data)
		if err != nil {
			f.t.Fatal(err)
		}
		if _, err := record.Validate([][]byte{batch}, record.ValidateOptions{}); err != nil {
			f.t.Fatal(err)
		}
		records, err := record.Decode(batch, 16<<20)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, r := range records {
			values = append(values, string(r.Value))
		}
		data = rest
	}
	return &resp, values
}

// values takes messages until n records have come.
func (f *fetcher) values(n int) []string {
	f.t.Helper()
	var all []string
	for len(all) < n {
		resp, values := f.recv()
		if e := resp.GetPartitionError(); e != nil {
			f.t.Fatalf("partition error: %v", e)
		}
		all = append(all, values...)
	}
	return all
}

// partitionError takes messages until an asking ends.
func (f *fetcher) partitionError() (int64, *rpc.Error) {
	f.t.Helper()
	for {
		resp, _ := f.recv()
		if e := resp.GetPartitionError(); e != nil {
			return e.GetFetchId(), rpc.FromProto(e.GetError())
		}
	}
}
