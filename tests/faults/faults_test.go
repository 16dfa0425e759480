package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

var (
	duration = flag.Duration("duration", 0, "how long faults go on; 0: 20s, with -full 30m")
	seed     = flag.Uint64("seed", 1, "the seed of random choices; 0 takes a fresh one")
	full     = flag.Bool("full", false, "demand every fault, failpoint and transition, and a million acknowledged records")
	small    = flag.Bool("small", false, "a mesh of 3 brokers, 2 controllers and one of everything else")
	rate     = flag.Int("rate", 0, "records a second of each of the four producers; 0: 150, with -full 350")
	only     = flag.String("faults", "", "a regular expression: choose only faults whose names match it; those of failpoints are failpoint KIND PLACE")
	within   = flag.Duration("progress", 30*time.Second, "how soon everybody has to get on during and after faults")
	report   = flag.String("report", "", "folder of the report; empty: a temporary one")
)

const (
	mainTopic  = "faults"
	looseTopic = "loose"
	// fullDiskFault needs the right to mount.
	fullDiskFault = "full disk"
	partitions    = 6
	// wanted is how many records a full run has to see acknowledged.
	wanted = 1_000_000
)

// nemesis strikes the mesh.
type nemesis struct {
	t          *testing.T
	r          *rig.Rig
	l          *load
	rng        *rand.Rand
	watch      *watch
	tagged     bool // the binaries have failpoints
	done       []struck
	byFault    map[string]int
	failpoints map[string]int
	quiet      time.Duration
	longest    time.Duration
}

// struck is a fault that was, for the report.
type struck struct {
	Name, What string
	Hit        []string
	Begin, End time.Duration
	// During is the longest time that somebody not hit needed to get on while it lasted;
	// below 0: not asked. After is the time that anybody needed after its end.
	During, After time.Duration
}

// TestFaults runs the mesh, the load and the nemesis; see the package.
func TestFaults(t *testing.T) {
	d := *duration
	if d == 0 {
		d = 20 * time.Second
		if *full {
			d = 30 * time.Minute
		}
	}
	s := *seed
	if s == 0 {
		s = rand.Uint64N(1_000_000) + 1
	}
	t.Logf("-seed %d -duration %v", s, d)
	r := rig.New(t, meshOptions(d))
	r.UpAll()
	r.WaitReady(2 * time.Minute)
	createTopics(t, r)
	l := startLoad(t, r, mainTopic, partitions, perSecond())
	n := &nemesis{
		t: t, r: r, l: l, rng: rand.New(rand.NewPCG(s, 1)), watch: newWatch(r, l.h.began),
		byFault: map[string]int{}, failpoints: map[string]int{},
	}
	defer n.report(s)
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(l.ctx)
	defer wait.Wait()
	defer cancel()
	wait.Go(func() { n.watch.run(ctx) })
	wait.Go(func() { n.loose(ctx) })
	n.tagged = n.arm("broker-1", "") == nil
	n.awaitProgress("after the start", time.Minute, progressOf{acked: make([]int, len(l.sources)), stored: make([]int, partitions)}, nil)
	n.watch.start()
	// An interrupted run ends with its checks, too.
	until, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	n.run(until, d)
	n.end()
	cancel()
}

func meshOptions(d time.Duration) rig.Options {
	o := rig.Options{Brokers: 5, Controllers: 3, Coordinators: 2, Gateways: 2, Etcds: 3}
	if *small {
		o = rig.Options{Brokers: 3, Controllers: 2}
	}
	o.SmallDisks = map[string]int64{smallDisk: smallDiskBytes(d)}
	o.Set = []string{
		"broker.replica.lag.time.max.ms=4000", "broker.lease.ttl=3s", "controller.lease.ttl=3s", "coordinator.lease.ttl=3s",
		"broker.log.flush.offset.checkpoint.interval.ms=5000",
	}
	return o
}

func perSecond() int {
	switch {
	case *rate > 0:
		return *rate
	case *full:
		return 350
	default:
		return 150
	}
}

func createTopics(t *testing.T, r *rig.Rig) {
	r.CreateTopic(mainTopic, "--partitions", fmt.Sprint(partitions), "--replication-factor", "3",
		"--config", "min.insync.replicas=2", "--config", "segment.bytes=262144")
	r.CreateTopic(looseTopic, "--partitions", "1", "--replication-factor", "2",
		"--config", "min.insync.replicas=1", "--config", "unclean.leader.election.enable=true")
	r.WaitInSync(mainTopic, time.Minute)
	r.WaitInSync(looseTopic, time.Minute)
	createAlone(r)
	awaitKnown(t, r, mainTopic)
}

// awaitKnown waits until all whom clients may ask know a topic: those that hold none of it
// may hear of it last, and to producers no topic is an error.
func awaitKnown(t *testing.T, r *rig.Rig, topic string) {
	t.Helper()
	for _, name := range r.Names(rig.Broker) {
		conn, err := rpc.Dial(r.Addr(name), rpc.DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		mesh.Eventually(t, time.Minute, name+" knows the topic "+topic, func() (bool, string) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			known, err := brokerv1.NewMetadataServiceClient(conn).GetMetadata(ctx, &brokerv1.GetMetadataRequest{Topics: []string{topic}})
			return err == nil && len(known.GetTopics()) == 1 && known.GetTopics()[0].GetError() == nil, fmt.Sprint(known, err)
		})
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range r.Names(rig.Gateway) {
		mesh.Eventually(t, time.Minute, name+" knows the topic "+topic, func() (bool, string) {
			res := r.Leat("topic", "describe", topic, "--gateway", r.Addr(name))
			return res.Code == 0, res.String()
		})
	}
}

// loose writes to the topic that allows unclean elections; what becomes of it there
// is nobody's promise.
func (n *nemesis) loose(ctx context.Context) {
	c := n.l.newClient("loose")
	defer c.Close()
	p, err := c.NewProducer(client.ProducerConfig{Acks: typev1.Acks_ACKS_LEADER, Idempotence: client.IdempotenceOff, DeliveryTimeout: 10 * time.Second})
	if err != nil {
		n.l.fail(err)
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.Close(ctx) // nobody asks for its outcomes
	}()
	for i := 0; ctx.Err() == nil; i++ {
		_ = p.Send(ctx, client.Record{Topic: looseTopic, Value: fmt.Appendf(nil, "loose %d", i)}, func(client.Result) {})
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// run strikes until the time is over or the context ends, what is still missing
// first, with quiet between the strikes for a quarter of the time.
func (n *nemesis) run(ctx context.Context, d time.Duration) {
	all := n.choices()
	if len(all) == 0 {
		n.t.Fatalf("-faults %q chooses nothing", *only)
	}
	choose := newChooser(all, n.rng.IntN)
	began := time.Now()
	for time.Since(began) < d && ctx.Err() == nil {
		if len(n.l.h.found()) >= maxProblems {
			return // more of the same
		}
		calm := max(500*time.Millisecond, min(5*time.Second, time.Since(began)/4-n.quiet))
		n.l.sleep(calm)
		n.quiet += calm
		n.strike(choose.next(n.missing()))
	}
}

// choices are the faults that this run may choose.
func (n *nemesis) choices() []fault {
	names := regexp.MustCompile(*only)
	var all []fault
	for _, f := range catalogue() {
		if names.MatchString(f.name+f.place) && (n.tagged || !f.tagged) && (!*small || f.name != "two brokers apart" && f.name != "etcd members apart") &&
			(f.name != fullDiskFault || n.r.SmallDisk(smallDisk) == nil) {
			all = append(all, f)
		}
	}
	return all
}

// strike begins a fault, lets it last, undoes it, and demands progress.
func (n *nemesis) strike(f fault) {
	began := time.Now()
	n.t.Logf("%7.1fs  %s%s …", time.Since(n.l.h.began).Seconds(), f.name, f.place)
	s, ok := f.begin(n)
	if !ok {
		return // nobody has that role now
	}
	n.byFault[f.name]++
	one := struck{Name: f.name, What: s.what, Hit: s.hit, Begin: began.Sub(n.l.h.began), During: -1}
	hold := max(s.hold, time.Duration(500+n.rng.IntN(5500))*time.Millisecond)
	for f.single && one.During < *within {
		one.During = max(one.During, n.awaitProgress("while "+s.what, *within, n.l.progress(), s.hit))
		if time.Since(began) > hold {
			break
		}
	}
	n.l.sleep(hold - time.Since(began))
	s.undo()
	one.End = time.Since(n.l.h.began)
	one.After = n.awaitProgress("after "+s.what, 2**within, n.l.progress(), nil)
	n.longest = max(n.longest, one.During, one.After)
	n.done = append(n.done, one)
	n.t.Logf("%7.1fs  %s, for %v; all goes on %v after", time.Since(n.l.h.began).Seconds(), s.what,
		(one.End - one.Begin).Round(100*time.Millisecond), one.After.Round(10*time.Millisecond))
}

// awaitProgress waits until everybody who is not hit has got on.
func (n *nemesis) awaitProgress(when string, limit time.Duration, since progressOf, hit []string) time.Duration {
	began := time.Now()
	for {
		stuck := n.l.stuck(since, hit)
		took := time.Since(began)
		if stuck == "" {
			return took
		}
		if took > limit {
			n.l.h.problem("no progress within %v %s: %s", limit, when, stuck)
			return took
		}
		if !n.l.sleep(20 * time.Millisecond) {
			return took
		}
	}
}

// end heals everything, brings all back and has the history checked.
func (n *nemesis) end() {
	n.r.Net.HealAll()
	for _, name := range n.r.Names() {
		if !n.r.Running(name) {
			n.l.h.problem("%s does not run at the end, and nobody killed it", name)
			n.r.Up(name)
		}
	}
	n.l.finish()
	n.watch.look(context.Background(), n.r.Names()...)
	n.r.WaitInSync(mainTopic, 2*time.Minute)
	n.r.SameLogs(mainTopic, 2*time.Minute)
}

// report writes the report and fails the test if something was found.
func (n *nemesis) report(seed uint64) {
	for name, text := range n.r.Logs() {
		found := 0
		for line := range strings.Lines(text) {
			if rig.BadLog.MatchString(line) && found < 3 {
				found++
				n.l.h.problem("the log of %s: %s", name, strings.TrimSpace(line))
			}
		}
	}
	s := n.summary(seed)
	if *full {
		for _, missing := range s.vacuous() {
			n.l.h.problem("vacuous: %s", missing)
		}
	}
	s.Problems = n.l.h.found()
	dir := *report
	if dir == "" {
		dir = n.t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Error(err)
	}
	path, err := s.write(dir)
	if err != nil {
		n.t.Errorf("write the report: %v", err)
	}
	n.t.Logf("report: %s\n%s", path, s.words())
	for _, p := range s.Problems {
		n.t.Error(p)
	}
}
