package handler

import (
	"context"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

// Join carries the control frames of many members. One goroutine reads, the
// handler's own writes, and neither ever waits for the client while a shard's loop
// waits for it.
func (h *Handler) Join(stream grpc.BidiStreamingServer[coordinatorv1.JoinRequest, coordinatorv1.JoinResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	initial := first.GetInitial()
	if initial == nil {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL, "the first message of Join must be initial")
	}
	if err := rpc.CheckHandshake(initial.GetHandshake()); err != nil {
		return err
	}
	if len(initial.GetClientId()) > maxName {
		return invalid("the client id has %d bytes; use at most %d", len(initial.GetClientId()), maxName)
	}
	c := &conn{
		h: h, members: make(map[memberKey]*memberState), shards: make(map[*shard.Shard]bool),
		notify: make(chan struct{}, 1), failed: make(chan struct{}),
	}
	c.push(&coordinatorv1.JoinResponse{Message: &coordinatorv1.JoinResponse_Initial{Initial: &coordinatorv1.JoinInitialResponse{
		Handshake: rpc.LocalHandshake(), Coordinator: h.cfg.Process,
	}}})
	ctx, cancel := context.WithCancel(stream.Context())
	read := make(chan error, 1)
	h.wg.Go(func() {
		err := c.read(ctx, stream)
		c.detach(context.WithoutCancel(ctx))
		read <- err
	})
	err = c.write(stream, read)
	c.ended.Store(true)
	cancel()
	return err
}

// frame works on one frame. Errors end the stream; what concerns one member only
// is answered in a frame.
func (c *conn) frame(ctx context.Context, f *coordinatorv1.JoinRequest) error {
	if f.GetInitial() != nil || f.GetMessage() == nil {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL, "a frame of Join is a second initial, or of no kind")
	}
	if err := checkGroup(f.GetGroup()); err != nil {
		return err
	}
	if err := checkName(invalidReason, "member id", f.GetMemberId()); err != nil {
		return err
	}
	key := memberKey{f.GetGroup(), f.GetMemberId()}
	silence := f.GetSilence().AsDuration()
	switch m := f.GetMessage().(type) {
	case *coordinatorv1.JoinRequest_Open:
		return c.open(ctx, key, m.Open, silence)
	case *coordinatorv1.JoinRequest_Ack:
		return c.ack(ctx, key, m.Ack, silence)
	case *coordinatorv1.JoinRequest_Commit:
		return c.commit(ctx, key, m.Commit, silence)
	case *coordinatorv1.JoinRequest_Ping:
		return c.ping(ctx, key, m.Ping, silence)
	case *coordinatorv1.JoinRequest_Revoking:
		return c.revoking(ctx, key, m.Revoking, silence)
	case *coordinatorv1.JoinRequest_Leave:
		return c.leave(ctx, key, m.Leave)
	case *coordinatorv1.JoinRequest_Detach:
		return c.detachMember(ctx, key, m.Detach.GetAttach())
	}
	return nil
}

// post gives a frame without an answer to the member's shard. Where the member is
// not open here it has been told so already, and the frame crossed that.
func (c *conn) post(ctx context.Context, key memberKey, r shard.Request) error {
	if s := c.shardOf(key); s != nil {
		return c.unlessLost(s.Post(ctx, r))
	}
	return nil
}

// unlessLost drops the error of a shard that has stopped: the members have been
// told.
func (c *conn) unlessLost(err error) error {
	if rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_CANCELLED, typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED) {
		return err
	}
	return nil
}

func (c *conn) shardOf(key memberKey) *shard.Shard {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[key]; m != nil {
		return m.shard
	}
	return nil
}

func (c *conn) open(ctx context.Context, key memberKey, m *coordinatorv1.MemberOpen, silence time.Duration) error {
	event, bad := open(key.group, key.member, m)
	if bad != nil {
		c.fence(key, bad)
		return nil
	}
	event.Silence = silence
	s, err := c.h.manager.For(key.group)
	if err == nil {
		err = c.begin(key, s)
	}
	if err != nil {
		c.fence(key, err)
		return nil
	}
	err = c.ask(ctx, s, shard.Request{
		Peer: c, Group: key.group, Member: key.member,
		Make: func(req uint64) group.Event {
			event.Req = req
			return event
		},
		Done: func(r group.Reply) { c.openDone(key, s, r) },
	})
	if err != nil {
		c.openDone(key, s, group.Reply{Err: &group.Error{Reason: group.ReasonShardLost, Message: err.Error()}})
	}
	return nil
}

// begin notes that a member is being opened.
func (c *conn) begin(key memberKey, s *shard.Shard) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.members[key]
	if state == nil {
		if len(c.members) >= c.h.cfg.MaxMembersPerStream {
			return limit("members", "the stream carries %d members already; open another one", len(c.members))
		}
		state = &memberState{}
		c.members[key] = state
	}
	if state.shard != s {
		state.shard, state.attach, state.opening = s, 0, 0
	}
	state.opening++
	if c.shards != nil {
		c.shards[s] = true
	}
	return nil
}

func (c *conn) openDone(key memberKey, s *shard.Shard, r group.Reply) {
	c.mu.Lock()
	if state := c.members[key]; state != nil && state.shard == s {
		state.opening--
		switch result := r.Result.(type) {
		case group.Opened:
			state.attach = result.Attach
		default:
			if state.opening == 0 && state.attach == 0 {
				delete(c.members, key)
			}
		}
	}
	c.mu.Unlock()
	if r.Err != nil {
		c.fence(key, c.h.fromCore(key.group, r.Err))
		return
	}
	c.push(&coordinatorv1.JoinResponse{
		Group: key.group, MemberId: key.member,
		Message: &coordinatorv1.JoinResponse_Opened{Opened: opened(r.Result.(group.Opened))},
	})
}

func (c *conn) ack(ctx context.Context, key memberKey, m *coordinatorv1.AssignmentAck, silence time.Duration) error {
	holds, err := owned(m.GetOwned())
	if err != nil {
		return err
	}
	return c.post(ctx, key, shard.Request{Make: func(uint64) group.Event {
		return group.Ack{Group: key.group, Member: key.member, Attach: m.GetAttach(), Epoch: m.GetMemberEpoch(), Owned: holds, Silence: silence}
	}})
}

func (c *conn) revoking(ctx context.Context, key memberKey, m *coordinatorv1.MemberRevoking, silence time.Duration) error {
	parts, err := owned(m.GetPartitions())
	if err != nil {
		return err
	}
	return c.post(ctx, key, shard.Request{Make: func(uint64) group.Event {
		return group.Revoking{Group: key.group, Member: key.member, Attach: m.GetAttach(), Parts: parts, Silence: silence}
	}})
}

func (c *conn) commit(ctx context.Context, key memberKey, m *coordinatorv1.MemberCommit, silence time.Duration) error {
	offsets, bad := commits(m.GetOffsets())
	if bad != nil {
		c.commitResult(key, m.GetSequence(), bad, nil)
		return nil
	}
	s := c.shardOf(key)
	if s == nil {
		// Its shard was lost or loaded again, and this crossed the news: the
		// membership may well stand.
		c.commitResult(key, m.GetSequence(), c.notOpen(key), nil)
		return nil
	}
	err := c.ask(ctx, s, shard.Request{
		Make: func(req uint64) group.Event {
			return group.Commit{
				Req: req, Group: key.group, Member: key.member, Attach: m.GetAttach(),
				Epoch: m.GetMemberEpoch(), Sequence: m.GetSequence(), Offsets: offsets, Silence: silence,
			}
		},
		Done: func(r group.Reply) {
			if r.Err != nil {
				c.commitResult(key, m.GetSequence(), c.h.fromCore(key.group, r.Err), nil)
				return
			}
			c.commitResult(key, m.GetSequence(), nil, r.Result.(group.CommitDone).Refused)
		},
	})
	if err != nil {
		c.commitResult(key, m.GetSequence(), rpc.FromError(err), nil)
	}
	return c.unlessLost(err)
}

// notOpen is the answer to what only an open member may ask.
func (c *conn) notOpen(key memberKey) *rpc.Error {
	if err := c.h.manager.Elsewhere(key.group); err != nil {
		return err
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, "member %q is not open on this stream; open it again", key.member)
}

func (c *conn) commitResult(key memberKey, sequence int64, err *rpc.Error, refused []group.PartError) {
	result := &coordinatorv1.CommitResult{Sequence: sequence, PartitionErrors: c.h.partErrors(key.group, refused)}
	if err != nil {
		result.Error = rpc.ToProto(err)
	}
	c.push(&coordinatorv1.JoinResponse{
		Group: key.group, MemberId: key.member,
		Message: &coordinatorv1.JoinResponse_CommitResult{CommitResult: result},
	})
}

func (c *conn) ping(ctx context.Context, key memberKey, m *coordinatorv1.MemberPing, silence time.Duration) error {
	s := c.shardOf(key)
	if s == nil {
		return nil
	}
	told, bad := progress(m.GetProgress())
	if bad != nil {
		return bad
	}
	return c.unlessLost(c.ask(ctx, s, shard.Request{
		Make: func(req uint64) group.Event {
			return group.Ping{Req: req, Group: key.group, Member: key.member, Attach: m.GetAttach(), Progress: told, Silence: silence}
		},
		Done: func(r group.Reply) {
			if r.Err != nil {
				// A session that cannot be confirmed now is simply not confirmed.
				if e := c.h.fromCore(key.group, r.Err); !rpc.Retryable(e) {
					c.end(key, m.GetAttach(), e)
				}
				return
			}
			c.push(&coordinatorv1.JoinResponse{
				Group: key.group, MemberId: key.member,
				Message: &coordinatorv1.JoinResponse_Pong{Pong: &coordinatorv1.MemberPong{PingId: m.GetPingId()}},
			})
		},
	}))
}

func (c *conn) leave(ctx context.Context, key memberKey, m *coordinatorv1.MemberLeave) error {
	left := func() {
		c.forget(key, m.GetAttach())
		c.push(&coordinatorv1.JoinResponse{
			Group: key.group, MemberId: key.member,
			Message: &coordinatorv1.JoinResponse_Left{Left: &coordinatorv1.MemberLeft{}},
		})
	}
	s := c.shardOf(key)
	if s == nil {
		c.fence(key, c.notOpen(key))
		return nil
	}
	err := c.ask(ctx, s, shard.Request{
		Group: key.group, Member: key.member, Attach: m.GetAttach(),
		Make: func(req uint64) group.Event {
			return group.Leave{Req: req, Group: key.group, Member: key.member, Attach: m.GetAttach()}
		},
		Done: func(r group.Reply) {
			if r.Err != nil {
				c.end(key, m.GetAttach(), c.h.fromCore(key.group, r.Err))
				return
			}
			left()
		},
	})
	return c.unlessLost(err)
}

// detachMember tells the shard that a member has no stream any more, as the end of
// this one would. A fenced instance is not open here any more, and its shard waits for
// just that.
func (c *conn) detachMember(ctx context.Context, key memberKey, attach int64) error {
	s := c.shardOf(key)
	if s == nil {
		var err error
		if s, err = c.h.manager.For(key.group); err != nil {
			return nil // nor is the shard here
		}
	}
	c.forget(key, attach)
	return c.unlessLost(s.DetachMember(ctx, c, key.group, key.member, attach))
}

// fence tells the client that a member is not, or no longer, open here.
func (c *conn) fence(key memberKey, err error) {
	c.push(&coordinatorv1.JoinResponse{
		Group: key.group, MemberId: key.member,
		Message: &coordinatorv1.JoinResponse_Fenced{Fenced: &coordinatorv1.MemberFenced{Error: rpc.ToProto(err)}},
	})
}

// end is fence for a member under an attach number. One that is being opened again
// on this very stream, or has been, is not told: the news is of its earlier life.
func (c *conn) end(key memberKey, attach int64, err error) {
	if c.forget(key, attach) {
		c.fence(key, err)
	}
}

// forget drops a member if the attach number is its present one, and tells whether
// it did.
func (c *conn) forget(key memberKey, attach int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.members[key]
	if state == nil || state.attach != attach {
		return false
	}
	if state.opening > 0 {
		state.attach = 0
		return false
	}
	delete(c.members, key)
	return true
}
