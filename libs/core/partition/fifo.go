package partition

// fifo is a queue that reuses its memory.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(v T) {
	if q.head > 0 && len(q.items) == cap(q.items) && q.head >= len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// first is the oldest item; the queue must hold one.
func (q *fifo[T]) first() *T { return &q.items[q.head] }

func (q *fifo[T]) pop() T {
	v := q.items[q.head]
	var zero T
	q.items[q.head] = zero
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return v
}

// all are the items, the oldest first; valid until the queue changes.
func (q *fifo[T]) all() []T { return q.items[q.head:] }

// filter keeps the items for which keep holds, in order.
func (q *fifo[T]) filter(keep func(*T) bool) {
	kept := q.items[:0]
	for i := q.head; i < len(q.items); i++ {
		if keep(&q.items[i]) {
			kept = append(kept, q.items[i])
		}
	}
	clear(q.items[len(kept):])
	q.items, q.head = kept, 0
}

func (q *fifo[T]) clear() {
	clear(q.items)
	q.items, q.head = q.items[:0], 0
}
