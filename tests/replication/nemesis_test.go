package replication

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/proxy"
	"github.com/leat-io/leat/tests/internal/rig"
)

var (
	nemesisFor  = flag.Duration("nemesis", 0, "how long TestNemesis goes on with faults; 0: some seconds, with -full minutes")
	nemesisKind = flag.String("nemesis.faults", "kill,kill,pause,cut,cut,stall,stall,oneway,delay,term,wipe,all,etcd,cut+kill,stall+pause,delay+kill", "what TestNemesis chooses from; a+b is both at once")
)

// nemesis does random things to a mesh from a seed, and undoes them.
type nemesis struct {
	r     *rig.Rig
	rng   *rand.Rand
	topic string
}

// TestNemesis does random things, also two at once, to a mesh under load. Nothing
// acknowledged may be lost, moved or doubled, and all must go on by itself when
// a fault is over. -nemesis 10m -seed 0 makes it longer and different.
func TestNemesis(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		rng := random(t)
		r := s.start(rig.Options{Gateways: 1, Coordinators: 2, Set: []string{"broker.replica.lag.time.max.ms=4000", "broker.lease.ttl=3s", "controller.lease.ttl=3s"}})
		topic(t, r, "nemesis", 4, "segment.bytes=1048576")
		l := startLoad(t, r, "nemesis", loadOptions{rate: 200})
		l.history.MayRepeat(byGateway)
		n := &nemesis{r: r, rng: rng, topic: "nemesis"}
		d := *nemesisFor
		if d == 0 {
			d = span(10*time.Second, 5*time.Minute)
		}
		longest := time.Duration(0)
		kinds := strings.Split(*nemesisKind, ",")
		for end := time.Now().Add(d); time.Now().Before(end) && !t.Failed(); {
			what := n.strike(kinds[rng.IntN(len(kinds))], s.memory)
			took := l.progress(what, time.Minute)
			t.Logf("%s %6.2fs after %s all goes on", time.Now().UTC().Format(time.StampMilli), took.Seconds(), what)
			longest = max(longest, took)
		}
		l.finish()
		t.Logf("longest time to go on after a fault: %v", longest.Round(time.Millisecond))
	})
}

// strike does one thing, or several at once, lets them last, undoes them and says
// what they were.
func (n *nemesis) strike(kinds string, memory bool) string {
	var what []string
	var undo []func()
	for kind := range strings.SplitSeq(kinds, "+") {
		if memory && kind == "pause" {
			kind = "stall" // goroutines cannot be paused
		}
		said, end := n.begin(kind)
		what, undo = append(what, said), append(undo, end)
	}
	pause(time.Duration(200+n.rng.IntN(6000)) * time.Millisecond)
	for _, end := range undo {
		end()
	}
	return strings.Join(what, " and ")
}

func (n *nemesis) one(of ...string) string {
	for {
		names := n.r.Names(of...)
		if name := names[n.rng.IntN(len(names))]; n.r.Running(name) {
			return name
		}
	}
}

// some of the others, at least one.
func (n *nemesis) some(name string) []string {
	others := append(n.r.Others(name), proxy.Client)
	n.rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	return others[:1+n.rng.IntN(len(others))]
}

// begin does one thing and returns how to undo it.
func (n *nemesis) begin(kind string) (what string, undo func()) {
	r := n.r
	switch kind {
	case "kill":
		name := n.one(rig.Broker, rig.Broker, rig.Controller, rig.Coordinator, rig.Gateway)
		r.Kill(name)
		return "kill " + name, func() { r.Up(name) }
	case "term":
		name := n.one(rig.Broker, rig.Controller, rig.Coordinator, rig.Gateway)
		r.Stop(name)
		return "stop " + name, func() { r.Up(name) }
	case "pause":
		name := n.one()
		r.Pause(name)
		return "pause " + name, func() { r.Resume(name) }
	case "cut":
		name := n.one()
		others := n.some(name)
		r.Net.Cut(name, others...)
		return fmt.Sprint("cut ", name, " from ", others), func() { r.Net.Heal(name, others...) }
	case "stall":
		name := n.one()
		others := n.some(name)
		r.Net.Stall(name, others...)
		return fmt.Sprint("stall ", name, " and ", others), func() { r.Net.Heal(name, others...) }
	case "oneway":
		name := n.one(rig.Broker)
		others := n.some(name)
		for _, other := range others {
			r.Net.StallOneWay(name, other)
		}
		return fmt.Sprint("stall what ", name, " says to ", others), func() { r.Net.Heal(name, others...) }
	case "delay":
		name := n.one()
		d := time.Duration(10+n.rng.IntN(300)) * time.Millisecond
		r.Net.Delay(d, name, append(r.Others(name), proxy.Client)...)
		return fmt.Sprint("delay ", name, " by ", d), r.Net.HealAll
	case "wipe":
		r.WaitInSync(n.topic, time.Minute) // only min-1 disks may be lost at a time
		name := n.one(rig.Broker)
		r.Kill(name)
		r.Wipe(name)
		return "wipe " + name, func() {
			r.Up(name)
			r.WaitInSync(n.topic, time.Minute)
		}
	case "etcd":
		r.Kill("etcd-1")
		return "kill etcd", func() { r.Up("etcd-1") }
	case "all":
		r.KillAll()
		return "kill all", func() {
			r.UpAll()
			r.WaitReady(time.Minute)
		}
	}
	panic("-nemesis.faults: there is no fault " + kind)
}
