package liveness

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
)

func TestQuestionsAreRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &questions{sent: map[int64]question{}}
		first := q.put(7)
		begun := time.Now()
		time.Sleep(time.Second)
		if got := q.take(first); got.revision != 7 || !got.at.Equal(begun) {
			t.Errorf("the first question: %+v", got)
		}
		if got := q.take(first); !got.at.IsZero() {
			t.Errorf("answered twice: %+v", got)
		}
		old := q.put(8)
		for range 10 * maxUnanswered {
			q.put(9)
		}
		if n := len(q.sent); n > maxUnanswered {
			t.Errorf("%d questions are remembered", n)
		}
		if got := q.take(old); !got.at.IsZero() {
			t.Error("a question far back is remembered")
		}
		if got := q.take(99_999); !got.at.IsZero() {
			t.Error("a question that was never put counts")
		}
	})
}

func TestUnreachableLeadersAreReplacedInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		wait := func() time.Duration {
			m.becalm()
			return time.Until(m.calm)
		}
		for i, want := range []time.Duration{3, 6, 12, 24, 48, 60, 60} {
			if got := wait(); got != want*time.Second {
				t.Errorf("wait %d: %v, want %v s", i, got, int64(want))
			}
			time.Sleep(time.Until(m.calm))
		}
		time.Sleep(2 * maxCalm)
		if got := wait(); got != minCalm {
			t.Errorf("after a long calm: %v", got)
		}
	})
}

// world is a state with brokers that have answered, or not.
func world(unfenced int32) *cluster.State {
	s := cluster.NewState()
	for id := range unfenced {
		life := cluster.Process{ID: id + 1, Incarnation: 1}
		s.Set(cluster.Broker{Process: life, Address: "h:1"}, 1, 1)
	}
	return s
}

func (m *Monitor) hear(id int32, s sign) {
	t := target{cluster.KindBroker, cluster.Process{ID: id, Incarnation: 1}, "h:1"}
	m.targets[t] = &watched{nudge: make(chan struct{}, 1), sign: s}
}

// names lists what is to be done.
func (m *Monitor) names(s *cluster.State, revision int64) (names []string) {
	for _, c := range m.Observe(s, revision) {
		names = append(names, c.Name)
	}
	return names
}

// With its key gone a broker is fenced: at once if it has been silent for long, after
// a moment if it answered lately, and not at all if it shows what came after.
func TestWhenAKeyIsGone(t *testing.T) {
	for name, tc := range map[string]struct {
		answered time.Duration // before the key was seen to be gone
		revision int64         // that it showed
		atOnce   bool
		later    bool
	}{
		"silent for long":          {3 * time.Second, 4, true, true},
		"answered lately":          {100 * time.Millisecond, 4, false, true},
		"answered, and up to date": {100 * time.Millisecond, 5, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Config{})
			s := world(3)
			time.Sleep(10 * time.Second) // the term is old enough for verdicts
			for id := int32(2); id <= 3; id++ {
				m.hear(id, sign{at: time.Now(), revision: 5})
				s.Set(cluster.Registration{Kind: cluster.KindBroker, Process: cluster.Process{ID: id, Incarnation: 1}, Address: "h:1"}, 1, 1)
			}
			m.hear(1, sign{at: time.Now().Add(-tc.answered), revision: tc.revision})
			if got := len(m.names(s, 5)) > 0; got != tc.atOnce {
				t.Errorf("%s, at once: %v", name, got)
			}
			time.Sleep(absenceLimit)
			for id := int32(2); id <= 3; id++ {
				m.hear(id, sign{at: time.Now(), revision: 5})
			}
			if tc.later != tc.atOnce || !tc.later {
				m.hear(1, sign{at: time.Now(), revision: tc.revision})
			}
			if got := len(m.names(s, 9)) > 0; got != tc.later {
				t.Errorf("%s, later: %v", name, got)
			}
		})
	}
}

// A broker hears of what happens if it has lately shown what was known when it was
// asked, or soon after; its lease and its answers alone do not say so.
func TestWhoHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		life := cluster.Process{ID: 1, Incarnation: 1}
		at := target{cluster.KindBroker, life, "h:1"}
		m.hear(1, sign{})
		known := int64(100)
		answer := func(shows int64) {
			m.alive(at, sign{at: time.Now(), question: question{time.Now(), known}, revision: shows})
		}
		if m.Hears(life) {
			t.Error("it has never answered")
		}
		for range 50 { // always a little behind, as the mesh is busy
			known += 10
			answer(known - 15)
			time.Sleep(probeInterval)
		}
		if !m.Hears(life) {
			t.Error("it is never far behind, and counts as deaf")
		}
		stuck := known
		for range int(deafLimit/probeInterval) + 2 {
			known++
			answer(stuck)
			time.Sleep(probeInterval)
		}
		if m.Hears(life) {
			t.Error("it answers, and has shown nothing new for long")
		}
		answer(known)
		if !m.Hears(life) {
			t.Error("it has caught up")
		}
		time.Sleep(deafLimit)
		if m.Hears(life) || m.Hears(cluster.Process{ID: 1, Incarnation: 2}) {
			t.Error("it has said nothing for long")
		}
	})
}

// A leader that does not answer its followers is replaced if it does not keep up with
// the metadata either; else it is slow, and hears of its leadership in time.
func TestDeafLeadersAreReplaced(t *testing.T) {
	for name, tc := range map[string]struct {
		heard       time.Duration // how long ago the leader was up to date
		unreachable bool          // its followers cannot reach it at all
		want        int
	}{
		"it reaches no controller":   {deafLimit, false, 1},
		"it is up to date, and slow": {time.Second, false, 0},
		"it is not reached":          {time.Second, true, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Config{})
			s := world(3)
			time.Sleep(time.Minute)
			m.hear(1, sign{at: time.Now(), revision: 9})
			m.targets[target{cluster.KindBroker, cluster.Process{ID: 1, Incarnation: 1}, "h:1"}].heard = time.Now().Add(-tc.heard)
			for id := int32(2); id <= 3; id++ {
				told := sign{at: time.Now(), revision: 9, deaf: []int32{1}}
				if tc.unreachable {
					told.deaf, told.unreachable = nil, told.deaf
				}
				m.hear(id, told)
			}
			for id := int32(1); id <= 3; id++ {
				s.Set(cluster.Registration{Kind: cluster.KindBroker, Process: cluster.Process{ID: id, Incarnation: 1}, Address: "h:1"}, 1, 1)
			}
			if got := m.names(s, 9); len(got) != tc.want || tc.want > 0 && got[0] != "leaders unreachable" {
				t.Errorf("%s: %v", name, got)
			}
		})
	}
}

// A new leader gives everybody the time of a probe.
func TestNewLeaderGivesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		m.hear(1, sign{})
		time.Sleep(time.Minute)
		m.SetLeading(true)
		s := world(1)
		if got := m.names(s, 5); len(got) != 0 {
			t.Errorf("at once: %v", got)
		}
		time.Sleep(freshness + absenceLimit)
		if got := m.names(s, 5); len(got) != 1 || got[0] != "fence broker" {
			t.Errorf("later: %v", got)
		}
	})
}

// A proof of death needs neither the lease's end nor anybody's word.
func TestProofOfDeath(t *testing.T) {
	m := New(Config{})
	s := world(2)
	m.hear(1, sign{})
	m.hear(2, sign{at: time.Now(), revision: 9})
	s.Set(cluster.Registration{Kind: cluster.KindBroker, Process: cluster.Process{ID: 1, Incarnation: 1}, Address: "h:1"}, 1, 1)
	s.Set(cluster.Registration{Kind: cluster.KindBroker, Process: cluster.Process{ID: 2, Incarnation: 1}, Address: "h:1"}, 1, 1)
	if got := m.names(s, 5); len(got) != 0 {
		t.Errorf("both are registered: %v", got)
	}
	m.dead(target{cluster.KindBroker, cluster.Process{ID: 1, Incarnation: 1}, "h:1"}, registry.Refused)
	if got := m.names(s, 5); len(got) != 2 || got[0] != "fence broker" || got[1] != "drop registration" {
		t.Errorf("one is proved dead: %v", got)
	}
}

// A leader that has not heard of the others of late either, though their keys are still
// there, asks the standbys before it fences the first whose key went.
func TestTheFirstOfManySilentBrokers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		s := world(3)
		time.Sleep(10 * time.Second)
		m.hear(1, sign{at: time.Now().Add(-freshness)})
		for id := int32(2); id <= 3; id++ {
			m.hear(id, sign{at: time.Now().Add(-freshness + 200*time.Millisecond)})
			s.Set(cluster.Registration{Kind: cluster.KindBroker, Process: cluster.Process{ID: id, Incarnation: 1}, Address: "h:1"}, 1, 1)
		}
		if got := m.names(s, 5); len(got) != 0 || len(m.ask4reach) != 1 {
			t.Errorf("it did not ask: %v", got)
		}
		m.survey = survey{at: time.Now(), best: 3}
		if got := m.names(s, 5); len(got) != 1 || got[0] != "give way" {
			t.Errorf("a standby reaches them all: %v", got)
		}
	})
}

// With half of the brokers silent the leader asks the standbys before it fences.
func TestManySilentBrokers(t *testing.T) {
	for name, tc := range map[string]struct {
		best int
		want string
	}{
		"no standby answers":       {-1, "fence broker"},
		"a standby reaches as few": {1, "fence broker"},
		"a standby reaches more":   {2, "give way"},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Config{})
			s := world(3)
			time.Sleep(10 * time.Second)
			m.hear(1, sign{at: time.Now(), revision: 9})
			m.hear(2, sign{})
			m.hear(3, sign{})
			if got := m.names(s, 5); len(got) != 0 || len(m.ask4reach) != 1 {
				t.Errorf("%s: before the answer: %v", name, got)
			}
			m.survey = survey{at: time.Now(), best: tc.best}
			if got := m.names(s, 5); len(got) == 0 || got[0] != tc.want {
				t.Errorf("%s: %v, want %s", name, got, tc.want)
			}
		})
	}
}
