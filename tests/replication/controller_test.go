package replication

import (
	"fmt"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestControllerLeaderKilled: the next controller leads after about a second, and
// producing and reading do not notice.
func TestControllerLeaderKilled(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "ctl", 1)
		l := startLoad(t, r, "ctl", loadOptions{})
		for range count(2, 20) {
			replaceController(t, r, l, func(leader string) { r.Kill(leader) })
		}
		l.finish()
	})
}

// TestControllerLeaderPaused is case 35: a controller that stands still past its
// lease is replaced; when it goes on, what it writes fails, and it steps down.
func TestControllerLeaderPaused(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "ctl", 1)
	l := startLoad(t, r, "ctl", loadOptions{})
	paused := ""
	replaceController(t, r, l, func(leader string) {
		paused = leader
		r.Pause(leader)
	})
	// The new one changes metadata; the old one wakes and must not undo it.
	r.CreateTopic("while-paused", "--partitions", "10", "--replication-factor", "3")
	r.Resume(paused)
	r.WaitReady(time.Minute)
	r.WaitInSync("while-paused", time.Minute)
	mesh.Eventually(t, time.Minute, "one controller leads", func() (bool, string) {
		c, err := r.Cluster()
		leads := 0
		for _, s := range c.Services {
			if s.Leads {
				leads++
			}
		}
		return err == nil && leads == 1, fmt.Sprintf("%+v %v", c, err)
	})
	l.finish()
}

// replaceController loses the leading controller and waits for another.
func replaceController(t *testing.T, r *rig.Rig, l *load, lose func(leader string)) {
	t.Helper()
	leader := r.ControllerLeader()
	l.history.LongestGap(byClient)
	began := time.Now()
	lose(leader)
	next := ""
	mesh.Eventually(t, time.Minute, "another controller than "+leader, func() (bool, string) {
		c, err := r.Cluster()
		next = fmt.Sprintf("controller-%d", c.Controller)
		return err == nil && c.Controller != 0 && next != leader, fmt.Sprintf("%s, %v", next, err)
	})
	took := time.Since(began)
	l.progress("the loss of "+leader, resume)
	gap := l.history.LongestGap(byClient)
	t.Logf("%s leads %v after the loss of %s; longest time without an acknowledgement: %v", next, took.Round(time.Millisecond), leader, gap.Round(time.Millisecond))
	if !r.Running(leader) {
		r.Up(leader)
	}
}

// TestControllerAndLeaderKilledTogether: the controller that would elect dies with
// the leader of a partition: one more election, and writes resume.
func TestControllerAndLeaderKilledTogether(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "both", 1)
		l := startLoad(t, r, "both", loadOptions{})
		for range count(1, 10) {
			leader, controller := r.Leader("both", 0), r.ControllerLeader()
			l.history.LongestGap(byClient)
			r.Kill(leader, controller)
			l.progress("the death of "+leader+" and "+controller, resume)
			t.Logf("longest time without an acknowledgement: %v", l.history.LongestGap(byClient).Round(time.Millisecond))
			r.Up(leader, controller)
			r.WaitInSync("both", time.Minute)
		}
		l.finish()
	})
}
