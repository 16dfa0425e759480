package group

import (
	"fmt"
	"math"
	"testing"
	"time"
)

var (
	topicA = Topic{ID: topicID(1), Name: "a", Partitions: 4}
	a0     = Part{topicA.ID, 0}
	a1     = Part{topicA.ID, 1}
	a2     = Part{topicA.ID, 2}
	a3     = Part{topicA.ID, 3}
)

func wantReason(t *testing.T, err *Error, want Reason) {
	t.Helper()
	if err == nil {
		t.Fatalf("nothing was refused, want reason %d", want)
	}
	if err.Reason != want {
		t.Fatalf("refused with reason %d (%v), want %d", err.Reason, err, want)
	}
}

func wantHeld(t *testing.T, p *peer, want ...Part) {
	t.Helper()
	if len(p.held) != len(want) {
		t.Fatalf("%s holds %v, want %v", p.id, p.held, want)
	}
	for _, part := range want {
		if _, ok := p.held[part]; !ok {
			t.Fatalf("%s holds %v, want %v", p.id, p.held, want)
		}
	}
}

func TestFirstMemberGetsEverythingAtOnce(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a").join()
	wantHeld(t, m, a0, a1, a2, a3)
	if d := h.describe("g"); d.Status != StatusStable || d.Epoch != 1 || d.Members[0].Epoch != 1 {
		t.Fatalf("described as %+v", d)
	}
}

func TestTwoMembersShareAndALeaveHandsOverAtOnce(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m1 := h.peer("m1", "a").join()
	m2 := h.peer("m2", "a").join()
	if len(m2.held) != 0 {
		t.Fatalf("m2 holds %v before the joins were gathered", m2.held)
	}
	h.pass(DefaultConfig().JoinDelay)
	m1.read()
	m2.read()
	if len(m1.held) != 2 || len(m2.held) != 2 {
		t.Fatalf("m1 holds %v and m2 %v, want two each", m1.held, m2.held)
	}
	if err := m1.commit(firstOf(m1), 7); err != nil {
		t.Fatal(err)
	}
	m1.leave()
	m2.read()
	wantHeld(t, m2, a0, a1, a2, a3)
}

func firstOf(p *peer) Part {
	for _, part := range []Part{a0, a1, a2, a3} {
		if _, ok := p.held[part]; ok {
			return part
		}
	}
	return Part{}
}

func TestThousandJoinsCostOneAssignment(t *testing.T) {
	h := newShard(t, DefaultConfig(), Topic{ID: topicID(1), Name: "a", Partitions: 5000})
	h.lax = true
	first := h.peer("m0000", "a").join()
	for i := 1; i < 1000; i++ {
		h.peer(fmt.Sprintf("m%04d", i), "a").join()
	}
	before := h.describe("g").Epoch
	h.pass(DefaultConfig().JoinDelay)
	first.read()
	if got := h.describe("g").Epoch - before; got != 1 {
		t.Fatalf("the joins cost %d assignments, want 1", got)
	}
	if len(first.held) != 5 {
		t.Fatalf("the first member holds %d partitions, want 5", len(first.held))
	}
}

func TestNewOwnerWaitsForTheOldOne(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m1 := h.peer("m1", "a")
	m1.slow = true
	m1.join()
	m2 := h.peer("m2", "a").join()
	h.pass(DefaultConfig().JoinDelay)
	m1.read()
	m2.read()
	wantHeld(t, m2)
	// What is being given up still commits.
	for part, epoch := range m1.revoking {
		m1.seq++
		if err := m1.commitAs(m1.attach, m1.epoch, m1.seq, OffsetCommit{Part: part, NextOffset: 9, AssignmentEpoch: epoch}); err != nil {
			t.Fatal(err)
		}
	}
	m1.giveUp()
	m2.read()
	if len(m2.held) != 2 {
		t.Fatalf("m2 holds %v after the revocation, want two", m2.held)
	}
	last := h.sent[len(h.sent)-1].Message.(Assignment)
	for _, at := range last.Partitions {
		if at.Start != 9 {
			t.Fatalf("m2 starts %v at %d, want the commit made during the revocation, 9", at.Part, at.Start)
		}
	}
}

// case 24: a member gets its id and dies before it says another word. The
// rebalance completes when its session times out.
func TestMemberThatDiesAfterJoining(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	dead := h.peer("m2", "a")
	if err := dead.tryJoin(); err != nil {
		t.Fatal(err)
	}
	dead.gone()
	h.pass(cfg.JoinDelay)
	m1.read()
	if len(m1.held) != 2 {
		t.Fatalf("m1 holds %v while the dead member's session runs, want two", m1.held)
	}
	h.pass(cfg.SessionTimeout / 2)
	if err := m1.ping(); err != nil {
		t.Fatal(err)
	}
	h.pass(cfg.SessionTimeout / 2)
	m1.read()
	wantHeld(t, m1, a0, a1, a2, a3)
	if h.describe("g").Status != StatusStable {
		t.Fatal("the rebalance did not complete")
	}
}

// case 25: a partition pending revocation is returned to the same member before
// its acknowledgement is handled, and members are added, so that it is revoked once
// more. The acknowledgement, arriving late, must not count for the later tenure:
// never two owners.
func TestRevocationTakenBackBeforeItsAcknowledgement(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	m2 := h.peer("m2", "a").join()
	h.pass(cfg.JoinDelay)
	// m1 takes the revocation in; its acknowledgement stays on its way.
	m1.take(m1.latest())
	late := Ack{Group: "g", Member: "m1", Attach: m1.attach, Epoch: m1.epoch, Owned: m1.owned()}
	if len(late.Owned) != 2 {
		t.Fatalf("m1 acknowledges %v, want two partitions left", late.Owned)
	}
	m1.seen = len(h.sent)
	m2.leave() // everything goes back to m1
	if back := m1.latest(); len(back.Partitions) != 4 {
		t.Fatalf("after the leave %+v was sent to m1, want all four", back)
	}
	m3 := h.peer("m3", "a").join()
	h.pass(cfg.JoinDelay) // and is revoked from it again
	if again := m1.latest(); len(again.Partitions) != 2 {
		t.Fatalf("after the join %+v was sent to m1, want two", again)
	}
	h.step(late)
	m3.read()
	wantHeld(t, m3)
	m1.read()
	m3.read()
	if len(m1.held) != 2 || len(m3.held) != 2 {
		t.Fatalf("m1 holds %v and m3 %v, want two each", m1.held, m3.held)
	}
}

// A member that resumes while it is still busy with an earlier tenure of a
// partition has not given it up.
func TestResumeWithAnEarlierTenureKeepsIt(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	first := m1.held
	m2 := h.peer("m2", "a").join()
	h.pass(cfg.JoinDelay)
	m2.leave()
	m3 := h.peer("m3", "a").join()
	h.pass(cfg.JoinDelay)
	// m1 has read none of it and works on all four since their first tenure.
	m1.gone()
	m1.held = first
	m1.seen = len(h.sent)
	if err := m1.tryJoin(); err != nil {
		t.Fatal(err)
	}
	m3.read()
	wantHeld(t, m3)
	m1.read()
	m3.read()
	if len(m1.held) != 2 || len(m3.held) != 2 {
		t.Fatalf("m1 holds %v and m3 %v, want two each", m1.held, m3.held)
	}
}

// case 27: a member pauses past its session, resumes, and commits. The commit is
// rejected, the offset is unchanged, the member joins anew.
func TestCommitAfterALapsedSession(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	if err := m1.commit(a0, 10); err != nil {
		t.Fatal(err)
	}
	m2 := h.peer("m2", "a").join()
	h.pass(cfg.JoinDelay)
	m2.read()
	for range 4 {
		h.pass(cfg.SessionTimeout / 3)
		if err := m2.ping(); err != nil {
			t.Fatal(err)
		}
	}
	m2.read()
	wantHeld(t, m2, a0, a1, a2, a3)
	wantReason(t, m1.commit(a0, 99), ReasonUnknownMember)
	if got := h.offset(a0); got != 10 {
		t.Fatalf("the offset is %d, want 10", got)
	}
	m1.read()
	wantReason(t, m1.fenced, ReasonUnknownMember)
	wantReason(t, m1.tryJoin(), ReasonUnknownMember)
	anew := h.peer("m1b", "a").join()
	h.pass(cfg.JoinDelay)
	m2.read()
	anew.read()
	if len(anew.held) != 2 {
		t.Fatalf("the member joined anew and holds %v", anew.held)
	}
}

func TestCommitRule(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a").join()
	at := func(epoch int64, part Part) OffsetCommit {
		return OffsetCommit{Part: part, NextOffset: 50, AssignmentEpoch: epoch}
	}
	if err := m.commitAs(1, 1, 5, OffsetCommit{Part: a0, NextOffset: 20, AssignmentEpoch: 1}); err != nil {
		t.Fatal(err)
	}
	long := at(1, a0)
	long.Metadata = string(make([]byte, 4097))
	negative := at(1, a0)
	negative.NextOffset = -1
	for _, c := range []struct {
		name               string
		attach, epoch, seq int64
		offset             OffsetCommit
		want               Reason
	}{
		{"sequence repeated", 1, 1, 5, at(1, a0), ReasonStaleCommit},
		{"sequence below", 1, 1, 4, at(1, a0), ReasonStaleCommit},
		{"attach above", 2, 1, 6, at(1, a0), ReasonUnknownMember},
		{"attach below", 0, 1, 6, at(1, a0), ReasonStreamSuperseded},
		{"epoch above the member's", 1, 2, 6, at(1, a0), ReasonStaleCommit},
		{"epoch below the assignment's", 1, 0, 6, at(1, a0), ReasonStaleCommit},
		{"another tenure", 1, 1, 6, at(0, a0), ReasonStaleCommit},
		{"not held", 1, 1, 6, at(1, Part{topicA.ID, 9}), ReasonStaleCommit},
		{"metadata too long", 1, 1, 6, long, ReasonOffsetMetadataTooLarge},
		{"negative", 1, 1, 6, negative, ReasonInvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantReason(t, m.commitAs(c.attach, c.epoch, c.seq, c.offset), c.want)
			if got := h.offset(a0); got != 20 {
				t.Fatalf("the offset is %d, want 20", got)
			}
		})
	}
	// A deliberate seek may move back.
	if err := m.commitAs(1, 1, 6, OffsetCommit{Part: a0, NextOffset: 3, AssignmentEpoch: 1}); err != nil {
		t.Fatal(err)
	}
	if got := h.offset(a0); got != 3 {
		t.Fatalf("the offset is %d, want 3", got)
	}
}

func TestResumeEndsTheOlderStream(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a").join()
	old := *m
	m.join()
	if m.attach != 2 {
		t.Fatalf("resumed with attach %d, want 2", m.attach)
	}
	wantHeld(t, m, a0, a1, a2, a3)
	if h.describe("g").Epoch != 1 {
		t.Fatal("a resume moved the group")
	}
	found := false
	for _, s := range h.sent {
		if f, ok := s.Message.(Fenced); ok && s.Attach == 1 {
			wantReason(t, f.Err, ReasonStreamSuperseded)
			found = true
		}
	}
	if !found {
		t.Fatal("the older stream was not ended")
	}
	wantReason(t, old.commitAs(1, 1, 100, OffsetCommit{Part: a0, NextOffset: 1, AssignmentEpoch: 1}), ReasonStreamSuperseded)
	// The older stream's end comes late and detaches nobody.
	old.gone()
	h.pass(DefaultConfig().SessionTimeout - time.Second)
	if err := m.commit(a0, 4); err != nil {
		t.Fatal(err)
	}
}

// A join that waits for the log is given up, the member is expelled, and joins again
// under its id before the log answers. That the first stream is gone is told only
// when its join is answered at last, and must not detach the second.
func TestLateEndOfAnEarlierMembershipDetachesNobody(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	h.hold = true
	open := Open{Req: h.req(), Group: "g", Member: "m2", Topics: []string{"a"}}
	first := open.Req
	h.step(open)
	for range 2 {
		h.pass(cfg.SessionTimeout * 2 / 3)
		h.step(Ping{Req: h.req(), Group: "g", Member: "m1", Attach: m1.attach})
	}
	open.Req = h.req()
	second := open.Req
	h.step(open)
	h.hold = false
	h.commitOpen()
	earlier := h.replies[first].Result.(Opened).Attach
	m2 := h.peer("m2", "a")
	m2.attach = h.replies[second].Result.(Opened).Attach
	h.step(Gone{Group: "g", Member: "m2", Attach: earlier})
	for range 2 {
		h.pass(cfg.JoinDelay)
		m1.read()
		m2.read()
	}
	if len(m1.held) != 2 || len(m2.held) != 2 {
		t.Fatalf("m1 holds %v and m2 %v, want two each (attach %d, earlier %d)", m1.held, m2.held, m2.attach, earlier)
	}
}

// Sequences of commits begin anew with each membership, also of the same id, and
// also where a new owner has loaded the shard in between.
func TestCommitsOfALaterMembershipAreNoRepetitions(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	for life := range int64(3) {
		m := h.peer("m1", "a").join()
		for i := range 3 - life {
			want := 10*life + i + 1
			if err := m.commit(a0, want); err != nil {
				t.Fatal(err)
			}
			if got := h.offset(a0); got != want {
				t.Fatalf("the offset is %d after commit %d of life %d, want %d", got, i, life, want)
			}
		}
		m.leave()
		if life == 1 {
			h.step(Deposed{})
			h.step(Claim{Epoch: 2})
		}
	}
}

// The session counts from the last sign of life that frames tell of, not from when
// they come, and no frame makes it older.
func TestSessionCountsFromTheLastSign(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	h.pass(cfg.SessionTimeout / 3)
	m1.silence = time.Second // the last sign
	if err := m1.ping(); err != nil {
		t.Fatal(err)
	}
	left := cfg.SessionTimeout - time.Second - time.Millisecond
	h.pass(left / 2)
	m1.silence = time.Hour
	m1.ack()
	if err := m1.commit(a0, 1); err != nil {
		t.Fatal(err)
	}
	m1.join()
	h.pass(left - left/2)
	if d := h.describe("g"); len(d.Members) != 1 {
		t.Fatalf("described as %+v before the session timeout", d)
	}
	h.pass(time.Millisecond)
	if d := h.describe("g"); len(d.Members) != 0 {
		t.Fatalf("described as %+v one session timeout after the last sign", d)
	}
}

// Whatever a client says of its silence, its session is neither longer than from the
// frame, nor shorter than from the sign before.
func TestSilencesThatCannotBe(t *testing.T) {
	cfg := DefaultConfig()
	for silence, counts := range map[time.Duration]bool{math.MinInt64: true, -time.Hour: true, math.MaxInt64: false, math.MaxInt64 - 1: false} {
		for name, frame := range map[string]func(*peer){
			"ping": func(p *peer) {
				if err := p.ping(); err != nil {
					t.Error(err)
				}
			},
			"ack":    (*peer).ack,
			"resume": func(p *peer) { p.join() },
		} {
			h := newShard(t, cfg, topicA)
			m1 := h.peer("m1", "a").join()
			h.pass(cfg.SessionTimeout / 2)
			m1.silence = silence
			frame(m1)
			left := cfg.SessionTimeout
			if !counts {
				left /= 2
				other := h.peer("other", "a") // whose end has the shard look at all
				other.session = left / 2
				other.join()
			}
			h.pass(left - time.Millisecond)
			if d := h.describe("g"); len(d.Members) != 1 {
				t.Errorf("%s with a silence of %v: the member was expelled early", name, silence)
			}
			h.pass(time.Millisecond)
			if d := h.describe("g"); len(d.Members) != 0 {
				t.Errorf("%s with a silence of %v: the member is there after its session timeout", name, silence)
			}
		}
	}
}

func TestBrokenStreamIsNoLeave(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	m1.gone()
	h.pass(cfg.SessionTimeout - time.Millisecond)
	if d := h.describe("g"); len(d.Members) != 1 || len(d.Members[0].Owned) != 4 {
		t.Fatalf("described as %+v before the session timeout", d)
	}
	h.pass(time.Millisecond)
	if d := h.describe("g"); len(d.Members) != 0 || d.Status != StatusEmpty {
		t.Fatalf("described as %+v after the session timeout", d)
	}
}

func TestMemberThatNeverAcknowledgesIsRemoved(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RebalanceTimeout = 20 * time.Second
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a")
	m1.slow = true
	m1.join()
	m2 := h.peer("m2", "a").join()
	h.pass(cfg.JoinDelay)
	m1.read()
	m2.read()
	for range 4 {
		h.pass(5 * time.Second)
		m1.ping() // alive, and slow all the same
		m2.ping()
	}
	m1.read()
	wantReason(t, m1.fenced, ReasonMemberFenced)
	m2.read()
	wantHeld(t, m2, a0, a1, a2, a3)
}

// case 28: offsets do not expire while the group has members, however long it
// lasts, however often it rebalances and however short the retention is.
func TestOffsetsExpireOnlyWithoutMembers(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OffsetsRetention = 20 * time.Second
	h := newShard(t, cfg, topicA)
	m := h.peer("m1", "a").join()
	if err := m.commit(a0, 42); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		p := h.peer(fmt.Sprintf("x%d", i), "a").join()
		h.pass(cfg.SessionTimeout / 2)
		if err := m.ping(); err != nil {
			t.Fatal(err)
		}
		m.read()
		p.leave()
		m.read()
	}
	m.leave()
	h.pass(cfg.OffsetsRetention - time.Second)
	if got := h.offset(a0); got != 42 {
		t.Fatalf("the offset is %d before the retention has passed, want 42", got)
	}
	// A new owner counts from its load, since nothing tells when the group became empty.
	h.step(Deposed{})
	h.step(Claim{Epoch: 2})
	h.pass(cfg.OffsetsRetention - time.Second)
	again := h.peer("m2", "a").join()
	if at := h.sent[len(h.sent)-1].Message.(Assignment).Partitions[0]; at.Start != 42 {
		t.Fatalf("assigned %+v, want the start 42", at)
	}
	again.leave()
	h.pass(cfg.OffsetsRetention)
	if got := h.offset(a0); got != -1 {
		t.Fatalf("the offset is %d after the retention, want none", got)
	}
	wantReason(t, h.ask(Describe{Req: h.req(), Group: "g"}).Err, ReasonUnknownGroup)
}
