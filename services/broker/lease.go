package broker

import (
	"sync"
	"time"
)

// leaseGate passes renewals of the registration's lease on to the replicas, once the
// replicas have been told the metadata up to the registration. A lease that was lost and
// granted anew proves nothing before that: meanwhile another leader may have been elected
// uncleanly, and this one, alone in its in-sync set, would go on committing.
type leaseGate struct {
	registration func() int64 // create revision of the registration key; 0: there is none
	tell         func(asked time.Time)

	mu      sync.Mutex
	applied int64     // revision of the metadata that the replicas have been told
	asked   time.Time // of the newest renewal that has not been passed on; zero: none
}

// renewed takes note of a renewal and when it was asked for.
func (g *leaseGate) renewed(asked time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = asked
	g.pass()
}

// reached takes note that the replicas have been told the metadata of a revision.
func (g *leaseGate) reached(revision int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.applied = revision
	g.pass()
}

// pass passes the renewal on, if it counts by now. The caller holds mu.
func (g *leaseGate) pass() {
	registration := g.registration()
	if g.asked.IsZero() || g.applied == 0 || registration == 0 || g.applied < registration {
		return
	}
	g.tell(g.asked)
	g.asked = time.Time{}
}
