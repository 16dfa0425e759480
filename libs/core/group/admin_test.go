package group

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func (h *shard) adminCommit(offsets ...OffsetCommit) Reply {
	h.t.Helper()
	return h.ask(AdminCommit{Req: h.req(), Group: "g", Offsets: offsets})
}

func TestAdminCommitsOnlyWithoutMembers(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	r := h.adminCommit(OffsetCommit{Part: a0, NextOffset: 8}, OffsetCommit{Part: Part{topicID(9), 0}}, OffsetCommit{Part: Part{topicA.ID, 4}})
	refused := r.Result.(CommitDone).Refused
	if len(refused) != 2 || refused[0].Err.Reason != ReasonUnknownTopic || refused[1].Err.Reason != ReasonUnknownPartition {
		t.Fatalf("refused %+v", refused)
	}
	if got := h.offset(a0); got != 8 {
		t.Fatalf("the offset is %d, want 8", got)
	}
	m := h.peer("m1", "a").join()
	start := h.sent[len(h.sent)-1].Message.(Assignment).Partitions
	if start[0].Start != 8 || start[1].Start != -1 {
		t.Fatalf("assigned %+v", start)
	}
	wantReason(t, h.adminCommit(OffsetCommit{Part: a0, NextOffset: 9}).Err, ReasonGroupNotEmpty)
	m.leave()
	if r := h.adminCommit(OffsetCommit{Part: a0, NextOffset: 9}); r.Err != nil {
		t.Fatal(r.Err)
	}
}

func TestDeleteGroup(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a").join()
	if err := m.commit(a0, 4); err != nil {
		t.Fatal(err)
	}
	del := func() Reply { return h.ask(Delete{Req: h.req(), Group: "g"}) }
	wantReason(t, del().Err, ReasonGroupNotEmpty)
	m.leave()
	before := len(h.log)
	if r := del(); r.Err != nil {
		t.Fatal(r.Err)
	}
	written := h.log[before:]
	first, last := written[0], written[len(written)-1]
	if first.Key != groupKey("g") || !first.Value.(GroupValue).Deleting || last.Key != groupKey("g") || last.Value != nil {
		t.Fatalf("wrote %+v first and %+v last, want DELETING and the group's tombstone", first, last)
	}
	wantReason(t, del().Err, ReasonUnknownGroup)
	if got := h.offset(a0); got != -1 {
		t.Fatalf("the offset is %d after the deletion", got)
	}
	// Whoever loads a part of it finishes it.
	for cut := before + 1; cut < len(h.log); cut++ {
		next := newShard(t, DefaultConfig(), topicA)
		next.step(Deposed{})
		next.log = slices.Clone(h.log[:cut])
		next.step(Claim{Epoch: 2})
		next.commitOpen()
		if r := next.ask(Describe{Req: next.req(), Group: "g"}); r.Err == nil || next.offset(a0) != -1 {
			t.Fatalf("cut after %d of %d records, the group is %+v", cut-before, len(written), r.Result)
		}
	}
}

func TestOffsetsGoOnlyWithADeletionRecord(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	h.adminCommit(OffsetCommit{Part: a0, NextOffset: 8})
	h.step(Topics{View: view()}) // a lagging picture
	if got := h.offset(a0); got != 8 {
		t.Fatalf("a picture without the topic took its offset: %d", got)
	}
	h.step(Topics{View: view(), Deleted: []TopicID{topicA.ID}})
	if got := h.offset(a0); got != -1 {
		t.Fatalf("the offset outlived the topic: %d", got)
	}
	again := Topic{ID: topicID(2), Name: "a", Partitions: 4}
	h.step(Topics{View: view(again)})
	refused := h.adminCommit(OffsetCommit{Part: a0, NextOffset: 8}).Result.(CommitDone).Refused
	if len(refused) != 1 || refused[0].Err.Reason != ReasonTopicDeleted {
		t.Fatalf("a commit for the deleted topic gave %+v", refused)
	}
}

func TestTopicsThatAppearAndGrow(t *testing.T) {
	h := newShard(t, DefaultConfig())
	m := h.peer("m1", "a").join()
	wantHeld(t, m)
	if m.assignments != 1 {
		t.Fatalf("%d assignments came, want an empty one", m.assignments)
	}
	lastStarts := func() map[Part]int64 {
		starts := make(map[Part]int64)
		for _, at := range h.sent[len(h.sent)-1].Message.(Assignment).Partitions {
			starts[at.Part] = at.Start
		}
		return starts
	}
	h.step(Topics{View: view(Topic{ID: topicA.ID, Name: "a", Partitions: 2})})
	m.read()
	wantHeld(t, m, a0, a1)
	if s := lastStarts(); s[a0] != 0 || s[a1] != 0 {
		t.Fatalf("a topic created after the subscription starts at %v, want 0", s)
	}
	h.step(Topics{View: view(topicA)})
	m.read()
	wantHeld(t, m, a0, a1, a2, a3)
	if s := lastStarts(); s[a2] != 0 || s[a3] != 0 {
		t.Fatalf("partitions created after the subscription start at %v, want 0", s)
	}
	// A topic that was there before starts where the reset policy says.
	b := Topic{ID: topicID(5), Name: "b", Partitions: 1}
	h.step(Topics{View: view(topicA, b)})
	m.topics = []string{"a", "b"}
	m.join()
	h.pass(DefaultConfig().JoinDelay)
	m.read()
	if s := lastStarts(); len(s) != 5 || s[Part{b.ID, 0}] != -1 {
		t.Fatalf("a topic that existed before the subscription starts at %v, want -1", s)
	}
	h.step(Topics{View: view(b), Deleted: []TopicID{topicA.ID}})
	m.read()
	wantHeld(t, m, Part{b.ID, 0})
}

func TestPatternFollowsTopics(t *testing.T) {
	logs := Topic{ID: topicID(3), Name: "logs.x", Partitions: 1}
	internal := Topic{ID: topicID(4), Name: "logs.internal", Partitions: 1, Internal: true}
	h := newShard(t, DefaultConfig(), logs, internal)
	e := Open{Req: h.req(), Group: "g", Member: "m1", Pattern: "logs[.].*"}
	if r := h.ask(e); r.Err != nil {
		t.Fatal(r.Err)
	}
	last := func() []Assigned { return h.sent[len(h.sent)-1].Message.(Assignment).Partitions }
	if a := last(); len(a) != 1 || a[0].Topic != "logs.x" {
		t.Fatalf("assigned %+v", a)
	}
	h.step(Topics{View: view(logs, internal, Topic{ID: topicID(6), Name: "logs.y", Partitions: 2}, Topic{ID: topicID(7), Name: "xlogs.z", Partitions: 2})})
	if a := last(); len(a) != 3 {
		t.Fatalf("assigned %+v after a topic appeared", a)
	}
	wantReason(t, h.ask(Open{Req: h.req(), Group: "g", Member: "m2", Pattern: "("}).Err, ReasonInvalidRequest)
}

func TestLimitsAreRefused(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxGroups, cfg.MaxMembers, cfg.MaxPartitions = 1, 2, 10
	big := Topic{ID: topicID(8), Name: "big", Partitions: 11}
	h := newShard(t, cfg, topicA, big)
	open := func(e Open) *Error {
		e.Req = h.req()
		return h.ask(e).Err
	}
	wantReason(t, open(Open{Group: "g", Member: "m", Topics: []string{"big"}}), ReasonLimitExceeded)
	h.peer("m1", "a").join()
	h.peer("m2", "a").join()
	wantReason(t, open(Open{Group: "g", Member: "m3", Topics: []string{"a"}}), ReasonLimitExceeded)
	wantReason(t, open(Open{Group: "other", Member: "m", Topics: []string{"a"}}), ReasonLimitExceeded)
	wantReason(t, open(Open{Group: "g", Member: "m1", Topics: []string{"a", "big"}}), ReasonLimitExceeded)
	wantReason(t, open(Open{Group: "g", Member: "m1", Assignor: "best"}), ReasonInvalidRequest)
	wantReason(t, open(Open{Group: "g", Member: "m1", SessionTimeout: time.Millisecond}), ReasonInvalidRequest)
	wantReason(t, open(Open{Group: "g", Member: "m1", RebalanceTimeout: 25 * time.Hour}), ReasonInvalidRequest)
	wantReason(t, open(Open{Group: "g", Member: "m9", Attach: 3}), ReasonUnknownMember)
	if err := (Config{}).Validate(); err == nil || !strings.Contains(err.Error(), "session timeout") {
		t.Fatalf("the zero config gave %v", err)
	}
}

func TestRebalancesAreRemembered(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a").join()
	for i := range 70 {
		p := h.peer(fmt.Sprintf("x%d", i), "a").join()
		h.pass(DefaultConfig().JoinDelay)
		p.leave()
		m.ping()
		m.read()
	}
	ledger := h.describe("g").Ledger
	if len(ledger) != ledgerSlots {
		t.Fatalf("%d rebalances are remembered, want %d", len(ledger), ledgerSlots)
	}
	if last := ledger[len(ledger)-1]; last.Cause != `member "x69" left` || last.Moved != 2 {
		t.Fatalf("the last one is %+v", last)
	}
}
