package liveness

import (
	"context"
	"sync"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/rpc"
)

const (
	// probeLimit bounds the wait for answers to questions put at once.
	probeLimit = time.Second
	// surveyLimit bounds the question to the standbys whom they reach; their own
	// probes are bounded by half of it.
	surveyLimit = 2 * time.Second
	// surveyAge is how long the standbys' answers are used.
	surveyAge = 5 * time.Second
)

// Probe asks every broker at once and returns the lives that answered questions
// sent after the call, each with the revision that was known then. It returns when
// those that are wanted have answered, or after a second.
func (m *Monitor) Probe(ctx context.Context, wanted []cluster.Process) cluster.Probes {
	want := map[cluster.Process]bool{}
	for _, life := range wanted {
		want[life] = true
	}
	return m.probe(ctx, probeLimit, func(life cluster.Process) bool { return want[life] })
}

// Reach is Probe for another controller's question, with less patience.
func (m *Monitor) Reach(ctx context.Context) cluster.Probes {
	return m.probe(ctx, surveyLimit/2, func(cluster.Process) bool { return true })
}

// Probes returns the lives that answered lately, each with the revision that was
// known when the question was sent.
func (m *Monitor) Probes() cluster.Probes {
	answered, _, _ := m.answeredSince(time.Now().Add(-freshness), func(cluster.Process) bool { return true })
	return answered
}

func (m *Monitor) probe(ctx context.Context, limit time.Duration, wanted func(cluster.Process) bool) cluster.Probes {
	begun := time.Now()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	m.nudge()
	for {
		answered, all, news := m.answeredSince(begun, wanted)
		if all {
			return answered
		}
		select {
		case <-news:
		case <-deadline.C:
			return answered
		case <-ctx.Done():
			return answered
		}
	}
}

// nudge makes every health stream put a question now.
func (m *Monitor) nudge() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.targets {
		select {
		case w.nudge <- struct{}{}:
		default:
		}
	}
}

// answeredSince lists the brokers that answered a question sent since a moment;
// all tells that no other is wanted, news is closed by the next answer.
func (m *Monitor) answeredSince(moment time.Time, wanted func(cluster.Process) bool) (answered cluster.Probes, all bool, news <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	answered, all = cluster.Probes{}, true
	for t, w := range m.targets {
		switch {
		case t.kind != cluster.KindBroker || w.verdict.Dead():
		case !w.sign.question.at.Before(moment):
			answered[t.process] = w.sign.question.revision
		case wanted(t.process):
			all = false
		}
	}
	return answered, all, m.answers
}

// survey is what the standbys say of whom they reach.
type survey struct {
	asking bool
	at     time.Time // when they were asked last
	best   int       // brokers that the best of them reaches; -1: none answered
}

// standbyReach tells how many brokers the best standby reaches; known is false
// while the question is open, and it is put then.
func (m *Monitor) standbyReach() (best int, known bool) {
	if !m.survey.at.IsZero() && time.Since(m.survey.at) < surveyAge {
		return m.survey.best, true
	}
	if !m.survey.asking {
		m.survey.asking = true
		select {
		case m.ask4reach <- struct{}{}:
		default:
		}
	}
	return 0, false
}

// surveys puts the question to the standbys when it is wanted, until ctx ends.
func (m *Monitor) surveys(ctx context.Context) {
	for {
		select {
		case <-m.ask4reach:
		case <-ctx.Done():
			return
		}
		best := m.askStandbys(ctx)
		m.mu.Lock()
		m.survey = survey{at: time.Now(), best: best}
		m.mu.Unlock()
		m.poke()
	}
}

// askStandbys asks every other controller and returns the greatest number.
func (m *Monitor) askStandbys(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, surveyLimit)
	defer cancel()
	var addresses []string
	m.cfg.Store.View(func(state *cluster.State, _ int64) {
		for _, r := range state.Registrations(cluster.KindController) {
			if r.Value.Process != m.cfg.Self {
				addresses = append(addresses, r.Value.Address)
			}
		}
	})
	var mu sync.Mutex
	var wg sync.WaitGroup
	best := -1
	for _, address := range addresses {
		wg.Go(func() {
			conn, err := rpc.Dial(address, m.cfg.Dial)
			if err != nil {
				m.cfg.Logger.Debug("a controller's address cannot be dialled", "address", address, "error", err)
				return
			}
			defer conn.Close()
			resp, err := controllerv1.NewControllerServiceClient(conn).GetReach(ctx, &controllerv1.GetReachRequest{})
			if err != nil {
				m.cfg.Logger.Debug("a standby does not say whom it reaches", "address", address, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			best = max(best, len(resp.GetBrokers()))
		})
	}
	wg.Wait()
	return best
}
