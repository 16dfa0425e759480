package handler

import (
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

// committedOffsets asks for the offsets of group g by partition.
func (m *mesh) committedOffsets() map[int32]int64 {
	m.t.Helper()
	r, err := m.client.FetchOffsets(m.ctx(), &coordinatorv1.FetchOffsetsRequest{Group: "g"})
	if err != nil {
		m.t.Fatal(err)
	}
	got := make(map[int32]int64)
	for _, o := range r.GetOffsets() {
		got[o.GetPartition()] = o.GetNextOffset()
	}
	return got
}

func TestTwoMembersShareCommitAndHandOver(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	if r := one.commit(7); r.GetError() != nil || len(r.GetPartitionErrors()) != 0 {
		t.Fatalf("the commit was answered %v", r)
	}
	two := m.stream().member("m2").join()
	one.holding(2)
	two.holding(2)
	for _, p := range two.held {
		if p.GetStartOffset() != 7 || p.GetStartLeaderEpoch() != 2 || p.GetTopic() != "a" {
			t.Fatalf("m2 was assigned %v, want the committed offset 7", p)
		}
	}
	if r := two.commit(9); r.GetError() != nil || len(r.GetPartitionErrors()) != 0 {
		t.Fatalf("the commit was answered %v", r)
	}
	one.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Ping{Ping: &coordinatorv1.MemberPing{PingId: 44, Attach: one.attach}}})
	if r := one.next(); r.GetPong().GetPingId() != 44 {
		t.Fatalf("the ping was answered %v", r)
	}
	one.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Leave{Leave: &coordinatorv1.MemberLeave{Attach: one.attach}}})
	if r := one.next(); r.GetLeft() == nil {
		t.Fatalf("the leave was answered %v", r)
	}
	two.holding(4)
	got := m.committedOffsets()
	sevens, nines := 0, 0
	for _, o := range got {
		switch o {
		case 7:
			sevens++
		case 9:
			nines++
		}
	}
	if sevens != 2 || nines != 2 {
		t.Fatalf("the offsets are %v, want two of 7 and two of 9", got)
	}
}

func TestManyMembersShareOneStream(t *testing.T) {
	m := newMesh(t, nil)
	s := m.stream()
	a, b := s.member("m1"), s.member("m2")
	a.join().holding(4)
	b.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Open{Open: &coordinatorv1.MemberOpen{Topics: []string{"a"}}}})
	for len(a.held) != 2 || len(b.held) != 2 {
		r := s.recv()
		who := map[string]*member{"m1": a, "m2": b}[r.GetMemberId()]
		switch {
		case r.GetOpened() != nil:
			who.attach = r.GetOpened().GetAttach()
		case r.GetAssignment() != nil:
			who.take(r.GetAssignment())
		default:
			t.Fatalf("got %v", r)
		}
	}
}

func TestBrokenStreamIsResumed(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	one.cancel()
	describe := func() *coordinatorv1.DescribeGroupResponse {
		r, err := m.client.DescribeGroup(m.ctx(), &coordinatorv1.DescribeGroupRequest{Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if d := describe(); len(d.GetMembers()) != 1 || len(d.GetMembers()[0].GetOwned()) != 4 {
		t.Fatalf("after the stream broke the group is %v", d)
	}
	again := m.stream().member("m1")
	again.attach, again.held = one.attach, one.held
	again.join()
	if again.attach != 2 {
		t.Fatalf("resumed with attach %d, want 2", again.attach)
	}
	if r := again.commit(3); r.GetError() != nil || len(r.GetPartitionErrors()) != 0 {
		t.Fatalf("the commit was answered %v", r)
	}
	if d := describe(); d.GetSummary().GetGroupEpoch() != 1 {
		t.Fatalf("the resume moved the group to epoch %d", d.GetSummary().GetGroupEpoch())
	}
}

// A stream that carries members of several processes goes on when one of these has
// ended. Its coordinator hears of that, and does not wait for the session before it
// gives a static member's partitions to the next one.
func TestMemberGoesWhileItsStreamGoesOn(t *testing.T) {
	for name, fencedFirst := range map[string]bool{"before it is replaced": false, "after it heard that it was": true} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t, nil)
			older := m.stream().member("m1")
			older.instance, older.session = "i1", time.Minute
			older.join().holding(4)
			detach := func(attach int64) {
				older.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Detach{Detach: &coordinatorv1.MemberDetach{Attach: attach}}})
			}
			detach(older.attach + 1) // of a life that it has not had
			if !fencedFirst {
				detach(older.attach)
				eventually(t, "the member to be detached", func() bool {
					d, err := m.client.DescribeGroup(m.ctx(), &coordinatorv1.DescribeGroupRequest{Group: "g"})
					return err == nil && len(d.GetMembers()) == 1 && !d.GetMembers()[0].GetAttached() && len(d.GetMembers()[0].GetOwned()) == 4
				})
			}
			newer := m.stream().member("m2")
			newer.instance = "i1"
			newer.join()
			if fencedFirst {
				if f := older.next().GetFenced(); f.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_INSTANCE_FENCED {
					t.Fatalf("the older was told %v", f)
				}
				detach(older.attach)
			}
			newer.holding(4)
			if r := newer.commit(5); r.GetError() != nil || len(r.GetPartitionErrors()) != 0 {
				t.Fatalf("the commit was answered %v", r)
			}
		})
	}
}

func TestNewerStreamEndsTheOlder(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	newer := m.stream().member("m1")
	newer.attach, newer.held = one.attach, one.held
	newer.join()
	f := one.next().GetFenced()
	if f.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_STREAM_SUPERSEDED || f.GetError().GetAction() != typev1.Action_ACTION_STOP {
		t.Fatalf("the older stream was told %v", f)
	}
	// Opening again on the same stream ends nothing that the client cares about.
	newer.join()
	if newer.attach != 3 {
		t.Fatalf("opened again with attach %d, want 3", newer.attach)
	}
	if r := newer.commit(1); r.GetError() != nil {
		t.Fatalf("the commit was answered %v", r)
	}
}

func TestLostShardTellsTheNewOwner(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	m.view.show(pictureOf(shard.Owner{ID: 2, Incarnation: 22, Addr: "other:1", Epoch: 9}, topicA))
	f := one.next().GetFenced().GetError()
	if f.GetReason() != typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR || f.GetLeader().GetAddress() != "other:1" || f.GetAction() != typev1.Action_ACTION_RETRY {
		t.Fatalf("the member was told %v", f)
	}
	if r := one.commit(5); r.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR {
		t.Fatalf("a commit after that was answered %v", r)
	}
	if r := one.open().GetFenced().GetError(); r.GetReason() != typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR {
		t.Fatalf("an open after that was answered %v", r)
	}
	_, err := m.client.DescribeGroup(m.ctx(), &coordinatorv1.DescribeGroupRequest{Group: "g"})
	wantReason(t, err, typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR)
	// It comes back under a higher epoch and the member goes on where it was.
	m.view.show(pictureOf(me(10), topicA))
	one.join()
	if one.attach != 2 {
		t.Fatalf("resumed with attach %d, want 2", one.attach)
	}
	if r := one.commit(5); r.GetError() != nil || len(r.GetPartitionErrors()) != 0 {
		t.Fatalf("the commit was answered %v", r)
	}
}

func TestUnknownAppendMakesMembersOpenAgain(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	one.commit(2)
	once := true
	m.logs[client.GroupShard("g", shards)].Fault(func(int) (bool, error) {
		if once {
			once = false
			return false, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST, "broke").WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
		}
		return true, nil
	})
	r := one.commit(8)
	if r.GetError().GetOutcome() != typev1.Outcome_OUTCOME_UNKNOWN || r.GetError().GetAction() != typev1.Action_ACTION_RETRY {
		t.Fatalf("the commit was answered %v, want unknown, to be tried again", r)
	}
	if f := one.next().GetFenced(); f.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING {
		t.Fatalf("the member was told %v", f)
	}
	one.join()
	if r := one.commit(8); r.GetError() != nil || len(r.GetPartitionErrors()) != 0 {
		t.Fatalf("the commit was answered %v", r)
	}
	for p, o := range m.committedOffsets() {
		if o != 8 {
			t.Fatalf("partition %d is at %d, want 8", p, o)
		}
	}
}

func TestStaleCommitIsRefusedByPartition(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	one.held[0].AssignmentEpoch = 99
	r := one.commit(5)
	if r.GetError() != nil || len(r.GetPartitionErrors()) != 1 || r.GetPartitionErrors()[0].GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_STALE_COMMIT {
		t.Fatalf("the commit was answered %v", r)
	}
	if got := m.committedOffsets(); len(got) != 4 || got[0] != m.starts.Last || got[1] != 5 {
		t.Fatalf("the offsets are %v, want the start of the first and the commit of the others", got)
	}
}

func TestWrongFrames(t *testing.T) {
	m := newMesh(t, nil)
	t.Run("no initial", func(t *testing.T) {
		s, err := m.client.Join(m.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&coordinatorv1.JoinRequest{Group: "g", MemberId: "m"}); err != nil {
			t.Fatal(err)
		}
		_, err = s.Recv()
		wantReason(t, err, typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL)
	})
	for name, c := range map[string]struct {
		frame *coordinatorv1.JoinRequest
		want  typev1.ErrorReason
	}{
		"second initial": {&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Initial{}}, typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL},
		"no kind":        {&coordinatorv1.JoinRequest{Group: "g", MemberId: "m"}, typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL},
		"no group":       {&coordinatorv1.JoinRequest{MemberId: "m", Message: &coordinatorv1.JoinRequest_Ping{}}, typev1.ErrorReason_ERROR_REASON_INVALID_GROUP},
		"no member":      {&coordinatorv1.JoinRequest{Group: "g", Message: &coordinatorv1.JoinRequest_Ping{}}, invalidReason},
		"short topic id": {&coordinatorv1.JoinRequest{Group: "g", MemberId: "m", Message: &coordinatorv1.JoinRequest_Ack{
			Ack: &coordinatorv1.AssignmentAck{Owned: []*coordinatorv1.OwnedPartition{{TopicId: []byte{1}}}},
		}}, invalidReason},
	} {
		t.Run(name, func(t *testing.T) {
			s := m.stream()
			s.t = t
			s.send(c.frame)
			_, err := s.s.Recv()
			wantReason(t, err, c.want)
		})
	}
	for name, open := range map[string]*coordinatorv1.MemberOpen{
		"subscribes to nothing": {},
		"bad pattern":           {TopicPattern: "("},
		"bad assignor":          {Topics: []string{"a"}, Assignor: "best"},
		"long session":          {Topics: []string{"a"}, SessionTimeout: durationpb.New(time.Hour)},
		"negative session":      {Topics: []string{"a"}, SessionTimeout: durationpb.New(-1)},
		"negative attach":       {Topics: []string{"a"}, Attach: -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := m.stream()
			s.t = t
			for {
				s.send(&coordinatorv1.JoinRequest{Group: "g", MemberId: "m", Message: &coordinatorv1.JoinRequest_Open{Open: open}})
				f := s.recv().GetFenced().GetError()
				if f.GetAction() == typev1.Action_ACTION_RETRY {
					continue
				}
				if f.GetReason() != invalidReason || f.GetAction() != typev1.Action_ACTION_FIX {
					t.Fatalf("answered %v", f)
				}
				return
			}
		})
	}
}

func TestHalfCloseGetsItsAnswers(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	release := m.logs[client.GroupShard("g", shards)].Hold()
	one.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Ping{Ping: &coordinatorv1.MemberPing{PingId: 1, Attach: one.attach}}})
	if err := one.s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	release()
	if r := one.next(); r.GetPong().GetPingId() != 1 {
		t.Fatalf("got %v, want the pong", r)
	}
	if _, err := one.s.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("the stream ended with %v", err)
	}
}

func TestDrainEndsStreams(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	m.handler.Drain()
	for {
		_, err := one.s.Recv()
		if err == nil {
			continue
		}
		wantReason(t, err, typev1.ErrorReason_ERROR_REASON_DRAINING)
		return
	}
}

func TestClientThatDoesNotReadLosesItsStream(t *testing.T) {
	c := &conn{h: New(Config{MaxQueuedFrames: 8}), notify: make(chan struct{}, 1), failed: make(chan struct{})}
	for range 9 {
		c.push(&coordinatorv1.JoinResponse{})
	}
	select {
	case <-c.failed:
		wantReason(t, c.failure, typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED)
	default:
		t.Fatalf("%d frames are queued for a client that does not read", len(c.out))
	}
	c.push(&coordinatorv1.JoinResponse{})
	if len(c.out) != 0 {
		t.Fatal("frames are queued on a stream that has failed")
	}
}

func TestMembersPerStreamAreBounded(t *testing.T) {
	m := newMesh(t, func(c *Config, _ *shard.ManagerConfig) { c.MaxMembersPerStream = 1 })
	s := m.stream()
	s.member("m1").join().holding(4)
	if f := s.member("m2").open().GetFenced().GetError(); f.GetReason() != typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED {
		t.Fatalf("the second member was answered %v", f)
	}
}
