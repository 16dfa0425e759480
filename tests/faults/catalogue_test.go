package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/tests/internal/proxy"
	"github.com/leat-io/leat/tests/internal/rig"
)

// fault is one thing that the nemesis can do.
type fault struct {
	name string // as it is counted
	// single: whoever is not hit has to get on while it lasts.
	single bool
	// tagged: it needs binaries with failpoints.
	tagged bool
	place  string // of a failpoint, with a space before it
	// begin does it; false: there was nobody to do it to.
	begin func(*nemesis) (strike, bool)
}

// strike is a fault that was begun.
type strike struct {
	what string
	hit  []string      // the processes
	hold time.Duration // how long it has to last at least; 0: what chance says
	undo func()
}

// catalogue has every fault.
func catalogue() []fault {
	var all []fault
	for _, role := range roles() {
		for _, how := range []string{"kill", "pause", "cut", "stall", "one-way", "slow"} {
			all = append(all, fault{name: how + " " + role, single: true, begin: func(n *nemesis) (strike, bool) {
				name := n.target(role)
				if name == "" {
					return strike{}, false
				}
				return n.hit(how, name, role)
			}})
		}
	}
	all = append(all,
		fault{name: "brokers without etcd", single: true, begin: (*nemesis).withoutEtcd},
		fault{name: "etcd members apart", single: true, begin: (*nemesis).etcdApart},
		fault{name: "leader without control", single: true, begin: (*nemesis).withoutControl},
		fault{name: "leader without followers", single: true, begin: (*nemesis).withoutFollowers},
		fault{name: "controller without brokers", single: true, begin: (*nemesis).controllerAlone},
		fault{name: "coordinator without brokers", single: true, begin: (*nemesis).coordinatorAlone},
		fault{name: "two brokers apart", begin: (*nemesis).apart},
		fault{name: "rolling restart", begin: (*nemesis).rolling},
		fault{name: "orderly stop", single: true, begin: (*nemesis).orderly},
		fault{name: "two at once", begin: (*nemesis).two},
		fault{name: "all at once", begin: (*nemesis).all},
		fault{name: "down to the ELR", begin: (*nemesis).toELR},
		fault{name: "down to the ELR", begin: (*nemesis).toELR}, // twice as often
		fault{name: "unclean election", begin: (*nemesis).unclean},
		fault{name: "unclean election", begin: (*nemesis).unclean},
		fault{name: "group members", single: true, begin: (*nemesis).churn},
		fault{name: fullDiskFault, begin: (*nemesis).fullDisk},
		fault{name: "clock skew", single: true, tagged: true, begin: (*nemesis).skew},
	)
	for _, w := range weakPoints() {
		for _, does := range w.does {
			kind, _, _ := strings.Cut(does, "(")
			kind = strings.TrimRight(kind, "*+0123456789")
			// One process in trouble is a single fault, unless another had to be hit so that
			// the code comes by.
			all = append(all, fault{
				name: "failpoint " + kind, single: (w.trigger == "" || w.trigger == "group") && w.place != failpoint.DiskSpace && kind != "pause", tagged: true, place: " " + w.place,
				begin: func(n *nemesis) (strike, bool) { return n.weaken(w, does) },
			})
		}
	}
	return all
}

// hit does something to one process.
func (n *nemesis) hit(how, name, role string) (strike, bool) {
	r := n.r
	s := strike{what: fmt.Sprintf("%s %s (%s)", how, name, role), hit: []string{name}}
	others := append(r.Others(name), proxy.Client)
	switch how {
	case "kill":
		n.kill(name)
		s.undo = func() { r.Up(name) }
	case "pause": // of the controller: case 35; of etcd's leader: case 39
		r.Pause(name)
		s.undo = func() { r.Resume(name) }
	case "cut":
		r.Net.Cut(name, others...)
	case "stall":
		r.Net.Stall(name, others...)
	case "one-way":
		in := n.rng.IntN(2) == 0
		for _, other := range others {
			if in {
				r.Net.StallOneWay(other, name)
			} else {
				r.Net.StallOneWay(name, other)
			}
		}
		s.what += map[bool]string{true: ", hears nothing", false: ", is not heard"}[in]
	default:
		d := time.Duration(5+n.rng.IntN(60)) * time.Millisecond
		r.Net.Delay(d, name, others...)
		s.what += fmt.Sprintf(" by %v", d)
	}
	if s.undo == nil {
		s.undo = func() { r.Net.Heal(name, others...) }
	}
	return s, true
}

// kill is kill -9, after a last look at the counters.
func (n *nemesis) kill(names ...string) {
	n.watch.look(n.l.ctx, names...)
	n.r.Kill(names...)
}

// sever cuts or stalls pairs of processes.
func (n *nemesis) sever(what, name string, others ...string) (strike, bool) {
	how, sever := "cut", n.r.Net.Cut
	if n.rng.IntN(2) == 0 {
		how, sever = "stalled", n.r.Net.Stall
	}
	sever(name, others...)
	return strike{
		what: fmt.Sprintf("%s: %s %s from %s", what, name, how, strings.Join(others, " ")), hit: []string{name},
		undo: func() { n.r.Net.Heal(name, others...) },
	}, true
}

// withoutEtcd: all brokers, which see each other, lose etcd, past their leases. To them
// that is case 38.
func (n *nemesis) withoutEtcd() (strike, bool) {
	var undo []func()
	s := strike{what: "brokers see each other and not etcd", hit: n.r.Names(rig.Broker), hold: 7 * time.Second}
	for _, name := range s.hit {
		one, _ := n.sever("", name, n.r.Names(rig.Etcd)...)
		undo = append(undo, one.undo)
	}
	s.undo = func() {
		for _, f := range undo {
			f()
		}
	}
	return s, true
}

// etcdApart: the leader of etcd loses its peers and is reached by all services, which
// have to leave it: it answers, and knows nothing.
func (n *nemesis) etcdApart() (strike, bool) {
	name := n.target(etcdLeaderRole)
	others := n.r.Others(name, rig.Etcd)
	if name == "" || len(others) == 0 {
		return strike{}, false
	}
	s, ok := n.sever("etcd members apart", name, others...)
	s.hit, s.hold = nil, 7*time.Second // to the services nobody is hit
	return s, ok
}

func (n *nemesis) withoutControl() (strike, bool) {
	name := n.target(leaderRole)
	if name == "" {
		return strike{}, false
	}
	s, ok := n.sever("without control", name, n.r.Names(rig.Etcd, rig.Controller)...)
	s.hold = 7 * time.Second
	return s, ok
}

func (n *nemesis) withoutFollowers() (strike, bool) {
	leader, followers := n.replicas(n.l.topic, n.rng.IntN(n.l.parts))
	if leader == "" || len(followers) == 0 || !n.r.Running(leader) {
		return strike{}, false
	}
	return n.sever("without followers", leader, followers...)
}

func (n *nemesis) controllerAlone() (strike, bool) {
	name := n.controller()
	if name == "" {
		return strike{}, false
	}
	return n.sever("controller", name, n.r.Names(rig.Broker)...)
}

// coordinatorAlone: it reaches etcd and the controllers, and none of the brokers that
// lead its shards, until it gives them up.
func (n *nemesis) coordinatorAlone() (strike, bool) {
	name := n.target(coordinatorRole)
	if name == "" {
		return strike{}, false
	}
	s, ok := n.sever("coordinator", name, n.r.Names(rig.Broker)...)
	s.hold = 12 * time.Second // two of its leases and more
	return s, ok
}

// apart: two brokers and the others do not see each other.
func (n *nemesis) apart() (strike, bool) {
	brokers := n.r.Names(rig.Broker)
	n.rng.Shuffle(len(brokers), func(i, j int) { brokers[i], brokers[j] = brokers[j], brokers[i] })
	one, _ := n.sever("apart", brokers[0], brokers[2:]...)
	two, _ := n.sever("apart", brokers[1], brokers[2:]...)
	return strike{
		what: one.what + "; " + two.what, hit: brokers[:2], hold: 5 * time.Second,
		undo: func() { one.undo(); two.undo() },
	}, true
}

// rolling restarts all processes of a kind, one by one, as an upgrade does.
func (n *nemesis) rolling() (strike, bool) {
	of := []string{rig.Broker, rig.Broker, rig.Controller, rig.Coordinator, rig.Gateway}[n.rng.IntN(5)]
	s := strike{what: "rolling restart of every " + of, hit: n.r.Names(of), undo: func() {}}
	for _, name := range s.hit {
		n.watch.look(n.l.ctx, name)
		n.r.Stop(name)
		n.r.Up(name)
		n.l.sleep(500 * time.Millisecond)
	}
	return s, true
}

func (n *nemesis) orderly() (strike, bool) {
	name := n.one(n.r.Names(rig.Broker, rig.Controller, rig.Coordinator, rig.Gateway)...)
	n.watch.look(n.l.ctx, name)
	n.r.Stop(name)
	return strike{what: "orderly stop of " + name, hit: []string{name}, undo: func() { n.r.Up(name) }}, true
}

// two hits two processes, each in its way.
func (n *nemesis) two() (strike, bool) {
	hows := []string{"kill", "pause", "cut", "stall", "slow"}
	first, second := n.target(roles()[n.rng.IntN(len(roles()))]), n.target(roles()[n.rng.IntN(len(roles()))])
	if first == "" || second == "" || first == second {
		return strike{}, false
	}
	a, _ := n.hit(hows[n.rng.IntN(len(hows))], first, "one of two")
	b, _ := n.hit(hows[n.rng.IntN(len(hows))], second, "the other")
	return strike{what: a.what + " and " + b.what, hit: []string{first, second}, undo: func() { a.undo(); b.undo() }}, true
}

// all kills everything but etcd, as a power cut does that spares the page caches.
func (n *nemesis) all() (strike, bool) {
	names := n.r.Names(rig.Broker, rig.Controller, rig.Coordinator, rig.Gateway)
	n.kill(names...)
	return strike{what: "kill all but etcd", hit: names, hold: time.Second, undo: func() { n.r.Up(names...) }}, true
}

// await waits until something holds of a partition.
func (n *nemesis) await(topic string, number int, limit time.Duration, holds func(leader int32, isr, elr []int32) bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if p, ok := n.partition(topic, number); ok && holds(p.Leader, p.ISR, p.ELR) {
			return true
		}
		if !n.l.sleep(100 * time.Millisecond) {
			return false
		}
	}
	return false
}

// toELR lets a partition's followers die one after the other, then its leader, and
// brings back the follower that died last: it is in the ELR, has everything that was
// committed, and must be elected.
func (n *nemesis) toELR() (strike, bool) {
	part := n.rng.IntN(n.l.parts)
	leader, followers := n.replicas(n.l.topic, part)
	if leader == "" || len(followers) != 2 || !n.r.Running(leader) || !n.r.Running(followers[0]) || !n.r.Running(followers[1]) {
		return strike{}, false
	}
	s := strike{what: fmt.Sprintf("partition %d: kill %s, %s, then the leader %s; bring back %s", part, followers[0], followers[1], leader, followers[1]), hit: append(followers, leader)}
	n.kill(followers[0])
	n.await(n.l.topic, part, *within, func(_ int32, isr, _ []int32) bool { return len(isr) == 2 })
	n.kill(followers[1])
	// Where the first one took its time to leave, it may be the one in the ELR.
	inELR := n.await(n.l.topic, part, *within, func(now int32, isr, elr []int32) bool {
		last := slices.ContainsFunc(elr, func(b int32) bool { return brokerName(b) == followers[1] })
		return last && len(isr) == 1 && brokerName(isr[0]) == leader && brokerName(now) == leader
	})
	if n.r.Running(leader) {
		n.kill(leader)
	}
	n.r.Up(followers[1])
	if inELR && !n.await(n.l.topic, part, time.Minute, func(now int32, _, _ []int32) bool { return brokerName(now) == followers[1] }) {
		n.l.h.problem("partition %d: %s was in the ELR, came back, and was not elected within a minute", part, followers[1])
	}
	s.undo = func() {
		for _, name := range []string{leader, followers[0]} {
			if !n.r.Running(name) {
				n.r.Up(name)
			}
		}
	}
	return s, true
}

// unclean lets the loose topic, which allows it, be led by a follower that lacks what
// its dead leader acknowledged.
func (n *nemesis) unclean() (strike, bool) {
	leader, followers := n.replicas(looseTopic, 0)
	if leader == "" || len(followers) != 1 || !n.r.Running(leader) || !n.r.Running(followers[0]) {
		return strike{}, false
	}
	follower := followers[0]
	s := strike{what: fmt.Sprintf("%s: kill %s, then the leader %s; bring back %s", looseTopic, follower, leader, follower), hit: []string{leader, follower}}
	n.kill(follower)
	n.await(looseTopic, 0, *within, func(_ int32, isr, _ []int32) bool { return len(isr) == 1 })
	n.l.sleep(time.Second) // what the follower will lack
	n.kill(leader)
	n.r.Up(follower)
	if !n.await(looseTopic, 0, time.Minute, func(now int32, _, _ []int32) bool { return brokerName(now) == follower }) {
		n.l.h.problem("%s: %s was not elected uncleanly within a minute", looseTopic, follower)
	}
	s.undo = func() { n.r.Up(leader) }
	return s, true
}

// churn has members of the group come and go.
func (n *nemesis) churn() (strike, bool) {
	joined := n.l.members.join()
	n.l.sleep(time.Second)
	left := n.l.members.leave()
	return strike{what: joined + " of the group joins, " + left + " leaves", undo: func() {}}, true
}

// skew moves the clock of a process by up to a minute.
func (n *nemesis) skew() (strike, bool) {
	name := n.one(n.r.Names(rig.Broker, rig.Coordinator, rig.Controller)...)
	d := time.Duration(n.rng.IntN(120)-60) * time.Second
	if !n.armSoon(name, fmt.Sprintf("clock=skew(%v)", d)) {
		return strike{}, false
	}
	return strike{what: fmt.Sprintf("clock of %s skewed by %v", name, d), hit: []string{name}, undo: func() { n.armSoon(name, "clock=off") }}, true
}
