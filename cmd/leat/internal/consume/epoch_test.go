package consume

import (
	"context"
	"io"
	"testing"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
)

// A place is committed and resumed with the leader epoch of the record before it,
// or none: with an older one, as of an earlier tenure of the partition, the broker
// would take the log for cut.
func TestEpochBelongsToThePlace(t *testing.T) {
	e := newEngine(context.Background(), Config{
		Open: &gatewayv1.ConsumeOpen{Group: "g"}, AutoCommit: true, Out: io.Discard,
		Format: func(dst []byte, _ string, _ int32, _ *gatewayv1.ConsumeRecord) []byte { return append(dst, 'x') },
	})
	check := func(after string, next int64, epoch int32) {
		t.Helper()
		if err := e.settle(); err != nil {
			t.Fatal(err)
		}
		pl := e.place("t", 0)
		if pl.next != next || pl.epoch != epoch || pl.flushed != next || pl.flushedEpoch != epoch {
			t.Errorf("after %s: next %d epoch %d, flushed %d epoch %d; want %d and %d", after, pl.next, pl.epoch, pl.flushed, pl.flushedEpoch, next, epoch)
		}
	}
	records := func(epoch int32, offset int64) {
		e.handleRecords(&gatewayv1.ConsumeRecords{Topic: "t", NextOffset: offset + 1, Records: []*gatewayv1.ConsumeRecord{{Offset: offset, LeaderEpoch: epoch}}})
	}
	assigned := func(start int64) {
		e.handleAssigned(&gatewayv1.ConsumeAssigned{Topic: "t", StartOffset: start})
	}
	assigned(0)
	records(1, 0)
	check("a record", 1, 1)
	assigned(1)
	check("the same place again", 1, 1)
	assigned(5) // another has read on in between
	check("a later place", 5, -1)
	records(3, 5)
	check("a record of a later epoch", 6, 3)
	if err := e.handle(event{response: &gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Progress{
		Progress: &gatewayv1.ConsumeProgress{Topic: "t", NextOffset: 8},
	}}}); err != nil {
		t.Fatal(err)
	}
	check("progress without records", 8, -1)
	records(4, 8)
	if pl := e.place("t", 0); pl.flushedEpoch != -1 {
		t.Errorf("the epoch of what is not printed would be committed: %d", pl.flushedEpoch)
	}
}
