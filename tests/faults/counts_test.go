package faults

import (
	"bufio"
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leat-io/leat/tests/internal/rig"
)

// counter is something that happened, counted from metrics or logs.
type counter struct {
	name string
	// metric begins the lines of the metrics to add up; log matches lines of logs.
	metric, log *regexp.Regexp
	// needed: a full run without it is vacuous.
	needed bool
}

func counters() []counter {
	metric := func(name, pattern string, needed bool) counter {
		return counter{name: name, metric: regexp.MustCompile("^" + pattern), needed: needed}
	}
	log := func(name, pattern string, needed bool) counter {
		return counter{name: name, log: regexp.MustCompile(pattern), needed: needed}
	}
	return []counter{
		metric("elections from the ISR", `leat_controller_elections_total\{kind="(isr|preferred)"\}`, true),
		metric("elections from the ELR", `leat_controller_elections_total\{kind="elr"\}`, true),
		metric("unclean elections", `leat_controller_elections_total\{kind="(unclean|longest)"\}`, true),
		log("controllers elected", `"?elected as controller`, true),
		log("truncations", `cuts off what the leader does not have|they are cut off here`, true),
		log("replicas begun anew", `a replica begins anew|made a replica anew`, false),
		metric("ISR shrinks", `leat_controller_isr_changes_total\{kind="shrink"\}`, true),
		metric("ISR growths", `leat_controller_isr_changes_total\{kind="expand"\}`, true),
		metric("unknown transactions", `leat_controller_unknown_transactions_total`, true),
		// A write of a controller or coordinator that another one has taken the place of.
		{
			name: "zombie writes rejected", needed: true, log: regexp.MustCompile(`stepping down.*no longer leads`),
			metric: regexp.MustCompile(`^leat_broker_produce_failures_total\{reason="SHARD_FENCED"\}`),
		},
		metric("writes to deposed leaders refused", `leat_broker_produce_failures_total\{reason="NOT_LEADER"\}`, true),
		log("controllers deposed", `no longer the controller`, false),
		log("fencings", `msg="broker fenced"`, true),
		log("shard take-overs", `the shard is loaded`, true),
		metric("rebalances", `leat_coordinator_rebalances_total`, true),
		metric("duplicates not appended", `leat_broker_duplicate_batches_total`, true),
		log("disks failed", `a disk failed`, false),
		log("disks full", `a disk is full`, false),
		log("damaged logs", `a log is damaged`, false),
	}
}

// watch adds up the counters of all processes over all their lives.
type watch struct {
	r        *rig.Rig
	counters []counter

	mu    sync.Mutex
	first map[string]int                // by counter, before the first fault
	sums  map[string]float64            // by counter, of lives that ended
	last  map[string]map[string]float64 // by process and counter, of the present life
	marks []mark
	began time.Time
}

// mark is a change of a counter at a time, for the timeline.
type mark struct {
	At   time.Duration
	What string
	N    int
}

func newWatch(r *rig.Rig, began time.Time) *watch {
	return &watch{r: r, counters: counters(), sums: map[string]float64{}, last: map[string]map[string]float64{}, began: began}
}

// run looks every two seconds until the context ends.
func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.look(ctx, w.r.Names(rig.Controller, rig.Broker, rig.Coordinator, rig.Gateway)...)
		}
	}
}

// look reads the metrics of processes now, as before they are killed.
func (w *watch) look(ctx context.Context, names ...string) {
	var wait sync.WaitGroup
	for _, name := range names {
		if strings.HasPrefix(name, rig.Etcd) || !w.r.Running(name) {
			continue
		}
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if text := w.r.Metrics(ctx, name); text != "" {
				w.note(name, text)
			}
		})
	}
	wait.Wait()
}

func (w *watch) note(name, text string) {
	now := w.parse(text)
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.last[name]
	// Process start times never go back: another life begins at zero again.
	if before != nil && before[startTime] != now[startTime] {
		for what, n := range before {
			w.sums[what] += n
		}
		before = nil
	}
	for what, n := range now {
		if more := int(n - before[what]); more > 0 && what != startTime {
			w.marks = append(w.marks, mark{time.Since(w.began), what, more})
		}
	}
	w.last[name] = now
}

const startTime = "start"

func (w *watch) parse(text string) map[string]float64 {
	found := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, "process_start_time_seconds "); ok {
			found[startTime], _ = strconv.ParseFloat(rest, 64)
			continue
		}
		if !strings.HasPrefix(line, "leat_") {
			continue
		}
		for _, c := range w.counters {
			if c.metric != nil && c.metric.MatchString(line) {
				if n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil {
					found[c.name] += n
				}
			}
		}
	}
	return found
}

// start leaves out what was counted so far: the mesh has come up.
func (w *watch) start() {
	w.look(context.Background(), w.r.Names()...)
	w.first = w.totals()
}

// totals adds up everything since the start, logs included.
func (w *watch) totals() map[string]int {
	w.mu.Lock()
	sums := maps.Clone(w.sums)
	for _, life := range w.last {
		for what, n := range life {
			sums[what] += n
		}
	}
	w.mu.Unlock()
	totals := map[string]int{}
	logs := w.r.Logs()
	for _, c := range w.counters {
		n := int(sums[c.name])
		for _, text := range logs {
			if c.log != nil {
				n += len(c.log.FindAllStringIndex(text, -1))
			}
		}
		totals[c.name] = n - w.first[c.name]
	}
	return totals
}

// sortedKeys are the keys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
