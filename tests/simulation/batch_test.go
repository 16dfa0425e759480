package simulation

import (
	"errors"

	"github.com/leat-io/leat/libs/core/cluster"
)

// maxPack bounds the plans that share a transaction: so few that a batch takes several,
// which are under way at once.
const maxPack = 2

// batchOf are commands that are planned together, each on the state before all of them,
// and written in transactions of which none waits for another.
type batchOf struct {
	cmds  []*command
	plans []cluster.Plan
	packs [][]int // plans of the transactions that have not been made
	revs  []int64
	errs  []error
	alone []*command // to be planned by themselves
}

// gather takes commands from the inbox for as long as they may share a batch.
func (c *controller) gather() *job {
	b := &batchOf{}
	for len(c.inbox) > 0 && c.inbox[0].batch {
		b.cmds = append(b.cmds, c.inbox[0])
		c.inbox = c.inbox[1:]
	}
	return &job{command: &command{name: "a batch of " + b.cmds[0].name}, batch: b}
}

// actBatch does one thing of a batch: plans it, makes one of its transactions, or ends
// it.
func (c *controller) actBatch(j *job) {
	b := j.batch
	switch {
	case !j.planned:
		j.planned = true
		c.planBatch(b)
		if len(b.packs) > 1 {
			c.w.count("transactions of a batch under way at once")
		}
	case len(b.packs) > 0:
		i := c.w.n(len(b.packs)) // they arrive as they like
		pack := b.packs[i]
		b.packs = append(b.packs[:i:i], b.packs[i+1:]...)
		c.writePack(j, pack)
	default:
		c.endBatch(j)
	}
}

// planBatch plans commands on one state. Those that write what another one's plan
// writes, or more than one stage, are left to be planned alone.
func (c *controller) planBatch(b *batchOf) {
	taken := map[cluster.Key]bool{}
	var cmds []*command
	for _, cmd := range b.cmds {
		plan, err := cmd.plan(c.state, 0)
		if err != nil {
			var bug *cluster.InvariantError
			if errors.As(err, &bug) {
				c.w.fail("ASSERT", "controller %d: %s: %v", c.id, cmd.name, err)
			}
			cmd.done(0, err)
			continue
		}
		fits := len(plan.Stages) <= 1
		for _, stage := range plan.Stages {
			for _, w := range stage {
				fits = fits && !taken[w.Key]
			}
		}
		if !fits {
			b.alone = append(b.alone, cmd)
			continue
		}
		for _, stage := range plan.Stages {
			for _, w := range stage {
				taken[w.Key] = true
			}
		}
		c.noteLeaders(plan)
		cmds, b.plans = append(cmds, cmd), append(b.plans, plan)
	}
	b.cmds, b.revs, b.errs = cmds, make([]int64, len(cmds)), make([]error, len(cmds))
	most := 1 + c.w.n(maxPack)
	for i, plan := range b.plans {
		b.revs[i] = c.rev
		if plan.IsEmpty() {
			continue
		}
		if n := len(b.packs); n == 0 || len(b.packs[n-1]) == most {
			b.packs = append(b.packs, nil)
		}
		n := len(b.packs) - 1
		b.packs[n] = append(b.packs[n], i)
	}
}

// writePack makes one transaction of a batch.
func (c *controller) writePack(j *job, pack []int) {
	b := j.batch
	var writes []cluster.Write
	for _, i := range pack {
		for _, stage := range b.plans[i].Stages {
			writes = append(writes, stage...)
		}
	}
	rev, err := c.w.etcd.commit(&txn{why: j.name, guard: c.guard, writes: writes, from: c.node()})
	for _, i := range pack {
		b.revs[i], b.errs[i] = rev, err
	}
}

// endBatch answers what is written, once the state shows it, and sees to it that the
// rest is planned anew.
func (c *controller) endBatch(j *job) {
	b := j.batch
	for i, err := range b.errs {
		switch {
		case errors.Is(err, errDeposed):
			c.endTerm("its write was refused")
			return
		case errors.Is(err, errUnknown) && !j.settled:
			c.w.count("unknown transaction settled")
			j.settle = true
			return
		}
		j.wait = max(j.wait, b.revs[i])
	}
	if c.rev < j.wait {
		return
	}
	c.job = nil
	for i, cmd := range b.cmds {
		if b.errs[i] == nil {
			cmd.done(b.revs[i], nil)
			continue
		}
		if errors.Is(b.errs[i], errConflict) {
			c.w.count("etcd conflict")
		}
		c.retries = append(c.retries, &job{command: cmd, attempt: 1})
	}
	for _, cmd := range b.alone {
		c.w.count("command of a batch planned alone")
		c.retries = append(c.retries, &job{command: cmd})
	}
	b.cmds, b.alone = nil, nil
}

// commands are those of a batch that have not been answered.
func (b *batchOf) commands() []*command {
	if b == nil {
		return nil
	}
	return append(b.cmds, b.alone...)
}
