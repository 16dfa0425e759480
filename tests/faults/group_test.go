package faults

import (
	"slices"
	"sync"
	"time"
)

// ownership is what the members of a group were told and given. It is safe for
// concurrent use.
type ownership struct {
	mu      sync.Mutex
	records *records
	parts   []ownedPartition
	// Assignments and revocations told, and records given, some of them again.
	assigned, revoked, delivered, repeated int
	failures                               map[string]int // what Poll said, by reason
}

// ownedPartition is one partition as the group's members know it.
type ownedPartition struct {
	holders []holder
	// next is one past the highest offset that any member was given.
	next int64
}

// holder is a member that was told that a partition is its own, and has not been told
// otherwise or gone.
type holder struct {
	member string
	since  time.Time
	next   int64 // one past what it was given last; -1: nothing yet
}

func newOwnership(h *records, partitions int) *ownership {
	return &ownership{records: h, parts: make([]ownedPartition, partitions), failures: map[string]int{}}
}

// assign notes that a member was told that partitions are its own.
func (o *ownership) assign(member string, partitions []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for _, n := range partitions {
		o.assigned++
		o.parts[n].drop(member)
		o.parts[n].holders = append(o.parts[n].holders, holder{member, now, -1})
	}
}

// revoke notes that they are no more; nil: none of them.
func (o *ownership) revoke(member string, partitions []int) {
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

func (p *ownedPartition) drop(member string) bool {
	before := len(p.holders)
	p.holders = slices.DeleteFunc(p.holders, func(h holder) bool { return h.member == member })
	return len(p.holders) < before
}

// deliver notes that a member was given a record no sooner than at a time: within a
// call that began then. It is a problem if another member was told before that the
// partition is its own, or if the group skipped something.
func (o *ownership) deliver(member string, partition int, offset int64, notBefore time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delivered++
	p := &o.parts[partition]
	at := slices.IndexFunc(p.holders, func(h holder) bool { return h.member == member })
	if at < 0 {
		o.records.problem("group: %s was given partition %d offset %d and does not own the partition", member, partition, offset)
		return
	}
	mine := &p.holders[at]
	for _, other := range p.holders {
		if other.member != member && other.since.After(mine.since) && notBefore.After(other.since) {
			o.records.problem("group: %s was given partition %d offset %d, %v after %s was told that the partition is its own",
				member, partition, offset, notBefore.Sub(other.since).Round(time.Millisecond), other.member)
		}
	}
	if mine.next >= 0 && offset != mine.next {
		o.records.problem("group: %s was given partition %d offset %d after %d", member, partition, offset, mine.next-1)
	}
	mine.next = offset + 1
	if offset > p.next {
		o.records.problem("group: nobody was given partition %d offsets %d to %d; %s goes on with %d", partition, p.next, offset-1, member, offset)
	}
	if offset < p.next {
		o.repeated++
	}
	p.next = max(p.next, offset+1)
}

// count is how many records the group was given.
func (o *ownership) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.delivered
}

// ends is one past the highest offset given, by partition.
func (o *ownership) ends() []int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ends []int64
	for _, p := range o.parts {
		ends = append(ends, p.next)
	}
	return ends
}

// failed notes an error that a member was told of and went on after.
func (o *ownership) failed(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures[reason]++
}
