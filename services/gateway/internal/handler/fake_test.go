package handler

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

var topicA = topicid.ID{0xa}

func partA(n int32) client.TopicPartition {
	return client.TopicPartition{TopicID: topicA, Partition: n}
}

// fakeMesh is a mesh in memory. Hooks that are nil mean the friendly answer.
type fakeMesh struct {
	mu        sync.Mutex
	producers []*fakeProducer
	fetchers  []*fakeFetcher
	members   []*fakeMember
	topics    map[string]int32

	onSend       func(r client.Record, done func(client.Result)) error
	onTopic      func(name string) (*client.Topic, error)
	onOffsets    func(q client.OffsetQuery) client.OffsetResult
	onFetch      func(f *fakeFetcher, s client.FetchStart)
	onDelete     func(w client.RecordsToDelete) client.DeletedRecords
	onDigest     func(q client.DigestQuery) client.DigestResult
	onReplicas   func(p []client.TopicPartition) []client.ReplicaResult
	groups       []*coordinatorv1.GroupSummary
	group        *coordinatorv1.DescribeGroupResponse
	commitResult client.CommitResult
	committed    []client.CommitOffset
	groupErr     error
	replicaAsked int32 // broker of the last ListReplicaOffsets

	describeErr  error // of DescribeGroup alone; nil: groupErr
	onReset      func(o client.CommitOffset) client.OffsetReset
	resetTimeout time.Duration
	onAge        func(r client.RecordAt) client.RecordAge
	simulated    *coordinatorv1.SimulateGroupRequest
	simulation   *coordinatorv1.SimulateGroupResponse
}

func newFakeMesh() *fakeMesh { return &fakeMesh{topics: map[string]int32{"a": 3}} }

func (m *fakeMesh) NewProducer(cfg client.ProducerConfig) (Producer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &fakeProducer{mesh: m, cfg: cfg, next: map[int32]int64{}}
	m.producers = append(m.producers, p)
	return p, nil
}

func (m *fakeMesh) NewFetcher(cfg client.FetcherConfig) (Fetcher, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &fakeFetcher{mesh: m, cfg: cfg, starts: map[client.TopicPartition]client.FetchStart{}, ready: make(chan struct{}, 1)}
	m.fetchers = append(m.fetchers, f)
	return f, nil
}

func (m *fakeMesh) JoinGroup(cfg client.MemberConfig) (Member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &fakeMember{cfg: cfg, events: make(chan client.MemberEvent, 16), commit: func([]client.CommitOffset) (client.CommitResult, error) { return client.CommitResult{}, nil }}
	m.members = append(m.members, f)
	f.events <- client.MemberEvent{Attached: &client.Attached{MemberID: "m1", Attach: cfg.Attach + 1}}
	return f, nil
}

// member waits for the n-th member.
func (m *fakeMesh) member(t *testing.T, n int) *fakeMember {
	t.Helper()
	var f *fakeMember
	eventually(t, "a member joins", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.members) > n {
			f = m.members[n]
		}
		return f != nil
	})
	return f
}

func (m *fakeMesh) Topic(_ context.Context, name string) (*client.Topic, error) {
	if m.onTopic != nil {
		return m.onTopic(name)
	}
	n, ok := m.topics[name]
	if !ok {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, "there is no topic %q", name)
	}
	t := &client.Topic{Name: name, ID: topicA, Partitions: make([]client.Partition, n)}
	for i := range t.Partitions { // on two of brokers 1 to 3 each
		t.Partitions[i].Replicas = []int32{int32(i)%3 + 1, int32(i+1)%3 + 1}
	}
	return t, nil
}

func (m *fakeMesh) ListOffsets(_ context.Context, queries []client.OffsetQuery, _ typev1.IsolationLevel) []client.OffsetResult {
	out := make([]client.OffsetResult, len(queries))
	for i, q := range queries {
		out[i] = client.OffsetResult{OffsetQuery: q, Offset: 0, TimestampMs: -1}
		if m.onOffsets != nil {
			out[i] = m.onOffsets(q)
			out[i].OffsetQuery = q
		}
	}
	return out
}

func (m *fakeMesh) ListReplicaOffsets(ctx context.Context, broker int32, queries []client.OffsetQuery, isolation typev1.IsolationLevel) []client.OffsetResult {
	m.mu.Lock()
	m.replicaAsked = broker
	m.mu.Unlock()
	return m.ListOffsets(ctx, queries, isolation)
}

func (m *fakeMesh) DescribeReplicas(_ context.Context, p []client.TopicPartition, _ bool) []client.ReplicaResult {
	if m.onReplicas == nil {
		return nil
	}
	return m.onReplicas(p)
}

func (m *fakeMesh) DeleteRecords(_ context.Context, wanted []client.RecordsToDelete) []client.DeletedRecords {
	results := make([]client.DeletedRecords, len(wanted))
	for i, w := range wanted {
		results[i] = client.DeletedRecords{RecordsToDelete: w, LogStart: w.Before}
		if m.onDelete != nil {
			results[i] = m.onDelete(w)
		}
	}
	return results
}

func (m *fakeMesh) DigestReplicas(_ context.Context, queries []client.DigestQuery) []client.DigestResult {
	results := make([]client.DigestResult, len(queries))
	for i, q := range queries {
		results[i] = m.onDigest(q)
	}
	return results
}

func (m *fakeMesh) ListGroups(context.Context) ([]*coordinatorv1.GroupSummary, error) {
	return m.groups, m.groupErr
}

func (m *fakeMesh) DescribeGroup(context.Context, string) (*coordinatorv1.DescribeGroupResponse, error) {
	if m.describeErr != nil {
		return nil, m.describeErr
	}
	return m.group, m.groupErr
}

func (m *fakeMesh) CommitOffsets(_ context.Context, _ string, offsets []client.CommitOffset) (client.CommitResult, error) {
	m.committed = offsets
	return m.commitResult, m.groupErr
}

func (m *fakeMesh) ResetOffsets(_ context.Context, _ string, offsets []client.CommitOffset, timeout time.Duration) ([]client.OffsetReset, error) {
	m.committed, m.resetTimeout = offsets, timeout
	results := make([]client.OffsetReset, len(offsets))
	for i, o := range offsets {
		results[i] = client.OffsetReset{TopicPartition: o.TopicPartition, OldOffset: -1, NewOffset: o.NextOffset}
		if m.onReset != nil {
			results[i] = m.onReset(o)
		}
	}
	return results, m.groupErr
}

func (m *fakeMesh) SimulateGroup(_ context.Context, req *coordinatorv1.SimulateGroupRequest) (*coordinatorv1.SimulateGroupResponse, error) {
	m.simulated = req
	return m.simulation, m.groupErr
}

func (m *fakeMesh) RecordAges(_ context.Context, records []client.RecordAt) []client.RecordAge {
	results := make([]client.RecordAge, len(records))
	for i, r := range records {
		results[i] = client.RecordAge{RecordAt: r}
		if m.onAge != nil {
			results[i] = m.onAge(r)
		}
	}
	return results
}

func (m *fakeMesh) DeleteGroup(context.Context, string) error { return m.groupErr }

// fakeProducer stores records at once, unless the mesh's hook does otherwise.
type fakeProducer struct {
	mesh *fakeMesh
	cfg  client.ProducerConfig

	mu     sync.Mutex
	next   map[int32]int64
	sent   []client.Record
	spans  []trace.SpanContext
	closed bool
}

func (p *fakeProducer) Send(ctx context.Context, r client.Record, done func(client.Result)) error {
	p.mu.Lock()
	p.sent = append(p.sent, r)
	p.spans = append(p.spans, trace.SpanContextFromContext(ctx))
	p.mu.Unlock()
	if p.mesh.onSend != nil {
		return p.mesh.onSend(r, done)
	}
	done(p.store(r))
	return nil
}

func (p *fakeProducer) store(r client.Record) client.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := int32(0)
	if r.Partition != nil {
		n = *r.Partition
	}
	o := p.next[n]
	p.next[n]++
	return client.Result{Topic: r.Topic, Partition: n, Offset: o, LeaderEpoch: 2}
}

func (p *fakeProducer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}

func (p *fakeProducer) Close(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

// fakeFetcher hands out what was pushed.
type fakeFetcher struct {
	mesh *fakeMesh
	cfg  client.FetcherConfig

	mu      sync.Mutex
	starts  map[client.TopicPartition]client.FetchStart
	events  []*client.FetchEvent
	endless int // bytes of the value of records made on demand; 0: none are
	taken   int
	closed  bool
	ready   chan struct{}
}

func (f *fakeFetcher) Add(starts ...client.FetchStart) {
	for _, s := range starts {
		f.mu.Lock()
		f.starts[s.TopicPartition] = s
		f.mu.Unlock()
		if f.mesh.onFetch != nil {
			f.mesh.onFetch(f, s)
		}
	}
}

func (f *fakeFetcher) Remove(parts ...client.TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range parts {
		delete(f.starts, p)
	}
}

func (f *fakeFetcher) Ready() <-chan struct{}                   { return f.ready }
func (f *fakeFetcher) Waiting() map[client.TopicPartition]error { return nil }

func (f *fakeFetcher) TryNext() *client.FetchEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endless > 0 {
		for p, s := range f.starts {
			o := s.Offset
			s.Offset++
			f.starts[p] = s
			f.taken++
			return &client.FetchEvent{
				TopicPartition: p, Topic: "a", Tag: s.Tag, Kind: client.FetchRecords, Offset: o, NextOffset: o + 1,
				HighWatermark: 1 << 40, Records: []record.Record{{Offset: o, Value: make([]byte, f.endless)}},
			}
		}
	}
	for len(f.events) > 0 {
		e := f.events[0]
		f.events = f.events[1:]
		if s, ok := f.starts[e.TopicPartition]; ok && s.Tag == e.Tag {
			f.taken++
			return e
		}
	}
	return nil
}

func (f *fakeFetcher) push(events ...*client.FetchEvent) {
	f.mu.Lock()
	f.events = append(f.events, events...)
	f.mu.Unlock()
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

func (f *fakeFetcher) takenSoFar() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.taken
}

func (f *fakeFetcher) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// serve pushes a batch of records for each start.
func serve(records ...record.Record) func(*fakeFetcher, client.FetchStart) {
	return func(f *fakeFetcher, s client.FetchStart) {
		e := &client.FetchEvent{TopicPartition: s.TopicPartition, Topic: "a", Tag: s.Tag, Kind: client.FetchRecords, Offset: s.Offset, HighWatermark: 100}
		for _, r := range records {
			if r.Offset >= s.Offset {
				e.Records = append(e.Records, r)
				e.NextOffset = r.Offset + 1
			}
		}
		if len(e.Records) > 0 {
			f.push(e)
		}
	}
}

// fakeMember is a membership that a test plays the coordinator of.
type fakeMember struct {
	cfg    client.MemberConfig
	events chan client.MemberEvent
	commit func([]client.CommitOffset) (client.CommitResult, error)

	mu    sync.Mutex
	log   []string
	until time.Time
}

func (f *fakeMember) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fakeMember) has(line string) func() bool {
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, l := range f.log {
			if l == line {
				return true
			}
		}
		return false
	}
}

func (f *fakeMember) Next(ctx context.Context) (client.MemberEvent, error) {
	select {
	case e := <-f.events:
		return e, nil
	case <-ctx.Done():
		return client.MemberEvent{}, ctx.Err()
	}
}

func (f *fakeMember) Revoking(p ...client.OwnedPartition) { f.note("revoking %d", len(p)) }
func (f *fakeMember) Ack(epoch int64, owned []client.OwnedPartition) {
	f.note("ack %d %d", epoch, len(owned))
}

func (f *fakeMember) Commit(_ context.Context, offsets []client.CommitOffset) (client.CommitResult, error) {
	for _, o := range offsets {
		f.note("commit %d@%d", o.Partition, o.NextOffset)
	}
	return f.commit(offsets)
}

func (f *fakeMember) DeliverUntil() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.until
}

func (f *fakeMember) Leave(context.Context) error { f.note("leave"); return nil }
func (f *fakeMember) Detach()                     { f.note("detach") }

func (f *fakeMember) assign(epoch int64, parts ...int32) {
	a := &client.Assignment{MemberEpoch: epoch, GroupEpoch: epoch, RevocationTimeout: time.Minute}
	for _, n := range parts {
		a.Partitions = append(a.Partitions, client.AssignedPartition{
			OwnedPartition: client.OwnedPartition{TopicPartition: partA(n), AssignmentEpoch: 1}, Topic: "a", StartOffset: 0, StartLeaderEpoch: -1,
		})
	}
	f.events <- client.MemberEvent{Assignment: a}
}
