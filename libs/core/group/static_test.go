package group

import (
	"fmt"
	"testing"
)

// case 26: two processes with the same instance id, the second joins in the middle
// of a rebalance. The older is fenced at once.
func TestSameInstanceJoinsMidRebalance(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a")
	m1.instance, m1.slow = "i1", true
	m1.join()
	other := h.peer("m2", "a").join()
	h.pass(cfg.JoinDelay)
	m1.read() // two partitions are being revoked from m1
	again := h.peer("m3", "a")
	again.instance = "i1"
	again.join()
	held := firstOf(m1)
	epoch := m1.held[held]
	attach, member := m1.attach, m1.epoch
	wantReason(t, m1.commitAs(attach, member, 1, OffsetCommit{Part: held, NextOffset: 5, AssignmentEpoch: epoch}), ReasonInstanceFenced)
	if got := h.offset(held); got != -1 {
		t.Fatalf("the fenced member moved the offset to %d", got)
	}
	m1.read()
	wantReason(t, m1.fenced, ReasonInstanceFenced)
	wantHeld(t, again) // not before the older's stream has ended
	m1.gone()
	again.read()
	other.read()
	if len(again.held) != 2 || len(other.held) != 2 {
		t.Fatalf("the newcomer holds %v and m2 %v, want two each", again.held, other.held)
	}
	wantReason(t, m1.tryJoin(), ReasonUnknownMember)
}

// A static member dies while it gives partitions up, and its next process joins: those
// partitions go to whom they were promised, at once.
func TestInstanceRestartsMidRebalance(t *testing.T) {
	cfg := DefaultConfig()
	for name, topics := range map[string][]string{"subscribed as before": {"a"}, "subscribed to more": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			h := newShard(t, cfg, topicA)
			m1 := h.peer("m1", "a")
			m1.instance, m1.slow = "i1", true
			m1.join()
			other := h.peer("m2", "a").join()
			h.pass(cfg.JoinDelay)
			m1.read() // two partitions are being revoked from m1
			m1.gone()
			again := h.peer("m3", topics...)
			again.instance = "i1"
			again.join()
			other.read()
			if len(other.held) != 2 {
				t.Fatalf("m2 holds %v, want two", other.held)
			}
			h.pass(cfg.JoinDelay)
			if again.read(); len(again.held) != 2 {
				t.Fatalf("the newcomer holds %v, want two", again.held)
			}
		})
	}
}

func TestFencedInstanceLapsesWhateverItSends(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	older := h.peer("m1", "a")
	older.instance = "i1"
	older.join()
	newer := h.peer("m2", "a")
	newer.instance = "i1"
	newer.join()
	wantHeld(t, newer)
	for range 2 {
		h.pass(cfg.SessionTimeout / 3)
		older.ack()
		wantReason(t, older.ping(), ReasonInstanceFenced)
		if err := newer.ping(); err != nil {
			t.Fatal(err)
		}
	}
	h.pass(cfg.SessionTimeout / 3)
	newer.read()
	wantHeld(t, newer, a0, a1, a2, a3)
}

// A newcomer that comes right after the shard was loaded anew: the older's stream
// ended because its coordinator did, so its process may still use what it holds.
func TestSameInstanceJoinsAfterTheCoordinatorChanged(t *testing.T) {
	cfg := DefaultConfig()
	for name, c := range map[string]struct {
		before func(older *peer)
		waits  bool
	}{
		"nothing was heard of the older": {func(*peer) {}, true},
		"its stream broke before":        {(*peer).gone, true}, // which nobody wrote down
		"it resumed, and its stream broke": {func(older *peer) {
			older.h.change(2)
			older.join()
			older.gone()
		}, false},
		"it left": {func(older *peer) {
			older.h.change(2)
			older.join()
			older.leave()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newShard(t, cfg, topicA)
			older := h.peer("m1", "a")
			older.instance = "i1"
			older.join()
			wantHeld(t, older, a0, a1, a2, a3)
			c.before(older)
			if c.waits {
				h.change(2)
			}
			newer := h.peer("m2", "a")
			newer.instance = "i1"
			newer.join()
			if c.waits {
				wantHeld(t, newer)
				wantReason(t, older.tryJoin(), ReasonInstanceFenced)
				h.pass(cfg.SessionTimeout / 2)
				if err := newer.ping(); err != nil {
					t.Fatal(err)
				}
				newer.read()
				wantHeld(t, newer)
				h.pass(cfg.SessionTimeout / 2)
				newer.read()
			}
			wantHeld(t, newer, a0, a1, a2, a3)
		})
	}
}

func TestStaticMembersRestartInTurnMovesNothing(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, Topic{ID: topicID(1), Name: "a", Partitions: 20})
	peers := make([]*peer, 10)
	for i := range peers {
		peers[i] = h.peer(fmt.Sprintf("life1-%d", i), "a")
		peers[i].instance = fmt.Sprintf("i%d", i)
		peers[i].join()
	}
	h.pass(cfg.JoinDelay)
	for range 3 {
		for _, p := range peers {
			p.read()
		}
	}
	epoch := h.describe("g").Epoch
	for i, old := range peers {
		held := old.held
		if i%2 == 0 {
			old.gone()
		} else {
			old.leave()
		}
		h.pass(cfg.SessionTimeout / 3)
		for _, p := range peers {
			if p != old && p.ping() != nil {
				t.Fatal("a ping failed")
			}
		}
		next := h.peer(fmt.Sprintf("life2-%d", i), "a")
		next.instance = old.instance
		next.join()
		peers[i] = next
		if i%2 == 0 && len(next.held) != len(held) {
			t.Fatalf("instance %d came back to %v, had %v", i, next.held, held)
		}
		if len(next.held) != 2 {
			t.Fatalf("instance %d came back to %v", i, next.held)
		}
	}
	if d := h.describe("g"); d.Epoch != epoch || d.Status != StatusStable {
		t.Fatalf("the restarts moved the group from epoch %d to %d, status %d", epoch, d.Epoch, d.Status)
	}
}
