package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/controller/internal/store"
)

// tenure is the loop during one term.
type tenure struct {
	loop   *Loop
	term   *registry.Term
	writer *store.Writer
	tidied store.Version // at which there was nothing to reconcile
	waits  *waits
	// failing is what was logged last of commands that fail.
	failing map[string]string
	// rebalance is when to look for preferred leaders next.
	rebalance time.Time
}

// run returns when the term is over.
func (t *tenure) run(ctx context.Context) error {
	l := t.loop
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	for {
		changed := l.cfg.Store.Changed()
		if !t.holds() {
			return fmt.Errorf("the election key is gone: %w", registry.ErrDeposed)
		}
		if err := t.tidy(ctx); err != nil {
			return err
		}
		select {
		case r := <-l.queue:
			if err := t.serve(ctx, r); err != nil {
				return err
			}
		case <-changed:
		case <-l.cfg.Wake:
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// holds tells whether the election key is still seen as the term's. Writes do not
// rely on it; it ends a term that has nothing to write.
func (t *tenure) holds() bool {
	var mine bool
	t.loop.cfg.Store.View(func(state *cluster.State, _ int64) {
		e := state.Election()
		mine = e != nil && t.term.Owns(e.Create)
	})
	return mine
}

// tidy carries out what has been observed and what follows from the state. The
// error ends the term.
func (t *tenure) tidy(ctx context.Context) error {
	var commands []Command
	t.loop.cfg.Store.View(func(state *cluster.State, revision int64) {
		commands = t.loop.cfg.Observe(state, revision)
	})
	for _, c := range commands {
		_, err := t.carryOut(ctx, c)
		if errors.Is(err, ErrGiveWay) {
			t.term.GiveWay()
			return err
		}
		if err := t.report(ctx, c.Name, err); err != nil {
			return err
		}
	}
	if err := t.reconcile(ctx); err != nil {
		return err
	}
	if err := t.advance(ctx); err != nil {
		return err
	}
	return t.balance(ctx)
}

// reconcile carries out what follows from the state, until nothing does or somebody
// waits. The error ends the term.
func (t *tenure) reconcile(ctx context.Context) error {
	store := t.loop.cfg.Store
	overdue := false
	store.View(func(state *cluster.State, _ int64) { overdue = t.waits.update(cluster.Waiting(state)) })
	for overdue || store.Version() != t.tidied {
		overdue = false
		empty, at := false, store.Version()
		var moves map[cluster.Process][]int32
		_, err := t.carryOut(ctx, Command{Name: "reconcile", Plan: func(state *cluster.State, _ int) (cluster.Plan, error) {
			plan, err := cluster.Reconcile(state, cluster.Hints{Overdue: t.waits.overdue})
			empty, moves = plan.IsEmpty(), shardMoves(state, plan)
			return plan, err
		}})
		if err := t.report(ctx, "reconcile", err); err != nil {
			return err
		}
		if err != nil {
			return nil
		}
		t.logMoves(moves)
		switch {
		case empty:
			t.tidied = at
		case len(t.loop.queue) > 0:
			return nil
		}
	}
	return nil
}

// report logs a failure that is tried again, and returns one that ends the term.
func (t *tenure) report(ctx context.Context, what string, err error) error {
	if err == nil {
		delete(t.failing, what)
		return nil
	}
	if over(ctx, err) {
		return err
	}
	// Once per trouble: this comes again with every tick.
	if text := err.Error(); t.failing[what] != text {
		t.failing[what] = text
		t.loop.cfg.Logger.Error("cannot bring the metadata in order, trying again", "command", what, "error", err)
	}
	return nil
}

// shardMoves lists the shards that a plan gives to another owner, by owner.
func shardMoves(state *cluster.State, plan cluster.Plan) map[cluster.Process][]int32 {
	moves := map[cluster.Process][]int32{}
	for _, stage := range plan.Stages {
		for _, w := range stage {
			next, ok := w.Record.(cluster.Partition)
			if !ok || next.ShardOwner.IsZero() {
				continue
			}
			if old := state.Partition(next.Topic, next.Number); old != nil && old.Value.ShardOwner != next.ShardOwner {
				moves[next.ShardOwner] = append(moves[next.ShardOwner], next.Number)
			}
		}
	}
	return moves
}

func (t *tenure) logMoves(moves map[cluster.Process][]int32) {
	for owner, shards := range moves {
		t.loop.cfg.Logger.Info("shards moved", "coordinator", owner.ID, "coordinator_incarnation", owner.Incarnation,
			"count", len(shards), "shards", shards[:min(len(shards), 100)])
	}
}

// over tells whether an error ends the term.
func over(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, registry.ErrDeposed)
}

// serve answers one request, and those behind it that go with it. The error ends the
// term.
func (t *tenure) serve(ctx context.Context, r *request) error {
	for r != nil {
		if r.ctx.Err() != nil || !r.begun.CompareAndSwap(false, true) {
			return nil // nobody waits any more
		}
		if r.Batch {
			next, err := t.serveBatch(ctx, r)
			if err != nil {
				t.turnAway(next)
				return err
			}
			r = next
			continue
		}
		revision, err := t.carryOut(ctx, r.Command)
		return t.answer(ctx, r, revision, err)
	}
	return nil
}

// turnAway tells a request that was taken from the queue that the term is over.
func (t *tenure) turnAway(r *request) {
	if r != nil && r.begun.CompareAndSwap(false, true) {
		r.outcome <- outcome{err: t.loop.notLeading()}
	}
}

// answer tells a request what became of it. The error ends the term.
func (t *tenure) answer(ctx context.Context, r *request, revision int64, err error) error {
	if err == nil {
		r.outcome <- outcome{revision: revision}
		return nil
	}
	if over(ctx, err) {
		e := t.loop.notLeading()
		if !errors.Is(err, registry.ErrDeposed) {
			e = e.WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
		}
		r.outcome <- outcome{err: e}
		return err
	}
	r.outcome <- outcome{err: answer(err)}
	return nil
}

// answer turns a command's failure into what travels.
func answer(err error) error {
	var rejection *cluster.Rejection
	var invariant *cluster.InvariantError
	var typed *rpc.Error
	switch {
	case errors.As(err, &rejection):
		return FromRejection(rejection)
	case errors.As(err, &invariant):
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "%w; nothing was written", err)
	case errors.As(err, &typed):
		return typed
	case errors.Is(err, registry.ErrConflict):
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE,
			"the metadata changed under the controller %d times in a row; try again", maxAttempts).WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE, "etcd: %w", err).WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
}

// FromRejection is a rejection in the form that travels.
func FromRejection(r *cluster.Rejection) *rpc.Error {
	reason := typev1.ErrorReason(typev1.ErrorReason_value["ERROR_REASON_"+r.Reason])
	e := rpc.Errorf(reason, "%s", r.Message)
	for k, v := range r.Metadata {
		e = e.With(k, v)
	}
	return e
}

// carryOut plans and writes one command until its outcome is known.
func (t *tenure) carryOut(ctx context.Context, c Command) (int64, error) {
	return t.carryOn(ctx, c, newEffects(c), 0)
}

// carryOn is carryOut from an attempt on.
func (t *tenure) carryOn(ctx context.Context, c Command, e *effects, attempt int) (int64, error) {
	var err error
	for ; attempt < maxAttempts; attempt++ {
		var plan cluster.Plan
		t.loop.cfg.Store.View(func(state *cluster.State, _ int64) {
			if plan, err = c.Plan(state, attempt); err == nil {
				e.note(state, plan)
			}
		})
		if err != nil {
			return 0, err
		}
		var revision int64
		revision, err = t.writer.Write(ctx, plan)
		if err == nil {
			t.tally(c, e, revision)
			if c.Done != nil {
				c.Done(revision)
			}
			return revision, nil
		}
		if err := t.recover(ctx, c.Name, err); err != nil {
			return 0, err
		}
	}
	return 0, err
}

// recover brings the picture up to date after a write that failed, so that it can be
// planned anew; the error is the write's where that is in vain.
func (t *tenure) recover(ctx context.Context, name string, err error) error {
	switch {
	case errors.Is(err, registry.ErrUnknown):
		t.loop.stats.add(func(c *Counts) { c.Unknown++ })
		t.loop.cfg.Logger.Warn("the outcome of a write is unknown, settling it", "command", name, "error", err)
		return t.writer.Settle(ctx)
	case errors.Is(err, registry.ErrConflict):
		t.loop.stats.add(func(c *Counts) { c.Conflicts++ })
		t.loop.cfg.Logger.Debug("a record changed since it was read, planning anew", "command", name)
		return t.loop.cfg.Store.Sync(ctx)
	}
	return err
}
