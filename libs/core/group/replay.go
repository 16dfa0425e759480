package group

import (
	"fmt"
	"maps"
	"slices"
)

// replay takes in one record of the log.
func (s *State) replay(kv KV) {
	if kv.Key.Kind == KindBarrier {
		return
	}
	g := s.group(kv.Key.Group, kv.Value != nil)
	if g == nil {
		return // a tombstone of what is gone already
	}
	switch kv.Key.Kind {
	case KindGroup:
		if kv.Value == nil {
			delete(s.groups, g.name)
			return
		}
		v := kv.Value.(GroupValue)
		g.epoch, g.assignor, g.deleting = v.Epoch, v.Assignor, v.Deleting
	case KindMember:
		if v, ok := kv.Value.(MemberValue); ok {
			s.lastAttach = max(s.lastAttach, v.Attach)
		}
		g.replayMember(kv)
	case KindTarget:
		g.replayTarget(kv)
	case KindOffset:
		if kv.Value == nil {
			delete(g.offsets, kv.Key.Part)
			return
		}
		v := kv.Value.(OffsetValue)
		s.lastAttach = max(s.lastAttach, v.Attach)
		g.offsets[kv.Key.Part] = v
	case KindLedger:
		if kv.Value == nil {
			delete(g.ledger, kv.Key.Slot)
			return
		}
		g.ledger[kv.Key.Slot] = kv.Value.(LedgerValue)
	}
}

func (g *group) replayMember(kv KV) {
	m := g.replayed(kv.Key.Member)
	m.owned = make(map[Part]*holding)
	if kv.Value == nil {
		m.value = MemberValue{}
		g.forgetEmpty(m)
		return
	}
	m.value = kv.Value.(MemberValue)
	for _, o := range m.value.Owned {
		m.owned[o.Part] = &holding{epoch: o.Epoch, revoking: o.Revoking}
	}
	m.value.Owned = nil
}

func (g *group) replayTarget(kv KV) {
	m := g.replayed(kv.Key.Member)
	m.target, m.targetAt, m.hasTarget = make(map[Part]bool), 0, false
	if kv.Value == nil {
		g.forgetEmpty(m)
		return
	}
	v := kv.Value.(TargetValue)
	m.targetAt, m.hasTarget = v.Epoch, true
	for _, p := range v.Parts {
		m.target[p] = true
	}
}

// replayed finds or makes a member whose records are being read, in any order.
func (g *group) replayed(id string) *member {
	m := g.members[id]
	if m == nil {
		m = &member{id: id, owned: make(map[Part]*holding), target: make(map[Part]bool)}
		g.members[id] = m
	}
	return m
}

// forgetEmpty drops a member of which no record is left.
func (g *group) forgetEmpty(m *member) {
	if m.value.Attach == 0 && !m.hasTarget {
		delete(g.members, m.id)
	}
}

// loaded makes the state that was read ready to serve, and finishes what an owner
// before may have left half done. Everybody is detached, and is given a whole
// session timeout to resume.
func (s *State) loaded(now Now) {
	s.phase = serving
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		g := s.groups[name]
		if g.deleting {
			s.purge(g)
			continue
		}
		s.loadedGroup(now, g)
	}
}

func (s *State) loadedGroup(now Now, g *group) {
	clear(g.instances)
	clear(g.wanted)
	clear(g.owner)
	for _, m := range g.sorted() {
		if m.value.Attach == 0 {
			// A target outlives its member only where a removal was cut short.
			s.write(targetKey(g.name, m.id), nil)
			delete(g.members, m.id)
			continue
		}
		m.compile()
		m.seen, m.sent = now.Mono, m.value.Epoch
		m.attached, m.sentAt = false, 0
		for p, h := range m.owned {
			h.since, h.revokeEpoch = now.Mono, g.epoch
			g.owner[p] = m.id
		}
		if m.value.ReplacedBy != "" {
			if m.hasTarget {
				s.write(targetKey(g.name, m.id), nil)
				m.target, m.hasTarget = make(map[Part]bool), false
			}
		} else {
			if m.value.InstanceID != "" {
				g.instances[m.value.InstanceID] = m.id
			}
			for p := range m.target {
				g.wanted[p] = m.id
			}
			m.fresh = !m.hasTarget
		}
		at, _ := m.deadline()
		s.wakeBy(at)
	}
	g.openEntry()
	g.regap(now)
	s.dropOffsets(g, slices.Collect(maps.Keys(s.deleted)))
	if len(g.members) == 0 {
		s.keepUntil(now, g)
		return
	}
	if s.stale(g) {
		g.because(fmt.Sprintf("the coordinator changed (shard epoch %d)", s.epoch))
		s.dirty[g.name] = true
	}
}

// stale says whether the target is not what it would be now: topics changed while
// nobody owned the shard, or the owner before did not finish what it had begun.
func (s *State) stale(g *group) bool {
	inputs := s.subscriptions(g)
	return len(g.changed(inputs, assign(g.assignor, inputs))) > 0
}
