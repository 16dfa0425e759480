package group

import (
	"maps"
	"slices"
)

// Status is the state of a group as people see it.
type Status uint8

// The states of a group.
const (
	StatusEmpty Status = iota + 1
	StatusReconciling
	StatusStable
	StatusDeleting
)

// Summary tells about a group in a line.
type Summary struct {
	Group   string
	Status  Status
	Members int
	Epoch   int64
}

// Description tells everything about a group.
type Description struct {
	Summary
	Assignor string
	Members  []MemberDescription
	Offsets  []OffsetAt
	Ledger   []LedgerValue
}

// MemberDescription is a member as the coordinator sees it.
type MemberDescription struct {
	ID, InstanceID, ClientID, ClientHost string
	Epoch                                int64
	Owned, Target                        []Owned
}

func (g *group) summary() Summary {
	return Summary{Group: g.name, Status: g.status(), Members: len(g.members), Epoch: g.epoch}
}

// status is stable when every member holds what it should and has said so.
func (g *group) status() Status {
	switch {
	case g.deleting:
		return StatusDeleting
	case len(g.members) == 0:
		return StatusEmpty
	case g.rebalanceAt != 0:
		return StatusReconciling
	}
	for _, m := range g.members {
		if m.value.ReplacedBy != "" || !m.hasTarget || len(m.owned) != len(m.target) {
			return StatusReconciling
		}
		for p, h := range m.owned {
			if h.revoking || !m.target[p] || m.attached && !h.confirmed {
				return StatusReconciling
			}
		}
	}
	return StatusStable
}

func (s *State) describe(e Describe) {
	g := s.groups[e.Group]
	if g == nil {
		s.refuse(e.Req, errorf(ReasonUnknownGroup, "there is no group %q", e.Group))
		return
	}
	d := Description{Summary: g.summary(), Assignor: g.assignor}
	for _, m := range g.sorted() {
		md := MemberDescription{
			ID: m.id, InstanceID: m.value.InstanceID, ClientID: m.value.ClientID, ClientHost: m.value.ClientHost,
			Epoch: m.value.Epoch, Owned: m.record().Owned,
		}
		for _, p := range sortedParts(m.target) {
			md.Target = append(md.Target, Owned{Part: p, Epoch: m.targetAt})
		}
		d.Members = append(d.Members, md)
	}
	for _, p := range sortedParts(g.offsets) {
		d.Offsets = append(d.Offsets, OffsetAt{p, g.offsets[p]})
	}
	for _, slot := range slices.Sorted(maps.Keys(g.ledger)) {
		d.Ledger = append(d.Ledger, g.ledger[slot])
	}
	slices.SortFunc(d.Ledger, func(a, b LedgerValue) int { return int(a.Epoch - b.Epoch) })
	s.reply(e.Req, Described{d})
}

// List returns the groups of the shard by name. It is the one reading without a
// barrier: a hint, which may show what is not committed yet.
func (s *State) List() []Summary {
	list := make([]Summary, 0, len(s.groups))
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		list = append(list, s.groups[name].summary())
	}
	return list
}
