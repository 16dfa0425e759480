package group

import (
	"maps"
	"slices"
	"time"
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
	// Ledger holds the last rebalances, oldest first. What goes on has its times as of
	// now.
	Ledger []LedgerValue
	// Unowned holds what somebody should hold and nobody does, in order.
	Unowned []Unowned
}

// Unowned is a partition that somebody should hold and nobody does.
type Unowned struct {
	Part
	For    time.Duration // since it had an owner, or should have one
	Member string        // that should hold it
	Why    string        // for people
}

// MemberDescription is a member as the coordinator sees it.
type MemberDescription struct {
	ID, InstanceID, ClientID, ClientHost            string
	Topics                                          []string
	Pattern, ReplacedBy                             string
	Attach, Epoch                                   int64
	Owned, Target                                   []Owned
	SessionTimeout, RebalanceTimeout, MaxProcessing time.Duration
	Attached                                        bool
	LastSign                                        time.Duration // since then
	Progress                                        []Progress    // OldestAge as of now
	Revoking                                        []RevokingAt
	Stuck                                           []Part
}

// RevokingAt is a partition that a member has been asked to give up.
type RevokingAt struct {
	Part
	Remaining time.Duration // until the member is expelled; 0 where it has no stream
	Heeded    bool          // it hands out no more of it
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

func (s *State) describe(now Now, e Describe) {
	g := s.groups[e.Group]
	if g == nil {
		s.refuse(e.Req, errorf(ReasonUnknownGroup, "there is no group %q", e.Group))
		return
	}
	d := Description{Summary: g.summary(), Assignor: g.assignor}
	for _, m := range g.sorted() {
		d.Members = append(d.Members, m.describe(now))
	}
	for _, p := range sortedParts(g.offsets) {
		d.Offsets = append(d.Offsets, OffsetAt{p, g.offsets[p]})
	}
	for _, slot := range slices.Sorted(maps.Keys(g.ledger)) {
		v := g.ledger[slot]
		if slot+1 == g.open {
			v.LongestMs, v.TotalMs = g.gapsAsOf(now)
		}
		d.Ledger = append(d.Ledger, v)
	}
	slices.SortFunc(d.Ledger, func(a, b LedgerValue) int { return int(a.Epoch - b.Epoch) })
	for _, p := range sortedParts(g.wanted) {
		if g.owner[p] == "" {
			d.Unowned = append(d.Unowned, g.unowned(now, p))
		}
	}
	s.reply(e.Req, Described{d})
}

// gapsAsOf is how long partitions have been without an owner in the rebalance that
// goes on, in milliseconds.
func (g *group) gapsAsOf(now Now) (longest, total int64) {
	all := g.gapsNow
	for _, since := range g.gaps {
		all.longest = max(all.longest, now.Mono-since)
		all.total += now.Mono - since
	}
	return all.longest.Milliseconds(), all.total.Milliseconds()
}

func (g *group) unowned(now Now, p Part) Unowned {
	u := Unowned{Part: p, Member: g.wanted[p]}
	if since, ok := g.gaps[p]; ok {
		u.For = now.Mono - since
	}
	m, start := g.members[u.Member], g.starts[p]
	switch {
	case m == nil || !m.attached:
		u.Why = "the member that should hold it is not connected"
	case g.resets[p] != nil:
		u.Why = "its offset is being reset"
	case start != nil && start.failed != "":
		u.Why = "where it starts could not be found: " + start.failed
	case start != nil:
		u.Why = "where it starts is being looked for"
	default:
		u.Why = "it is being assigned"
	}
	return u
}

func (m *member) describe(now Now) MemberDescription {
	d := MemberDescription{
		ID: m.id, InstanceID: m.value.InstanceID, ClientID: m.value.ClientID, ClientHost: m.value.ClientHost,
		Topics: m.value.Topics, Pattern: m.value.Pattern, ReplacedBy: m.value.ReplacedBy,
		Attach: m.value.Attach, Epoch: m.value.Epoch, Owned: m.record().Owned,
		SessionTimeout:   time.Duration(m.value.SessionTimeout) * time.Millisecond,
		RebalanceTimeout: time.Duration(m.value.RebalanceTimeout) * time.Millisecond,
		MaxProcessing:    m.maxProcessing,
		Attached:         m.attached, LastSign: now.Mono - m.seen,
	}
	for _, p := range sortedParts(m.target) {
		d.Target = append(d.Target, Owned{Part: p, Epoch: m.targetAt})
	}
	for _, p := range sortedParts(m.progress) {
		t := m.progress[p]
		if t.stuck(now) {
			d.Stuck = append(d.Stuck, p)
		}
		if t.OldestAge > 0 {
			t.OldestAge += now.Mono - t.at
		}
		d.Progress = append(d.Progress, t.Progress)
	}
	for _, p := range m.parts() {
		h := m.owned[p]
		if !h.revoking {
			continue
		}
		r := RevokingAt{Part: p, Heeded: h.heeded != 0}
		if m.attached {
			r.Remaining = max(0, h.since+d.RebalanceTimeout-now.Mono)
		}
		d.Revoking = append(d.Revoking, r)
	}
	return d
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
