package handler

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

// memberKey names a member of a stream.
type memberKey struct{ group, member string }

// memberState is a member as the stream knows it.
type memberState struct {
	shard   *shard.Shard
	attach  int64 // of the newest MemberOpened; 0: none yet
	opening int   // opens that are not answered
}

// conn is one Join stream. It is the shards' Peer.
type conn struct {
	h      *Handler
	ended  atomic.Bool
	notify chan struct{}

	mu      sync.Mutex
	members map[memberKey]*memberState
	shards  map[*shard.Shard]bool
	out     []*coordinatorv1.JoinResponse
	failure error
	failed  chan struct{} // closed once failure is set

	unanswered int  // requests with a shard
	closing    bool // the client has ended its side
}

var _ shard.Peer = (*conn)(nil)

// write sends what is pushed until the stream ends.
func (c *conn) write(stream grpc.BidiStreamingServer[coordinatorv1.JoinRequest, coordinatorv1.JoinResponse], read <-chan error) error {
	for {
		select {
		case <-c.notify:
			if err := c.flush(stream); err != nil {
				return err
			}
		case <-c.failed:
			return c.failure
		case <-c.h.draining:
			if err := c.flush(stream); err != nil {
				return err
			}
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "this coordinator is stopping; open the stream at another one, or here again later")
		case <-stream.Context().Done():
			return rpc.FromError(stream.Context().Err())
		case err := <-read:
			if err != nil {
				return err
			}
			c.mu.Lock()
			c.closing = true
			c.mu.Unlock()
			c.wake()
			read = nil
		}
		if c.finished() {
			return nil
		}
	}
}

// finished says whether the client has ended its side and has every answer.
func (c *conn) finished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing && c.unanswered == 0 && len(c.out) == 0
}

// ask gives a request that is answered in a frame to a shard. Done is not called
// where ask returns an error.
func (c *conn) ask(ctx context.Context, s *shard.Shard, r shard.Request) error {
	done := r.Done
	r.Done = func(reply group.Reply) {
		done(reply)
		c.answered()
	}
	c.mu.Lock()
	c.unanswered++
	c.mu.Unlock()
	err := s.Post(ctx, r)
	if err != nil {
		c.answered()
	}
	return err
}

func (c *conn) answered() {
	c.mu.Lock()
	c.unanswered--
	c.mu.Unlock()
	c.wake()
}

// wake makes the writer look again.
func (c *conn) wake() {
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

func (c *conn) flush(stream grpc.BidiStreamingServer[coordinatorv1.JoinRequest, coordinatorv1.JoinResponse]) error {
	c.mu.Lock()
	out := c.out
	c.out = nil
	c.mu.Unlock()
	for _, m := range out {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// push puts a frame in line. A client that does not read loses its stream, not the
// coordinator its memory.
func (c *conn) push(m *coordinatorv1.JoinResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return
	}
	if len(c.out) >= c.h.cfg.MaxQueuedFrames {
		c.out = nil
		c.failure = limit("frames", "%d frames were not read; read them, or carry fewer members on the stream", c.h.cfg.MaxQueuedFrames)
		close(c.failed)
		return
	}
	c.out = append(c.out, m)
	c.wake()
}

// read works on frames until the client ends its side or the stream breaks. An end
// without leaves detaches the members; it is never a leave.
func (c *conn) read(ctx context.Context, stream grpc.BidiStreamingServer[coordinatorv1.JoinRequest, coordinatorv1.JoinResponse]) error {
	for {
		frame, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.frame(ctx, frame); err != nil {
			return err
		}
	}
}

// detach tells every shard used that the stream has ended.
func (c *conn) detach(ctx context.Context) {
	c.ended.Store(true)
	c.mu.Lock()
	shards := c.shards
	c.shards = nil
	c.mu.Unlock()
	for s := range shards {
		// The only error is that the shard has stopped, and with it the members.
		if err := s.Detach(ctx, c); err != nil {
			c.h.cfg.Logger.Debug("a stream ended after its shard", "shard", s.Partition(), "error", err)
		}
	}
}

// Send implements shard.Peer.
func (c *conn) Send(groupName, member string, attach int64, m group.Message) {
	key := memberKey{groupName, member}
	switch m := m.(type) {
	case group.Assignment:
		_ = failpoint.Hit(failpoint.GroupAssign) // an assignment cannot be refused
		c.push(&coordinatorv1.JoinResponse{
			Group: groupName, MemberId: member,
			Message: &coordinatorv1.JoinResponse_Assignment{Assignment: assignment(m)},
		})
	case group.Fenced:
		c.end(key, attach, c.h.fromCore(groupName, m.Err))
	}
}

// Lost implements shard.Peer.
func (c *conn) Lost(groupName, member string, attach int64, reload bool) {
	if !reload {
		c.mu.Lock()
		if state := c.members[memberKey{groupName, member}]; state != nil && state.attach == attach {
			delete(c.shards, state.shard)
		}
		c.mu.Unlock()
	}
	reason := group.ReasonShardLost
	text := "this coordinator lost the group's shard; open the member at its owner"
	if reload {
		reason, text = group.ReasonLoading, "the group's shard is loaded again; open the member again"
	}
	c.end(memberKey{groupName, member}, attach, c.h.fromCore(groupName, &group.Error{Reason: reason, Message: text}))
}

// Ended implements shard.Peer.
func (c *conn) Ended() bool { return c.ended.Load() }
