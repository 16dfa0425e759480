package liveness

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
)

const (
	// freshness is how old a sign of life may be to count.
	freshness = 1200 * time.Millisecond
	// deafLimit is how old the metadata may be that a broker shows, to be preferred as
	// a leader. Standbys ask once a second, and heartbeats bring the newest revision
	// every half.
	deafLimit = 3 * time.Second
	// absenceLimit is how long a broker whose key has gone has to give a sign of
	// life that is newer than that.
	absenceLimit = time.Second
	// minCalm and maxCalm bound the time between two changes of leaders that their
	// followers cannot reach.
	minCalm = 3 * time.Second
	maxCalm = time.Minute
)

// Observe lists what the leader must do about what has been found out. It is
// called in the leader's loop.
func (m *Monitor) Observe(state *cluster.State, revision int64) []reconcile.Command {
	m.mu.Lock()
	defer m.mu.Unlock()
	var commands []reconcile.Command
	var silent []doubted
	seen := map[cluster.Process]bool{}
	unfenced, unheard := 0, 0
	for _, b := range state.Brokers() {
		life := b.Value.Process
		seen[life] = true
		t := target{cluster.KindBroker, life, b.Value.Address}
		if !b.Value.Fenced {
			unfenced++
			if w := m.targets[t]; w == nil || w.sign.age() > freshness/2 {
				unheard++
			}
		}
		reg := state.Registration(cluster.KindBroker, life.ID)
		registered := reg != nil && reg.Value.Process == life
		switch why := m.doubt(t, registered, revision); {
		case !b.Value.Fenced && why != "" && m.proved(t):
			commands = append(commands, m.fence(life, why, true))
		case !b.Value.Fenced && why != "":
			silent = append(silent, doubted{life, why})
		case b.Value.Fenced && registered && !b.Value.Draining && m.answersUnder(reg.Value):
			commands = append(commands, m.unfence(life))
		}
	}
	for life := range m.missing {
		if !seen[life] {
			delete(m.missing, life)
		}
	}
	commands = append(commands, m.silence(silent, unheard, unfenced)...)
	commands = append(commands, m.unreachable(state)...)
	// Fencing comes first: it is what clients wait for.
	for t, w := range m.targets {
		if !w.verdict.Dead() {
			continue
		}
		if reg := state.Registration(t.kind, t.process.ID); reg != nil && reg.Value.Process == t.process && reg.Value.Address == t.address {
			commands = append(commands, m.drop(t, w.verdict))
		}
	}
	return commands
}

// doubted is a life that gives no sign, without a proof of its death.
type doubted struct {
	life cluster.Process
	why  string
}

// silence decides about brokers that give no sign of life. If many were not heard of
// late, also some whose keys are still there, it may be this controller that is cut
// off: it gives way if a standby reaches more, and fences them only when it knows of
// none.
func (m *Monitor) silence(silent []doubted, unheard, unfenced int) []reconcile.Command {
	if len(silent) > 0 && unheard > 1 && 2*unheard >= unfenced {
		own := 0
		for t, w := range m.targets {
			if t.kind == cluster.KindBroker && !w.verdict.Dead() && w.sign.fresh() {
				own++
			}
		}
		best, known := m.standbyReach()
		if !known {
			return nil
		}
		if best > own {
			return []reconcile.Command{{Name: "give way", Plan: func(*cluster.State, int) (cluster.Plan, error) {
				return cluster.Plan{}, fmt.Errorf("%w: this controller reaches %d brokers, a standby %d", reconcile.ErrGiveWay, own, best)
			}}}
		}
	}
	commands := make([]reconcile.Command, 0, len(silent))
	for _, s := range silent {
		commands = append(commands, m.fence(s.life, s.why, false))
	}
	return commands
}

// doubt says why a life should be fenced; empty: it should not. A lease alone
// proves nothing: with the key gone, a sign of life that shows metadata from
// after that is enough.
func (m *Monitor) doubt(t target, registered bool, revision int64) string {
	w := m.targets[t]
	if m.proved(t) {
		return w.verdict.String()
	}
	if registered {
		delete(m.missing, t.process)
		return ""
	}
	gone, ok := m.missing[t.process]
	if !ok {
		gone = absence{since: time.Now(), revision: revision}
		m.missing[t.process] = gone
	}
	switch {
	case w != nil && w.sign.fresh() && w.sign.revision >= gone.revision:
		return ""
	case w != nil && !w.sign.fresh() && time.Since(m.since) > freshness:
		// The verdict was ready when the key went.
	case time.Since(gone.since) < absenceLimit:
		return ""
	}
	return "its registration is gone and it gives no sign of life"
}

// proved tells whether a life is proved dead.
func (m *Monitor) proved(t target) bool {
	w := m.targets[t]
	return w != nil && w.verdict.Dead()
}

// answersUnder tells whether a registered broker gives signs of life.
func (m *Monitor) answersUnder(r cluster.Registration) bool {
	w := m.targets[target{cluster.KindBroker, r.Process, r.Address}]
	return w != nil && !w.verdict.Dead() && w.sign.fresh()
}

// fence fences a life; proof says that it is proved dead and not merely absent.
func (m *Monitor) fence(life cluster.Process, why string, proof bool) reconcile.Command {
	changes := false
	return reconcile.Command{
		Name: "fence broker",
		Plan: func(state *cluster.State, _ int) (cluster.Plan, error) {
			// Time may have passed since this was found out, with etcd away: only a
			// proof of death stands when the key is back.
			if reg := state.Registration(cluster.KindBroker, life.ID); !proof && reg != nil && reg.Value.Process == life {
				return cluster.Plan{}, nil
			}
			plan, err := cluster.FenceBroker(state, life)
			changes = !plan.IsEmpty()
			return plan, err
		},
		Done: func(revision int64) {
			if changes {
				m.cfg.Logger.Warn("broker fenced", "broker", life.ID, "broker_incarnation", life.Incarnation, "reason", why, "revision", revision)
			}
		},
	}
}

func (m *Monitor) unfence(life cluster.Process) reconcile.Command {
	changes := false
	return reconcile.Command{
		Name: "unfence broker",
		Plan: func(state *cluster.State, _ int) (cluster.Plan, error) {
			plan, err := cluster.UnfenceBroker(state, life)
			changes = !plan.IsEmpty()
			return plan, err
		},
		Done: func(revision int64) {
			if changes {
				m.cfg.Logger.Info("broker unfenced", "broker", life.ID, "broker_incarnation", life.Incarnation, "reason", "it answers again", "revision", revision)
			}
		},
	}
}

// unreachable has leaders replaced that their followers cannot reach, or that have not
// heard of their leadership: they do not answer their followers, and do not keep up
// with the metadata. One that does is merely slow. After a change
// it waits a while before the next, longer each time: a broker with a bad network
// must not make leadership go round and round.
func (m *Monitor) unreachable(state *cluster.State) []reconcile.Command {
	reports := map[cluster.Process][]cluster.Process{}
	for t, w := range m.targets {
		if t.kind != cluster.KindBroker || w.verdict.Dead() || !w.sign.fresh() {
			continue
		}
		for _, id := range slices.Concat(w.sign.unreachable, w.sign.deaf) {
			b := state.Broker(id)
			if b == nil || b.Value.Fenced || b.Value.Process == t.process {
				continue
			}
			if slices.Contains(w.sign.unreachable, id) || !m.hears(b.Value.Process) {
				reports[t.process] = append(reports[t.process], b.Value.Process)
			}
		}
	}
	if len(reports) == 0 || time.Now().Before(m.calm) {
		return nil
	}
	changes := false
	return []reconcile.Command{{
		Name: "leaders unreachable", Cause: "every follower reports the leader unreachable",
		Plan: func(state *cluster.State, _ int) (cluster.Plan, error) {
			plan, err := cluster.LeadersUnreachable(state, reports)
			changes = changes || !plan.IsEmpty()
			return plan, err
		},
		Done: func(int64) {
			if changes {
				m.becalm()
			}
		},
	}}
}

// becalm sets when leaders may next be replaced because they are not reached.
func (m *Monitor) becalm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.calm) > maxCalm {
		m.calmStep = 0
	}
	m.calmStep = min(max(2*m.calmStep, minCalm), maxCalm)
	m.calm = now.Add(m.calmStep)
}

// drop removes the registration of a dead life.
func (m *Monitor) drop(t target, v registry.Verdict) reconcile.Command {
	changes := false
	return reconcile.Command{
		Name: "drop registration",
		Plan: func(state *cluster.State, _ int) (cluster.Plan, error) {
			plan, err := cluster.DropRegistration(state, t.kind, t.process)
			changes = !plan.IsEmpty()
			return plan, err
		},
		Done: func(int64) {
			if changes {
				m.cfg.Logger.Info("registration of a dead process removed", slog.String("of", registry.KindName(t.registry().Kind)),
					"process", t.process.ID, "address", t.address, "reason", v.String())
			}
		},
	}
}
