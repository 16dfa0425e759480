package handler

import (
	"context"
	"sync"
)

// queue is a first-in, first-out queue between two goroutines. What goes in is
// bounded by whoever pushes.
type queue[T any] struct {
	mu    sync.Mutex
	items []T
	ready chan struct{}
}

func newQueue[T any]() *queue[T] { return &queue[T]{ready: make(chan struct{}, 1)} }

func (q *queue[T]) push(v T) {
	q.mu.Lock()
	q.items = append(q.items, v)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// tryPop takes the oldest; false: there is none.
func (q *queue[T]) tryPop() (T, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var v T
	if len(q.items) == 0 {
		return v, false
	}
	v = q.items[0]
	q.items = q.items[1:]
	return v, true
}

// pop waits for the oldest; false: ctx has ended.
func (q *queue[T]) pop(ctx context.Context) (T, bool) {
	for {
		if ctx.Err() != nil {
			var zero T
			return zero, false
		}
		if v, ok := q.tryPop(); ok {
			return v, true
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
		}
	}
}

// drain takes everything.
func (q *queue[T]) drain(f func(T)) {
	for v, ok := q.tryPop(); ok; v, ok = q.tryPop() {
		f(v)
	}
}
