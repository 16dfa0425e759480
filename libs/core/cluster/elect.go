package cluster

import (
	"cmp"
	"slices"

	"github.com/leat-io/leat/libs/core/topicconfig"
)

// brokerView answers what elections ask about brokers, from the state or from a
// record that is about to be written.
type brokerView struct {
	state    *State
	override *Broker // nil: none
}

// unfenced returns the life on record of a broker that is not fenced.
func (v brokerView) unfenced(id int32) (Process, bool) {
	if v.override != nil && v.override.Process.ID == id {
		return v.override.Process, !v.override.Fenced
	}
	b := v.state.Broker(id)
	if b == nil || b.Value.Fenced {
		return Process{}, false
	}
	return b.Value.Process, true
}

// leads tells whether a partition's leader may go on: it is on record, unfenced,
// in sync and not barred.
func (v brokerView) leads(p *Partition) bool {
	life, ok := v.unfenced(p.Leader.ID)
	return ok && !p.Leader.IsZero() && life == p.Leader &&
		slices.Contains(p.ISR, p.Leader.ID) && !slices.Contains(p.Barred, p.Leader.ID)
}

// elect brings a partition's leader, ISR, ELR and bars in line with who lives.
// Slices are replaced, never changed in place.
func (v brokerView) elect(p *Partition, config topicconfig.Config) {
	if !v.leads(p) {
		v.choose(p, config)
	}
	if p.Leader.IsZero() {
		// Nobody live: ISR and ELR stay, whoever of them comes back first leads.
		return
	}
	trusted := func(b int32) bool {
		_, ok := v.unfenced(b)
		return ok && !slices.Contains(p.Barred, b)
	}
	dropped := keep(p.ISR, func(b int32) bool { return !trusted(b) })
	if len(dropped) > 0 || slices.ContainsFunc(p.ELR, func(b int32) bool { return slices.Contains(p.Barred, b) }) {
		p.ISR = keep(p.ISR, trusted)
		// One that left an insufficient ISR had every committed record when it
		// left, unless it is barred.
		elr := keep(union(p.ELR, dropped), func(b int32) bool { return !slices.Contains(p.Barred, b) })
		p.ELR = elr
	}
	if int32(len(p.ISR)) >= p.MinISR {
		p.ELR = nil
	}
	p.Barred = keep(p.Barred, func(b int32) bool { return slices.Contains(p.ISR, b) || slices.Contains(p.ELR, b) })
}

// choose elects a leader, or none.
func (v brokerView) choose(p *Partition, config topicconfig.Config) {
	electable := func(b int32) bool {
		_, ok := v.unfenced(b)
		return ok && !slices.Contains(p.Barred, b)
	}
	inOrder := union(p.Replicas, nil)
	fromISR := keep(inOrder, func(b int32) bool { return slices.Contains(p.ISR, b) && electable(b) })
	fromELR := keep(inOrder, func(b int32) bool { return slices.Contains(p.ELR, b) && electable(b) })
	switch {
	case len(fromISR) > 0:
		v.lead(p, fromISR[0])
	case len(fromELR) > 0:
		// Members of the ISR that do not live had no record committed without it.
		p.ELR = union(keep(p.ELR, func(b int32) bool { return b != fromELR[0] }), p.ISR)
		p.ISR = []int32{fromELR[0]}
		v.lead(p, fromELR[0])
	default:
		if b, ok := v.lastResort(p, config); ok {
			p.ISR, p.ELR, p.Barred = []int32{b}, nil, nil
			v.lead(p, b)
			return
		}
		p.Leader = Process{}
	}
}

// lead makes a broker the leader in the next leader epoch.
func (v brokerView) lead(p *Partition, b int32) {
	p.Leader, _ = v.unfenced(b)
	p.LeaderEpoch++
}

// lastResort picks a leader where no member of ISR and ELR is electable: if all
// of them are live and merely lost what the page cache had, the longest of them;
// else, only if the topic allows an unclean election, any replica that lives.
func (v brokerView) lastResort(p *Partition, config topicconfig.Config) (int32, bool) {
	members := union(p.ISR, p.ELR)
	var best *Vouch
	var bestBroker int32
	all := true
	for _, b := range members {
		life, ok := v.unfenced(b)
		vouch, vouched := v.state.vouches[life][PartitionID{p.Topic, p.Number}]
		if !ok || !vouched || vouch.Verdict != UncleanOS {
			all = false
			break
		}
		if best == nil || cmp.Or(cmp.Compare(vouch.LastEpoch, best.LastEpoch), cmp.Compare(vouch.End, best.End)) > 0 {
			best, bestBroker = &vouch, b
		}
	}
	if all && best != nil {
		return bestBroker, true
	}
	if !config.UncleanLeaderElectionEnable {
		return 0, false
	}
	for _, b := range union(members, p.Replicas) {
		if _, ok := v.unfenced(b); ok {
			return b, true
		}
	}
	return 0, false
}
