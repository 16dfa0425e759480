package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leat-io/leat/libs/failpoint"
)

// summary is what a run comes to.
type summary struct {
	Seed      uint64
	Duration  time.Duration
	Quiet     time.Duration
	Processes []string
	Struck    []struck
	Seconds   []second
	Marks     []mark
	Problems  []string
	Producers []producerLine
	Acked     int
	Read      int
	Longest   time.Duration
	// NoSmallDisk says why no disk was really filled; empty: one was.
	NoSmallDisk string

	// Counts, in the order in which they are told.
	Transitions, Faults, Failpoints []count

	GroupGiven, GroupAgain, GroupAssigned, GroupRevoked int
	GroupFailures                                       map[string]int
}

// count is how often something was.
type count struct {
	Name   string
	N      int
	Needed bool
}

type producerLine struct {
	Name        string
	Sent, Acked int
	Failures    map[string]int
}

func (n *nemesis) summary(seed uint64) *summary {
	h, g := n.l.h, n.l.group
	s := &summary{
		Seed: seed, Duration: time.Since(h.began), Quiet: n.quiet, Processes: n.r.Names(), Struck: n.done, Longest: n.longest, Acked: h.total(),
	}
	if err := n.r.SmallDisk(smallDisk); err != nil {
		s.NoSmallDisk = err.Error()
	}
	totals := n.watch.totals()
	for _, c := range n.watch.counters {
		s.Transitions = append(s.Transitions, count{c.name, totals[c.name], c.needed})
	}
	seen := map[string]bool{}
	for _, f := range catalogue() {
		if !seen[f.name] {
			seen[f.name] = true
			s.Faults = append(s.Faults, count{f.name, n.byFault[f.name], f.name != fullDiskFault || s.NoSmallDisk == ""})
		}
	}
	for _, name := range failpoint.Names() {
		s.Failpoints = append(s.Failpoints, count{name, n.failpoints[name], true})
	}
	h.mu.Lock()
	s.Read, s.Seconds = h.read, slices.Clone(h.seconds)
	for _, p := range h.producers {
		s.Producers = append(s.Producers, producerLine{p.name, len(p.answers) - 1, p.acked, p.failures})
	}
	h.mu.Unlock()
	c := g.Counts()
	s.GroupGiven, s.GroupAgain, s.GroupAssigned, s.GroupRevoked, s.GroupFailures = c.Delivered, c.Repeated, c.Assigned, c.Revoked, c.Failures
	n.watch.mu.Lock()
	s.Marks = slices.Clone(n.watch.marks)
	n.watch.mu.Unlock()
	return s
}

// vacuous lists what a full run has to have seen and has not.
func (s *summary) vacuous() []string {
	var missing []string
	for _, group := range [][]count{s.Transitions, s.Faults, s.Failpoints} {
		for _, c := range group {
			if c.Needed && c.N == 0 {
				missing = append(missing, "none: "+c.Name)
			}
		}
	}
	if s.Acked < wanted {
		missing = append(missing, fmt.Sprintf("%d records were acknowledged, fewer than %d", s.Acked, wanted))
	}
	return missing
}

// words is the report in words.
func (s *summary) words() string {
	var b strings.Builder
	verdict := "nothing was found"
	if len(s.Problems) > 0 {
		verdict = fmt.Sprintf("%d problems", len(s.Problems))
	}
	fmt.Fprintf(&b, "Faults, seed %d: %s.\n", s.Seed, verdict)
	fmt.Fprintf(&b, "%v in all, %v of it quiet on purpose; %d faults; after each, all went on within %v.\n",
		s.Duration.Round(time.Second), s.Quiet.Round(time.Second), len(s.Struck), s.Longest.Round(10*time.Millisecond))
	fmt.Fprintf(&b, "%d records acknowledged (%.0f a second), %d looked at by readers; the group was given %d, %d of them again, in %d assignments and %d revocations.\n",
		s.Acked, float64(s.Acked)/s.Duration.Seconds(), s.Read, s.GroupGiven, s.GroupAgain, s.GroupAssigned, s.GroupRevoked)
	for _, p := range s.Producers {
		fmt.Fprintf(&b, "  producer %s: %d sent, %d acknowledged", p.Name, p.Sent, p.Acked)
		for _, why := range sortedKeys(p.Failures) {
			fmt.Fprintf(&b, ", %d %s", p.Failures[why], why)
		}
		b.WriteByte('\n')
	}
	if len(s.GroupFailures) > 0 {
		b.WriteString("  the group's members were told:")
		for _, why := range sortedKeys(s.GroupFailures) {
			fmt.Fprintf(&b, " %d %s", s.GroupFailures[why], why)
		}
		b.WriteByte('\n')
	}
	for _, part := range []struct {
		title string
		list  []count
	}{{"Transitions", s.Transitions}, {"Faults", s.Faults}, {"Failpoints, times fired", s.Failpoints}} {
		fmt.Fprintf(&b, "%s:", part.title)
		none := 0
		for _, c := range part.list {
			if c.N == 0 {
				none++
				continue
			}
			fmt.Fprintf(&b, " %s %d;", c.Name, c.N)
		}
		fmt.Fprintf(&b, " none of %d others.\n", none)
	}
	if len(s.Struck) > 0 {
		slowest := slices.MaxFunc(s.Struck, func(a, b struck) int { return int(max(a.During, a.After) - max(b.During, b.After)) })
		fmt.Fprintf(&b, "Slowest to go on: %s (during: %v, after: %v).\n", slowest.What, slowest.During.Round(10*time.Millisecond), slowest.After.Round(10*time.Millisecond))
	}
	if s.NoSmallDisk != "" {
		fmt.Fprintf(&b, "No disk was really filled, since none could be mounted (%s): full disks were made of failpoints only.\n", s.NoSmallDisk)
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "PROBLEM %s\n", p)
	}
	return b.String()
}

// write writes the report in words and as a page, and returns the page's path.
func (s *summary) write(dir string) (string, error) {
	page := filepath.Join(dir, "report.html")
	if err := os.WriteFile(filepath.Join(dir, "report.txt"), []byte(s.words()), 0o644); err != nil {
		return page, err
	}
	text, err := s.page()
	if err != nil {
		return page, err
	}
	return page, os.WriteFile(page, text, 0o644)
}
