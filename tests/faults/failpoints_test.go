package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/tests/internal/rig"
)

// weakPoint is what the nemesis does at one failpoint.
type weakPoint struct {
	place string
	role  string // who has it
	does  []string
	// trigger makes the code come by: "", "record" (a partition's record changes), "lag" (a
	// follower lags behind this leader), "group" (a member comes) or "restart" (the process
	// dies with records that nobody else has, and starts armed).
	trigger string
	// disk: an error takes the disk offline for good, so that the broker is restarted.
	disk bool
}

// weakPoints has each failpoint of the mesh.
func weakPoints() []weakPoint {
	io := []string{"error(EIO)*1", "delay(40ms)%30", "crash+20", "pause"}
	return []weakPoint{
		{failpoint.LogAppend, leaderRole, append([]string{"error(ENOSPC)*30"}, io...), "", true},
		{failpoint.LogWritten, leaderRole, io, "", true},
		{failpoint.LogIndex, followerRole, []string{"error(EIO)*1", "crash", "delay(40ms)%30"}, "", true},
		{failpoint.LogFsync, leaderRole, io, "", true},
		{failpoint.LogSynced, followerRole, io, "", true},
		{failpoint.LogRoll, leaderRole, []string{"crash", "delay(200ms)", "error(EIO)*1"}, "", true},
		{failpoint.LogTruncate, leaderRole, []string{"crash*1", "delay(500ms)"}, "restart", false},
		{failpoint.Checkpoint, leaderRole, []string{"error(EIO)*1", "crash", "delay(700ms)"}, "", true},
		{failpoint.DiskSpace, leaderRole, []string{"error(ENOSPC)"}, "", false}, // case 44
		{failpoint.FollowAppend, followerRole, []string{"crash+20", "delay(60ms)%30", "pause"}, "", false},
		{failpoint.ISRPropose, leaderRole, []string{"error", "crash", "delay(1500ms)"}, "lag", false},
		{failpoint.RecordApply, followerRole, []string{"crash", "delay(1s)"}, "record", false},
		{failpoint.Acknowledge, leaderRole, []string{"crash+20", "delay(30ms)%20"}, "", false},
		{failpoint.TxnBefore, controllerRole, []string{"error*2", "crash", "delay(900ms)", "pause"}, "record", false},
		{failpoint.TxnAfter, controllerRole, []string{"error*2", "crash", "delay(900ms)", "pause"}, "record", false},
		{failpoint.GroupAppend, coordinatorRole, []string{"error*2", "crash", "delay(500ms)"}, "group", false},
		{failpoint.GroupAppended, coordinatorRole, []string{"error*2", "crash", "delay(500ms)"}, "group", false},
		{failpoint.GroupAssign, coordinatorRole, []string{"crash", "delay(500ms)"}, "group", false},
	}
}

var opsClient = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// arm arms or disarms failpoints of a process.
func (n *nemesis) arm(name, text string) error {
	ctx, cancel := context.WithTimeout(n.l.ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, n.failpointsURL(name), strings.NewReader(text))
	if err != nil {
		return err
	}
	res, err := opsClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(res.Body, 500))
		return fmt.Errorf("%s: %s: %s", name, res.Status, said)
	}
	return nil
}

func (n *nemesis) failpointsURL(name string) string {
	return "http://" + n.r.Ops(name) + "/debug/failpoints"
}

// fired tells how often a failpoint of a process's present life did something.
func (n *nemesis) fired(name, place string) int {
	res, err := opsClient.Get(n.failpointsURL(name))
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	var counts map[string]struct{ Fired int }
	if res.StatusCode != http.StatusOK || json.NewDecoder(res.Body).Decode(&counts) != nil {
		return 0
	}
	return counts[place].Fired
}

// weaken arms one failpoint in a process of its role.
func (n *nemesis) weaken(w weakPoint, does string) (strike, bool) {
	name := n.target(w.role)
	if name == "" {
		return strike{}, false
	}
	s := strike{what: fmt.Sprintf("%s=%s in %s (%s)", w.place, does, name, w.role), hit: []string{name}, hold: 6 * time.Second}
	before := n.fired(name, w.place)
	if w.trigger == "restart" {
		n.r.Net.Stall(name, n.r.Others(name, rig.Broker)...)
		n.l.sleep(800 * time.Millisecond)
		n.kill(name)
		n.r.Net.Heal(name, n.r.Others(name, rig.Broker)...)
		n.l.sleep(time.Second) // another one is elected
		n.r.Launch(name)
		before = 0
	}
	if !n.armSoon(name, w.place+"="+does) {
		n.l.h.problem("cannot arm %s in %s", w.place, name)
		return s, true
	}
	ended := n.trigger(w, name, &s)
	s.undo = func() {
		n.disarm(w, name, does, before)
		ended()
	}
	return s, true
}

// armSoon arms a process that may be starting.
func (n *nemesis) armSoon(name, text string) bool {
	for range 200 {
		if n.arm(name, text) == nil {
			return true
		}
		if !n.l.sleep(10 * time.Millisecond) {
			return false
		}
	}
	return false
}

// trigger makes something happen that leads the code to the place; what it returns
// undoes that.
func (n *nemesis) trigger(w weakPoint, name string, s *strike) (undo func()) {
	switch w.trigger {
	case "lag":
		for part := range n.l.parts {
			if leader, followers := n.replicas(n.l.topic, part); leader == name && len(followers) > 0 {
				n.r.Net.Stall(name, followers[0])
				s.what += ", " + followers[0] + " lags"
				s.hit, s.hold = append(s.hit, followers[0]), 9*time.Second
				return func() { n.r.Net.Heal(name, followers[0]) }
			}
		}
	case "record":
		other := ""
		for range 20 {
			if _, followers := n.replicas(n.l.topic, n.rng.IntN(n.l.parts)); other == "" || other == name {
				other = n.one(followers...)
			}
		}
		if other == "" || other == name {
			return func() {}
		}
		n.r.Net.Stall(other, n.r.Others(other)...)
		s.what += ", " + other + " stalled"
		s.hit = append(s.hit, other)
		s.hold = 8 * time.Second
		return func() { n.r.Net.Heal(other, n.r.Others(other)...) }
	case "group":
		n.l.members.join()
		return func() { n.l.members.leave() }
	}
	return func() {}
}

// disarm ends what a failpoint does, counts how often it did it, and restarts what
// did not survive.
func (n *nemesis) disarm(w weakPoint, name, does string, before int) {
	fired := 0
	if n.r.Running(name) {
		fired = n.fired(name, w.place) - before
		if err := n.arm(name, w.place+"=off"); err != nil && n.r.Running(name) {
			n.l.h.problem("cannot disarm %s: %v", w.place, err)
		}
	}
	if !n.r.Running(name) {
		if strings.HasPrefix(does, "crash") {
			fired = 1
		} else {
			n.l.h.problem("%s ended by itself with %s=%s", name, w.place, does)
		}
		n.r.Up(name)
	} else if fired > 0 && w.disk && strings.HasPrefix(does, "error(EIO)") {
		n.kill(name)
		n.r.Up(name)
	}
	n.failpoints[w.place] += fired
}
