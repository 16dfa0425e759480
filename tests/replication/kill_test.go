package replication

import (
	"slices"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/rig"
)

// resume bounds how long producers and readers may stand still once a majority is
// there: failing over takes a second or so, and a busy machine takes its time.
const resume = 30 * time.Second

// TestLeaderKilledInTurn: the leader is killed again and again under a load that
// never stops. Every acknowledged record is there exactly once, in order per key;
// the visible end never goes back (case 2).
func TestLeaderKilledInTurn(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "turn", 1)
		l := startLoad(t, r, "turn", loadOptions{})
		var gaps []time.Duration
		for round := range count(4, 20) {
			leader := r.Leader("turn", 0)
			if round%2 == 1 { // it has much that its followers have not
				r.Net.Delay(200*time.Millisecond, leader, r.Others(leader, rig.Broker)...)
				l.progress("followers became slow", resume)
			}
			l.history.LongestGap(byClient)
			r.Kill(leader)
			r.Net.HealAll()
			l.progress("the death of "+leader, resume)
			gaps = append(gaps, l.history.LongestGap(byClient).Round(time.Millisecond))
			if now := r.Leader("turn", 0); now == leader {
				t.Errorf("%s leads and is dead", now)
			}
			r.Up(leader)
			r.WaitInSync("turn", time.Minute)
		}
		l.finish()
		slices.Sort(gaps)
		t.Logf("longest time without an acknowledgement around each kill: %v", gaps)
	})
}

// TestFastRestarts: a broker that is killed and starts again before its lease has
// ended, at random moments, loses nothing and is never mistaken for its former
// life (case 34).
func TestFastRestarts(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		rng := random(t)
		r := s.start(rig.Options{})
		topic(t, r, "fast", 3)
		l := startLoad(t, r, "fast", loadOptions{})
		brokers := r.Names(rig.Broker)
		for range count(5, 100) {
			one := brokers[rng.IntN(len(brokers))]
			pause(time.Duration(rng.IntN(700)) * time.Millisecond)
			r.Kill(one)
			pause(time.Duration(rng.IntN(300)) * time.Millisecond)
			r.Up(one)
			l.progress("a fast restart of "+one, resume)
		}
		l.finish()
	})
}

// TestLeaderPaused: a leader that stands still and goes on later is no second
// writer: what it had appended and nobody acknowledged is cut off.
func TestLeaderPaused(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "paused", 1)
	l := startLoad(t, r, "paused", loadOptions{})
	for range count(1, 3) {
		leader := r.Leader("paused", 0)
		began := time.Now()
		r.Pause(leader)
		now := r.LeaderOtherThan("paused", 0, leader)
		t.Logf("%s leads %v after %s was paused", now, time.Since(began).Round(time.Millisecond), leader)
		l.progress("the pause of "+leader, resume)
		pause(span(5*time.Second, 20*time.Second) - time.Since(began))
		r.Resume(leader)
		l.progress("the return of "+leader, resume)
		r.WaitInSync("paused", time.Minute)
	}
	l.finish()
}

// TestFollowerPaused: a follower that stands still holds up acknowledgements only
// until it has been fenced or fallen out of the ISR.
func TestFollowerPaused(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "paused", 1)
	l := startLoad(t, r, "paused", loadOptions{})
	follower := r.Followers("paused", 0)[0]
	r.Pause(follower)
	took := l.progress("the pause of "+follower, resume)
	r.Resume(follower)
	r.WaitInSync("paused", time.Minute)
	l.finish()
	t.Logf("acknowledgements stood still for %v", took.Round(time.Millisecond))
}

// TestWholeMeshKilled: everything is killed at once, again and again, under load.
func TestWholeMeshKilled(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "mesh", 3)
		wholeMesh(t, r, startLoad(t, r, "mesh", loadOptions{}), count(2, 20)).finish()
	})
}

// TestWholeMeshKilledOneStaysAway: a broker that never comes back does not keep
// the others from going on.
func TestWholeMeshKilledOneStaysAway(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "mesh", 3)
	l := startLoad(t, r, "mesh", loadOptions{})
	l.history.MayRepeat(byGateway)
	away := r.Leader("mesh", 0)
	for range count(1, 10) {
		r.KillAll()
		for _, name := range r.Names() {
			if name != away {
				r.Launch(name)
			}
		}
		t.Logf("all goes on %v after the start", l.progress("the death of all", time.Minute).Round(time.Millisecond))
	}
	r.Up(away) // at last, so that the replicas can be compared
	l.finish()
}

// TestMeshOfOneKilled: one broker loses nothing either.
func TestMeshOfOneKilled(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{Brokers: 1, Controllers: 1})
		r.MustLeat("topic", "create", "one", "--partitions", "3")
		wholeMesh(t, r, startLoad(t, r, "one", loadOptions{}), count(2, 20)).finishAlone()
	})
}

// wholeMesh kills and starts everything n times.
func wholeMesh(t *testing.T, r *rig.Rig, l *load, n int) *load {
	t.Helper()
	l.history.MayRepeat(byGateway)
	var took []time.Duration
	for range n {
		r.KillAll()
		r.UpAll()
		for _, name := range r.Names() {
			r.AwaitUp(name, time.Minute)
		}
		took = append(took, l.progress("the death of all", time.Minute).Round(time.Millisecond))
	}
	slices.Sort(took)
	t.Logf("all goes on so long after the last process was up: %v", took)
	return l
}
