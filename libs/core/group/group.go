package group

import (
	"maps"
	"slices"
	"time"
)

// group is a consumer group.
type group struct {
	name      string
	epoch     int64
	assignor  string
	deleting  bool
	members   map[string]*member
	instances map[string]string // instance id to the member that has it now
	owner     map[Part]string   // who holds a partition, revoking included
	wanted    map[Part]string   // who should hold it
	left      map[Part]string   // who should have held it and was removed in this step
	offsets   map[Part]OffsetValue
	ledger    map[int32]LedgerValue
	starts    map[Part]*starting     // what cannot be given before its start is known
	resets    map[Part]*reset        // what is not given before its offset is reset
	gaps      map[Part]time.Duration // since when what is wanted is without an owner

	open        int32 // slot of the ledger's entry that has not ended, plus 1; 0: none
	gapsNow     gapsOf
	startsAt    time.Duration // when failed starts are asked for again; 0: none failed
	expireAt    time.Duration // when the group goes; 0: it has members
	rebalanceAt time.Duration // when joins have been waited for; 0: nothing is due
	cause       string
	causes      int
}

// member is a member of a group.
type member struct {
	id            string
	value         MemberValue // Owned is filled in from owned when it is written
	owned         map[Part]*holding
	target        map[Part]bool
	targetAt      int64 // epoch of the target; meaningful with hasTarget
	hasTarget     bool
	pattern       *matcher
	start         StartPolicy
	progress      map[Part]told
	maxProcessing time.Duration // 0: any

	attached bool
	// gone: it is detached because its own stream broke or it left, not because the
	// shard was loaded anew and nothing has been heard of it since.
	gone     bool
	fresh    bool // subscribed anew since the last rebalance
	seen     time.Duration
	mustSend bool // the first answer on a stream comes even if nothing changed
	sent     int64
	sentAt   time.Duration // since when an assignment is unacknowledged; 0: none is
}

// holding is a tenure as far as the coordinator knows.
type holding struct {
	epoch    int64
	revoking bool
	// confirmed: the member has listed this tenure itself.
	confirmed bool
	// revokeEpoch is the epoch of the assignment that revoked it.
	revokeEpoch int64
	// since is when it was given or revoked; the rebalance timeout runs from it.
	since time.Duration
	// heeded is when the member said that it hands out no more of it; 0: it did not.
	heeded time.Duration
}

// group finds a group, making it where create is set.
func (s *State) group(name string, create bool) *group {
	g := s.groups[name]
	if g == nil && create {
		g = newGroup(name)
		s.groups[name] = g
	}
	return g
}

func newGroup(name string) *group {
	return &group{
		name:      name,
		assignor:  AssignorUniform,
		members:   make(map[string]*member),
		instances: make(map[string]string),
		owner:     make(map[Part]string),
		wanted:    make(map[Part]string),
		left:      make(map[Part]string),
		offsets:   make(map[Part]OffsetValue),
		ledger:    make(map[int32]LedgerValue),
		starts:    make(map[Part]*starting),
		resets:    make(map[Part]*reset),
		gaps:      make(map[Part]time.Duration),
	}
}

func (g *group) value() GroupValue {
	return GroupValue{Epoch: g.epoch, Assignor: g.assignor, Deleting: g.deleting}
}

// sorted lists the members by id, so that effects come in the same order always.
func (g *group) sorted() []*member {
	ms := make([]*member, 0, len(g.members))
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		ms = append(ms, g.members[id])
	}
	return ms
}

// because notes a cause for the next rebalance. The first is told, more are counted.
func (g *group) because(cause string) {
	if g.causes == 0 {
		g.cause = cause
	}
	g.causes++
}

// subscribes says whether some member subscribes to one of the names.
func (g *group) subscribes(names map[string]bool) bool {
	for _, m := range g.members {
		for _, t := range m.value.Topics {
			if names[t] {
				return true
			}
		}
		if m.pattern == nil {
			continue
		}
		for name := range names {
			if m.pattern.match(name) {
				return true
			}
		}
	}
	return false
}
