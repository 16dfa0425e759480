package session

import "time"

// steps are the values that durations are rounded to, in units.
func steps() []time.Duration {
	return []time.Duration{1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2400, 3600, 10_000}
}

// StepUp rounds a duration up to a step; zero stays.
func StepUp(d, unit time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	all := steps()
	for _, s := range all {
		if d <= s*unit {
			return s * unit
		}
	}
	return all[len(all)-1] * unit
}

// StepDown rounds a duration down to a step, the first at least.
func StepDown(d, unit time.Duration) time.Duration {
	best := unit
	for _, s := range steps() {
		if s*unit <= d {
			best = s * unit
		}
	}
	return best
}
