package replica

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/leat-io/leat/libs/core/partition"
)

// wakes are the times at which cores want to be told what time it is: at most one of
// each replica.
type wakes struct {
	mu   sync.Mutex
	heap wakeHeap
	news chan struct{} // the earliest has changed
}

// wakeHeap orders replicas by wakeAt; all of it is guarded by wakes.mu.
type wakeHeap []*Replica

func (h wakeHeap) Len() int           { return len(h) }
func (h wakeHeap) Less(i, j int) bool { return h[i].wakeAt < h[j].wakeAt }
func (h wakeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].wakePlace, h[j].wakePlace = i+1, j+1
}

func (h *wakeHeap) Push(x any) {
	r := x.(*Replica)
	*h = append(*h, r)
	r.wakePlace = len(*h)
}

func (h *wakeHeap) Pop() any {
	old := *h
	last := len(old) - 1
	r := old[last]
	old[last] = nil
	*h = old[:last]
	r.wakePlace = 0
	return r
}

// add asks for a Tick of a replica, unless one is due earlier.
func (w *wakes) add(r *Replica, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case r.wakePlace == 0:
		r.wakeAt = at
		heap.Push(&w.heap, r)
	case at < r.wakeAt:
		r.wakeAt = at
		heap.Fix(&w.heap, r.wakePlace-1)
	default:
		return
	}
	if w.heap[0] == r {
		signal(w.news)
	}
}

// drop forgets a replica.
func (w *wakes) drop(r *Replica) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.wakePlace != 0 {
		heap.Remove(&w.heap, r.wakePlace-1)
	}
}

// due takes what is due, and says when the next is; 0: nothing waits.
func (w *wakes) due(now time.Duration) (due []*Replica, next time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.heap) > 0 && w.heap[0].wakeAt <= now {
		due = append(due, heap.Pop(&w.heap).(*Replica))
	}
	if len(w.heap) > 0 {
		next = w.heap[0].wakeAt
	}
	return due, next
}

// wakeLoop tells cores the time until ctx ends.
func (m *Manager) wakeLoop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, next := m.wakes.due(m.now())
		for _, r := range due {
			r.tick()
		}
		if len(due) > 0 {
			continue
		}
		wait := time.Hour
		if next > 0 {
			wait = max(next-m.now(), 0)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-m.wakes.news:
		case <-ctx.Done():
			return
		}
	}
}

// tick tells the core the time.
func (r *Replica) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gone {
		r.step(partition.Tick{Now: r.m.now()})
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a signal waits already
	}
}
