package simulation

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	simSeed     = flag.Uint64("sim.seed", 0, "replay the walk of this seed and tell its story; with -sim.seeds or -sim.duration begin there")
	simSeeds    = flag.Int("sim.seeds", 0, "run so many seeds")
	simDuration = flag.Duration("sim.duration", 0, "run seeds for so long")
	simStory    = flag.Int("sim.story", 150, "how many of the last lines of a story to show; 0: all")
	simWorkers  = flag.Int("sim.workers", 2, "how many walks run at a time")
	simFailures = flag.Int("sim.failures", 5, "stop after so many walks that failed")
	simShrink   = flag.Bool("sim.shrink", true, "shrink the first walk that fails")
)

// fixedSeeds is how many seeds every run of the tests takes, and fixedLimit how long at
// most.
const (
	fixedSeeds = 300
	fixedLimit = 20 * time.Second
)

// TestSimulation runs walks and looks for anything that must not be.
func TestSimulation(t *testing.T) {
	switch {
	case *simSeed != 0 && *simSeeds == 0 && *simDuration == 0:
		replay(t, *simSeed)
		return
	case *simSeeds == 0 && *simDuration == 0:
		*simSeeds, *simDuration = fixedSeeds, fixedLimit
	}
	r := runMany(max(*simSeed, 1), *simSeeds, *simDuration)
	r.print(t)
	r.checkCounts(t)
	for _, f := range r.failed {
		t.Errorf("seed %d: %v", f.seed, f.failure)
	}
	if len(r.failed) > 0 && *simShrink {
		tell(t, r.failed[0].seed)
	}
	verdict := "nothing was found"
	if len(r.failed) > 0 {
		verdict = fmt.Sprintf("%d failed, the first with -sim.seed=%d", len(r.failed), r.failed[0].seed)
	}
	fmt.Printf("%d seeds in %v (%.0f a minute), %d events: %s\n", r.ran, r.took.Round(time.Millisecond), float64(r.ran)/r.took.Minutes(), r.counts["events"], verdict)
}

// TestReplaysExactly runs walks twice: not a word of their stories may differ.
func TestReplaysExactly(t *testing.T) {
	for seed := uint64(1); seed <= 8; seed++ {
		a, b := run(seed, nil, map[string]int{}, true), run(seed, nil, map[string]int{}, true)
		if len(a.story) < 100 {
			t.Errorf("seed %d: a story of %d lines", seed, len(a.story))
		}
		for i := range min(len(a.story), len(b.story)) {
			if a.story[i] != b.story[i] {
				t.Fatalf("seed %d, line %d:\n%s\n%s", seed, i, a.story[i], b.story[i])
			}
		}
		if len(a.story) != len(b.story) {
			t.Errorf("seed %d: %d lines and %d", seed, len(a.story), len(b.story))
		}
	}
}

type failed struct {
	seed    uint64
	failure *failure
}

// results are those of many walks.
type results struct {
	ran    int
	took   time.Duration
	counts map[string]int
	failed []failed
}

// runMany runs walks side by side, each in one goroutine.
func runMany(first uint64, seeds int, duration time.Duration) *results {
	began := time.Now()
	r := &results{counts: map[string]int{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := first
	take := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(r.failed) >= *simFailures || seeds > 0 && next >= first+uint64(seeds) || duration > 0 && time.Since(began) > duration {
			return 0, false
		}
		next++
		return next - 1, true
	}
	for range *simWorkers {
		wg.Go(func() {
			for {
				seed, ok := take()
				if !ok {
					return
				}
				w := run(seed, nil, map[string]int{}, false)
				mu.Lock()
				r.ran++
				for k, v := range w.counts {
					r.counts[k] += v
				}
				r.counts["events"] += w.steps
				if w.failure != nil {
					r.failed = append(r.failed, failed{seed, w.failure})
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(r.failed, func(a, b failed) int { return int(int64(a.seed) - int64(b.seed)) })
	r.took = time.Since(began)
	return r
}

// manySeeds is from how many walks on each of mustHappen must have happened.
const manySeeds = 5000

// mustHappen are the faults and transitions that a run of many walks comes by. One
// that does not proves nothing about them.
func mustHappen() []string {
	return []string{
		"election: first", "election: from the ISR", "election: from the ELR", "election: unclean", "election: longest after power cuts under os",
		"truncation", "log begun anew", "log begun within a batch", "log start moved", "ISR shrunk", "ISR grown", "replica kept in the ELR",
		"replica barred", "bad copy replaced", "replica removed", "reassignment ended", "preferred leader moved", "unreachable leader replaced",
		"broker fenced", "broker back without a vouch", "leave granted", "unknown transaction settled", "zombie write rejected", "etcd conflict", "transactions of a batch under way at once", "command of a batch planned alone",
		"late transaction applied", "late transaction refused", "stale proposal", "duplicate answered", "METADATA_REGRESSED", "restored etcd noticed by all",
		"answer: refused, NOT_ENOUGH_REPLICAS", "answer: unknown, NOT_ENOUGH_REPLICAS_AFTER_APPEND", "answer: unknown, DEADLINE_EXCEEDED", "answer: unknown, NOT_LEADER",
		"read served", "read refused: OFFSET_NOT_AVAILABLE", "record acknowledged", "batch committed", "torn tail cut", "damage found while reading",
		"verdict: corrupt", "verdict: missing", "lease ran out", "disk offline",
		"fault: process crash", "fault: restart inside the lease", "fault: power cut", "fault: power cut in the middle of an operation", "fault: power cut of the whole mesh",
		"fault: a write or sync fails", "fault: disk full", "append refused for want of room", "operation waits for room", "answer: refused, DISK_FULL", "upkeep without room", "fault: disk lost", "fault: bit flipped", "fault: disk hangs", "fault: process paused", "fault: cut off", "fault: stream broken",
		"fault: etcd away", "fault: etcd restored", "fault: lease lost", "fault: controller crash", "fault: controller paused",
		"message lost", "message repeated", "stream message lost", "stream message repeated", "stream message reordered", "etcd transaction without an answer",
		"admin: alter min.insync.replicas", "admin: reassign", "admin: cancel reassignment", "admin: elect preferred", "admin: elect unclean", "admin: false fencing",
		"log compacted", "records compacted away", "tombstones removed", "compacted copy compared", "gap read over", "compaction beside a copy that lags", "producers sent to a copy that begins anew",
		"segments retired", "topic deleted", "topic made again", "replica deleted with its topic", "deletion confirmed", "name of a folder taken by a deleted topic",
		"answer: unknown, TOPIC_DELETED", "interrupted deletion ended", "walk ended whole",
		"shard taken over", "shard fenced", "shard loaded", "shard abandoned", "shard append unknown or fenced", "member joined or resumed", "member fenced",
		"partition assigned", "offset committed", "offset reset", "starts answered", "offsets fetched", "ping confirmed", "fault: coordinator crash", "fault: coordinator paused", "fault: member crash",
	}
}

// checkCounts fails a run of many walks that never came by one of the places that
// count.
func (r *results) checkCounts(t *testing.T) {
	if r.ran < manySeeds || len(r.failed) > 0 {
		return
	}
	for _, what := range mustHappen() {
		if r.counts[what] == 0 {
			t.Errorf("%d walks never saw: %s", r.ran, what)
		}
	}
}

func (r *results) print(t *testing.T) {
	if !testing.Verbose() {
		return
	}
	var names []string
	for k := range r.counts {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		fmt.Printf("  %9d  %s\n", r.counts[k], k)
	}
}

// replay runs one walk and tells it.
func replay(t *testing.T, seed uint64) {
	w := run(seed, nil, map[string]int{}, true)
	show(w.story)
	verdict := "nothing was found"
	if w.failure != nil {
		verdict = w.failure.String()
		t.Errorf("seed %d: %v", seed, w.failure)
		if *simShrink {
			tell(t, seed)
		}
	}
	fmt.Printf("1 seed, %d events: %s\n", w.steps, verdict)
}

func show(story []string) {
	if n := *simStory; n > 0 && len(story) > n {
		fmt.Printf("… %d lines before\n", len(story)-n)
		story = story[len(story)-n:]
	}
	fmt.Fprintln(os.Stdout, strings.Join(story, "\n"))
}

// tell shrinks a failing walk and tells what is left of it.
func tell(t *testing.T, seed uint64) {
	w := run(seed, nil, map[string]int{}, false)
	if w.failure == nil {
		t.Errorf("seed %d fails no more: the simulation is not deterministic", seed)
		return
	}
	steps := shrink(w)
	w = run(seed, steps, map[string]int{}, true)
	fmt.Printf("seed %d, shrunk to %d steps:\n", seed, len(steps))
	show(w.story)
}
