package handler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

func TestTailIsWokenByEachCommit(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	f := h.fetcher(1<<20, 0)
	f.add(1, id, 0, 0)
	if resp, _ := f.recv(); len(resp.GetWatermarks().GetWatermarks()) != 1 || resp.GetWatermarks().GetWatermarks()[0].GetVisibleEnd().GetHighWatermark() != 0 {
		t.Fatalf("a reader at the visible end is told so: got %v", resp)
	}
	p := h.producer()
	for i := range 20 {
		p.mustStore(id, 0, fmt.Sprint(i))
		resp, values := f.recv()
		b := resp.GetBatches()
		if !slices.Equal(values, []string{fmt.Sprint(i)}) || b.GetNextOffset() != int64(i+1) || b.GetVisibleEnd().GetHighWatermark() < int64(i+1) || b.GetFetchId() != 1 {
			t.Fatalf("record %d: %v %q", i, resp, values)
		}
	}
}

func TestCredit(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	p := h.producer()
	big := strings.Repeat("b", 5000)
	for range 3 {
		p.mustStore(id, 0, big)
	}
	f := h.fetcher(1, 1024) // less than a batch: the first one goes all the same
	f.add(1, id, 0, 0)
	if got := f.values(1); got[0] != big {
		t.Fatal("the first batch did not come whole")
	}
	// Without credit nothing comes but errors and news; deletion tells, since it
	// comes after whatever was sent before.
	h.ctl.DeleteTopic(id, brokerID)
	if resp, _ := f.recv(); resp.GetPartitionError().GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED {
		t.Fatalf("without credit came %v", resp)
	}
	id = h.topic("u", 1, nil)
	for range 3 {
		p.mustStore(id, 0, big)
	}
	f = h.fetcher(0, 1024)
	f.add(1, id, 0, 0)
	f.credit(1)
	f.values(1)
	f.credit(20_000)
	f.values(2)
}

func TestPartitionsAreServedInTurn(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 2, nil)
	p := h.producer()
	value := strings.Repeat("v", 2000)
	for range 50 {
		p.mustStore(id, 0, value)
	}
	p.mustStore(id, 1, "short")
	f := h.fetcher(0, 1024)
	f.add(1, id, 0, 0)
	f.add(2, id, 1, 0)
	f.credit(1 << 20)
	for n := 0; ; n++ {
		resp, _ := f.recv()
		if resp.GetBatches().GetFetchId() == 2 {
			break
		}
		if n > 3 {
			t.Fatal("the second partition waits behind the first one's backlog")
		}
	}
}

func TestFetchErrors(t *testing.T) {
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{})
	id := h.topic("t", 1, nil)
	p := h.producer()
	p.mustStore(id, 0, "a", "b")
	base := func() *brokerv1.FetchPartition {
		return &brokerv1.FetchPartition{TopicId: id.Bytes(), CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, SeenVisibleEnd: -1}
	}
	tests := []struct {
		name   string
		change func(*brokerv1.FetchPartition)
		want   typev1.ErrorReason
	}{
		{"offset too high", func(p *brokerv1.FetchPartition) { p.FetchOffset = 3 }, typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE},
		{"offset negative", func(p *brokerv1.FetchPartition) { p.FetchOffset = -5 }, typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE},
		{"unknown topic", func(p *brokerv1.FetchPartition) { p.TopicId = []byte("sixteen bytes id") }, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC},
		{"short topic id", func(p *brokerv1.FetchPartition) { p.TopicId = []byte("x") }, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{"unknown partition", func(p *brokerv1.FetchPartition) { p.Partition = 1 }, typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION},
		{"client knows a newer epoch", func(p *brokerv1.FetchPartition) { p.CurrentLeaderEpoch = 50 }, typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH},
		{"client has seen more", func(p *brokerv1.FetchPartition) { p.SeenVisibleEnd = 50 }, typev1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE},
		{"client read an epoch that is not here", func(p *brokerv1.FetchPartition) { p.FetchOffset, p.LastFetchedEpoch = 1, 9 }, typev1.ErrorReason_ERROR_REASON_LOG_TRUNCATED},
	}
	f := h.fetcher(1<<20, 0)
	for i, tt := range tests {
		part := base()
		tt.change(part)
		part.FetchId = int64(i + 1)
		f.addFull(part)
		fetchID, err := f.partitionError()
		if err.Reason != tt.want || fetchID != part.FetchId {
			t.Errorf("%s: asking %d got %v, want %v", tt.name, fetchID, err, tt.want)
		}
		if tt.name == "offset too high" && (err.Metadata["start_offset"] != "0" || err.Metadata["end_offset"] != "2") {
			t.Errorf("%s: metadata %v", tt.name, err.Metadata)
		}
	}
	// Losing leadership ends a waiting asking at once, with a hint.
	f.add(100, id, 0, 2)
	f.recv()
	ctl.SetPartition(id, 0, func(p *controllerv1.Partition) {
		p.Leader, p.LeaderEpoch = &typev1.Process{Id: 2, Incarnation: 3}, p.LeaderEpoch+1
	})
	if _, err := f.partitionError(); err.Reason != typev1.ErrorReason_ERROR_REASON_NOT_LEADER || err.Leader.GetId() != 2 {
		t.Errorf("after losing leadership: %v", err)
	}
}

func TestMoveAndRemove(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	p := h.producer()
	p.mustStore(id, 0, "a")
	p.mustStore(id, 0, "b")
	f := h.fetcher(1<<20, 0)
	f.add(1, id, 0, 0)
	f.values(2)
	f.add(2, id, 0, 1) // moves
	if resp, values := f.recv(); resp.GetBatches().GetFetchId() != 2 || !slices.Equal(values, []string{"b"}) {
		t.Errorf("after the move: %v %q", resp, values)
	}
	f.send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Update{Update: &brokerv1.FetchUpdate{RemoveFetchIds: []int64{2, 77}}}})
	f.add(3, id, 0, 2)
	for {
		resp, _ := f.recv()
		if w := resp.GetWatermarks().GetWatermarks(); len(w) == 1 && w[0].GetFetchId() == 3 {
			break
		}
	}
	p.mustStore(id, 0, "c")
	if resp, values := f.recv(); resp.GetBatches().GetFetchId() != 3 || !slices.Equal(values, []string{"c"}) {
		t.Errorf("after the removal: %v %q", resp, values)
	}
	f.add(3, id, 0, 0)
	if _, err := f.stream.Recv(); rpc.ReasonOf(err) != typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
		t.Errorf("a fetch id used again: %v", err)
	}
}

func TestFetchLimits(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 101, nil) // the harness allows 100
	f := h.fetcher(1<<20, 0)
	u := &brokerv1.FetchUpdate{}
	for n := range int32(101) {
		u.Add = append(u.Add, &brokerv1.FetchPartition{FetchId: int64(n), TopicId: id.Bytes(), Partition: n, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, SeenVisibleEnd: -1})
	}
	f.send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Update{Update: u}})
	for {
		if _, err := f.stream.Recv(); err != nil {
			if rpc.ReasonOf(err) != typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED {
				t.Errorf("got %v", err)
			}
			break
		}
	}
	for name, first := range map[string]*brokerv1.FetchRequest{
		"no initial":      {Message: &brokerv1.FetchRequest_Credit{Credit: &brokerv1.FetchCredit{Bytes: 1}}},
		"negative credit": {Message: &brokerv1.FetchRequest_Initial{Initial: &brokerv1.FetchInitial{CreditBytes: -1}}},
	} {
		stream, err := h.client.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(first); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil || status.Code(err).String() != "InvalidArgument" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// case 43
func TestReaderThatDoesNotReadIsBounded(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	p := h.producer()
	value := strings.Repeat("v", 60_000)
	for range 200 {
		p.mustStore(id, 0, value)
	}
	before := fetchedBytes(t, h)
	f := h.fetcher(1<<40, 1<<16) // credit without end, and it never reads
	f.add(1, id, 0, 0)
	conn, err := rpc.Dial(h.addr, rpc.DialConfig{}) // a window of its own
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	g := (&harness{t: t, client: brokerv1.NewLogServiceClient(conn)}).fetcher(1<<40, 1<<16)
	g.add(1, id, 0, 0)
	g.values(200) // meanwhile another one gets everything
	read := fetchedBytes(t, h) - before - 200*60_000
	if limit := 3_000_000.0; read > limit {
		t.Errorf("%v bytes were read for a reader that takes none, more than %v", read, limit)
	}
	f.values(200)
}

// case 43
func TestManyReadersThatDoNotReadShareABudget(t *testing.T) {
	const budget = 1 << 20
	h := start(t, brokertest.Start(t), harnessOptions{fetchMemory: budget})
	id := h.topic("t", 1, nil)
	p := h.producer()
	value := strings.Repeat("v", 30_000)
	for range 60 {
		p.mustStore(id, 0, value)
	}
	before := fetchedBytes(t, h)
	var unread []*fetcher
	for range 40 {
		conn, err := rpc.Dial(h.addr, rpc.DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		f := (&harness{t: t, client: brokerv1.NewLogServiceClient(conn)}).fetcher(1<<40, 1<<20)
		f.add(1, id, 0, 0)
		unread = append(unread, f)
	}
	// All have been served as far as they will be once a last one gets everything.
	last := h.fetcher(1<<40, 1<<20)
	last.add(1, id, 0, 0)
	last.values(60)
	read := fetchedBytes(t, h) - before - 60*30_000
	// Each may have two responses in the server and one in its client's window;
	// those that came before the budget was used up, or just then, have large ones.
	if limit := float64(budget + (16 << 20) + 40*(2*smallResponseBytes+2*(64<<10))); read > limit {
		t.Errorf("%v bytes are on their way to readers that do not read, more than %v", read, limit)
	}
	for _, f := range unread[:3] {
		f.values(60)
	}
	if err := unread[5].stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

// fetchedBytes is what has been read from logs for readers.
func fetchedBytes(t *testing.T, h *harness) float64 {
	t.Helper()
	return counter(t, h, "leat_broker_fetch_bytes_total")
}

// counter is the value of a counter without labels.
func counter(t *testing.T, h *harness, name string) float64 {
	t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("no metric " + name)
	return 0
}

func TestListOffsets(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	empty := h.topic("empty", 1, nil)
	p := h.producer()
	// case 6
	for _, ts := range []int64{100, 50, 200, 10} {
		b, err := record.NewBuilder(record.DefaultBuilderOptions())
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := b.Append(&record.Record{Timestamp: ts, Value: []byte("v")}); err != nil || !ok {
			t.Fatal(ok, err)
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if r := p.result(p.send(id, 0, batch, nil)); r.GetError() != nil {
			t.Fatal(r)
		}
	}
	place := func(p typev1.OffsetSpec_Place) *typev1.OffsetSpec {
		return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Place_{Place: p}}
	}
	at := func(ms int64) *typev1.OffsetSpec {
		return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Timestamp{Timestamp: timestamppb.New(timeOf(ms))}}
	}
	tests := []struct {
		name   string
		id     [16]byte
		spec   *typev1.OffsetSpec
		offset int64
		ts     int64
		reason typev1.ErrorReason
	}{
		{"earliest", id, place(typev1.OffsetSpec_PLACE_EARLIEST), 0, -1, 0},
		{"latest", id, place(typev1.OffsetSpec_PLACE_LATEST), 4, -1, 0},
		{"greatest timestamp", id, place(typev1.OffsetSpec_PLACE_MAX_TIMESTAMP), 2, 200, 0},
		{"at 60", id, at(60), 0, 100, 0},
		{"at 101", id, at(101), 2, 200, 0},
		{"at 201", id, at(201), -1, -1, 0},
		{"earliest of nothing", empty, place(typev1.OffsetSpec_PLACE_EARLIEST), 0, -1, 0},
		{"greatest timestamp of nothing", empty, place(typev1.OffsetSpec_PLACE_MAX_TIMESTAMP), -1, -1, 0},
		{"no spec", id, nil, -1, -1, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{"unknown place", id, place(44), -1, -1, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{"unknown topic", [16]byte{9}, place(typev1.OffsetSpec_PLACE_LATEST), -1, -1, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC},
	}
	req := &brokerv1.ListOffsetsRequest{}
	for _, tt := range tests {
		req.Partitions = append(req.Partitions, &brokerv1.ListOffsetsPartition{TopicId: tt.id[:], Spec: tt.spec, CurrentLeaderEpoch: -1})
	}
	resp, err := h.client.ListOffsets(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range tests {
		r := resp.GetResults()[i]
		ts := int64(-1)
		if r.GetTimestamp() != nil {
			ts = r.GetTimestamp().AsTime().UnixMilli()
		}
		if r.GetOffset() != tt.offset || ts != tt.ts || r.GetError().GetReason() != tt.reason {
			t.Errorf("%s: %v", tt.name, r)
		}
	}
	d, err := h.client.DescribeReplicas(t.Context(), &brokerv1.DescribeReplicasRequest{})
	if err != nil || len(d.GetReplicas()) != 2 {
		t.Fatalf("replicas: %v, %v", d, err)
	}
	for _, r := range d.GetReplicas() {
		if !r.GetLeads() || r.GetHighWatermark() != r.GetLogEndOffset() || r.GetDurableEndOffset() != r.GetLogEndOffset() {
			t.Errorf("replica %v", r)
		}
		if r.Age != nil {
			t.Errorf("an age is told that nobody asked for: %v", r)
		}
	}
	// Records are as old as their append, whatever timestamps they carry.
	ages := &brokerv1.DescribeReplicasRequest{}
	for _, offset := range []int64{0, 2, 1 << 40} {
		ages.Replicas = append(ages.Replicas, &brokerv1.ReplicaName{TopicId: id[:], AgeOf: &offset})
	}
	if d, err = h.client.DescribeReplicas(t.Context(), ages); err != nil || len(d.GetReplicas()) != 3 {
		t.Fatalf("ages: %v, %v", d, err)
	}
	for i, r := range d.GetReplicas() {
		if known := i < 2; known != (r.Age != nil) || r.GetAgeAtLeast() || r.GetAge().AsDuration() < 0 || r.GetAge().AsDuration() > time.Minute {
			t.Errorf("the age of question %d is %v", i, r)
		}
	}
}

func TestReplicationAndHealth(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	conn, err := rpc.Dial(h.addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	repl, err := brokerv1.NewReplicationServiceClient(conn).Replicate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repl.Recv(); rpc.ReasonOf(err) != typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE {
		t.Errorf("replicate: %v", err)
	}
	health, err := brokerv1.NewHealthStreamServiceClient(conn).WatchHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(req *brokerv1.WatchHealthRequest) *brokerv1.WatchHealthResponse {
		if err := health.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := health.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	send(&brokerv1.WatchHealthRequest{Message: &brokerv1.WatchHealthRequest_Initial{Initial: &brokerv1.HealthInitial{Handshake: rpc.LocalHandshake()}}})
	a := send(&brokerv1.WatchHealthRequest{Message: &brokerv1.WatchHealthRequest_Probe{Probe: &brokerv1.HealthProbe{ProbeId: 5}}}).GetAnswer()
	if a.GetProbeId() != 5 || a.GetBroker().GetIncarnation() != 7 || !a.GetDisksOk() || a.GetPosition().GetRevision() < 100 {
		t.Errorf("answer %v", a)
	}
}
