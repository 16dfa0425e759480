package client

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"pgregory.net/rapid"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// senderModel is an idempotent producer's partition against a model of the mesh: a
// leader in each epoch, whose log may be cut down to the high watermark when the
// next one takes over; leaders that do not know yet that they are not; answers that
// get lost; copies of batches that arrive long after their sender has given them up.
type senderModel struct {
	t   *rapid.T
	acc accumulator
	now time.Time

	leaders map[int32]*modelLeader // by epoch; older ones may still think they lead
	epoch   int32                  // the present leader's
	known   int32                  // epoch that the client knows
	lastID  int64
	unclean bool // elections may lose what was acknowledged

	sent     int
	values   map[*batch][]int
	copies   []*modelCopy // on their way, or taken and not answered
	told     map[int]*rpc.Error
	reported map[int]bool
	offsets  map[int]int64
}

type modelLeader struct {
	part fakePart
	hw   int64
}

// modelCopy is one sending of a batch.
type modelCopy struct {
	b       *batch
	attempt int
	epoch   int32
	bytes   []byte
	taken   bool  // appended, or known as a duplicate: waits for the high watermark
	end     int64 // which has to reach this
	base    int64
	orphan  bool // nobody waits for its answer
}

func newSenderModel(t *rapid.T) *senderModel {
	m := &senderModel{
		t: t, now: time.UnixMilli(0), epoch: 1, known: 1, leaders: map[int32]*modelLeader{1: {part: fakePart{epoch: 1}}},
		told: make(map[int]*rpc.Error), reported: make(map[int]bool), offsets: make(map[int]int64), values: make(map[*batch][]int),
	}
	m.acc.cfg = &accumulatorConfig{
		batchBytes: 1 << 20, batchRecords: 2, delivery: 5 * time.Second, maxInFlight: 5,
		backoff: func(int) time.Duration { return 100 * time.Millisecond },
	}
	m.acc.ids, m.acc.probing = newSequences(), true
	return m
}

// pump sends what may go, to the leader that the client knows.
func (m *senderModel) pump() {
	if m.acc.wantsID() {
		m.lastID++
		m.acc.ids.adopt(m.lastID, partitionSequence{})
	}
	for b := m.acc.next(m.now); b != nil; b = m.acc.next(m.now) {
		if n := len(m.acc.inflight); n > maxIdempotentInFlight {
			m.t.Fatalf("%d in flight", n)
		}
		b.sentTo = Leader{Epoch: m.known, Addr: strconv.Itoa(int(m.known))}
		m.t.Logf("send %v as %v to %d, attempt %d", m.values[b], b.number, m.known, b.attempts)
		m.copies = append(m.copies, &modelCopy{b: b, attempt: b.attempts, epoch: m.known, bytes: slices.Clone(b.bytes)})
	}
	for _, f := range m.acc.takeFinished() {
		for i, n := range m.values[f.batch] {
			if m.reported[n] {
				m.t.Fatalf("record %d is reported twice", n)
			}
			m.t.Logf("tell %d: %v", n, f.err)
			m.reported[n], m.told[n], m.offsets[n] = true, f.err, f.offset+int64(i)
		}
	}
}

func (m *senderModel) answer(c *modelCopy, offset int64, err *rpc.Error) {
	m.copies = slices.DeleteFunc(m.copies, func(x *modelCopy) bool { return x == c })
	if c.orphan || c.b.attempts != c.attempt {
		return
	}
	m.t.Logf("answer %v, attempt %d: %d, %v", m.values[c.b], c.attempt, offset, err)
	m.acc.ended(c.b, offset, c.epoch, err, err != nil && rpc.Retryable(err), m.now)
}

// arrive has a copy reach the leader it was sent to.
func (m *senderModel) arrive(c *modelCopy, refuse *rpc.Error) {
	l := m.leaders[c.epoch]
	if l == nil {
		m.answer(c, -1, rpc.Errorf(reasonNotLeader, "it knows by now"))
		return
	}
	if refuse != nil {
		m.answer(c, -1, refuse)
		return
	}
	h, err := record.Validate([][]byte{c.bytes}, record.ValidateOptions{})
	if err != nil {
		m.t.Fatalf("a batch on its way: %v", err)
	}
	base, duplicate, serr := l.part.checkProducer(&h)
	if serr != nil {
		m.answer(c, -1, serr)
		return
	}
	m.t.Logf("arrived %v, attempt %d at %d, orphan %v: duplicate %v", m.values[c.b], c.attempt, c.epoch, c.orphan, duplicate)
	if !duplicate {
		base = l.part.store(c.bytes)
	}
	c.taken, c.base, c.end = true, base, base+int64(h.NumRecords)
}

// commit moves the high watermark, and answers what waited for it.
func (m *senderModel) commit(all bool) {
	l := m.leaders[m.epoch]
	l.hw = l.part.end
	for _, c := range slices.Clone(m.copies) {
		if c.taken && c.epoch == m.epoch && c.end <= l.hw && (all || rapid.IntRange(0, 3).Draw(m.t, "answered") > 0) {
			m.answer(c, c.base, nil)
		}
	}
}

// elect makes a new leader, whose log ends somewhere at or above the high watermark
// of the old one. The old one may go on without knowing.
func (m *senderModel) elect(cut int, zombie bool) {
	old := m.leaders[m.epoch]
	next := &modelLeader{part: fakePart{epoch: m.epoch + 1}, hw: old.hw}
	next.part.adoptLog(old.part.batches, old.hw, cut)
	m.epoch++
	m.leaders[m.epoch] = next
	if zombie {
		return // its answers to what waits never come
	}
	delete(m.leaders, m.epoch-1)
	for _, c := range slices.Clone(m.copies) {
		if c.taken && c.epoch == m.epoch-1 {
			m.answer(c, -1, rpc.Errorf(reasonNotLeader, "lost").WithOutcome(outcomeUnknown))
		}
	}
}

// adoptLog takes over batches up to the high watermark, and but for the last few
// those above it.
func (p *fakePart) adoptLog(batches [][]byte, hw int64, cut int) {
	for i, raw := range batches {
		h, _ := record.ParseHeader(raw)
		if h.NextOffset() > hw && i >= len(batches)-cut {
			break
		}
		p.noteProducer(&h, p.end)
		p.batches, p.end = append(p.batches, raw), h.NextOffset()
	}
}

// breakConnection ends the answers of everything on its way to the leader that the
// client knows. What has not arrived may do so later all the same.
func (m *senderModel) breakConnection(late bool) {
	for _, c := range slices.Clone(m.copies) {
		if c.orphan || c.epoch != m.known {
			continue
		}
		m.answer(c, -1, rpc.Errorf(reasonConnectionLost, "lost"))
		if late && !c.taken {
			c.orphan = true
			m.copies = append(m.copies, c)
		}
	}
}

// learn tells the client of the present leader.
func (m *senderModel) learn() {
	m.known = m.epoch
	l := Leader{Epoch: m.epoch, Addr: strconv.Itoa(int(m.epoch))}
	m.acc.movedTo(l, m.now)
	// What was deserted may arrive later.
	for _, c := range m.copies {
		if c.epoch < m.epoch {
			c.orphan = true
		}
	}
	m.acc.desert(m.now)
	m.acc.hurry(l, m.now)
}

// firstOnTheWay is the first copy that has not arrived; per epoch and connection
// they arrive in order, orphans whenever they like.
func (m *senderModel) arrivals() []*modelCopy {
	var all []*modelCopy
	seen := make(map[int32]bool)
	for _, c := range m.copies {
		switch {
		case c.taken:
		case c.orphan:
			all = append(all, c)
		case !seen[c.epoch]:
			seen[c.epoch] = true
			all = append(all, c)
		}
	}
	return all
}

func (m *senderModel) step() {
	switch rapid.IntRange(0, 17).Draw(m.t, "what") {
	case 0, 1, 2:
		for range rapid.IntRange(1, 6).Draw(m.t, "records") {
			r := &record.Record{Value: []byte(strconv.Itoa(m.sent))}
			if _, err := m.acc.add(r, waiter{}, trace.SpanContext{}, 1<<20, m.now); err != nil {
				m.t.Fatalf("add: %v", err)
			}
			b := m.acc.open
			if b == nil {
				b = m.acc.ready[len(m.acc.ready)-1]
			}
			m.values[b] = append(m.values[b], m.sent)
			m.sent++
		}
	case 3, 4, 5, 6, 7:
		if all := m.arrivals(); len(all) > 0 {
			m.arrive(rapid.SampledFrom(all).Draw(m.t, "copy"), m.refusal())
		}
	case 8, 9:
		m.commit(false)
	case 10:
		m.breakConnection(rapid.Bool().Draw(m.t, "late"))
	case 11:
		m.elect(rapid.IntRange(0, 4).Draw(m.t, "cut"), rapid.Bool().Draw(m.t, "zombie"))
	case 12:
		m.learn()
	case 13, 14:
		m.pass(time.Duration(rapid.IntRange(50, 2000).Draw(m.t, "ms")) * time.Millisecond)
	case 15:
		// The in-sync set shrinks: what waits is told, and stays in the log.
		for _, c := range slices.Clone(m.copies) {
			if c.taken && c.epoch == m.epoch && rapid.Bool().Draw(m.t, "told") {
				m.answer(c, -1, rpc.Errorf(reasonShrunkAfterAppend, "shrunk"))
			}
		}
	case 16:
		// Producers that were idle for long are forgotten.
		if a := &m.acc; len(m.copies) == 0 && len(a.inflight)+len(a.failed) == 0 && (len(a.ready) == 0 || !a.ready[0].numbered()) {
			m.leaders[m.epoch].part.producers = nil
		}
	case 17:
		if m.unclean {
			m.leaders[m.epoch].hw = m.leaders[m.epoch].hw / 2
			m.elect(rapid.IntRange(0, 9).Draw(m.t, "cut"), false)
		}
	}
	m.pump()
}

func (m *senderModel) pass(d time.Duration) {
	m.now = m.now.Add(d)
	m.acc.expire(m.now)
	m.acc.desert(m.now)
}

// refusal is what a leader may answer before it looks at a batch; mostly nothing.
func (m *senderModel) refusal() *rpc.Error {
	switch rapid.IntRange(0, 11).Draw(m.t, "refusal") {
	case 0:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, "too few")
	case 1:
		return rpc.Errorf(reasonNotLeader, "not yet")
	case 2:
		return rpc.Errorf(reasonInvalidRecord, "for good")
	case 3:
		return rpc.Errorf(reasonDeadlineExceeded, "it took long").WithOutcome(outcomeNotDone)
	}
	return nil
}

// settleAll ends all faults, and lets everything arrive, the orphans too.
func (m *senderModel) settleAll() {
	for range 10_000 {
		m.learn()
		if all := m.arrivals(); len(all) > 0 {
			m.arrive(all[len(all)-1], nil)
		}
		m.commit(true)
		m.pass(time.Millisecond)
		m.pump()
		if len(m.reported) == m.sent && len(m.copies) == 0 {
			return
		}
		if len(m.copies) == 0 {
			m.pass(100 * time.Millisecond)
		}
		for _, c := range slices.Clone(m.copies) {
			if c.taken && m.leaders[c.epoch] != m.leaders[m.epoch] {
				m.answer(c, -1, rpc.Errorf(reasonNotLeader, "lost").WithOutcome(outcomeUnknown))
			}
		}
		m.pump()
	}
	m.t.Fatalf("%d of %d records have results", len(m.reported), m.sent)
}

// check wants each acknowledged record in the log once, at its offset, none that is
// said not to be there, and all in the order of sending.
func (m *senderModel) check() {
	part := m.leaders[m.epoch].part
	at := make(map[int]int64)
	last := -1
	for _, raw := range part.batches {
		records, err := record.Decode(raw, 0)
		if err != nil {
			m.t.Fatalf("stored: %v", err)
		}
		for _, r := range records {
			n, _ := strconv.Atoi(string(r.Value))
			if n <= last {
				m.t.Fatalf("record %d is stored behind %d", n, last)
			}
			last, at[n] = n, r.Offset
		}
	}
	for n := range m.sent {
		offset, stored := at[n]
		switch err := m.told[n]; {
		case err == nil && !m.unclean && (!stored || offset != m.offsets[n]):
			m.t.Fatalf("record %d was acknowledged at %d; it is stored: %v, at %d", n, m.offsets[n], stored, offset)
		case err != nil && err.Outcome == outcomeNotDone && stored:
			m.t.Fatalf("record %d is stored at %d, and was said not to be: %v", n, offset, err)
		}
	}
}

// cases 2, 22, 23: whatever fails, is lost or comes late, the log holds each record
// at most once and in order, and those that were acknowledged exactly once.
func TestIdempotentSender(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newSenderModel(t)
		m.unclean = rapid.IntRange(0, 4).Draw(t, "unclean") == 0
		for range rapid.IntRange(10, 150).Draw(t, "steps") {
			m.step()
		}
		m.settleAll()
		m.check()
	})
}

// TestSequenceStories tells what the random walk reaches rarely.
func TestSequenceStories(t *testing.T) {
	refused := rpc.Errorf(reasonNotLeader, "refused")
	lost := rpc.Errorf(reasonConnectionLost, "lost")
	gap := rpc.Errorf(reasonOutOfOrder, "gap")
	unknown := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PRODUCER_ID, "unknown")
	fenced := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_PRODUCER_FENCED, "fenced")
	// numbers lists the epochs and sequences under which batches went.
	numbers := func(s *accumulatorScript, names ...string) string {
		var all []string
		for _, n := range names {
			h, err := record.Validate([][]byte{s.by[n].bytes}, record.ValidateOptions{})
			if err != nil {
				s.t.Fatalf("%s: %v", n, err)
			}
			all = append(all, fmt.Sprintf("%d/%d", h.ProducerEpoch, h.BaseSequence))
		}
		return strings.Join(all, " ")
	}
	// sends takes what may go now to the leader of an epoch.
	sends := func(s *accumulatorScript, epoch int32) string {
		names := s.sends()
		for _, b := range s.acc.inflight {
			if b.sentTo.Epoch == 0 || slices.Contains(strings.Fields(names), name(b)) {
				b.sentTo.Epoch = epoch
			}
		}
		return names
	}
	for story, play := range map[string]func(s *accumulatorScript){
		"a retry has the same bytes": func(s *accumulatorScript) {
			s.add("a b")
			s.want("first", sends(s, 1), "a")
			before := string(s.by["a"].bytes)
			s.fails("a", lost)
			s.passes(time.Second)
			sends(s, 1)
			s.want("bytes", string(s.by["a"].bytes), before)
			s.ok("a")
			sends(s, 1)
			s.want("numbers", numbers(s, "a", "b"), "0/0 0/1")
		},
		"what was overtaken is told apart by its number": func(s *accumulatorScript) {
			s.add("a b c")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.fails("b", lost) // the answer was lost, the batch was not
			s.ok("c")
			s.passes(time.Second)
			s.want("sent again", sends(s, 1), "b")
			s.ok("b")
			s.want("told", s.told(), "a+ c+ b+")
		},
		"a refusal behind a refused one says nothing": func(s *accumulatorScript) {
			s.add("a b c")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.fails("b", lost)
			s.fails("c", gap)
			s.passes(time.Second)
			sends(s, 1)
			s.ok("b")
			s.want("then", sends(s, 1), "c")
			s.want("under their numbers", numbers(s, "b", "c"), "0/1 0/2")
		},
		"none is more than four behind one without an answer": func(s *accumulatorScript) {
			s.add("a b c d e f g h")
			sends(s, 1)
			s.ok("a")
			s.want("five", sends(s, 1), "b c d e f")
			s.ok("c d e f")
			s.want("behind the first", sends(s, 1), "")
			s.ok("b")
			s.want("then", sends(s, 1), "g h")
		},
		"what lies too far back to be known again is given up": func(s *accumulatorScript) {
			s.add("a b")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.fails("b", rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DUPLICATE_SEQUENCE, "long ago").WithOutcome(outcomeUnknown))
			s.want("told", s.told(), "a+ b?")
		},
		"a forgotten producer begins a new epoch": func(s *accumulatorScript) {
			s.add("a b c")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.fails("b c", unknown)
			s.passes(time.Second)
			sends(s, 1)
			s.ok("b c")
			sends(s, 1)
			s.ok("c")
			s.want("numbers", numbers(s, "b", "c"), "1/0 1/1")
			s.want("told", s.told(), "a+ b+ c+")
		},
		"what the log of a later leader lacks begins a new epoch": func(s *accumulatorScript) {
			s.add("a b")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.fails("b", lost)
			s.passes(time.Second)
			sends(s, 2)
			s.fails("b", gap) // a was lost by an unclean election, and b with it
			s.passes(time.Second)
			s.want("again", sends(s, 2), "b")
			s.want("numbers", numbers(s, "b"), "1/0")
		},
		"what may yet reach the same leader is given up": func(s *accumulatorScript) {
			s.add("a b c d")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.fails("b c d", lost)
			s.passes(time.Second)
			s.want("alone", sends(s, 1), "b")
			s.fails("b", rpc.Errorf(reasonInvalidRecord, "for good"))
			s.want("told", s.told(), "a+ b?")
			s.want("next", sends(s, 1), "c")
			// b's first attempt, and then c's, may come after this refusal.
			s.fails("c", gap)
			s.want("told", s.told(), "c?")
			s.passes(time.Second)
			sends(s, 1)
			s.fails("d", gap)
			s.want("told", s.told(), "d?")
			s.add("e")
			s.passes(time.Second)
			s.want("after that", sends(s, 1), "e")
			s.want("numbers", numbers(s, "e"), "1/0")
		},
		"a later one that is stored shows that those before it are": func(s *accumulatorScript) {
			s.add("a b c")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.fails("b c", lost)
			s.passes(time.Second)
			sends(s, 1)
			s.fails("b", rpc.Errorf(reasonInvalidRecord, "for good"))
			sends(s, 1)
			s.ok("c")
			s.add("d")
			sends(s, 1)
			s.want("the epoch goes on", numbers(s, "c", "d"), "0/2 0/3")
		},
		"what was never stored leaves room for a new epoch": func(s *accumulatorScript) {
			s.add("a b c")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.fails("b", rpc.Errorf(reasonInvalidRecord, "for good"))
			s.fails("c", gap)
			s.passes(time.Second)
			s.want("at once", sends(s, 1), "c")
			s.want("numbers", numbers(s, "c"), "1/0")
			s.ok("c")
			s.want("told", s.told(), "a+ b- c+")
		},
		"a number is not used again after time has run out": func(s *accumulatorScript) {
			s.add("a")
			sends(s, 1)
			s.passes(61 * time.Second)
			s.want("told", s.told(), "a?")
			s.fails("a", lost)
			s.add("b")
			s.passes(time.Second)
			sends(s, 1)
			s.want("numbers", numbers(s, "a", "b"), "0/0 1/0")
		},
		"a late success keeps the epoch": func(s *accumulatorScript) {
			s.add("a")
			sends(s, 1)
			s.passes(61 * time.Second)
			s.ok("a")
			s.add("b")
			sends(s, 1)
			s.want("numbers", numbers(s, "a", "b"), "0/0 0/1")
		},
		"another user of the id makes it spent": func(s *accumulatorScript) {
			s.add("a b")
			sends(s, 1)
			s.fails("a", fenced)
			s.passes(time.Second)
			s.want("no id", sends(s, 1), "")
			if !s.acc.wantsID() {
				s.t.Fatalf("it does not ask for another id")
			}
			s.acc.ids.adopt(8, partitionSequence{epoch: 3, next: 4})
			s.want("with another one", sends(s, 1), "a")
			s.want("numbers", numbers(s, "a"), "3/4")
		},
		"the last epoch is followed by another id": func(s *accumulatorScript) {
			s.acc.ids.adopt(7, partitionSequence{epoch: math.MaxInt16, next: math.MaxInt32})
			s.add("a b")
			sends(s, 1)
			s.ok("a")
			sends(s, 1)
			s.want("the sequence wraps", numbers(s, "a", "b"), "32767/2147483647 32767/0")
			s.passes(61 * time.Second)
			s.fails("b", refused)
			s.add("c")
			s.want("no epoch is left", sends(s, 1), "")
			s.passes(time.Second)
			if !s.acc.wantsID() {
				s.t.Fatalf("it does not ask for another id")
			}
		},
	} {
		t.Run(story, func(t *testing.T) {
			s := newScript(t, func(*accumulatorConfig) {})
			s.acc.ids = newSequences()
			s.acc.ids.adopt(7, partitionSequence{})
			play(s)
		})
	}
}
