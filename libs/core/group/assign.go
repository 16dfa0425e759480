package group

import (
	"cmp"
	"slices"
)

// The assignors.
const (
	// AssignorUniform spreads evenly and moves as little as possible.
	AssignorUniform = "uniform"
	// AssignorRange gives each member a run of neighbouring partitions of each topic,
	// the same run of every topic with the same subscribers and partition count.
	AssignorRange = "range"
)

// subscriber is a member as an assignor sees it.
type subscriber struct {
	id string
	// rank orders members: the instance id of static ones, which outlives restarts.
	rank   string
	topics map[TopicID]int32
	// current is what it should hold or holds so far; may be out of date.
	current []Part
}

// assign computes who should hold what; each member's partitions are in order.
// Everything a member is subscribed to has exactly one holder.
func assign(assignor string, subs []subscriber) map[string][]Part {
	var targets map[string][]Part
	if assignor == AssignorRange {
		targets = assignRange(subs)
	} else {
		targets = assignUniform(subs)
	}
	for _, parts := range targets {
		slices.SortFunc(parts, compareParts)
	}
	return targets
}

// byTopic lists topics in order, with the indexes of their subscribers.
func byTopic(subs []subscriber) ([]TopicID, map[TopicID][]int) {
	subscribed := make(map[TopicID][]int)
	var topics []TopicID
	for i, sub := range subs {
		for id := range sub.topics {
			if subscribed[id] == nil {
				topics = append(topics, id)
			}
			subscribed[id] = append(subscribed[id], i)
		}
	}
	slices.SortFunc(topics, func(a, b TopicID) int { return slices.Compare(a[:], b[:]) })
	return topics, subscribed
}

// partitions is the number of partitions of a topic; all subscribers see the same.
func partitions(subs []subscriber, subscribed []int, id TopicID) int32 {
	return subs[subscribed[0]].topics[id]
}

// spread is the working state of the uniform assignor.
type spread struct {
	subs       []subscriber
	subscribed map[TopicID][]int
	load       [][]Part
	// least remembers the least loaded subscriber of a topic until a load changes.
	least map[TopicID]int
}

// lightest finds the subscriber of a topic with the fewest partitions, the first
// among equals.
func (s *spread) lightest(id TopicID) int {
	if i, ok := s.least[id]; ok {
		return i
	}
	best := s.subscribed[id][0]
	for _, i := range s.subscribed[id][1:] {
		if len(s.load[i]) < len(s.load[best]) {
			best = i
		}
	}
	s.least[id] = best
	return best
}

func (s *spread) give(i int, p Part) {
	s.load[i] = append(s.load[i], p)
	clear(s.least)
}

// assignUniform keeps what can be kept, gives what is left to whoever has least,
// and then moves single partitions while that makes two members more equal by at
// least two. Each move lowers the sum of squares, so it ends.
func assignUniform(subs []subscriber) map[string][]Part {
	topics, subscribed := byTopic(subs)
	s := &spread{subs: subs, subscribed: subscribed, load: make([][]Part, len(subs)), least: make(map[TopicID]int)}
	taken := make(map[Part]bool)
	for i, sub := range subs {
		for _, p := range sub.current {
			if n, ok := sub.topics[p.Topic]; ok && p.Partition < n && !taken[p] {
				taken[p] = true
				s.load[i] = append(s.load[i], p)
			}
		}
	}
	for _, id := range topics {
		for n := range partitions(subs, subscribed[id], id) {
			if p := (Part{id, n}); !taken[p] {
				s.give(s.lightest(id), p)
			}
		}
	}
	for s.level() {
	}
	targets := make(map[string][]Part, len(subs))
	for i, sub := range subs {
		targets[sub.id] = s.load[i]
	}
	return targets
}

// level makes one pass from the most loaded member down, and tells whether it
// moved anything. In one pass a member gives what it has above the average, or
// one: giving more would take from one what others should give, and move too much.
func (s *spread) level() bool {
	order := make([]int, len(s.subs))
	total := 0
	for i := range order {
		order[i] = i
		total += len(s.load[i])
	}
	average := (total + len(order) - 1) / max(1, len(order))
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(s.load[b]), len(s.load[a])) })
	moved := false
	for _, i := range order {
		give := max(1, len(s.load[i])-average)
		for k := len(s.load[i]) - 1; k >= 0 && give > 0; k-- {
			p := s.load[i][k]
			to := s.lightest(p.Topic)
			if len(s.load[i])-len(s.load[to]) < 2 {
				continue
			}
			s.load[i] = slices.Delete(s.load[i], k, k+1)
			s.give(to, p)
			give--
			moved = true
		}
	}
	return moved
}

// assignRange cuts each topic into runs, in the order of rank.
func assignRange(subs []subscriber) map[string][]Part {
	topics, subscribed := byTopic(subs)
	targets := make(map[string][]Part, len(subs))
	for _, sub := range subs {
		targets[sub.id] = nil
	}
	for _, id := range topics {
		who := slices.Clone(subscribed[id])
		slices.SortFunc(who, func(a, b int) int {
			return cmp.Or(cmp.Compare(subs[a].rank, subs[b].rank), cmp.Compare(subs[a].id, subs[b].id))
		})
		n, members := int(partitions(subs, subscribed[id], id)), len(who)
		next := 0
		for k, i := range who {
			run := n / members
			if k < n%members {
				run++
			}
			for range run {
				targets[subs[i].id] = append(targets[subs[i].id], Part{id, int32(next)})
				next++
			}
		}
	}
	return targets
}
