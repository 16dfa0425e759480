package replica

import (
	"sync"
	"time"
)

// ioWatch knows what I/O runs of which there may be several at once: a replica's reads,
// and what belongs to no log, such as folders that are made or moved and checkpoints of
// a disk's marks. The zero value is ready.
type ioWatch struct {
	mu      sync.Mutex
	next    int64
	running map[int64]time.Duration // when it began
}

// begin notes that an I/O begins; the function returned, that it has ended.
func (w *ioWatch) begin(now time.Duration) (end func()) {
	id := w.start(now)
	return func() { w.end(id) }
}

// start is begin for those who call end themselves.
func (w *ioWatch) start(now time.Duration) (id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		w.running = map[int64]time.Duration{}
	}
	w.next++
	w.running[w.next] = now
	return w.next
}

// end notes that the I/O of a number has ended.
func (w *ioWatch) end(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, id)
}

// longest is for how long the oldest I/O has been running; 0: none runs.
func (w *ioWatch) longest(now time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := time.Duration(0)
	for _, began := range w.running {
		longest = max(longest, now-began)
	}
	return longest
}
