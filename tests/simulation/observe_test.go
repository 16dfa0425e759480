package simulation

import (
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
)

// observe is what an elected controller has found out or has to do by itself; nil:
// nothing.
func (c *controller) observe() *command {
	if cmd := c.doubtful(); cmd != nil {
		return cmd
	}
	over := c.noteWaits()
	if over || c.tidied != c.pos {
		at := c.pos
		return &command{name: "reconcile", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
			plan, err := cluster.Reconcile(s, cluster.Hints{Overdue: c.overdue})
			if err == nil && plan.IsEmpty() {
				c.tidied = at
			}
			return plan, err
		}}
	}
	if len(c.state.Reassignments()) > 0 && c.w.chance(50) {
		return &command{name: "advance reassignments", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
			plan, _, err := cluster.AdvanceReassignments(s, c.probes())
			return plan, err
		}}
	}
	if c.w.chance(5) {
		return &command{name: "preferred leaders", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
			probes := c.probes()
			plan, err := cluster.PreferredMoves(s, 10, func(life cluster.Process) bool { _, ok := probes[life]; return !ok })
			if err == nil && !plan.IsEmpty() {
				c.w.count("preferred leader moved")
			}
			return plan, err
		}}
	}
	return nil
}

// noteWaits takes note of what partitions wait for, and tells whether one of them
// has for long enough.
func (c *controller) noteWaits() (over bool) {
	now := cluster.Waiting(c.state)
	if len(now) == 0 && len(c.waits) == 0 {
		return false
	}
	was := c.waits
	c.waits = nil
	for _, wait := range now {
		if c.waits == nil {
			c.waits = map[cluster.Wait]time.Duration{}
		}
		since, ok := was[wait]
		if !ok {
			since = c.w.now
		}
		c.waits[wait] = since
		over = over || c.overdue(wait)
	}
	return over
}

func (c *controller) overdue(wait cluster.Wait) bool {
	since, ok := c.waits[wait]
	limit := folderWait
	if wait.Kind == cluster.WaitUnclean {
		limit = uncleanWait
	}
	return ok && c.w.now-since >= limit
}

// answers reports whether a broker's life answers a probe of this controller now.
func (c *controller) answers(life cluster.Process) bool {
	b := c.w.broker(life.ID)
	return b != nil && b.runs() && b.inc == life.Incarnation && !b.diskHung && c.w.reaches(c.node(), b.node())
}

// proved reports whether a life is proved dead: its address refuses, or another
// incarnation answers there. A host without power refuses nothing.
func (c *controller) proved(life cluster.Process) bool {
	b := c.w.broker(life.ID)
	if b == nil || !c.w.reaches(c.node(), b.node()) {
		return false
	}
	if b.up {
		return !b.paused && b.inc != life.Incarnation
	}
	return !b.hostDown
}

// probes are the lives that answer, with the revision that was known when asked.
func (c *controller) probes() cluster.Probes {
	probes := cluster.Probes{}
	for _, b := range c.state.Brokers() {
		if c.answers(b.Value.Process) {
			probes[b.Value.Process] = c.rev
		}
	}
	return probes
}

// doubtful is what is to be done about a broker that is dead, silent or back.
func (c *controller) doubtful() *command {
	brokers := c.state.Brokers()
	at := c.w.n(len(brokers))
	for i := range brokers {
		b := brokers[(at+i)%len(brokers)].Value
		life := b.Process
		reg := c.state.Registration(cluster.KindBroker, life.ID)
		registered := reg != nil && reg.Value.Process == life
		switch {
		case !b.Fenced && c.w.chance(70) && c.proved(life):
			return c.fence(life, true)
		case !b.Fenced && !registered && c.silent(life):
			return c.fence(life, false)
		case b.Fenced && registered && !b.Draining && c.answers(life):
			return &command{name: "unfence broker", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
				plan, err := cluster.UnfenceBroker(s, life)
				if err == nil && !plan.IsEmpty() {
					c.w.count("broker back without a vouch")
				}
				return plan, err
			}}
		case reg != nil && reg.Value.Process != life && c.proved(reg.Value.Process):
			return c.drop(reg.Value)
		case registered && c.proved(life):
			return c.drop(reg.Value)
		}
		if registered {
			delete(c.missing, life)
		}
	}
	return c.unreachable()
}

// silent reports whether a life whose registration is gone gives no sign that is
// newer than that.
func (c *controller) silent(life cluster.Process) bool {
	gone, ok := c.missing[life]
	if !ok {
		gone = absence{since: c.w.now, rev: c.rev}
		c.missing[life] = gone
	}
	if b := c.w.broker(life.ID); c.answers(life) && b.rev >= gone.rev {
		return false
	}
	return c.w.now-gone.since >= leaseTTL/5
}

func (c *controller) fence(life cluster.Process, proof bool) *command {
	return &command{name: "fence broker", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
		if reg := s.Registration(cluster.KindBroker, life.ID); !proof && reg != nil && reg.Value.Process == life {
			return cluster.Plan{}, nil
		}
		plan, err := cluster.FenceBroker(s, life)
		if err == nil && !plan.IsEmpty() {
			c.w.count("broker fenced")
		}
		return plan, err
	}}
}

func (c *controller) drop(r cluster.Registration) *command {
	return &command{name: "drop registration", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
		return cluster.DropRegistration(s, r.Kind, r.Process)
	}}
}

// unreachable has leaders replaced that no other member of the ISR reaches.
func (c *controller) unreachable() *command {
	if len(c.w.down) == 0 || c.w.now < c.calm || !c.w.chance(20) {
		return nil
	}
	reports := map[cluster.Process][]cluster.Process{}
	for _, b := range c.state.Brokers() {
		if !c.answers(b.Value.Process) {
			continue
		}
		for _, other := range c.state.Brokers() {
			if other.Value.Process != b.Value.Process && !other.Value.Fenced && !c.w.reaches(node{cluster.KindBroker, b.Value.Process.ID}, node{cluster.KindBroker, other.Value.Process.ID}) {
				reports[b.Value.Process] = append(reports[b.Value.Process], other.Value.Process)
			}
		}
	}
	if len(reports) == 0 {
		return nil
	}
	return &command{name: "leaders unreachable", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
		plan, err := cluster.LeadersUnreachable(s, reports)
		if err == nil && !plan.IsEmpty() {
			c.w.count("unreachable leader replaced")
			c.calm = c.w.now + leaseTTL
		}
		return plan, err
	}}
}

// leader is the controller that leads by etcd's own word, nil without one.
func (w *world) leader() *controller {
	p, _, ok := w.etcd.electionAt(w.etcd.rev)
	if !ok {
		return nil
	}
	c := w.ctls[p.ID-1]
	if c.inc != p.Incarnation || !c.up {
		return nil
	}
	return c
}
