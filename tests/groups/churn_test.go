package groups

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/owners"
	"github.com/leat-io/leat/tests/internal/rig"
)

const (
	churnGroup      = "churn"
	churnPartitions = 8
	churnSession    = 3 * time.Second
	mostWorkers     = 6
)

// churn is a group whose members join, leave, crash and stand still.
type churn struct {
	t       *testing.T
	r       *rig.Rig
	choose  *rand.Rand
	started int
	working []*worker
	paused  *worker
	quiet   time.Time // until when nobody else is to fall silent
	command *rig.Background
	done    map[string]int // how often what was done

	mu     sync.Mutex
	events []event
	ends   []int64
}

// TestChurn: members join, leave, crash and stand still at random, under load, in
// direct mode and through the gateway. A partition never has two owners, nothing is
// skipped, and nobody waits for a partition's records for longer than the session
// timeout and a second. Members that fall silent do so one at a time, so that
// waiting for two of them in turn is not taken for one. Of streams and commands,
// which may have records on the way when a partition is given to another, only the
// records are judged.
//
// case 25: assignments are taken back and given again while revocations wait.
func TestChurn(t *testing.T) {
	r := start(t, rig.Options{Brokers: 3})
	topic(t, r, "churned", churnPartitions)
	l := startLoad(t, r, "churned", count(300, 600))
	c := &churn{t: t, r: r, choose: random(t), done: map[string]int{}, ends: make([]int64, churnPartitions)}
	for range 3 {
		c.join()
	}
	c.flows("the start")
	deadline := time.Now().Add(span(15*time.Second, 10*time.Minute))
	for time.Now().Before(deadline) || !c.enough() {
		if time.Now().After(deadline.Add(limit)) {
			t.Fatalf("too little happened: %v", c.done)
		}
		c.step()
		lasting(time.Duration(c.choose.IntN(800)) * time.Millisecond)
	}
	c.resume()
	ends := l.stop()
	mesh.Eventually(t, limit, "the group gets everything", func() (bool, string) { return reached(c.reads(), ends) })
	d := describe(t, l.client, churnGroup)
	c.why(d)
	for _, w := range c.working {
		w.leave()
	}
	c.end("command ended")
	c.judge(l, since(d, 0))
}

// why demands that every rebalance that is kept is explained.
func (c *churn) why(d *coordinatorv1.DescribeGroupResponse) {
	c.t.Helper()
	var why struct {
		Rebalances []struct {
			Epoch int64  `json:"epoch"`
			Cause string `json:"cause"`
		} `json:"rebalances"`
	}
	out := c.r.MustLeat("group", "why", churnGroup, "-o", "json")
	if err := json.Unmarshal([]byte(out), &why); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	if len(why.Rebalances) < min(5, len(d.Rebalances)) {
		c.t.Errorf("leat group why tells %d rebalances, of %d", len(why.Rebalances), len(d.Rebalances))
	}
	for _, b := range why.Rebalances {
		if b.Cause == "" {
			c.t.Errorf("the rebalance of epoch %d has no cause", b.Epoch)
		}
	}
}

// hear takes what workers tell.
func (c *churn) hear(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
	if e.Kind == given {
		n := e.Partitions[0]
		c.ends[n] = max(c.ends[n], e.Offset+e.Count)
	}
}

func (c *churn) reads() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ends)
}

func (c *churn) flows(after string) {
	c.t.Helper()
	before := c.reads()
	mesh.Eventually(c.t, limit, "the group gets on after "+after, func() (bool, string) {
		now := c.reads()
		for n := range now {
			if now[n] <= before[n] {
				return false, fmt.Sprintf("%v, before %v", now, before)
			}
		}
		return true, ""
	})
}

// step does one thing at random.
func (c *churn) step() {
	c.t.Helper()
	maySilence := time.Now().After(c.quiet) && c.paused == nil
	switch n := c.choose.IntN(10); {
	case n < 3 && len(c.working) < mostWorkers:
		c.join()
	case n < 5 && len(c.working) > 1:
		w := c.pick()
		c.act("leave", w.name)
		w.leave()
	case n == 5 && c.command == nil:
		c.startCommand()
	case n == 6 && c.command != nil:
		c.end("command left")
	case n < 8 && maySilence && len(c.working) > 1:
		w := c.pick()
		c.act("crash", w.name)
		w.kill()
		c.quiet = time.Now().Add(2 * churnSession)
	case n < 10 && maySilence && len(c.working) > 1:
		w := c.pick()
		c.paused = w
		c.act("pause", w.name)
		w.signal(syscall.SIGSTOP)
		c.quiet = time.Now().Add(2 * churnSession)
	case c.paused != nil && time.Until(c.quiet) < time.Duration(c.choose.IntN(5000))*time.Millisecond:
		c.resume() // sometimes before its session has lapsed
	}
}

// resume lets the member that stands still go on; it comes back as it can.
func (c *churn) resume() {
	if c.paused == nil {
		return
	}
	c.act("resume", c.paused.name)
	c.paused.signal(syscall.SIGCONT)
	c.working = append(c.working, c.paused)
	c.paused = nil
}

func (c *churn) join() {
	c.t.Helper()
	c.started++
	cfg := workerConfig{
		Bootstrap: bootstrap(c.r), Group: churnGroup, Topic: "churned", Name: fmt.Sprintf("member %d", c.started), Session: churnSession,
	}
	if c.started%3 == 0 {
		cfg.Name = fmt.Sprintf("stream %d", c.started)
		cfg.Gateway = c.r.Addr("gateway-1")
		c.done["stream"]++
	}
	c.act("join", cfg.Name)
	c.working = append(c.working, startWorker(c.t, cfg, c.hear))
}

// pick takes one of those at work out of the list.
func (c *churn) pick() *worker {
	n := c.choose.IntN(len(c.working))
	w := c.working[n]
	c.working = slices.Delete(c.working, n, n+1)
	return w
}

// startCommand starts a member that goes through the gateway. Of it only the
// records are seen.
func (c *churn) startCommand() {
	c.started++
	out := &records{c: c, member: fmt.Sprintf("leat consume %d", c.started)}
	c.act("command", out.member)
	c.command = c.r.Run(nil, out, "consume", "churned", "--group", churnGroup, "--from-beginning", "-o", "json")
}

func (c *churn) end(how string) {
	c.t.Helper()
	if c.command == nil {
		return
	}
	c.act(how, "leat consume")
	if code := c.command.Interrupt(); code != 0 && code != 130 && code != -1 { // -1: it was stopped before it waited for the signal
		c.t.Errorf("leat consume exited with %d: %s", code, c.command.Said())
	}
	c.command = nil
}

// records takes the lines of `leat consume -o json`.
type records struct {
	c       *churn
	member  string
	partial []byte
}

var _ io.Writer = (*records)(nil)

func (r *records) Write(p []byte) (int, error) {
	r.partial = append(r.partial, p...)
	for {
		cut := slices.Index(r.partial, '\n')
		if cut < 0 {
			return len(p), nil
		}
		var line struct {
			Partition int   `json:"partition"`
			Offset    int64 `json:"offset"`
		}
		if err := json.Unmarshal(r.partial[:cut], &line); err != nil {
			r.c.t.Errorf("%s wrote %q: %v", r.member, r.partial[:cut], err)
		}
		r.c.hear(event{At: time.Now().UnixNano(), Member: r.member, Kind: given, Partitions: []int{line.Partition}, Offset: line.Offset, Count: 1})
		r.partial = r.partial[cut+1:]
	}
}

// act notes what is done to a member, for the story.
func (c *churn) act(what, member string) {
	c.done[what]++
	c.hear(event{At: time.Now().UnixNano(), Member: member, Kind: "is to " + what})
}

// story tells what happened to a partition in a time, but for records.
func (c *churn) story(partition int, from, to time.Time) {
	for _, e := range c.events {
		at := time.Unix(0, e.At)
		if at.Before(from) || at.After(to.Add(100*time.Millisecond)) || len(e.Partitions) > 0 && !slices.Contains(e.Partitions, partition) {
			continue
		}
		if e.Kind == given && at.Before(to.Add(-100*time.Millisecond)) && at.After(from.Add(1100*time.Millisecond)) {
			continue
		}
		c.t.Logf("%v %s %s %v %d+%d %s", at.Sub(from).Round(time.Millisecond), e.Member, e.Kind, e.Partitions, e.Offset, e.Count, e.Text)
	}
}

// judge replays what happened in the order of its times.
func (c *churn) judge(l *load, kept ledger) {
	c.t.Helper()
	o := owners.New(churnPartitions, c.t.Errorf)
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortStableFunc(c.events, func(a, b event) int { return int(a.At - b.At) })
	for _, e := range c.events {
		at := time.Unix(0, e.At)
		switch e.Kind {
		case assigned:
			o.Assign(e.Member, e.Partitions, at)
		case revoked:
			o.Revoke(e.Member, e.Partitions)
		case gone:
			o.Revoke(e.Member, nil)
		case failed:
			o.Failed(e.Text)
		case given:
			for offset := e.Offset; offset < e.Offset+e.Count; offset++ {
				if e.Began == 0 {
					o.Pass(e.Member, e.Partitions[0], offset, at)
				} else {
					o.Deliver(e.Member, e.Partitions[0], offset, time.Unix(0, e.Began), at)
				}
			}
		}
	}
	longest, partition, ended := o.Standstill()
	alone, _, _ := l.alone.Standstill()
	c.t.Logf("done: %v; %+v", c.done, o.Counts())
	c.t.Logf("longest time without a record: %v of partition %d (session timeout %v; without a group %v); longest without an owner, of the last %d rebalances: %v",
		longest.Round(time.Millisecond), partition, churnSession, alone.Round(time.Millisecond), kept.rebalances, kept.longest.Round(time.Millisecond))
	// The second that is allowed; in the short form, where many tests share the machine,
	// two more, and what it cost the reader without a group.
	most := churnSession + span(3*time.Second, time.Second)
	if longest > most+alone {
		c.t.Errorf("partition %d was without an owner for too long; rebalances: %v", partition, kept.causes)
		c.story(partition, ended.Add(-longest-time.Second), ended)
	}
	if kept.longest > most+span(alone, 0) {
		c.t.Errorf("the coordinator tells of %v without an owner: %v", kept.longest, kept.causes)
	}
}

// enough says whether members have fallen silent and left, which a slow machine may not
// have come to in the time that the test is to take.
func (c *churn) enough() bool { return c.done["crash"]+c.done["pause"] > 0 && c.done["leave"] > 0 }
