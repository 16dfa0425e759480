package owners

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Problem takes what was found to be wrong.
type Problem func(format string, args ...any)

// Owners is what the members of one group were told and given of one topic. Use New.
type Owners struct {
	mu      sync.Mutex
	problem Problem
	parts   []partition
	// Assignments and revocations told, and records given, some of them again.
	assigned, revoked, delivered, repeated int
	failures                               map[string]int
}

// partition is one partition as the group's members know it.
type partition struct {
	holders []holder
	next    int64     // one past the highest offset that any member was given
	last    time.Time // when next last rose
	longest time.Duration
	ended   time.Time // of the longest
}

// holder is a member that was told that a partition is its own, and has not been told
// otherwise or gone.
type holder struct {
	member string
	since  time.Time
	next   int64 // one past what it was given last; -1: nothing yet
}

// New returns the record of a group that begins with offset 0 of each of so many
// partitions.
func New(partitions int, problem Problem) *Owners {
	return &Owners{problem: problem, parts: make([]partition, partitions), failures: map[string]int{}}
}

// Assign notes that a member was told that partitions are its own.
func (o *Owners) Assign(member string, partitions []int, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range partitions {
		o.assigned++
		o.parts[n].drop(member)
		o.parts[n].holders = append(o.parts[n].holders, holder{member, at, -1})
	}
}

// Revoke notes that they are no more; nil: none of them.
func (o *Owners) Revoke(member string, partitions []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range o.parts {
		if partitions == nil || slices.Contains(partitions, n) {
			if o.parts[n].drop(member) {
				o.revoked++
			}
		}
	}
}

func (p *partition) drop(member string) bool {
	before := len(p.holders)
	p.holders = slices.DeleteFunc(p.holders, func(h holder) bool { return h.member == member })
	return len(p.holders) < before
}

// Deliver notes that a member was given a record at a time, by a call that began no
// later than notBefore. It is a problem if another member was told between its own
// assignment and notBefore that the partition is its own, or if the group skipped
// something.
func (o *Owners) Deliver(member string, number int, offset int64, notBefore, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := &o.parts[number]
	mine := slices.IndexFunc(p.holders, func(h holder) bool { return h.member == member })
	if mine < 0 {
		o.problem("%s was given partition %d offset %d and does not own the partition", member, number, offset)
		return
	}
	h := &p.holders[mine]
	for _, other := range p.holders {
		if other.member != member && other.since.After(h.since) && notBefore.After(other.since) {
			o.problem("%s was given partition %d offset %d, %v after %s was told that the partition is its own",
				member, number, offset, notBefore.Sub(other.since).Round(time.Millisecond), other.member)
		}
	}
	if h.next >= 0 && offset != h.next {
		o.problem("%s was given partition %d offset %d after %d", member, number, offset, h.next-1)
	}
	h.next = offset + 1
	o.pass(member, number, offset, at)
}

// Pass notes that a member of which only the records are seen was given one.
func (o *Owners) Pass(member string, number int, offset int64, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pass(member, number, offset, at)
}

func (o *Owners) pass(member string, number int, offset int64, at time.Time) {
	o.delivered++
	p := &o.parts[number]
	if offset > p.next {
		o.problem("nobody was given partition %d offsets %d to %d; %s goes on with %d", number, p.next, offset-1, member, offset)
	}
	if offset < p.next {
		o.repeated++
		return
	}
	if gap := at.Sub(p.last); !p.last.IsZero() && gap > p.longest {
		p.longest, p.ended = gap, at
	}
	p.next, p.last = offset+1, at
}

// Standstill is the longest time for which the group was given nothing new of a
// partition, the partition, and when it ended.
func (o *Owners) Standstill() (longest time.Duration, number int, ended time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n, p := range o.parts {
		if p.longest > longest {
			longest, number, ended = p.longest, n, p.ended
		}
	}
	return longest, number, ended
}

// Ends is one past the highest offset given, by partition.
func (o *Owners) Ends() []int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ends []int64
	for _, p := range o.parts {
		ends = append(ends, p.next)
	}
	return ends
}

// Failed notes an error that a member was told of and went on after, by its reason.
func (o *Owners) Failed(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures[reason]++
}

// Counts is how much there was.
type Counts struct {
	// Partitions told to be a member's own and to be so no more, and records given,
	// of which some again.
	Assigned, Revoked, Delivered, Repeated int
	Failures                               map[string]int
}

// Counts tells how much there was until now.
func (o *Owners) Counts() Counts {
	o.mu.Lock()
	defer o.mu.Unlock()
	return Counts{o.assigned, o.revoked, o.delivered, o.repeated, maps.Clone(o.failures)}
}
