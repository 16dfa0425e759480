package group

import (
	"errors"
	"fmt"
)

// Check looks over the whole shard and joins every rule that does not hold. Tests
// and simulations call it after each Step; it reads everything, so services do not.
func (s *State) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.phase != serving {
		if s.flight != nil || s.gathering != nil {
			bad("an append is open while the shard does not serve")
		}
		return errors.Join(errs...)
	}
	if s.flight == nil && s.gathering != nil {
		bad("something is gathered and no append is on its way")
	}
	if s.flight != nil {
		for _, h := range s.flight.held {
			if h.cause > s.flight.began {
				bad("%T of step %d waits for an append begun in step %d", h.effect, h.cause, s.flight.began)
			}
		}
	}
	for _, g := range s.groups {
		g.check(bad)
	}
	return errors.Join(errs...)
}

func (g *group) check(bad func(string, ...any)) {
	holders := make(map[Part]string)
	wanted := make(map[Part]string)
	for _, m := range g.sorted() {
		if m.value.Epoch > g.epoch {
			bad("group %s: member %s is in epoch %d, the group in %d", g.name, m.id, m.value.Epoch, g.epoch)
		}
		for p, h := range m.owned {
			if other, ok := holders[p]; ok {
				bad("group %s: partition %v is held by %s and %s", g.name, p, other, m.id)
			}
			holders[p] = m.id
			if g.owner[p] != m.id {
				bad("group %s: partition %v is held by %s, the index says %q", g.name, p, m.id, g.owner[p])
			}
			if h.epoch > g.epoch || h.confirmed && h.epoch > m.value.Epoch {
				bad("group %s: member %s (epoch %d) holds %v since epoch %d, the group is in %d", g.name, m.id, m.value.Epoch, p, h.epoch, g.epoch)
			}
		}
		for p := range m.target {
			if other, ok := wanted[p]; ok {
				bad("group %s: partition %v is meant for %s and %s", g.name, p, other, m.id)
			}
			wanted[p] = m.id
			if g.wanted[p] != m.id {
				bad("group %s: partition %v is meant for %s, the index says %q", g.name, p, m.id, g.wanted[p])
			}
		}
		if m.attached && m.sent > g.epoch {
			bad("group %s: member %s was sent epoch %d, the group is in %d", g.name, m.id, m.sent, g.epoch)
		}
	}
	for p, r := range g.resets {
		m, h := g.members[g.owner[p]], holdingOf(g, p)
		switch {
		case h == nil:
			bad("group %s: the reset of %v waits and nobody holds it", g.name, p)
		case m.attached && m.value.ReplacedBy == "" && !h.revoking:
			bad("group %s: the reset of %v waits and it is not being revoked from %s", g.name, p, m.id)
		}
		if r.job.left <= 0 {
			bad("group %s: the reset of %v waits for a request that was answered", g.name, p)
		}
	}
	for p := range g.starts {
		if g.owner[p] != "" {
			bad("group %s: the start of %v is looked for and %s holds it", g.name, p, g.owner[p])
		}
		if g.wanted[p] == "" {
			bad("group %s: the start of %v is looked for and nobody should hold it", g.name, p)
		}
	}
	for p, id := range g.wanted {
		// Whoever is fresh gets what it waits for with its next target.
		m, a := g.members[id], g.starts[p]
		switch {
		case m == nil || !m.attached || m.value.ReplacedBy != "" || m.fresh || g.owner[p] != "" || g.resets[p] != nil:
		case a == nil:
			bad("group %s: %v is free, and %s, who should hold it, was not given it", g.name, p, id)
		case a.policy != m.start:
			bad("group %s: the start of %v is looked for by another policy than that of %s", g.name, p, id)
		}
	}
	for p := range g.gaps {
		if h := holdingOf(g, p); h != nil && h.confirmed {
			bad("group %s: %v is counted as without an owner, and %s has it", g.name, p, g.owner[p])
		}
	}
	if len(g.members) > 0 && g.expireAt != 0 {
		bad("group %s: it has members and is to expire", g.name)
	}
	if len(holders) != len(g.owner) || len(wanted) != len(g.wanted) {
		bad("group %s: the indexes of holders (%d, really %d) or targets (%d, really %d) are stale",
			g.name, len(g.owner), len(holders), len(g.wanted), len(wanted))
	}
}

// holdingOf is the tenure of a partition; nil: nobody holds it.
func holdingOf(g *group, p Part) *holding {
	if m := g.members[g.owner[p]]; m != nil {
		return m.owned[p]
	}
	return nil
}
