package group

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// ResetRow is what became of the reset of one partition. Old and New are the committed
// offsets before and after; -1: none.
type ResetRow struct {
	Part
	Old, New int64
	Err      *Error
}

// resetJob is a request for a reset that waits for partitions to be given up.
type resetJob struct {
	req      uint64
	rows     []ResetRow
	left     int
	deadline time.Duration
}

// reset is one partition of a resetJob. While it exists nobody is given the
// partition.
type reset struct {
	job    *resetJob
	row    int
	offset OffsetValue
}

// resetOffsets sets offsets, also while the group has members. What nobody holds is
// written at once. What somebody holds is revoked, and written and handed out again
// once it has been given up; the raised group epoch makes that a tenure of its own, so
// that commits of what was read before count no more.
func (s *State) resetOffsets(now Now, e ResetOffsets) {
	g := s.groups[e.Group]
	if g == nil && len(s.groups) >= s.cfg.MaxGroups {
		s.refuse(e.Req, errorf(ReasonLimitExceeded, "the group's shard has %d groups already; delete some", len(s.groups)))
		return
	}
	if g == nil {
		g = newGroup(e.Group) // which comes into being with the first offset
	}
	wait := e.Timeout
	if wait == 0 {
		wait = s.cfg.ResetTimeout
	}
	job := &resetJob{req: e.Req, rows: make([]ResetRow, len(e.Offsets)), deadline: now.Mono + wait}
	pending := make(map[Part]*reset)
	free := make(map[Part]*reset)
	for i, o := range e.Offsets {
		row := &job.rows[i]
		row.Part, row.Old, row.New = o.Part, g.committed(o.Part), g.committed(o.Part)
		if row.Err = s.checkReset(g, o); row.Err != nil {
			continue
		}
		r := &reset{job: job, row: i, offset: OffsetValue{NextOffset: o.NextOffset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata}}
		switch {
		case pending[o.Part] != nil || free[o.Part] != nil:
			row.Err = errorf(ReasonInvalidRequest, "%s is named twice; name it once", s.named(o.Part))
		case g.owner[o.Part] != "":
			pending[o.Part] = r
		default:
			free[o.Part] = r
		}
	}
	job.left = len(pending) + len(free)
	if job.left > 0 && s.groups[e.Group] == nil {
		s.groups[e.Group] = g
		s.write(groupKey(g.name), g.value())
	}
	if len(g.members) == 0 && s.groups[e.Group] != nil {
		s.keepUntil(now, g)
	}
	maps.Copy(g.resets, pending)
	maps.Copy(g.resets, free)
	s.resetting[g.name] = true // which finish looks after
	if len(pending) > 0 {
		s.revokeForReset(now, g, job, pending)
	}
	if job.left == 0 {
		s.reply(e.Req, ResetDone{Rows: job.rows})
	}
}

func (s *State) checkReset(g *group, o OffsetCommit) *Error {
	if err := s.checkOffset(o); err != nil {
		return err
	}
	if err := s.checkExists(o.Part); err != nil {
		return err
	}
	if g.resets[o.Part] != nil {
		return errorf(ReasonResetInProgress, "another reset of %s is under way; try again when it is done", s.named(o.Part))
	}
	return nil
}

// revokeForReset asks the holders of partitions to give them up, in a group epoch of
// its own.
func (s *State) revokeForReset(now Now, g *group, job *resetJob, pending map[Part]*reset) {
	s.raise(g)
	cause := fmt.Sprintf("offsets of %d partitions are being reset", len(pending))
	s.record(now, g, cause, nil)
	s.write(groupKey(g.name), g.value())
	holders := make(map[string]bool)
	for p := range pending {
		holders[g.owner[p]] = true
	}
	for _, id := range slices.Sorted(maps.Keys(holders)) {
		s.reconcile(now, g, g.members[id], cause)
	}
	s.wakeBy(job.deadline)
}

// raise begins the next group epoch. It is above those of targets that an earlier
// owner did not finish.
func (s *State) raise(g *group) {
	for _, m := range g.members {
		g.epoch = max(g.epoch, m.targetAt)
	}
	g.epoch++
}

// applyResets writes the offsets of partitions that nobody holds any more, and hands
// them out again. It comes after everything else that a step writes, so that the log
// never tells an offset reset while it tells a holder.
func (s *State) applyResets(now Now, g *group) {
	ids := make(map[string]bool)
	for _, p := range sortedParts(g.resets) {
		if g.owner[p] != "" {
			continue
		}
		r := g.resets[p]
		delete(g.resets, p)
		row := &r.job.rows[r.row]
		row.Old = g.committed(p)
		if s.deleted[p.Topic] {
			row.Err = errorf(ReasonTopicDeleted, "the topic of partition %v was deleted", p)
		} else {
			r.offset.CommitMs = now.WallMs
			s.setOffset(g, p, r.offset)
			row.New = r.offset.NextOffset
		}
		s.resetRowDone(r.job)
		if id := g.wanted[p]; id != "" {
			ids[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		s.reconcile(now, g, g.members[id], "its offset was reset")
	}
}

func (s *State) resetRowDone(job *resetJob) {
	if job.left--; job.left == 0 {
		s.reply(job.req, ResetDone{Rows: job.rows})
	}
}

// giveBackResets drops resets whose time has passed. The holder goes on in another
// tenure, from its last commit. With the old one, an acknowledgement of the revocation
// that is still on its way would free a partition which the holder is just being told
// to keep.
func (s *State) giveBackResets(now Now, g *group) {
	late := make(map[string]bool)
	for _, p := range sortedParts(g.resets) {
		r, holder := g.resets[p], g.owner[p]
		if holder == "" {
			continue // it came free in this very step
		}
		if now.Mono < r.job.deadline {
			s.wakeBy(r.job.deadline)
			continue
		}
		delete(g.resets, p)
		late[holder] = true
		row := &r.job.rows[r.row]
		row.Old, row.New = g.committed(p), g.committed(p)
		row.Err = errorf(ReasonRevocationTimeout, "member %q did not give %s up in time and keeps it; allow it more time, or stop it", holder, s.named(p))
		s.resetRowDone(r.job)
	}
	for _, id := range slices.Sorted(maps.Keys(late)) {
		s.reconcile(now, g, g.members[id], "its offset is not reset after all")
	}
}

// refuseResets answers the requests that wait in a group which goes.
func (g *group) refuseResets(refuse func(req uint64)) {
	jobs := make(map[*resetJob]bool)
	for _, p := range sortedParts(g.resets) {
		if job := g.resets[p].job; !jobs[job] {
			jobs[job] = true
			refuse(job.req)
		}
	}
	clear(g.resets)
}

// committed is the committed offset; -1: none.
func (g *group) committed(p Part) int64 {
	if v, ok := g.offsets[p]; ok {
		return v.NextOffset
	}
	return -1
}
