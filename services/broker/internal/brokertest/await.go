package brokertest

import (
	"testing"
	"time"
)

// Patience is how long a test waits for something that should happen soon.
const Patience = time.Minute

// Await waits until a condition holds, and fails the test if it does not.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
