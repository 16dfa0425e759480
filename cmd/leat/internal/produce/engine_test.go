package produce

import (
	"container/list"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// TestWhatIsSentAgainKeepsItsPlace: records that a draining gateway gave back go
// before those that were read later.
func TestWhatIsSentAgainKeepsItsPlace(t *testing.T) {
	var results []Result
	e := &engine{
		cfg:     Config{DeliveryTimeout: time.Minute, Result: func(r Result) { results = append(results, r) }},
		pending: list.New(), byID: map[int64]*list.Element{}, session: &session{opened: true},
	}
	items := func(first, count int64) []Item {
		var list []Item
		for n := first; n < first+count; n++ {
			list = append(list, Item{Number: n, Record: &gatewayv1.ProduceRecord{}})
		}
		return list
	}
	e.add(&chunk{born: time.Now(), items: items(1, 3), sent: true, sentAt: time.Now()}, nil)
	e.add(&chunk{born: time.Now(), items: items(4, 2)}, nil)
	e.session.outstanding = 1
	draining := rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "draining"))
	e.result(&gatewayv1.ProduceResult{Id: 1, Ranges: []*gatewayv1.RecordRange{
		{First: 0, Count: 1, Partition: 2, BaseOffset: 9},
		{First: 1, Count: 2, Partition: -1, BaseOffset: -1, Error: draining},
	}})
	var left []int64
	for el := e.pending.Front(); el != nil; el = el.Next() {
		for _, item := range el.Value.(*chunk).items {
			left = append(left, item.Number)
		}
	}
	if len(left) != 4 || left[0] != 2 || left[1] != 3 || left[2] != 4 || left[3] != 5 {
		t.Errorf("left to send: %v", left)
	}
	if len(results) != 1 || results[0].Number != 1 || results[0].Offset != 9 || results[0].MaybeDuplicated {
		t.Errorf("told: %+v", results)
	}
	if e.records != 4 || e.session.outstanding != 0 || !e.session.draining {
		t.Errorf("%d records are pending, %d sends outstanding, draining %v", e.records, e.session.outstanding, e.session.draining)
	}
}

// TestResultsThatSayNothingAreUnknown: every record gets a result, whatever the
// gateway answers.
func TestResultsThatSayNothingAreUnknown(t *testing.T) {
	var results []Result
	e := &engine{
		cfg:     Config{DeliveryTimeout: time.Minute, Result: func(r Result) { results = append(results, r) }},
		pending: list.New(), byID: map[int64]*list.Element{}, session: &session{opened: true, outstanding: 1},
	}
	e.add(&chunk{born: time.Now(), sent: true, items: []Item{{Number: 1, Record: &gatewayv1.ProduceRecord{}}, {Number: 2, Record: &gatewayv1.ProduceRecord{}}}}, nil)
	e.result(&gatewayv1.ProduceResult{Id: 1, Ranges: []*gatewayv1.RecordRange{{First: 1, Count: 1, BaseOffset: 5}, {First: -1, Count: 9}, {First: 1, Count: 7}}})
	if len(results) != 2 || results[0].Number != 2 || results[0].Offset != 5 || results[1].Number != 1 || !results[1].Unknown {
		t.Errorf("told: %+v", results)
	}
	e.result(&gatewayv1.ProduceResult{Id: 1}) // once more: it is no longer ours
	if len(results) != 2 || e.pending.Len() != 0 {
		t.Errorf("told: %+v", results)
	}
}

// TestWhatFailsAfterAnUnknownAttemptIsUnknown: not done now does not mean not done
// before.
func TestWhatFailsAfterAnUnknownAttemptIsUnknown(t *testing.T) {
	var results []Result
	e := &engine{
		cfg:     Config{DeliveryTimeout: time.Minute, Result: func(r Result) { results = append(results, r) }},
		pending: list.New(), byID: map[int64]*list.Element{}, session: &session{opened: true, outstanding: 1},
	}
	e.add(&chunk{born: time.Now(), sent: true, uncertain: true, items: []Item{{Number: 1, Record: &gatewayv1.ProduceRecord{}}}}, nil)
	refused := rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, "too large"))
	e.result(&gatewayv1.ProduceResult{Id: 1, Ranges: []*gatewayv1.RecordRange{{Count: 1, BaseOffset: -1, Error: refused}}})
	if len(results) != 1 || !results[0].Unknown {
		t.Errorf("told: %+v", results)
	}
}

// TestTheGatewayHasTheFirstWord: what was sent is not called unknown before the
// gateway's own timeout, which may be longer than the one asked for, and the grace
// have passed.
func TestTheGatewayHasTheFirstWord(t *testing.T) {
	var results []Result
	e := &engine{
		cfg:     Config{DeliveryTimeout: 5500 * time.Millisecond, Result: func(r Result) { results = append(results, r) }},
		pending: list.New(), byID: map[int64]*list.Element{}, session: &session{outstanding: 1}, backoff: &rpc.Backoff{},
	}
	e.opened(&gatewayv1.ProduceOpened{DeliveryTimeout: durationpb.New(7 * time.Second)})
	born := time.Now()
	e.add(&chunk{born: born, items: []Item{{Number: 1, Record: &gatewayv1.ProduceRecord{}}}, sent: true, sentAt: born}, nil)
	e.expire(born.Add(7*time.Second + answerGrace))
	if len(results) != 0 {
		t.Fatalf("told %+v", results)
	}
	e.expire(born.Add(7*time.Second + answerGrace + time.Millisecond))
	if len(results) != 1 || !results[0].Unknown {
		t.Errorf("told %+v", results)
	}
}
