package client

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"pgregory.net/rapid"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// accumulatorScript drives an accumulator by hand: each record is a batch of its
// own, named by its value.
type accumulatorScript struct {
	t   interface{ Fatalf(string, ...any) }
	acc accumulator
	now time.Time
	by  map[string]*batch
}

func newScript(t interface{ Fatalf(string, ...any) }, change func(*accumulatorConfig)) *accumulatorScript {
	cfg := &accumulatorConfig{
		batchBytes: 1 << 20, batchRecords: 1, delivery: time.Minute, maxInFlight: 5,
		backoff: func(int) time.Duration { return time.Second },
	}
	change(cfg)
	s := &accumulatorScript{t: t, now: time.UnixMilli(0), by: make(map[string]*batch)}
	s.acc.cfg, s.acc.probing = cfg, true
	return s
}

func (s *accumulatorScript) add(names string) {
	for _, n := range strings.Fields(names) {
		if _, err := s.acc.add(&record.Record{Value: []byte(n)}, waiter{}, trace.SpanContext{}, 1<<20, s.now); err != nil {
			s.t.Fatalf("add %s: %v", n, err)
		}
	}
}

func name(b *batch) string {
	recs, err := record.Decode(b.bytes, 0)
	if err != nil || len(recs) == 0 {
		return "?"
	}
	return string(recs[0].Value)
}

// sends takes everything that may go now.
func (s *accumulatorScript) sends() string {
	var names []string
	for b := s.acc.next(s.now); b != nil; b = s.acc.next(s.now) {
		n := name(b)
		s.by[n] = b
		names = append(names, n)
	}
	return strings.Join(names, " ")
}

func (s *accumulatorScript) ok(names string) {
	for _, n := range strings.Fields(names) {
		s.acc.ended(s.by[n], 1, 1, nil, false, s.now)
	}
}

func (s *accumulatorScript) fails(names string, err *rpc.Error) {
	for _, n := range strings.Fields(names) {
		s.acc.ended(s.by[n], -1, -1, err, rpc.Retryable(err), s.now)
	}
}

func (s *accumulatorScript) passes(d time.Duration) {
	s.now = s.now.Add(d)
	s.acc.expire(s.now)
}

// told lists what is reported: name+ stored, name- not done, name? unknown.
func (s *accumulatorScript) told() string {
	var all []string
	for _, f := range s.acc.takeFinished() {
		mark := "+"
		if f.err != nil {
			mark = "-"
			if f.err.Outcome == outcomeUnknown {
				mark = "?"
			}
		}
		n := "?"
		if f.bytes != nil {
			n = name(f.batch)
		}
		all = append(all, n+mark)
	}
	return strings.Join(all, " ")
}

func (s *accumulatorScript) want(what, got, want string) {
	if got != want {
		s.t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

func TestAccumulatorStories(t *testing.T) {
	refused := rpc.Errorf(reasonNotLeader, "refused")
	lost := rpc.Errorf(reasonConnectionLost, "lost")
	wrong := rpc.Errorf(reasonInvalidRecord, "wrong")
	plain := func(*accumulatorConfig) {}
	for story, tc := range map[string]struct {
		change func(*accumulatorConfig)
		play   func(s *accumulatorScript)
	}{
		"the first goes alone, then five": {plain, func(s *accumulatorScript) {
			s.add("a b c d e f g h")
			s.want("at first", s.sends(), "a")
			s.ok("a")
			s.want("after a success", s.sends(), "b c d e f")
			s.ok("b")
			s.want("as places come free", s.sends(), "g")
			s.want("told", s.told(), "a+ b+")
		}},
		"what failed goes first, in order": {plain, func(s *accumulatorScript) {
			s.add("a b c d e f")
			s.sends()
			s.ok("a")
			s.want("in flight", s.sends(), "b c d e f")
			s.fails("d", lost)
			s.fails("b", lost)
			s.want("while others are in flight", s.sends(), "")
			s.fails("c e f", lost)
			s.want("before the backoff", s.sends(), "")
			s.add("g")
			s.passes(time.Second)
			s.want("after it, one alone", s.sends(), "b")
			s.ok("b")
			s.want("then the others", s.sends(), "c d e f g")
			s.ok("c d e f g")
			s.want("told", s.told(), "a+ b+ c+ d+ e+ f+ g+")
		}},
		"what was overtaken is not sent again": {plain, func(s *accumulatorScript) {
			s.add("a b c d")
			s.sends()
			s.ok("a")
			s.sends()
			s.fails("b", refused)
			s.ok("c")
			s.fails("d", refused)
			s.want("told", s.told(), "a+ c+ b-")
			s.passes(time.Second)
			s.want("sent again", s.sends(), "d")
		}},
		"an unknown outcome that was overtaken stays unknown": {plain, func(s *accumulatorScript) {
			s.add("a b c")
			s.sends()
			s.ok("a")
			s.sends()
			s.fails("b", lost)
			s.ok("c")
			s.want("told", s.told(), "a+ c+ b?")
		}},
		"what cannot pass ends alone": {plain, func(s *accumulatorScript) {
			s.add("a b")
			s.sends()
			s.fails("a", wrong)
			s.want("told", s.told(), "a-")
			s.want("the next goes on", s.sends(), "b")
		}},
		"time runs out": {plain, func(s *accumulatorScript) {
			s.add("a b c")
			s.sends()
			s.fails("a", lost)
			s.passes(time.Second)
			s.sends()
			s.fails("a", refused) // the outcome of the first attempt is still open
			s.passes(time.Minute)
			s.want("told", s.told(), "a? b- c-")
			s.want("nothing is left", s.sends(), "")
		}},
		"time runs out in flight": {plain, func(s *accumulatorScript) {
			s.add("a")
			s.sends()
			s.passes(30 * time.Second)
			s.add("b")
			s.passes(31 * time.Second)
			s.want("told", s.told(), "a?")
			s.want("its end is waited for", s.sends(), "")
			s.ok("a")
			s.want("told once", s.told(), "")
			s.want("then", s.sends(), "b")
		}},
		"an unknown outcome is told where that is asked for": {func(c *accumulatorConfig) { c.noRetryUnknown = true }, func(s *accumulatorScript) {
			s.add("a")
			s.sends()
			s.fails("a", lost)
			s.want("told", s.told(), "a?")
		}},
		"a failure stops the partition": {func(c *accumulatorConfig) { c.stopPartition, c.maxInFlight = true, 1 }, func(s *accumulatorScript) {
			s.add("a b c")
			s.sends()
			s.fails("a", wrong)
			s.want("told", s.told(), "a- b- c-")
			if _, err := s.acc.add(&record.Record{}, waiter{}, trace.SpanContext{}, 1<<20, s.now); !rpc.IsReason(err, reasonPartitionStopped) {
				s.t.Fatalf("a later record: %v", err)
			}
		}},
		"an open batch grows until it can go": {func(c *accumulatorConfig) { c.batchRecords, c.linger = 0, 5*time.Millisecond }, func(s *accumulatorScript) {
			s.add("a b")
			s.want("before the linger", s.sends(), "")
			s.passes(5 * time.Millisecond)
			s.want("after it", s.sends(), "a")
			s.add("c")
			s.passes(time.Second)
			s.add("d")
			s.want("no place", s.sends(), "")
			s.ok("a")
			s.want("one batch for both", s.sends(), "c")
			s.want("told", s.told(), "a+")
		}},
	} {
		t.Run(story, func(t *testing.T) { tc.play(newScript(t, tc.change)) })
	}
}

// Whatever ends how and when: each batch is reported once, and none is sent once a
// later one is stored, or behind a later one.
func TestAccumulatorKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScript(t, func(c *accumulatorConfig) { c.delivery = 20 * time.Second })
		sent := 0
		var inflight []*batch
		reported := make(map[*batch]bool)
		for range rapid.IntRange(10, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				s.add(fmt.Sprint(sent))
				sent++
			case 1:
				s.passes(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			default:
				if len(inflight) == 0 {
					break
				}
				i := rapid.IntRange(0, len(inflight)-1).Draw(t, "which")
				b := inflight[i]
				inflight = slices.Delete(inflight, i, i+1)
				switch rapid.IntRange(0, 3).Draw(t, "how") {
				case 0:
					s.acc.ended(b, -1, -1, rpc.Errorf(reasonNotLeader, "x"), true, s.now)
				case 1:
					s.acc.ended(b, -1, -1, rpc.Errorf(reasonConnectionLost, "x"), true, s.now)
				default:
					s.acc.ended(b, b.seq, 1, nil, false, s.now)
				}
			}
			for b := s.acc.next(s.now); b != nil; b = s.acc.next(s.now) {
				if stored := s.acc.lastOK; b.seq < stored {
					t.Fatalf("batch %d is sent after %d was stored", b.seq, stored)
				}
				if len(s.acc.inflight) > 5 {
					t.Fatalf("%d in flight", len(s.acc.inflight))
				}
				if b.attempts > 1 && len(s.acc.inflight) > 1 && s.acc.inflight[0].seq > b.seq {
					t.Fatalf("a retry of %d behind %d", b.seq, s.acc.inflight[0].seq)
				}
				inflight = append(inflight, b)
			}
			for _, f := range s.acc.takeFinished() {
				if reported[f.batch] {
					t.Fatalf("batch %d is reported twice", f.seq)
				}
				reported[f.batch] = true
			}
		}
	})
}
