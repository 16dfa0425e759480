package handler

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/types/known/durationpb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

func TestProduceAndFetchInOrder(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("hdfs", 2, nil)
	p := h.producer()
	const n = 200
	var sent []int64
	for i := range n {
		sent = append(sent, p.send(id, int32(i%2), encode(t, fmt.Sprintf("r%d", i)), nil))
	}
	for i, c := range sent {
		if r := p.result(c); r.GetError() != nil || r.GetBaseOffset() != int64(i/2) || r.GetLeaderEpoch() < 1 {
			t.Fatalf("batch %d: %v", i, r)
		}
	}
	for part := range int32(2) {
		f := h.fetcher(1<<20, 0)
		f.add(1, id, part, 0)
		for i, v := range f.values(n / 2) {
			if want := fmt.Sprintf("r%d", 2*i+int(part)); v != want {
				t.Fatalf("partition %d offset %d: %q, want %q", part, i, v, want)
			}
		}
	}
}

func TestAcksNoneHasNoAnswer(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	p := h.producer()
	for range 3 * DefaultMaxInFlight {
		p.send(id, 0, encode(t, "x"), func(b *brokerv1.ProduceBatch) { b.Acks = typev1.Acks_ACKS_NONE })
	}
	if base := p.mustStore(id, 0, "last"); base != 3*DefaultMaxInFlight {
		t.Errorf("the batch after those without acks is at %d", base)
	}
	if len(p.got) != 1 {
		t.Errorf("%d answers came, want one", len(p.got))
	}
}

// resum sets a batch's checksum to what its bytes have.
func resum(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// case 20
func TestMalformedBatches(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, map[string]string{"max.message.bytes": "2000"})
	good := func() []byte { return encode(t, "value") }
	tests := []struct {
		name  string
		batch []byte
		want  typev1.ErrorReason
	}{
		{"number of records -1", func() []byte { b := good(); binary.BigEndian.PutUint32(b[57:], 0xffffffff); return resum(b) }(), typev1.ErrorReason_ERROR_REASON_INVALID_RECORD},
		{"number of records huge", func() []byte { b := good(); binary.BigEndian.PutUint32(b[57:], 0x7fffffff); return resum(b) }(), typev1.ErrorReason_ERROR_REASON_INVALID_RECORD},
		{"header count -1", func() []byte { b := good(); b[len(b)-1] = 1; return resum(b) }(), typev1.ErrorReason_ERROR_REASON_INVALID_RECORD},
		{"value longer than the record", func() []byte { b := good(); b[len(b)-7] = 0x7e; return resum(b) }(), typev1.ErrorReason_ERROR_REASON_INVALID_RECORD},
		{"magic 1", func() []byte { b := good(); b[16] = 1; return b }(), typev1.ErrorReason_ERROR_REASON_INVALID_RECORD},
		{"checksum", func() []byte { b := good(); b[len(b)-2] ^= 1; return b }(), typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
		{"cut", good()[:70], typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
		{"shorter than a header", good()[:20], typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
		{"empty", nil, typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
		{"two batches", append(good(), good()...), typev1.ErrorReason_ERROR_REASON_INVALID_RECORD},
		{"control", func() []byte { b := good(); b[22] |= 0x20; return resum(b) }(), typev1.ErrorReason_ERROR_REASON_INVALID_RECORD},
		{"too large", encode(t, strings.Repeat("x", 2000)), typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE},
	}
	p := h.producer()
	for _, tt := range tests {
		r := p.result(p.send(id, 0, tt.batch, nil))
		if got := r.GetError().GetReason(); got != tt.want || r.GetError().GetOutcome() != typev1.Outcome_OUTCOME_NOT_DONE || r.GetBaseOffset() != -1 {
			t.Errorf("%s: got %v, want %v", tt.name, r, tt.want)
		}
	}
	if base := p.mustStore(id, 0, "neighbour"); base != 0 {
		t.Errorf("the good batch is at %d: one of the bad ones was stored", base)
	}
}

// case 18
func TestBatchSizeBoundary(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, map[string]string{"max.message.bytes": "1000"})
	p := h.producer()
	base := len(encode(t, strings.Repeat("x", 800)))
	for _, size := range []int{999, 1000, 1001} {
		batch := encode(t, strings.Repeat("x", 800+size-base))
		if len(batch) != size {
			t.Fatalf("the test made a batch of %d bytes, want %d", len(batch), size)
		}
		r := p.result(p.send(id, 0, batch, nil))
		if tooLarge := r.GetError().GetReason() == typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE; tooLarge != (size > 1000) || !tooLarge && r.GetError() != nil {
			t.Errorf("%d bytes: %v", size, r)
		}
	}
}

// case 41
func TestMessagesAboveFourMiB(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, map[string]string{"max.message.bytes": "8388608"})
	p := h.producer()
	overhead := 4_194_304 - 64
	for _, extra := range []int{-1, 0, 1, 200} {
		value := strings.Repeat("y", overhead+extra)
		base := p.mustStoreLarge(id, value)
		f := h.fetcher(1, 0)
		f.add(1, id, 0, base)
		if got := f.values(1); got[0] != value {
			t.Errorf("a value of %d bytes came back with %d", len(value), len(got[0]))
		}
	}
}

func (p *producer) mustStoreLarge(id [16]byte, value string) int64 {
	p.t.Helper()
	o := record.DefaultBuilderOptions()
	o.MaxBytes = 8 << 20
	b, err := record.NewBuilder(o)
	if err != nil {
		p.t.Fatal(err)
	}
	if ok, err := b.Append(&record.Record{Value: []byte(value)}); err != nil || !ok {
		p.t.Fatalf("append: %v %v", ok, err)
	}
	batch, err := b.Build()
	if err != nil {
		p.t.Fatal(err)
	}
	r := p.result(p.send(id, 0, batch, nil))
	if r.GetError() != nil {
		p.t.Fatal(r.GetError())
	}
	return r.GetBaseOffset()
}

func TestProduceRefusals(t *testing.T) {
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{})
	id := h.topic("t", 1, nil)
	shard := h.topic("__consumer_offsets", 1, nil)
	elsewhere := ctl.CreateTopic("elsewhere", 2, 1, nil)
	ctl.Change(func(*brokertest.Controller) {})
	ctl.SetPartition(elsewhere, 0, func(p *controllerv1.Partition) { p.Leader = &typev1.Process{Id: 2, Incarnation: 9}; p.LeaderEpoch = 4 })
	ctl.SetPartition(shard, 0, func(p *controllerv1.Partition) { p.ShardEpoch = 5 }) // last: once it is in force, so is the rest
	fence := func(epoch int64, attempt int32) func(*brokerv1.ProduceBatch) {
		return func(b *brokerv1.ProduceBatch) {
			b.ShardFence = &brokerv1.ShardFence{ShardEpoch: epoch, Attempt: attempt}
		}
	}
	brokertest.Await(t, "the image has it all", func() bool {
		return h.watcher.Image().Partition(elsewhere, 0).GetLeaderEpoch() == 4 && h.watcher.Image().Partition(shard, 0).GetShardEpoch() == 5
	})
	p := h.producer()
	// The shard's record travels to the core with the image.
	brokertest.Await(t, "the shard epoch is in force", func() bool {
		return p.result(p.send(shard, 0, encode(t, "a"), fence(4, 9))).GetError().GetReason() == typev1.ErrorReason_ERROR_REASON_SHARD_FENCED
	})
	tests := []struct {
		name   string
		id     [16]byte
		n      int32
		change func(*brokerv1.ProduceBatch)
		want   typev1.ErrorReason
	}{
		{"unknown topic", [16]byte{1, 2, 3}, 0, nil, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC},
		{"short topic id", id, 0, func(b *brokerv1.ProduceBatch) { b.TopicId = []byte{1} }, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{"unknown partition", id, 7, nil, typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION},
		{"led elsewhere", elsewhere, 0, nil, typev1.ErrorReason_ERROR_REASON_NOT_LEADER},
		{"older leader epoch", id, 0, func(b *brokerv1.ProduceBatch) { b.LeaderEpoch = 0 }, typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH},
		{"newer leader epoch", id, 0, func(b *brokerv1.ProduceBatch) { b.LeaderEpoch = 99 }, typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH},
		{"acks", id, 0, func(b *brokerv1.ProduceBatch) { b.Acks = 17 }, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{"timeout", id, 0, func(b *brokerv1.ProduceBatch) { b.Timeout = durationpb.New(-time.Second) }, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{"fence elsewhere", id, 0, fence(5, 0), typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{"shard without a fence", shard, 0, nil, typev1.ErrorReason_ERROR_REASON_SHARD_FENCED},
		{"shard with its fence", shard, 0, fence(5, 2), 0},
		{"shard with an earlier attempt", shard, 0, fence(5, 1), typev1.ErrorReason_ERROR_REASON_SHARD_FENCED},
		{"shard with a later owner", shard, 0, fence(6, 0), 0},
		{"shard with the earlier owner", shard, 0, fence(5, 9), typev1.ErrorReason_ERROR_REASON_SHARD_FENCED},
	}
	for _, tt := range tests {
		r := p.result(p.send(tt.id, tt.n, encode(t, "v"), tt.change))
		if got := r.GetError().GetReason(); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, r, tt.want)
		}
		if tt.want == typev1.ErrorReason_ERROR_REASON_NOT_LEADER && (r.GetError().GetLeader().GetId() != 2 || r.GetError().GetLeader().GetEpoch() != 4) {
			t.Errorf("%s: hint %v", tt.name, r.GetError().GetLeader())
		}
	}
}

func TestOnePartitionHoldsHalfTheWindow(t *testing.T) {
	gate := brokertest.NewSyncGate(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: gate, maxInFlight: 8})
	t.Cleanup(gate.Release)
	slow, quick := h.topic("slow", 1, nil), h.topic("quick", 1, nil)
	gate.Hold("slow-0")
	p := h.producer()
	var sent []int64
	for range 6 {
		sent = append(sent, p.send(slow, 0, encode(t, "s"), nil))
	}
	if base := p.mustStore(quick, 0, "q"); base != 0 {
		t.Errorf("the quick partition's batch is at %d", base)
	}
	for _, c := range sent[4:] {
		if r := p.result(c); r.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED || r.GetError().GetAction() != typev1.Action_ACTION_RETRY {
			t.Errorf("batch beyond half the window: %v", r)
		}
	}
	gate.Release()
	for i, c := range sent[:4] {
		if r := p.result(c); r.GetError() != nil || r.GetBaseOffset() != int64(i) {
			t.Errorf("batch %d: %v", i, r)
		}
	}
}

func TestGroupCommit(t *testing.T) {
	gate := brokertest.NewSyncGate(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: gate})
	t.Cleanup(gate.Release)
	id := h.topic("t", 1, nil)
	p := h.producer()
	p.mustStore(id, 0, "the first sync of a log makes names durable too")
	began := gate.Hold("00000000000000000000.log")
	first := p.send(id, 0, encode(t, "first"), nil)
	<-began
	var sent []int64
	for range 20 {
		sent = append(sent, p.send(id, 0, encode(t, "x"), nil))
	}
	r, err := h.manager.Lookup(id.Bytes(), 0)
	if err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "all are appended while the sync runs", func() bool { return r.Describe().GetLogEndOffset() == 22 })
	if d := r.Describe(); d.GetHighWatermark() != 1 {
		t.Errorf("visible before the sync: %v", d)
	}
	gate.Release()
	for _, c := range append(sent, first) {
		if r := p.result(c); r.GetError() != nil {
			t.Fatal(r)
		}
	}
	if n := gate.Count(); n != 2 {
		t.Errorf("%d syncs for 21 batches, want 2", n)
	}
}

// case 45
func TestFailedSyncIsNeverAcknowledged(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: fsys, noCheckpoints: true}) // whose sync could meet the fault first
	// One and three are on the first disk, two is on the second.
	one, two, three := h.topic("one", 1, nil), h.topic("two", 1, nil), h.topic("three", 1, nil)
	p := h.producer()
	p.mustStore(one, 0, "good")
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpSync}, Path: "one-0", Times: 1, Err: syscall.EIO})
	r := p.result(p.send(one, 0, encode(t, "bad"), nil))
	if r.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE || r.GetError().GetOutcome() != typev1.Outcome_OUTCOME_UNKNOWN {
		t.Fatalf("the batch of the failed sync: %v", r)
	}
	for range 3 {
		r := p.result(p.send(one, 0, encode(t, "later"), nil))
		if r.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE || r.GetError().GetOutcome() != typev1.Outcome_OUTCOME_NOT_DONE {
			t.Fatalf("a later batch: %v", r)
		}
	}
	p.mustStore(two, 0, "the other disk serves")
	brokertest.Await(t, "its other replica is offline too", func() bool {
		return p.result(p.send(three, 0, encode(t, "x"), nil)).GetError().GetReason() == typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE
	})
	f := h.fetcher(1000, 0)
	f.add(1, one, 0, 0)
	if _, err := f.partitionError(); err.Reason != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE {
		t.Errorf("a read from the failed disk: %v", err)
	}
	h.topic("four", 1, nil)
	for _, r := range h.store.Replicas() {
		if r.Name() == "four-0" && r.Disk.Err() != nil {
			t.Errorf("a new replica was put on the failed disk")
		}
	}
}

// overdue is how a batch ends whose timeout passes while its sync hangs. The timeout is
// short, and longer each time that it passed before the batch was appended.
func (p *producer) overdue(id topicid.ID, batch []byte) *rpc.Error {
	p.t.Helper()
	for timeout := 60 * time.Millisecond; ; timeout *= 2 {
		r := p.result(p.send(id, 0, batch, func(b *brokerv1.ProduceBatch) { b.Timeout = durationpb.New(timeout) }))
		err := rpc.FromProto(r.GetError())
		if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED) || err.Outcome != typev1.Outcome_OUTCOME_NOT_DONE || timeout > brokertest.Patience {
			return err
		}
	}
}

func TestDeadlineIsHonest(t *testing.T) {
	gate := brokertest.NewSyncGate(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: gate})
	t.Cleanup(gate.Release)
	id := h.topic("t", 1, nil)
	gate.Hold(".log")
	p := h.producer()
	if err := p.overdue(id, encode(t, "x")); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED) || err.Outcome != typev1.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("a batch whose sync hangs: %v", err)
	}
	gate.Release()
	p.mustStore(id, 0, "goes on")
}

func TestHungDiskIsNoticed(t *testing.T) {
	gate := brokertest.NewSyncGate(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: gate, diskTimeout: 100 * time.Millisecond})
	t.Cleanup(gate.Release)
	id := h.topic("t", 1, nil)
	p := h.producer()
	p.mustStore(id, 0, "x")
	// A process that stood still in the middle of a call cannot tell that from a disk that did.
	brokertest.Await(t, "no disk counts as hung before one is", h.manager.DisksOK)
	gate.Hold(".log")
	c := p.send(id, 0, encode(t, "y"), nil)
	brokertest.Await(t, "the watchdog barks", func() bool { return !h.manager.DisksOK() })
	gate.Release()
	if r := p.result(c); r.GetError() != nil {
		t.Error(r)
	}
	brokertest.Await(t, "the watchdog is content", h.manager.DisksOK)
}

// A disk that hangs in a read, with nothing being written, is noticed too.
func TestHungReadIsNoticed(t *testing.T) {
	gate := brokertest.NewSyncGate(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: gate, diskTimeout: 100 * time.Millisecond})
	t.Cleanup(gate.Release)
	id := h.topic("t", 1, nil)
	h.producer().mustStore(id, 0, "x")
	gate.HoldReads(".log")
	f := h.fetcher(1000, 0)
	f.add(1, id, 0, 0)
	brokertest.Await(t, "the watchdog barks", func() bool { return !h.manager.DisksOK() })
	gate.Release()
	brokertest.Await(t, "the watchdog is content", h.manager.DisksOK)
}

func TestLogAppendTime(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	p := h.producer()
	before := time.Now().Add(-time.Second)
	r := p.result(p.send(id, 0, encode(t, "x"), nil))
	if r.GetError() != nil || r.GetLogAppendTime().AsTime().Before(before) {
		t.Errorf("result %v", r)
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (rawCodec) Name() string                       { return "proto" }

var _ encoding.Codec = rawCodec{}

func TestMalformedMessageEndsItsStreamOnly(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	conn, err := rpc.Dial(h.addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, method := range []string{"Produce", "Fetch"} {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/leat.broker.v1.LogService/"+method, grpc.ForceCodec(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg([]byte{0xff, 0xff, 0xff}); err != nil {
			t.Fatal(err)
		}
		var out []byte
		if err := stream.RecvMsg(&out); rpc.ReasonOf(err) != typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
			t.Errorf("%s answers a malformed message with %v", method, err)
		}
	}
	// The same connection serves on.
	other := &harness{t: t, client: brokerv1.NewLogServiceClient(conn)}
	other.producer().mustStore(id, 0, "x")
	stream, err := other.client.Produce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Batch{Batch: &brokerv1.ProduceBatch{}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); rpc.ReasonOf(err) != typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL {
		t.Errorf("a batch before initial: %v", err)
	}
}

func TestTopicConfigsReachOpenLogs(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, map[string]string{"max.message.bytes": "1000"})
	p := h.producer()
	batch := encode(t, strings.Repeat("x", 1500))
	if r := p.result(p.send(id, 0, batch, nil)); r.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE {
		t.Fatalf("before the change: %v", r)
	}
	h.ctl.SetConfigs(id, map[string]string{"max.message.bytes": "5000"})
	brokertest.Await(t, "the new limit is in force", func() bool { return p.result(p.send(id, 0, batch, nil)).GetError() == nil })
}
