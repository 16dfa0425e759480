package coordinator

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/coordinator/internal/logtest"
	"github.com/leat-io/leat/services/coordinator/internal/offsets"
)

// fakeMesh is the only controller and the only broker of a made-up mesh, in one
// server on loopback. Its internal topic has one shard, kept in a logtest.Log.
type fakeMesh struct {
	controllerv1.UnimplementedMetadataServiceServer
	controllerv1.UnimplementedControllerServiceServer
	brokerv1.UnimplementedLogServiceServer

	addr string
	log  logtest.Log
	// What it shows of others, set by change.
	noBroker bool // its broker's address is one where nobody listens
	fenced   bool // its broker is fenced
	other    *controllerv1.Registration

	mu       sync.Mutex
	asked    []*typev1.OffsetSpec // of each ListOffsets, the first
	revision int64
	changed  chan struct{}
	topics   []*controllerv1.Topic
	owner    *typev1.Process
	ownerReg *controllerv1.Registration
	epoch    int64
	ensured  int
	batches  [][]byte // of the shard, with their offsets set
	end      int64
}

var (
	internalID = topicid.ID{9}
	userID     = topicid.ID{1}
)

func startMesh(t *testing.T) *fakeMesh {
	t.Helper()
	m := &fakeMesh{revision: 1, changed: make(chan struct{})}
	m.topics = []*controllerv1.Topic{{TopicId: userID[:], Name: "a", Partitions: 2}}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.addr = lis.Addr().String()
	server, err := rpc.NewServer(rpc.ServerConfig{Identity: func() *meshv1.GetIdentityResponse {
		return &meshv1.GetIdentityResponse{Kind: "broker", Process: &typev1.Process{Id: 1, Incarnation: 1}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	controllerv1.RegisterMetadataServiceServer(server, m)
	controllerv1.RegisterControllerServiceServer(server, m)
	brokerv1.RegisterLogServiceServer(server, m)
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return m
}

func (m *fakeMesh) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	m.revision++
	close(m.changed)
	m.changed = make(chan struct{})
}

// follow shows the registration of the coordinator as etcd has it.
func (m *fakeMesh) follow(r *registry.Registrar, process *typev1.Process, addr string, done <-chan struct{}) {
	for {
		changed := r.Changed()
		revision := r.Revision()
		m.change(func() {
			m.revision = max(m.revision, revision)
			m.owner, m.ownerReg = nil, nil
			if m.other != nil {
				m.owner = m.other.GetProcess()
			}
			if revision > 0 {
				m.owner, m.epoch = process, m.epoch+1
				m.ownerReg = &controllerv1.Registration{Kind: kind, Process: process, Address: addr, Revision: revision}
			}
		})
		select {
		case <-changed:
		case <-done:
			return
		}
	}
}

// EnsureInternalTopic creates the topic with one shard, owned by the registered
// coordinator.
func (m *fakeMesh) EnsureInternalTopic(_ context.Context, req *controllerv1.EnsureInternalTopicRequest) (*controllerv1.EnsureInternalTopicResponse, error) {
	m.change(func() {
		if m.ensured++; m.ensured == 1 {
			m.topics = append(m.topics, &controllerv1.Topic{TopicId: internalID[:], Name: req.GetName(), Partitions: 1, Internal: true})
		}
	})
	return &controllerv1.EnsureInternalTopicResponse{TopicId: internalID[:]}, nil
}

// WatchMetadata sends the whole state after each change.
func (m *fakeMesh) WatchMetadata(_ *controllerv1.WatchMetadataRequest, stream controllerv1.MetadataService_WatchMetadataServer) error {
	// Without the generation, a watcher that comes again would find that it went back.
	err := stream.Send(&controllerv1.WatchMetadataResponse{Position: &controllerv1.Position{Generation: 1}, Message: &controllerv1.WatchMetadataResponse_Initial{
		Initial: &controllerv1.WatchInitial{Handshake: rpc.LocalHandshake(), ClusterId: "AAAAAAAAAAAAAAAAAAAAAA", HeartbeatIntervalMs: 500},
	}})
	if err != nil {
		return err
	}
	beat := time.NewTicker(200 * time.Millisecond)
	defer beat.Stop()
	for {
		msg, changed := m.snapshot()
		if err := stream.Send(msg); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-beat.C:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (m *fakeMesh) snapshot() (*controllerv1.WatchMetadataResponse, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	broker := &typev1.Process{Id: 1, Incarnation: 1}
	entries := &controllerv1.MetadataChanges{
		Leader:  &controllerv1.ControllerLeader{Controller: broker, Address: m.addr, ElectionRevision: 1},
		Topics:  m.topics,
		Brokers: []*controllerv1.Broker{{Broker: broker, Address: m.addr, Fenced: m.fenced}},
	}
	if m.noBroker {
		entries.Brokers[0].Address = "127.0.0.1:1"
	}
	if m.other != nil {
		entries.Registrations = append(entries.Registrations, m.other)
	}
	if m.ownerReg != nil {
		entries.Registrations = append(entries.Registrations, m.ownerReg)
	}
	for _, t := range m.topics {
		for n := range t.GetPartitions() {
			p := &controllerv1.Partition{TopicId: t.GetTopicId(), Partition: n, Leader: broker, LeaderEpoch: 1, Replicas: []int32{1}, Isr: []int32{1}, MinIsr: 1}
			if t.GetName() == client.OffsetsTopic {
				p.ShardOwner, p.ShardEpoch = m.owner, m.epoch
			}
			entries.Partitions = append(entries.Partitions, p)
		}
	}
	return &controllerv1.WatchMetadataResponse{
		Position: &controllerv1.Position{Generation: 1, Revision: m.revision},
		Message:  &controllerv1.WatchMetadataResponse_Snapshot{Snapshot: &controllerv1.SnapshotPart{Entries: entries, Last: true}},
	}, m.changed
}

// Produce lets batches into the log of the shard.
func (m *fakeMesh) Produce(stream brokerv1.LogService_ProduceServer) error {
	for {
		var req brokerv1.ProduceRequest
		payload, err := rpc.Recv(stream, &req)
		if err != nil {
			return nil
		}
		batch := payload.Bytes()
		payload.Free()
		resp := &brokerv1.ProduceResponse{Message: &brokerv1.ProduceResponse_Initial{Initial: &brokerv1.ProduceInitialResponse{
			Handshake: rpc.LocalHandshake(), Broker: &typev1.Process{Id: 1, Incarnation: 1}, MaxInFlightBatches: 100,
		}}}
		if b := req.GetBatch(); b != nil {
			resp = &brokerv1.ProduceResponse{Message: &brokerv1.ProduceResponse_Results{Results: &brokerv1.ProduceResults{
				Results: []*brokerv1.ProduceResult{m.produce(stream.Context(), b, batch)},
			}}}
		}
		if err := rpc.Send(stream, resp, nil); err != nil {
			return err
		}
	}
}

func (m *fakeMesh) produce(ctx context.Context, b *brokerv1.ProduceBatch, batch []byte) *brokerv1.ProduceResult {
	f := b.GetShardFence()
	base, err := m.log.Append(ctx, b.GetPartition(), offsets.Fence{ShardEpoch: f.GetShardEpoch(), Attempt: f.GetAttempt(), Sequence: f.GetSequence()}, batch)
	result := &brokerv1.ProduceResult{CorrelationId: b.GetCorrelationId(), BaseOffset: base, LeaderEpoch: 1}
	if err != nil {
		result.BaseOffset, result.LeaderEpoch, result.Error = -1, -1, rpc.ToProto(err)
		return result
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := record.ParseHeader(batch)
	if err == nil {
		record.PatchBaseOffset(batch, base)
		m.batches, m.end = append(m.batches, batch), base+int64(h.NumRecords)
	}
	return result
}

// Fetch sends everything there is of each partition added.
func (m *fakeMesh) Fetch(stream brokerv1.LogService_FetchServer) error {
	for {
		var req brokerv1.FetchRequest
		payload, err := rpc.Recv(stream, &req)
		if err != nil {
			return nil
		}
		payload.Free()
		if req.GetInitial() != nil {
			err := rpc.Send(stream, &brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Initial{Initial: &brokerv1.FetchInitialResponse{
				Handshake: rpc.LocalHandshake(), Broker: &typev1.Process{Id: 1, Incarnation: 1},
			}}}, nil)
			if err != nil {
				return err
			}
		}
		for _, p := range req.GetUpdate().GetAdd() {
			if err := m.send(stream, p.GetFetchId()); err != nil {
				return err
			}
		}
	}
}

func (m *fakeMesh) send(stream brokerv1.LogService_FetchServer, fetchID int64) error {
	m.mu.Lock()
	var all []byte
	for _, b := range m.batches {
		all = append(all, b...)
	}
	end := m.end
	m.mu.Unlock()
	return rpc.Send(stream, &brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Batches{Batches: &brokerv1.FetchBatches{
		FetchId: fetchID, NextOffset: end, CreditCost: int64(len(all)),
		VisibleEnd: &brokerv1.VisibleEnd{LeaderEpoch: 1, HighWatermark: end, LastStableOffset: end},
	}}}, rpc.NewPayload(all))
}

// ListOffsets answers that logs begin at 0 and end at 9, and that record 5 is of the
// time 1000 ms.
func (m *fakeMesh) ListOffsets(_ context.Context, req *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
	resp := &brokerv1.ListOffsetsResponse{}
	m.mu.Lock()
	m.asked = append(m.asked, req.GetPartitions()[0].GetSpec())
	m.mu.Unlock()
	for _, p := range req.GetPartitions() {
		result := &brokerv1.ListOffsetsResult{LeaderEpoch: 1}
		switch at := p.GetSpec().GetTimestamp(); {
		case p.GetSpec().GetPlace() == typev1.OffsetSpec_PLACE_LATEST:
			result.Offset = 9
		case at != nil && at.AsTime().UnixMilli() <= 1000:
			result.Offset = 5
		case at != nil:
			result.Offset = -1
		}
		resp.Results = append(resp.Results, result)
	}
	return resp, nil
}
