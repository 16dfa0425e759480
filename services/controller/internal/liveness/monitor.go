package liveness

import (
	"context"
	"log/slog"
	"slices"
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

	ask4reach chan struct{} // holds one token while the standbys should be asked

	mu      sync.Mutex
	leading bool
	since   time.Time // of the term or of the monitor
	targets map[target]*watched
	missing map[cluster.Process]absence // brokers on record whose key is gone
	survey  survey
	answers chan struct{} // closed and replaced with every sign of life

	calm     time.Time     // until when no leader is replaced because it is not reached
	calmStep time.Duration // the last wait of that kind
}

// target is one life of one process at one address.
type target struct {
	kind    cluster.ServiceKind
	process cluster.Process
	address string
}

// watched is what is known of a target.
type watched struct {
	cancel  context.CancelFunc
	nudge   chan struct{}    // holds one token while a question should be put at once
	verdict registry.Verdict // Refused or Replaced once it is proved dead
	sign    sign             // the newest
	// goal is a question whose revision the broker has not shown yet, and heard when
	// the last one was put whose revision it has shown since.
	goal  question
	heard time.Time
}

// sign is a broker's sign of life that counts: under its incarnation, with good
// disks.
type sign struct {
	at          time.Time // when it came
	question    question  // the newest that was answered
	revision    int64     // of the metadata that the broker showed
	unreachable []int32   // leaders that the broker cannot follow
	deaf        []int32   // leaders that have not answered it in a leader epoch
}

// fresh tells whether the sign is young enough to count.
func (s sign) fresh() bool { return s.age() < freshness }

func (s sign) age() time.Duration { return time.Since(s.at) }

// absence is since when, and at which revision, a broker's key is missing.
type absence struct {
	since    time.Time
	revision int64
}

// New makes a monitor; nothing happens before Run.
func New(cfg Config) *Monitor {
	return &Monitor{
		cfg: cfg, wake: make(chan struct{}, 1), kick: make(chan struct{}, 1), ask4reach: make(chan struct{}, 1),
		since: time.Now(), targets: map[target]*watched{}, missing: map[cluster.Process]absence{},
		answers: make(chan struct{}),
	}
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
	m.leading, m.since, m.survey = leading, time.Now(), survey{asking: m.survey.asking}
	clear(m.missing) // a new term gives every absent broker its time
	m.mu.Unlock()
	m.nudge() // a standby's last question may be long ago
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
	wg.Go(func() { m.surveys(ctx) })
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
		nudge := make(chan struct{}, 1)
		m.targets[t] = &watched{cancel: cancel, nudge: nudge}
		wg.Go(func() {
			defer cancel()
			if t.kind == cluster.KindBroker {
				m.watchBroker(watchCtx, t, nudge)
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

// hear takes note of how far the broker has come with the metadata.
func (w *watched) hear() {
	if w.goal.at.IsZero() {
		w.goal = w.sign.question
	}
	for w.sign.revision >= w.goal.revision {
		w.heard = w.goal.at
		if !w.goal.at.Before(w.sign.question.at) {
			return
		}
		w.goal = w.sign.question
	}
}

// Hears tells whether a broker keeps up with the metadata: it has shown lately what was
// known a moment before. One that reaches no controller does not, whatever its lease
// says; elected, it would not hear of it.
func (m *Monitor) Hears(life cluster.Process) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hears(life)
}

// hears is Hears for those who hold mu.
func (m *Monitor) hears(life cluster.Process) bool {
	for t, w := range m.targets {
		if t.kind == cluster.KindBroker && t.process == life && !w.verdict.Dead() && time.Since(w.heard) < deafLimit {
			return true
		}
	}
	return false
}

// alive records a sign of life that counts.
func (m *Monitor) alive(t target, s sign) {
	m.mu.Lock()
	w := m.targets[t]
	news := false
	if w != nil {
		news = !w.sign.fresh() || !slices.Equal(w.sign.unreachable, s.unreachable) || !slices.Equal(w.sign.deaf, s.deaf)
		s.revision = max(s.revision, w.sign.revision)
		if s.question.at.Before(w.sign.question.at) {
			s.question = w.sign.question
		}
		w.sign = s
		w.hear()
	}
	close(m.answers)
	m.answers = make(chan struct{})
	m.mu.Unlock()
	if news {
		m.poke()
	}
}
