package partition

import (
	"slices"
	"time"
)

// simLease is how long a lease lasts.
const simLease = 100 * time.Millisecond

// simRecord is the partition record and the brokers' records at one revision.
type simRecord struct {
	Record
	incarnation map[int32]uint64 // on record
	fenced      map[int32]bool
}

// simController writes records by the rules of the design. Every write is atomic:
// what goes wrong in a controller is not what this looks for.
type simController struct {
	w       *world
	now     simRecord
	history []simRecord // by revision

	lastLeader int32
}

func (c *simController) isIn(set []int32, b int32) bool { return slices.Contains(set, b) }

func without(set []int32, b int32) []int32 {
	return slices.DeleteFunc(slices.Clone(set), func(x int32) bool { return x == b })
}

// write commits a change of the record.
func (c *simController) write(why string) {
	r := &c.now
	r.Revision++
	r.PartEpoch++
	if len(r.ISR) >= int(r.MinISR) {
		r.ELR = nil
	}
	r.ELR = slices.DeleteFunc(slices.Clone(r.ELR), func(b int32) bool { return c.isIn(r.ISR, b) })
	r.Barred = slices.DeleteFunc(slices.Clone(r.Barred), func(b int32) bool { return !c.isIn(r.ISR, b) && !c.isIn(r.ELR, b) })
	c.save(why)
}

func (c *simController) save(why string) {
	h := c.now
	h.ISR, h.ELR, h.Barred = slices.Clone(h.ISR), slices.Clone(h.ELR), slices.Clone(h.Barred)
	h.incarnation, h.fenced = map[int32]uint64{}, map[int32]bool{}
	for b := range c.now.fenced {
		h.incarnation[b], h.fenced[b] = c.now.incarnation[b], c.now.fenced[b]
	}
	c.history = append(c.history, h)
	c.w.say("controller: %s: rev=%d pe=%d epoch=%d leader=%v isr=%v elr=%v barred=%v min=%d", why, h.Revision, h.PartEpoch, h.LeaderEpoch, h.Leader, h.ISR, h.ELR, h.Barred, h.MinISR)
}

func (c *simController) electable(b int32) bool {
	return !c.now.fenced[b] && !c.isIn(c.now.Barred, b)
}

// elect gives a leaderless partition a leader, if a member may lead.
func (c *simController) elect() bool {
	r := &c.now
	if (r.Leader != Replica{}) {
		return false
	}
	for _, b := range r.ISR {
		if c.electable(b) {
			c.lead(b)
			return true
		}
	}
	for _, b := range r.ELR {
		if c.electable(b) {
			r.ELR = append(without(r.ELR, b), r.ISR...)
			r.ISR = []int32{b}
			c.lead(b)
			return true
		}
	}
	return c.electUncleanOS() || c.electUnclean()
}

// electUnclean elects whoever is there, once the lease of the leader before is over.
func (c *simController) electUnclean() bool {
	r := &c.now
	if !c.w.unclean || c.w.now < c.w.leases[c.lastLeader]+simLease+5*time.Millisecond {
		return false
	}
	for _, b := range r.Replicas {
		if n := c.w.nodes[b]; n.up && !r.fenced[b] && r.incarnation[b] == n.inc {
			r.ISR, r.ELR, r.Barred = []int32{b}, nil, nil
			c.lead(b)
			r.UncleanEpoch = r.LeaderEpoch
			c.w.lossy = true
			c.w.acked = map[int]int64{}
			c.w.count("unclean election")
			return true
		}
	}
	return false
}

// electUncleanOS elects the longest log when every member has vouched and all went
// down uncleanly, which is beyond what the topic promises.
func (c *simController) electUncleanOS() bool {
	r := &c.now
	members := append(slices.Clone(r.ISR), r.ELR...)
	best, longest := int32(0), int64(-1)
	for _, b := range members {
		n := c.w.nodes[b]
		if r.fenced[b] || !n.up || n.disk.verdict != UncleanOS || r.incarnation[b] != n.inc {
			return false
		}
		if at := int64(n.disk.lastEpoch()+1)<<32 + n.disk.end(); at > longest {
			best, longest = b, at
		}
	}
	r.Barred = without(r.Barred, best)
	r.ISR, r.ELR = []int32{best}, without(members, best)
	c.lead(best)
	return true
}

func (c *simController) lead(b int32) {
	c.now.Leader = Replica{Broker: b, Incarnation: c.now.incarnation[b]}
	c.now.LeaderEpoch++
	c.lastLeader = b
}

// dropBarred takes barred members out once a trusted one leads.
func (c *simController) dropBarred() bool {
	r := &c.now
	if (r.Leader == Replica{}) || c.isIn(r.Barred, r.Leader.Broker) || len(r.Barred) == 0 {
		return false
	}
	// A barred member has not everything that was committed, whatever the set's size.
	for _, b := range r.Barred {
		r.ISR, r.ELR = without(r.ISR, b), without(r.ELR, b)
	}
	return true
}

// shrink takes a member out of the in-sync set.
func (c *simController) shrink(b int32) {
	r := &c.now
	r.ISR = without(r.ISR, b)
	if len(r.ISR) < int(r.MinISR) && !c.isIn(r.Barred, b) {
		r.ELR = append(slices.Clone(r.ELR), b)
	}
}

// fence makes a broker unelectable, and moves what it leads.
func (c *simController) fence(b int32) {
	r := &c.now
	if r.fenced[b] {
		return
	}
	r.fenced[b] = true
	others := slices.ContainsFunc(r.ISR, func(m int32) bool { return m != b && c.electable(m) })
	if r.Leader.Broker == b {
		r.Leader = Replica{}
	}
	if c.isIn(r.ISR, b) && others {
		c.shrink(b)
	}
	c.elect()
	c.write("fence")
}

// vouch takes a started broker's word for its replica.
func (c *simController) vouch(n *node) {
	r := &c.now
	if !n.up || r.incarnation[n.id] == n.inc && !r.fenced[n.id] {
		return
	}
	if r.incarnation[n.id] == n.inc {
		// The same process, fenced by mistake: back once it leads nothing.
		if r.Leader.Broker == n.id {
			return
		}
		r.fenced[n.id] = false
		c.elect()
		c.write("unfence")
		return
	}
	if r.Leader.Broker == n.id {
		r.Leader = Replica{}
	}
	r.Barred = without(r.Barred, n.id)
	if n.disk.verdict != Intact {
		r.Barred = append(slices.Clone(r.Barred), n.id)
	}
	r.incarnation[n.id], r.fenced[n.id] = n.inc, false
	c.elect()
	c.write("vouch")
}

// review does what is due by itself.
func (c *simController) review() {
	if c.elect() {
		c.write("elect")
	}
	if c.dropBarred() {
		c.write("drop barred")
	}
}

// move hands leadership to another member, as a balancer would.
func (c *simController) move() {
	r := &c.now
	if (r.Leader == Replica{}) {
		return
	}
	var may []int32
	for _, b := range r.ISR {
		if b != r.Leader.Broker && c.electable(b) {
			may = append(may, b)
		}
	}
	if len(may) > 0 {
		c.lead(may[c.w.n(len(may))])
		c.write("move")
	}
}

// setMin changes min.insync.replicas.
func (c *simController) setMin(m int32) {
	if c.now.MinISR != m {
		c.now.MinISR = m
		c.write("min")
	}
}

// proposed is a proposal on its way.
type proposed struct {
	from Replica
	Propose
}

// proposeISR decides on a proposal; a refused one whose epochs are current still
// raises the partition epoch.
func (c *simController) proposeISR(p *proposed) {
	r := &c.now
	if r.Leader != p.from || r.LeaderEpoch != p.LeaderEpoch || r.PartEpoch != p.PartEpoch {
		c.w.count("stale proposal")
		return
	}
	var isr []int32
	for _, m := range p.ISR {
		if c.isIn(r.ISR, m.Broker) {
			isr = append(isr, m.Broker)
			continue
		}
		if r.fenced[m.Broker] || r.incarnation[m.Broker] != m.Incarnation || c.w.faults && c.w.chance(10) {
			c.w.count("refused proposal")
			c.write("refuse a proposal")
			return
		}
		isr = append(isr, m.Broker)
		r.Barred = without(r.Barred, m.Broker)
	}
	for _, b := range slices.Clone(r.ISR) {
		if !c.isIn(isr, b) {
			c.shrink(b)
		}
	}
	r.ISR = isr
	if len(r.ISR) < int(r.MinISR) {
		r.ELR = slices.DeleteFunc(slices.Clone(r.ELR), func(b int32) bool { return c.isIn(isr, b) })
	}
	c.w.count("proposal applied")
	c.write("apply a proposal")
}
