package groups

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// described is what is read of `leat group describe -o json`.
type described struct {
	State   string `json:"state"`
	Members []struct {
		ClientID string `json:"client_id"`
		Stuck    bool   `json:"stuck"`
	} `json:"members"`
	Partitions []struct {
		Topic     string `json:"topic"`
		Partition int    `json:"partition"`
		Committed int64  `json:"committed"`
		Lag       int64  `json:"lag"`
		HeldBack  string `json:"held_back_by"`
		Stuck     bool   `json:"stuck"`
		Revoking  bool   `json:"revoking"`
	} `json:"partitions"`
}

func describedBy(t *testing.T, r *rig.Rig, group string) (described, error) {
	t.Helper()
	var d described
	res := r.Leat("group", "describe", group, "--rate-over", "0s", "-o", "json")
	if res.Code != 0 {
		return d, fmt.Errorf("%s", res)
	}
	return d, json.Unmarshal([]byte(res.Stdout), &d)
}

// TestSlowHandler: a record takes many session timeouts. Its member keeps what it
// holds, also what was revoked meanwhile, and is shown as stuck and as what holds the
// partition back; in the end it commits, hands over, and no record comes twice.
func TestSlowHandler(t *testing.T) {
	const session = 2 * time.Second
	r := start(t, rig.Options{})
	topic(t, r, "slow", 4)
	producer := newClient(t, r, "slow")
	fill(t, producer, "slow", 4, 20)
	var mu sync.Mutex
	seen := map[client.TopicPartition]map[int64]string{}
	finish := make(chan struct{})
	busy := make(chan struct{})
	var once sync.Once
	note := func(m *member, got []client.ConsumerRecord) {
		mu.Lock()
		defer mu.Unlock()
		for i := range got {
			tp := got[i].TopicPartition
			if seen[tp] == nil {
				seen[tp] = map[int64]string{}
			}
			if by, twice := seen[tp][got[i].Offset]; twice {
				t.Errorf("%v offset %d was given to %s and to %s", tp, got[i].Offset, by, m.name)
			}
			seen[tp][got[i].Offset] = m.name
		}
	}
	config := client.ConsumerConfig{Group: "slow", Topics: []string{"slow"}, SessionTimeout: session}
	slow := startMember(t, newClient(t, r, "sluggard"), "sluggard", memberOptions{config, func(m *member, got []client.ConsumerRecord) {
		note(m, got)
		once.Do(func() { close(busy) })
		<-finish
	}})
	var release sync.Once
	t.Cleanup(func() { release.Do(func() { close(finish) }) })
	<-busy
	began := time.Now()
	other := startMember(t, newClient(t, r, "other"), "other", memberOptions{config, note})
	mesh.Eventually(t, 2*limit, "the sluggard is shown as stuck", func() (bool, string) {
		d, err := describedBy(t, r, "slow")
		if err != nil {
			return false, err.Error()
		}
		stuck, held, revoking := false, false, 0
		for _, m := range d.Members {
			stuck = stuck || m.ClientID == "sluggard" && m.Stuck
			if m.ClientID == "other" && m.Stuck {
				t.Errorf("the other is shown as stuck: %+v", d)
			}
		}
		for _, p := range d.Partitions {
			held = held || p.Stuck && p.HeldBack == "application"
			if p.Revoking {
				revoking++
			}
		}
		return stuck && held && revoking == 2, fmt.Sprintf("%+v", d)
	})
	lasting(span(0, 10*time.Minute))
	t.Logf("shown as stuck after %v (session timeout %v)", time.Since(began).Round(time.Millisecond), session)
	if held := slow.has(); len(held) != 4 || len(other.has()) > 0 {
		t.Errorf("the sluggard holds %v, the other %v", held, other.has())
	}
	release.Do(func() { close(finish) })
	awaitHolding(t, 2, slow, other)
	mesh.Eventually(t, limit, "everything is read", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, offsets := range seen {
			n += len(offsets)
		}
		return n == 80, fmt.Sprint(n)
	})
	if _, _, lost := slow.counts(); lost > 0 {
		t.Errorf("the sluggard lost its membership %d times: %v", lost, slow.problems)
	}
}

// resetRow is a line of `leat group reset -o json`.
type resetPlan struct {
	Partitions []resetRow `json:"partitions"`
}

type resetRow struct {
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
	Old       int64  `json:"old"`
	New       int64  `json:"new"`
	Clamped   bool   `json:"clamped"`
	Error     *struct {
		Reason string `json:"reason"`
	} `json:"error"`
}

// TestResetUnderLoad: a group with members that read is reset. A dry run changes
// nothing; then just what was named is read again from just there, and the rest goes
// on. A partition that its member does not give up in time is refused by name, and
// stays as it was.
//
// case 29: nothing else moves a position.
func TestResetUnderLoad(t *testing.T) {
	const partitions = 4
	r := start(t, rig.Options{})
	topic(t, r, "reset", partitions)
	startLoad(t, r, "reset", 200)
	c := newClient(t, r, "reset")
	var mu sync.Mutex
	lowest, next, again := make([]int64, partitions), make([]int64, partitions), 0
	blocked := make(chan struct{})
	var block bool
	handle := func(_ *member, got []client.ConsumerRecord) {
		mu.Lock()
		for i := range got {
			n := got[i].Partition
			if lowest[n] < 0 || got[i].Offset < lowest[n] {
				lowest[n] = got[i].Offset
			}
			if got[i].Offset < next[n] {
				again++
			}
			next[n] = got[i].Offset + 1
		}
		wait := block
		mu.Unlock()
		if wait {
			<-blocked
		}
	}
	config := memberOptions{client.ConsumerConfig{Group: "reset", Topics: []string{"reset"}, AutoCommitInterval: 100 * time.Millisecond}, handle}
	a := startMember(t, c, "a", config)
	awaitHolding(t, partitions, a)
	b := startMember(t, c, "b", config)
	awaitHolding(t, partitions/2, a, b)
	beyond := func(offset int64) {
		t.Helper()
		mesh.Eventually(t, limit, fmt.Sprint("everybody reads beyond ", offset), func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return slices.Min(next) > offset, fmt.Sprint(next)
		})
	}
	beyond(60)
	forget := func() {
		mu.Lock()
		defer mu.Unlock()
		again = 0
		for n := range lowest {
			lowest[n] = -1
		}
	}
	reset := func(code int, args ...string) []resetRow {
		t.Helper()
		res := r.Leat(append([]string{"group", "reset", "reset", "-o", "json"}, args...)...)
		var plan resetPlan
		if err := json.Unmarshal([]byte(res.Stdout), &plan); err != nil || res.Code != code {
			t.Fatalf("%v; want exit code %d: %s", err, code, res)
		}
		return plan.Partitions
	}

	forget()
	for _, row := range reset(0, "--to-earliest", "--dry-run") {
		if row.New != 0 || row.Old < 1 || row.Error != nil {
			t.Errorf("the plan has %+v", row)
		}
	}
	beyond(90)
	mu.Lock()
	if slices.Min(lowest) < 30 {
		t.Errorf("a dry run led back to %v", lowest)
	}
	mu.Unlock()

	forget()
	for _, row := range reset(0, "--to-offset", "10", "--topic", "reset:0,3", "--execute") {
		if row.New != 10 || row.Error != nil || row.Partition != 0 && row.Partition != 3 {
			t.Errorf("the reset tells %+v", row)
		}
	}
	mesh.Eventually(t, limit, "partitions 0 and 3 are read again from offset 10", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return lowest[0] == 10 && lowest[3] == 10, fmt.Sprint(lowest)
	})
	beyond(100)
	mu.Lock()
	if lowest[1] < 60 || lowest[2] < 60 {
		t.Errorf("what was not named was led back: %v", lowest)
	}
	block = true
	mu.Unlock()

	release := sync.OnceFunc(func() {
		mu.Lock()
		block = false
		mu.Unlock()
		close(blocked)
	})
	t.Cleanup(release)
	for _, row := range reset(1, "--to-earliest", "--timeout", "1s", "--execute") {
		if row.Error == nil || row.Error.Reason != "REVOCATION_TIMEOUT" || row.New == 0 {
			t.Errorf("a member that is at work gave a partition up: %+v", row)
		}
	}
	forget()
	release()
	beyond(150)
	mu.Lock()
	defer mu.Unlock()
	// The member keeps it in a tenure of its own: what it had in hand, whose commit is
	// refused as stale, comes again.
	if slices.Min(lowest) < 60 {
		t.Errorf("what was refused was led back to %v; %d records came again", lowest, again)
	}
	for _, m := range []*member{a, b} {
		if _, _, lost := m.counts(); lost > 0 {
			t.Errorf("%s lost its membership %d times: %v", m.name, lost, m.problems)
		}
	}
}
