package group

import (
	"strings"
	"testing"
	"time"
)

// reset asks for a reset; the answer may come later.
func (h *shard) reset(timeout time.Duration, offsets ...OffsetCommit) uint64 {
	h.t.Helper()
	req := h.req()
	h.step(ResetOffsets{Req: req, Group: "g", Offsets: offsets, Timeout: timeout})
	return req
}

func (h *shard) rows(req uint64) []ResetRow {
	h.t.Helper()
	r, ok := h.replies[req]
	if !ok {
		h.t.Fatalf("request %d was not answered", req)
	}
	if r.Err != nil {
		h.t.Fatal(r.Err)
	}
	return r.Result.(ResetDone).Rows
}

func to(p Part, next int64) OffsetCommit {
	return OffsetCommit{Part: p, NextOffset: next, LeaderEpoch: -1}
}

func TestResetWithoutMembers(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	rows := h.rows(h.reset(0, to(a0, 5), to(a1, 6), to(a1, 7), to(Part{topicA.ID, 9}, 1), to(a2, -1)))
	if rows[0].Err != nil || rows[0].Old != -1 || rows[0].New != 5 || rows[1].New != 6 {
		t.Fatalf("answered %+v", rows)
	}
	wantReason(t, rows[2].Err, ReasonInvalidRequest)
	wantReason(t, rows[3].Err, ReasonUnknownPartition)
	wantReason(t, rows[4].Err, ReasonInvalidRequest)
	rows = h.rows(h.reset(0, to(a0, 1)))
	if rows[0].Old != 5 || rows[0].New != 1 || h.offset(a0) != 1 || h.offset(a1) != 6 {
		t.Fatalf("answered %+v", rows)
	}
	// A reset of nothing that exists makes no group.
	h.rows(h.reset(0))
	h.step(ResetOffsets{Req: h.req(), Group: "other", Offsets: []OffsetCommit{to(Part{topicID(7), 0}, 1)}})
	if len(h.s.groups) != 1 {
		t.Fatalf("there are %d groups", len(h.s.groups))
	}
}

// An online reset revokes, awaits, writes, reassigns.
func TestResetWithMembers(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.startingPeer("m1", StartLatest)
	m1.slow = true
	m1.join()
	m2 := h.startingPeer("m2", StartLatest).join()
	h.pass(cfg.JoinDelay)
	m1.read()
	m1.giveUp()
	m2.read()
	mine, other := firstOf(m1), firstOf(m2)
	old := m1.held[mine]
	epoch := h.describe("g").Epoch
	req := h.reset(0, to(mine, 3))
	m1.read()
	m2.read()
	if _, ok := m1.held[mine]; ok || len(m2.held) != 2 || m2.held[other] == 0 {
		t.Fatalf("m1 holds %v and m2 %v while the reset waits", m1.held, m2.held)
	}
	if _, done := h.replies[req]; done || h.offset(mine) != 100 {
		t.Fatalf("the reset did not wait for the member: the offset is %d", h.offset(mine))
	}
	// Until it has given the partition up, the member may commit it.
	m1.seq++
	if err := m1.commitAs(m1.attach, m1.epoch, m1.seq, OffsetCommit{Part: mine, NextOffset: 150, AssignmentEpoch: old}); err != nil {
		t.Fatal(err)
	}
	m1.giveUp()
	rows := h.rows(req)
	if rows[0].Err != nil || rows[0].Old != 150 || rows[0].New != 3 || h.offset(mine) != 3 {
		t.Fatalf("answered %+v, the offset is %d", rows, h.offset(mine))
	}
	if starts(m1.latest())[mine] != 3 || m1.held[mine] <= old {
		t.Fatalf("m1 got %+v, held %v before", m1.latest(), old)
	}
	// What was read before the reset is not committed any more.
	m1.seq++
	wantReason(t, m1.commitAs(m1.attach, m1.epoch, m1.seq, OffsetCommit{Part: mine, NextOffset: 160, AssignmentEpoch: old}), ReasonStaleCommit)
	if err := m1.commit(mine, 4); err != nil {
		t.Fatal(err)
	}
	d := h.describe("g")
	last := d.Ledger[len(d.Ledger)-1]
	if d.Status != StatusStable || d.Epoch != epoch+1 || !strings.Contains(last.Cause, "reset") || last.Moved != 0 || last.FinishedMs == 0 {
		t.Fatalf("described as %+v", d)
	}
}

func TestResetThatTheMemberDoesNotHeed(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.startingPeer("m1", StartLatest)
	m.slow = true
	m.join()
	old := m.held[a0]
	req := h.reset(3*time.Second, to(a0, 3), to(a1, 4))
	m.read()
	wantHeld(t, m, a2, a3)
	late := Ack{Group: "g", Member: "m1", Attach: m.attach, Epoch: m.epoch, Owned: m.owned()[:0]}
	for part, epoch := range m.held {
		late.Owned = append(late.Owned, Owned{Part: part, Epoch: epoch})
	}
	wantReason(t, h.rows(h.reset(0, to(a0, 8)))[0].Err, ReasonResetInProgress)
	h.pass(3 * time.Second)
	rows := h.rows(req)
	wantReason(t, rows[0].Err, ReasonRevocationTimeout)
	wantReason(t, rows[1].Err, ReasonRevocationTimeout)
	if !strings.Contains(rows[1].Err.Message, `partition 1 of topic "a"`) {
		t.Errorf("people are told: %s", rows[1].Err.Message)
	}
	if rows[0].New != 100 || h.offset(a0) != 100 {
		t.Fatalf("answered %+v, the offset is %d", rows, h.offset(a0))
	}
	// The acknowledgement of the revocation, still on its way, does not end what the
	// member was given back.
	h.step(late)
	clear(m.revoking)
	m.read()
	wantHeld(t, m, a0, a1, a2, a3)
	if m.held[a0] <= old || h.describe("g").Status != StatusStable {
		t.Fatalf("m1 holds %v, before %d", m.held, old)
	}
	// The next one works.
	req = h.reset(0, to(a0, 3))
	m.read()
	m.giveUp()
	if rows := h.rows(req); rows[0].Err != nil || h.offset(a0) != 3 {
		t.Fatalf("answered %+v", rows)
	}
}

func TestResetOfWhatADeadMemberHolds(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.startingPeer("m1", StartLatest).join()
	m1.gone()
	m2 := h.startingPeer("m2", StartLatest).join()
	h.pass(cfg.JoinDelay)
	req := h.reset(time.Minute, to(a0, 3))
	h.pass(cfg.SessionTimeout / 2)
	if err := m2.ping(); err != nil {
		t.Fatal(err)
	}
	h.pass(cfg.SessionTimeout / 2)
	if rows := h.rows(req); rows[0].Err != nil || rows[0].New != 3 {
		t.Fatalf("answered %+v", rows)
	}
	m2.read()
	wantHeld(t, m2, a0, a1, a2, a3)
	if starts(m2.latest())[a0] != 3 {
		t.Fatalf("assigned %+v", m2.latest())
	}
}

// A shard that is lost answers what waits; a new owner gives back what was revoked.
func TestResetWhenTheShardIsLost(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.startingPeer("m1", StartLatest)
	m.slow = true
	m.join()
	req := h.reset(0, to(a0, 3), to(a1, 4))
	m.read()
	h.step(Deposed{})
	if r := h.replies[req]; r.Err == nil || r.Err.Reason != ReasonShardLost || !r.Err.Unknown {
		t.Fatalf("answered %+v", r)
	}
	h.step(Claim{Epoch: 2})
	m.join()
	m.giveUp()
	wantHeld(t, m, a0, a1, a2, a3)
	if h.offset(a0) != 100 || h.describe("g").Status != StatusStable {
		t.Fatalf("the offset is %d", h.offset(a0))
	}
}

func TestSimulate(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxMembers = 5
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	m2 := h.peer("m2", "a")
	m2.instance = "i2"
	m2.join()
	h.pass(cfg.JoinDelay)
	m1.read()
	m2.read()
	before := h.describe("g")
	ask := func(e Simulate) Reply {
		e.Req, e.Group = h.req(), "g"
		return h.ask(e)
	}
	r := ask(Simulate{Remove: []string{"i2"}}).Result.(Simulated)
	if len(r.Moves) != 2 || r.Moves[0].From != "m2" || r.Moves[0].To != "m1" || len(r.Members) != 2 ||
		r.Members[0].Before != 2 || len(r.Members[0].After) != 4 || len(r.Members[1].After) != 0 || r.Members[1].InstanceID != "i2" {
		t.Fatalf("without i2: %+v", r)
	}
	r = ask(Simulate{Add: 2}).Result.(Simulated)
	if len(r.Moves) != 2 || len(r.Members) != 4 || r.Members[2].ID != "+1" || len(r.Members[2].After) != 1 || len(r.Members[3].After) != 1 {
		t.Fatalf("with two more: %+v", r)
	}
	r = ask(Simulate{Remove: []string{"m1", "m2"}}).Result.(Simulated)
	if len(r.Moves) != 4 || r.Moves[0].To != "" {
		t.Fatalf("without anybody: %+v", r)
	}
	if r := ask(Simulate{Add: 1, Like: "i2"}); r.Err != nil {
		t.Fatalf("with one more like an instance: %v", r.Err)
	}
	wantReason(t, ask(Simulate{Remove: []string{"m9"}}).Err, ReasonInvalidRequest)
	wantReason(t, ask(Simulate{Remove: []string{"m2", "i2"}}).Err, ReasonInvalidRequest)
	wantReason(t, ask(Simulate{Add: 1, Like: "m9"}).Err, ReasonInvalidRequest)
	wantReason(t, ask(Simulate{Add: 4}).Err, ReasonLimitExceeded)
	wantReason(t, ask(Simulate{Add: -1}).Err, ReasonLimitExceeded)
	wantReason(t, h.ask(Simulate{Req: h.req(), Group: "none"}).Err, ReasonUnknownGroup)
	if after := h.describe("g"); after.Epoch != before.Epoch || len(after.Members) != 2 {
		t.Fatalf("the simulation changed the group: %+v", after)
	}
	m1.leave()
	m2.leave() // which keeps its place until its session is over
	h.pass(cfg.SessionTimeout)
	if err := ask(Simulate{Add: 1}).Err; err == nil || !strings.Contains(err.Message, "no members") {
		t.Fatalf("one more in a group without members: %v", err)
	}
}
