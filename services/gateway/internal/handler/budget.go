package handler

import (
	"context"
	"sync/atomic"
)

// charge takes bytes from the budget of all produce streams, waiting for them; a
// message larger than the whole waits for all of it. The returned function gives
// them back, once however often it is called.
func (h *Handler) charge(ctx context.Context, bytes int64) (refund func(), err error) {
	bytes = min(max(bytes, 1), h.cfg.Limits.MaxProduceBytes)
	if err := h.budget.Acquire(ctx, bytes); err != nil {
		return nil, err
	}
	h.metrics.buffered.Add(bytes)
	var done atomic.Bool
	return func() {
		if done.CompareAndSwap(false, true) {
			h.metrics.buffered.Add(-bytes)
			h.budget.Release(bytes)
		}
	}, nil
}
