package reconcile

import (
	"context"
	"errors"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
)

// maxBatch bounds the requests that are planned together.
const maxBatch = 1000

// planned is a request with its plan.
type planned struct {
	request *request
	plan    cluster.Plan
	effects *effects
	attempt int // the next
}

// serveBatch answers a request and those behind it that may be planned with it:
// thousands of ISR proposals that come at once must not take a transaction each. It
// returns the request that ended the batch, nil if the queue did. The error ends the
// term.
func (t *tenure) serveBatch(ctx context.Context, first *request) (*request, error) {
	batch, rest := t.gather(first)
	var plans []planned
	var alone []*request
	t.loop.cfg.Store.View(func(state *cluster.State, _ int64) { plans, alone = planTogether(state, batch) })
	var lists []cluster.Plan
	for _, p := range plans {
		lists = append(lists, p.plan)
	}
	results := t.writer.WriteEach(ctx, lists)
	var again []planned
	var trouble error
	for i, p := range plans {
		if r := results[i]; r.Err != nil {
			p.attempt = 1
			again = append(again, p)
			trouble = worst(trouble, r.Err)
		} else {
			t.tally(p.request.Command, p.effects, r.Revision)
			if p.request.Done != nil {
				p.request.Done(r.Revision)
			}
			p.request.outcome <- outcome{revision: r.Revision}
		}
	}
	for _, r := range alone {
		again = append(again, planned{request: r, effects: newEffects(r.Command)})
	}
	if trouble != nil {
		trouble = t.recover(ctx, first.Name, trouble)
	}
	return rest, t.oneByOne(ctx, again, trouble)
}

// oneByOne carries requests out that could not be with the others; with a failure
// that ended those, it only tells them of it. The error ends the term.
func (t *tenure) oneByOne(ctx context.Context, list []planned, failure error) error {
	var end error
	for _, p := range list {
		revision, err := int64(0), failure
		if end != nil {
			err = end
		} else if err == nil {
			revision, err = t.carryOn(ctx, p.request.Command, p.effects, p.attempt)
		}
		if err := t.answer(ctx, p.request, revision, err); err != nil {
			end = err
		}
	}
	return end
}

// gather takes requests from the queue for as long as they may share a batch.
func (t *tenure) gather(first *request) (batch []*request, rest *request) {
	batch = []*request{first}
	for len(batch) < maxBatch {
		select {
		case r := <-t.loop.queue:
			if !r.Batch {
				return batch, r
			}
			if r.ctx.Err() == nil && r.begun.CompareAndSwap(false, true) {
				batch = append(batch, r)
			}
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// planTogether plans requests on one state. Those whose plan writes what another
// one's writes, or more than one stage, are left to be planned alone; those that are
// rejected are answered.
func planTogether(state *cluster.State, batch []*request) (plans []planned, alone []*request) {
	taken := map[cluster.Key]bool{}
	for _, r := range batch {
		plan, err := r.Plan(state, 0)
		if err != nil {
			r.outcome <- outcome{err: answer(err)}
			continue
		}
		if len(plan.Stages) > 1 || plan.Len() > registry.MaxTxnOps || collides(taken, plan) {
			alone = append(alone, r)
			continue
		}
		for _, stage := range plan.Stages {
			for _, w := range stage {
				taken[w.Key] = true
			}
		}
		e := newEffects(r.Command)
		e.note(state, plan)
		plans = append(plans, planned{request: r, plan: plan, effects: e})
	}
	return plans, alone
}

func collides(taken map[cluster.Key]bool, plan cluster.Plan) bool {
	for _, stage := range plan.Stages {
		for _, w := range stage {
			if taken[w.Key] {
				return true
			}
		}
	}
	return false
}

// worst is the failure that decides what is to be done about several.
func worst(a, b error) error {
	for _, kind := range []error{registry.ErrDeposed, registry.ErrUnknown, registry.ErrConflict} {
		for _, err := range []error{a, b} {
			if errors.Is(err, kind) {
				return err
			}
		}
	}
	if a != nil {
		return a
	}
	return b
}
