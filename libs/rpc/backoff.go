package rpc

import (
	"math/rand/v2"
	"time"
)

// Backoff gives the waits between tries: doubling from Min to Max, each drawn
// from the upper half of its step, so that many callers do not come back at
// once. The zero value waits 20 ms to 1 s. Not safe for concurrent use.
type Backoff struct {
	// Min is the first step; 0: 20 ms.
	Min time.Duration
	// Max is the largest step; 0: 1 s.
	Max time.Duration

	step time.Duration
}

// Next gives the wait before the next try.
func (b *Backoff) Next() time.Duration {
	lo, hi := b.Min, b.Max
	if lo <= 0 {
		lo = 20 * time.Millisecond
	}
	if hi <= 0 {
		hi = time.Second
	}
	hi = max(hi, lo)
	if b.step == 0 {
		b.step = lo
	} else {
		b.step = min(b.step*2, hi)
	}
	half := b.step / 2
	return half + rand.N(b.step-half+1)
}

// Reset starts over after a success.
func (b *Backoff) Reset() { b.step = 0 }
