package group

import "fmt"

// SimulatedMember is a member of a group as it would be.
type SimulatedMember struct {
	ID, InstanceID string
	// Before is how many partitions it should hold now, After what it would hold.
	Before int
	After  []Part // in order
}

// simulate computes the target as if members had come or gone. Nothing changes.
func (s *State) simulate(e Simulate) {
	g := s.groups[e.Group]
	if g == nil {
		s.refuse(e.Req, errorf(ReasonUnknownGroup, "there is no group %q", e.Group))
		return
	}
	result, err := s.simulated(g, e)
	if err != nil {
		s.refuse(e.Req, err)
		return
	}
	s.reply(e.Req, result)
}

func (s *State) simulated(g *group, e Simulate) (Simulated, *Error) {
	gone := make(map[string]bool)
	for _, name := range e.Remove {
		id := name
		if g.members[id] == nil {
			id = g.instances[name]
		}
		if id == "" || gone[id] {
			return Simulated{}, errorf(ReasonInvalidRequest, "group %q has no member or instance %q to take out, or it is named twice", g.name, name)
		}
		gone[id] = true
	}
	likeID := e.Like
	if g.members[likeID] == nil && g.instances[likeID] != "" {
		likeID = g.instances[likeID]
	}
	all := s.subscriptions(g)
	result := Simulated{Assignor: g.assignor}
	var inputs []subscriber
	var like *subscriber
	for i, in := range all {
		if like == nil && e.Like == "" || in.id == likeID {
			like = &all[i]
		}
		if !gone[in.id] {
			inputs = append(inputs, in)
		}
	}
	if n := len(inputs) + e.Add; e.Add < 0 || n > s.cfg.MaxMembers {
		return Simulated{}, errorf(ReasonLimitExceeded, "group %q would have %d members, group.consumer.max.size allows %d", g.name, n, s.cfg.MaxMembers)
	}
	if e.Add > 0 && like == nil && e.Like == "" {
		return Simulated{}, errorf(ReasonInvalidRequest, "group %q has no members whose subscription the added ones could have; let one join first", g.name)
	}
	if e.Add > 0 && like == nil {
		return Simulated{}, errorf(ReasonInvalidRequest, "group %q has no member or instance %q whose subscription the added ones could have; name another", g.name, e.Like)
	}
	for i := range e.Add {
		id := fmt.Sprintf("+%d", i+1)
		inputs = append(inputs, subscriber{id: id, rank: id, topics: like.topics})
	}
	targets := assign(g.assignor, inputs)
	after := make(map[Part]string)
	for _, in := range inputs {
		for _, p := range targets[in.id] {
			after[p] = in.id
		}
	}
	for _, in := range append(all, inputs[len(inputs)-e.Add:]...) {
		m := SimulatedMember{ID: in.id, After: targets[in.id]}
		if now := g.members[in.id]; now != nil {
			m.InstanceID, m.Before = now.value.InstanceID, len(now.target)
		}
		result.Members = append(result.Members, m)
	}
	result.Moves = moves(g.wanted, after)
	return result, nil
}
