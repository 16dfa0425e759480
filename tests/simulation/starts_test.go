package simulation

import (
	"time"

	"github.com/leat-io/leat/libs/core/group"
)

// blocked is a reset that a coordinator works on. Members commit nothing of the
// partition meanwhile, so that what is committed goes on rising.
type blocked struct {
	c   *coordinator
	inc uint64
}

// resolve asks the leader of one of the partitions where they start. What it does not
// lead fails, and is asked for again.
func (c *coordinator) resolve(e group.ResolveStart) {
	w := c.g.w
	life, done := c.inc, false
	answer := func(results []group.StartResult) {
		if done || !c.up || c.inc != life {
			return
		}
		done = true
		w.count("starts answered")
		c.step(group.Start{Job: e.Job, Group: e.Group, Results: results})
	}
	lost := func() {
		var none []group.StartResult
		for _, p := range e.Parts {
			none = append(none, group.StartResult{Part: p, Next: -1, LeaderEpoch: -1, Failed: "no answer"})
		}
		answer(none)
	}
	w.calls = append(w.calls, &call{deadline: w.now + callTimeout, lost: lost})
	b := w.anyBroker()
	if asked := c.g.find(e.Parts[w.n(len(e.Parts))]); asked != nil {
		if b = w.broker(asked.record.Leader.ID); b == nil {
			return
		}
	}
	w.send(&packet{from: c.node(), to: b.node(), what: "question for starts", run: func() {
		var results []group.StartResult
		for _, p := range e.Parts {
			results = append(results, c.g.startAt(b, p))
		}
		w.send(&packet{from: b.node(), to: c.node(), life: life, what: "answer with starts", run: func() { answer(results) }})
	}})
}

// startAt is where a partition starts, as one broker knows it: always 0, which is below
// every commit, so that a start that overwrites one shows. Some partitions of the group
// have no log.
func (g *groups) startAt(b *broker, p group.Part) group.StartResult {
	result := group.StartResult{Part: p, Next: -1, LeaderEpoch: -1, Failed: "not the leader"}
	at := g.find(p)
	if at == nil {
		result.Next, result.Failed = 0, ""
		return result
	}
	r := b.get(at.id)
	if r == nil || r.core == nil || r.gone || b.regressed || !r.core.Leads() {
		return result
	}
	result.Next, result.Failed = 0, ""
	return result
}

func (g *groups) find(p group.Part) *part {
	for _, t := range g.w.topics {
		if group.TopicID(t.id) == p.Topic && int(p.Partition) < len(t.parts) {
			return t.parts[p.Partition]
		}
	}
	return nil
}

// reset has an administrator reset the offset of a partition, to one above every other.
func (g *groups) reset() {
	w := g.w
	c := g.coords[w.n(len(g.coords))]
	all := g.present()
	if !c.runs() || !c.state.Serving() || len(all) == 0 || len(g.counter) == 0 {
		return
	}
	p := all[w.n(len(all))]
	if g.isBlocked(p) {
		return
	}
	mark := &blocked{c: c, inc: c.inc}
	g.blocks[p] = mark
	g.counter[p]++
	next := g.counter[p]
	w.count("reset asked")
	w.say("coordinator %d#%d is asked to reset %v to %d", c.id, c.inc, p, next)
	c.ask(nil, func(req uint64) group.Event {
		return group.ResetOffsets{
			Req: req, Group: groupName, Timeout: 2 * time.Second,
			Offsets: []group.OffsetCommit{{Part: p, NextOffset: next, LeaderEpoch: -1}},
		}
	}, func(r group.Reply) {
		if g.blocks[p] == mark {
			delete(g.blocks, p)
		}
		done, ok := r.Result.(group.ResetDone)
		if !ok || done.Rows[0].Err != nil {
			w.count("reset refused")
			w.say("the reset of %v to %d is refused", p, next)
			if ok || !r.Err.Unknown {
				g.refuse(p, next)
			}
			return
		}
		w.count("offset reset")
		w.say("the offset of %v was reset to %d", p, next)
		g.acked[p] = max(g.acked[p], next)
	})
}

// isBlocked says whether a reset of the partition may still be applied.
func (g *groups) isBlocked(p group.Part) bool {
	mark := g.blocks[p]
	return mark != nil && mark.c.up && mark.c.inc == mark.inc
}
