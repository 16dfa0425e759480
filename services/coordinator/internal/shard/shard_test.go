package shard

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/logtest"
	"github.com/leat-io/leat/services/coordinator/internal/offsets"
)

const (
	notCoordinator = typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR
	unknownOutcome = typev1.Outcome_OUTCOME_UNKNOWN
)

func lostConnection() error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST, "the connection broke").WithOutcome(unknownOutcome)
}

func notLeader() error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_LEADER, "ask another broker").WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
}

func TestShardFencesThenLoadsThenServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		if err := log.Seed(offsetOf(a0, 7), offsetOf(a0, 9)); err != nil {
			t.Fatal(err)
		}
		s, stop := start(t, log, 3)
		defer stop(nil)
		if got := nextOffset(served(t, s, fetch)); got != 9 {
			t.Fatalf("the offset is %d, want 9", got)
		}
		if got := log.Appends()[0]; got != (offsets.Fence{ShardEpoch: 3}) {
			t.Fatalf("the first append is under %+v", got)
		}
		if got := log.Fences(); len(got) != 1 || got[0] != (record.Fence{ShardEpoch: 3}) {
			t.Fatalf("the log has the fences %+v, want one behind what was there", got)
		}
	})
}

func TestRequestsShareTheNextAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		s, stop := start(t, log, 1)
		defer stop(nil)
		served(t, s, fetch)
		release := log.Hold()
		before := len(log.Appends())
		replies := make(chan group.Reply, 20)
		for i := range 20 {
			if err := s.Post(t.Context(), Request{Make: commit(int64(i)), Done: func(r group.Reply) { replies <- r }}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if len(replies) != 0 {
			t.Fatal("a commit was answered before its append")
		}
		release()
		for range 20 {
			if r := <-replies; r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		if n := len(log.Appends()) - before; n != 2 {
			t.Fatalf("20 commits took %d appends, want the one on its way and one for the rest", n)
		}
		if got := nextOffset(served(t, s, fetch)); got != 19 {
			t.Fatalf("the offset is %d, want the last commit's, 19", got)
		}
	})
}

func TestUnknownAppendReloads(t *testing.T) {
	for _, lands := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			log := &logtest.Log{}
			s, stop := start(t, log, 1)
			defer stop(nil)
			served(t, s, commit(5))
			peer := &fakePeer{}
			if r := join(t, s, peer, "m"); r.Err != nil {
				t.Fatal(r.Err)
			}
			once := true
			log.Fault(func(int) (bool, error) {
				if once {
					once = false
					return lands, lostConnection()
				}
				return true, nil
			})
			member := func(req uint64) group.Event {
				return group.Ping{Req: req, Group: "g", Member: "m", Attach: 1}
			}
			if r := ask(t, s, member); r.Err == nil || r.Err.Reason != group.ReasonLoading || !r.Err.Unknown {
				t.Fatalf("the ping in flight was answered %+v", r)
			}
			synctest.Wait()
			if _, lost := peer.told(); !slices.Equal(lost, []bool{true}) {
				t.Fatalf("the stream was told %v, want that the shard is loaded again", lost)
			}
			if got := nextOffset(served(t, s, fetch)); got != 5 {
				t.Fatalf("the offset is %d, want 5", got)
			}
			all := log.Appends()
			if !slices.Contains(all, offsets.Fence{ShardEpoch: 1, Attempt: 1}) {
				t.Fatalf("the appends are %+v, want a fence with the next attempt", all)
			}
			if log.Reads() != 2 {
				t.Fatalf("the log was read %d times, want 2", log.Reads())
			}
			if got := log.Fences(); !slices.Equal(got, []record.Fence{{ShardEpoch: 1}, {ShardEpoch: 1, Attempt: 1}}) {
				t.Fatalf("the log has the fences %+v", got)
			}
		})
	}
}

func TestAppendThatWasNotDoneIsRepeatedUnderItsSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		s, stop := start(t, log, 1)
		defer stop(nil)
		served(t, s, fetch)
		failures := 3
		log.Fault(func(int) (bool, error) {
			if failures--; failures >= 0 {
				return false, notLeader()
			}
			return true, nil
		})
		if r := ask(t, s, commit(4)); r.Err != nil {
			t.Fatal(r.Err)
		}
		if log.Reads() != 1 {
			t.Fatal("the shard was loaded again for an append that was not done")
		}
	})
}

func TestDeposedMidCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		s, stop := start(t, log, 1)
		served(t, s, fetch)
		peer := &fakePeer{}
		if r := join(t, s, peer, "m"); r.Err != nil {
			t.Fatal(r.Err)
		}
		log.Hold()
		replies := make(chan group.Reply, 2)
		for range 2 {
			err := s.Post(t.Context(), Request{Done: func(r group.Reply) { replies <- r }, Make: func(req uint64) group.Event {
				return group.Commit{Req: req, Group: "g", Member: "m", Attach: 1, Epoch: 1, Sequence: int64(req)}
			}})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		stop(nil)
		for _, unknown := range []bool{true, false} {
			if r := <-replies; r.Err == nil || r.Err.Reason != group.ReasonShardLost || r.Err.Unknown != unknown {
				t.Fatalf("a commit was answered %+v, want the shard lost, unknown %v", r, unknown)
			}
		}
		if _, lost := peer.told(); !slices.Equal(lost, []bool{false}) {
			t.Fatalf("the stream was told %v, want that the shard is lost", lost)
		}
		if _, err := s.Do(t.Context(), fetch); !rpc.IsReason(err, notCoordinator) {
			t.Fatalf("a lost shard answers %v", err)
		}
	})
}

func TestOrderlyStopLetsAppendsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		s, stop := start(t, log, 1)
		served(t, s, fetch)
		release := log.Hold()
		replies := make(chan group.Reply, 1)
		if err := s.Post(t.Context(), Request{Make: commit(8), Done: func(r group.Reply) { replies <- r }}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.AfterFunc(time.Second, release)
		stop(errStopping)
		if r := <-replies; r.Err != nil {
			t.Fatalf("an orderly stop left a commit %+v", r.Err)
		}
	})
}

// Two coordinators claim one shard: the zombie's answers need the log, which
// refuses it.
func TestZombieServesNoOldOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		zombie, stopZombie := start(t, log, 1)
		defer stopZombie(nil)
		served(t, zombie, commit(5))
		owner, stop := start(t, log, 2)
		defer stop(nil)
		served(t, owner, commit(6))
		for range 3 {
			r := ask(t, zombie, fetch)
			if r.Err == nil {
				t.Fatalf("the zombie serves offset %d", nextOffset(r.Result))
			}
			pause()
		}
		if r := ask(t, zombie, commit(1)); r.Err == nil {
			t.Fatal("the zombie commits")
		}
		if got := nextOffset(served(t, owner, fetch)); got != 6 {
			t.Fatalf("the offset is %d, want 6", got)
		}
	})
}

func TestNewerFormatIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		key, err := proto.Marshal(&storagev1.ShardKey{Kind: 77})
		if err != nil {
			t.Fatal(err)
		}
		log.SeedRaw(key, []byte{})
		s, stop := start(t, log, 1)
		defer stop(nil)
		synctest.Wait()
		_, err = s.Do(t.Context(), fetch)
		var format *offsets.FormatError
		if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE) || !errors.As(err, &format) {
			t.Fatalf("a shard of a newer release answers %v", err)
		}
	})
}

func TestFencingGoesOnUntilItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		log.Fault(func(n int) (bool, error) {
			switch n {
			case 1:
				return true, lostConnection() // it is in the log, nobody knows
			case 2:
				return false, notLeader()
			}
			return true, nil
		})
		s, stop := start(t, log, 1)
		defer stop(nil)
		served(t, s, fetch)
		all := log.Appends()
		if all[0].Attempt != 0 || all[1] != (offsets.Fence{ShardEpoch: 1, Attempt: 2}) {
			t.Fatalf("the appends are %+v, want attempt 0, then 2", all)
		}
	})
}

func TestMemberOfAnEndedStreamIsDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		s, stop := start(t, log, 1)
		defer stop(nil)
		served(t, s, fetch)
		members := func() int {
			return len(served(t, s, func(req uint64) group.Event { return group.Describe{Req: req, Group: "g"} }).(group.Described).Members)
		}
		early, late := &fakePeer{}, &fakePeer{ended: true}
		join(t, s, early, "m1")
		join(t, s, late, "m2") // its stream ended before the answer
		if err := s.Detach(t.Context(), early); err != nil {
			t.Fatal(err)
		}
		if n := members(); n != 2 {
			t.Fatalf("%d members right after the streams ended, want 2", n)
		}
		<-time.After(testConfig().Group.SessionTimeout + time.Second)
		if n := members(); n != 0 {
			t.Fatalf("%d members a session timeout later, want 0", n)
		}
	})
}

func TestFullLineMakesCallersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(testConfig(), &logtest.Log{}, 0, 1, topics(), make(chan struct{}, 1))
		for range testConfig().MaxRequests {
			if err := s.Post(t.Context(), Request{Make: fetch}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := s.Post(ctx, Request{Make: fetch})
		if e := rpc.FromError(err); e == nil || e.Outcome != typev1.Outcome_OUTCOME_NOT_DONE {
			t.Fatalf("a full line took a request (%v)", err)
		}
	})
}

// Leaders of the log that move, refuse and vanish cost no commit that was
// acknowledged: what was answered is there, under whatever leader the shard is
// fenced and loaded next, and nothing that was never asked for.
func TestCommitsSurviveLeaderChanges(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			rng, looks := rand.New(rand.NewPCG(seed, 7)), rand.New(rand.NewPCG(seed, 8))
			log := &logtest.Log{}
			s, stop := start(t, log, 1)
			defer stop(nil)
			served(t, s, commit(0))
			var mu sync.Mutex
			faulty := true
			log.Fault(func(int) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if !faulty {
					return true, nil
				}
				switch rng.IntN(8) {
				case 0:
					return false, notLeader()
				case 1:
					return false, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, "1 of 2")
				case 2:
					return true, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS_AFTER_APPEND, "1 of 2")
				case 3:
					return rng.IntN(2) == 0, lostConnection()
				}
				return true, nil
			})
			acked, asked := int64(0), int64(0)
			for range 60 {
				asked++
				if r := ask(t, s, commit(asked)); r.Err == nil {
					acked = asked
				} else {
					pause()
				}
				if looks.IntN(5) == 0 {
					if got := nextOffset(served(t, s, fetch)); got < acked || got > asked {
						t.Fatalf("seed %d: the offset is %d after %d was acknowledged and %d asked for", seed, got, acked, asked)
					}
				}
			}
			mu.Lock()
			faulty = false
			mu.Unlock()
			if got := nextOffset(served(t, s, fetch)); got < acked || got > asked || acked == 0 {
				t.Fatalf("seed %d: the offset is %d at last, after %d was acknowledged", seed, got, acked)
			}
		})
	}
}
