package groups

import (
	"sync"
	"time"

	"github.com/leat-io/leat/libs/client"
)

// Look is how far a group and a log were at one time.
type Look struct {
	At time.Time
	// Position is the next offset that the group has not worked on; -1: unknown.
	Position int64
	// PositionAt is when it got there; zero: unknown, then At counts.
	PositionAt time.Time
	// End is the visible end; -1: unknown.
	End int64
}

// Rate is how fast a group reads a partition and how fast it grows, in records a
// second; negative: unknown.
type Rate struct {
	Read, Appended float64
}

// Unknown is the rate of a partition that was seen once.
func Unknown() Rate { return Rate{Read: -1, Appended: -1} }

// Bounds of what is compared.
const (
	// minWindow is the least time between two looks that tell a rate.
	minWindow = 200 * time.Millisecond
	// standstill is how long a position has to stay before it counts as one that does
	// not move: members commit, and tell of their progress, every few seconds.
	standstill = 12 * time.Second
)

// Between tells the rate from an earlier look and a later one.
func Between(a, b Look) Rate {
	r := Unknown()
	seconds := b.At.Sub(a.At)
	if seconds >= minWindow && a.End >= 0 && b.End >= a.End {
		r.Appended = float64(b.End-a.End) / seconds.Seconds()
	}
	if a.Position < 0 || b.Position < a.Position {
		return r // a seek or a reset
	}
	if b.Position == a.Position {
		since := a.At
		if !b.PositionAt.IsZero() {
			since = b.PositionAt
		}
		if b.At.Sub(since) >= standstill {
			r.Read = 0
		}
		return r
	}
	if !a.PositionAt.IsZero() && !b.PositionAt.IsZero() {
		seconds = b.PositionAt.Sub(a.PositionAt)
	}
	if seconds >= minWindow {
		r.Read = float64(b.Position-a.Position) / seconds.Seconds()
	}
	return r
}

// CatchUp is how long it takes to read so many records while others come. False:
// that is not known, or never.
func CatchUp(lag int64, r Rate) (time.Duration, bool) {
	if lag == 0 {
		return 0, true
	}
	gain := r.Read - max(r.Appended, 0)
	if lag < 0 || r.Read <= 0 || gain <= 0 {
		return 0, false
	}
	seconds := float64(lag) / gain
	if seconds > maxCatchUp.Seconds() {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// maxCatchUp is the longest time that is told; beyond it is as good as never.
const maxCatchUp = 10 * 365 * 24 * time.Hour

// Bounds of what a Rates remembers.
const (
	maxRatedGroups     = 256
	maxRatedPartitions = 100_000
	// freshLook is how old the younger of two remembered looks becomes before it takes
	// the place of the older one, and staleLook how old one may be to be compared with.
	freshLook = 20 * time.Second
	staleLook = 5 * time.Minute
)

// Rates remembers earlier looks at groups, so that one description tells a rate. It
// is a help, no state: what it does not remember is unknown. It is safe for
// concurrent use.
type Rates struct {
	mu     sync.Mutex
	groups map[string]*ratedGroup
	size   int // partitions of all groups
}

// ratedGroup holds up to two looks at each partition of a group.
type ratedGroup struct {
	last  time.Time
	parts map[client.TopicPartition]*looks
}

type looks struct{ older, younger Look } // a zero At: none

// NewRates remembers nothing yet.
func NewRates() *Rates { return &Rates{groups: map[string]*ratedGroup{}} }

// Note remembers a look at a group, and tells the rates since an earlier one.
func (r *Rates) Note(group string, now time.Time, seen map[client.TopicPartition]Look) map[client.TopicPartition]Rate {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.groups[group]
	next := &ratedGroup{last: now, parts: make(map[client.TopicPartition]*looks, len(seen))}
	rates := make(map[client.TopicPartition]Rate, len(seen))
	for tp, look := range seen {
		rates[tp] = Unknown()
		l := &looks{}
		if old != nil && old.parts[tp] != nil {
			l = old.parts[tp]
		}
		rates[tp] = l.rate(look, now)
		l.keep(look, now)
		next.parts[tp] = l
	}
	r.forget(group)
	if len(seen) <= maxRatedPartitions {
		r.groups[group] = next
		r.size += len(next.parts)
	}
	for len(r.groups) > maxRatedGroups || r.size > maxRatedPartitions {
		r.forget(r.oldest())
	}
	return rates
}

// rate compares with the older look that is not too old.
func (l *looks) rate(now Look, at time.Time) Rate {
	for _, before := range []Look{l.older, l.younger} {
		if before.At.IsZero() || at.Sub(before.At) > staleLook {
			continue
		}
		if rate := Between(before, now); rate.Read >= 0 || before == l.younger {
			return rate
		}
	}
	return Unknown()
}

func (l *looks) keep(look Look, now time.Time) {
	switch {
	case l.younger.At.IsZero():
		l.younger = look
	case now.Sub(l.younger.At) >= freshLook:
		l.older, l.younger = l.younger, look
	}
}

func (r *Rates) forget(group string) {
	if g := r.groups[group]; g != nil {
		r.size -= len(g.parts)
		delete(r.groups, group)
	}
}

// oldest is the group that was looked at longest ago.
func (r *Rates) oldest() string {
	name, at := "", time.Time{}
	for n, g := range r.groups {
		if at.IsZero() || g.last.Before(at) {
			name, at = n, g.last
		}
	}
	return name
}
