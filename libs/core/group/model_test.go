package group

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The model: clients that behave well and die badly, streams that break, a log that
// fails, coordinators that crash, topics that come and go, all in random order. It
// checks after every step that nobody who is still a member uses a partition that
// the group believes to be in other hands, that no stale commit changes anything,
// and that what was answered is in the log; whenever nothing is under way, that the
// log tells the same state; and in the end, that everything finds its owner.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"":                  func(t *rapid.T) { w.check(t) },
			"new client":        w.newClient,
			"to server":         w.toServer,
			"to server again":   w.toServer,
			"to client":         w.toClient,
			"to client again":   w.toClient,
			"acknowledge":       w.acknowledge,
			"give up":           w.giveUp,
			"commit":            w.commit,
			"stale commit":      w.staleCommit,
			"ping":              w.ping,
			"leave":             w.leave,
			"break stream":      w.breakStream,
			"news of break":     w.newsOfBreak,
			"reopen":            w.reopen,
			"crash":             w.crash,
			"time":              w.time,
			"log commits":       w.logCommits,
			"log commits again": w.logCommits,
			"log fails":         w.logFails,
			"coordinator dies":  w.coordinatorDies,
			"fence":             w.fenced,
			"topics":            w.changeTopics,
			"starts found":      w.startsFound,
			"reset":             w.reset,
		})
		w.settle(t)
	})
}

// Fewer things happen here, so that targets move while acknowledgements are late.
func TestModelOfMovingTargets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.quiet(t)
		t.Repeat(map[string]func(*rapid.T){
			"":            func(t *rapid.T) { w.check(t) },
			"new client":  w.newClient,
			"to server":   w.toServer,
			"to client":   w.toClient,
			"acknowledge": w.acknowledge,
			"give up":     w.giveUp,
			"leave":       w.leave,
			"reconnect": func(t *rapid.T) {
				w.breakStream(t)
				w.reopen(t)
			},
			"joins gathered": func(t *rapid.T) {
				w.now.Mono += DefaultConfig().JoinDelay
				w.step(t, Tick{})
				w.logCommits(t)
				w.logCommits(t)
			},
			"log commits":  w.logCommits,
			"starts found": w.startsFound,
			"reset":        w.reset,
		})
		w.settle(t)
	})
}

// check is what holds after every step.
func (w *world) check(t *rapid.T) {
	if w.s.phase != serving {
		return
	}
	g := w.s.groups["g"]
	for _, c := range w.clients {
		m := w.member(c)
		if c.dead || m == nil {
			continue
		}
		for _, o := range c.owned() {
			if g.owner[o.Part] != c.id {
				t.Fatalf("%s, a member, uses %v since epoch %d; the group believes it is with %q", c.id, o.Part, o.Epoch, g.owner[o.Part])
			}
		}
	}
	if w.s.Quiet() {
		w.checkReplay(t)
	}
}

// durable is what the log keeps of a group.
type durable struct {
	Group   GroupValue
	Members map[string]MemberValue
	Targets map[string]TargetValue
	Offsets map[Part]OffsetValue
	Ledger  map[int32]LedgerValue
}

func durableOf(s *State) map[string]durable {
	all := make(map[string]durable)
	for name, g := range s.groups {
		d := durable{Group: g.value(), Members: make(map[string]MemberValue), Targets: make(map[string]TargetValue), Offsets: g.offsets, Ledger: g.ledger}
		for id, m := range g.members {
			d.Members[id] = m.record()
			if m.hasTarget {
				d.Targets[id] = m.targetValue()
			}
		}
		all[name] = d
	}
	return all
}

// checkReplay says that the log tells the state.
func (w *world) checkReplay(t *rapid.T) {
	again := New(DefaultConfig())
	again.phase = loading
	for _, kv := range w.log {
		again.replay(kv)
	}
	live, replayed := durableOf(w.s), durableOf(again)
	if !reflect.DeepEqual(live, replayed) {
		t.Fatalf("the log tells another state:\nlive     %+v\nreplayed %+v", live, replayed)
	}
}

// settle lets everything that is under way come to its end, and checks that every
// partition subscribed to is in use by exactly one client.
func (w *world) settle(t *rapid.T) {
	for range 200 {
		w.quiet(t)
		w.now.Mono += time.Second
		w.step(t, Tick{})
		for _, c := range w.clients {
			switch {
			case c.dead:
			case !c.up:
				w.sendOpen(c)
			case c.attached:
				c.outbox = append(c.outbox, Ping{Req: w.nextReq(), Group: "g", Member: c.id, Attach: c.attach})
			}
		}
	}
	w.quiet(t)
	w.check(t)
	wanted := make(map[Part]bool)
	for _, c := range w.clients {
		for _, name := range c.topics {
			if topic, ok := w.topics[name]; ok && !c.dead {
				for n := range topic.Partitions {
					wanted[Part{topic.ID, n}] = true
				}
			}
		}
	}
	users := make(map[Part]int)
	for _, c := range w.clients {
		for p := range c.held {
			users[p]++
		}
	}
	for p := range wanted {
		if users[p] != 1 {
			t.Fatalf("in the end %v is in use by %d clients", p, users[p])
		}
	}
	if len(users) != len(wanted) {
		t.Fatalf("in the end %d partitions are in use, %d subscribed to", len(users), len(wanted))
	}
	if g := w.s.groups["g"]; g != nil && len(g.members) > 0 && g.status() != StatusStable {
		t.Fatalf("in the end the group's status is %d", g.status())
	}
}

// quiet delivers everything, in order, until nothing is left.
func (w *world) quiet(t *rapid.T) {
	for busy := true; busy; {
		busy = false
		switch {
		case w.fence:
			w.fence, busy = false, true
			w.step(t, FenceResult{OK: true})
		case w.load:
			w.load, busy = false, true
			w.reload(t)
		case w.flight != nil:
			busy = true
			w.logCommits(t)
		case len(w.gones) > 0:
			busy = true
			w.newsOfBreak(t)
		case len(w.asked) > 0:
			busy = true
			e := w.asked[0]
			w.asked = w.asked[1:]
			w.answerStarts(t, e, 0)
		}
		for _, c := range w.clients {
			for len(c.inbox) > 0 {
				busy = true
				w.receive(t, c, false, true)
			}
			if len(c.ending) > 0 {
				busy = true
				w.finishEnding(c)
			}
			if c.mustAck && c.attached {
				w.sendAck(c)
			}
			if w.s.phase == serving && len(c.outbox) > 0 {
				busy = true
				w.arrive(t, c)
			}
		}
	}
}
