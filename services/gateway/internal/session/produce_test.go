package session

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

var epoch0 = time.Unix(1_700_000_000, 0)

func produceLimits() ProduceLimits {
	return ProduceLimits{
		MaxInFlightRecords: 4, MaxInFlightBytes: 1000, MaxSendRecords: 10, OpenTimeout: 10 * time.Second,
		DeliveryTimeout: 2 * time.Minute, MaxDeliveryTimeout: time.Hour, Linger: 5 * time.Millisecond, MaxLinger: 10 * time.Second, DrainTimeout: 5 * time.Second,
	}
}

func openRequest(o *gatewayv1.ProduceOpen) *gatewayv1.ProduceRequest {
	return &gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Open{Open: o}}
}

func sendRequest(id int64, records ...*gatewayv1.ProduceRecord) *gatewayv1.ProduceRequest {
	return &gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Send{Send: &gatewayv1.ProduceSend{Id: id, Topic: "t", Records: records}}}
}

func values(n int) []*gatewayv1.ProduceRecord {
	out := make([]*gatewayv1.ProduceRecord, n)
	for i := range out {
		out[i] = &gatewayv1.ProduceRecord{Value: []byte{byte(i)}}
	}
	return out
}

// newProduce returns a stream in the state, with send 1 of one record unanswered
// where the state allows one.
func newProduce(t *testing.T, state ProduceState) *Produce {
	t.Helper()
	p := NewProduce(epoch0, produceLimits(), Identity{Process: &typev1.Process{Id: 7}})
	if state == ProduceNew {
		return p
	}
	p.Receive(epoch0, openRequest(&gatewayv1.ProduceOpen{}), 2)
	if state == ProduceOpening {
		return p
	}
	p.Opened()
	p.Receive(epoch0, sendRequest(1, values(1)...), 10)
	switch state {
	case ProduceDraining:
		p.Drain(epoch0)
	case ProduceHalfClosed:
		p.HalfClose()
	case ProduceFailing:
		p.Fail(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "x"))
	case ProduceEnded:
		p.HalfClose()
		p.Done(1, 0, ok(0, 0))
	}
	if p.State() != state {
		t.Fatalf("state %s, want %s", p.State(), state)
	}
	drain(p)
	p.TakeEffects()
	return p
}

func ok(partition int32, offset int64) RecordResult {
	return RecordResult{Partition: partition, Offset: offset, LeaderEpoch: 3}
}

func failed(reason typev1.ErrorReason) RecordResult {
	return RecordResult{Partition: 0, Offset: -1, LeaderEpoch: -1, Err: rpc.Errorf(reason, "no")}
}

// drain takes all messages, in a short form.
func drain(p *Produce) []string {
	var out []string
	for m := p.Next(); m != nil; m = p.Next() {
		out = append(out, showProduce(m))
	}
	return out
}

func showProduce(m *gatewayv1.ProduceResponse) string {
	switch v := m.Message.(type) {
	case *gatewayv1.ProduceResponse_Opened:
		return fmt.Sprintf("opened %d/%d", v.Opened.MaxInFlightRecords, v.Opened.MaxInFlightBytes)
	case *gatewayv1.ProduceResponse_Drain:
		return "drain"
	case *gatewayv1.ProduceResponse_Summary:
		s := v.Summary
		return fmt.Sprintf("summary %d=%d+%d+%d", s.Records, s.Acknowledged, s.Failed, s.Unknown)
	case *gatewayv1.ProduceResponse_Result:
		parts := []string{}
		for _, r := range v.Result.Ranges {
			s := fmt.Sprintf("%d+%d@%d:%d", r.First, r.Count, r.Partition, r.BaseOffset)
			if r.Error != nil {
				s += "!" + rpc.ReasonName(r.Error.Reason) + "/" + strings.TrimPrefix(r.Error.Outcome.String(), "OUTCOME_")
			}
			parts = append(parts, s)
		}
		return fmt.Sprintf("result %d %s", v.Result.Id, strings.Join(parts, " "))
	}
	return "?"
}

func reasonOfEnd(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return "OK"
	}
	return rpc.ReasonName(rpc.ReasonOf(err))
}

// TestProduceEveryStateAndEvent walks the whole table of the produce stream: what
// each event does in each state. A state followed by a slash and a reason is where
// the stream ends.
func TestProduceEveryStateAndEvent(t *testing.T) {
	events := map[string]func(*Produce){
		"open":       func(p *Produce) { p.Receive(epoch0, openRequest(&gatewayv1.ProduceOpen{}), 2) },
		"send":       func(p *Produce) { p.Receive(epoch0, sendRequest(2, values(1)...), 10) },
		"empty":      func(p *Produce) { p.Receive(epoch0, &gatewayv1.ProduceRequest{}, 0) },
		"half-close": func(p *Produce) { p.HalfClose() },
		"drain":      func(p *Produce) { p.Drain(epoch0) },
		"opened":     func(p *Produce) { p.Opened() },
		"10s":        func(p *Produce) { p.Tick(epoch0.Add(10 * time.Second)) },
		"1h":         func(p *Produce) { p.Tick(epoch0.Add(time.Hour)) },
		"done":       func(p *Produce) { p.Done(1, 0, ok(0, 5)) },
	}
	type row struct{ open, send, empty, halfClose, drain, opened, s10, h1, done string }
	table := map[ProduceState]row{
		ProduceNew: {
			"OPENING", "ENDED/STREAM_PROTOCOL", "ENDED/STREAM_PROTOCOL", "ENDED/STREAM_PROTOCOL", "ENDED/DRAINING", "NEW",
			"ENDED/STREAM_PROTOCOL", "ENDED/STREAM_PROTOCOL", "NEW",
		},
		ProduceOpening: {"OPENING", "OPENING", "OPENING", "ENDED/OK summary 0=0+0+0", "ENDED/DRAINING", "OPEN opened 4/1000", "OPENING", "OPENING", "OPENING"},
		ProduceOpen: {
			"FAILING", "OPEN", "FAILING", "HALF_CLOSED", "DRAINING drain", "OPEN", "OPEN",
			"OPEN result 1 0+1@-1:-1!DEADLINE_EXCEEDED/UNKNOWN", "OPEN result 1 0+1@0:5",
		},
		ProduceDraining: {
			"FAILING", "DRAINING result 2 0+1@-1:-1!DRAINING/NOT_DONE", "FAILING", "HALF_CLOSED", "DRAINING", "DRAINING",
			"ENDED/DRAINING", "ENDED/DRAINING result 1 0+1@-1:-1!DEADLINE_EXCEEDED/UNKNOWN", "DRAINING result 1 0+1@0:5",
		},
		ProduceHalfClosed: {
			"HALF_CLOSED", "HALF_CLOSED", "HALF_CLOSED", "HALF_CLOSED", "HALF_CLOSED", "HALF_CLOSED", "HALF_CLOSED",
			"ENDED/OK result 1 0+1@-1:-1!DEADLINE_EXCEEDED/UNKNOWN, summary 1=0+0+1", "ENDED/OK result 1 0+1@0:5, summary 1=1+0+0",
		},
		ProduceFailing: {
			"FAILING", "FAILING", "FAILING", "FAILING", "FAILING", "FAILING", "FAILING",
			"ENDED/INVALID_REQUEST result 1 0+1@-1:-1!DEADLINE_EXCEEDED/UNKNOWN", "ENDED/INVALID_REQUEST result 1 0+1@0:5",
		},
		ProduceEnded: {"ENDED/OK", "ENDED/OK", "ENDED/OK", "ENDED/OK", "ENDED/OK", "ENDED/OK", "ENDED/OK", "ENDED/OK", "ENDED/OK"},
	}
	for state, want := range table {
		for event, expect := range map[string]string{
			"open": want.open, "send": want.send, "empty": want.empty, "half-close": want.halfClose, "drain": want.drain,
			"opened": want.opened, "10s": want.s10, "1h": want.h1, "done": want.done,
		} {
			t.Run(state.String()+"/"+event, func(t *testing.T) {
				p := newProduce(t, state)
				events[event](p)
				got := p.State().String()
				sent := strings.Join(drain(p), ", ")
				if ended, err := p.Ended(); ended {
					got += "/" + reasonOfEnd(t, err)
				}
				if sent != "" {
					got += " " + sent
				}
				if got != expect {
					t.Errorf("got %q, want %q", got, expect)
				}
			})
		}
	}
}

// TestProduceWindow reads on only while the window has room, and frees it when a
// result has been taken to be sent, not before.
func TestProduceWindow(t *testing.T) {
	p := newProduce(t, ProduceOpen) // one record of 10 bytes unanswered
	if !p.WantsRead() {
		t.Fatal("the window has room")
	}
	p.Receive(epoch0, sendRequest(2, values(3)...), 10)
	if p.WantsRead() {
		t.Fatal("four records are unanswered, the limit")
	}
	p.Done(1, 0, ok(0, 0))
	if p.WantsRead() {
		t.Fatal("the result waits: a client that does not read must not get more room")
	}
	if got := drain(p); len(got) != 1 || !p.WantsRead() {
		t.Fatalf("sent %q, wants read %v", got, p.WantsRead())
	}
	p.Receive(epoch0, sendRequest(3, values(1)...), 5000)
	for i := range 3 {
		p.Done(2, i, ok(0, int64(i)))
	}
	drain(p)
	if p.WantsRead() {
		t.Fatal("5000 bytes are unanswered, over the limit")
	}
	p.Done(3, 0, ok(0, 9))
	if drain(p); !p.WantsRead() {
		t.Fatal("everything is answered")
	}
}

// TestProduceRanges: ranges cover all records in order; runs of offsets and of one
// error are joined.
func TestProduceRanges(t *testing.T) {
	tooLarge := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, "too large")
	dup := ok(1, 8)
	dup.MaybeDuplicated = true
	results := []RecordResult{
		ok(0, 10), ok(0, 11), ok(1, 12), ok(0, 12),
		{Partition: 2, Offset: -1, LeaderEpoch: -1, Err: tooLarge},
		{Partition: 2, Offset: -1, LeaderEpoch: -1, Err: tooLarge},
		ok(0, 13), ok(0, 15), dup,
	}
	got := showProduce(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Result{Result: &gatewayv1.ProduceResult{Id: 1, Ranges: Ranges("t", results)}}})
	want := "result 1 0+2@0:10 2+1@1:12 3+1@0:12 4+2@2:-1!RECORD_TOO_LARGE/NOT_DONE 6+1@0:13 7+1@0:15 8+1@1:8"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if r := Ranges("t", results); !r[6].MaybeDuplicated || r[5].MaybeDuplicated {
		t.Error("only the last record may be there twice")
	}
}

// TestProduceManyErrorsFitAMessage: ten thousand different failures stay well below
// a stub's 4 MiB.
func TestProduceManyErrorsFitAMessage(t *testing.T) {
	results := make([]RecordResult, 10_000)
	for i := range results {
		results[i] = RecordResult{
			Partition: int32(i), Offset: -1, LeaderEpoch: -1,
			Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, "%s %d", strings.Repeat("long ", 200), i),
		}
	}
	m := &gatewayv1.ProduceResult{Ranges: Ranges(strings.Repeat("t", 249), results)}
	if size := proto.Size(m); size > 4<<20-1024 {
		t.Errorf("the result takes %d bytes", size)
	}
	if len(m.Ranges) != 10_000 || m.Ranges[9_999].Error.Outcome != typev1.Outcome_OUTCOME_NOT_DONE {
		t.Error("every record keeps a range with reason and outcome")
	}
}

// TestProduceAcksNone: results carry neither offsets nor errors; the summary counts.
func TestProduceAcksNone(t *testing.T) {
	p := NewProduce(epoch0, produceLimits(), Identity{})
	p.Receive(epoch0, openRequest(&gatewayv1.ProduceOpen{Acks: typev1.Acks_ACKS_NONE}), 2)
	p.Opened()
	p.Receive(epoch0, sendRequest(1, values(3)...), 10)
	p.Done(1, 0, ok(0, -1))
	p.Done(1, 1, failed(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE))
	p.Done(1, 2, failed(typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST))
	p.HalfClose()
	got := drain(p)
	want := []string{"opened 4/1000", "result 1 0+3@0:-1", "summary 3=1+1+1"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestProduceResultsAsCompleted: a later send may be answered first, each once, and
// what comes after its deadline is ignored.
func TestProduceResultsAsCompleted(t *testing.T) {
	p := newProduce(t, ProduceOpen)
	p.Receive(epoch0.Add(time.Minute), sendRequest(2, values(1)...), 10)
	p.Done(2, 0, ok(1, 7))
	if got := drain(p); len(got) != 1 || got[0] != "result 2 0+1@1:7" {
		t.Fatalf("got %q", got)
	}
	if at := p.WakeAt(); !at.Equal(epoch0.Add(2*time.Minute + deliveryGrace)) {
		t.Fatalf("wakes at %s", at)
	}
	p.Tick(p.WakeAt())
	if got := drain(p); len(got) != 1 || got[0] != "result 1 0+1@-1:-1!DEADLINE_EXCEEDED/UNKNOWN" {
		t.Fatalf("got %q", got)
	}
	p.Done(1, 0, ok(0, 1))
	if got := drain(p); got != nil {
		t.Fatalf("answered twice: %q", got)
	}
	if !p.WakeAt().IsZero() {
		t.Fatal("nothing is left to wait for")
	}
}

// TestProduceDeliveryTimeoutIsTold: it is rounded as the producers' is, and the
// producer has its whole time and a grace beyond to tell what became of a record:
// it alone knows that one was never sent.
func TestProduceDeliveryTimeoutIsTold(t *testing.T) {
	p := NewProduce(epoch0, produceLimits(), Identity{})
	p.Receive(epoch0, openRequest(&gatewayv1.ProduceOpen{DeliveryTimeout: durationpb.New(5500 * time.Millisecond)}), 2)
	p.Opened()
	if d := p.Next().GetOpened().GetDeliveryTimeout().AsDuration(); d != 7*time.Second || p.Settings().DeliveryTimeout != d {
		t.Fatalf("told %s, kept %s", d, p.Settings().DeliveryTimeout)
	}
	p.Receive(epoch0, sendRequest(1, values(1)...), 10)
	p.Tick(epoch0.Add(7*time.Second + deliveryGrace - time.Millisecond))
	if got := drain(p); got != nil {
		t.Fatalf("answered for the producer: %q", got)
	}
	p.Done(1, 0, RecordResult{Partition: 0, Offset: -1, LeaderEpoch: -1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "late").
		WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)})
	if got := drain(p); len(got) != 1 || got[0] != "result 1 0+1@0:-1!DEADLINE_EXCEEDED/NOT_DONE" {
		t.Fatalf("got %q", got)
	}
}

// TestProduceSlowSendKeepsNothingElse: what a stream remembers is bounded by what is
// unanswered, also behind a send that takes long.
func TestProduceSlowSendKeepsNothingElse(t *testing.T) {
	p := newProduce(t, ProduceOpen)
	for seq := int64(2); seq < 20_000; seq++ {
		p.Receive(epoch0, sendRequest(seq, values(1)...), 10)
		p.Done(seq, 0, ok(0, seq))
		drain(p)
		p.TakeEffects()
		p.WakeAt()
	}
	if len(p.order) > 2000 || len(p.sends) != 1 || len(p.byID) != 1 {
		t.Errorf("%d numbers, %d sends and %d ids are kept", len(p.order), len(p.sends), len(p.byID))
	}
	if at := p.WakeAt(); !at.Equal(epoch0.Add(2*time.Minute + deliveryGrace)) {
		t.Errorf("wakes at %s", at)
	}
}

// TestProduceRefusedSends: what is wrong with one send is told in its result, and
// the stream goes on; ids in use end it, after what was on its way.
func TestProduceRefusedSends(t *testing.T) {
	noTopic := sendRequest(2, values(1)...)
	noTopic.GetSend().Topic = ""
	internal := sendRequest(2, values(1)...)
	internal.GetSend().Topic = "__consumer_offsets"
	for name, tc := range map[string]struct {
		request *gatewayv1.ProduceRequest
		want    string
	}{
		"no records":     {sendRequest(2), "result 2 0+0@-1:-1!INVALID_REQUEST/NOT_DONE"},
		"too many":       {sendRequest(2, values(11)...), "result 2 0+11@-1:-1!LIMIT_EXCEEDED/NOT_DONE"},
		"no topic":       {noTopic, "result 2 0+1@-1:-1!INVALID_TOPIC_NAME/NOT_DONE"},
		"internal topic": {internal, "result 2 0+1@-1:-1!INTERNAL_TOPIC/NOT_DONE"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProduce(t, ProduceOpen)
			p.Receive(epoch0, tc.request, 10)
			if got := drain(p); len(got) != 1 || got[0] != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if p.State() != ProduceOpen {
				t.Errorf("the stream is %s", p.State())
			}
		})
	}
	p := newProduce(t, ProduceOpen)
	p.Receive(epoch0, sendRequest(1, values(1)...), 10)
	p.Done(1, 0, ok(0, 4))
	if got := drain(p); len(got) != 1 || got[0] != "result 1 0+1@0:4" {
		t.Errorf("got %q", got)
	}
	if ended, err := p.Ended(); !ended || reasonOfEnd(t, err) != "STREAM_PROTOCOL" {
		t.Errorf("ended %v: %v", ended, err)
	}
}

func TestProduceOpenIsChecked(t *testing.T) {
	for name, o := range map[string]*gatewayv1.ProduceOpen{
		"acks":             {Acks: 9},
		"compression":      {Compression: 17},
		"partitioner":      {Partitioner: -1},
		"on_error":         {OnError: 5},
		"client_id":        {ClientId: strings.Repeat("x", 256)},
		"delivery_timeout": {DeliveryTimeout: durationpb.New(-time.Second)},
		"linger":           {Linger: durationpb.New(time.Minute)},
	} {
		p := NewProduce(epoch0, produceLimits(), Identity{})
		p.Receive(epoch0, openRequest(o), 2)
		ended, err := p.Ended()
		if !ended || reasonOfEnd(t, err) != "INVALID_REQUEST" || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: ended %v, %v", name, ended, err)
		}
	}
	p := NewProduce(epoch0, produceLimits(), Identity{})
	p.Receive(epoch0, openRequest(&gatewayv1.ProduceOpen{Handshake: &typev1.Handshake{Features: []*typev1.Feature{{Name: "produce", MinVersion: 9, MaxVersion: 9}}}}), 2)
	if _, err := p.Ended(); reasonOfEnd(t, err) != "UNSUPPORTED_FEATURE" {
		t.Errorf("handshake: %v", err)
	}
	p = NewProduce(epoch0, produceLimits(), Identity{})
	p.Receive(epoch0, openRequest(&gatewayv1.ProduceOpen{OnError: gatewayv1.OnError_ON_ERROR_STOP_PARTITION, DeliveryTimeout: durationpb.New(time.Second)}), 2)
	e := p.TakeEffects()
	want := ProduceSettings{
		Acks: typev1.Acks_ACKS_ALL, DeliveryTimeout: time.Second, StopPartition: true,
		Compression: typev1.CompressionType_COMPRESSION_TYPE_NONE, Partitioner: gatewayv1.Partitioner_PARTITIONER_MURMUR2, Linger: 5 * time.Millisecond,
	}
	if len(e) != 1 || e[0] != (ProduceAcquire{Settings: want}) {
		t.Errorf("effects %+v", e)
	}
}
