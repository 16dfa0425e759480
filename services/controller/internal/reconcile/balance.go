package reconcile

import (
	"context"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
)

const (
	// preferredBatch and preferredPause bound how fast preferred leaders get their
	// leadership back: each of them is a moment without a leader.
	preferredBatch = 100
	preferredPause = time.Second
)

// balance gives leadership back to preferred leaders, a batch at a time, when it is
// time to. The error ends the term.
func (t *tenure) balance(ctx context.Context) error {
	cfg := t.loop.cfg
	if cfg.RebalanceInterval <= 0 || time.Now().Before(t.rebalance) {
		return nil
	}
	probes := cluster.Probes{}
	if cfg.Probes != nil {
		probes = cfg.Probes()
	}
	empty := true
	_, err := t.carryOut(ctx, Command{
		Name: "preferred leaders", Cause: "auto.leader.rebalance.enable", Preferred: true,
		Plan: func(state *cluster.State, _ int) (cluster.Plan, error) {
			plan, err := planPreferred(state, probes)
			empty = plan.IsEmpty()
			return plan, err
		},
	})
	t.rebalance = time.Now().Add(cfg.RebalanceInterval)
	if err == nil && !empty {
		t.rebalance = time.Now().Add(preferredPause)
	}
	return t.report(ctx, "preferred leaders", err)
}

// planPreferred plans one batch, to lives that have answered lately.
func planPreferred(state *cluster.State, probes cluster.Probes) (cluster.Plan, error) {
	return cluster.PreferredMoves(state, preferredBatch, func(life cluster.Process) bool {
		_, answers := probes[life]
		return !answers
	})
}

// advance lets running reassignments go on. The error ends the term.
func (t *tenure) advance(ctx context.Context) error {
	running := false
	t.loop.cfg.Store.View(func(state *cluster.State, _ int64) { running = len(state.Reassignments()) > 0 })
	if !running || t.loop.cfg.Probes == nil {
		return nil
	}
	_, err := t.carryOut(ctx, Command{
		Name: "advance reassignments",
		Plan: func(state *cluster.State, _ int) (cluster.Plan, error) {
			// Brokers are probed all the time; whoever is missing now is there at the
			// next tick.
			plan, _, err := cluster.AdvanceReassignments(state, t.loop.cfg.Probes())
			return plan, err
		},
	})
	return t.report(ctx, "advance reassignments", err)
}
