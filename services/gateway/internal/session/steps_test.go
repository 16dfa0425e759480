package session

import (
	"testing"
	"time"
)

func TestSteps(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		0: 0, time.Microsecond: time.Millisecond, time.Millisecond: time.Millisecond, 6 * time.Millisecond: 7 * time.Millisecond,
		5 * time.Millisecond: 5 * time.Millisecond, 10 * time.Second: 10 * time.Second, time.Hour: 10 * time.Second,
	} {
		if got := StepUp(d, time.Millisecond); got != want {
			t.Errorf("%s up to %s, want %s", d, got, want)
		}
	}
	for d, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Second, 4999 * time.Millisecond: 4 * time.Second, 2 * time.Minute: 2 * time.Minute, 3 * time.Hour: 10_000 * time.Second,
	} {
		if got := StepDown(d, time.Second); got != want {
			t.Errorf("%s down to %s, want %s", d, got, want)
		}
	}
}
