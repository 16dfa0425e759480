package group

import (
	"maps"
	"slices"
	"time"
)

// StartKind says where a partition without a committed offset starts.
type StartKind uint8

// The kinds of starts.
const (
	// StartLeft: the coordinator commits nothing; the member finds its start, or has
	// an error under the policy none.
	StartLeft StartKind = iota
	// StartEarliest is the log start.
	StartEarliest
	// StartLatest is the visible end.
	StartLatest
	// StartTimestamp is the first record of StartPolicy.TimestampMs or later, without
	// one the visible end.
	StartTimestamp
	// StartDuration is the first record no older than StartPolicy.Back, without one
	// the visible end.
	StartDuration
)

// StartPolicy says where a partition without a committed offset starts.
type StartPolicy struct {
	Kind StartKind
	// TimestampMs is in milliseconds since the epoch; for StartTimestamp.
	TimestampMs int64
	// Back is for StartDuration; above 0.
	Back time.Duration
}

// StartResult is the start of one partition, or why it is not known.
type StartResult struct {
	Part
	Next        int64
	LeaderEpoch int32
	// Failed says, for people, why there is none; empty: there is. It is tried again.
	Failed string
}

// maxStartDoublings bounds how often the pause between tries doubles.
const maxStartDoublings = 4

// maxStartParts is how many partitions one question is about at most.
const maxStartParts = 1000

// starting is a partition that somebody should hold and whose start is not known.
type starting struct {
	policy StartPolicy
	job    uint64 // that asks; 0: to be asked
	tries  int    // that failed
	failed string // why the last try failed; empty: it did not
}

// needsStart says whether a partition must not be given to a member yet, because the
// offset at which it starts has to be committed first, and asks for it.
func (s *State) needsStart(g *group, m *member, p Part) bool {
	if _, ok := g.offsets[p]; ok || m.start.Kind == StartLeft || s.deleted[p.Topic] {
		delete(g.starts, p)
		return false
	}
	if a := g.starts[p]; a == nil || a.policy != m.start {
		g.starts[p] = &starting{policy: m.start}
		s.asking[g.name] = true
	}
	return true
}

// askStarts asks for the starts that are due, in as few effects as their policies and
// their number allow.
func (s *State) askStarts(g *group) {
	jobs := make(map[StartPolicy]*ResolveStart)
	var order []*ResolveStart
	for _, p := range sortedParts(g.starts) {
		a := g.starts[p]
		if a.job != 0 {
			continue
		}
		e := jobs[a.policy]
		if e == nil || len(e.Parts) == maxStartParts {
			s.lastJob++
			e = &ResolveStart{Job: s.lastJob, Group: g.name, Policy: a.policy}
			jobs[a.policy] = e
			order = append(order, e)
		}
		a.job = e.Job
		e.Parts = append(e.Parts, p)
		e.Tries = max(e.Tries, a.tries)
	}
	for _, e := range order {
		s.out = append(s.out, *e)
	}
}

// start takes in what was found. The offsets are written before anybody is given
// their partitions. A partition that went to a member with another policy in the
// meantime has been asked for again, under another job.
func (s *State) start(now Now, e Start) {
	g := s.groups[e.Group]
	if s.phase != serving || g == nil {
		return
	}
	ready := make(map[string]bool)
	for _, r := range e.Results {
		a := g.starts[r.Part]
		if a == nil || a.job != e.Job {
			continue
		}
		id := g.wanted[r.Part]
		if id == "" {
			delete(g.starts, r.Part)
			continue
		}
		if r.Failed != "" {
			a.job, a.failed = 0, r.Failed
			if at := now.Mono + s.cfg.StartDelay<<min(a.tries, maxStartDoublings); g.startsAt == 0 || at < g.startsAt {
				s.due(&g.startsAt, at)
			}
			a.tries++
			ready[id] = true
			continue
		}
		delete(g.starts, r.Part)
		if _, ok := g.offsets[r.Part]; !ok && !s.deleted[r.Part.Topic] {
			s.setOffset(g, r.Part, OffsetValue{NextOffset: r.Next, LeaderEpoch: r.LeaderEpoch, CommitMs: now.WallMs})
		}
		ready[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(ready)) {
		s.reconcile(now, g, g.members[id], "it is known where its partitions start")
	}
}

// retryStarts asks again for what failed, by the policy of whoever should hold it now.
func (s *State) retryStarts(g *group) {
	g.startsAt = 0
	for _, p := range sortedParts(g.starts) {
		m := g.members[g.wanted[p]]
		if a := g.starts[p]; m == nil || m.start.Kind == StartLeft {
			delete(g.starts, p)
		} else if a.job == 0 {
			a.policy = m.start
		}
	}
	s.asking[g.name] = true
}

func (s *State) setOffset(g *group, p Part, v OffsetValue) {
	g.offsets[p] = v
	s.write(offsetKey(g.name, p), v)
}
