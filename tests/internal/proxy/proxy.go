package proxy

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Client is the name of callers whose address has none.
const Client = "client"

// pair is a direction: bytes that from sends and to receives.
type pair struct{ from, to string }

// fault is what is wrong with a direction.
type fault struct {
	cut   bool
	stall bool
	delay time.Duration
}

// Network is a set of proxies and what is wrong between whom. It is safe for
// concurrent use.
type Network struct {
	mu        sync.Mutex
	hosts     map[string]string // name by IP address
	faults    map[pair]fault
	changed   chan struct{}        // closed and replaced at each change of faults
	endpoints map[string]*Endpoint // by address
	links     map[*link]struct{}
	silenced  map[string]bool
	closed    bool
	wait      sync.WaitGroup
}

// New returns a network in which nothing is wrong.
func New() *Network {
	return &Network{
		hosts: map[string]string{}, faults: map[pair]fault{}, changed: make(chan struct{}),
		endpoints: map[string]*Endpoint{}, links: map[*link]struct{}{}, silenced: map[string]bool{},
	}
}

// Host gives the callers from an IP address a name.
func (n *Network) Host(ip, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[ip] = name
}

// Listen makes a proxy of a process, which has one for each address that it listens
// on: connections to addr are carried to target. It refuses them until Up.
func (n *Network) Listen(name, addr, target string) (*Endpoint, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.endpoints[addr] != nil {
		return nil, fmt.Errorf("%s has a proxy already", addr)
	}
	e := &Endpoint{network: n, name: name, addr: addr, target: target}
	n.endpoints[addr] = e
	return e, nil
}

// set changes what is wrong in both directions between two names, or in one.
func (n *Network) set(pairs []pair, change func(*fault)) {
	n.mu.Lock()
	var broken []*link
	for _, p := range pairs {
		f := n.faults[p]
		change(&f)
		if f == (fault{}) {
			delete(n.faults, p)
		} else {
			n.faults[p] = f
		}
		if !f.cut {
			continue
		}
		for l := range n.links {
			if l.between(p) {
				broken = append(broken, l)
			}
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
	for _, l := range broken {
		l.close()
	}
}

func both(a string, others []string) []pair {
	var pairs []pair
	for _, b := range others {
		pairs = append(pairs, pair{a, b}, pair{b, a})
	}
	return pairs
}

// Cut breaks all connections between a and the others, and closes new ones as
// soon as they are made: both sides notice.
func (n *Network) Cut(a string, others ...string) {
	n.set(both(a, others), func(f *fault) { f.cut = true })
}

// Stall lets connections between a and the others stand and carry nothing, as a
// network does that loses every packet: nobody is told.
func (n *Network) Stall(a string, others ...string) {
	n.set(both(a, others), func(f *fault) { f.stall = true })
}

// StallOneWay is Stall for what from sends to to; the way back works.
func (n *Network) StallOneWay(from, to string) {
	n.set([]pair{{from, to}}, func(f *fault) { f.stall = true })
}

// Delay lets bytes between a and the others take their time: at least d, about
// twice that when many follow each other.
func (n *Network) Delay(d time.Duration, a string, others ...string) {
	n.set(both(a, others), func(f *fault) { f.delay = d })
}

// Heal ends what is wrong between a and the others. What a stall held back is
// delivered then.
func (n *Network) Heal(a string, others ...string) {
	n.set(both(a, others), func(f *fault) { *f = fault{} })
}

// HealAll ends everything that is wrong.
func (n *Network) HealAll() {
	n.mu.Lock()
	var all []pair
	for p := range n.faults {
		all = append(all, p)
	}
	n.mu.Unlock()
	n.set(all, func(f *fault) { *f = fault{} })
}

// Silence breaks all connections from and to a name and every new one, whatever
// else is healed, until Revive: for a process that is about to be ended and is to
// tell nobody.
func (n *Network) Silence(name string) {
	n.mu.Lock()
	n.silenced[name] = true
	var broken []*link
	for l := range n.links {
		if l.from == name || l.to == name {
			broken = append(broken, l)
		}
	}
	n.mu.Unlock()
	for _, l := range broken {
		l.close()
	}
}

// Revive ends Silence.
func (n *Network) Revive(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.silenced, name)
}

// Faults lists what is wrong, for logs.
func (n *Network) Faults() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []string
	for p, f := range n.faults {
		list = append(list, fmt.Sprintf("%s to %s: %+v", p.from, p.to, f))
	}
	slices.Sort(list)
	return list
}

// state is what is wrong in a direction, and what is closed when that changes.
func (n *Network) state(p pair) (fault, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults[p], n.changed
}

func (n *Network) nameOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return Client
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if name, ok := n.hosts[host]; ok {
		return name
	}
	return Client
}

// Close ends all proxies and connections and waits for them.
func (n *Network) Close() error {
	n.mu.Lock()
	n.closed = true
	endpoints := n.endpoints
	var links []*link
	for l := range n.links {
		links = append(links, l)
	}
	n.mu.Unlock()
	var errs []error
	for _, e := range endpoints {
		errs = append(errs, e.Down())
	}
	for _, l := range links {
		l.close()
	}
	n.wait.Wait()
	return errors.Join(errs...)
}
