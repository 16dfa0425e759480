package handler

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/gateway/internal/groups"
)

// maxRateOver is how long a description may watch.
const maxRateOver = time.Minute

// DescribeGroup serves AdminService.DescribeGroup: members and offsets from the
// coordinator, ends and ages from the brokers that lead, rates from two looks.
func (a *Admin) DescribeGroup(ctx context.Context, req *gatewayv1.DescribeGroupRequest) (*gatewayv1.DescribeGroupResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if err := checkGroup(req.GetGroup()); err != nil {
		return nil, err
	}
	over := req.GetRateOver().AsDuration()
	if over < 0 || over > maxRateOver {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "rate_over is %v; use up to %v, or leave it out", over, maxRateOver)
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	d, err := a.look(ctx, req.GetGroup())
	if err != nil {
		return nil, err
	}
	if over > 0 {
		if err := a.pause(ctx, over); err != nil {
			return nil, err
		}
		before := d.looks
		if d, err = a.look(ctx, req.GetGroup()); err != nil {
			return nil, err
		}
		for tp, l := range d.looks {
			if earlier, ok := before[tp]; ok {
				d.rates[tp] = better(groups.Between(earlier, l), d.rates[tp])
			}
		}
	}
	d.setAges(ctx, a)
	return d.response(), nil
}

// better takes from b what a does not know.
func better(a, b groups.Rate) groups.Rate {
	if a.Read < 0 {
		a.Read = b.Read
	}
	if a.Appended < 0 {
		a.Appended = b.Appended
	}
	return a
}

// pause waits, as long as the caller's deadline leaves time to look again.
func (a *Admin) pause(ctx context.Context, d time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(deadline)*3/4)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return rpc.FromError(ctx.Err())
	}
}

// description is a group as it was looked at once.
type description struct {
	group   *coordinatorv1.DescribeGroupResponse
	image   *metadata.Image
	parts   []*describedPart // by topic and number
	byID    map[client.TopicPartition]*describedPart
	looks   map[client.TopicPartition]groups.Look
	rates   map[client.TopicPartition]groups.Rate
	unowned map[client.TopicPartition]*coordinatorv1.UnownedPartition
}

// describedPart is a partition of a group.
type describedPart struct {
	id client.TopicPartition
	*gatewayv1.GroupPartition
	progress *coordinatorv1.MemberProgress // nil: its member told nothing
	endErr   error                         // why its end is not known; nil: it is, or the topic is gone
}

// look asks the coordinator and the leaders, and tells the rates since an earlier
// look that this gateway remembers.
func (a *Admin) look(ctx context.Context, group string) (*description, error) {
	asked, done := forController(ctx)
	defer done()
	g, err := a.h.cfg.Mesh.DescribeGroup(asked, group)
	if err != nil {
		return nil, err
	}
	d := &description{group: g, image: a.h.cfg.Images.Image()}
	d.collect()
	a.setMarks(ctx, d.parts)
	now := a.h.cfg.Now()
	d.looks = map[client.TopicPartition]groups.Look{}
	for _, p := range d.parts {
		l := groups.Look{At: now, Position: p.Committed, End: p.End}
		if p.CommittedAt.IsValid() {
			l.PositionAt = p.CommittedAt.AsTime()
		}
		if p.Processed > p.Committed {
			l.Position, l.PositionAt = p.Processed, time.Time{}
		}
		d.looks[p.id] = l
	}
	d.rates = a.h.rates.Note(group, now, d.looks)
	return d, nil
}

// collect lists every partition that is assigned, is to be, or has an offset, by
// topic and number, with what the coordinator knows of it.
func (d *description) collect() {
	d.byID = map[client.TopicPartition]*describedPart{}
	d.unowned = map[client.TopicPartition]*coordinatorv1.UnownedPartition{}
	for _, o := range d.group.GetOffsets() {
		if p := d.part(o.GetTopicId(), o.GetPartition()); p != nil {
			p.Committed, p.Metadata, p.CommittedAt = o.GetNextOffset(), o.GetMetadata(), o.GetCommittedAt()
		}
	}
	for _, m := range d.group.GetMembers() {
		d.collectMember(m)
	}
	for _, u := range d.group.GetUnowned() {
		if p := d.part(u.GetTopicId(), u.GetPartition()); p != nil {
			d.unowned[p.id] = u
			p.Unowned = u.GetSince()
			if p.TargetMemberId == "" {
				p.TargetMemberId = u.GetMemberId()
			}
		}
	}
	d.parts = make([]*describedPart, 0, len(d.byID))
	for _, p := range d.byID {
		d.parts = append(d.parts, p)
	}
	slices.SortFunc(d.parts, func(a, b *describedPart) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), bytes.Compare(a.id.TopicID[:], b.id.TopicID[:]), cmp.Compare(a.id.Partition, b.id.Partition))
	})
}

func (d *description) collectMember(m *coordinatorv1.GroupMember) {
	for _, o := range m.GetTarget() {
		if p := d.part(o.GetTopicId(), o.GetPartition()); p != nil {
			p.TargetMemberId = m.GetMemberId()
		}
	}
	for _, o := range m.GetOwned() {
		if p := d.part(o.GetTopicId(), o.GetPartition()); p != nil {
			p.MemberId = m.GetMemberId()
		}
	}
	held := func(topic []byte, n int32) *describedPart {
		if p := d.part(topic, n); p != nil && p.MemberId == m.GetMemberId() {
			return p
		}
		return nil // it has given it up since it told
	}
	for _, x := range m.GetProgress() {
		if p := held(x.GetTopicId(), x.GetPartition()); p != nil {
			p.progress = x
			p.Delivered, p.Processed, p.OldestUnprocessedAge = x.GetDeliveredNext(), x.GetProcessedNext(), x.GetOldestUnprocessedAge()
		}
	}
	for _, x := range m.GetRevoking() {
		if p := held(x.GetTopicId(), x.GetPartition()); p != nil {
			p.Revoking, p.RevokingRemaining = true, x.GetRemaining()
		}
	}
	for _, x := range m.GetStuck() {
		if p := held(x.GetTopicId(), x.GetPartition()); p != nil {
			p.Stuck = true
		}
	}
}

// part is the entry of a partition; nil: the id is none, which is not ours to judge.
func (d *description) part(topic []byte, n int32) *describedPart {
	id, err := topicid.FromBytes(topic)
	if err != nil {
		return nil
	}
	key := client.TopicPartition{TopicID: id, Partition: n}
	p := d.byID[key]
	if p == nil {
		p = &describedPart{id: key, GroupPartition: &gatewayv1.GroupPartition{
			Topic: topicName(d.image, id), TopicId: id.Bytes(), Partition: n, Committed: -1, LogStart: -1, End: -1, Lag: -1,
			RecordsPerSecond: -1, AppendedPerSecond: -1, Delivered: -1, Processed: -1,
		}}
		d.byID[key] = p
	}
	return p
}

// topicName is the name of a topic; empty: it is gone.
func topicName(image *metadata.Image, id topicid.ID) string {
	if t := image.TopicByID(id); t != nil && !t.Deleting {
		return t.Name
	}
	return ""
}

// setMarks asks for the bounds of the logs, for a short time, and counts what is
// unread: from the committed offset, or from the log's start where that is later or
// nothing is committed.
func (a *Admin) setMarks(ctx context.Context, parts []*describedPart) {
	var asked []*describedPart
	var ids []client.TopicPartition
	for _, p := range parts {
		if p.Topic != "" {
			asked = append(asked, p)
			ids = append(ids, p.id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, a.h.cfg.Limits.MarksTimeout)
	defer cancel()
	for i, b := range a.boundsOf(ctx, ids) {
		p := asked[i]
		if p.endErr = b.err; b.err == nil {
			p.LogStart, p.End = b.start, b.end
			p.Lag = max(b.end-max(p.Committed, b.start), 0)
		}
	}
}

// logBounds are where a log begins and ends, or why that is not known.
type logBounds struct {
	start, end int64
	err        error
}

// boundsOf asks the leaders of partitions, and answers in their order.
func (a *Admin) boundsOf(ctx context.Context, ids []client.TopicPartition) []logBounds {
	if len(ids) == 0 {
		return nil
	}
	queries := make([]client.OffsetQuery, 0, 2*len(ids))
	for _, id := range ids {
		queries = append(queries, client.OffsetQuery{TopicPartition: id, Spec: client.Latest()}, client.OffsetQuery{TopicPartition: id, Spec: client.Earliest()})
	}
	results := a.h.cfg.Mesh.ListOffsets(ctx, queries, typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED)
	out := make([]logBounds, len(ids))
	for i := range ids {
		end, start := results[2*i], results[2*i+1]
		out[i] = logBounds{start: start.Offset, end: end.Offset, err: end.Err}
		if end.Err == nil {
			out[i].err = start.Err
		}
	}
	return out
}

// setAges asks how old the first unread record of each partition with a lag is.
func (d *description) setAges(ctx context.Context, a *Admin) {
	var records []client.RecordAt
	var asked []*describedPart
	for _, p := range d.parts {
		switch {
		case p.Lag == 0:
			p.LagAge = durationpb.New(0)
		case p.Lag > 0:
			asked = append(asked, p)
			records = append(records, client.RecordAt{TopicPartition: p.id, Offset: max(p.Committed, p.LogStart)})
		}
	}
	if len(records) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.h.cfg.Limits.MarksTimeout)
	defer cancel()
	for i, r := range a.h.cfg.Mesh.RecordAges(ctx, records) {
		if r.Err == nil && r.Known && i < len(asked) {
			asked[i].LagAge, asked[i].LagAgeAtLeast = durationpb.New(r.Age), r.AtLeast
		}
	}
}

// response puts together what was found.
func (d *description) response() *gatewayv1.DescribeGroupResponse {
	resp := &gatewayv1.DescribeGroupResponse{
		Summary: groupSummary(d.group.GetSummary()), GroupEpoch: d.group.GetSummary().GetGroupEpoch(), Assignor: d.group.GetAssignor(),
	}
	members := make(map[string]*coordinatorv1.GroupMember)
	for _, m := range d.group.GetMembers() {
		resp.Members = append(resp.Members, groupMember(m))
		members[m.GetMemberId()] = m
	}
	if all := d.group.GetRebalances(); len(all) > 0 {
		resp.LastRebalance = rebalance(d.image, all[0])
	}
	for _, p := range d.parts {
		rate, ok := d.rates[p.id]
		if !ok {
			rate = groups.Unknown()
		}
		if p.MemberId == "" {
			rate.Read = -1 // nobody reads, however fast somebody did a while ago
		}
		p.RecordsPerSecond, p.AppendedPerSecond = rate.Read, rate.Appended
		if in, ok := groups.CatchUp(p.Lag, rate); ok {
			p.CatchUp = durationpb.New(in)
		}
		m := members[p.MemberId]
		p.HeldBackBy, p.HeldBackDetail = groups.HeldBack(groups.Held{
			Gone: m.GetLastSign() != nil && !m.GetAttached(), Silent: m.GetLastSign().AsDuration(), Session: m.GetSessionTimeout().AsDuration(),
			Lag: p.Lag, Member: p.MemberId, Members: len(resp.Members), Unowned: d.unowned[p.id].GetWaitingFor(),
			Revoking: p.Revoking, Stuck: p.Stuck, Progress: p.progress, EndErr: p.endErr,
		})
		resp.Partitions = append(resp.Partitions, p.GroupPartition)
	}
	return resp
}

func groupMember(m *coordinatorv1.GroupMember) *gatewayv1.GroupMember {
	return &gatewayv1.GroupMember{
		MemberId: m.GetMemberId(), InstanceId: m.GetInstanceId(), ClientId: m.GetClientId(), ClientHost: m.GetClientHost(),
		MemberEpoch: m.GetMemberEpoch(), Partitions: int32(len(m.GetOwned())), Topics: m.GetTopics(), TopicPattern: m.GetTopicPattern(),
		SessionTimeout: m.GetSessionTimeout(), RebalanceTimeout: m.GetRebalanceTimeout(), MaxProcessing: m.GetMaxProcessing(),
		Attached: m.GetAttached(), LastSign: m.GetLastSign(), Stuck: len(m.GetStuck()) > 0, ReplacedBy: m.GetReplacedBy(),
	}
}
