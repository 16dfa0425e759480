package simulation

import (
	"slices"
	"time"
)

// shrinkLimit bounds the time spent on one story.
const shrinkLimit = 40 * time.Second

// shrink looks for fewer steps of a failed walk that fail in the same way.
func shrink(w *world) []int {
	kind := w.failure.Kind
	steps := allSteps(w.steps)
	if w.failure.Step < w.steps {
		steps = steps[:w.failure.Step+1]
	}
	fails := func(s []int) bool {
		x := run(w.seed, s, map[string]int{}, false)
		return x.failure != nil && x.failure.Kind == kind
	}
	until := time.Now().Add(shrinkLimit)
	if s := steps; !fails(s) {
		return steps
	}
	for size := len(steps) / 2; size >= 1; size /= 2 {
		for at := 0; at+size <= len(steps); {
			if time.Now().After(until) {
				return steps
			}
			if s := slices.Delete(slices.Clone(steps), at, at+size); fails(s) {
				steps = s
			} else {
				at += size
			}
		}
	}
	return steps
}
