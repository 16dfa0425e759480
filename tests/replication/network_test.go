package replication

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/proxy"
	"github.com/leat-io/leat/tests/internal/rig"
)

// breaks are the two ways in which a network fails: one that everybody notices,
// and one in which nobody hears anything.
var breaks = map[string]func(n *proxy.Network, a string, others ...string){
	"cut":   (*proxy.Network).Cut,
	"stall": (*proxy.Network).Stall,
}

// inBreaks runs a test with connections that break, in process, and with ones
// that stand still, in processes; with -full both in both.
func inBreaks(t *testing.T, body func(t *testing.T, s *starter, sever func(n *proxy.Network, a string, others ...string))) {
	t.Helper()
	for _, how := range []string{"cut", "stall"} {
		t.Run(how, func(t *testing.T) {
			if *full {
				inForms(t, func(t *testing.T, s *starter) { body(t, s, breaks[how]) })
				return
			}
			if how == "cut" {
				body(t, inProcess(t), breaks[how])
			} else {
				body(t, processes(t), breaks[how])
			}
		})
	}
}

// TestLeaderSeveredFromFollowers: the followers cannot reach the leader; clients
// and controllers can. Outcome: both followers say so, one of them is elected
// after a second or so, and the old leader learns that it leads no more. Nothing
// is acknowledged that the new leader lacks.
func TestLeaderSeveredFromFollowers(t *testing.T) {
	leaderSevered(t, "cut", func(r *rig.Rig, leader string) []string { return r.Others(leader, rig.Broker) })
}

// leaderSevered severs a topic's leader from others, under load, and demands that
// another is elected and that everything goes on.
func leaderSevered(t *testing.T, name string, from func(r *rig.Rig, leader string) []string) {
	inBreaks(t, func(t *testing.T, s *starter, sever func(*proxy.Network, string, ...string)) {
		r := s.start(rig.Options{})
		topic(t, r, name, 1)
		l := startLoad(t, r, name, loadOptions{})
		leader := r.Leader(name, 0)
		l.history.LongestGap(byClient)
		began := time.Now()
		sever(r.Net, leader, from(r, leader)...)
		now := r.LeaderOtherThan(name, 0, leader)
		t.Logf("%s leads after %v", now, time.Since(began).Round(time.Millisecond))
		l.progress("an election", resume)
		t.Logf("longest time without an acknowledgement: %v", l.history.LongestGap(byClient).Round(time.Millisecond))
		r.Net.HealAll()
		r.WaitInSync(name, time.Minute)
		l.finish()
	})
}

// TestLeaderSeveredFromControl: the leader cannot reach controllers and etcd;
// followers and clients can reach the leader. Outcome: its lease ends and the probe
// fails, so it is fenced and another leads, a lease's time and a second or so later;
// until then it goes on, and writes stand still only for the election.
func TestLeaderSeveredFromControl(t *testing.T) {
	leaderSevered(t, "control", func(r *rig.Rig, _ string) []string { return r.Names(rig.Etcd, rig.Controller) })
}

// TestElectedWithoutAController: a broker that reaches etcd, the other brokers and
// clients, and no controller, is elected. It does not hear of it, and is not fenced, as
// its lease lives. Outcome: its followers tell, and one of them is elected after a few
// seconds; it leaves the ISR.
func TestElectedWithoutAController(t *testing.T) {
	r := inProcess(t).start(rig.Options{Set: []string{"controller.auto.leader.rebalance.enable=false"}})
	topic(t, r, "deaf", 1)
	l := startLoad(t, r, "deaf", loadOptions{})
	preferred := r.Leader("deaf", 0)
	r.Stop(preferred)
	r.Up(preferred)
	r.WaitInSync("deaf", time.Minute)
	l.progress("a restart", resume)
	before, err := r.Partitions("deaf")
	if err != nil {
		t.Fatal(err)
	}
	l.history.LongestGap(byClient)
	r.Net.Cut(preferred, r.Names(rig.Controller)...)
	r.MustLeat("cluster", "elect-leaders", "--topic", "deaf")
	// The former leader may go on until it hears of the election, too.
	mesh.Eventually(t, time.Minute, "another than "+preferred+" leads, after it", func() (bool, string) {
		all, err := r.Partitions("deaf")
		if err != nil {
			return false, err.Error()
		}
		now := fmt.Sprintf("broker-%d", all[0].Leader)
		return all[0].LeaderEpoch >= before[0].LeaderEpoch+2 && r.Running(now) && now != preferred, fmt.Sprintf("%+v, before %+v", all[0], before[0])
	})
	l.progress("the election of a broker that does not hear of it", resume)
	t.Logf("longest time without an acknowledgement: %v", l.history.LongestGap(byClient).Round(time.Millisecond))
	r.Net.HealAll()
	r.WaitInSync("deaf", time.Minute)
	l.finish()
}

// keepsLeader does something that is to leave a topic's leader where it is, and heals it;
// again where the leader was fenced, since leases are short here and it may have stood
// still for longer by itself.
func keepsLeader(t *testing.T, r *rig.Rig, name string, do func(leader string)) {
	t.Helper()
	fencings := func(broker string) int {
		return len(logged(r, `msg="broker fenced"`, " broker="+strings.TrimPrefix(broker, "broker-")+" "))
	}
	for range 3 {
		leader := r.Leader(name, 0)
		before := fencings(leader)
		do(leader)
		now := r.Leader(name, 0)
		fenced := fencings(leader) > before
		r.Net.HealAll()
		r.WaitInSync(name, time.Minute)
		if now == leader {
			return
		}
		t.Logf("%s leads in place of %s; that was fenced: %v", now, leader, fenced)
		if !fenced {
			break
		}
	}
	t.Error("another was elected, though nothing was wrong with the leader")
}

// logged are the lines of the controllers that hold all parts.
func logged(r *rig.Rig, parts ...string) []string {
	var lines []string
	for _, controller := range r.Names(rig.Controller) {
		for line := range strings.Lines(r.Logs()[controller]) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	return lines
}

// TestFollowerSevered: one follower is severed from everything. Outcome: it is
// fenced when its lease has ended and leaves the ISR; writes stand still until
// then at the most. It catches up and returns.
func TestFollowerSevered(t *testing.T) {
	inBreaks(t, func(t *testing.T, s *starter, sever func(*proxy.Network, string, ...string)) {
		r := s.start(rig.Options{})
		topic(t, r, "follower", 1)
		l := startLoad(t, r, "follower", loadOptions{})
		keepsLeader(t, r, "follower", func(string) {
			follower := r.Followers("follower", 0)[0]
			l.history.LongestGap(byClient)
			sever(r.Net, follower, append(r.Others(follower), proxy.Client)...)
			r.WaitISR("follower", 0, resume, without(r.Names(rig.Broker), follower)...)
			l.progress("a smaller ISR", resume)
			t.Logf("longest time without an acknowledgement: %v", l.history.LongestGap(byClient).Round(time.Millisecond))
		})
		l.finish()
	})
}

// TestFollowerSeveredFromLeader: a follower cannot reach the leader, everything
// else works. Outcome: no election, since the other follower reaches the leader;
// the leader takes the follower out of the ISR after replica.lag.time.max.ms.
func TestFollowerSeveredFromLeader(t *testing.T) {
	r := processes(t).start(rig.Options{Set: []string{"broker.replica.lag.time.max.ms=3000"}})
	topic(t, r, "lag", 1)
	l := startLoad(t, r, "lag", loadOptions{})
	keepsLeader(t, r, "lag", func(leader string) {
		follower := without(r.Names(rig.Broker), leader)[0]
		r.Net.Stall(leader, follower)
		r.WaitISR("lag", 0, resume, without(r.Names(rig.Broker), follower)...)
		l.progress("a smaller ISR", resume)
	})
	l.finish()
}

// TestEtcdSevered: nobody reaches etcd, for longer than all leases. Outcome:
// producing and reading go on in the epochs that there are; nobody is fenced or
// elected; what needs etcd says so by name; all of it recovers by itself.
func TestEtcdSevered(t *testing.T) {
	inBreaks(t, func(t *testing.T, s *starter, sever func(*proxy.Network, string, ...string)) {
		r := s.start(rig.Options{})
		topic(t, r, "etcd", 1)
		l := startLoad(t, r, "etcd", loadOptions{})
		before, err := r.Partitions("etcd")
		if err != nil {
			t.Fatal(err)
		}
		sever(r.Net, "etcd-1", append(r.Others("etcd-1"), proxy.Client)...)
		withoutEtcd(t, r, l)
		r.Net.HealAll()
		afterEtcd(t, r, l, before[0].LeaderEpoch)
	})
}

// TestEtcdDown is case 38: etcd is killed under load and comes back late; then
// cases 37 and 39: whoever watched finds out what it missed, and leases that
// ended meanwhile are taken anew.
func TestEtcdDown(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "etcd", 1)
		l := startLoad(t, r, "etcd", loadOptions{})
		before, err := r.Partitions("etcd")
		if err != nil {
			t.Fatal(err)
		}
		r.Kill("etcd-1")
		withoutEtcd(t, r, l)
		r.Up("etcd-1")
		afterEtcd(t, r, l, before[0].LeaderEpoch)
	})
}

// TestEtcdPaused is case 39: etcd stands still past all leases and ends them when
// it goes on, although their owners had kept them alive as they thought.
func TestEtcdPaused(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "etcd", 1)
	l := startLoad(t, r, "etcd", loadOptions{})
	before, err := r.Partitions("etcd")
	if err != nil {
		t.Fatal(err)
	}
	r.Pause("etcd-1")
	withoutEtcd(t, r, l)
	r.Resume("etcd-1")
	afterEtcd(t, r, l, before[0].LeaderEpoch)
}

// TestOneOfThreeEtcdsKilled: etcd keeps its quorum, so everything goes on, admin
// writes included.
func TestOneOfThreeEtcdsKilled(t *testing.T) {
	r := processes(t).start(rig.Options{Etcds: 3})
	topic(t, r, "etcd", 1)
	l := startLoad(t, r, "etcd", loadOptions{})
	for _, name := range r.Names(rig.Etcd)[:count(1, 3)] {
		r.Kill(name)
		began := time.Now()
		topic(t, r, "without-"+name, 1)
		t.Logf("a topic is there %v after the death of %s", time.Since(began).Round(time.Millisecond), name)
		leader := r.Leader("etcd", 0)
		r.Kill(leader)
		l.progress("the death of "+leader+" without "+name, resume)
		r.Up(leader, name)
		r.WaitInSync("etcd", time.Minute)
	}
	l.finish()
}

// withoutEtcd demands that the load goes on, and that an admin write says why not.
func withoutEtcd(t *testing.T, r *rig.Rig, l *load) {
	t.Helper()
	end := time.Now().Add(span(4*time.Second, time.Minute))
	l.history.LongestGap(byClient)
	for time.Now().Before(end) {
		l.progress("the loss of etcd", resume)
	}
	t.Logf("longest time without an acknowledgement: %v", l.history.LongestGap(byClient).Round(time.Millisecond))
	res := r.Leat("topic", "create", "late", "--request-timeout", "5s")
	if res.Code == 0 || !strings.Contains(res.Stderr, "METADATA_UNAVAILABLE") && !strings.Contains(res.Stderr, "CONTROLLER_NOT_AVAILABLE") {
		t.Errorf("a topic was created without etcd, or the reason is not named: %s", res)
	}
}

// afterEtcd demands that all recovers by itself and nobody was elected.
func afterEtcd(t *testing.T, r *rig.Rig, l *load, epoch int) {
	t.Helper()
	began := time.Now()
	mesh.Eventually(t, time.Minute, "topics can be created again", func() (bool, string) {
		res := r.Leat("topic", "create", "after", "--request-timeout", "5s")
		return res.Code == 0 || strings.Contains(res.Stderr, "TOPIC_EXISTS") || strings.Contains(res.Stderr, "already"), res.String()
	})
	t.Logf("topics can be created again after %v", time.Since(began).Round(time.Millisecond))
	l.progress("the return of etcd", resume)
	r.WaitInSync("etcd", time.Minute)
	after, err := r.Partitions("etcd")
	if err != nil {
		t.Fatal(err)
	}
	defer l.finish()
	if after[0].LeaderEpoch == epoch {
		return
	}
	// Only its followers may name a leader that stood still with the machine as unreachable.
	const changed = `msg="leaders changed"`
	named := logged(r, changed, `cause="every follower reports the leader unreachable"`, "etcd-0: ")
	if fenced := logged(r, changed, `cause="fence broker"`, "etcd-0: "); len(fenced) > 0 || len(named) == 0 {
		t.Errorf("leader epoch %d before, %d after: leases that ended are no reason to elect: %v", epoch, after[0].LeaderEpoch, fenced)
	}
}
