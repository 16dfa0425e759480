package mesh

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Eventually waits until the condition holds, and fails the test after the
// limit with what the condition last said.
func Eventually(t *testing.T, limit time.Duration, what string, condition func() (ok bool, state string)) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, state := condition()
		if ok {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %v; last seen: %s", what, limit, state)
		case <-tick.C:
		}
	}
}

// syncBuffer collects the output of a process while others read it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
