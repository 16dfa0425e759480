package handler

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// producing is a produce stream with a test at its client's end.
type producing struct {
	t *testing.T
	gatewayv1.ProducerService_ProduceClient
}

func (r *rig) open(t *testing.T, ctx context.Context, o *gatewayv1.ProduceOpen) producing {
	t.Helper()
	s, err := r.produce.Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p := producing{t, s}
	p.put(&gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Open{Open: o}})
	if p.get().GetOpened().GetMaxInFlightRecords() == 0 {
		t.Fatal("open is answered first, with the window")
	}
	return p
}

func (p producing) put(m *gatewayv1.ProduceRequest) {
	p.t.Helper()
	if err := p.Send(m); err != nil {
		p.t.Fatal(err)
	}
}

func (p producing) send(id int64, records ...*gatewayv1.ProduceRecord) {
	p.t.Helper()
	p.put(&gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Send{Send: &gatewayv1.ProduceSend{Id: id, Topic: "a", Records: records}}})
}

func (p producing) get() *gatewayv1.ProduceResponse {
	p.t.Helper()
	m, err := p.Recv()
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

func (p producing) half() {
	p.t.Helper()
	if err := p.CloseSend(); err != nil {
		p.t.Fatal(err)
	}
}

func rec(value string) *gatewayv1.ProduceRecord {
	return &gatewayv1.ProduceRecord{Value: []byte(value)}
}

// TestProduceStream sends, half-closes, and gets every result, the summary and OK;
// null, empty and present reach the producer as three different things. // case 19
func TestProduceStream(t *testing.T) {
	r := newRig(t, nil)
	p := r.open(t, testContext(t), &gatewayv1.ProduceOpen{})
	p.send(1, rec("x"), &gatewayv1.ProduceRecord{Key: []byte{}, TimestampMs: ptr(int64(12)), Partition: ptr(int32(2)), Headers: []*typev1.Header{
		{Key: []byte("k"), Value: []byte{}}, {Key: []byte("k")}, {Key: []byte("k"), Value: []byte("v")},
	}})
	p.half()
	res := p.get().GetResult()
	if res.GetId() != 1 || len(res.Ranges) != 2 || res.Ranges[0].BaseOffset != 0 || res.Ranges[1].Partition != 2 {
		t.Fatalf("result %v", res)
	}
	if s := p.get().GetSummary(); s.GetRecords() != 2 || s.GetAcknowledged() != 2 {
		t.Fatalf("summary %v", s)
	}
	if _, err := p.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("ends with %v", err)
	}
	sent := r.mesh.producers[0].sent
	if sent[0].Key != nil || string(sent[0].Value) != "x" || sent[0].Partition != nil || sent[0].Timestamp.IsZero() {
		t.Errorf("first record %+v", sent[0])
	}
	second := sent[1]
	if second.Key == nil || len(second.Key) != 0 || second.Value != nil || second.Timestamp.UnixMilli() != 12 {
		t.Errorf("second record %+v", second)
	}
	h := second.Headers
	if len(h) != 3 || h[0].Value == nil || len(h[0].Value) != 0 || h[1].Value != nil || string(h[2].Value) != "v" {
		t.Errorf("headers %+v", h)
	}
}

// TestProduceFailsAlone: a record that cannot be stored fails alone, its neighbours
// go through. // case 18
func TestProduceFailsAlone(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		var next int64
		m.onSend = func(rec client.Record, done func(client.Result)) error {
			switch string(rec.Value) {
			case "big":
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, "too large").With("partition", "1")
			case "nowhere":
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, "no such partition")
			}
			done(client.Result{Partition: 0, Offset: next})
			next++
			return nil
		}
	})
	p := r.open(t, testContext(t), &gatewayv1.ProduceOpen{})
	nowhere := rec("nowhere")
	nowhere.Partition = ptr(int32(77))
	p.send(5, rec("x"), rec("big"), rec("y"), nowhere, rec("z"))
	got := p.get().GetResult()
	var parts []string
	for _, x := range got.Ranges {
		s := "ok"
		if x.Error != nil {
			s = rpc.ReasonName(x.Error.Reason)
		}
		parts = append(parts, s)
	}
	if strings.Join(parts, " ") != "ok RECORD_TOO_LARGE ok UNKNOWN_PARTITION ok" {
		t.Errorf("ranges %v", got.Ranges)
	}
	if got.Ranges[1].Partition != 1 || got.Ranges[3].Partition != 77 || got.Ranges[4].BaseOffset != 2 {
		t.Errorf("ranges %v", got.Ranges)
	}
}

// TestProduceUnknownTopic fails a send at once, not record by record.
func TestProduceUnknownTopic(t *testing.T) {
	var asked int
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onSend = func(client.Record, func(client.Result)) error {
			asked++
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, "no topic")
		}
	})
	p := r.open(t, testContext(t), &gatewayv1.ProduceOpen{OnError: gatewayv1.OnError_ON_ERROR_STOP_PARTITION})
	p.send(1, rec("x"), rec("y"), rec("z"))
	got := p.get().GetResult().Ranges
	if len(got) != 2 || got[0].Error.Reason != typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC || got[1].Error.Reason != typev1.ErrorReason_ERROR_REASON_PARTITION_STOPPED || got[1].Count != 2 {
		t.Errorf("ranges %v", got)
	}
	p.send(2, rec("x"))
	if got := p.get().GetResult().Ranges; got[0].Error.Reason != typev1.ErrorReason_ERROR_REASON_PARTITION_STOPPED {
		t.Errorf("ranges %v", got)
	}
	if asked != 1 {
		t.Errorf("the producer was asked %d times", asked)
	}
}

func TestProduceOpenTimeout(t *testing.T) {
	r := newRig(t, func(l *Limits, _ *fakeMesh, _ *Config) { l.Produce.OpenTimeout = 20 * time.Millisecond })
	s, err := r.produce.Produce(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); reason(err) != "STREAM_PROTOCOL" {
		t.Errorf("ends with %v", err)
	}
}

// held keeps results back until they are let go.
type held struct {
	mu      sync.Mutex
	waiting []func()
	over    bool // nothing is held back any more
}

func (h *held) onSend(_ client.Record, done func(client.Result)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		done(client.Result{Partition: 0, Offset: 0})
		return nil
	}
	h.waiting = append(h.waiting, func() { done(client.Result{Partition: 0, Offset: 0}) })
	return nil
}

func (h *held) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting)
}

func (h *held) letGo() int {
	h.mu.Lock()
	waiting := h.waiting
	h.waiting = nil
	h.mu.Unlock()
	for _, f := range waiting {
		f()
	}
	return len(waiting)
}

// TestProduceWindow: beyond the window nothing is read, and everything goes on once
// there is room.
func TestProduceWindow(t *testing.T) {
	var h held
	r := newRig(t, func(l *Limits, m *fakeMesh, _ *Config) {
		l.Produce.MaxInFlightRecords = 10
		m.onSend = h.onSend
	})
	p := r.open(t, testContext(t), &gatewayv1.ProduceOpen{})
	for id := range int64(30) {
		p.send(id, rec("x"))
	}
	eventually(t, "the window is full", func() bool { return h.count() == 10 })
	p.half()
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	if n := h.letGo(); n != 10 {
		t.Errorf("%d records were unanswered", n)
	}
	for range 30 {
		if p.get().GetResult() == nil {
			t.Fatal("a result for each send")
		}
	}
	if s := p.get().GetSummary(); s.GetAcknowledged() != 30 {
		t.Errorf("summary %v", s)
	}
}

// TestProduceUnreadResults: a client that never reads results cannot make the
// gateway hold more than the window and what the transport buffers.
func TestProduceUnreadResults(t *testing.T) {
	r := newRig(t, func(l *Limits, _ *fakeMesh, _ *Config) { l.Produce.MaxInFlightRecords = 10 })
	ctx, cancel := context.WithCancel(testContext(t))
	p := r.open(t, ctx, &gatewayv1.ProduceOpen{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for id := int64(0); ; id++ {
			if p.ProducerService_ProduceClient.Send(&gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Send{Send: &gatewayv1.ProduceSend{
				Id: id, Topic: strings.Repeat("long", 50), Records: []*gatewayv1.ProduceRecord{rec("x")},
			}}}) != nil {
				return
			}
		}
	})
	// Sending stops by itself: the count stands still for a while.
	last, still := -1, 0
	eventually(t, "the gateway stops reading", func() bool {
		r.mesh.mu.Lock()
		n := r.mesh.producers[0].count()
		r.mesh.mu.Unlock()
		if n == last && n > 0 {
			still++
		} else {
			last, still = n, 0
		}
		return still > 100
	})
	if last > 20_000 {
		t.Errorf("%d sends were taken without a result being read", last)
	}
	cancel()
	wg.Wait()
}

// TestProduceDrain: later sends are not done, what was on its way is answered, and
// the half-close is answered as ever.
func TestProduceDrain(t *testing.T) {
	var h held
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) { m.onSend = h.onSend })
	p := r.open(t, testContext(t), &gatewayv1.ProduceOpen{})
	p.send(1, rec("x"))
	eventually(t, "the record is on its way", func() bool { return h.count() == 1 })
	var wg sync.WaitGroup
	wg.Go(func() { r.server.Shutdown(testContext(t)) })
	defer wg.Wait()
	if p.get().GetDrain() == nil {
		t.Fatal("drain is told")
	}
	p.send(2, rec("y"))
	if e := p.get().GetResult().GetRanges()[0].GetError(); e.GetReason() != typev1.ErrorReason_ERROR_REASON_DRAINING || e.GetOutcome() != typev1.Outcome_OUTCOME_NOT_DONE {
		t.Fatalf("send 2: %v", e)
	}
	h.letGo()
	if res := p.get().GetResult(); res.GetId() != 1 || res.Ranges[0].Error != nil {
		t.Fatalf("send 1: %v", res)
	}
	p.half()
	if s := p.get().GetSummary(); s.GetAcknowledged() != 1 || s.GetFailed() != 1 {
		t.Fatalf("summary %v", s)
	}
	if _, err := p.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("ends with %v", err)
	}
}

// TestProduceClientGone: what a broken stream had charged is given back once its
// records have results.
func TestProduceClientGone(t *testing.T) {
	var h held
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) { m.onSend = h.onSend })
	ctx, cancel := context.WithCancel(testContext(t))
	p := r.open(t, ctx, &gatewayv1.ProduceOpen{})
	p.send(1, rec("x"), rec("y"))
	p.send(2, rec("z"))
	eventually(t, "the records are on their way", func() bool { return h.count() == 3 })
	all := r.cfg.Limits.MaxProduceBytes
	if r.budget.TryAcquire(all) {
		t.Fatal("nothing is charged")
	}
	cancel()
	eventually(t, "the stream is gone", func() bool { return r.produceStreams.Load() == 0 })
	h.letGo()
	eventually(t, "the bytes are given back", func() bool {
		if !r.budget.TryAcquire(all) {
			return false
		}
		r.budget.Release(all)
		return true
	})
}

// TestProduceBudget: over all streams no more is taken in than the budget, and
// waiting streams go on when there is room.
func TestProduceBudget(t *testing.T) {
	var h held
	r := newRig(t, func(l *Limits, m *fakeMesh, _ *Config) {
		l.MaxProduceBytes = 10_000
		m.onSend = h.onSend
	})
	ctx := testContext(t)
	value := strings.Repeat("x", 3000)
	streams := make([]producing, 6)
	for i := range streams {
		streams[i] = r.open(t, ctx, &gatewayv1.ProduceOpen{})
		streams[i].send(1, rec(value))
	}
	eventually(t, "three sends fit", func() bool { return h.count() == 3 })
	answered := 0
	eventually(t, "all are taken in turn", func() bool {
		n := h.letGo()
		if n > 3 {
			t.Fatalf("%d sends at once", n)
		}
		answered += n
		return answered == 6
	})
	for _, s := range streams {
		if s.get().GetResult().GetId() != 1 {
			t.Error("every send has its result")
		}
	}
}

// TestProducersAreShared by streams with the same settings, so that they fill
// batches together; the kinds are bounded; those that stop on errors are alone.
func TestProducersAreShared(t *testing.T) {
	r := newRig(t, func(l *Limits, _ *fakeMesh, _ *Config) { l.MaxProducers = 2 })
	ctx := testContext(t)
	r.open(t, ctx, &gatewayv1.ProduceOpen{})
	r.open(t, ctx, &gatewayv1.ProduceOpen{ClientId: "another", Acks: typev1.Acks_ACKS_ALL})
	if n := len(r.mesh.producers); n != 1 {
		t.Errorf("%d producers for the same settings", n)
	}
	second := r.open(t, ctx, &gatewayv1.ProduceOpen{Acks: typev1.Acks_ACKS_LEADER})
	s, err := r.produce.Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	third := &gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Open{Open: &gatewayv1.ProduceOpen{Compression: typev1.CompressionType_COMPRESSION_TYPE_ZSTD}}}
	if err := s.Send(third); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); reason(err) != "LIMIT_EXCEEDED" {
		t.Errorf("a third kind: %v", err)
	}
	own := r.open(t, ctx, &gatewayv1.ProduceOpen{OnError: gatewayv1.OnError_ON_ERROR_STOP_PARTITION})
	if p := r.mesh.producers[2]; !p.cfg.StopPartition || !p.cfg.TraceHeaders {
		t.Errorf("config %+v", p.cfg)
	}
	own.half()
	if own.get().GetSummary() == nil {
		t.Error("summary")
	}
	eventually(t, "it is closed with its stream", func() bool {
		p := r.mesh.producers[2]
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.closed
	})
	// One that nobody uses makes room.
	second.half()
	second.get()
	eventually(t, "its stream has ended", func() bool { return r.produceStreams.Load() == 2 })
	r.open(t, ctx, third.GetOpen())
}

func TestStreamLimit(t *testing.T) {
	r := newRig(t, func(l *Limits, _ *fakeMesh, _ *Config) { l.MaxProduceStreams = 1 })
	ctx := testContext(t)
	r.open(t, ctx, &gatewayv1.ProduceOpen{})
	s, err := r.produce.Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); reason(err) != "LIMIT_EXCEEDED" || !strings.Contains(err.Error(), "max.produce.streams") {
		t.Errorf("ends with %v", err)
	}
}
