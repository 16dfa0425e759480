package session

import (
	"bytes"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// part is one partition of a stream.
type part struct {
	id    client.TopicPartition
	topic string
	epoch int64 // assignment epoch; 0 without a group
	cause string

	tag       int64 // of the newest asking; what comes under another one is old
	resolving bool  // the place to start at is not known yet
	first     bool  // it starts where nothing was committed before
	announced bool  // assigned was sent
	failed    bool  // an error stopped it; a seek goes on
	fetching  bool  // a ConsumeFetch is out that no ConsumeStop followed
	paused    bool
	seekID    int64

	position  int64 // offset of the next record to hand out
	told      int64 // the newest next offset that the client knows
	lastEpoch int32 // leader epoch of the record before position; -1: unknown
	highMark  int64
	queued    bool // in Consume.progress

	anything  bool     // something was handed out
	handed    []handed // what the client has not finished, oldest first
	processed int64    // below it the client has worked on everything; -1: nothing was told

	end   int64 // where stop_at_end stops; -1: not known yet
	ended bool

	released  *gatewayv1.ConsumePosition // newest release; nil: none
	committed int64                      // newest position that was sent to be committed; -1: none
	acked     int64                      // newest position that was committed; -1: none
	pending   int                        // commits without an answer that concern it

	revokeFrom bool                      // the client was asked to give it up
	revokeBy   time.Time                 // by when; zero: whenever
	revokeDone bool                      // the client gave it up
	back       *client.AssignedPartition // it was assigned anew meanwhile; nil: it goes
}

// isTopicOf reports whether a position of the client is one in the topic that has
// the name now, as far as the client says.
func (p *part) isTopicOf(pos *gatewayv1.ConsumePosition) bool {
	return len(pos.GetTopicId()) == 0 || bytes.Equal(pos.GetTopicId(), p.id.TopicID[:])
}

func (p *part) owned() client.OwnedPartition {
	return client.OwnedPartition{TopicPartition: p.id, AssignmentEpoch: p.epoch}
}

// Assigned takes in an assignment of the group: the whole set that the member
// should hold.
func (c *Consume) Assigned(now time.Time, a client.Assignment) {
	switch c.state {
	case ConsumeJoining, ConsumeActive, ConsumeDraining:
		c.wanted = &a
		c.reconcile(now)
	case ConsumeNew, ConsumeLeaving, ConsumeEnded:
	}
}

// reconcile goes on towards the newest assignment: first what is held beyond it is
// asked back, then it is acknowledged, then what is new is read.
func (c *Consume) reconcile(now time.Time) {
	if c.state != ConsumeActive && c.state != ConsumeDraining {
		return
	}
	c.takeBack()
	if c.wanted == nil {
		return
	}
	a := c.wanted
	keep := make(map[client.TopicPartition]client.AssignedPartition, len(a.Partitions))
	for _, p := range a.Partitions {
		keep[p.TopicPartition] = p
	}
	if c.askBack(now, a, keep) {
		return
	}
	c.wanted = nil
	owned := make([]client.OwnedPartition, 0, len(a.Partitions))
	for _, p := range a.Partitions {
		owned = append(owned, p.OwnedPartition)
	}
	c.do(ConsumeAck{MemberEpoch: a.MemberEpoch, Owned: owned})
	for _, p := range a.Partitions {
		if _, held := c.parts[p.TopicPartition]; !held {
			c.add(p, a.Cause)
		}
	}
	c.assigned = true
	c.checkEnd(now)
}

// askBack asks the client for what is held beyond an assignment, and forgets what
// it has given up. It reports whether there is something to wait for.
func (c *Consume) askBack(now time.Time, a *client.Assignment, keep map[client.TopicPartition]client.AssignedPartition) bool {
	var begun []client.OwnedPartition
	waiting := false
	for _, p := range c.sortedParts() {
		w, listed := keep[p.id]
		same := listed && w.AssignmentEpoch == p.epoch
		if same && !p.revokeFrom {
			continue
		}
		if !p.revokeFrom || p.back != nil && !same {
			p.back = nil
			c.revoke(now, p, a)
			begun = append(begun, p.owned())
		}
		switch {
		case p.revokeDone && p.pending == 0:
			c.drop(p)
		case same:
			// It comes back while the client is giving it up. The member has held it
			// all along, so the coordinator waits for nothing; the client gets it again
			// once it has let go.
			p.back, p.revokeBy = &w, time.Time{}
		default:
			waiting = true
		}
	}
	if len(begun) > 0 {
		c.do(ConsumeRevoking{Partitions: begun})
	}
	return waiting
}

// takeBack hands out again what came back while the client was giving it up.
func (c *Consume) takeBack() {
	for _, p := range c.sortedParts() {
		if p.back == nil || !p.revokeDone || p.pending > 0 {
			continue
		}
		again := *p.back
		if p.acked >= 0 {
			again.StartOffset, again.StartLeaderEpoch = p.acked, -1
		}
		c.drop(p)
		c.add(again, "revocation was called off")
	}
}

// sortedParts lists the partitions in an order that is always the same.
func (c *Consume) sortedParts() []*part {
	out := make([]*part, 0, len(c.parts))
	for _, p := range c.parts {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *part) int {
		switch {
		case a.topic < b.topic:
			return -1
		case a.topic > b.topic:
			return 1
		}
		return int(a.id.Partition) - int(b.id.Partition)
	})
	return out
}

// revoke asks the client to give a partition up. A client that has closed its side
// cannot answer, so it has given up already.
func (c *Consume) revoke(now time.Time, p *part, a *client.Assignment) {
	p.revokeFrom = true
	within := a.RevocationTimeout
	if within <= 0 {
		within = c.settings.RebalanceTimeout
	}
	p.revokeBy = now.Add(within)
	c.dropBatch(p)
	c.stop(p)
	c.giveBack(p)
	if c.halfClosed {
		p.revokeDone = true
	}
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Revoke{Revoke: &gatewayv1.ConsumeRevoke{
		Topic: p.topic, Partition: p.id.Partition, Within: durationpb.New(within), Cause: a.Cause,
	}}})
}

// revoking notes that the client heeds a revocation. The coordinator was told when
// the gateway stopped handing out.
func (c *Consume) revoking(names []*gatewayv1.PartitionName) {
	for _, n := range names {
		c.find(n.GetTopic(), n.GetPartition(), "revoking")
	}
}

// revoked takes back partitions that the client gives up.
func (c *Consume) revoked(now time.Time, names []*gatewayv1.PartitionName) {
	for _, n := range names {
		p := c.find(n.GetTopic(), n.GetPartition(), "revoked")
		if p == nil {
			continue
		}
		if !p.revokeFrom {
			c.partitionError(n.GetTopic(), n.GetPartition(), rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
				"partition %d of topic %q was given up, and nobody asked for it back; wait for revoke, or leave", n.GetPartition(), n.GetTopic()))
			continue
		}
		p.revokeDone, p.revokeBy = true, time.Time{}
		c.autoCommit(p)
	}
	c.reconcile(now)
}

// find is a partition that the stream holds. That of another is an error to the
// client, not of the stream: it may have moved while the message was on its way.
func (c *Consume) find(topic string, partition int32, what string) *part {
	if p := c.byName[name{topic, partition}]; p != nil {
		return p
	}
	c.partitionError(topic, partition, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_COMMIT,
		"%s names partition %d of topic %q, which this stream does not hold; drop it", what, partition, topic))
	return nil
}

func (c *Consume) partitionError(topic string, partition int32, err *rpc.Error) {
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_PartitionError{PartitionError: &gatewayv1.ConsumePartitionError{
		Topic: topic, Partition: partition, Error: rpc.ToProto(err.With("topic", topic)),
	}}})
}

// add begins with a partition: at the position that the client received on an
// earlier stream, else where the group or the client says, else as start_at says.
func (c *Consume) add(a client.AssignedPartition, cause string) {
	p := &part{
		id: a.TopicPartition, topic: a.Topic, epoch: a.AssignmentEpoch, cause: cause,
		position: a.StartOffset, lastEpoch: a.StartLeaderEpoch, end: -1, committed: -1, acked: -1, processed: -1,
	}
	c.parts[p.id] = p
	n := name{p.topic, p.id.Partition}
	c.byName[n] = p
	if pos, ok := c.settings.positions[n]; ok {
		// It counts for the first tenure only: later ones begin where the group says.
		delete(c.settings.positions, n)
		switch {
		case p.isTopicOf(pos):
			p.position, p.lastEpoch = pos.GetNextOffset(), -1
			if pos.LeaderEpoch != nil {
				p.lastEpoch = pos.GetLeaderEpoch()
			}
		case c.settings.Group == "":
			// Nobody says where to begin with the topic that has the name now.
			c.announce(p)
			c.failPart(p, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED,
				"topic %q was deleted and made again since partition %d was read up to %d; open a stream anew to read it from where you choose", p.topic, p.id.Partition, pos.GetNextOffset()).
				WithAction(typev1.Action_ACTION_DROP_PARTITION))
			return
		}
	}
	var spec *typev1.OffsetSpec
	if p.position < 0 {
		if c.settings.StartAt == gatewayv1.StartAt_START_AT_NONE {
			c.announce(p)
			c.failPart(p, noStart(c.settings.Group, p))
			return
		}
		spec = c.startSpec()
		p.first = c.settings.Group != "" && !c.settings.LeaveOffsets
	}
	c.resolve(p, spec)
}

// noStart is the error of a partition that starts nowhere.
func noStart(group string, p *part) *rpc.Error {
	reason, what := typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "has no position"
	if group != "" {
		reason, what = typev1.ErrorReason_ERROR_REASON_NO_COMMITTED_OFFSET, "has no offset committed by the group"
	}
	return rpc.Errorf(reason, "partition %d of topic %q %s, and start_at is none; seek to where reading should start", p.id.Partition, p.topic, what).
		WithAction(typev1.Action_ACTION_CHOOSE)
}

func (c *Consume) startSpec() *typev1.OffsetSpec {
	switch c.settings.StartAt {
	case gatewayv1.StartAt_START_AT_EARLIEST:
		return client.Earliest()
	case gatewayv1.StartAt_START_AT_TIMESTAMP:
		return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Timestamp{Timestamp: timestamppb.New(time.UnixMilli(c.settings.StartTimestampMs))}}
	case gatewayv1.StartAt_START_AT_BY_DURATION:
		return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Timestamp{Timestamp: timestamppb.New(c.openedAt.Add(-c.settings.StartByDuration))}}
	case gatewayv1.StartAt_START_AT_UNSPECIFIED, gatewayv1.StartAt_START_AT_LATEST, gatewayv1.StartAt_START_AT_NONE:
	}
	return client.Latest()
}

// resolve finds out where to start, and where to stop; with neither to find out it
// starts at once.
func (c *Consume) resolve(p *part, spec *typev1.OffsetSpec) {
	c.lastTag++
	p.tag, p.failed, p.resolving = c.lastTag, false, true
	mayBeNone := spec.GetTimestamp() != nil || spec.GetPlace() == typev1.OffsetSpec_PLACE_MAX_TIMESTAMP
	endToo := c.settings.StopAtEnd && p.end < 0 || mayBeNone
	if spec == nil && !endToo {
		c.start(p)
		return
	}
	c.do(ConsumeResolve{Partition: p.id, Topic: p.topic, Tag: p.tag, Spec: spec, EndToo: endToo})
}

// ResolveResult answers a ConsumeResolve.
type ResolveResult struct {
	Partition client.TopicPartition
	Tag       int64
	Offset    int64 // -1: no record has that timestamp or later, or no place was asked for
	Epoch     int32 // leader epoch of the record there; unused
	End       int64 // visible end, where it was asked for, from before the offset was
	Err       error
}

// Resolved takes in an offset that was asked for.
func (c *Consume) Resolved(now time.Time, r ResolveResult) {
	p := c.parts[r.Partition]
	if p == nil || p.tag != r.Tag || !p.resolving || c.state != ConsumeActive && c.state != ConsumeDraining {
		return
	}
	if r.Err != nil {
		c.announce(p)
		c.failPart(p, rpc.FromError(r.Err))
		c.checkEnd(now)
		return
	}
	if c.settings.StopAtEnd && p.end < 0 {
		p.end = r.End
	}
	if p.position < 0 {
		// Where no record is as young as that, those to come will be: from the end on, as
		// it was before the time was looked for.
		p.position, p.lastEpoch = r.Offset, -1
		if r.Offset < 0 {
			p.position = max(r.End, 0)
		}
	}
	c.start(p)
	c.checkEnd(now)
}

// start begins to read at the position that is known now.
func (c *Consume) start(p *part) {
	p.resolving = false
	p.told = p.position
	c.announce(p)
	if p.first {
		p.first = false
		c.starts = append(c.starts, p)
	}
	if p.end >= 0 {
		p.ended = p.position >= p.end
	}
	c.fetch(p)
}

// announce tells the client that a partition is its own, once.
func (c *Consume) announce(p *part) {
	if p.announced {
		return
	}
	p.announced = true
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Assigned{Assigned: &gatewayv1.ConsumeAssigned{
		Topic: p.topic, Partition: p.id.Partition, StartOffset: p.position, AssignmentEpoch: p.epoch, Cause: p.cause,
		TopicId: bytes.Clone(p.id.TopicID[:]),
	}}})
}

// fetch reads on at the position, unless something speaks against it.
func (c *Consume) fetch(p *part) {
	if c.state != ConsumeActive || p.fetching || p.paused || p.failed || p.resolving || p.ended || p.revokeFrom {
		return
	}
	p.fetching = true
	c.do(ConsumeFetch{Start: client.FetchStart{TopicPartition: p.id, Offset: p.position, LastEpoch: p.lastEpoch, Tag: p.tag}})
}

// stop reads on no more. What is on its way is old then.
func (c *Consume) stop(p *part) {
	if !p.fetching {
		return
	}
	p.fetching = false
	c.lastTag++
	if !p.resolving {
		p.tag = c.lastTag
	}
	c.do(ConsumeStop{Partition: p.id})
}

// drop forgets a partition.
func (c *Consume) drop(p *part) {
	c.dropBatch(p)
	c.stop(p)
	delete(c.parts, p.id)
	if n := (name{p.topic, p.id.Partition}); c.byName[n] == p {
		delete(c.byName, n)
	}
	if p.queued {
		c.progress = slices.DeleteFunc(c.progress, func(q *part) bool { return q == p })
	}
}

// failPart stops a partition with an error; the others go on.
func (c *Consume) failPart(p *part, err *rpc.Error) {
	c.dropBatch(p)
	c.stop(p)
	c.giveBack(p)
	p.failed, p.resolving = true, false
	c.partitionError(p.topic, p.id.Partition, err)
}

// pause stops or goes on with partitions.
func (c *Consume) pause(names []*gatewayv1.PartitionName, on bool) {
	for _, n := range names {
		p := c.find(n.GetTopic(), n.GetPartition(), "pause or resume")
		if p == nil || p.paused == on {
			continue
		}
		p.paused = on
		if on {
			c.dropBatch(p)
			c.stop(p)
			continue
		}
		c.fetch(p)
	}
}

// seek moves a partition.
func (c *Consume) seek(m *gatewayv1.ConsumeSeek) {
	p := c.find(m.GetTopic(), m.GetPartition(), "seek")
	if p == nil {
		return
	}
	bad := func(format string, args ...any) {
		c.partitionError(p.topic, p.id.Partition, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, format, args...))
	}
	spec := m.GetSpec()
	switch {
	case m.GetSeekId() < p.seekID:
		bad("seek %d of partition %d of topic %q comes after seek %d; number them rising", m.GetSeekId(), p.id.Partition, p.topic, p.seekID)
		return
	case m.GetTo() == nil || spec != nil && spec.GetSpec() == nil:
		bad("seek %d of partition %d of topic %q names no place; set offset, or spec", m.GetSeekId(), p.id.Partition, p.topic)
		return
	case spec == nil && m.GetOffset() < 0:
		bad("seek %d of partition %d of topic %q goes to offset %d; use 0 or more, or spec", m.GetSeekId(), p.id.Partition, p.topic, m.GetOffset())
		return
	}
	c.dropBatch(p)
	c.stop(p)
	p.seekID, p.ended, p.failed, p.first, p.lastEpoch = m.GetSeekId(), false, false, false, -1
	p.handed, p.processed, p.anything = nil, -1, false
	if spec != nil {
		p.position = -1
		c.resolve(p, spec)
		return
	}
	p.position = m.GetOffset()
	c.resolve(p, nil)
}

// checkEnd ends a stream that was to stop at the end, once every partition has.
// One that an error stopped has too: nobody may be there to seek.
func (c *Consume) checkEnd(now time.Time) {
	if !c.settings.StopAtEnd || !c.assigned || c.wanted != nil || c.state != ConsumeActive || c.batch != nil || len(c.progress) > 0 {
		return
	}
	for _, p := range c.parts {
		if !p.ended && !p.failed {
			return
		}
	}
	c.leave(now)
}
