package group

import (
	"fmt"
	"maps"
	"slices"
)

// commit takes in the offsets of a member. A refused part leaves its offset as it
// was; the others take effect.
func (s *State) commit(now Now, e Commit) {
	g, m, err := s.standing(e.Group, e.Member, e.Attach)
	if err != nil {
		s.refuse(e.Req, err)
		return
	}
	s.sign(m, now, e.Silence)
	var done CommitDone
	for _, o := range e.Offsets {
		if err := s.checkCommit(g, m, e, o); err != nil {
			done.Refused = append(done.Refused, PartError{o.Part, err})
			continue
		}
		s.setOffset(g, o.Part, OffsetValue{
			NextOffset: o.NextOffset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata,
			Member: m.id, Attach: m.value.Attach, Sequence: e.Sequence, CommitMs: now.WallMs,
		})
	}
	s.reply(e.Req, done)
}

// checkCommit is the rule: the member holds the partition in the tenure named,
// assignment epoch ≤ the commit's epoch ≤ the member's epoch, and the sequence is
// the partition's highest of this attach.
func (s *State) checkCommit(g *group, m *member, e Commit, o OffsetCommit) *Error {
	if err := s.checkOffset(o); err != nil {
		return err
	}
	h := m.owned[o.Part]
	switch {
	case h == nil:
		return errorf(ReasonStaleCommit, "member %q does not hold %s; drop it", m.id, s.named(o.Part))
	case o.AssignmentEpoch != h.epoch:
		return errorf(ReasonStaleCommit, "member %q holds %s since epoch %d, the commit is of epoch %d; drop what was read before",
			m.id, s.named(o.Part), h.epoch, o.AssignmentEpoch)
	case e.Epoch < h.epoch:
		return errorf(ReasonStaleCommit, "the commit is of member epoch %d, %s was assigned in epoch %d", e.Epoch, s.named(o.Part), h.epoch)
	case e.Epoch > m.value.Epoch:
		return errorf(ReasonStaleCommit, "the commit is of member epoch %d, member %q has acknowledged only %d; acknowledge first", e.Epoch, m.id, m.value.Epoch)
	}
	last, ok := g.offsets[o.Part]
	if ok && last.Member == m.id && last.Attach == m.value.Attach && e.Sequence <= last.Sequence {
		return errorf(ReasonStaleCommit, "commit %d of %s came after commit %d, which stands", e.Sequence, s.named(o.Part), last.Sequence)
	}
	return nil
}

// named names a partition for people, by its topic's name where it is known.
func (s *State) named(p Part) string {
	if t, ok := s.view.ByID(p.Topic); ok {
		return fmt.Sprintf("partition %d of topic %q", p.Partition, t.Name)
	}
	return fmt.Sprintf("partition %v", p)
}

// checkOffset refuses what no commit may carry.
func (s *State) checkOffset(o OffsetCommit) *Error {
	switch {
	case o.NextOffset < 0:
		return errorf(ReasonInvalidRequest, "the offset %d of %s is negative", o.NextOffset, s.named(o.Part))
	case len(o.Metadata) > s.cfg.MaxOffsetMetadata:
		return errorf(ReasonOffsetMetadataTooLarge, "the metadata of %s has %d bytes, at most %d are kept", s.named(o.Part), len(o.Metadata), s.cfg.MaxOffsetMetadata)
	case s.deleted[o.Part.Topic] || s.vanished[o.Part.Topic]:
		return errorf(ReasonTopicDeleted, "the topic of partition %v was deleted; drop it", o.Part)
	}
	return nil
}

// adminCommit sets offsets of a group that has no members.
func (s *State) adminCommit(now Now, e AdminCommit) {
	g := s.groups[e.Group]
	if g != nil && len(g.members) > 0 {
		s.refuse(e.Req, errorf(ReasonGroupNotEmpty, "group %q has %d members; stop them before setting its offsets", e.Group, len(g.members)))
		return
	}
	if g == nil && len(s.groups) >= s.cfg.MaxGroups {
		s.refuse(e.Req, errorf(ReasonLimitExceeded, "the group's shard has %d groups already; delete some", len(s.groups)))
		return
	}
	var done CommitDone
	for _, o := range e.Offsets {
		err := s.checkOffset(o)
		if err == nil {
			err = s.checkExists(o.Part)
		}
		if err != nil {
			done.Refused = append(done.Refused, PartError{o.Part, err})
			continue
		}
		if g == nil {
			g = s.group(e.Group, true)
			s.write(groupKey(g.name), g.value())
		}
		s.setOffset(g, o.Part, OffsetValue{NextOffset: o.NextOffset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata, CommitMs: now.WallMs})
	}
	if g != nil {
		s.keepUntil(now, g)
	}
	s.reply(e.Req, done)
}

// keepUntil sets when a group without members goes.
func (s *State) keepUntil(now Now, g *group) {
	if s.cfg.OffsetsRetention > 0 {
		s.due(&g.expireAt, now.Mono+s.cfg.OffsetsRetention)
	}
}

func (s *State) checkExists(p Part) *Error {
	t, ok := s.view.ByID(p.Topic)
	if !ok {
		return errorf(ReasonUnknownTopic, "there is no topic with the id of partition %v", p)
	}
	if p.Partition < 0 || p.Partition >= t.Partitions {
		return errorf(ReasonUnknownPartition, "topic %q has partitions 0 to %d, not %d", t.Name, t.Partitions-1, p.Partition)
	}
	return nil
}

// fetchOffsets answers with what will be committed once its barrier is: every
// commit before it is carried by the same append or an earlier one.
func (s *State) fetchOffsets(e FetchOffsets) {
	var found Offsets
	g := s.groups[e.Group]
	parts := e.Parts
	if g != nil && len(parts) == 0 {
		parts = sortedParts(g.offsets)
	}
	for _, p := range parts {
		at := OffsetAt{Part: p, OffsetValue: OffsetValue{NextOffset: -1, LeaderEpoch: -1}}
		if g != nil {
			if v, ok := g.offsets[p]; ok {
				at.OffsetValue = v
			}
		}
		found.Offsets = append(found.Offsets, at)
	}
	s.reply(e.Req, found)
}

// dropOffsets deletes the offsets of topics that have a deletion record.
func (s *State) dropOffsets(g *group, gone []TopicID) {
	if len(gone) == 0 {
		return
	}
	for _, p := range sortedParts(g.offsets) {
		if slices.Contains(gone, p.Topic) {
			delete(g.offsets, p)
			s.write(offsetKey(g.name, p), nil)
		}
	}
}

// deleteGroup deletes a group without members: first it turns DELETING, then its
// children go, itself last, so that whoever loads a part of this can finish it.
func (s *State) deleteGroup(e Delete) {
	g := s.groups[e.Group]
	switch {
	case g == nil:
		s.refuse(e.Req, errorf(ReasonUnknownGroup, "there is no group %q", e.Group))
		return
	case len(g.members) > 0:
		s.refuse(e.Req, errorf(ReasonGroupNotEmpty, "group %q has %d members; stop them before deleting it", e.Group, len(g.members)))
		return
	}
	s.purge(g)
	s.reply(e.Req, DeleteDone{})
}

// purge writes that a group is in deletion and the tombstones that this takes.
func (s *State) purge(g *group) {
	if !g.deleting {
		g.deleting = true
		s.write(groupKey(g.name), g.value())
	}
	for _, m := range g.sorted() {
		s.remove(g, m, 0)
	}
	g.refuseResets(func(req uint64) {
		s.refuse(req, errorf(ReasonUnknownGroup, "group %q was deleted while its offsets were being reset", g.name))
	})
	for _, p := range sortedParts(g.offsets) {
		s.write(offsetKey(g.name, p), nil)
	}
	for _, slot := range slices.Sorted(maps.Keys(g.ledger)) {
		s.write(ledgerKey(g.name, slot), nil)
	}
	s.write(groupKey(g.name), nil)
	delete(s.groups, g.name)
}
