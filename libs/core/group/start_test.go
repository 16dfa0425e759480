package group

import (
	"slices"
	"testing"
	"time"
)

// starting makes a peer with a policy.
func (h *shard) startingPeer(id string, kind StartKind) *peer {
	p := h.peer(id, "a")
	p.start = StartPolicy{Kind: kind}
	return p
}

func starts(a Assignment) map[Part]int64 {
	all := make(map[Part]int64)
	for _, at := range a.Partitions {
		all[at.Part] = at.Start
	}
	return all
}

func TestFirstAssignmentCommitsTheStart(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy StartPolicy
		want   int64
		asked  bool
	}{
		{"left to the member", StartPolicy{}, -1, false},
		{"earliest", StartPolicy{Kind: StartEarliest}, 10, true},
		{"latest", StartPolicy{Kind: StartLatest}, 100, true},
		{"timestamp", StartPolicy{Kind: StartTimestamp, TimestampMs: 5}, 100, true},
		{"duration", StartPolicy{Kind: StartDuration, Back: time.Hour}, 100, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newShard(t, DefaultConfig(), topicA)
			m := h.peer("m1", "a")
			m.start = c.policy
			m.join()
			wantHeld(t, m, a0, a1, a2, a3)
			if m.assignments != 1 {
				t.Fatalf("%d assignments came, want one with everything", m.assignments)
			}
			for p, at := range starts(m.latest()) {
				if at != c.want || h.offset(p) != c.want {
					t.Fatalf("%v is assigned at %d and committed at %d, want %d", p, at, h.offset(p), c.want)
				}
			}
			if c.asked && (len(h.asked) != 1 || h.asked[0].Policy != c.policy || len(h.asked[0].Parts) != 4) || !c.asked && len(h.asked) != 0 {
				t.Fatalf("asked %+v", h.asked)
			}
		})
	}
}

// The start is in the log before the member is: else a member that died before its
// first commit would leave its successor to start elsewhere, and records in between
// unread.
func TestStartIsWrittenBeforeThePartitionIsGiven(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	h.startingPeer("m1", StartLatest).join()
	committed := make(map[Part]bool)
	for _, kv := range h.log {
		switch v := kv.Value.(type) {
		case OffsetValue:
			committed[kv.Key.Part] = true
		case MemberValue:
			for _, o := range v.Owned {
				if !committed[o.Part] {
					t.Fatalf("the log gives %v before it tells its start", o.Part)
				}
			}
		}
	}
	if len(committed) != 4 {
		t.Fatalf("the starts of %d partitions are committed, want 4", len(committed))
	}
}

func TestStartThatIsNotFoundIsLookedForAgain(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	lost := true
	h.startAt = func(p Part) StartResult {
		r := StartResult{Part: p, Next: 7, LeaderEpoch: -1}
		if p == a2 && lost {
			r.Failed = "its leader does not answer"
		}
		return r
	}
	m := h.startingPeer("m1", StartLatest).join()
	wantHeld(t, m, a0, a1, a3)
	d := h.describe("g")
	if d.Status != StatusReconciling || len(d.Unowned) != 1 || d.Unowned[0].Part != a2 || d.Unowned[0].Why != "where it starts could not be found: its leader does not answer" {
		t.Fatalf("described as %+v", d)
	}
	h.pass(3 * time.Second)
	if tries := h.asked[len(h.asked)-1].Tries; tries < 2 || len(h.asked) > 6 {
		t.Fatalf("asked %d times, the last after %d tries, want ever rarer", len(h.asked), tries)
	}
	lost = false
	h.pass(5 * time.Second)
	m.read()
	wantHeld(t, m, a0, a1, a2, a3)
	if s := starts(m.latest()); s[a2] != 7 {
		t.Fatalf("the starts are %v", s)
	}
	d = h.describe("g")
	if entry := d.Ledger[0]; d.Status != StatusStable || entry.LongestMs < 3000 || entry.FinishedMs == 0 {
		t.Fatalf("described as %+v", d)
	}
}

func TestStartIsTheOneOfWhoGetsThePartition(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	h.unasked = true
	m1 := h.startingPeer("m1", StartLatest).join()
	m2 := h.startingPeer("m2", StartEarliest).join()
	h.pass(cfg.JoinDelay)
	old := slices.Clone(h.asked)
	if len(old) != 2 {
		t.Fatalf("asked %+v, want once for each policy", old)
	}
	// The answers come twice, and the earlier one is late.
	h.step(h.found(old[0]))
	h.step(h.found(old[1]))
	h.step(h.found(old[0]))
	m1.read()
	m2.read()
	if len(m1.held) != 2 || len(m2.held) != 2 {
		t.Fatalf("m1 holds %v and m2 %v", m1.held, m2.held)
	}
	for p := range m1.held {
		if got := h.offset(p); got != 100 {
			t.Fatalf("m1 starts %v at %d, want the end", p, got)
		}
	}
	for p := range m2.held {
		if got := h.offset(p); got != 10 {
			t.Fatalf("m2 starts %v at %d, want the beginning", p, got)
		}
	}
}

// An answer counts only for the question, the group and the shard it was asked for.
func TestLateStartChangesNothing(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	h.unasked = true
	m := h.startingPeer("m1", StartLatest).join()
	late := h.asked[0]
	wantHeld(t, m)
	h.unasked = false
	h.step(Deposed{})
	h.step(h.found(late))
	h.step(Claim{Epoch: 2})
	h.step(h.found(late))
	if got := h.offset(a0); got != -1 {
		t.Fatalf("an answer to a question before the load committed %d", got)
	}
	m.join()
	wantHeld(t, m, a0, a1, a2, a3)
	if err := m.commit(a0, 500); err != nil {
		t.Fatal(err)
	}
	h.step(h.found(late))
	h.step(h.found(h.asked[len(h.asked)-1]))
	if got := h.offset(a0); got != 500 {
		t.Fatalf("a late answer moved the offset to %d", got)
	}
}

// An offset that came into being while the start was looked for stands.
func TestStartGivesWayToAnOffset(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	h.unasked = true
	m := h.startingPeer("m1", StartLatest).join()
	m.gone()
	h.rows(h.reset(0, to(a0, 5)))
	h.step(h.found(h.asked[0]))
	m.join()
	wantHeld(t, m, a0, a1, a2, a3)
	if s := starts(m.latest()); s[a0] != 5 || s[a1] != 100 {
		t.Fatalf("the starts are %v", s)
	}
}

// A commit that names a topic deleted before, and perhaps made again under the name,
// is refused; nothing of it carries over to the new one.
func TestCommitForATopicMadeAgain(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.startingPeer("m1", StartLatest).join()
	if err := m.commit(a0, 500); err != nil {
		t.Fatal(err)
	}
	again := Topic{ID: topicID(9), Name: "a", Partitions: 1}
	b0 := Part{again.ID, 0}
	epoch := m.held[a0]
	h.step(Topics{View: view(again)}) // its deletion is done, and no record of it is left
	m.seq++
	wantReason(t, m.commitAs(m.attach, m.epoch, m.seq, OffsetCommit{Part: a0, NextOffset: 501, AssignmentEpoch: epoch}), ReasonTopicDeleted)
	m.read()
	wantHeld(t, m, b0)
	if got := h.offset(b0); got != 0 {
		t.Fatalf("the topic made again starts at %d, want 0: it was created after the subscription", got)
	}
	m.seq++
	wantReason(t, m.commitAs(m.attach, m.epoch, m.seq, OffsetCommit{Part: a0, NextOffset: 502, AssignmentEpoch: epoch}), ReasonTopicDeleted)
	h.step(Topics{View: view(again), Deleted: []TopicID{topicA.ID}})
	m.seq++
	wantReason(t, m.commitAs(m.attach, m.epoch, m.seq, OffsetCommit{Part: a0, NextOffset: 503, AssignmentEpoch: epoch}), ReasonTopicDeleted)
	if got := h.offset(a0); got != -1 {
		t.Fatalf("the offset of the deleted topic is %d", got)
	}
}
