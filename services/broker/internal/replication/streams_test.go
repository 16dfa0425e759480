package replication

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

// peer is a follower that a test plays by hand.
type peer struct {
	t      testing.TB
	stream brokerv1.ReplicationService_ReplicateClient
	window int64 // of its sessions; 0: enough for everything
}

// connect opens a stream to a broker as a follower of some incarnation; change may
// spoil the first message.
func (m *mesh) connect(to, from int32, incarnation uint64, change func(*brokerv1.ReplicateInitial)) (*peer, error) {
	m.t.Helper()
	n := m.nodes[to]
	conn, err := rpc.Dial(n.addr, rpc.DialConfig{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			m.t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), brokertest.Patience)
	m.t.Cleanup(cancel)
	stream, err := brokerv1.NewReplicationServiceClient(conn).Replicate(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	in := &brokerv1.ReplicateInitial{
		Handshake: rpc.LocalHandshake(), Follower: &typev1.Process{Id: from, Incarnation: incarnation},
		Leader: &typev1.Process{Id: to, Incarnation: n.incarnation}, ClusterId: m.ctl.ClusterID, Generation: m.ctl.Generation(),
	}
	if change != nil {
		change(in)
	}
	if err := stream.Send(&brokerv1.ReplicateRequest{Message: &brokerv1.ReplicateRequest_Initial{Initial: in}}); err != nil {
		m.t.Fatal(err)
	}
	p := &peer{t: m.t, stream: stream}
	_, err = stream.Recv()
	return p, err
}

func (p *peer) hello(session int64, id topicid.ID, epoch, lastEpoch int32, end int64) {
	p.t.Helper()
	err := p.stream.Send(&brokerv1.ReplicateRequest{Message: &brokerv1.ReplicateRequest_Hello{Hello: &brokerv1.ReplicateHello{Partitions: []*brokerv1.HelloPartition{{
		Session: session, TopicId: id.Bytes(), LeaderEpoch: epoch, LastEpoch: lastEpoch, EndOffset: end, WindowBytes: cmp.Or(p.window, 1<<20),
	}}}}})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) position(session int64, epoch int32, partEpoch, end int64) {
	p.t.Helper()
	err := p.stream.Send(&brokerv1.ReplicateRequest{Message: &brokerv1.ReplicateRequest_Positions{Positions: &brokerv1.ReplicatePositions{Positions: []*brokerv1.ReplicaPosition{{
		Session: session, LeaderEpoch: epoch, PartitionEpoch: partEpoch, LastEpoch: epoch, EndOffset: end, DurableEndOffset: end,
	}}}}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// recv takes messages until one is wanted; signs of life are passed over.
func (p *peer) recv(want func(*brokerv1.ReplicateResponse) bool) (*brokerv1.ReplicateResponse, error) {
	p.t.Helper()
	for {
		var resp brokerv1.ReplicateResponse
		payload, err := rpc.Recv(p.stream, &resp)
		payload.Free()
		if err != nil || want(&resp) {
			return &resp, err
		}
	}
}

func (p *peer) epochEnd() *brokerv1.ReplicateEpochEnd {
	p.t.Helper()
	resp, err := p.recv(func(r *brokerv1.ReplicateResponse) bool { return r.GetEpochEnd() != nil })
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.GetEpochEnd()
}

func (p *peer) refusal() *brokerv1.ReplicateError {
	p.t.Helper()
	resp, err := p.recv(func(r *brokerv1.ReplicateResponse) bool { return r.GetPartitionError() != nil })
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.GetPartitionError()
}

// A stream that means somebody else is refused with the reason.
func TestRefusesStreams(t *testing.T) {
	m := newMesh(t, 1, meshOptions{})
	for name, c := range map[string]struct {
		change func(*brokerv1.ReplicateInitial)
		want   typev1.ErrorReason
	}{
		// case 34: what was meant for the leader's former life changes nothing.
		"leader's former life": {func(in *brokerv1.ReplicateInitial) { in.Leader.Incarnation = 77 }, typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION},
		"another leader":       {func(in *brokerv1.ReplicateInitial) { in.Leader.Id = 9 }, typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION},
		"another cluster":      {func(in *brokerv1.ReplicateInitial) { in.ClusterId = "other" }, typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER},
		"another generation":   {func(in *brokerv1.ReplicateInitial) { in.Generation++ }, typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND},
		"nobody":               {func(in *brokerv1.ReplicateInitial) { in.Follower = nil }, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		"itself":               {func(in *brokerv1.ReplicateInitial) { in.Follower.Id = 1 }, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
	} {
		if _, err := m.connect(1, 2, 1, c.change); !rpc.IsReason(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, err := m.connect(1, 2, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.stream.Send(&brokerv1.ReplicateRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.recv(func(*brokerv1.ReplicateResponse) bool { return false }); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL) {
		t.Errorf("an empty message: %v", err)
	}
}

// Sessions of partitions, epochs and brokers that do not fit are refused alone; one
// that names an epoch to come waits for it.
func TestRefusesSessions(t *testing.T) {
	m := newMesh(t, 2, meshOptions{})
	m.nodes[2].stop(true)
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	other := m.ctl.CreateReplicated("alone", 1, 1, nil, 1)
	m.awaitLeads(1, id, 0)
	m.awaitLeads(1, other, 0)
	p, err := m.connect(1, 2, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.hello(1, topicid.Derive([]byte("nowhere")), 1, -1, 0)
	p.hello(2, other, 1, -1, 0)
	p.hello(3, id, 0, -1, 0)
	want := map[int64]typev1.ErrorReason{
		1: typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, 2: typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, 3: typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH,
	}
	for range want {
		e := p.refusal()
		if got := e.GetError().GetReason(); got != want[e.GetSession()] {
			t.Errorf("session %d is refused with %v", e.GetSession(), got)
		}
	}
	p.hello(4, id, 2, -1, 0)
	p.hello(5, id, 1, -1, 0)
	if e := p.epochEnd(); e.GetSession() != 5 || !e.GetAgreed() {
		t.Errorf("the session of this epoch is answered with %v", e)
	}
	m.ctl.Elect(id, 0, 1)
	if e := p.epochEnd(); e.GetSession() != 4 || e.GetLeaderEpoch() != 2 || !e.GetAgreed() {
		t.Errorf("the session that waited for its epoch is answered with %v", e)
	}
}

// Positions of a session that is over move nothing, nor does a stream of which there
// is a newer one.
func TestOldSessionsMoveNothing(t *testing.T) {
	m := newMesh(t, 2, meshOptions{})
	m.nodes[2].stop(true)
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	old, err := m.connect(1, 2, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	old.hello(1, id, 1, -1, 0)
	old.epochEnd()
	done := m.nodes[1].begin(id, 0, acksAll, "waits for both")
	if _, err := old.recv(func(r *brokerv1.ReplicateResponse) bool { return r.GetBatches() != nil }); err != nil {
		t.Fatal(err)
	}
	newer, err := m.connect(1, 2, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.recv(func(*brokerv1.ReplicateResponse) bool { return false }); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STREAM_SUPERSEDED) {
		t.Errorf("the older stream ends with %v", err)
	}
	// It was sent the record, and that counts no more: the newer one says where it is.
	newer.hello(1, id, 1, -1, 0)
	if e := newer.epochEnd(); !e.GetAgreed() {
		t.Fatalf("the newer stream is answered with %v", e)
	}
	newer.position(1, 1, 1, 0)
	newer.position(9, 1, 1, 1) // a session that does not exist
	if hw := m.nodes[1].describe(id, 0).GetHighWatermark(); hw != 0 {
		t.Errorf("the high watermark is %d with a follower that has nothing", hw)
	}
	newer.position(1, 1, 1, 1)
	if res := <-done; res.Err != nil {
		t.Errorf("the batch ended with %v", res.Err)
	}
}

// A broker that reaches its followers and no controller is elected: it speaks, and
// never answers their hellos, since it has not heard of its leadership. It is named, so
// that somebody else can be elected.
func TestDeafLeaders(t *testing.T) {
	m := newMesh(t, 3, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2, 3)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	m.awaitSame(id, 0, 1, 1, 2, 3)
	m.nodes[2].deafen()
	m.ctl.Elect(id, 0, 2)
	named := func(by int32, leaders ...int32) func() bool {
		return func() bool { return slices.Equal(m.nodes[by].fetchers.Deaf(), leaders) }
	}
	brokertest.Await(t, "broker 1 names the leader that has not heard of it", named(1, 2))
	brokertest.Await(t, "broker 3 names it too", named(3, 2))
	brokertest.Await(t, "nobody counts as unreachable, since they speak", m.nodes[1].hearsAll)
	m.ctl.Elect(id, 0, 3)
	m.awaitLeads(3, id, 0)
	brokertest.Await(t, "broker 1 names nobody any more", named(1))
	if res := m.nodes[3].produce(id, 0, partition.AcksLeader, "b"); res.Err != nil {
		t.Errorf("the next leader refuses: %v", res.Err)
	}
	brokertest.Await(t, "broker 1 copies from it", func() bool { return m.nodes[1].describe(id, 0).GetLogEndOffset() == 2 })
}

// hearsAll reports whether a broker names no leader as unreachable. A test waits for it:
// where everything stood still for a second, everybody is silent for a moment.
func (n *node) hearsAll() bool { return len(n.fetchers.Unreachable()) == 0 }

// A leader that says nothing for a second is named; one that is heard again is not.
func TestUnreachableLeaders(t *testing.T) {
	m := newMesh(t, 2, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.awaitSame(id, 0, 0, 1, 2)
	brokertest.Await(t, "nobody is named while all is well", m.nodes[2].hearsAll)
	m.kill(1)
	began := time.Now()
	brokertest.Await(t, "the dead leader is named", func() bool { return slices.Equal(m.nodes[2].fetchers.Unreachable(), []int32{1}) })
	t.Logf("named after %v", time.Since(began))
	m.restart(1)
	m.ctl.Elect(id, 0, 1)
	brokertest.Await(t, "nobody is named any more", m.nodes[2].hearsAll)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	m.awaitSame(id, 0, 1, 1, 2)
}
