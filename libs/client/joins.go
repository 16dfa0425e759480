package client

import (
	"context"
	"sync"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// joins are the join streams of a client, one for each coordinator, shared by its
// members.
type joins struct {
	client *Client
	mu     sync.Mutex
	byAddr map[string]*joinStream
	wg     sync.WaitGroup
}

func newJoins(c *Client) *joins { return &joins{client: c, byAddr: make(map[string]*joinStream)} }

// close waits for the streams, which end with the client's context.
func (j *joins) close() { j.wg.Wait() }

// memberKey names a member on a stream.
type memberKey struct{ group, member string }

// link is a member's place on a join stream.
type link struct {
	stream *joinStream
	key    memberKey
	inbox  chan *coordinatorv1.JoinResponse
	gone   chan struct{} // closed when the stream has ended
	left   chan struct{} // closed when the member has left the stream
	err    *rpc.Error    // why the stream ended; read after gone
}

// attach gives a member a place on the stream to a coordinator. Unlink ends it.
func (j *joins) attach(addr string, key memberKey) *link {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.byAddr[addr]
	if s == nil {
		s = &joinStream{joins: j, addr: addr, links: make(map[memberKey]*link), wake: make(chan struct{}, 1)}
		s.ctx, s.cancel = context.WithCancel(j.client.ctx)
		j.byAddr[addr] = s
		j.wg.Go(s.run)
	}
	l := &link{stream: s, key: key, inbox: make(chan *coordinatorv1.JoinResponse, 16), gone: make(chan struct{}), left: make(chan struct{})}
	s.links[key] = l
	return l
}

// unlink gives the place up. The last member closes the stream.
func (l *link) unlink() {
	j := l.stream.joins
	j.mu.Lock()
	defer j.mu.Unlock()
	close(l.left)
	if l.stream.links[l.key] != l {
		return
	}
	delete(l.stream.links, l.key)
	if len(l.stream.links) == 0 && j.byAddr[l.stream.addr] == l.stream {
		delete(j.byAddr, l.stream.addr)
		l.stream.cancel()
	}
}

// send puts a frame of the member in line. What is in line is bounded by the
// member: an open, an acknowledgement, some pings and its commits.
func (l *link) send(m *coordinatorv1.JoinRequest) {
	m.Group, m.MemberId = l.key.group, l.key.member
	j := l.stream.joins
	j.mu.Lock()
	defer j.mu.Unlock()
	l.stream.out = append(l.stream.out, m)
	poke(l.stream.wake)
}

// joinStream is the join stream to one coordinator. The lock of joins guards it.
type joinStream struct {
	joins  *joins
	addr   string
	ctx    context.Context
	cancel context.CancelFunc
	links  map[memberKey]*link
	out    []*coordinatorv1.JoinRequest
	wake   chan struct{}
}

// run opens the stream, and sends until it ends.
func (s *joinStream) run() {
	defer s.cancel()
	stream, err := s.open()
	if err != nil {
		s.end(err)
		return
	}
	received := make(chan *rpc.Error, 1)
	go func() { received <- s.receive(stream) }()
	sendErr := s.send(stream, received)
	s.cancel()
	err = <-received
	if sendErr != nil && err.Reason == reasonCancelled {
		err = sendErr
	}
	s.end(err)
}

func (s *joinStream) open() (coordinatorv1.GroupService_JoinClient, *rpc.Error) {
	c := s.joins.client
	late := time.AfterFunc(c.cfg.RequestTimeout, s.cancel)
	defer late.Stop()
	conn, err := c.groupConns.Get(s.addr)
	if err != nil {
		return nil, streamEnd(err, "coordinator", s.addr)
	}
	stream, err := coordinatorv1.NewGroupServiceClient(conn).Join(s.ctx)
	if err != nil {
		return nil, streamEnd(err, "coordinator", s.addr)
	}
	hello := &coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Initial{Initial: &coordinatorv1.JoinInitial{
		Handshake: rpc.LocalHandshake(), ClientId: c.cfg.ClientID,
	}}}
	// A failed Send shows in Recv, with the reason.
	_ = stream.Send(hello)
	resp, err := stream.Recv()
	if err != nil {
		if !late.Stop() && c.ctx.Err() == nil {
			return nil, rpc.Errorf(reasonUnreachable, "coordinator %s did not answer within %v", s.addr, c.cfg.RequestTimeout).With("address", s.addr)
		}
		return nil, streamEnd(err, "coordinator", s.addr)
	}
	if resp.GetInitial() == nil {
		return nil, rpc.Errorf(reasonStreamProtocol, "coordinator %s answered the opening of a join stream with something else; upgrade the older side", s.addr)
	}
	if err := rpc.CheckHandshake(resp.GetInitial().Handshake); err != nil {
		return nil, rpc.FromError(err)
	}
	return stream, nil
}

func (s *joinStream) send(stream coordinatorv1.GroupService_JoinClient, received chan *rpc.Error) *rpc.Error {
	for {
		s.joins.mu.Lock()
		out := s.out
		s.out = nil
		s.joins.mu.Unlock()
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return streamEnd(err, "coordinator", s.addr)
			}
		}
		select {
		case <-s.wake:
		case err := <-received:
			received <- err
			return nil
		case <-s.ctx.Done():
			return nil
		}
	}
}

// receive hands frames to their members until the stream ends.
func (s *joinStream) receive(stream coordinatorv1.GroupService_JoinClient) *rpc.Error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return streamEnd(err, "coordinator", s.addr)
		}
		s.joins.mu.Lock()
		l := s.links[memberKey{resp.Group, resp.MemberId}]
		s.joins.mu.Unlock()
		if l == nil {
			continue // of a member that has gone
		}
		select {
		case l.inbox <- resp: // its goroutine never waits for the application
		case <-l.left:
		case <-s.ctx.Done():
		}
	}
}

// end tells every member that the stream has ended.
func (s *joinStream) end(err *rpc.Error) {
	j := s.joins
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.byAddr[s.addr] == s {
		delete(j.byAddr, s.addr)
	}
	for _, l := range s.links {
		l.err = err
		close(l.gone)
	}
	clear(s.links)
}
