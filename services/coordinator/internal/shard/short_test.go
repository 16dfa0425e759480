package shard

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/logtest"
)

const (
	tooFew   = typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS
	noLeader = typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE
)

// refusing has every append refused from now on for the reason.
func refusing(log *logtest.Log, reason typev1.ErrorReason) {
	log.Fault(func(int) (bool, error) { return false, rpc.Errorf(reason, "for the test") })
}

func describe(req uint64) group.Event { return group.Describe{Req: req, Group: "g"} }
func simulate(req uint64) group.Event { return group.Simulate{Req: req, Group: "g", Add: 1} }
func remove(req uint64) group.Event   { return group.Delete{Req: req, Group: "g"} }

// refusedFor demands that a request be refused, not done, for the reason, sooner than
// an append is tried a second time, in words that help.
func refusedFor(t *testing.T, s *Shard, reason typev1.ErrorReason, event func(uint64) group.Event) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := s.Do(ctx, event)
	e := rpc.FromError(err)
	if e == nil || e.Reason != reason || e.Outcome != typev1.Outcome_OUTCOME_NOT_DONE || !rpc.Retryable(e) {
		t.Fatalf("%T is answered %v, want %v, not done and to be repeated", event(1), err, reason)
	}
	if took := time.Since(began); took > 0 {
		t.Fatalf("%T waited %v for its refusal", event(1), took)
	}
	for _, part := range []string{"partition 0 of __consumer_offsets", "leat topic describe __consumer_offsets", "start the brokers"} {
		if !strings.Contains(e.Message, part) {
			t.Fatalf("%T: the message %q does not say %q", event(1), e.Message, part)
		}
	}
}

// Questions do not wait for a log with too few in-sync replicas; members and commits do.
func TestQuestionsDoNotWaitForReplicas(t *testing.T) {
	for _, reason := range []typev1.ErrorReason{tooFew, noLeader} {
		synctest.Test(t, func(t *testing.T) {
			log := &logtest.Log{}
			s, stop := start(t, log, 1)
			defer stop(nil)
			served(t, s, commit(4))
			refusing(log, reason)
			for _, question := range []func(uint64) group.Event{fetch, describe, simulate, remove, fetch} {
				refusedFor(t, s, reason, question)
			}
			committed := newAnswer()
			if err := s.Post(t.Context(), Request{Make: commit(5), Done: committed.set, Refuse: func(e *rpc.Error) { t.Errorf("a commit is refused: %v", e) }}); err != nil {
				t.Fatal(err)
			}
			joined := make(chan group.Reply, 1)
			go func() { joined <- join(t, s, &fakePeer{}, "m") }()
			<-time.After(time.Minute)
			if len(committed.ch)+len(joined) != 0 {
				t.Fatal("the log takes nothing, and something is confirmed")
			}
			log.Fault(nil)
			if r := <-committed.ch; r.Err != nil {
				t.Fatal(r.Err)
			}
			if r := <-joined; r.Err != nil {
				t.Fatal(r.Err)
			}
			if got := nextOffset(served(t, s, fetch)); got != 5 {
				t.Fatalf("the offset is %d, want 5", got)
			}
		})
	}
}

// A question that finds the log in order and then meets the shortage is answered too, and
// a change that has been begun is not called undone.
func TestQuestionsAreWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		s, stop := start(t, log, 1)
		defer stop(nil)
		served(t, s, commit(4))
		refusing(log, tooFew)
		begun := newAnswer()
		if err := s.Post(t.Context(), Request{Make: remove, Done: begun.set, Refuse: func(e *rpc.Error) { t.Errorf("a deletion under way is refused: %v", e) }}); err != nil {
			t.Fatal(err)
		}
		refusedFor(t, s, tooFew, describe)
		log.Fault(nil)
		if r := <-begun.ch; r.Err != nil {
			t.Fatal(r.Err)
		}
	})
}

// A shard that cannot be fenced says why, and not that it is being loaded. Members are
// told that as before.
func TestShardThatCannotBeFencedSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		refusing(log, tooFew)
		s, stop := start(t, log, 1)
		defer stop(nil)
		pause()
		refusedFor(t, s, tooFew, describe)
		refusedFor(t, s, tooFew, remove)
		if r := join(t, s, &fakePeer{}, "m"); r.Err == nil || r.Err.Reason != group.ReasonLoading {
			t.Fatalf("a member is answered %+v", r)
		}
		if r := ask(t, s, commit(1)); r.Err == nil || r.Err.Reason != group.ReasonLoading {
			t.Fatalf("a commit is answered %+v", r)
		}
		// Half a list would look like a whole one.
		if groups, err := s.List(t.Context()); !rpc.IsReason(err, tooFew) {
			t.Fatalf("the groups are %v, %v", groups, err)
		}
		log.Fault(nil)
		served(t, s, commit(7))
		if groups, err := s.List(t.Context()); err != nil || len(groups) != 1 {
			t.Fatalf("the groups are %v, %v", groups, err)
		}
		if got := nextOffset(served(t, s, fetch)); got != 7 {
			t.Fatalf("the offset is %d, want 7", got)
		}
	})
}

// The first question of all has the shards made. It waits for their first leaders, and
// only where those do not come is it told that there are none.
func TestQuestionsWaitForAShardThatIsBeingMade(t *testing.T) {
	for _, comes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			log := &logtest.Log{}
			log.Fault(func(int) (bool, error) { return false, rpc.Errorf(noLeader, "for the test").With("never_led", "true") })
			s, stop := start(t, log, 1)
			defer stop(nil)
			time.AfterFunc(makingPatience/2, func() {
				if comes {
					log.Fault(nil)
				}
			})
			began := time.Now()
			r, err := s.Do(t.Context(), fetch)
			for err == nil && r.Err != nil && r.Err.Reason == group.ReasonLoading && time.Since(began) < time.Minute {
				pause()
				r, err = s.Do(t.Context(), fetch)
			}
			took := time.Since(began)
			switch {
			case comes && (err != nil || r.Err != nil || took < makingPatience/2):
				t.Errorf("answered with %v, %v after %v", r.Err, err, took)
			case !comes && (!rpc.IsReason(err, noLeader) || took < makingPatience || took > 2*makingPatience):
				t.Errorf("without a leader: %v after %v", err, took)
			}
		})
	}
}

// A question for the list that is still in line when the shard is given up is told so:
// no load will end here.
func TestShardThatIsLostLoadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := start(t, &logtest.Log{}, 1)
		served(t, s, commit(4))
		stop(nil)
		if groups, err := s.groups(); !rpc.IsReason(err, notCoordinator) {
			t.Fatalf("lists %v, %v", groups, err)
		}
	})
}
