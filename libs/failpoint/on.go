//go:build failpoints

package failpoint

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Enabled says whether places are compiled in.
const Enabled = true

// place is one place; it exists from its first hit or arming on.
type place struct {
	mu    sync.Mutex
	does  *action // nil: disarmed
	freed chan struct{}
	hits  int64 // times the code came by
	fired int64 // times something happened
}

// The state of the process. It exists in builds for tests alone, where a place has to
// be reached from anywhere without being handed down through everything.
var (
	placesMu sync.Mutex
	places   = map[string]*place{}
	skew     atomic.Int64 // ns
	_        = armAtStart()
)

// armAtStart heeds the environment; a wrong variable ends the process, since a test
// that arms nothing would pass.
func armAtStart() bool {
	text := os.Getenv("LEAT_FAILPOINTS")
	if err := Arm(text); err != nil {
		fmt.Fprintf(os.Stderr, "LEAT_FAILPOINTS: %v\n", err)
		os.Exit(2)
	}
	return text != ""
}

func placeOf(name string) *place {
	placesMu.Lock()
	defer placesMu.Unlock()
	p := places[name]
	if p == nil {
		p = &place{}
		places[name] = p
	}
	return p
}

// Hit does what the place is armed with; the error, if any, is the step's.
func Hit(name string) error {
	p := placeOf(name)
	p.mu.Lock()
	p.hits++
	a := p.does
	if a == nil || !a.due() {
		p.mu.Unlock()
		return nil
	}
	p.fired++
	freed := p.freed
	p.mu.Unlock()
	return a.do(name, freed)
}

// due reports whether the action takes place this time. The place's lock is held.
func (a *action) due() bool {
	if a.skip > 0 {
		a.skip--
		return false
	}
	if a.percent < 100 && rand.Float64()*100 >= a.percent {
		return false
	}
	if a.times == 0 {
		return false
	}
	if a.times > 0 {
		a.times--
	}
	return true
}

func (a *action) do(name string, freed <-chan struct{}) error {
	switch a.kind {
	case doDelay:
		select {
		case <-time.After(a.wait):
		case <-freed:
		}
		return nil
	case doPause:
		<-freed
		return nil
	case doCrash:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // nothing goes on from here
	default:
		return &Error{Place: name, Err: a.err}
	}
}

// Arm arms and disarms places, all or none.
func Arm(text string) error {
	entries, err := parse(text)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.name == clockName {
			skew.Store(int64(e.does.wait))
			continue
		}
		p := placeOf(e.name)
		p.mu.Lock()
		if p.freed != nil {
			close(p.freed)
		}
		p.does, p.freed = nil, nil
		if e.does.kind != doNothing {
			p.does, p.freed = e.does, make(chan struct{})
		}
		p.mu.Unlock()
	}
	return nil
}

// Now is the time, skewed if that is armed.
func Now() time.Time { return time.Now().Add(time.Duration(skew.Load())) }

// Count is how often the code came by a place and how often something happened.
type Count struct {
	Hits  int64 `json:"hits"`
	Fired int64 `json:"fired"`
}

// Counts tells the counts of all places that were passed or armed.
func Counts() map[string]Count {
	placesMu.Lock()
	defer placesMu.Unlock()
	counts := map[string]Count{}
	for name, p := range places {
		p.mu.Lock()
		counts[name] = Count{p.hits, p.fired}
		p.mu.Unlock()
	}
	return counts
}
