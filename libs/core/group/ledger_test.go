package group

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func (d Description) lastEntry() LedgerValue { return d.Ledger[len(d.Ledger)-1] }

// The ledger tells what moved from whom to whom, and how long it was without an owner:
// from when the former owner stopped until the next had taken it in.
func TestLedgerTellsMovesAndGaps(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a")
	m1.slow = true
	m1.join()
	first := h.describe("g").lastEntry()
	if first.Moved != 4 || len(first.Moves) != 4 || first.Moves[0] != (Move{a0, "", "m1"}) || first.FinishedMs == 0 || first.LongestMs != 0 {
		t.Fatalf("the first entry is %+v", first)
	}
	m2 := h.peer("m2", "a").join()
	h.pass(cfg.JoinDelay)
	m1.read()
	var revoked []Owned
	for p, epoch := range m1.revoking {
		revoked = append(revoked, Owned{Part: p, Epoch: epoch})
	}
	h.step(Revoking{Group: "g", Member: "m1", Attach: m1.attach, Parts: revoked})
	if m := h.describe("g").Members[0]; len(m.Revoking) != 2 || !m.Revoking[0].Heeded || m.Revoking[0].Remaining != cfg.RebalanceTimeout {
		t.Fatalf("m1 is described as %+v", m)
	}
	h.pass(2 * time.Second)
	m1.giveUp()
	if e := h.describe("g").lastEntry(); e.FinishedMs != 0 || e.LongestMs != 2000 || e.TotalMs != 4000 {
		t.Fatalf("before m2 took its partitions in, the entry is %+v", e)
	}
	h.pass(time.Second)
	m2.read()
	entry := h.describe("g").lastEntry()
	if entry.Cause != `member "m2" joined` || entry.Moved != 2 || entry.Moves[0].From != "m1" || entry.Moves[0].To != "m2" ||
		entry.LongestMs != 3000 || entry.TotalMs != 6000 || entry.FinishedMs != h.now.WallMs {
		t.Fatalf("the entry is %+v", entry)
	}
	// A member that dies was without doing since it was last heard of.
	m2.gone()
	h.pass(cfg.SessionTimeout / 2)
	m1.ping()
	h.pass(cfg.SessionTimeout / 2)
	m1.read()
	entry = h.describe("g").lastEntry()
	if !strings.Contains(entry.Cause, `"m2" was silent`) || entry.LongestMs != cfg.SessionTimeout.Milliseconds() || entry.FinishedMs == 0 {
		t.Fatalf("the entry is %+v", entry)
	}
	// It survives a new owner.
	h.step(Deposed{})
	h.step(Claim{Epoch: 2})
	if again := h.describe("g").lastEntry(); fmt.Sprint(again) != fmt.Sprint(entry) {
		t.Fatalf("after a load the entry is %+v, was %+v", again, entry)
	}
}

// The ledger names whoever had the partitions of a member that left or died, also
// where it was the last one and nobody gets them.
func TestLedgerTellsOfWhoIsGone(t *testing.T) {
	cfg := DefaultConfig()
	h := newShard(t, cfg, topicA)
	m1 := h.peer("m1", "a").join()
	m2 := h.peer("m2", "a").join()
	h.pass(cfg.JoinDelay)
	m1.read()
	m2.read()
	m2.leave()
	m1.read()
	if e := h.describe("g").lastEntry(); e.Cause != `member "m2" left` || e.Moved != 2 || e.Moves[0].From != "m2" || e.Moves[0].To != "m1" {
		t.Fatalf("after m2 left the entry is %+v", e)
	}
	m1.gone()
	h.pass(cfg.SessionTimeout)
	d := h.describe("g")
	if e := d.lastEntry(); !strings.Contains(e.Cause, `"m1" was silent`) || e.Moved != 4 || e.Moves[0] != (Move{a0, "m1", ""}) ||
		e.Epoch != d.Epoch || e.FinishedMs != h.now.WallMs || e.LongestMs != 0 {
		t.Fatalf("after the last one died the entry is %+v", e)
	}
	m3 := h.peer("m3", "a").join()
	m3.read()
	if e := h.describe("g").lastEntry(); e.Moved != 4 || e.Moves[0] != (Move{a0, "", "m3"}) || e.FinishedMs == 0 {
		t.Fatalf("after another one came the entry is %+v", e)
	}
}

func TestLedgerEntriesStayBelowTheirLimit(t *testing.T) {
	h := newShard(t, DefaultConfig(), Topic{ID: topicID(1), Name: "a", Partitions: 5000})
	h.lax = true
	for i := range 100 {
		h.peer(fmt.Sprintf("%s-%d", strings.Repeat("m", 200), i), "a").join()
	}
	h.pass(DefaultConfig().JoinDelay)
	for _, v := range h.describe("g").Ledger {
		size := len(v.Cause)
		named := make(map[string]bool)
		for _, m := range v.Moves {
			size += 36
			for _, id := range []string{m.From, m.To} {
				if !named[id] {
					named[id] = true
					size += len(id) + 3
				}
			}
		}
		if size > 16<<10 || int(v.Moved) < 4900 || len(v.Moves) < 50 {
			t.Fatalf("an entry takes about %d bytes for %d of %d moves", size, len(v.Moves), v.Moved)
		}
	}
	if got := cut("äöü", 5); got != "ä…" {
		t.Fatalf("cut to %q", got)
	}
	if got := cut("äöü", 6); got != "äöü" {
		t.Fatalf("cut to %q", got)
	}
}

// A member that makes no progress is shown as stuck, and stays as long as it gives
// signs of life; only one that wants it is expelled.
func TestStuckMemberIsShownAndStays(t *testing.T) {
	for _, c := range []struct {
		name    string
		limit   time.Duration
		expells bool
	}{{"no limit", 0, false}, {"ten minutes", 10 * time.Minute, true}} {
		t.Run(c.name, func(t *testing.T) {
			h := newShard(t, DefaultConfig(), topicA)
			m := h.peer("m1", "a")
			m.maxProcessing = c.limit
			m.join()
			age := time.Duration(0)
			ping := func() *Error {
				p := Progress{Part: a0, Delivered: 8, Processed: 7, OldestAge: age, Waiting: WaitingApplication, Detail: "handler"}
				return m.ping(p, Progress{Part: a1, Delivered: 5, Processed: 5, Waiting: WaitingNothing}, Progress{Part: Part{topicID(9), 9}, OldestAge: age})
			}
			describe := func() MemberDescription { return h.describe("g").Members[0] }
			step := func() {
				t.Helper()
				h.pass(5 * time.Second)
				age += 5 * time.Second
				if err := ping(); err != nil {
					t.Fatal(err)
				}
			}
			for range 6 {
				step()
			}
			if d := describe(); len(d.Stuck) != 0 || len(d.Progress) != 2 || d.Progress[0].OldestAge != age || !d.Attached || d.LastSign != 0 {
				t.Fatalf("described as %+v after %v", d, age)
			}
			step()
			h.pass(time.Second)
			if d := describe(); len(d.Stuck) != 1 || d.Stuck[0] != a0 || d.Progress[0].Detail != "handler" || d.Progress[0].OldestAge != age+time.Second {
				t.Fatalf("described as %+v after %v", d, age)
			}
			for age < 9*time.Minute {
				step()
			}
			wantHeld(t, m, a0, a1, a2, a3)
			for range 18 {
				h.pass(5 * time.Second)
				age += 5 * time.Second
				ping()
			}
			m.read()
			if !c.expells {
				wantHeld(t, m, a0, a1, a2, a3)
				return
			}
			wantReason(t, m.fenced, ReasonMemberFenced)
			if e := h.describe("g"); len(e.Members) != 0 {
				t.Fatalf("described as %+v", e)
			}
		})
	}
}

func TestProgressResetsTheClock(t *testing.T) {
	h := newShard(t, DefaultConfig(), topicA)
	m := h.peer("m1", "a")
	m.maxProcessing = time.Minute
	m.join()
	processed := int64(0)
	for range 60 { // records of a backlog, each of which took ten seconds, wait all the time
		h.pass(10 * time.Second)
		processed++
		if err := m.ping(Progress{Part: a0, Delivered: 1000, Processed: processed, OldestAge: 5 * time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	if d := h.describe("g").Members[0]; len(d.Stuck) != 0 {
		t.Fatalf("described as %+v", d)
	}
}
