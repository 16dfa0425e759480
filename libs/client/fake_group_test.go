package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// fakeCoordinator serves groups whose state the mesh keeps, as the shards do.
type fakeCoordinator struct {
	coordinatorv1.UnimplementedGroupServiceServer
	m      *fakeMesh
	id     int32
	addr   string
	server *rpc.Server
	served chan struct{}
	silent bool // it reads and answers nothing; the mesh's lock guards it
}

type fakeGroup struct {
	name      string
	epoch     int64
	members   map[string]*fakeMember
	committed map[TopicPartition]int64
	metadata  map[TopicPartition]string
}

type fakeMember struct {
	id     string
	attach int64
	epoch  int64
	owned  map[TopicPartition]int64
	sent   map[TopicPartition]int64 // newest assignment
	at     *fakeJoin
	seq    int64
	topics []string
	pings  int
	open   *coordinatorv1.MemberOpen
	// What the newest ping and revocation told, and when.
	progress []*coordinatorv1.MemberProgress
	revoking []*coordinatorv1.OwnedPartition
	pinged   time.Time
	silence  time.Duration // that the newest frame told of
	detached bool
}

// fakeJoin is one join stream.
type fakeJoin struct {
	mu  sync.Mutex
	out []*coordinatorv1.JoinResponse
	c   chan struct{}
}

func (j *fakeJoin) push(m *coordinatorv1.JoinResponse) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.out = append(j.out, m)
	poke(j.c)
}

// startCoordinator starts one; the first is given all shards.
func (m *fakeMesh) startCoordinator(id int32) *fakeCoordinator {
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		m.t.Fatal(err)
	}
	c := &fakeCoordinator{m: m, id: id, addr: fmt.Sprintf("coordinator-%d:1", id), server: server, served: make(chan struct{})}
	coordinatorv1.RegisterGroupServiceServer(server, c)
	lis := m.net.listen(c.addr)
	go func() {
		defer close(c.served)
		if err := server.Serve(lis); err != nil {
			m.t.Errorf("coordinator %d: %v", id, err)
		}
	}()
	m.update(func() { m.coords[id] = c })
	return c
}

// killCoordinator ends one at once.
func (m *fakeMesh) killCoordinator(id int32) {
	m.mu.Lock()
	c := m.coords[id]
	delete(m.coords, id)
	m.touch()
	m.mu.Unlock()
	m.net.close(c.addr)
	c.server.Stop()
	<-c.served
}

// shards makes the offsets topic, owned by a coordinator.
func (m *fakeMesh) shards(owner int32) {
	t := m.topic(OffsetsTopic, 4, 1<<20)
	m.own(t, owner)
}

// refuse sets what may refuse questions about groups; nil: nothing does.
func (m *fakeMesh) refuse(f func(group string) *rpc.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onAsk = f
}

func (m *fakeMesh) own(t *fakeTopic, owner int32) {
	m.update(func() {
		for _, p := range t.parts {
			p.owner, p.shardEpoch = owner, p.shardEpoch+1
		}
	})
}

// elsewhere is the refusal of a coordinator that does not own the group's shard.
// The lock is held.
func (c *fakeCoordinator) elsewhere(group string) *rpc.Error {
	for _, t := range c.m.topics {
		if t.name != OffsetsTopic {
			continue
		}
		p := t.parts[GroupShard(group, int32(len(t.parts)))]
		if p.owner == c.id {
			return nil
		}
		e := rpc.Errorf(reasonNotCoordinator, "coordinator %d does not own the shard", c.id)
		if o := c.m.coords[p.owner]; o != nil {
			e = e.WithLeader(p.owner, o.addr, p.shardEpoch)
		}
		return e
	}
	return rpc.Errorf(reasonCoordUnavailable, "the shards are being made")
}

func (m *fakeMesh) group(name string) *fakeGroup {
	g := m.groups[name]
	if g == nil {
		g = &fakeGroup{name: name, members: make(map[string]*fakeMember), committed: make(map[TopicPartition]int64), metadata: make(map[TopicPartition]string)}
		m.groups[name] = g
	}
	return g
}

// committed is what a group has committed for a partition; -1: nothing.
func (m *fakeMesh) committed(group string, tp TopicPartition) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if next, ok := m.group(group).committed[tp]; ok {
		return next
	}
	return -1
}

// member runs f on the only member of a group.
func (m *fakeMesh) member(group string, f func(*fakeMember)) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.group(group)
	if len(g.members) != 1 {
		m.t.Fatalf("%d members, want one", len(g.members))
	}
	for _, mem := range g.members {
		f(mem)
	}
}

// memberIDs lists the members of a group.
func (m *fakeMesh) memberIDs(group string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.group(group).members))
}

// expel ends a membership, as silence does.
func (m *fakeMesh) expel(group, member string) {
	m.fence(group, member, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, "silent"))
}

// fence ends a membership for a reason.
func (m *fakeMesh) fence(group, member string, why *rpc.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.group(group)
	mem := g.members[member]
	delete(g.members, member)
	if mem.at != nil {
		mem.at.push(frame(group, member, &coordinatorv1.JoinResponse_Fenced{Fenced: &coordinatorv1.MemberFenced{
			Error: rpc.ToProto(why),
		}}))
	}
	m.rebalance(g)
}

func frame(group, member string, message any) *coordinatorv1.JoinResponse {
	f := &coordinatorv1.JoinResponse{Group: group, MemberId: member}
	switch x := message.(type) {
	case *coordinatorv1.JoinResponse_Fenced:
		f.Message = x
	case *coordinatorv1.JoinResponse_Opened:
		f.Message = x
	case *coordinatorv1.JoinResponse_Assignment:
		f.Message = x
	case *coordinatorv1.JoinResponse_CommitResult:
		f.Message = x
	case *coordinatorv1.JoinResponse_Pong:
		f.Message = x
	case *coordinatorv1.JoinResponse_Left:
		f.Message = x
	}
	return f
}

// rebalance makes a new target and offers it. The lock is held.
func (m *fakeMesh) rebalance(g *fakeGroup) {
	g.epoch++
	m.offer(g)
}

// offer sends every member what it should hold and nobody else holds.
func (m *fakeMesh) offer(g *fakeGroup) {
	ids := slices.Sorted(maps.Keys(g.members))
	if len(ids) == 0 {
		return
	}
	target := make(map[TopicPartition]string)
	names := make(map[topicid.ID]string)
	for _, t := range m.topics {
		for i := range t.parts {
			if slices.Contains(g.members[ids[0]].topics, t.name) {
				target[t.at(int32(i))] = ids[i%len(ids)]
				names[t.id] = t.name
			}
		}
	}
	for _, id := range ids {
		mem := g.members[id]
		want := make(map[TopicPartition]int64)
		for tp, who := range target {
			free := true
			for _, other := range g.members {
				if _, holds := other.owned[tp]; other != mem && holds {
					free = false
				}
			}
			if who != id || !free {
				continue
			}
			want[tp] = g.epoch
			for _, had := range []map[TopicPartition]int64{mem.sent, mem.owned} {
				if e, ok := had[tp]; ok {
					want[tp] = e
				}
			}
		}
		if mem.at == nil || mem.sent != nil && maps.Equal(want, mem.sent) {
			continue
		}
		mem.sent = want
		for tp, e := range want { // what is offered is as good as held
			mem.owned[tp] = e
		}
		a := &coordinatorv1.Assignment{MemberEpoch: g.epoch, GroupEpoch: g.epoch, Cause: "test"}
		for tp, e := range want {
			start, ok := g.committed[tp]
			if !ok {
				start = -1
			}
			a.Partitions = append(a.Partitions, &coordinatorv1.AssignedPartition{
				TopicId: tp.TopicID.Bytes(), Topic: names[tp.TopicID], Partition: tp.Partition,
				AssignmentEpoch: e, StartOffset: start, StartLeaderEpoch: -1,
			})
		}
		mem.at.push(frame(g.name, id, &coordinatorv1.JoinResponse_Assignment{Assignment: a}))
	}
}

func (c *fakeCoordinator) Join(stream coordinatorv1.GroupService_JoinServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	j := &fakeJoin{c: make(chan struct{}, 1)}
	c.m.mu.Lock()
	c.m.joined++
	c.m.mu.Unlock()
	j.push(&coordinatorv1.JoinResponse{Message: &coordinatorv1.JoinResponse_Initial{Initial: &coordinatorv1.JoinInitialResponse{Handshake: rpc.LocalHandshake()}}})
	go func() {
		for {
			f, err := stream.Recv()
			if err != nil {
				return
			}
			c.m.mu.Lock()
			if !c.silent {
				c.take(j, f)
			}
			c.m.mu.Unlock()
		}
	}()
	for {
		j.mu.Lock()
		out := j.out
		j.out = nil
		j.mu.Unlock()
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-j.c:
		case <-stream.Context().Done():
			c.m.mu.Lock()
			for _, g := range c.m.groups {
				for _, mem := range g.members {
					if mem.at == j {
						mem.at = nil
					}
				}
			}
			c.m.mu.Unlock()
			return rpc.FromError(stream.Context().Err())
		}
	}
}

// take works on a frame. The lock is held.
func (c *fakeCoordinator) take(j *fakeJoin, f *coordinatorv1.JoinRequest) {
	g := c.m.group(f.Group)
	mem := g.members[f.MemberId]
	say := func(message any) { j.push(frame(f.Group, f.MemberId, message)) }
	fence := func(err *rpc.Error) {
		say(&coordinatorv1.JoinResponse_Fenced{Fenced: &coordinatorv1.MemberFenced{Error: rpc.ToProto(err)}})
	}
	if err := c.elsewhere(f.Group); err != nil {
		fence(err)
		return
	}
	gone := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, "no such member")
	if mem != nil {
		mem.silence = f.Silence.AsDuration()
	}
	switch m := f.Message.(type) {
	case *coordinatorv1.JoinRequest_Open:
		if mem == nil && m.Open.Attach > 0 {
			fence(gone)
			return
		}
		if mem == nil {
			mem = &fakeMember{id: f.MemberId, topics: m.Open.Topics}
			g.members[f.MemberId] = mem
		}
		mem.attach++
		mem.open = m.Open
		mem.at, mem.seq, mem.sent, mem.owned = j, 0, nil, ownedSet(m.Open.Owned)
		say(&coordinatorv1.JoinResponse_Opened{Opened: &coordinatorv1.MemberOpened{
			Attach: mem.attach, MemberEpoch: mem.epoch,
			SessionTimeout: m.Open.SessionTimeout, PingInterval: durationpb.New(3e9),
		}})
		c.m.rebalance(g)
	case *coordinatorv1.JoinRequest_Ack:
		if mem != nil && mem.attach == m.Ack.Attach {
			mem.epoch = max(mem.epoch, m.Ack.MemberEpoch)
			held := ownedSet(m.Ack.Owned)
			for tp, e := range mem.sent { // offered after what is acknowledged
				if _, ok := held[tp]; !ok && e > m.Ack.MemberEpoch {
					held[tp] = e
				}
			}
			mem.owned = held
			c.m.offer(g)
		}
	case *coordinatorv1.JoinRequest_Commit:
		if c.m.mute {
			return
		}
		r := &coordinatorv1.CommitResult{Sequence: m.Commit.Sequence}
		if mem == nil || mem.attach != m.Commit.Attach {
			r.Error = rpc.ToProto(gone)
		} else {
			for _, o := range m.Commit.Offsets {
				tp := TopicPartition{TopicID: topicid.ID(o.TopicId), Partition: o.Partition}
				if e, ok := mem.owned[tp]; !ok || e != o.AssignmentEpoch || o.AssignmentEpoch > m.Commit.MemberEpoch {
					r.PartitionErrors = append(r.PartitionErrors, &coordinatorv1.PartitionCommitError{
						TopicId: o.TopicId, Partition: o.Partition,
						Error: rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_COMMIT, "epoch %d, held %v under %d", o.AssignmentEpoch, ok, e)),
					})
				} else {
					g.committed[tp], g.metadata[tp] = o.NextOffset, o.Metadata
				}
			}
		}
		say(&coordinatorv1.JoinResponse_CommitResult{CommitResult: r})
	case *coordinatorv1.JoinRequest_Ping:
		if mem == nil {
			fence(gone)
			return
		}
		mem.pings++
		mem.progress, mem.pinged = m.Ping.Progress, time.Now()
		say(&coordinatorv1.JoinResponse_Pong{Pong: &coordinatorv1.MemberPong{PingId: m.Ping.PingId}})
	case *coordinatorv1.JoinRequest_Revoking:
		if mem != nil && mem.attach == m.Revoking.Attach {
			mem.revoking = m.Revoking.Partitions
		}
	case *coordinatorv1.JoinRequest_Detach:
		if mem != nil && mem.attach == m.Detach.Attach {
			mem.detached = true
		}
	case *coordinatorv1.JoinRequest_Leave:
		delete(g.members, f.MemberId)
		say(&coordinatorv1.JoinResponse_Left{Left: &coordinatorv1.MemberLeft{}})
		c.m.rebalance(g)
	}
}

func ownedSet(owned []*coordinatorv1.OwnedPartition) map[TopicPartition]int64 {
	set := make(map[TopicPartition]int64)
	for _, o := range owned {
		set[TopicPartition{TopicID: topicid.ID(o.TopicId), Partition: o.Partition}] = o.AssignmentEpoch
	}
	return set
}

// hush blocks while the coordinator is silent.
func (c *fakeCoordinator) hush(ctx context.Context) {
	c.m.mu.Lock()
	silent := c.silent
	c.m.mu.Unlock()
	if silent {
		<-ctx.Done()
	}
}

// check refuses unary calls at the wrong place.
func (c *fakeCoordinator) check(group string) error {
	if err := c.elsewhere(group); err != nil {
		return err
	}
	if c.m.onAsk != nil {
		if err := c.m.onAsk(group); err != nil {
			return err
		}
	}
	return nil
}

func (c *fakeCoordinator) FetchOffsets(ctx context.Context, req *coordinatorv1.FetchOffsetsRequest) (*coordinatorv1.FetchOffsetsResponse, error) {
	c.hush(ctx)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.check(req.Group); err != nil {
		return nil, err
	}
	resp := &coordinatorv1.FetchOffsetsResponse{}
	for _, p := range req.Partitions {
		tp := TopicPartition{TopicID: topicid.ID(p.TopicId), Partition: p.Partition}
		next, ok := c.m.group(req.Group).committed[tp]
		if !ok {
			next = -1
		}
		resp.Offsets = append(resp.Offsets, &coordinatorv1.CommittedOffset{TopicId: p.TopicId, Partition: p.Partition, NextOffset: next, LeaderEpoch: -1})
	}
	return resp, nil
}

func (c *fakeCoordinator) CommitOffsets(_ context.Context, req *coordinatorv1.CommitOffsetsRequest) (*coordinatorv1.CommitOffsetsResponse, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.check(req.Group); err != nil {
		return nil, err
	}
	for _, o := range req.Offsets {
		c.m.group(req.Group).committed[TopicPartition{TopicID: topicid.ID(o.TopicId), Partition: o.Partition}] = o.NextOffset
	}
	return &coordinatorv1.CommitOffsetsResponse{}, nil
}

func (c *fakeCoordinator) ListGroups(_ context.Context, req *coordinatorv1.ListGroupsRequest) (*coordinatorv1.ListGroupsResponse, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.onAsk != nil {
		if err := c.m.onAsk(""); err != nil {
			return nil, err
		}
	}
	resp := &coordinatorv1.ListGroupsResponse{Shards: c.listed()}
	for _, name := range slices.Sorted(maps.Keys(c.m.groups)) {
		if c.elsewhere(name) == nil && name > req.PageToken {
			resp.Groups, resp.NextPageToken = []*coordinatorv1.GroupSummary{{Group: name}}, name
			break
		}
	}
	return resp, nil
}

// listed names the shards it owns. The lock is held.
func (c *fakeCoordinator) listed() *coordinatorv1.ListedShards {
	if c.m.vague {
		return nil
	}
	listed := &coordinatorv1.ListedShards{}
	for _, t := range c.m.topics {
		for n, p := range t.parts {
			if t.name == OffsetsTopic && p.owner == c.id {
				listed.Partitions = append(listed.Partitions, int32(n))
			}
		}
	}
	return listed
}

func (c *fakeCoordinator) DescribeGroup(_ context.Context, req *coordinatorv1.DescribeGroupRequest) (*coordinatorv1.DescribeGroupResponse, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.check(req.Group); err != nil {
		return nil, err
	}
	if c.m.groups[req.Group] == nil {
		return nil, rpc.Errorf(reasonUnknownGroup, "no group %q", req.Group)
	}
	return &coordinatorv1.DescribeGroupResponse{Summary: &coordinatorv1.GroupSummary{Group: req.Group}}, nil
}

func (c *fakeCoordinator) DeleteGroup(_ context.Context, req *coordinatorv1.DeleteGroupRequest) (*coordinatorv1.DeleteGroupResponse, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.check(req.Group); err != nil {
		return nil, err
	}
	delete(c.m.groups, req.Group)
	return &coordinatorv1.DeleteGroupResponse{}, nil
}
