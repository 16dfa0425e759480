package liveness

import (
	"context"
	"log/slog"
	"sync"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/controller/internal/store"
)

// Config says what a Monitor works with.
type Config struct {
	Store  *store.Store
	Self   cluster.Process
	Dial   rpc.DialConfig
	Prober *registry.Prober
	Logger *slog.Logger
}

// Monitor watches processes. Its methods are safe for concurrent use; Run is
// called once.
type Monitor struct {
	cfg  Config
	wake chan struct{} // holds one token while there is news
	kick chan struct{} // holds one token while Run should look whom to watch

	mu      sync.Mutex
	leading bool
	targets map[target]*watched
	missing map[cluster.Process]absence // brokers on record whose key is gone
}

// target is one life of one process at one address.
type target struct {
	kind    cluster.ServiceKind
	process cluster.Process
	address string
}

// watched is what is known of a target.
type watched struct {
	cancel   context.CancelFunc
	verdict  registry.Verdict // Refused or Replaced once it is proved dead
	answered time.Time        // when it last gave a sign of life that counts
	revision int64            // revision of the metadata that the sign showed
}

// absence is since when, and at which revision, a broker's key is missing.
type absence struct {
	since    time.Time
	revision int64
}

// New makes a monitor; nothing happens before Run.
func New(cfg Config) *Monitor {
	return &Monitor{cfg: cfg, wake: make(chan struct{}, 1), kick: make(chan struct{}, 1), targets: map[target]*watched{}, missing: map[cluster.Process]absence{}}
}

// Wake is readable when there is news to Observe.
func (m *Monitor) Wake() <-chan struct{} { return m.wake }

func (m *Monitor) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// SetLeading tells whether this controller leads. A standby watches brokers only,
// at a fifth of the rate.
func (m *Monitor) SetLeading(leading bool) {
	m.mu.Lock()
	m.leading = leading
	clear(m.missing) // a new term gives every absent broker its time
	m.mu.Unlock()
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

func (m *Monitor) isLeading() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leading
}

// Run watches until ctx ends, and returns nil then, with all it started ended.
func (m *Monitor) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		changed := m.cfg.Store.Changed()
		m.retarget(ctx, &wg)
		select {
		case <-changed:
		case <-m.kick:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// retarget starts watching whom it should and stops watching whom it should not.
func (m *Monitor) retarget(ctx context.Context, wg *sync.WaitGroup) {
	want := m.wanted()
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, w := range m.targets {
		if !want[t] {
			w.cancel()
			delete(m.targets, t)
		}
	}
	for t := range want {
		if m.targets[t] != nil {
			continue
		}
		watchCtx, cancel := context.WithCancel(ctx)
		m.targets[t] = &watched{cancel: cancel}
		wg.Go(func() {
			defer cancel()
			if t.kind == cluster.KindBroker {
				m.watchBroker(watchCtx, t)
			} else if v := m.cfg.Prober.AwaitDeath(watchCtx, t.registry()); v.Dead() {
				m.dead(t, v)
			}
		})
	}
}

// wanted lists whom to watch: brokers by registration and by unfenced record; if
// leading, everybody else who is registered.
func (m *Monitor) wanted() map[target]bool {
	leading := m.isLeading()
	want := map[target]bool{}
	m.cfg.Store.View(func(state *cluster.State, _ int64) {
		for _, r := range state.Registrations(0) {
			self := r.Value.Kind == cluster.KindController && r.Value.Process == m.cfg.Self
			if r.Value.Kind == cluster.KindBroker || leading && !self {
				want[target{r.Value.Kind, r.Value.Process, r.Value.Address}] = true
			}
		}
		for _, b := range state.Brokers() {
			if !b.Value.Fenced {
				want[target{cluster.KindBroker, b.Value.Process, b.Value.Address}] = true
			}
		}
	})
	return want
}

func (t target) registry() registry.Target {
	return registry.Target{
		Kind:    controllerv1.ServiceKind(t.kind),
		Process: &typev1.Process{Id: t.process.ID, Incarnation: t.process.Incarnation},
		Address: t.address,
	}
}

// dead records a proof of death.
func (m *Monitor) dead(t target, v registry.Verdict) {
	m.mu.Lock()
	if w := m.targets[t]; w != nil {
		w.verdict = v
	}
	m.mu.Unlock()
	m.poke()
}

// alive records a sign of life that counts.
func (m *Monitor) alive(t target, revision int64) {
	m.mu.Lock()
	w := m.targets[t]
	news := false
	if w != nil {
		news = time.Since(w.answered) > freshness
		w.answered, w.revision = time.Now(), max(w.revision, revision)
	}
	m.mu.Unlock()
	if news {
		m.poke()
	}
}
