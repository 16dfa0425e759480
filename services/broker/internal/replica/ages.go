package replica

import (
	"slices"
	"time"
)

// The sample of when records were appended, from which the age of a reader's oldest
// unread record is told.
const (
	// maxAges bounds what is remembered of one replica: 24 bytes each.
	maxAges = 64
	// ageGap is the least time between two points.
	ageGap = time.Second
)

// agePoint says that the batch at a base offset was appended at a time.
type agePoint struct {
	base int64
	at   time.Duration // of the manager's clock
	late bool          // it was copied long after the leader had appended it
}

// ages is a bounded sample of appends, oldest first: dense for what is recent, thinner
// for what is old, and complete back to the first append since the replica was opened.
// Its zero value is empty and takes no memory. Its user locks.
type ages struct {
	points []agePoint
	since  time.Duration // when the replica was opened or began anew
}

// note tells of an append at an offset.
func (a *ages) note(base int64, now time.Duration, late bool) {
	if n := len(a.points); n > 0 && now-a.points[n-1].at < ageGap && a.points[n-1].late == late {
		return
	}
	if len(a.points) == maxAges {
		a.thin()
	}
	a.points = append(a.points, agePoint{base, now, late})
}

// thin drops every other point of the older half, but the first.
func (a *ages) thin() {
	kept := a.points[:1]
	for i, p := range a.points[1:] {
		if i+1 >= maxAges/2 || i%2 == 1 {
			kept = append(kept, p)
		}
	}
	a.points = kept
}

// cut forgets what lies at an offset or above.
func (a *ages) cut(to int64) {
	for n := len(a.points); n > 0 && a.points[n-1].base >= to; n-- {
		a.points = a.points[:n-1]
	}
}

// of tells how long ago the record at an offset was appended, and whether it is at
// least that old. The record must be in the log.
func (a *ages) of(offset int64, now time.Duration) (age time.Duration, atLeast bool) {
	// The last point at or below the offset.
	i, exact := slices.BinarySearchFunc(a.points, offset, func(p agePoint, o int64) int { return int(min(max(p.base-o, -1), 1)) })
	if !exact {
		i--
	}
	if i < 0 {
		return now - a.since, true
	}
	p := a.points[i]
	at := p.at
	if i+1 < len(a.points) {
		// Between two points the log is taken to have grown evenly.
		next := a.points[i+1]
		at += time.Duration(float64(next.at-p.at) * float64(offset-p.base) / float64(next.base-p.base))
	}
	return now - at, p.late
}
