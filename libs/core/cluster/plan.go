package cluster

import (
	"errors"
	"fmt"
)

// Write is one change of one key.
type Write struct {
	Key    Key
	Record Record // nil: delete the key
	Expect int64  // revision that the key must have; 0: it must not exist
}

// Plan is what is to be written: stage after stage, in each in any order. No key
// comes twice.
type Plan struct {
	Stages [][]Write
}

// IsEmpty tells whether there is nothing to write.
func (p Plan) IsEmpty() bool {
	for _, stage := range p.Stages {
		if len(stage) > 0 {
			return false
		}
	}
	return true
}

// Len is the number of writes.
func (p Plan) Len() int {
	n := 0
	for _, stage := range p.Stages {
		n += len(stage)
	}
	return n
}

// Rejection is the answer to a command that cannot be done. Nothing is to be
// written.
type Rejection struct {
	// Reason is a name of ErrorReason, without its prefix.
	Reason string
	// Message says what is wrong and what to do.
	Message string
	// Metadata names the things concerned.
	Metadata map[string]string
}

// Error is the reason and the message.
func (r *Rejection) Error() string { return r.Reason + ": " + r.Message }

func reject(reason, format string, args ...any) *Rejection {
	return &Rejection{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func (r *Rejection) with(key, value string) *Rejection {
	if r.Metadata == nil {
		r.Metadata = map[string]string{}
	}
	r.Metadata[key] = value
	return r
}

// InvariantError is a plan that would break what must always hold: a bug of this
// package. Nothing of the plan may be written.
type InvariantError struct {
	Key  Key
	Rule string
}

// Error tells the record and the rule.
func (e *InvariantError) Error() string {
	return fmt.Sprintf("a write to %+v would break a rule of the metadata: %s", e.Key, e.Rule)
}

// planner collects writes and checks each.
type planner struct {
	state *State
	plan  Plan
	errs  []error
}

func newPlanner(s *State) *planner { return &planner{state: s, plan: Plan{Stages: [][]Write{nil}}} }

// next begins another stage.
func (p *planner) next() {
	if len(p.plan.Stages[len(p.plan.Stages)-1]) > 0 {
		p.plan.Stages = append(p.plan.Stages, nil)
	}
}

func (p *planner) write(w Write) {
	last := len(p.plan.Stages) - 1
	p.plan.Stages[last] = append(p.plan.Stages[last], w)
}

// put plans a record. A partition record gets the next partition epoch.
func (p *planner) put(record Record) {
	key := record.Key()
	if next, ok := record.(Partition); ok {
		var before *Partition
		if e := p.state.Partition(next.Topic, next.Number); e != nil {
			before = &e.Value
			next.PartitionEpoch = before.PartitionEpoch
		}
		next.PartitionEpoch++
		if err := checkPartition(before, &next); err != nil {
			p.errs = append(p.errs, err)
		}
		record = next
	}
	p.write(Write{Key: key, Record: record, Expect: p.state.revision(key)})
}

// delete plans the end of a key.
func (p *planner) delete(key Key) { p.write(Write{Key: key, Expect: p.state.revision(key)}) }

// done returns the plan, or an *InvariantError.
func (p *planner) done() (Plan, error) {
	if len(p.errs) > 0 {
		return Plan{}, errors.Join(p.errs...)
	}
	if last := len(p.plan.Stages) - 1; len(p.plan.Stages[last]) == 0 {
		p.plan.Stages = p.plan.Stages[:last]
	}
	return p.plan, nil
}
