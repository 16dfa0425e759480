package client

import (
	"slices"
	"time"
)

// revokeCommitTimeout bounds the commit of what is revoked.
const revokeCommitTimeout = 10 * time.Second

// join begins the membership, if there is to be one.
func (k *Consumer) join() error {
	if !k.cfg.subscribes() || k.member != nil || k.dead != nil || k.ctx.Err() != nil {
		return nil
	}
	cfg := k.cfg.member()
	cfg.tellRevoking, cfg.Progress = true, k.report
	m, err := k.client.JoinGroup(cfg)
	if err != nil {
		return err
	}
	k.member = m
	return nil
}

// heed works on what has come in besides records, and commits when it is time.
func (k *Consumer) heed() {
	for more := true; more; {
		select {
		case found := <-k.starts:
			k.started(found)
		case r := <-k.results:
			k.concluded(r)
		default:
			more = false
		}
	}
	for k.member != nil {
		e, ok := k.member.TryNext()
		if !ok {
			break
		}
		switch {
		case e.Assignment != nil:
			k.wanted = e.Assignment
		case e.Fenced != nil:
			k.fenced(e.Fenced)
		case e.Waiting != nil:
			k.waiting = e.Waiting
		case e.Attached != nil:
			k.waiting = nil
		}
	}
	k.reconcile()
}

// reconcile brings the partitions in line with the newest assignment: what is
// revoked is given up first, with a commit of what was worked on, and only then
// everything is acknowledged and what is new is begun with. The other partitions go
// on meanwhile.
func (k *Consumer) reconcile() {
	a := k.wanted
	if a == nil || k.ahead != nil { // what is committed already is handed out before
		return
	}
	want := make(map[TopicPartition]AssignedPartition, len(a.Partitions))
	for _, p := range a.Partitions {
		want[p.TopicPartition] = p
	}
	var revoked []TopicPartition
	for _, tp := range k.order {
		p := k.parts[tp]
		if p.givingUp {
			return // one revocation at a time
		}
		if w, ok := want[tp]; (!ok || w.AssignmentEpoch != p.assigned.AssignmentEpoch) && !p.revoking {
			revoked = append(revoked, tp)
		}
	}
	if len(revoked) > 0 && !k.giveUp(revoked, a.RevocationTimeout) {
		return
	}
	resumed := make(map[TopicPartition]*consumerPart)
	for _, tp := range k.order {
		if p := k.parts[tp]; p.revoking {
			if p.assigned.OwnedPartition == want[tp].OwnedPartition {
				resumed[tp] = p // the revocation was called off: the tenure goes on
			}
			k.forget(tp)
		}
	}
	k.order = slices.DeleteFunc(k.order, func(tp TopicPartition) bool { return k.parts[tp] == nil })
	k.wanted = nil
	owned := make([]OwnedPartition, 0, len(a.Partitions))
	for _, p := range a.Partitions {
		owned = append(owned, p.OwnedPartition)
	}
	k.member.Ack(a.MemberEpoch, owned)
	k.begin(a, resumed)
}

// begin reads what is new in an assignment.
func (k *Consumer) begin(a *Assignment, resumed map[TopicPartition]*consumerPart) {
	var fresh []AssignedPartition
	var find []*consumerPart
	for _, p := range a.Partitions {
		if k.parts[p.TopicPartition] != nil {
			continue
		}
		fresh = append(fresh, p)
		pos := Position{TopicPartition: p.TopicPartition, NextOffset: p.StartOffset, LeaderEpoch: p.StartLeaderEpoch}
		part := k.newPart(p, pos, p.StartOffset)
		if old := resumed[p.TopicPartition]; old != nil {
			if released, saved := old.mark.place(); released.NextOffset >= 0 {
				part.position, part.paused = released, old.paused
				part.mark.moved(released)
				part.mark.save(saved)
			}
		}
		if part.position.NextOffset < 0 {
			find = append(find, part)
		} else {
			k.read(part)
		}
	}
	if len(fresh) > 0 && k.cfg.OnAssigned != nil {
		k.cfg.OnAssigned(fresh)
	}
	k.find(slices.DeleteFunc(find, func(p *consumerPart) bool { return p.position.NextOffset >= 0 })) // it has sought
}

// newPart begins with a partition. saved is what is committed; -1: nothing of ours.
func (k *Consumer) newPart(a AssignedPartition, pos Position, saved int64) *consumerPart {
	p := &consumerPart{assigned: a, position: pos, mark: &progressMark{saved: saved}}
	p.mark.moved(pos)
	k.progress.add(k.member, p)
	k.parts[a.TopicPartition] = p
	k.order = append(k.order, a.TopicPartition)
	return p
}

// giveUp stops reading partitions, tells the application and commits what it has
// worked on. It reports whether that is done; if not, a result tells of the end.
func (k *Consumer) giveUp(revoked []TopicPartition, within time.Duration) bool {
	var gone []AssignedPartition
	for _, tp := range revoked {
		p := k.parts[tp]
		p.revoking = true
		gone = append(gone, p.assigned)
		k.fetcher.Remove(tp)
		k.progress.remove(tp) // an auto-commit must not come behind the last commit
		if k.event != nil && k.event.TopicPartition == tp {
			k.drop()
		}
	}
	if k.cfg.OnRevoked != nil {
		k.cfg.OnRevoked(gone)
	}
	if k.cfg.AutoCommitInterval <= 0 {
		return true
	}
	positions := k.unsaved(revoked)
	if len(positions) == 0 {
		return true
	}
	patience := revokeCommitTimeout
	if within > 0 {
		patience = min(patience, within)
	}
	var parts []*consumerPart
	for _, tp := range revoked {
		parts = append(parts, k.parts[tp])
	}
	c := &consumerCommit{ctx: k.ctx, patience: patience, positions: positions}
	c.done = func(err error) {
		for _, p := range parts {
			p.givingUp = false
		}
		k.commitFailed(c, err)
	}
	if err := k.submit(c); err != nil {
		c.done(err)
		return true
	}
	for _, p := range parts {
		p.givingUp = true
	}
	return false
}

// fenced drops everything: another member may have it by now, so that nothing is
// committed any more. The next Poll joins anew, unless another process has taken
// this one's place.
func (k *Consumer) fenced(err error) {
	var gone []AssignedPartition
	for _, tp := range k.order {
		if !k.parts[tp].revoking { // those were told
			gone = append(gone, k.parts[tp].assigned)
		}
		k.forget(tp)
	}
	k.order, k.wanted, k.ahead, k.waiting = nil, nil, nil, nil
	k.member.Detach()
	k.member = nil
	lost := k.cfg.OnLost
	if lost == nil {
		lost = k.cfg.OnRevoked
	}
	if len(gone) > 0 && lost != nil {
		lost(gone)
	}
	if stops(err) {
		k.dead = err
	} else {
		k.errs = append(k.errs, err)
	}
}
