package cluster

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

var (
	soakFor  = flag.Duration("soak", 10*time.Second, "how long TestSoak goes on with faults")
	soakSeed = flag.Uint64("soak.seed", 1, "the seed of TestSoak's faults; 0 takes a fresh one")
	soakEtcd = flag.Int("soak.etcds", 1, "etcd members of TestSoak's mesh")
	soakKeep = flag.String("soak.faults", "kill,kill,kill,pause,pause,pause,term,term,pair,pair,all", "what TestSoak chooses its faults from")
)

const (
	soakTopic      = "soak"
	soakPartitions = 4
	soakGroup      = "soakers"
	// soakResume bounds how long producers and the group may stand still once
	// all processes run again. A lease lasts 5 s and a session 15 s; on top comes
	// what a busy machine takes for the restarts.
	soakResume = 45 * time.Second
)

// TestSoak kills, stops and restarts processes of a whole mesh at random while
// producers, a changing group of consumers and creations and deletions of
// topics go on. Nothing acknowledged may be lost, moved, out of order or there
// twice unannounced; the group reads all of it; everything goes on by itself.
// -soak 5m makes it longer, -soak.seed 0 chooses other faults; LEAT_TEST_DATA
// names a folder in which data and logs are kept.
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64N(1_000_000) + 1
	}
	t.Logf("-soak.seed %d", seed)
	m := mesh.Start(t, mesh.Options{Processes: true, Args: []string{
		"--controllers", "3", "--coordinators", "2", "--gateways", "2", "--etcds", strconv.Itoa(*soakEtcd),
	}})
	started := time.Now()
	m.MustLeat("topic", "create", soakTopic, "--partitions", strconv.Itoa(soakPartitions))
	waitForTopic(t, m, m.GatewayN(2), soakTopic)
	s := &soak{m: m, rng: rand.New(rand.NewPCG(seed, 1)), history: newHistory()}
	s.producers = []*soakProducer{s.produce(t, 1, "a"), s.produce(t, 2, "b")}
	for gateway := 1; gateway <= 2; gateway++ {
		s.consume(t, gateway)
	}
	s.readFree(t)
	s.progress(t, "the start")

	stopWatch := s.watchCommits(t)
	stopChurn := s.churn(t, rand.New(rand.NewPCG(seed, 2)))
	for end := time.Now().Add(*soakFor); time.Now().Before(end) && !t.Failed(); {
		s.progress(t, s.fault(t))
	}
	stopChurn()
	stopWatch()
	s.finish(t)
	checkLogs(t, m, time.Since(started))
	checkResources(t, m)
	t.Logf("faults: %v; longest standstill after one: %v; longest of a partition in the group: %v",
		s.faults, s.longest.Round(time.Millisecond), s.history.groupGap())
}

// soak is the state of one run.
type soak struct {
	m         *mesh.Mesh
	rng       *rand.Rand
	history   *history
	producers []*soakProducer
	faults    map[string]int
	longest   time.Duration

	mu        sync.Mutex
	consumers []*background
	free      *background
}

type soakProducer struct {
	name        string
	process     *background
	stopFeeding func()
}

func (s *soak) gateway(n int) []string { return []string{"--gateway", s.m.GatewayN(n)} }

// produce starts a producer of keyed records name-1, name-2, …
func (s *soak) produce(t *testing.T, gateway int, name string) *soakProducer {
	stdin, feed := feedJSON(name)
	acks := &lineSink{line: func(line string) { s.history.ack(t, name, line) }}
	p := startBackgroundTo(t, s.m, stdin, acks, append(s.gateway(gateway),
		"produce", soakTopic, "--input", "json", "--rate", "400", "--acks-out", "-")...)
	return &soakProducer{name: name, process: p, stopFeeding: feed}
}

// consume starts a member of the group.
func (s *soak) consume(t *testing.T, gateway int) *background {
	reader := s.history.reader(true)
	c := startBackgroundTo(t, s.m, nil, &lineSink{line: func(line string) { reader.record(t, line) }}, append(s.gateway(gateway),
		"consume", soakTopic, "--group", soakGroup, "--from-beginning", "-o", "json")...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumers = append(s.consumers, c)
	return c
}

// readFree starts a reader without a group, which sees every record just once.
func (s *soak) readFree(t *testing.T) {
	reader := s.history.reader(false)
	s.free = startBackgroundTo(t, s.m, nil, &lineSink{line: func(line string) { reader.record(t, line) }}, append(s.gateway(1),
		"consume", soakTopic, "--from-beginning", "-o", "json")...)
}

// fault does one random thing to the mesh, undoes it, and says what it was.
func (s *soak) fault(t *testing.T) string {
	t.Helper()
	kinds := strings.Split(*soakKeep, ",")
	kind := kinds[s.rng.IntN(len(kinds))]
	services := s.m.Services()
	one := services[s.rng.IntN(len(services))]
	other := services[s.rng.IntN(len(services))]
	pause := time.Duration(s.rng.IntN(8000)) * time.Millisecond
	down := time.Duration(s.rng.IntN(1500)) * time.Millisecond
	what := kind + " " + one
	switch kind {
	case "kill":
		s.m.Kill(one)
		wait(down)
		s.m.Restart(one)
	case "pause":
		what += " " + pause.String()
		s.m.Signal(one, syscall.SIGSTOP)
		wait(pause)
		s.m.Signal(one, syscall.SIGCONT)
	case "term":
		s.m.Restart(one)
	case "pair":
		what += " " + other
		s.m.Kill(one)
		if other != one {
			s.m.Kill(other)
		}
		wait(down)
		s.m.Restart(one)
		s.m.Restart(other)
	case "all":
		what = "all"
		s.m.KillAll()
		s.m.Up()
	default:
		t.Fatalf("-soak.faults: %q is not a kind of fault", kind)
	}
	if s.faults == nil {
		s.faults = map[string]int{}
	}
	s.faults[kind]++
	return what
}

// progress waits until each producer, the group, and the free reader in each
// partition have got on.
func (s *soak) progress(t *testing.T, what string) {
	t.Helper()
	start := time.Now()
	if r := s.m.Leat(append(s.gateway(1), "cluster", "wait", "--timeout", "40s")...); r.Code != 0 {
		t.Fatalf("after %s: %s", what, r)
	}
	ready := time.Since(start)
	before := s.history.counts()
	mesh.Eventually(t, soakResume, "progress after "+what, func() (bool, string) {
		now := s.history.counts()
		for who, n := range before {
			if now[who] <= n {
				return false, fmt.Sprintf("%s: now %v, before %v", who, now, before)
			}
		}
		return true, ""
	})
	stood := time.Since(start)
	s.longest = max(s.longest, stood)
	t.Logf("%s %6.2fs after %s all goes on (cluster wait took %.2fs)", time.Now().UTC().Format(time.StampMilli), stood.Seconds(), what, ready.Seconds())
}

// churn lets consumers come and go and makes and deletes topics.
func (s *soak) churn(t *testing.T, rng *rand.Rand) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var guest *background
		for round := 1; ; round++ {
			select {
			case <-quit:
				return
			case <-time.After(time.Duration(500+rng.IntN(2500)) * time.Millisecond):
			}
			name := fmt.Sprintf("churn-%d", round/4)
			gateway := s.gateway(1 + rng.IntN(2))
			switch {
			case round%4 == 0:
				s.m.Leat(append(gateway, "topic", "create", name, "--partitions", "3", "--request-timeout", "5s")...)
			case round%4 == 3:
				s.m.Leat(append(gateway, "topic", "delete", name, "--request-timeout", "5s")...)
			case guest == nil:
				guest = s.consume(t, 1+rng.IntN(2))
			case rng.IntN(2) == 0:
				_ = guest.cmd.Process.Kill()
				guest = nil
			default:
				_ = guest.cmd.Process.Signal(syscall.SIGINT)
				guest = nil
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// finish lets everything come to its end and checks it.
func (s *soak) finish(t *testing.T) {
	t.Helper()
	for _, p := range s.producers {
		p.stopFeeding()
	}
	for _, p := range s.producers {
		if code := p.process.wait(t, 2*time.Minute); code != 0 {
			t.Errorf("producer %s exited with %d:\n%s", p.name, code, p.process.stderr.String())
		}
	}
	read := func(gateway int) []record {
		return parseRecords(t, s.m.MustLeat(append(s.gateway(gateway), "consume", soakTopic, "--from-beginning", "--follow=false", "-o", "json")...))
	}
	all := read(1)
	s.history.checkLog(t, all, read(2))
	mesh.Eventually(t, soakResume, "the group reads all", func() (bool, string) {
		missing := s.history.missing(all)
		return len(missing) == 0, fmt.Sprintf("%d of %d missing: %v", len(missing), len(all), missing[:min(len(missing), 5)])
	})
	for _, c := range append(s.consumers, s.free) {
		select {
		case <-c.done:
			continue
		default:
		}
		if code := c.stop(t); code != 0 && code != 130 {
			t.Errorf("%v exited with %d:\n%s", c.cmd.Args, code, c.stderr.String())
		}
	}
	again := s.m.MustLeat(append(s.gateway(2), "consume", soakTopic, "--group", soakGroup, "--from-beginning", "--follow=false", "-o", "json")...)
	if n := strings.Count(again, "\n"); n > 0 {
		t.Errorf("%d records come again after the group had read and committed all: %s", n, again[:min(len(again), 500)])
	}
}
