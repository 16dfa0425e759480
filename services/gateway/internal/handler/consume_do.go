package handler

import (
	"context"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// Bounds of what a stream waits for on behalf of its client.
const (
	commitTimeout = 30 * time.Second
	leaveTimeout  = 5 * time.Second

	resolvePatience    = 500 * time.Millisecond
	maxResolvePatience = 4 * time.Second
)

// act carries out the session's effects. Questions that take time are asked by
// goroutines, which post their answers to the loop. Fetches and resolves of one
// moment go out together.
func (s *consumeStream) act(now time.Time) {
	for {
		effects := s.session.TakeEffects()
		if len(effects) == 0 {
			return
		}
		var starts []client.FetchStart
		var resolves []session.ConsumeResolve
		for _, e := range effects {
			// A stop must not overtake the start before it, nor the other way round.
			if _, isFetch := e.(session.ConsumeFetch); !isFetch && len(starts) > 0 {
				s.fetch(starts)
				starts = nil
			}
			switch e := e.(type) {
			case session.ConsumeLookup:
				s.lookup(e.Topics)
			case session.ConsumeJoin:
				s.join(e.Settings)
			case session.ConsumeResolve:
				resolves = append(resolves, e)
			case session.ConsumeFetch:
				starts = append(starts, e.Start)
			case session.ConsumeStop:
				if s.fetcher != nil {
					s.fetcher.Remove(e.Partition)
				}
			case session.ConsumeAck:
				s.member.Ack(e.MemberEpoch, e.Owned)
			case session.ConsumeRevoking:
				s.member.Revoking(e.Partitions...)
			case session.ConsumeCommit:
				s.commits.push(e)
			case session.ConsumeLeave:
				s.leave()
			}
		}
		if len(starts) > 0 {
			s.fetch(starts)
		}
		if len(resolves) > 0 {
			s.work.Go(func() { s.resolve(resolves) })
		}
	}
}

// post has the loop do something with the session.
func (s *consumeStream) post(f func(now time.Time)) { s.news.push(f) }

// lookup finds topics by name, waiting for what passes by itself.
func (s *consumeStream) lookup(names []string) {
	s.work.Go(func() {
		topics := make([]session.Topic, 0, len(names))
		backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
		for _, name := range names {
			t, err := s.h.cfg.Mesh.Topic(s.ctx, name)
			for err != nil && isRetryable(err) {
				failed := err
				s.post(func(time.Time) { s.session.Waiting(failed) })
				if !s.retryLater(&backoff) {
					return
				}
				t, err = s.h.cfg.Mesh.Topic(s.ctx, name)
			}
			if err != nil {
				s.post(func(now time.Time) { s.session.LookedUp(now, nil, err) })
				return
			}
			found := session.Topic{Name: name, ID: t.ID, Partitions: int32(len(t.Partitions)), Replicas: make([][]int32, len(t.Partitions))}
			for i := range t.Partitions {
				found.Replicas[i] = t.Partitions[i].Replicas
			}
			topics = append(topics, found)
		}
		s.post(func(now time.Time) { s.session.LookedUp(now, topics, nil) })
	})
}

// fetch begins to read partitions, making the fetcher for the first of them.
func (s *consumeStream) fetch(starts []client.FetchStart) {
	if s.fetcher == nil {
		limits := s.h.cfg.Limits
		f, err := s.h.cfg.Mesh.NewFetcher(client.FetcherConfig{
			CreditBytes: limits.FetchBytes, MaxResponseBytes: limits.MaxResponseBytes, MaxDecodedBytes: limits.MaxDecodedBytes,
			Isolation: s.session.Settings().Isolation, Replica: s.session.Settings().Replica, Rack: s.session.Settings().ClientRack,
		})
		if err != nil {
			s.session.Fail(err)
			return
		}
		s.fetcher = f
	}
	s.fetcher.Add(starts...)
}

// resolve asks for offsets until each question has an answer that is not to be
// retried.
func (s *consumeStream) resolve(asks []session.ConsumeResolve) {
	isolation := s.session.Settings().Isolation
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	// A partition without a leader must not hold up the others for long.
	patience := resolvePatience
	for len(asks) > 0 && s.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		results := s.listOffsets(ctx, offsetQueries(asks), isolation)
		cancel()
		patience = min(2*patience, maxResolvePatience)
		var again []session.ConsumeResolve
		var waiting error
		i := 0
		for _, a := range asks {
			n := len(queriesOf(a))
			if i+n > len(results) {
				break
			}
			r := resolved(a, results[i:i+n])
			i += n
			if r.Err != nil && isRetryable(r.Err) {
				again = append(again, a)
				waiting = r.Err
				continue
			}
			s.post(func(now time.Time) { s.session.Resolved(now, r) })
		}
		if asks = again; len(asks) == 0 {
			return
		}
		s.post(func(time.Time) { s.session.Waiting(waiting) })
		if !s.retryLater(&backoff) {
			return
		}
	}
}

// listOffsets asks the leaders, or the broker whose replicas are read.
func (s *consumeStream) listOffsets(ctx context.Context, queries []client.OffsetQuery, isolation typev1.IsolationLevel) []client.OffsetResult {
	if r := s.session.Settings().Replica; r != nil {
		return s.h.cfg.Mesh.ListReplicaOffsets(ctx, *r, queries, isolation)
	}
	return s.h.cfg.Mesh.ListOffsets(ctx, queries, isolation)
}

// offsetQueries are the questions of all asks, in order.
func offsetQueries(asks []session.ConsumeResolve) []client.OffsetQuery {
	var out []client.OffsetQuery
	for _, a := range asks {
		out = append(out, queriesOf(a)...)
	}
	return out
}

func queriesOf(a session.ConsumeResolve) []client.OffsetQuery {
	var out []client.OffsetQuery
	// A leader answers in order: a record that comes between end and time is found.
	if a.EndToo {
		out = append(out, client.OffsetQuery{TopicPartition: a.Partition, Spec: client.Latest()})
	}
	if a.Spec != nil {
		out = append(out, client.OffsetQuery{TopicPartition: a.Partition, Spec: a.Spec})
	}
	return out
}

// resolved joins the answers to one ask.
func resolved(a session.ConsumeResolve, answers []client.OffsetResult) session.ResolveResult {
	r := session.ResolveResult{Partition: a.Partition, Tag: a.Tag, Offset: -1, End: -1}
	for _, x := range answers {
		if x.Err != nil {
			r.Err = x.Err
			return r
		}
	}
	if a.EndToo {
		r.End = answers[0].Offset
	}
	if a.Spec != nil {
		r.Offset = answers[len(answers)-1].Offset
	}
	return r
}

// join begins the membership, once it is known what the client still holds.
func (s *consumeStream) join(settings session.ConsumeSettings) {
	s.work.Go(func() {
		var owned []client.OwnedPartition
		if settings.Attach > 0 {
			owned = s.ownedPartitions(settings)
		}
		s.post(func(time.Time) { s.joinWith(settings, owned) })
	})
}

func (s *consumeStream) joinWith(settings session.ConsumeSettings, owned []client.OwnedPartition) {
	if s.session.State() != session.ConsumeJoining {
		return // it left before it joined
	}
	s.sessionTimeout = settings.SessionTimeout
	member, err := s.h.cfg.Mesh.JoinGroup(client.MemberConfig{
		Group: settings.Group, MemberID: settings.MemberID, Attach: settings.Attach, Owned: owned,
		InstanceID: settings.InstanceID, Topics: settings.Topics, TopicPattern: settings.TopicPattern, Assignor: settings.Assignor,
		SessionTimeout: settings.SessionTimeout, RebalanceTimeout: settings.RebalanceTimeout,
		ClientID: settings.ClientID, ClientHost: s.clientHost(), MaxProcessing: settings.MaxProcessing,
		ResetPolicy: resetPolicy(settings.StartAt), ResetDuration: settings.StartByDuration, ResetTimestamp: time.UnixMilli(settings.StartTimestampMs),
		LeaveStarts: settings.LeaveOffsets, Progress: s.lastProgress, LastSign: s.lastSign,
	})
	if err != nil {
		s.session.Fail(err)
		return
	}
	s.member = member
	s.work.Go(func() { s.listen(member) })
	s.work.Go(func() { s.commitInOrder(member) })
}

func resetPolicy(at gatewayv1.StartAt) coordinatorv1.OffsetResetPolicy {
	switch at {
	case gatewayv1.StartAt_START_AT_EARLIEST:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_EARLIEST
	case gatewayv1.StartAt_START_AT_NONE:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_NONE
	case gatewayv1.StartAt_START_AT_TIMESTAMP:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_TIMESTAMP
	case gatewayv1.StartAt_START_AT_BY_DURATION:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION
	case gatewayv1.StartAt_START_AT_LATEST, gatewayv1.StartAt_START_AT_UNSPECIFIED:
	}
	return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_LATEST
}

// listen tells the session what happens to the membership.
func (s *consumeStream) listen(member Member) {
	for {
		e, err := member.Next(s.ctx)
		if err != nil {
			return
		}
		fenced := e.Fenced != nil
		s.post(func(now time.Time) {
			switch {
			case e.Attached != nil:
				s.session.Attached(now, e.Attached.MemberID, e.Attached.Attach)
			case e.Assignment != nil:
				s.session.Assigned(now, *e.Assignment)
			case e.Waiting != nil:
				s.session.Waiting(e.Waiting)
			case e.Fenced != nil:
				s.session.Fenced(e.Fenced)
			}
		})
		if fenced {
			return
		}
	}
}

// commitInOrder makes commits one after the other, so that an older one cannot
// overtake a newer one.
func (s *consumeStream) commitInOrder(member Member) {
	for {
		c, ok := s.commits.pop(s.ctx)
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(s.ctx, commitTimeout)
		r, err := member.Commit(ctx, c.Offsets)
		cancel()
		s.post(func(now time.Time) { s.session.Committed(now, c.Op, r, err) })
	}
}

// leave leaves the group, if the stream ever joined it.
func (s *consumeStream) leave() {
	member := s.member
	if member == nil {
		s.session.Left()
		return
	}
	s.left = true
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), leaveTimeout)
		defer cancel()
		if err := member.Leave(ctx); err != nil {
			s.h.cfg.Logger.Debug("leaving a group failed; its session timeout will do it", "error", err)
		}
		s.post(func(time.Time) { s.session.Left() })
	})
}
