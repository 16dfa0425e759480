package group

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// rebalanceSoon waits for more members to join, so that a thousand joins cost one
// assignment.
func (s *State) rebalanceSoon(now Now, g *group, cause string) {
	g.because(cause)
	if g.rebalanceAt == 0 {
		s.due(&g.rebalanceAt, now.Mono+s.cfg.JoinDelay)
	}
}

// rebalance computes the target anew, writes what changed of it, and brings the
// members towards it.
func (s *State) rebalance(now Now, g *group) {
	cause := g.cause
	if g.causes > 1 {
		cause = fmt.Sprintf("%s, and %d more", cause, g.causes-1)
	}
	g.rebalanceAt, g.cause, g.causes = 0, "", 0
	inputs := s.subscriptions(g)
	targets := assign(g.assignor, inputs)
	switch changed := g.changed(inputs, targets); {
	case len(changed) > 0:
		s.retarget(now, g, inputs, targets, changed, cause)
	case len(g.left) > 0:
		s.abandoned(now, g, cause)
	}
	clear(g.left)
	for _, in := range inputs {
		m := g.members[in.id]
		m.fresh = false
		s.reconcile(now, g, m, cause)
	}
}

// subscriptions resolves what each member subscribes to. Replaced members take no
// part any more.
func (s *State) subscriptions(g *group) []subscriber {
	matched := make(map[string]map[TopicID]int32)
	var subs []subscriber
	for _, m := range g.sorted() {
		if m.value.ReplacedBy != "" {
			continue
		}
		topics := make(map[TopicID]int32, len(m.value.Topics))
		s.resolve(&m.value, m.pattern, matched, topics)
		sub := subscriber{id: m.id, rank: m.id, topics: topics}
		if m.value.InstanceID != "" {
			sub.rank = m.value.InstanceID
		}
		sub.current = append(sub.current, sortedParts(m.target)...)
		// What nobody should hold any more, or not yet, best stays where it is.
		for _, p := range m.parts() {
			if g.wanted[p] == "" {
				sub.current = append(sub.current, p)
			}
		}
		subs = append(subs, sub)
	}
	return subs
}

// resolve adds the topics of a subscription; matched remembers patterns.
func (s *State) resolve(v *MemberValue, pattern *matcher, matched map[string]map[TopicID]int32, topics map[TopicID]int32) {
	for _, name := range v.Topics {
		if t, ok := s.view.byName[name]; ok {
			topics[t.ID] = t.Partitions
		}
	}
	if pattern == nil {
		return
	}
	hits, ok := matched[v.Pattern]
	if !ok {
		hits = make(map[TopicID]int32)
		for _, name := range s.view.names {
			if t := s.view.byName[name]; !t.Internal && pattern.match(name) {
				hits[t.ID] = t.Partitions
			}
		}
		matched[v.Pattern] = hits
	}
	maps.Copy(topics, hits)
}

// partitionsWith counts what the group would share if somebody joined it.
func (s *State) partitionsWith(g *group, e Open) int {
	topics := make(map[TopicID]int32)
	matched := make(map[string]map[TopicID]int32)
	if g != nil {
		for _, m := range g.members {
			s.resolve(&m.value, m.pattern, matched, topics)
		}
	}
	pattern, err := compilePattern(e.Pattern)
	if err != nil {
		return 0 // refused before
	}
	s.resolve(&MemberValue{Topics: e.Topics, Pattern: e.Pattern}, pattern, matched, topics)
	n := 0
	for _, partitions := range topics {
		n += int(partitions)
	}
	return n
}

// changed lists the members whose target is another one than before, who never had
// one, or whose target was not finished by an earlier owner, in order.
func (g *group) changed(inputs []subscriber, targets map[string][]Part) []string {
	var ids []string
	for _, in := range inputs {
		m := g.members[in.id]
		if !m.hasTarget || m.targetAt > g.epoch || !slices.Equal(sortedParts(m.target), targets[m.id]) {
			ids = append(ids, m.id)
		}
	}
	return ids
}

// retarget writes a new target. Its epoch comes last: a target whose epoch is not
// on record was not finished, and is computed anew by whoever loads it.
func (s *State) retarget(now Now, g *group, inputs []subscriber, targets map[string][]Part, changed []string, cause string) {
	before := maps.Clone(g.wanted)
	maps.Copy(before, g.left)
	s.startNew(now, g, inputs, targets)
	s.raise(g)
	for _, id := range changed {
		m := g.members[id]
		m.target = make(map[Part]bool, len(targets[id]))
		for _, p := range targets[id] {
			m.target[p] = true
		}
		m.targetAt, m.hasTarget = g.epoch, true
		s.write(targetKey(g.name, id), m.targetValue())
	}
	clear(g.wanted)
	for id, parts := range targets {
		for _, p := range parts {
			g.wanted[p] = id
		}
	}
	maps.DeleteFunc(g.starts, func(p Part, _ *starting) bool { return g.wanted[p] == "" })
	g.regap(now)
	s.moved[g.name] = true
	s.record(now, g, cause, moves(before, g.wanted))
	s.write(groupKey(g.name), g.value())
}

// abandoned records that the last member has gone. There is no target, and nobody
// misses an owner; why nobody reads is asked all the same.
func (s *State) abandoned(now Now, g *group, cause string) {
	s.raise(g)
	s.record(now, g, cause, moves(g.left, nil))
	s.closeEntry(now, g, true)
	s.write(groupKey(g.name), g.value())
}

// startNew commits offset 0 for partitions that were created after somebody
// subscribed to their topic, so that nothing written to them in the meantime is
// passed over, whatever the reset policy says.
func (s *State) startNew(now Now, g *group, inputs []subscriber, targets map[string][]Part) {
	known := make(map[TopicID]bool)
	seen := make(map[Part]bool)
	for _, m := range g.members {
		for p := range m.target {
			known[p.Topic], seen[p] = true, true
		}
	}
	waiting := make(map[TopicID]bool) // a member has been waiting for the topic to appear
	for _, in := range inputs {
		m := g.members[in.id]
		if m.fresh || !m.hasTarget {
			continue
		}
		for id := range in.topics {
			waiting[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(targets)) {
		for _, p := range targets[id] {
			if seen[p] || !known[p.Topic] && !waiting[p.Topic] {
				continue
			}
			if _, ok := g.offsets[p]; ok || s.deleted[p.Topic] {
				continue
			}
			s.setOffset(g, p, OffsetValue{NextOffset: 0, LeaderEpoch: -1, CommitMs: now.WallMs})
		}
	}
}

// reconcile brings one member towards its target: it revokes what the member
// should give up, gives it what is free, and tells it if anything changed or it
// waits for its first answer. A partition whose offset is being reset is nobody's
// until that is done, and one whose start is not committed until it is.
func (s *State) reconcile(now Now, g *group, m *member, cause string) {
	if !m.attached || m.value.ReplacedBy != "" || !m.hasTarget {
		return // whoever resumes is brought up to date then
	}
	changed := false
	for _, p := range m.parts() {
		h := m.owned[p]
		keeps := m.target[p] && g.resets[p] == nil
		switch {
		case !keeps && !h.revoking:
			h.revoking, h.revokeEpoch, h.since = true, g.epoch, now.Mono
		case keeps && h.revoking:
			// It comes back before it was given up: a new tenure, so that an
			// acknowledgement of the revocation, still on its way, does not end it.
			*h = holding{epoch: g.epoch, since: now.Mono}
		default:
			continue
		}
		changed = true
	}
	asked := false // for starts, for the first time
	for _, p := range sortedParts(m.target) {
		if g.owner[p] != "" || g.resets[p] != nil {
			continue
		}
		if s.needsStart(g, m, p) {
			asked = asked || g.starts[p].failed == ""
			continue
		}
		g.owner[p] = m.id
		m.owned[p] = &holding{epoch: g.epoch, since: now.Mono}
		changed = true
	}
	if changed {
		s.writeMember(g, m)
	}
	// The first assignment of a stream waits until starts have been asked for once, so
	// that it holds everything that is free.
	if changed && !m.mustSend || m.mustSend && !asked {
		s.sendAssignment(now, g, m, cause)
	}
}

func (s *State) sendAssignment(now Now, g *group, m *member, cause string) {
	m.mustSend = false
	rebalance := time.Duration(m.value.RebalanceTimeout) * time.Millisecond
	a := Assignment{Epoch: g.epoch, Cause: cause}
	for _, p := range m.parts() {
		h := m.owned[p]
		if h.revoking {
			a.RevocationTimeout = rebalance
			continue
		}
		at := Assigned{Part: p, Topic: s.view.byID[p.Topic].Name, Epoch: h.epoch, Start: -1, StartLeaderEpoch: -1}
		if o, ok := g.offsets[p]; ok {
			at.Start, at.StartLeaderEpoch = o.NextOffset, o.LeaderEpoch
		}
		a.Partitions = append(a.Partitions, at)
	}
	if m.sent = g.epoch; m.sentAt == 0 {
		m.sentAt = now.Mono
	}
	s.wakeBy(now.Mono + rebalance)
	s.hold(Send{Group: g.name, Member: m.id, Attach: m.value.Attach, Message: a})
}

// ack takes in what a member says it holds. It has no answer.
func (s *State) ack(now Now, e Ack) {
	m := s.current(e.Group, e.Member, e.Attach)
	if m == nil {
		return
	}
	g := s.groups[e.Group]
	s.sign(m, now, e.Silence)
	if e.Epoch > m.sent {
		return // of an assignment that was never sent
	}
	stated := make(map[Part]int64, len(e.Owned))
	for _, o := range e.Owned {
		stated[o.Part] = o.Epoch
	}
	var freed []Part
	for _, p := range m.parts() {
		h := m.owned[p]
		epoch, listed := stated[p]
		switch {
		case listed:
			if epoch == h.epoch && e.Epoch >= h.epoch && !h.confirmed {
				g.confirm(now, p, h)
				s.moved[g.name] = true
			}
		case h.confirmed, h.revoking && e.Epoch >= h.revokeEpoch:
			freed = append(freed, p)
		}
	}
	for _, p := range freed {
		s.release(g, m, p, now.Mono)
	}
	raised := e.Epoch > m.value.Epoch
	if raised {
		m.value.Epoch = e.Epoch
	}
	if e.Epoch >= m.sent {
		m.sentAt = 0
	}
	if raised || len(freed) > 0 {
		s.writeMember(g, m)
	}
	s.offer(now, g, freed)
}

// release ends a tenure. The partition is without an owner since the member said that
// it hands out no more of it, else since the time given.
func (s *State) release(g *group, m *member, p Part, since time.Duration) {
	h := m.owned[p]
	if h != nil && h.heeded != 0 {
		since = min(since, h.heeded)
	}
	delete(m.owned, p)
	delete(m.progress, p)
	if g.owner[p] == m.id {
		delete(g.owner, p)
	}
	g.gap(p, since)
	s.moved[g.name] = true
}

// offer gives partitions that came free to the members that should hold them.
func (s *State) offer(now Now, g *group, freed []Part) {
	ids := make(map[string]bool)
	for _, p := range freed {
		if id := g.wanted[p]; id != "" {
			ids[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		s.reconcile(now, g, g.members[id], "a partition waited for became free")
	}
}
