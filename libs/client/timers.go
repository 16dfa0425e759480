package client

import (
	"container/heap"
	"sync"
	"time"
)

// timerQueue says which partitions of a producer are due. One goroutine waits for
// the first; many set times.
type timerQueue struct {
	mu   sync.Mutex
	heap timerHeap
	wake chan struct{} // has a value when the first time has become earlier
}

// timerEntry is a partition's time. The queue's lock guards it.
type timerEntry struct {
	part *producerPartition
	at   time.Time
	pos  int // in the heap, from 1; 0: not there
}

func newTimerQueue() *timerQueue { return &timerQueue{wake: make(chan struct{}, 1)} }

// set makes at the time of an entry; zero: none.
func (q *timerQueue) set(e *timerEntry, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case at.IsZero():
		if e.pos > 0 {
			heap.Remove(&q.heap, e.pos-1)
		}
		return
	case e.pos == 0:
		e.at = at
		heap.Push(&q.heap, e)
	case e.at.Equal(at):
		return
	default:
		e.at = at
		heap.Fix(&q.heap, e.pos-1)
	}
	if q.heap[0] == e {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// timer runs out when the first entry is due.
func (q *timerQueue) timer() *time.Timer {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.heap) == 0 {
		return time.NewTimer(time.Hour)
	}
	return time.NewTimer(time.Until(q.heap[0].at))
}

// due takes out the partitions whose time has come.
func (q *timerQueue) due(now time.Time) []*producerPartition {
	q.mu.Lock()
	defer q.mu.Unlock()
	var parts []*producerPartition
	for len(q.heap) > 0 && !q.heap[0].at.After(now) {
		e, _ := heap.Pop(&q.heap).(*timerEntry)
		parts = append(parts, e.part)
	}
	return parts
}

type timerHeap []*timerEntry

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}

func (h *timerHeap) Push(x any) {
	e, ok := x.(*timerEntry)
	if !ok {
		return
	}
	*h = append(*h, e)
	e.pos = len(*h)
}

func (h *timerHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.pos = 0
	return e
}
