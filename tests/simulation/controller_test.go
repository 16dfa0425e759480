package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
)

const (
	maxTxnOps   = 100
	maxAttempts = 8
	maxInbox    = 64
)

// controller is one controller process: a picture of etcd that lags, and, while it
// leads, one command at a time.
type controller struct {
	w      *world
	id     int32
	inc    uint64
	up     bool
	paused bool

	of    *etcd // what it follows
	state *cluster.State
	pos   int   // changes of of.log that it has taken in
	rev   int64 // revision that it has taken in

	lease   *lease
	create  int64 // create revision of the election key while it leads; 0: it does not
	guard   int64 // ModRevision of it
	opened  bool  // the term's first command is through
	job     *job
	inbox   []*command
	retries []*job // of a batch, to be planned anew
	waits   map[cluster.Wait]time.Duration
	missing map[cluster.Process]absence
	tidied  int // position at which there was nothing to reconcile
	calm    time.Duration
}

type absence struct {
	since time.Duration
	rev   int64
}

// command is something to be decided and written.
type command struct {
	name  string
	batch bool // it may be planned together with others of its kind
	plan  func(state *cluster.State, attempt int) (cluster.Plan, error)
	done  func(rev int64, err error)
}

// job is a command under way.
type job struct {
	*command
	attempt int
	planned bool
	steps   [][]cluster.Write
	at      int
	last    int64
	settle  bool // the outcome of a transaction is unknown
	settled bool // ... and that has been seen to
	batch   *batchOf
	wait    int64 // revision that the state must show first
}

func (c *controller) node() node { return node{cluster.KindController, c.id} }
func (c *controller) runs() bool { return c.up && !c.paused }
func (c *controller) life() cluster.Process {
	return cluster.Process{ID: c.id, Incarnation: c.inc}
}

// start begins a life.
func (c *controller) start() {
	c.w.lives++
	w := c.w
	*c = controller{w: w, id: c.id, inc: w.lives, up: true}
	c.waits, c.missing = map[cluster.Wait]time.Duration{}, map[cluster.Process]absence{}
	w.say("controller %d starts as #%d", c.id, c.inc)
}

// crash ends it.
func (c *controller) crash() {
	c.endTerm("it crashed")
	c.up = false
	c.w.count("controller crash")
	c.w.say("controller %d#%d crashes", c.id, c.inc)
}

// watch takes in what etcd tells, up to n revisions more.
func (c *controller) watch(n int) {
	w := c.w
	if !c.runs() || w.etcd.down || !w.reaches(c.node(), etcdNode()) {
		return
	}
	if c.state == nil || c.of != w.etcd {
		// A list, then a watch from there.
		c.of, c.state, c.pos, c.rev = w.etcd, cluster.NewState(), 0, 0
		n = 1 << 30
	}
	if c.pos == len(c.of.log) {
		c.rev = c.of.rev
		return
	}
	for ; n > 0 && c.pos < len(c.of.log); n-- {
		rev := c.of.log[c.pos].rev
		for c.pos < len(c.of.log) && c.of.log[c.pos].rev == rev {
			ch := c.of.log[c.pos]
			if ch.rec == nil {
				c.state.Delete(ch.key)
			} else {
				c.state.Set(ch.rec, ch.create, ch.rev)
			}
			c.pos++
		}
		c.rev = rev
	}
	if c.create != 0 {
		if e := c.state.Election(); e == nil && c.rev >= c.guard || e != nil && e.Create != c.create && e.Create > c.create {
			c.endTerm("the election key is gone")
		}
	}
}

// campaign tries to lead: by creating the key, or by removing that of a dead leader.
func (c *controller) campaign() {
	w := c.w
	if !c.runs() || c.create != 0 || c.state == nil || w.etcd.down {
		return
	}
	key := cluster.Key{Type: cluster.KeyElection}
	if now, ok := w.etcd.get(key); ok {
		holder := now.rec.(cluster.Election).Controller
		h := w.ctls[holder.ID-1]
		if h.up && h.inc == holder.Incarnation && holder != c.life() {
			return // it answers, or is silent; its lease decides
		}
		// Refused twice, or another incarnation answers, or it is one's own of a term
		// that ended unknown.
		rev, err := w.etcd.commit(&txn{why: "remove a dead leader's key", from: c.node(), writes: []cluster.Write{{Key: key, Expect: now.rev}}})
		w.say("controller %d removes the election key of %d#%d (revision %d, %v)", c.id, holder.ID, holder.Incarnation, rev, err)
		return
	}
	if c.lease != nil {
		w.etcd.revoke(c.lease)
	}
	c.lease = w.etcd.grant(c.node(), c.inc)
	rev, err := w.etcd.commit(&txn{
		why: "stand for election", from: c.node(), lease: c.lease.id,
		writes: []cluster.Write{{Key: key, Record: cluster.Election{Controller: c.life()}}},
	})
	if err != nil {
		w.etcd.revoke(c.lease)
		return
	}
	c.create, c.guard, c.opened = rev, rev, false
	c.job = &job{command: &command{name: "ensure cluster", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
		return cluster.EnsureCluster(s, "mesh", nil)
	}}, wait: rev}
	c.waits, c.missing = map[cluster.Wait]time.Duration{}, map[cluster.Process]absence{}
	c.tidied = -1
	w.count("controller elected")
	w.say("controller %d#%d is elected (revision %d)", c.id, c.inc, rev)
}

// endTerm ends the leadership, and whatever was under way in it.
func (c *controller) endTerm(why string) {
	if c.create == 0 {
		return
	}
	c.w.say("controller %d#%d leads no longer: %s", c.id, c.inc, why)
	c.create, c.guard, c.opened = 0, 0, false
	job, inbox := c.job, c.inbox
	if job != nil {
		inbox = append(job.batch.commands(), inbox...)
	}
	for _, r := range c.retries {
		inbox = append(inbox, r.command)
	}
	c.job, c.inbox, c.retries = nil, nil, nil
	if job != nil && job.done != nil {
		job.done(0, errDeposed)
	}
	for _, cmd := range inbox {
		cmd.done(0, errDeposed)
	}
	if c.lease != nil && !c.w.etcd.down {
		c.w.etcd.revoke(c.lease)
	}
	c.lease = nil
}

// do takes a command, to be answered by its done.
func (c *controller) do(cmd *command) {
	if c.create == 0 || !c.opened || len(c.inbox) >= maxInbox {
		cmd.done(0, errDeposed)
		return
	}
	c.inbox = append(c.inbox, cmd)
}

// step does one thing: the next transaction of the running command, or the next
// command.
func (c *controller) act() {
	if !c.runs() || c.create == 0 || c.state == nil {
		return
	}
	if c.job == nil {
		c.job = c.next()
	}
	j := c.job
	if j == nil || !j.settle && c.rev < j.wait {
		return
	}
	switch {
	case j.settle:
		c.settle(j)
	case j.batch != nil:
		c.actBatch(j)
	case !j.planned:
		c.plan(j)
	case j.at < len(j.steps):
		c.write(j)
	default:
		c.finish(j, nil)
	}
}

// next is the command to carry out now.
func (c *controller) next() *job {
	if len(c.retries) > 0 {
		j := c.retries[0]
		c.retries = c.retries[1:]
		return j
	}
	if len(c.inbox) > 0 && c.w.chance(60) {
		if c.inbox[0].batch {
			return c.gather()
		}
		cmd := c.inbox[0]
		c.inbox = c.inbox[1:]
		return &job{command: cmd}
	}
	if cmd := c.observe(); cmd != nil {
		return &job{command: cmd}
	}
	return nil
}

func (c *controller) finish(j *job, err error) {
	c.job = nil
	if j.name == "ensure cluster" {
		c.opened = err == nil
		if err != nil {
			c.endTerm("its first command failed")
		}
	}
	if j.done != nil {
		j.done(j.last, err)
	}
}

// plan decides, with the newest state.
func (c *controller) plan(j *job) {
	plan, err := j.command.plan(c.state, j.attempt)
	if err != nil {
		var bug *cluster.InvariantError
		if errors.As(err, &bug) {
			c.w.fail("ASSERT", "controller %d: %s: %v", c.id, j.name, err)
		}
		c.finish(j, err)
		return
	}
	c.noteLeaders(plan)
	j.planned, j.steps, j.at, j.last = true, steps(plan), 0, c.rev
}

// steps lays a plan out in transactions, as the controller's writer does.
func steps(plan cluster.Plan) [][]cluster.Write {
	var all [][]cluster.Write
	var open []cluster.Write
	for _, stage := range plan.Stages {
		if len(open)+len(stage) > maxTxnOps && len(open) > 0 {
			all = append(all, open)
			open = nil
		}
		for len(stage) > maxTxnOps {
			all = append(all, stage[:maxTxnOps])
			stage = stage[maxTxnOps:]
		}
		open = append(slices.Clip(open), stage...)
	}
	if len(open) > 0 {
		all = append(all, open)
	}
	return all
}

// write makes the next transaction.
func (c *controller) write(j *job) {
	rev, err := c.w.etcd.commit(&txn{why: j.name, guard: c.guard, writes: j.steps[j.at], from: c.node()})
	switch {
	case err == nil:
		j.at++
		j.last = rev
		if j.at == len(j.steps) {
			j.wait = rev
		}
	case errors.Is(err, errDeposed):
		c.endTerm("its write was refused")
	case errors.Is(err, errConflict):
		c.w.count("etcd conflict")
		c.again(j, rev)
	default:
		c.w.count("unknown transaction settled")
		j.settle = true
	}
}

// settle rewrites the election key under its old revision, until that is known to
// have taken place: every transaction before it is dead, or in the state.
func (c *controller) settle(j *job) {
	key := cluster.Key{Type: cluster.KeyElection}
	if c.lease == nil {
		c.endTerm("it has no lease")
		return
	}
	rev, err := c.w.etcd.commit(&txn{
		why: "settle", guard: c.guard, lease: c.lease.id, from: c.node(),
		writes: []cluster.Write{{Key: key, Record: cluster.Election{Controller: c.life()}, Expect: c.guard}},
	})
	if errors.Is(err, errUnknown) {
		return
	}
	if err != nil {
		now, ok := c.w.etcd.get(key)
		if !ok || now.create != c.create {
			c.endTerm("its key was another's when it settled")
			return
		}
		rev = now.rev
	}
	c.guard, j.settle, j.settled = rev, false, true
	if j.batch != nil {
		j.wait = rev
		return
	}
	c.again(j, rev)
}

// again plans a command anew, once the state shows a revision.
func (c *controller) again(j *job, rev int64) {
	j.planned, j.wait = false, rev
	if j.attempt++; j.attempt >= maxAttempts {
		c.finish(j, errConflict)
	}
}

// noteLeaders counts the elections that a plan brings.
func (c *controller) noteLeaders(plan cluster.Plan) {
	for _, ch := range cluster.LeaderChanges(c.state, plan) {
		if ch.To.IsZero() {
			continue
		}
		w := c.w
		e := c.state.Partition(ch.ID.Topic, ch.ID.Number)
		switch {
		case ch.First:
			w.count("election: first")
		case ch.Longest:
			w.count("election: longest after power cuts under os")
			w.part(ch.ID).expect(ch)
		case ch.Unclean:
			w.count("election: unclean")
			w.part(ch.ID).expect(ch)
		case slices.Contains(e.Value.ISR, ch.To.ID):
			w.count("election: from the ISR")
		default:
			w.count("election: from the ELR")
		}
	}
}
