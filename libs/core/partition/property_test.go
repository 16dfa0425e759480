package partition

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is a log and a client beside the core: it carries out what the core
// says, in any order the core allows, and remembers what was promised.
type model struct {
	s         *State
	end       int64
	durable   int64
	os        bool
	now       time.Duration
	append    *Append
	sync      *Sync
	syncTo    int64
	pending   map[int64]*Produce
	hw        int64
	nextReq   int64
	partEpoch int64
	epoch     int32
	leads     bool
	failed    bool
}

func (m *model) step(t *rapid.T, ev Event) {
	for _, e := range m.s.Step(ev) {
		switch e := e.(type) {
		case *Append:
			if m.append != nil {
				t.Fatalf("two appends outstanding")
			}
			if !m.leads || e.Epoch != m.epoch {
				t.Fatalf("append in epoch %d, leads=%v epoch=%d", e.Epoch, m.leads, m.epoch)
			}
			c := *e
			m.append = &c
		case *Sync:
			if m.sync != nil {
				t.Fatalf("two syncs outstanding")
			}
			c := *e
			m.sync, m.syncTo = &c, m.end
		case *Reply:
			m.reply(t, e)
		case *Visible:
			counted := m.durable
			if m.os {
				counted = m.end
			}
			if e.HW < m.hw || e.HW > counted {
				t.Fatalf("visible %d after %d with %d counted", e.HW, m.hw, counted)
			}
			m.hw = e.HW
		case Withhold:
			m.failed = true
		}
	}
	if err := m.s.Violation(); err != nil {
		t.Fatal(err)
	}
}

func (m *model) reply(t *rapid.T, e *Reply) {
	p, ok := m.pending[e.Req]
	if !ok {
		t.Fatalf("request %d answered twice, or never asked", e.Req)
	}
	delete(m.pending, e.Req)
	if e.Outcome != OK {
		return
	}
	counted := m.durable
	if m.os {
		counted = m.end
	}
	if last := e.Base + int64(p.Records); last > counted || p.Acks == AcksAll && last > m.s.HighWatermark() {
		t.Fatalf("request %d acknowledged up to %d with %d counted, high watermark %d", e.Req, last, counted, m.s.HighWatermark())
	}
	if m.failed {
		t.Fatalf("acknowledged after a failure")
	}
}

func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{s: New(self), pending: map[int64]*Produce{}, os: rapid.Bool().Draw(t, "os"), now: time.Second}
		m.step(t, Flushing{OS: m.os, Messages: rapid.Int64Range(0, 5).Draw(t, "flush.messages")})
		m.step(t, &Opened{MaxEpochSeen: -1})
		t.Repeat(map[string]func(*rapid.T){
			"produce": func(t *rapid.T) {
				m.nextReq++
				p := &Produce{
					Req: m.nextReq, LeaderEpoch: -1, Acks: Acks(rapid.IntRange(0, 2).Draw(t, "acks")), Now: m.now,
					Deadline: m.now + time.Duration(rapid.IntRange(1, 5).Draw(t, "timeout")), Records: int32(rapid.IntRange(1, 4).Draw(t, "records")),
				}
				m.pending[p.Req] = p
				m.step(t, p)
			},
			"appended": func(t *rapid.T) {
				if m.append == nil {
					return
				}
				a := m.append
				m.append = nil
				var n int64
				if p := m.pending[a.Req]; p != nil {
					n = int64(p.Records)
				} else {
					n = int64(m.s.log.op.w.records)
				}
				base := m.end
				m.end += n
				m.step(t, &Appended{Op: a.Op, Base: base, End: m.end, Now: m.now})
			},
			"synced": func(t *rapid.T) {
				if m.sync == nil {
					return
				}
				op := m.sync.Op
				m.sync = nil
				m.durable = max(m.durable, m.syncTo)
				m.step(t, &Synced{Op: op, End: m.syncTo})
			},
			"failed": func(t *rapid.T) {
				if m.sync == nil || rapid.IntRange(0, 9).Draw(t, "rarely") > 0 {
					return
				}
				op := m.sync.Op
				m.sync = nil
				m.failed = true
				m.step(t, IOFailed{Op: op, Kind: FailureKind(rapid.IntRange(0, 2).Draw(t, "kind"))})
			},
			"record": func(t *rapid.T) {
				m.partEpoch++
				if rapid.Bool().Draw(t, "elect") {
					m.epoch++
					m.leads = rapid.Bool().Draw(t, "leads")
				}
				leader := Replica{Broker: 2, Incarnation: 1}
				if m.leads {
					leader = self
				}
				m.step(t, &Record{
					Generation: 1, Revision: m.partEpoch, PartEpoch: m.partEpoch, LeaderEpoch: m.epoch, Leader: leader,
					ISR: []int32{1}, MinISR: int32(rapid.IntRange(1, 2).Draw(t, "min")),
				})
			},
			"tick": func(t *rapid.T) {
				m.now += time.Duration(rapid.IntRange(0, 3).Draw(t, "later"))
				m.step(t, Tick{Now: m.now})
				for req, p := range m.pending {
					if p.Deadline <= m.now {
						t.Fatalf("request %d passed its deadline unanswered", req)
					}
				}
			},
			"flush": func(t *rapid.T) { m.step(t, Flush{}) },
			"": func(t *rapid.T) {
				if m.s.HighWatermark() < m.hw {
					t.Fatalf("high watermark went back")
				}
				if m.failed && m.append == nil && m.sync == nil && !m.s.Idle() {
					t.Fatalf("something waits for ever after a failure")
				}
			},
		})
	})
}
