package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/leat-io/leat/libs/core/cluster"
)

// ElectionKind says out of what a leader was elected.
type ElectionKind string

// The kinds of elections.
const (
	// ElectedFirst: the first leader of a new partition.
	ElectedFirst ElectionKind = "first"
	// ElectedISR: a member of the ISR.
	ElectedISR ElectionKind = "isr"
	// ElectedELR: a member of the ELR, the ISR having none that lives.
	ElectedELR ElectionKind = "elr"
	// ElectedPreferred: the preferred leader, from within the ISR.
	ElectedPreferred ElectionKind = "preferred"
	// ElectedLongest: with durability=os, the longest of members that all lost what
	// the page cache had.
	ElectedLongest ElectionKind = "longest"
	// ElectedUnclean: another replica; acknowledged records may be lost.
	ElectedUnclean ElectionKind = "unclean"
)

// ElectionKinds lists the kinds.
func ElectionKinds() []ElectionKind {
	return []ElectionKind{ElectedFirst, ElectedISR, ElectedELR, ElectedPreferred, ElectedLongest, ElectedUnclean}
}

// Counts is what a controller has done since it started.
type Counts struct {
	Elections  map[ElectionKind]int64 // leaders elected
	Leaderless int64                  // partitions that lost their leader without another
	ISRShrinks int64                  // records written with a smaller ISR
	ISRExpands int64                  // records written with a larger ISR
	Fencings   int64                  // broker records fenced
	Unknown    int64                  // transactions with an unknown outcome
	Conflicts  int64                  // plans that a changed record made obsolete
}

// stats counts. Safe for concurrent use.
type stats struct {
	mu     sync.Mutex
	counts Counts
}

func newStats() *stats {
	s := &stats{counts: Counts{Elections: map[ElectionKind]int64{}}}
	for _, k := range ElectionKinds() {
		s.counts.Elections[k] = 0
	}
	return s
}

// Counts tells what this controller has done since it started.
func (l *Loop) Counts() Counts {
	l.stats.mu.Lock()
	defer l.stats.mu.Unlock()
	c := l.stats.counts
	c.Elections = maps.Clone(c.Elections)
	return c
}

func (s *stats) add(change func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.counts)
}

// effects is what a command's plans bring about, over its attempts.
type effects struct {
	preferred  bool // the command elects preferred leaders
	partitions map[cluster.PartitionID]effect
	fenced     map[int32]int64 // brokers, by the revision expected of their record
}

// effect is a partition's change.
type effect struct {
	topic            string
	kind             ElectionKind // empty: no election
	from, to         cluster.Process
	epoch            int32
	partEpoch        int64
	lost             bool // the leader is gone, and nobody leads
	shrinks, expands bool
}

func newEffects(c Command) *effects {
	return &effects{preferred: c.Preferred, partitions: map[cluster.PartitionID]effect{}, fenced: map[int32]int64{}}
}

// note takes in what a plan is about to change.
func (e *effects) note(state *cluster.State, plan cluster.Plan) {
	for _, c := range cluster.LeaderChanges(state, plan) {
		e.partitions[c.ID] = e.leader(state, c)
	}
	for _, stage := range plan.Stages {
		for _, w := range stage {
			switch next := w.Record.(type) {
			case cluster.Partition:
				e.members(state, next)
			case cluster.Broker:
				if old := state.Broker(next.Process.ID); next.Fenced && old != nil && !old.Value.Fenced {
					e.fenced[next.Process.ID] = w.Expect
				}
			}
		}
	}
}

func (e *effects) leader(state *cluster.State, c cluster.LeaderChange) effect {
	change := effect{topic: c.Topic, from: c.From, to: c.To, epoch: c.Epoch, lost: c.To.IsZero()}
	switch old := state.Partition(c.ID.Topic, c.ID.Number); {
	case change.lost:
	case c.First:
		change.kind = ElectedFirst
	case c.Unclean:
		change.kind = ElectedUnclean
	case c.Longest:
		change.kind = ElectedLongest
	case e.preferred:
		change.kind = ElectedPreferred
	case old != nil && !slices.Contains(old.Value.ISR, c.To.ID):
		change.kind = ElectedELR
	default:
		change.kind = ElectedISR
	}
	return change
}

func (e *effects) members(state *cluster.State, next cluster.Partition) {
	old := state.Partition(next.Topic, next.Number)
	if old == nil {
		return
	}
	id := cluster.PartitionID{Topic: next.Topic, Number: next.Number}
	change := e.partitions[id]
	change.partEpoch = next.PartitionEpoch
	change.shrinks = slices.ContainsFunc(old.Value.ISR, func(b int32) bool { return !slices.Contains(next.ISR, b) })
	change.expands = slices.ContainsFunc(next.ISR, func(b int32) bool { return !slices.Contains(old.Value.ISR, b) })
	e.partitions[id] = change
}

// tally counts what has taken place by now, and tells of the elections in one line.
func (t *tenure) tally(c Command, e *effects, revision int64) {
	kinds := map[ElectionKind]int64{}
	var lost, shrinks, expands, fenced int64
	var sample []string
	from := map[int32]bool{}
	t.loop.cfg.Store.View(func(state *cluster.State, _ int64) {
		for id, change := range e.partitions {
			now := state.Partition(id.Topic, id.Number)
			if now == nil || now.Value.PartitionEpoch < change.partEpoch {
				continue // planned, and not written by the attempt that succeeded
			}
			if change.shrinks {
				shrinks++
			}
			if change.expands {
				expands++
			}
			switch {
			case change.lost:
				lost++
			case change.kind != "":
				kinds[change.kind]++
			default:
				continue
			}
			if !change.from.IsZero() {
				from[change.from.ID] = true
			}
			sample = append(sample, fmt.Sprintf("%s-%d: %d to %d", change.topic, id.Number, change.from.ID, change.to.ID))
		}
		for broker, expected := range e.fenced {
			if b := state.Broker(broker); b != nil && b.Mod > expected {
				fenced++
			}
		}
	})
	t.loop.stats.add(func(counts *Counts) {
		for k, n := range kinds {
			counts.Elections[k] += n
		}
		counts.Leaderless += lost
		counts.ISRShrinks += shrinks
		counts.ISRExpands += expands
		counts.Fencings += fenced
	})
	t.tell(c, kinds, lost, sample, slices.Sorted(maps.Keys(from)), revision)
}

// maxSample bounds the partitions that a line names.
const maxSample = 8

// tell logs a batch of elections.
func (t *tenure) tell(c Command, kinds map[ElectionKind]int64, lost int64, sample []string, from []int32, revision int64) {
	if len(sample) == 0 {
		return
	}
	slices.Sort(sample)
	args := []any{"count", len(sample), "cause", cmp.Or(c.Cause, c.Name)}
	for _, k := range ElectionKinds() {
		if kinds[k] > 0 {
			args = append(args, string(k), kinds[k])
		}
	}
	if lost > 0 {
		args = append(args, "leaderless", lost)
	}
	if len(from) > 0 {
		args = append(args, "from_brokers", from[:min(len(from), maxSample)])
	}
	args = append(args, "partitions", sample[:min(len(sample), maxSample)], "revision", revision)
	if kinds[ElectedUnclean] > 0 || kinds[ElectedLongest] > 0 || lost > 0 {
		t.loop.cfg.Logger.Warn("leaders changed", args...)
		return
	}
	t.loop.cfg.Logger.Info("leaders changed", args...)
}
