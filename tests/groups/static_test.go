package groups

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

const (
	staticMembers    = 10
	staticPartitions = 44
)

// TestStaticRollingRestart: ten members with static ids are restarted one by one, in
// order and by kill -9. Nothing moves: everybody has in the end what it had before,
// and the others hear of nothing. The eleventh gets its fair share, and no more than
// that moves.
func TestStaticRollingRestart(t *testing.T) {
	r := start(t, rig.Options{})
	topic(t, r, "static", staticPartitions)
	c := newClient(t, r, "static")
	fill(t, c, "static", staticPartitions, 3)
	join := func(n int) *member {
		return startMember(t, c, fmt.Sprint("static ", n), memberOptions{ConsumerConfig: client.ConsumerConfig{
			Group: "static", Topics: []string{"static"}, InstanceID: fmt.Sprint("instance-", n), SessionTimeout: 30 * time.Second,
		}})
	}
	held := &holdings{of: map[string][]int{}}
	killed := startStaticWorker(t, r, held) // one that can be killed
	var all []*member
	for n := range staticMembers - 1 {
		all = append(all, join(n))
	}
	var d *coordinatorv1.DescribeGroupResponse
	mesh.Eventually(t, limit, "everybody holds a fair share for good", func() (bool, string) {
		shares, total := []int{len(held.get(killed.name))}, 0
		for _, m := range all {
			shares = append(shares, len(m.has()))
		}
		for _, n := range shares {
			total += n
		}
		if least := staticPartitions / staticMembers; slices.Min(shares) < least || slices.Max(shares) > least+1 || total != staticPartitions {
			return false, fmt.Sprint(shares)
		}
		d = describe(t, c, "static")
		return d.Summary.State == coordinatorv1.GroupState_GROUP_STATE_STABLE, fmt.Sprint(shares, d.Summary)
	})
	epoch := d.Summary.GroupEpoch

	var before [][]int
	var changes []int
	for _, m := range all {
		before = append(before, m.has())
		n, _, _ := m.counts()
		changes = append(changes, n)
	}
	for n, m := range all {
		m.end()
		all[n] = join(n)
		mesh.Eventually(t, limit, m.name+" has back what it had", func() (bool, string) {
			return slices.Equal(all[n].has(), before[n]), fmt.Sprintf("%v, before %v", all[n].has(), before[n])
		})
		for other, m := range all[n+1:] {
			if now, _, _ := m.counts(); now != changes[n+1+other] {
				t.Errorf("%s heard of a change while %s was restarted", m.name, all[n].name)
			}
		}
	}
	had := held.get(killed.name)
	killed.kill()
	killed = startStaticWorker(t, r, held)
	mesh.Eventually(t, limit, "who was killed has back what it had", func() (bool, string) {
		return killed.told(assigned) > 0 && slices.Equal(held.get(killed.name), had), fmt.Sprintf("%v, before %v", held.get(killed.name), had)
	})
	d = describe(t, c, "static")
	if kept := since(d, epoch); kept.moved > 0 {
		t.Errorf("restarts moved %d partitions: %v", kept.moved, kept.causes)
	}

	epoch = d.Summary.GroupEpoch
	share := staticPartitions / (staticMembers + 1)
	foretold := simulated(t, r, "static", "--add", "1")
	eleventh := join(staticMembers)
	awaitHolding(t, share, eleventh)
	if has := eleventh.has(); !slices.Equal(has, foretold) {
		t.Errorf("the eleventh has %v; leat group simulate foretold %v", has, foretold)
	}
	d = describe(t, c, "static")
	kept := since(d, epoch)
	t.Logf("%d members share %d partitions; the next one moved %d", staticMembers, staticPartitions, kept.moved)
	if kept.moved != share {
		t.Errorf("the eleventh gets %d partitions, and %d moved: %v", share, kept.moved, kept.causes)
	}
	for n, m := range all {
		if _, gained, _ := m.counts(); gained != len(before[n]) {
			t.Errorf("%s was told of %d partitions of its own since its restart, and had %d: what stays was moved", m.name, gained, len(before[n]))
		}
	}
}

// simulated are the partitions that would move, in order.
func simulated(t *testing.T, r *rig.Rig, group string, args ...string) []int {
	t.Helper()
	var s struct {
		Moves []struct {
			Partition int `json:"partition"`
		} `json:"moves"`
	}
	out := r.MustLeat(append([]string{"group", "simulate", group, "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var moves []int
	for _, m := range s.Moves {
		moves = append(moves, m.Partition)
	}
	slices.Sort(moves)
	return moves
}

// holdings is what workers hold, by name.
type holdings struct {
	mu sync.Mutex
	of map[string][]int
}

func (h *holdings) hear(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e.Kind {
	case assigned:
		h.of[e.Member] = append(h.of[e.Member], e.Partitions...)
	case revoked:
		h.of[e.Member] = slices.DeleteFunc(h.of[e.Member], func(n int) bool { return slices.Contains(e.Partitions, n) })
	}
	slices.Sort(h.of[e.Member])
}

func (h *holdings) get(name string) []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.of[name])
}

// startStaticWorker starts one more life of a static member in a process of its own.
func startStaticWorker(t *testing.T, r *rig.Rig, held *holdings) *worker {
	t.Helper()
	held.mu.Lock()
	delete(held.of, "worker")
	held.mu.Unlock()
	return startWorker(t, workerConfig{
		Bootstrap: bootstrap(r), Group: "static", Topic: "static", Name: "worker", Instance: "instance-worker", Session: 30 * time.Second,
	}, held.hear)
}

// TestSameInstanceTwice: a second process with the same instance id fences the first
// at once, which then commits nothing and stops.
//
// case 26: a third joins while the group is still being rebalanced.
func TestSameInstanceTwice(t *testing.T) {
	r := start(t, rig.Options{})
	topic(t, r, "twice", 4)
	c := newClient(t, r, "twice")
	fill(t, c, "twice", 4, 5)
	held := &holdings{of: map[string][]int{}}
	config := workerConfig{Bootstrap: bootstrap(r), Group: "twice", Topic: "twice", Instance: "one", Session: 4 * time.Second}
	begin := func(name string) *worker {
		config.Name = name
		return startWorker(t, config, held.hear)
	}
	holds := func(name string) {
		t.Helper()
		mesh.Eventually(t, limit, name+" holds everything", func() (bool, string) {
			return len(held.get(name)) == 4, fmt.Sprint(held.get(name))
		})
	}
	first := begin("first")
	holds("first")
	first.signal(syscall.SIGSTOP) // it cannot give anything up
	second := begin("second")
	began := time.Now()
	holds("second")
	t.Logf("the second holds everything after %v", time.Since(began).Round(time.Millisecond))
	third := begin("third")
	holds("third")
	first.signal(syscall.SIGCONT)
	for _, w := range []*worker{first, second} {
		select {
		case <-w.done:
			if code := w.cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("%s exited with %d", w.name, code)
			}
		case <-time.After(limit):
			t.Errorf("%s does not stop although another process has its instance id", w.name)
		}
	}
	third.leave()
}
