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

// trusted tells whether a member of ISR or ELR may be counted on and elected: it is
// unfenced and not barred.
func (v brokerView) trusted(p *Partition, b int32) bool {
	_, ok := v.unfenced(b)
	return ok && !slices.Contains(p.Barred, b)
}

// leads tells whether a partition's leader may go on: it is on record, unfenced,
// in sync and not barred.
func (v brokerView) leads(p *Partition) bool {
	life, ok := v.unfenced(p.Leader.ID)
	return ok && !p.Leader.IsZero() && life == p.Leader &&
		slices.Contains(p.ISR, p.Leader.ID) && !slices.Contains(p.Barred, p.Leader.ID)
}

// elect brings a partition's leader, ISR, ELR and bars in line with who lives, and
// tells what it waits for if it has no leader. Slices are replaced, never changed
// in place.
func (v brokerView) elect(p *Partition, config *topicconfig.Config, hints Hints) WaitKind {
	if v.state.neverLed(p) {
		return v.first(p, config, hints)
	}
	var wait WaitKind
	if !v.leads(p) {
		wait = v.choose(p, config, hints)
	}
	if p.Leader.IsZero() {
		// Nobody live: ISR and ELR stay, whoever of them comes back first leads.
		return wait
	}
	trusted := func(b int32) bool { return v.trusted(p, b) }
	dropped := keep(p.ISR, func(b int32) bool { return !trusted(b) })
	if len(dropped) > 0 || slices.ContainsFunc(p.ELR, func(b int32) bool { return slices.Contains(p.Barred, b) }) {
		p.ISR = keep(p.ISR, trusted)
		// One that left an insufficient ISR had every committed record when it
		// left, unless it is barred.
		p.ELR = keep(union(p.ELR, dropped), func(b int32) bool { return !slices.Contains(p.Barred, b) })
	}
	trim(p)
	return 0
}

// trim empties the ELR beside a sufficient ISR, and takes bars from those who are
// members of neither.
func trim(p *Partition) {
	if int32(len(p.ISR)) >= p.MinISR {
		p.ELR = nil
	}
	if len(p.Barred) > 0 {
		p.Barred = keep(p.Barred, func(b int32) bool { return slices.Contains(p.ISR, b) || slices.Contains(p.ELR, b) })
	}
}

// first elects a partition's first leader, from those whose folder exists durably:
// once every living replica has told of its own, or a wait is over. Nobody can have
// a record yet, so that those who are silent or fenced merely leave the ISR. Fewer than
// min.insync.replicas are waited for, unless the operator asks for a leader: they could
// take no record with acks=all, and with their disks the last who may lead would be lost.
func (v brokerView) first(p *Partition, config *topicconfig.Config, hints Hints) WaitKind {
	told, silent := v.tellers(p)
	least := int(minISR(p, config))
	if hints.Forced {
		least = 1
	}
	if len(told) < max(least, 1) || silent && !hints.overdue(Wait{p.id(), p.LeaderEpoch, WaitFolders}) {
		return WaitFolders
	}
	p.ISR, p.ELR, p.Barred = told, nil, nil
	v.lead(p, told[0])
	return 0
}

// tellers lists the living replicas of a partition that have told of their folders, in
// order, and whether a living one is yet to tell.
func (v brokerView) tellers(p *Partition) (told []int32, silent bool) {
	for _, b := range p.Replicas {
		life, ok := v.unfenced(b)
		if !ok {
			continue
		}
		vouch, said := v.state.vouches[life][p.id()]
		switch {
		case said && vouch.Verdict == Intact:
			told = append(told, b)
		case said && vouch.Verdict != Missing:
			// Its disk failed: no folder will come.
		default:
			silent = true
		}
	}
	return told, silent
}

// choose elects a leader, or none, and tells what is waited for.
func (v brokerView) choose(p *Partition, config *topicconfig.Config, hints Hints) WaitKind {
	inOrder := union(p.Replicas, nil)
	fromISR := keep(inOrder, func(b int32) bool { return slices.Contains(p.ISR, b) && v.trusted(p, b) })
	if len(fromISR) > 0 {
		v.lead(p, v.pick(p, fromISR))
		return 0
	}
	fromELR := keep(inOrder, func(b int32) bool { return slices.Contains(p.ELR, b) && v.trusted(p, b) })
	if len(fromELR) > 0 {
		b := v.pick(p, fromELR)
		// Members of the ISR that do not live had no record committed without it.
		p.ELR = union(keep(p.ELR, func(x int32) bool { return x != b }), p.ISR)
		p.ISR = []int32{b}
		v.lead(p, b)
		return 0
	}
	return v.lastResort(p, config, hints)
}

// pick chooses a leader among members of the replicas, which are in order, and prefers
// those who will hear of it.
func (v brokerView) pick(p *Partition, candidates []int32) int32 {
	if hears := v.state.hears; hears != nil {
		hearing := keep(candidates, func(b int32) bool { life, _ := v.unfenced(b); return hears(life) })
		if len(hearing) > 0 {
			candidates = hearing
		}
	}
	return pick(p, candidates)
}

// pick chooses a leader among members of the replicas, which are in order: the
// preferred one, or else one by chance that stays the same for the partition, so
// that a dead broker's leaderships spread over all that remain.
func pick(p *Partition, candidates []int32) int32 {
	if candidates[0] == p.Replicas[0] {
		return candidates[0]
	}
	h := uint32(2166136261)
	for _, b := range p.Topic {
		h = (h ^ uint32(b)) * 16777619
	}
	h = (h ^ uint32(p.Number)) * 2654435769
	return candidates[(h>>16)%uint32(len(candidates))]
}

// lead makes a broker the leader in the next leader epoch.
func (v brokerView) lead(p *Partition, b int32) {
	p.Leader, _ = v.unfenced(b)
	p.LeaderEpoch++
}

// leadAlone makes a broker the leader of which nobody knows that it has every
// record.
func (v brokerView) leadAlone(p *Partition, b int32) {
	p.ISR, p.ELR, p.Barred = []int32{b}, nil, nil
	v.lead(p, b)
	p.UncleanEpoch = p.LeaderEpoch
}

// lastResort elects where no member of ISR and ELR is trusted: if all of them are
// live and merely lost what the page cache had, the longest of them, which is
// trusted from then on; else, only if the topic allows an unclean election and no
// earlier leader can commit any more, any replica that lives.
func (v brokerView) lastResort(p *Partition, config *topicconfig.Config, hints Hints) WaitKind {
	if v.allLostTheirCache(p) {
		b, _ := v.longest(p, union(p.ISR, p.ELR))
		v.leadAlone(p, b)
		return 0
	}
	if config.UncleanLeaderElectionEnable {
		if !hints.overdue(Wait{p.id(), p.LeaderEpoch, WaitUnclean}) {
			p.Leader = Process{}
			return WaitUnclean
		}
		if b, ok := v.longest(p, p.Replicas); ok {
			v.leadAlone(p, b)
			return 0
		}
		p.Leader = Process{}
		return WaitUnclean
	}
	p.Leader = Process{}
	return 0
}

// allLostTheirCache tells whether every member of ISR and ELR has vouched, and each
// that its host went down uncleanly under durability=os.
func (v brokerView) allLostTheirCache(p *Partition) bool {
	members := union(p.ISR, p.ELR)
	for _, b := range members {
		life, ok := v.unfenced(b)
		vouch, vouched := v.state.vouches[life][p.id()]
		if !ok || !vouched || vouch.Verdict != UncleanOS {
			return false
		}
	}
	return len(members) > 0
}

// longest is who of some brokers lives and has the longest copy, as far as is
// known: one that can be read before one that cannot, and the earlier in the order
// of ISR, ELR and replicas where nothing else tells them apart.
func (v brokerView) longest(p *Partition, candidates []int32) (int32, bool) {
	type copyOf struct {
		usable    int
		lastEpoch int32
		end       int64
	}
	best, found := int32(0), false
	var bestCopy copyOf
	for _, b := range union(union(keep(p.ISR, in(candidates)), keep(p.ELR, in(candidates))), candidates) {
		life, ok := v.unfenced(b)
		if !ok {
			continue
		}
		c := copyOf{usable: 1, lastEpoch: -1, end: -1}
		if vouch, vouched := v.state.vouches[life][p.id()]; vouched {
			c.lastEpoch, c.end = vouch.LastEpoch, vouch.End
			if vouch.Verdict == Missing || vouch.Verdict == Corrupt {
				c.usable = 0
			}
		}
		better := cmp.Or(cmp.Compare(c.usable, bestCopy.usable), cmp.Compare(c.lastEpoch, bestCopy.lastEpoch), cmp.Compare(c.end, bestCopy.end)) > 0
		if !found || better {
			best, bestCopy, found = b, c, true
		}
	}
	return best, found
}

// in tells membership of a list.
func in(list []int32) func(int32) bool {
	return func(b int32) bool { return slices.Contains(list, b) }
}
