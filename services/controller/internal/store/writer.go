package store

import (
	"context"
	"errors"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
)

// maxInFlight bounds the transactions of one stage that are under way at once.
const maxInFlight = 16

// Writer writes plans for one term. One goroutine uses it.
type Writer struct {
	store *Store
	term  *registry.Term
}

// NewWriter makes the writer of a term.
func NewWriter(s *Store, term *registry.Term) *Writer { return &Writer{store: s, term: term} }

// Write writes a plan and waits until the store shows it. It returns the revision
// at which all of it had taken place. Errors are those of registry.Term.Commit:
// after ErrConflict or ErrUnknown a part may have taken place; plan anew, after
// Settle where the outcome is unknown.
func (w *Writer) Write(ctx context.Context, plan cluster.Plan) (int64, error) {
	last := int64(0)
	for _, step := range steps(plan) {
		revision, err := w.step(ctx, step)
		if err != nil {
			return 0, err
		}
		last = max(last, revision)
	}
	if last == 0 {
		return w.store.Revision(), nil
	}
	return last, w.store.WaitRevision(ctx, last)
}

// Result is what became of one of several plans.
type Result struct {
	Revision int64
	Err      error
}

// WriteEach writes plans of one stage each, which write different keys, several to a
// transaction, and waits until the store shows them. A plan is written whole or not
// at all; its errors are those of Write.
func (w *Writer) WriteEach(ctx context.Context, plans []cluster.Plan) []Result {
	results := make([]Result, len(plans))
	var packs [][]int // plans by transaction
	ops := 0
	for i, plan := range plans {
		n := plan.Len()
		if n == 0 {
			results[i].Revision = w.store.Revision()
			continue
		}
		if len(packs) == 0 || ops+n > registry.MaxTxnOps {
			packs, ops = append(packs, nil), 0
		}
		packs[len(packs)-1] = append(packs[len(packs)-1], i)
		ops += n
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxInFlight)
	for _, pack := range packs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			var writes []cluster.Write
			for _, i := range pack {
				for _, stage := range plans[i].Stages {
					writes = append(writes, stage...)
				}
			}
			revision, err := w.commit(ctx, writes)
			for _, i := range pack {
				results[i] = Result{revision, err}
			}
		})
	}
	wg.Wait()
	last := int64(0)
	for _, r := range results {
		last = max(last, r.Revision)
	}
	if err := w.store.WaitRevision(ctx, last); err != nil {
		for i := range results {
			results[i].Err = errors.Join(results[i].Err, err)
		}
	}
	return results
}

// Settle ends the uncertainty after ErrUnknown and brings the store up to date.
func (w *Writer) Settle(ctx context.Context) error {
	revision, err := w.term.Settle(ctx)
	if err != nil {
		return err
	}
	return w.store.WaitRevision(ctx, revision)
}

// steps lays a plan out in steps of transactions that may go side by side. Whole
// stages share a transaction where they fit; only a stage too large for one is
// split.
func steps(plan cluster.Plan) [][][]cluster.Write {
	var all [][][]cluster.Write
	var open []cluster.Write
	flush := func() {
		if len(open) > 0 {
			all = append(all, [][]cluster.Write{open})
			open = nil
		}
	}
	for _, stage := range plan.Stages {
		if len(open)+len(stage) > registry.MaxTxnOps {
			flush()
		}
		if len(stage) <= registry.MaxTxnOps {
			open = append(open, stage...)
			continue
		}
		var step [][]cluster.Write
		for len(stage) > 0 {
			n := min(len(stage), registry.MaxTxnOps)
			step = append(step, stage[:n])
			stage = stage[n:]
		}
		all = append(all, step)
	}
	flush()
	return all
}

// step makes the transactions of one step and waits for all of them.
func (w *Writer) step(ctx context.Context, txns [][]cluster.Write) (int64, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var last int64
	var errs []error
	slots := make(chan struct{}, maxInFlight)
	for _, writes := range txns {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			commit := w.commit
			if len(txns) > 1 {
				commit = w.byHalves
			}
			revision, err := commit(ctx, writes)
			mu.Lock()
			defer mu.Unlock()
			last = max(last, revision)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	// The worst one decides: a conflict is not known as long as another outcome is
	// not.
	for _, kind := range []error{registry.ErrDeposed, registry.ErrUnknown} {
		for _, err := range errs {
			if errors.Is(err, kind) {
				return 0, err
			}
		}
	}
	return last, errors.Join(errs...)
}

// byHalves makes one of several transactions of a stage. The writes of such a stage
// do not depend on each other, so on a conflict each half is tried by itself: what
// changed under the plan holds up nothing but itself. It still returns ErrConflict
// if anything was left out.
func (w *Writer) byHalves(ctx context.Context, writes []cluster.Write) (int64, error) {
	revision, err := w.commit(ctx, writes)
	if len(writes) < 2 || !errors.Is(err, registry.ErrConflict) {
		return revision, err
	}
	half := len(writes) / 2
	first, err := w.byHalves(ctx, writes[:half])
	if err != nil && !errors.Is(err, registry.ErrConflict) {
		return first, err
	}
	second, err2 := w.byHalves(ctx, writes[half:])
	if err2 != nil && !errors.Is(err2, registry.ErrConflict) {
		return max(first, second), err2
	}
	return max(first, second), errors.Join(err, err2)
}

// commit makes one transaction.
func (w *Writer) commit(ctx context.Context, writes []cluster.Write) (int64, error) {
	comparisons := make([]clientv3.Cmp, 0, len(writes))
	ops := make([]clientv3.Op, 0, len(writes))
	for _, write := range writes {
		name := keyName(w.store.keys, write.Key)
		comparisons = append(comparisons, clientv3.Compare(clientv3.ModRevision(name), "=", write.Expect))
		if write.Record == nil {
			ops = append(ops, clientv3.OpDelete(name))
			continue
		}
		value, err := encode(write.Record)
		if err != nil {
			return 0, err
		}
		ops = append(ops, clientv3.OpPut(name, string(value)))
	}
	return w.term.Commit(ctx, comparisons, ops)
}
