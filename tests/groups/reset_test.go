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

// resetRow is a partition in `leat group reset -o json`.
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

// reset runs `leat group reset` and demands an exit code.
func reset(t *testing.T, r *rig.Rig, code int, group string, args ...string) []resetRow {
	t.Helper()
	res := r.Leat(append([]string{"group", "reset", group, "-o", "json"}, args...)...)
	var plan struct {
		Partitions []resetRow `json:"partitions"`
	}
	if err := json.Unmarshal([]byte(res.Stdout), &plan); err != nil || res.Code != code {
		t.Fatalf("%v; want exit code %d: %s", err, code, res)
	}
	return plan.Partitions
}

// reading is what members are given, by partition.
type reading struct {
	t      *testing.T
	mu     sync.Mutex
	lowest []int64 // since forget; -1: nothing
	next   []int64
	again  int // records that came a second time, since forget
	block  chan struct{}
	stands int // handlers that wait for block
}

func (g *reading) handle(_ *member, got []client.ConsumerRecord) {
	g.mu.Lock()
	for i := range got {
		n := got[i].Partition
		if g.lowest[n] < 0 || got[i].Offset < g.lowest[n] {
			g.lowest[n] = got[i].Offset
		}
		if got[i].Offset < g.next[n] {
			g.again++
		}
		g.next[n] = got[i].Offset + 1
	}
	wait := g.block
	if wait != nil {
		g.stands++
	}
	g.mu.Unlock()
	if wait != nil {
		<-wait
	}
}

// hold makes handlers wait until the function that it returns is called. When it
// returns, the handlers of so many members do.
func (g *reading) hold(members int) func() {
	g.t.Helper()
	wait := make(chan struct{})
	g.mu.Lock()
	g.block, g.stands = wait, 0
	g.mu.Unlock()
	release := sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.block = nil
		close(wait)
	})
	g.t.Cleanup(release)
	mesh.Eventually(g.t, limit, "every member is at work", func() (bool, string) {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.stands == members, fmt.Sprint(g.stands)
	})
	return release
}

// forget begins anew to look for the lowest offsets.
func (g *reading) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.again = 0
	for n := range g.lowest {
		g.lowest[n] = -1
	}
}

// beyond waits until every partition is read beyond an offset.
func (g *reading) beyond(offset int64) {
	g.t.Helper()
	mesh.Eventually(g.t, limit, fmt.Sprint("everything is read beyond ", offset), func() (bool, string) {
		g.mu.Lock()
		defer g.mu.Unlock()
		return slices.Min(g.next) > offset, fmt.Sprint(g.next)
	})
}

// notBelow demands that since forget nothing below an offset was given of partitions.
func (g *reading) notBelow(offset int64, why string, partitions ...int) {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range partitions {
		if g.lowest[n] < offset {
			g.t.Errorf("%s: partition %d was led back to %d; %d records came again", why, n, g.lowest[n], g.again)
		}
	}
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
	g := &reading{t: t, lowest: make([]int64, partitions), next: make([]int64, partitions)}
	config := memberOptions{client.ConsumerConfig{Group: "reset", Topics: []string{"reset"}, AutoCommitInterval: 100 * time.Millisecond}, g.handle}
	a := startMember(t, c, "a", config)
	awaitHolding(t, partitions, a)
	b := startMember(t, c, "b", config)
	awaitHolding(t, partitions/2, a, b)
	committed := func(offset int64) { // by what a partition goes on if it is given anew
		t.Helper()
		mesh.Eventually(t, limit, fmt.Sprint("everything is committed beyond ", offset), func() (bool, string) {
			got, err := c.FetchOffsets(within(t, limit), "reset", nil)
			return err == nil && len(got) == partitions && slices.Min(nexts(got)) > offset, fmt.Sprint(nexts(got), err)
		})
	}
	g.beyond(60)
	committed(0)

	g.forget()
	for _, row := range reset(t, r, 0, "reset", "--to-earliest", "--dry-run") {
		if row.New != 0 || row.Old < 1 || row.Error != nil {
			t.Errorf("the plan has %+v", row)
		}
	}
	g.beyond(90)
	g.notBelow(30, "a dry run", 0, 1, 2, 3)

	g.forget()
	for _, row := range reset(t, r, 0, "reset", "--to-offset", "10", "--topic", "reset:0,3", "--execute") {
		if row.New != 10 || row.Error != nil || row.Partition != 0 && row.Partition != 3 {
			t.Errorf("the reset tells %+v", row)
		}
	}
	mesh.Eventually(t, limit, "partitions 0 and 3 are read again from offset 10", func() (bool, string) {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.lowest[0] == 10 && g.lowest[3] == 10, fmt.Sprint(g.lowest)
	})
	g.beyond(100)
	g.notBelow(60, "not named", 1, 2)

	committed(100)
	release := g.hold(2)
	for _, row := range reset(t, r, 1, "reset", "--to-earliest", "--timeout", "1s", "--execute") {
		if row.Error == nil || row.Error.Reason != "REVOCATION_TIMEOUT" || row.New == 0 {
			t.Errorf("a member that is at work gave a partition up: %+v", row)
		}
	}
	g.forget()
	release()
	g.beyond(150)
	// The member keeps it in a tenure of its own: what it had in hand, whose commit is
	// refused as stale, comes again.
	g.notBelow(60, "refused", 0, 1, 2, 3)
	for _, m := range []*member{a, b} {
		if _, _, lost := m.counts(); lost > 0 {
			t.Errorf("%s lost its membership %d times: %v", m.name, lost, m.problems)
		}
	}
}
