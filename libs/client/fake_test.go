package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// inBubble runs a test with virtual time: no test waits for a clock. Whatever the
// test starts must have ended when it returns.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// fakeNet is a network in memory.
type fakeNet struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	rate      int // bytes a second that a connection brings; 0: any
}

// slowConn brings so many bytes a second.
type slowConn struct {
	net.Conn
	rate int
}

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 16<<10)])
	<-time.After(time.Duration(n) * time.Second / time.Duration(c.rate))
	return n, err
}

func (n *fakeNet) listen(addr string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := bufconn.Listen(1 << 20)
	n.listeners[addr] = l
	return l
}

func (n *fakeNet) close(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, addr)
}

func (n *fakeNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	conn, err := l.DialContext(ctx)
	if err == nil && n.rate > 0 {
		conn = slowConn{conn, n.rate}
	}
	return conn, err
}

// fakeMesh is a mesh without disks and controllers: the brokers and coordinators
// of a test share it.
type fakeMesh struct {
	t   testing.TB
	net *fakeNet

	mu       sync.Mutex
	changed  chan struct{}
	revision int64
	topics   map[topicid.ID]*fakeTopic
	brokers  map[int32]*fakeBroker
	coords   map[int32]*fakeCoordinator
	groups   map[string]*fakeGroup
	asked    int // metadata requests
	cluster  string
	lastID   int64   // producer id handed out
	deaf     int32   // a broker that answers nothing
	listed   []int32 // leader epochs that offsets were asked for with
	mute     bool    // commits have no answer
	joined   int     // join streams opened
	together bool    // brokers that start are coordinators, too, at one address
	racks    map[int32]string
	read     map[int32]int // batches sent to readers, by broker

	// onInit may refuse to hand out a producer id; nil: it is handed out.
	onInit func(b *fakeBroker) *rpc.Error
	// onBatch may make something of a batch that has come in; nil: it is stored.
	onBatch func(b *fakeBroker, m *brokerv1.ProduceBatch, h record.Header) fault
	// onOpen may leave the opening of a produce stream unanswered; nil: it greets.
	onOpen func(b *fakeBroker) (deaf bool)
	// onTime is called after a time has been looked for; the lock is held.
	onTime func(p *fakePart)
	// onAsk may refuse a question about a group; the lock is held.
	onAsk func(group string) *rpc.Error
	// vague coordinators do not say which shards they list.
	vague bool
	// onFetch may refuse a partition that is asked for.
	onFetch func(b *fakeBroker, m *brokerv1.FetchPartition) *rpc.Error
}

// fault is what happens to a batch instead of a plain success.
type fault struct {
	err    *rpc.Error    // the answer
	store  bool          // store it all the same
	kill   bool          // end the stream instead of answering
	hold   chan struct{} // answer once this is closed
	silent bool          // never answer
}

type fakeTopic struct {
	id    topicid.ID
	name  string
	max   int32
	parts []*fakePart
}

type fakePart struct {
	leader, epoch int32
	start, end    int64
	hidden        int64 // of them, at the end: not committed yet
	batches       [][]byte
	isr, replicas []int32         // nil: the leader alone
	behind        map[int32]int64 // what a follower does not know to be committed yet, beyond hidden
	owner         int32
	shardEpoch    int64
	producers     map[int64]*modelProducer
}

func newFakeMesh(t testing.TB, brokers int) *fakeMesh {
	m := &fakeMesh{
		t: t, net: &fakeNet{listeners: make(map[string]*bufconn.Listener)}, changed: make(chan struct{}), revision: 1, cluster: "fake",
		topics: make(map[topicid.ID]*fakeTopic), brokers: make(map[int32]*fakeBroker), coords: make(map[int32]*fakeCoordinator),
		groups: make(map[string]*fakeGroup), racks: make(map[int32]string), read: make(map[int32]int),
	}
	for id := int32(1); id <= int32(brokers); id++ {
		m.startBroker(id)
	}
	t.Cleanup(m.stop)
	return m
}

// stop ends every process; tests call it before their bubble ends.
func (m *fakeMesh) stop() {
	m.mu.Lock()
	brokers, coords := m.brokers, m.coords
	m.brokers, m.coords = map[int32]*fakeBroker{}, map[int32]*fakeCoordinator{}
	m.mu.Unlock()
	for _, b := range brokers {
		b.server.Stop()
		<-b.served
	}
	for _, c := range coords {
		if c.server != nil { // else it shared a broker's
			c.server.Stop()
			<-c.served
		}
	}
}

// touch tells everybody that something has changed. The lock is held.
func (m *fakeMesh) touch() {
	m.revision++
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *fakeMesh) update(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	m.touch()
}

// requests counts the requests for metadata so far.
func (m *fakeMesh) requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// topic creates a topic whose partitions are spread over the brokers.
func (m *fakeMesh) topic(name string, partitions int, max int32) *fakeTopic {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &fakeTopic{name: name, max: max}
	copy(t.id[:], fmt.Sprintf("%-16s", name))
	for i := range partitions {
		t.parts = append(t.parts, &fakePart{leader: int32(i%max1(len(m.brokers))) + 1, epoch: 1, owner: -1})
	}
	m.topics[t.id] = t
	m.touch()
	return t
}

// end is the log end of a partition.
func (m *fakeMesh) end(t *fakeTopic, partition int32) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.parts[partition].end
}

func (p *fakePart) inSync() []int32 {
	if p.isr == nil {
		return []int32{p.leader}
	}
	return p.isr
}

func max1(n int) int { return max(n, 1) }

func (t *fakeTopic) at(partition int32) TopicPartition {
	return TopicPartition{TopicID: t.id, Partition: partition}
}

// records decodes what a partition holds.
func (m *fakeMesh) records(t *fakeTopic, partition int32) []record.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []record.Record
	for _, b := range t.parts[partition].batches {
		recs, err := record.Decode(b, 0)
		if err != nil {
			m.t.Errorf("stored batch: %v", err)
		}
		all = append(all, recs...)
	}
	return all
}

func (m *fakeMesh) client(cfg Config) *Client {
	m.t.Helper()
	if cfg.Bootstrap == nil && cfg.Source == nil {
		cfg.Bootstrap = []string{"broker-1:1"}
	}
	cfg.Conns = rpc.NewConnPool(rpc.DialConfig{Dialer: m.net.dial, TracerProvider: cfg.TracerProvider})
	c, err := New(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := errors.Join(c.Close(), cfg.Conns.Close()); err != nil {
			m.t.Error(err)
		}
	})
	return c
}

type fakeBroker struct {
	brokerv1.UnimplementedLogServiceServer
	brokerv1.UnimplementedMetadataServiceServer
	m      *fakeMesh
	id     int32
	addr   string
	server *rpc.Server
	served chan struct{}
}

func (m *fakeMesh) startBroker(id int32) *fakeBroker {
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		m.t.Fatal(err)
	}
	b := &fakeBroker{m: m, id: id, addr: fmt.Sprintf("broker-%d:1", id), server: server, served: make(chan struct{})}
	brokerv1.RegisterLogServiceServer(server, b)
	brokerv1.RegisterMetadataServiceServer(server, b)
	if m.together {
		c := &fakeCoordinator{m: m, id: id, addr: b.addr}
		coordinatorv1.RegisterGroupServiceServer(server, c)
		m.coords[id] = c
	}
	lis := m.net.listen(b.addr)
	go func() {
		defer close(b.served)
		if err := server.Serve(lis); err != nil {
			m.t.Errorf("broker %d: %v", id, err)
		}
	}()
	m.update(func() { m.brokers[id] = b })
	return b
}

// kill ends a broker at once; its partitions keep it as leader.
func (m *fakeMesh) kill(id int32) {
	m.mu.Lock()
	b := m.brokers[id]
	delete(m.brokers, id)
	m.touch()
	m.mu.Unlock()
	m.net.close(b.addr)
	b.server.Stop()
	<-b.served
}

// silence blocks while the broker answers nothing.
func (b *fakeBroker) silence(ctx context.Context) {
	b.m.mu.Lock()
	deaf := b.m.deaf == b.id
	b.m.mu.Unlock()
	if deaf {
		<-ctx.Done()
	}
}

func (b *fakeBroker) GetMetadata(ctx context.Context, req *brokerv1.GetMetadataRequest) (*brokerv1.GetMetadataResponse, error) {
	b.silence(ctx)
	m := b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if req.GetMinPosition().GetRevision() > m.revision {
		return nil, rpc.Errorf(reasonMetadataBehind, "at %d", m.revision)
	}
	resp := &brokerv1.GetMetadataResponse{Handshake: rpc.LocalHandshake(), ClusterId: m.cluster, Position: &brokerv1.MetadataPosition{Generation: 1, Revision: m.revision}}
	for id, br := range m.brokers {
		resp.Brokers = append(resp.Brokers, &brokerv1.BrokerInfo{Broker: &typev1.Process{Id: id, Incarnation: 1}, Address: br.addr, Rack: m.racks[id]})
	}
	for id, c := range m.coords {
		resp.Coordinators = append(resp.Coordinators, &brokerv1.CoordinatorInfo{Coordinator: &typev1.Process{Id: id, Incarnation: 1}, Address: c.addr})
	}
	info := func(t *fakeTopic) *brokerv1.TopicInfo {
		ti := &brokerv1.TopicInfo{Name: t.name, TopicId: t.id.Bytes(), MaxMessageBytes: t.max}
		for i, p := range t.parts {
			pi := &brokerv1.PartitionInfo{Partition: int32(i), Leader: p.leader, LeaderEpoch: p.epoch, Replicas: append(p.inSync(), p.replicas...), Isr: p.inSync()}
			if p.owner >= 0 {
				pi.ShardOwner = &brokerv1.ShardOwner{Coordinator: &typev1.Process{Id: p.owner}, ShardEpoch: p.shardEpoch}
			}
			ti.Partitions = append(ti.Partitions, pi)
		}
		return ti
	}
	for _, name := range req.Topics {
		found := &brokerv1.TopicInfo{Name: name, Error: rpc.ToProto(unknownTopic(name))}
		for _, t := range m.topics {
			if t.name == name {
				found = info(t)
			}
		}
		resp.Topics = append(resp.Topics, found)
	}
	for _, raw := range req.TopicIds {
		id := topicid.ID(raw)
		if t := m.topics[id]; t != nil {
			resp.Topics = append(resp.Topics, info(t))
		} else {
			resp.Topics = append(resp.Topics, &brokerv1.TopicInfo{Error: rpc.ToProto(unknownTopicID(id))})
		}
	}
	if req.AllTopics {
		for _, t := range m.topics {
			resp.Topics = append(resp.Topics, info(t))
		}
	}
	return resp, nil
}

// part finds a partition and checks who leads it. The lock is held.
func (b *fakeBroker) part(id []byte, n, epoch int32) (*fakePart, *rpc.Error) {
	t := b.m.topics[topicid.ID(id)]
	if t == nil {
		return nil, unknownTopicID(topicid.ID(id))
	}
	p := t.parts[n]
	switch {
	case p.leader != b.id:
		e := rpc.Errorf(reasonNotLeader, "broker %d does not lead", b.id)
		if l := b.m.brokers[p.leader]; l != nil {
			e = e.WithLeader(p.leader, l.addr, int64(p.epoch))
		}
		return nil, e
	case epoch >= 0 && epoch < p.epoch:
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH, "epoch %d, not %d", p.epoch, epoch)
	}
	return p, nil
}

// store appends a batch. The lock is held.
func (p *fakePart) store(raw []byte) int64 {
	batch := append([]byte(nil), raw...)
	h, err := record.Validate([][]byte{batch}, record.ValidateOptions{})
	if err != nil {
		panic(err)
	}
	record.PatchBaseOffset(batch, p.end)
	record.PatchPartitionLeaderEpoch(batch, p.epoch)
	base := p.end
	p.noteProducer(&h, base)
	p.end += int64(h.LastOffsetDelta) + 1
	p.batches = append(p.batches, batch)
	return base
}

func (b *fakeBroker) Produce(stream brokerv1.LogService_ProduceServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if b.m.onOpen != nil && b.m.onOpen(b) {
		<-stream.Context().Done()
		return nil
	}
	if err := stream.Send(&brokerv1.ProduceResponse{Message: &brokerv1.ProduceResponse_Initial{
		Initial: &brokerv1.ProduceInitialResponse{Handshake: rpc.LocalHandshake(), MaxInFlightBatches: 16},
	}}); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var sending sync.Mutex
	for {
		var req brokerv1.ProduceRequest
		payload, err := rpc.Recv(stream, &req)
		if err != nil {
			return nil
		}
		b.silence(stream.Context())
		if stream.Context().Err() != nil {
			return nil
		}
		res, f := b.take(req.GetBatch(), payload.Bytes())
		payload.Free()
		answer := func() {
			sending.Lock()
			defer sending.Unlock()
			// A stream that has ended needs no answer.
			_ = stream.Send(&brokerv1.ProduceResponse{Message: &brokerv1.ProduceResponse_Results{
				Results: &brokerv1.ProduceResults{Results: []*brokerv1.ProduceResult{res}},
			}})
		}
		switch {
		case f.kill:
			return rpc.Errorf(reasonUnreachable, "killed by the test")
		case f.silent, req.GetBatch().Acks == typev1.Acks_ACKS_NONE && res.Error == nil:
		case f.hold != nil:
			wg.Go(func() {
				select {
				case <-f.hold:
					answer()
				case <-stream.Context().Done():
				}
			})
		default:
			answer()
		}
	}
}

func (b *fakeBroker) take(m *brokerv1.ProduceBatch, raw []byte) (*brokerv1.ProduceResult, fault) {
	mesh := b.m
	mesh.mu.Lock()
	defer mesh.mu.Unlock()
	res := &brokerv1.ProduceResult{CorrelationId: m.CorrelationId, BaseOffset: -1, LeaderEpoch: -1}
	h, err := record.ParseHeader(raw)
	if err != nil {
		mesh.t.Errorf("batch: %v", err)
		return res, fault{}
	}
	var f fault
	if mesh.onBatch != nil {
		f = mesh.onBatch(b, m, h)
	}
	p, perr := b.part(m.TopicId, m.Partition, m.LeaderEpoch)
	if f.err == nil {
		f.err = perr
	}
	if perr == nil && (f.err == nil || f.store) && !(f.kill && !f.store) {
		base, duplicate, serr := p.checkProducer(&h)
		switch {
		case serr != nil:
			f.err = serr
		case duplicate:
			res.BaseOffset, res.LeaderEpoch = base, p.epoch
		default:
			res.BaseOffset, res.LeaderEpoch = p.store(raw), p.epoch
			mesh.touch()
		}
	}
	if f.err != nil {
		res.Error, res.BaseOffset, res.LeaderEpoch = rpc.ToProto(f.err), -1, -1
	}
	return res, f
}

func (b *fakeBroker) ListOffsets(_ context.Context, req *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	resp := &brokerv1.ListOffsetsResponse{}
	for _, q := range req.Partitions {
		r := &brokerv1.ListOffsetsResult{Offset: -1}
		p, err := b.part(q.TopicId, q.Partition, q.CurrentLeaderEpoch)
		if t := b.m.topics[topicid.ID(q.TopicId)]; req.AllowFollower && t != nil {
			p, err = t.parts[q.Partition], nil
		}
		b.m.listed = append(b.m.listed, q.CurrentLeaderEpoch)
		if err != nil {
			r.Error = rpc.ToProto(err)
		} else if r.LeaderEpoch = p.epoch; q.Spec.GetPlace() == typev1.OffsetSpec_PLACE_EARLIEST {
			r.Offset = p.start
		} else if at := q.Spec.GetTimestamp(); at != nil {
			if r.Offset = p.since(at.AsTime()); b.m.onTime != nil {
				b.m.onTime(p)
			}
		} else {
			r.Offset = p.end - p.hidden
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// since is the first offset of a batch that was made at a time or later; -1: none.
func (p *fakePart) since(at time.Time) int64 {
	for _, batch := range p.batches {
		if h, err := record.ParseHeader(batch); err == nil && h.MaxTimestamp >= at.UnixMilli() {
			return h.BaseOffset
		}
	}
	return -1
}

func (b *fakeBroker) DescribeReplicas(_ context.Context, req *brokerv1.DescribeReplicasRequest) (*brokerv1.DescribeReplicasResponse, error) {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	resp := &brokerv1.DescribeReplicasResponse{}
	for _, q := range req.Replicas {
		d := &brokerv1.ReplicaDescription{TopicId: q.TopicId, Partition: q.Partition}
		if p, err := b.part(q.TopicId, q.Partition, -1); err != nil {
			d.Error = rpc.ToProto(err)
		} else {
			d.Leads, d.LeaderEpoch, d.HighWatermark, d.LogEndOffset = true, p.epoch, p.end, p.end
		}
		resp.Replicas = append(resp.Replicas, d)
	}
	return resp, nil
}
