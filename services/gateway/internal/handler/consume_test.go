package handler

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// consuming is a consume stream with a test at its client's end.
type consuming struct {
	t *testing.T
	gatewayv1.ConsumerService_ConsumeClient
}

func (r *rig) subscribe(t *testing.T, ctx context.Context, o *gatewayv1.ConsumeOpen) consuming {
	t.Helper()
	s, err := r.consume.Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := consuming{t, s}
	c.put(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: o}})
	return c
}

func (c consuming) put(m *gatewayv1.ConsumeRequest) {
	c.t.Helper()
	if err := c.Send(m); err != nil {
		c.t.Fatal(err)
	}
}

func (c consuming) get() *gatewayv1.ConsumeResponse {
	c.t.Helper()
	m, err := c.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// until reads until a message fits.
func (c consuming) until(what string, fits func(*gatewayv1.ConsumeResponse) bool) *gatewayv1.ConsumeResponse {
	c.t.Helper()
	for {
		m, err := c.Recv()
		if err != nil {
			c.t.Fatalf("waiting for %s: %v", what, err)
		}
		if fits(m) {
			return m
		}
	}
}

func (c consuming) ping(id int64) {
	c.t.Helper()
	c.put(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Ping{Ping: &gatewayv1.ConsumePing{PingId: id}}})
}

// TestConsumeByHand: null, empty and present come out as three different things.
// // case 19
func TestConsumeByHand(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = serve(
			record.Record{Offset: 5, Key: nil, Value: []byte{}, Timestamp: 77},
			record.Record{Offset: 6, Key: []byte{}, Value: nil, Headers: []record.RecordHeader{{Key: []byte("k"), Value: nil}, {Key: []byte("k"), Value: []byte{}}}})
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Partition: 1, Offset: ptr(int64(5))}}})
	if c.get().GetOpened().GetGateway().GetId() != 1 {
		t.Fatal("opened comes first")
	}
	if a := c.get().GetAssigned(); a.GetStartOffset() != 5 || a.GetPartition() != 1 {
		t.Fatalf("assigned %v", a)
	}
	got := c.get().GetRecords()
	if len(got.GetRecords()) != 2 || got.GetNextOffset() != 7 || got.GetHighWatermark() != 100 || got.GetCost() <= 0 {
		t.Fatalf("records %v", got)
	}
	x, y := got.Records[0], got.Records[1]
	if x.Key != nil || x.Value == nil || len(x.Value) != 0 || x.TimestampMs != 77 || y.Key == nil || y.Value != nil {
		t.Errorf("records %v", got)
	}
	if y.Headers[0].Value != nil || y.Headers[1].Value == nil {
		t.Errorf("headers %v", y.Headers)
	}
	if err := c.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if c.get().GetClosed() == nil {
		t.Fatal("closed comes last")
	}
	if _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("ends with %v", err)
	}
	eventually(t, "the fetcher is closed", func() bool {
		f := r.mesh.fetchers[0]
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.closed
	})
}

// TestConsumeFromOneReplica reads what one broker holds of a topic, from that
// broker, and refuses partitions that it does not hold.
func TestConsumeFromOneReplica(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = serve(record.Record{Offset: 0, Value: []byte("v")})
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Topics: []string{"a"}, StartAt: gatewayv1.StartAt_START_AT_EARLIEST, Replica: ptr(int32(1))})
	c.get()
	read := map[int32]bool{}
	for range 2 { // partitions 0 and 2
		m := c.until("an assignment", func(m *gatewayv1.ConsumeResponse) bool { return m.GetAssigned() != nil })
		read[m.GetAssigned().GetPartition()] = true
	}
	if !read[0] || !read[2] {
		t.Errorf("partitions %v", read)
	}
	c.until("records", func(m *gatewayv1.ConsumeResponse) bool { return m.GetRecords() != nil })
	r.mesh.mu.Lock()
	if cfg := r.mesh.fetchers[0].cfg; cfg.Replica == nil || *cfg.Replica != 1 || r.mesh.replicaAsked != 1 {
		t.Errorf("fetched from %v, asked %d", cfg.Replica, r.mesh.replicaAsked)
	}
	r.mesh.mu.Unlock()

	for _, o := range []*gatewayv1.ConsumeOpen{
		{Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Partition: 1}}, Replica: ptr(int32(1))},
		{Topics: []string{"a"}, Replica: ptr(int32(9))},
		{Topics: []string{"a"}, Replica: ptr(int32(-1))},
		{Topics: []string{"a"}, Group: "g", Replica: ptr(int32(1))},
	} {
		c := r.subscribe(t, testContext(t), o)
		if _, err := c.Recv(); reason(err) != "INVALID_REQUEST" {
			t.Errorf("%v: %v", o, err)
		}
	}
}

// TestConsumeWithOneMessage is what grpcurl does: open, half-close, read to the end.
func TestConsumeWithOneMessage(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = serve(record.Record{Offset: 0, Value: []byte("x")}, record.Record{Offset: 1, Value: []byte("y")})
		m.onOffsets = func(q client.OffsetQuery) client.OffsetResult {
			if q.Partition == 0 && q.Spec.GetPlace() == typev1.OffsetSpec_PLACE_LATEST {
				return client.OffsetResult{Offset: 2}
			}
			return client.OffsetResult{Offset: 0}
		}
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Topics: []string{"a"}, StartAt: gatewayv1.StartAt_START_AT_EARLIEST, StopAtEnd: true})
	if err := c.CloseSend(); err != nil {
		t.Fatal(err)
	}
	records := 0
	c.until("closed", func(m *gatewayv1.ConsumeResponse) bool {
		records += len(m.GetRecords().GetRecords())
		return m.GetClosed() != nil
	})
	if records != 2 {
		t.Errorf("%d records", records)
	}
}

// TestSlowConsumer: a client that reads nothing holds up its own reading and
// nothing else: what is taken from the brokers is bounded, and its commits and
// revocations go on.
func TestSlowConsumer(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = func(f *fakeFetcher, _ client.FetchStart) {
			f.mu.Lock()
			f.endless = 32 << 10
			f.mu.Unlock()
			f.push()
		}
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}})
	m := r.mesh.member(t, 0)
	m.assign(1, 0)
	last, still := -1, 0
	eventually(t, "reading stands still", func() bool {
		r.mesh.mu.Lock()
		fetchers := r.mesh.fetchers
		r.mesh.mu.Unlock()
		if len(fetchers) == 0 {
			return false
		}
		if n := fetchers[0].takenSoFar(); n == last && n > 0 {
			still++
		} else {
			last, still = n, 0
		}
		return still > 100
	})
	// What HTTP/2 and the sockets buffer, and two messages.
	if bytes := last * 32 << 10; bytes > 8<<20 {
		t.Errorf("%d bytes were taken for a client that reads nothing", bytes)
	}
	c.put(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Commit{Commit: &gatewayv1.ConsumeCommit{
		Sequence: 1, Positions: []*gatewayv1.ConsumePosition{{Topic: "a", Partition: 0, NextOffset: 3}},
	}}})
	eventually(t, "the commit gets through", m.has("commit 0@3"))
	m.assign(2)
	eventually(t, "the revocation gets through", m.has("revoking 1"))
	c.put(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Revoked{Revoked: &gatewayv1.ConsumeRevoked{Partitions: []*gatewayv1.PartitionName{{Topic: "a"}}}}})
	eventually(t, "the partition is given up", m.has("ack 2 0"))
	// The client wakes up: everything is in order.
	next := int64(0)
	c.until("the commit's result", func(m *gatewayv1.ConsumeResponse) bool {
		if x := m.GetRecords(); x != nil {
			if x.Records[0].Offset != next {
				t.Fatalf("offset %d after %d", x.Records[0].Offset, next)
			}
			next = x.NextOffset
		}
		return m.GetCommitResult().GetSequence() == 1
	})
}

// TestGroupMembership: joined under the client's terms, assigned, committed in
// order, left.
func TestGroupMembership(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = serve(record.Record{Offset: 0, Value: []byte("x")})
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{
		Group: "g", Topics: []string{"a"}, InstanceId: "i", SessionTimeout: durationpb.New(7 * time.Second), AutoCommitInterval: durationpb.New(time.Hour),
	})
	m := r.mesh.member(t, 0)
	if m.cfg.Group != "g" || m.cfg.InstanceID != "i" || m.cfg.SessionTimeout != 7*time.Second || m.cfg.ClientHost == "" || time.Since(m.cfg.LastSign()) > patience {
		t.Errorf("config %+v", m.cfg)
	}
	if o := c.get().GetOpened(); o.GetMemberId() != "m1" || o.GetAttach() != 1 {
		t.Fatalf("opened %v", o)
	}
	m.assign(1, 0)
	c.until("records", func(m *gatewayv1.ConsumeResponse) bool { return m.GetRecords() != nil })
	c.put(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Release{Release: &gatewayv1.ConsumeRelease{
		Positions: []*gatewayv1.ConsumePosition{{Topic: "a", NextOffset: 1}},
	}}})
	c.put(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Leave{Leave: &gatewayv1.ConsumeLeave{}}})
	c.until("closed", func(m *gatewayv1.ConsumeResponse) bool { return m.GetClosed() != nil })
	if _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("ends with %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if got := m.log; len(got) != 3 || got[0] != "ack 1 1" || got[1] != "commit 0@1" || got[2] != "leave" {
		t.Errorf("the coordinator saw %q", got)
	}
}

// TestBrokenStreamDetaches: a stream that breaks is never a leave, so that the
// client can resume elsewhere.
func TestBrokenStreamDetaches(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(testContext(t))
	c := r.subscribe(t, ctx, &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}})
	m := r.mesh.member(t, 0)
	c.get()
	cancel()
	eventually(t, "it is detached", m.has("detach"))
	if m.has("leave")() {
		t.Error("it left")
	}
}

// TestResumeElsewhere passes member id, attach number and what the client holds on.
func TestResumeElsewhere(t *testing.T) {
	r := newRig(t, nil)
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{
		Group: "g", Topics: []string{"a"}, MemberId: "m1", Attach: 4,
		Positions: []*gatewayv1.ConsumePosition{{Topic: "a", Partition: 2, NextOffset: 9}, {Topic: "gone", NextOffset: 1}},
	})
	m := r.mesh.member(t, 0)
	if m.cfg.MemberID != "m1" || m.cfg.Attach != 4 || len(m.cfg.Owned) != 1 || m.cfg.Owned[0].TopicPartition != partA(2) {
		t.Errorf("config %+v", m.cfg)
	}
	if o := c.get().GetOpened(); o.GetAttach() != 5 {
		t.Errorf("opened %v", o)
	}
	m.assign(1, 2)
	if a := c.get().GetAssigned(); a.GetStartOffset() != 9 {
		t.Errorf("assigned %v", a)
	}
}

// TestConsumeDrain: a stopping gateway says so, answers commits, and keeps the
// membership for the next one.
func TestConsumeDrain(t *testing.T) {
	r := newRig(t, nil)
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}})
	m := r.mesh.member(t, 0)
	m.assign(1, 0)
	c.until("assigned", func(m *gatewayv1.ConsumeResponse) bool { return m.GetAssigned() != nil })
	var wg sync.WaitGroup
	wg.Go(func() { r.server.Shutdown(testContext(t)) })
	defer wg.Wait()
	if c.get().GetDrain() == nil {
		t.Fatal("drain is told")
	}
	c.put(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Commit{Commit: &gatewayv1.ConsumeCommit{
		Sequence: 1, Positions: []*gatewayv1.ConsumePosition{{Topic: "a", NextOffset: 1}},
	}}})
	if res := c.get().GetCommitResult(); res.GetSequence() != 1 || len(res.GetCommitted()) != 1 {
		t.Fatalf("commit result %v", res)
	}
	if err := c.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("ends with %v", err)
	}
	eventually(t, "it is detached", m.has("detach"))
	if m.has("leave")() {
		t.Error("it left")
	}
}

// TestFenced ends the stream with the reason, after telling it.
func TestFenced(t *testing.T) {
	r := newRig(t, nil)
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}})
	c.get()
	r.mesh.member(t, 0).events <- client.MemberEvent{Fenced: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INSTANCE_FENCED, "another process")}
	if e := c.get().GetFenced().GetError(); e.GetAction() != typev1.Action_ACTION_STOP {
		t.Fatalf("fenced %v", e)
	}
	if _, err := c.Recv(); reason(err) != "INSTANCE_FENCED" {
		t.Errorf("ends with %v", err)
	}
}

// TestWaitingIsTold: what passes by itself is waited for, and told once.
func TestWaitingIsTold(t *testing.T) {
	var mu sync.Mutex
	asked := 0
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onTopic = func(name string) (*client.Topic, error) {
			mu.Lock()
			defer mu.Unlock()
			if asked++; asked < 3 {
				return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "nobody answers")
			}
			return &client.Topic{Name: name, ID: topicA, Partitions: make([]client.Partition, 1)}, nil
		}
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Topics: []string{"a"}})
	if s := c.get().GetStatus().GetWaitingFor(); s.GetReason() != typev1.ErrorReason_ERROR_REASON_UNREACHABLE {
		t.Fatalf("status %v", s)
	}
	if c.get().GetOpened() == nil {
		t.Fatal("opened, once the topic is known")
	}
	c.ping(1)
	c.until("pong", func(m *gatewayv1.ConsumeResponse) bool { return m.GetPong().GetPingId() == 1 })
}

// TestOffsetIsAwaited: a partition whose offset cannot be told yet holds up no
// other, and what is awaited is told.
func TestOffsetIsAwaited(t *testing.T) {
	var mu sync.Mutex
	asked := 0
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onOffsets = func(q client.OffsetQuery) client.OffsetResult {
			mu.Lock()
			defer mu.Unlock()
			if q.Partition == 1 {
				if asked++; asked < 3 {
					return client.OffsetResult{Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "no leader")}
				}
			}
			return client.OffsetResult{Offset: 8}
		}
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Topics: []string{"a"}})
	var order []int32
	told := false
	for len(order) < 3 {
		m := c.get()
		if s := m.GetStatus(); s != nil {
			told = s.GetWaitingFor().GetReason() == typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE
		}
		if a := m.GetAssigned(); a != nil {
			order = append(order, a.GetPartition())
		}
	}
	if !told || order[2] != 1 {
		t.Errorf("told %v, assigned in the order %v", told, order)
	}
}

// TestConsumeUnknown ends with a typed error.
func TestConsumeUnknown(t *testing.T) {
	r := newRig(t, nil)
	for want, o := range map[string]*gatewayv1.ConsumeOpen{
		"UNKNOWN_TOPIC":     {Topics: []string{"nope"}},
		"UNKNOWN_PARTITION": {Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Partition: 3}}},
		"INVALID_REQUEST":   {},
	} {
		c := r.subscribe(t, testContext(t), o)
		if _, err := c.Recv(); reason(err) != want {
			t.Errorf("%s: %v", want, err)
		}
	}
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"nope"}})
	if _, err := c.Recv(); reason(err) != "UNKNOWN_TOPIC" {
		t.Errorf("in a group: %v", err)
	}
}

// TestSessionNotConfirmed: records wait until the coordinator has confirmed the
// session again.
func TestSessionNotConfirmed(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = serve(record.Record{Offset: 0, Value: []byte("x")})
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}})
	m := r.mesh.member(t, 0)
	m.mu.Lock()
	m.until = time.Unix(1, 0)
	m.mu.Unlock()
	m.assign(1, 0)
	c.until("assigned", func(m *gatewayv1.ConsumeResponse) bool { return m.GetAssigned() != nil })
	eventually(t, "the record is held", func() bool {
		r.mesh.mu.Lock()
		defer r.mesh.mu.Unlock()
		return len(r.mesh.fetchers) > 0 && r.mesh.fetchers[0].takenSoFar() == 1
	})
	c.ping(1)
	if c.get().GetPong() == nil {
		t.Fatal("only control comes")
	}
	m.mu.Lock()
	m.until = time.Time{}
	m.mu.Unlock()
	if c.get().GetRecords() == nil {
		t.Fatal("records come once the session is confirmed")
	}
}

// TestTopicGrows: partitions that come later are read, too.
func TestTopicGrows(t *testing.T) {
	r := newRig(t, nil)
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Topics: []string{"a"}})
	for range 4 {
		c.get() // opened, and three partitions
	}
	r.controller.change(topicEntries(4))
	if a := c.get().GetAssigned(); a.GetPartition() != 3 || a.GetStartOffset() != 0 {
		t.Errorf("assigned %v", a)
	}
}
