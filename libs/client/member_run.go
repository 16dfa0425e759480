package client

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// run keeps the membership on a stream until it ends.
func (m *Member) run(ctx context.Context) {
	var hint *typev1.LeaderHint
	var troubled time.Time // when the failures in a row began
	for failures := 0; ; {
		at, err := m.client.coordinator(ctx, m.cfg.Group, hint)
		if err == nil {
			s := &memberStream{m: m, at: at, link: m.client.joins.attach(at.addr, memberKey{m.cfg.Group, m.cfg.MemberID})}
			err = s.serve(ctx)
			if err != nil && s.opened && (ctx.Err() != nil || !rpc.Retryable(err)) {
				s.detach()
			}
			s.link.unlink()
			if s.opened {
				failures = 0
			}
			if err == nil { // it has left
				m.finish(closedError("membership"), false)
				return
			}
			m.client.refreshSoon()
		}
		if ctx.Err() != nil || m.neverJoined() {
			m.finish(closedError("membership"), false)
			return
		}
		if !rpc.Retryable(err) {
			m.finish(err, true)
			return
		}
		m.tellWaiting(err)
		if failures++; failures == 1 {
			troubled = time.Now()
		}
		if hint = err.Leader; hint.GetAddress() != "" && failures == 1 {
			continue
		}
		m.awaitSeat(ctx, at, m.client.cfg.backoff(failures), troubled)
	}
}

// neverJoined reports whether the member is to leave without ever having been on
// record.
func (m *Member) neverJoined() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaving && m.attach == 0
}

// memberStream is a member's time on one stream.
type memberStream struct {
	m        *Member
	at       seat
	link     *link
	opened   bool
	openSign time.Time           // the sign of life that the opening told of
	pings    map[int64]time.Time // unanswered, with the sign of life that they told of
	lastPing int64
	pinged   time.Time // the sign of life that the last ping, or the opening, told of
	interval time.Duration
	left     bool // leave has been sent
	told     map[TopicPartition]MemberProgress
}

// unansweredPings bounds the pings that are remembered.
const unansweredPings = 16

// serve opens the member on the stream and speaks for it. It returns nil once the
// member has left, and otherwise why it cannot go on here.
func (s *memberStream) serve(ctx context.Context) *rpc.Error {
	s.pings = make(map[int64]time.Time)
	s.openSign = s.send(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Open{Open: s.m.openFrame()}})
	s.pinged = s.openSign
	timer := time.NewTimer(s.m.client.cfg.RequestTimeout)
	defer timer.Stop()
	doubt := time.NewTimer(silenceDoubt)
	defer doubt.Stop()
	for {
		changed := s.m.client.source.Changed()
		if s.m.client.moved(s.at) {
			return shardMoved(s.m.cfg.Group, s.at)
		}
		select {
		case <-ctx.Done():
			return rpc.FromError(ctx.Err())
		case <-changed:
		case <-doubt.C:
			// One that was paused, or cut off from its clients alone, cannot say that it has
			// lost the shard, and its connection takes long to break.
			if !s.answered() {
				s.m.client.refreshSoon()
				doubt.Reset(silenceDoubt)
			}
		case <-s.link.gone:
			return notOurs(ctx, s.link.err)
		case f := <-s.link.inbox:
			done, err := s.frame(f)
			if done || err != nil {
				return err
			}
			if f.GetOpened() != nil {
				timer.Reset(s.interval)
			}
		case <-s.m.wake:
		case <-timer.C:
			if !s.opened {
				return rpc.Errorf(reasonUnreachable, "coordinator %s did not open the member within %v", s.link.stream.addr, s.m.client.cfg.RequestTimeout)
			}
			if s.answered() { // else the doubt has begun already
				doubt.Reset(silenceDoubt)
			}
			timer.Reset(s.ping())
		}
		if s.opened {
			s.flush()
		}
	}
}

// silenceDoubt is how long a coordinator may leave the opening or a ping unanswered
// before the metadata is asked whether the shard has another owner.
const silenceDoubt = time.Second

// answered reports whether the coordinator owes nothing that counts as a sign of it.
func (s *memberStream) answered() bool { return s.opened && len(s.pings) == 0 }

// openFrame says who the member is and what it holds.
func (m *Member) openFrame() *coordinatorv1.MemberOpen {
	m.mu.Lock()
	defer m.mu.Unlock()
	open := &coordinatorv1.MemberOpen{
		InstanceId: m.cfg.InstanceID, Topics: m.cfg.Topics, TopicPattern: m.cfg.TopicPattern, Assignor: m.cfg.Assignor,
		Attach: m.attach, Owned: ownedToProto(m.owned), ClientId: m.cfg.ClientID, ClientHost: m.cfg.ClientHost, ResetPolicy: m.cfg.ResetPolicy,
		LeaveStarts: m.cfg.LeaveStarts,
	}
	if m.cfg.SessionTimeout > 0 {
		open.SessionTimeout = durationpb.New(m.cfg.SessionTimeout)
	}
	if m.cfg.RebalanceTimeout > 0 {
		open.RebalanceTimeout = durationpb.New(m.cfg.RebalanceTimeout)
	}
	if m.cfg.MaxProcessing > 0 {
		open.MaxProcessing = durationpb.New(m.cfg.MaxProcessing)
	}
	if m.cfg.ResetDuration > 0 {
		open.ResetByDuration = durationpb.New(m.cfg.ResetDuration)
	}
	if !m.cfg.ResetTimestamp.IsZero() {
		open.ResetTimestampMs = m.cfg.ResetTimestamp.UnixMilli()
	}
	return open
}

// frame takes a frame in; done: the member has left.
func (s *memberStream) frame(f *coordinatorv1.JoinResponse) (done bool, err *rpc.Error) {
	switch f := f.Message.(type) {
	case *coordinatorv1.JoinResponse_Opened:
		s.onOpened(f.Opened)
	case *coordinatorv1.JoinResponse_Assignment:
		if s.opened { // before that it belongs to the stream before
			s.m.assign(f.Assignment)
		}
	case *coordinatorv1.JoinResponse_CommitResult:
		return false, s.m.committed(f.CommitResult)
	case *coordinatorv1.JoinResponse_Pong:
		if sign, ok := s.pings[f.Pong.PingId]; ok {
			maps.DeleteFunc(s.pings, func(id int64, _ time.Time) bool { return id <= f.Pong.PingId })
			s.m.confirm(sign)
		}
	case *coordinatorv1.JoinResponse_Fenced:
		err := rpc.FromProto(f.Fenced.GetError())
		if err == nil {
			err = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, "the coordinator ended the membership without saying why")
		}
		return false, err.With("group", s.m.cfg.Group)
	case *coordinatorv1.JoinResponse_Left:
		return true, nil
	}
	return false, nil
}

func (s *memberStream) onOpened(o *coordinatorv1.MemberOpened) {
	m := s.m
	s.opened = true
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attach, m.epoch = o.Attach, o.MemberEpoch
	if d := o.SessionTimeout; d.IsValid() && d.AsDuration() > 0 {
		m.session = d.AsDuration()
	}
	s.interval = m.session / 3
	if d := o.PingInterval; d.IsValid() && d.AsDuration() > 0 {
		s.interval = min(s.interval, d.AsDuration())
	}
	if d := m.cfg.MaxProcessing; d > 0 {
		// Its time counts from when the coordinator hears of the record that waits.
		s.interval = min(s.interval, max(d/4, leastPingInterval))
	}
	m.confirmed = s.openSign
	m.ackDue = m.acked > 0
	m.lastSeq = 0
	for _, c := range m.commits {
		c.seq = 0
	}
	m.waiting = nil
	m.attached = &Attached{MemberID: m.cfg.MemberID, Attach: m.attach, MemberEpoch: m.epoch, SessionTimeout: m.session}
	poke(m.ready)
}

func (m *Member) confirm(sign time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if sign.After(m.confirmed) {
		m.confirmed = sign
	}
}

// assign tells the application about an assignment, unless it has acknowledged the
// very same: then the coordinator has only lost the acknowledgement.
func (m *Member) assign(a *coordinatorv1.Assignment) {
	as := &Assignment{MemberEpoch: a.MemberEpoch, GroupEpoch: a.GroupEpoch, Cause: a.Cause}
	if a.RevocationTimeout.IsValid() {
		as.RevocationTimeout = a.RevocationTimeout.AsDuration()
	}
	same := make(map[OwnedPartition]bool)
	for _, p := range a.Partitions {
		id, err := topicid.FromBytes(p.TopicId)
		if err != nil {
			m.client.cfg.Logger.Warn("an assigned partition has no valid topic id; it is left out", "group", m.cfg.Group, "topic", p.Topic, "error", err)
			continue
		}
		o := OwnedPartition{TopicPartition: TopicPartition{TopicID: id, Partition: p.Partition}, AssignmentEpoch: p.AssignmentEpoch}
		same[o] = true
		as.Partitions = append(as.Partitions, AssignedPartition{OwnedPartition: o, Topic: p.Topic, StartOffset: p.StartOffset, StartLeaderEpoch: p.StartLeaderEpoch})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if as.MemberEpoch == m.acked && len(same) == len(m.owned) && !slices.ContainsFunc(m.owned, func(o OwnedPartition) bool { return !same[o] }) {
		m.ackDue = true
		poke(m.wake)
		return
	}
	m.assignment = as
	if m.cfg.tellRevoking {
		if gone := slices.DeleteFunc(slices.Clone(m.owned), func(o OwnedPartition) bool { return same[o] }); len(gone) > 0 {
			m.begun = gone
			poke(m.wake)
		}
	}
	poke(m.ready)
}

// committed takes the result of a commit in. An error means that the member has to
// be opened again before the commit can take effect.
func (m *Member) committed(r *coordinatorv1.CommitResult) *rpc.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.commits, func(c *memberCommit) bool { return c.seq == r.Sequence && c.seq > 0 })
	if i < 0 {
		return nil
	}
	c := m.commits[i]
	if err := rpc.FromProto(r.Error); err != nil {
		if rpc.Retryable(err) {
			c.seq = 0
			return err
		}
		c.err = err.With("group", m.cfg.Group)
	}
	c.result.Refused = refusedFromProto(r.PartitionErrors)
	m.commits = slices.Delete(m.commits, i, i+1)
	close(c.done)
	return nil
}

// signRetry is how soon to look again for a sign of life of the application when
// there is none to tell of.
const signRetry = 100 * time.Millisecond

// newestSign is when the application last gave a sign of life. It never goes back,
// and is never later than now: the coordinator counts none from the future, and
// deliveries must not go on for longer than it does.
func (m *Member) newestSign() time.Time {
	if m.cfg.LastSign == nil {
		return time.Now()
	}
	sign := m.cfg.LastSign()
	if now := time.Now(); sign.After(now) {
		sign = now
	}
	if sign.After(m.sign) {
		m.sign = sign
	}
	return m.sign
}

// send sends a frame, and gives the sign of life that it tells of.
func (s *memberStream) send(f *coordinatorv1.JoinRequest) time.Time {
	sign := s.m.newestSign()
	if s.m.cfg.LastSign != nil {
		f.Silence = durationpb.New(max(0, time.Since(sign)))
	}
	s.link.send(f)
	return sign
}

// ping asks for a sign that the membership stands, unless the application has given
// none since the last ping. It tells when to do so again.
func (s *memberStream) ping() time.Duration {
	m := s.m
	if sign := m.newestSign(); !sign.After(s.pinged) {
		return min(s.interval, signRetry)
	}
	m.mu.Lock()
	attach, epoch := m.attach, m.epoch
	m.mu.Unlock()
	if len(s.pings) >= unansweredPings {
		delete(s.pings, slices.Min(slices.Collect(maps.Keys(s.pings))))
	}
	progress := s.progress()
	s.lastPing++
	s.pinged = s.send(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Ping{
		Ping: &coordinatorv1.MemberPing{PingId: s.lastPing, Attach: attach, MemberEpoch: epoch, Progress: progress},
	}})
	s.pings[s.lastPing] = s.pinged
	return s.interval
}

// leastPingInterval bounds the pings of a member with a short MaxProcessing.
const leastPingInterval = 250 * time.Millisecond

// detach tells that this member goes, while the stream may go on for others. Without
// it the coordinator would take its process for one that may still use what it holds.
func (s *memberStream) detach() {
	s.send(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Detach{
		Detach: &coordinatorv1.MemberDetach{Attach: s.m.Attach()},
	}})
}

// flush sends what is due: acknowledgements before commits, so that these find the
// member in its epoch, and the leave last.
func (s *memberStream) flush() {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.begun) > 0 {
		s.send(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Revoking{
			Revoking: &coordinatorv1.MemberRevoking{Attach: m.attach, Partitions: ownedToProto(m.begun)},
		}})
		m.begun = nil
	}
	if m.ackDue {
		m.ackDue = false
		m.epoch = max(m.epoch, m.acked)
		s.send(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Ack{
			Ack: &coordinatorv1.AssignmentAck{Attach: m.attach, MemberEpoch: m.acked, Owned: ownedToProto(m.owned)},
		}})
	}
	for _, c := range m.commits {
		if c.seq > 0 {
			continue
		}
		m.lastSeq++
		c.seq, c.ever = m.lastSeq, true
		s.send(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Commit{
			Commit: &coordinatorv1.MemberCommit{Attach: m.attach, MemberEpoch: m.epoch, Sequence: c.seq, Offsets: c.offsets},
		}})
	}
	if m.leaving && !s.left {
		s.left = true
		s.send(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Leave{Leave: &coordinatorv1.MemberLeave{Attach: m.attach}}})
	}
}

func ownedToProto(owned []OwnedPartition) []*coordinatorv1.OwnedPartition {
	out := make([]*coordinatorv1.OwnedPartition, 0, len(owned))
	for _, o := range owned {
		out = append(out, &coordinatorv1.OwnedPartition{TopicId: o.TopicID.Bytes(), Partition: o.Partition, AssignmentEpoch: o.AssignmentEpoch})
	}
	return out
}
