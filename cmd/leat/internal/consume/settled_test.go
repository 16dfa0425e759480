package consume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// waitsFor runs the engine's look at its end for so long, and tells after how long it was
// complete; -1: it was not.
func waitsFor(e *engine, most time.Duration) time.Duration {
	for began := time.Now(); time.Since(began) < most; <-time.After(10 * time.Millisecond) {
		select {
		case s := <-e.standing:
			e.stands(s)
		default:
		}
		if e.complete(time.Now()) {
			return time.Since(began)
		}
		synctest.Wait()
	}
	return -1
}

// A member that does not follow ends when its group says that it gets nothing more, and
// no sooner, however long a coordinator stands still.
func TestGroupSaysWhenNothingMoreComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		answer, failure := Standing{}, error(nil)
		e := newEngine(ctx, Config{
			Open:       &gatewayv1.ConsumeOpen{Group: "g"},
			Partitions: []Partition{{"t", 0}, {"t", 1}, {"t", 2}},
			Ends:       map[Partition]int64{{"t", 0}: 0, {"t", 1}: 0, {"t", 2}: 0},
			Standing: func(_ context.Context, member string) (Standing, error) {
				if member != "m" {
					return Standing{}, errors.New("asked for " + member)
				}
				return answer, failure
			},
		})
		e.handleOpened(&gatewayv1.ConsumeOpened{MemberId: "m", Attach: 1})
		assign := func(partition int32) {
			e.handleAssigned(&gatewayv1.ConsumeAssigned{Topic: "t", Partition: partition, TopicId: []byte("0123456789abcdef")})
		}
		if took := waitsFor(e, time.Minute); took >= 0 {
			t.Errorf("with nothing, while the group is reconciling, it ends after %v", took)
		}
		answer = Standing{Stable: true, Partitions: 1}
		if took := waitsFor(e, time.Minute); took >= 0 {
			t.Errorf("before it has heard of what the group gave it, it ends after %v", took)
		}
		assign(0)
		answer.Stable = false
		if took := waitsFor(e, time.Minute); took >= 0 {
			t.Errorf("with some, while the group is reconciling, it ends after %v", took)
		}
		failure = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, "wait")
		if took := waitsFor(e, time.Minute); took >= 0 {
			t.Errorf("while the group does not answer it ends after %v", took)
		}
		answer, failure = Standing{Stable: true, Partitions: 1}, nil
		if took := waitsFor(e, time.Minute); took < 0 || took > 2*settleAsk {
			t.Errorf("with what it gets for good it ends after %v", took)
		}
		assign(1) // what was said before counts no more
		answer.Stable = false
		if took := waitsFor(e, time.Minute); took >= 0 {
			t.Errorf("after another assignment it ends after %v", took)
		}
		failure = errors.New("no such question")
		if took := waitsFor(e, time.Minute); took < 0 {
			t.Error("where the group cannot be asked it never ends")
		}
	})
}

// A group that has nothing for a member says so.
func TestGroupHasNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		e := newEngine(ctx, Config{
			Open: &gatewayv1.ConsumeOpen{Group: "g"}, Partitions: []Partition{{"t", 0}}, Ends: map[Partition]int64{{"t", 0}: 5},
			Standing: func(context.Context, string) (Standing, error) { return Standing{Stable: true}, nil },
		})
		e.handleOpened(&gatewayv1.ConsumeOpened{MemberId: "m", Attach: 1})
		if took := waitsFor(e, time.Minute); took < 0 || took > settleAsk {
			t.Errorf("it ends after %v", took)
		}
	})
}
