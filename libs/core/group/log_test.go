package group

import (
	"testing"
	"time"
)

func TestNothingIsAnsweredBeforeItsAppendCommits(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a").join()
	h.hold = true
	h.step(Commit{
		Req: h.req(), Group: "g", Member: "m1", Attach: 1, Epoch: 1, Sequence: 1,
		Offsets: []OffsetCommit{{Part: a0, NextOffset: 5, AssignmentEpoch: m.held[a0]}},
	})
	commit := h.lastReq
	// The fetch and the pings came after the append had begun: they need a later one,
	// and share it.
	h.step(FetchOffsets{Req: h.req(), Group: "g", Parts: []Part{a0}})
	fetch := h.lastReq
	h.step(Ping{Req: h.req(), Group: "g", Member: "m1", Attach: 1})
	h.step(Ping{Req: h.req(), Group: "g", Member: "m1", Attach: 1})
	if len(h.open) != 1 || len(h.replies) != 1 {
		t.Fatalf("%d appends are open and %d answers came, want 1 and that of the join", len(h.open), len(h.replies))
	}
	h.step(Committed{Op: h.open[0]})
	if _, ok := h.replies[commit]; !ok {
		t.Fatal("the commit was not answered once committed")
	}
	if _, ok := h.replies[fetch]; ok {
		t.Fatal("the fetch was answered with an append begun before it")
	}
	if len(h.open) != 2 || len(h.pending[1]) != 0 {
		t.Fatalf("open is %v with %v, want one barrier for the fetch and the pings", h.open, h.pending)
	}
	h.step(Committed{Op: h.open[1]})
	if got := h.replies[fetch].Result.(Offsets).Offsets[0].NextOffset; got != 5 {
		t.Fatalf("the fetch says %d, want 5", got)
	}
	if len(h.replies) != 5 {
		t.Fatalf("%d answers came, want 5", len(h.replies))
	}
}

func TestAppendThatWasNotDoneIsTriedAgain(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m := h.peer("m1", "a").join()
	h.hold = true
	h.step(Commit{
		Req: h.req(), Group: "g", Member: "m1", Attach: 1, Epoch: 1, Sequence: 1,
		Offsets: []OffsetCommit{{Part: a0, NextOffset: 5, AssignmentEpoch: m.held[a0]}},
	})
	h.step(Failed{Op: h.open[0], Kind: NotDone})
	if len(h.open) != 1 {
		t.Fatal("the append was tried again without a pause")
	}
	h.pass(cfg.RetryDelay)
	if len(h.open) != 2 || h.open[1] != h.open[0] || len(h.pending[1]) != 1 {
		t.Fatalf("open is %v with %v, want the same append again", h.open, h.pending)
	}
	h.step(Committed{Op: h.open[1]})
	if r := h.replies[h.lastReq]; r.Err != nil {
		t.Fatal(r.Err)
	}
}

func TestUnknownAppendIsFencedAndLoadedAgain(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a").join()
	h.hold = true
	commit := func(seq, next int64) uint64 {
		h.step(Commit{
			Req: h.req(), Group: "g", Member: "m1", Attach: 1, Epoch: 1, Sequence: seq,
			Offsets: []OffsetCommit{{Part: a0, NextOffset: next, AssignmentEpoch: m.held[a0]}},
		})
		return h.lastReq
	}
	first, second := commit(1, 5), commit(2, 6)
	landed := h.pending[0]
	h.log = append(h.log, landed...) // it is in the log, the coordinator cannot know
	op := h.open[0]
	h.hold = false
	h.step(Failed{Op: op, Kind: Unknown})
	if r := h.replies[first]; r.Err == nil || !r.Err.Unknown {
		t.Fatalf("the commit in flight was answered %+v, want unknown", r)
	}
	if r := h.replies[second]; r.Err == nil || r.Err.Unknown || r.Err.Reason != ReasonLoading {
		t.Fatalf("the commit that waited was answered %+v, want not done, loading", r)
	}
	if f := h.fences[len(h.fences)-1]; f != (Fence{Epoch: 1, Attempt: 1}) {
		t.Fatalf("fenced with %+v, want the next attempt", f)
	}
	if len(h.abandon) != 1 || !h.abandon[0].Reload {
		t.Fatalf("abandoned %+v", h.abandon)
	}
	if got := h.offset(a0); got != 5 {
		t.Fatalf("after the reload the offset is %d, want 5", got)
	}
	// The member resumes where it was.
	m.join()
	if m.attach != 2 || len(m.held) != 4 {
		t.Fatalf("resumed with attach %d and %v", m.attach, m.held)
	}
	if err := m.commit(a0, 8); err != nil {
		t.Fatal(err)
	}
}

func TestDeposedMidCommit(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a").join()
	h.hold = true
	h.step(Commit{
		Req: h.req(), Group: "g", Member: "m1", Attach: 1, Epoch: 1, Sequence: 1,
		Offsets: []OffsetCommit{{Part: a0, NextOffset: 5, AssignmentEpoch: m.held[a0]}},
	})
	first := h.lastReq
	h.step(Ping{Req: h.req(), Group: "g", Member: "m1", Attach: 1})
	ping := h.lastReq
	op := h.open[0]
	h.step(Deposed{})
	if r := h.replies[first]; r.Err == nil || !r.Err.Unknown || r.Err.Reason != ReasonShardLost {
		t.Fatalf("the commit was answered %+v", r)
	}
	wantReason(t, h.replies[ping].Err, ReasonShardLost)
	if len(h.abandon) != 1 || h.abandon[0].Reload {
		t.Fatalf("abandoned %+v", h.abandon)
	}
	before := len(h.replies)
	h.step(Committed{Op: op}) // too late: nobody may hear of it
	if len(h.replies) != before {
		t.Fatal("a deposed shard confirmed a commit")
	}
	wantReason(t, h.ask(Describe{Req: h.req(), Group: "g"}).Err, ReasonShardLost)
}

func TestFenceIsRepeatedWithTheNextAttempt(t *testing.T) {
	cfg := DefaultConfig()
	s := New(cfg)
	now := Now{Mono: time.Second}
	out := s.Step(now, Claim{Epoch: 7})
	if len(out) != 1 || out[0] != (Fence{Epoch: 7}) {
		t.Fatalf("claim gave %+v", out)
	}
	out = s.Step(now, FenceResult{OK: false})
	if len(out) != 1 || out[0] != (WakeAt{now.Mono + cfg.RetryDelay}) {
		t.Fatalf("a failed fence gave %+v", out)
	}
	r := s.Step(now, Ping{Req: 9, Group: "g", Member: "m"})
	wantReason(t, r[0].(Reply).Err, ReasonLoading)
	now.Mono += cfg.RetryDelay
	out = s.Step(now, Tick{})
	if len(out) != 1 || out[0] != (Fence{Epoch: 7, Attempt: 1}) {
		t.Fatalf("the next attempt is %+v", out)
	}
}

func TestNewOwnerGivesASessionTimeoutAfterItsLoad(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	h.peer("m1", "a").join()
	h.step(Deposed{})
	h.pass(10 * cfg.SessionTimeout)
	h.step(Claim{Epoch: 2})
	h.pass(cfg.SessionTimeout - time.Millisecond)
	if n := len(h.describe("g").Members); n != 1 {
		t.Fatalf("%d members just before a session timeout after the load", n)
	}
	h.pass(time.Millisecond)
	if n := len(h.describe("g").Members); n != 0 {
		t.Fatalf("%d members a session timeout after the load", n)
	}
}

func TestTooMuchQueuedIsRefusedAtOnce(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxQueued = 3
	h := newShard(t, cfg, topicA)
	h.hold = true
	for range 5 {
		h.step(FetchOffsets{Req: h.req(), Group: "g"})
	}
	wantReason(t, h.replies[h.lastReq].Err, ReasonOverloaded)
	if len(h.replies) != 1 {
		t.Fatalf("%d answers came, want the one refusal", len(h.replies))
	}
	h.commitOpen()
	if len(h.replies) != 5 {
		t.Fatalf("%d answers came in the end, want 5", len(h.replies))
	}
}

func TestTooManyBytesQueuedAreRefusedAtOnce(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxQueuedBytes = 10_000
	h := newShard(t, cfg, topicA)
	h.hold = true
	refused := 0
	for range 10 {
		h.step(AdminCommit{Req: h.req(), Group: "g", Offsets: []OffsetCommit{{Part: a0, Metadata: string(make([]byte, 4000))}}})
		if r, ok := h.replies[h.lastReq]; ok {
			wantReason(t, r.Err, ReasonOverloaded)
			refused++
		}
	}
	if refused != 6 { // one is on its way, three gathered
		t.Fatalf("%d of 10 commits were refused, want 6", refused)
	}
}
