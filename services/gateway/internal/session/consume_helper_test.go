package session

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// harness drives a Consume and tells what came out as short lines: messages begin
// with <, effects with *.
type harness struct {
	t   *testing.T
	c   *Consume
	now time.Time
}

func consumeLimits() ConsumeLimits {
	return ConsumeLimits{
		OpenTimeout: 10 * time.Second, DrainTimeout: 5 * time.Second, MaxPartitions: 100, MaxCommits: 2, MaxUnread: 50,
		ChunkBytes: 100, MaxMessageBytes: 16 << 20,
	}
}

func newHarness(t *testing.T) *harness {
	return &harness{t: t, c: NewConsume(epoch0, consumeLimits(), Identity{Process: &typev1.Process{Id: 7}}), now: epoch0}
}

var topicA = topicid.ID{0xa}

func partA(n int32) client.TopicPartition {
	return client.TopicPartition{TopicID: topicA, Partition: n}
}

// group opens a group stream and lets it be attached.
func (h *harness) group(o *gatewayv1.ConsumeOpen) *harness {
	o.Group = "g"
	if len(o.Topics) == 0 && o.TopicPattern == "" {
		o.Topics = []string{"a"}
	}
	h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: o}})
	if o.Attach == 0 {
		h.c.LookedUp(h.now, []Topic{{Name: "a", ID: topicA, Partitions: 4}}, nil)
	}
	h.c.Attached(h.now, "m1", 1)
	return h
}

// manual opens a stream without a group over a topic of n partitions.
func (h *harness) manual(n int32, o *gatewayv1.ConsumeOpen) *harness {
	if len(o.Partitions) == 0 {
		o.Topics = []string{"a"}
	}
	h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: o}})
	h.c.LookedUp(h.now, []Topic{{Name: "a", ID: topicA, Partitions: n}}, nil)
	return h
}

func (h *harness) recv(m *gatewayv1.ConsumeRequest) *harness {
	h.c.Receive(h.now, m)
	return h
}

// assign gives the member partitions of topic a: "0@5" is partition 0 from
// committed offset 5, "1" one without a committed offset.
func (h *harness) assign(epoch int64, parts ...string) *harness {
	a := client.Assignment{MemberEpoch: epoch, GroupEpoch: epoch, Cause: "why", RevocationTimeout: time.Minute}
	for _, s := range parts {
		n, offset := int32(0), int64(-1)
		if _, err := fmt.Sscanf(s, "%d@%d", &n, &offset); err != nil {
			fmt.Sscanf(s, "%d", &n)
		}
		a.Partitions = append(a.Partitions, client.AssignedPartition{
			OwnedPartition: client.OwnedPartition{TopicPartition: partA(n), AssignmentEpoch: 1}, Topic: "a", StartOffset: offset, StartLeaderEpoch: -1,
		})
	}
	h.c.Assigned(h.now, a)
	return h
}

// tag is the newest asking of a partition.
func (h *harness) tag(n int32) int64 {
	p := h.c.parts[partA(n)]
	if p == nil {
		return -1
	}
	return p.tag
}

// fetched brings a batch of records with the offsets; next is the offset after it.
func (h *harness) fetched(n int32, next int64, offsets ...int64) *harness {
	return h.fetchedTag(n, h.tag(n), next, offsets...)
}

func (h *harness) fetchedTag(n int32, tag, next int64, offsets ...int64) *harness {
	e := &client.FetchEvent{TopicPartition: partA(n), Topic: "a", Tag: tag, Kind: client.FetchRecords, NextOffset: next, LeaderEpoch: 4, HighWatermark: 100}
	for _, o := range offsets {
		e.Records = append(e.Records, record.Record{Offset: o, Value: []byte("0123456789")})
	}
	if len(offsets) == 0 {
		e.Kind = client.FetchProgress
	}
	h.c.Fetched(h.now, e)
	return h
}

// take returns everything that came out: effects first, then messages.
func (h *harness) take() []string {
	var out []string
	effects := func() {
		for _, e := range h.c.TakeEffects() {
			out = append(out, "* "+showEffect(e))
		}
	}
	effects()
	for o, ok := h.c.Next(h.now); ok; o, ok = h.c.Next(h.now) {
		out = append(out, "< "+showConsume(o.Message))
		effects()
	}
	effects()
	return out
}

// expect compares what came out.
func (h *harness) expect(want ...string) *harness {
	h.t.Helper()
	got := h.take()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		h.t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	return h
}

// forget drops what came out.
func (h *harness) forget() *harness {
	h.take()
	return h
}

func (h *harness) ends(reason string) {
	h.t.Helper()
	ended, err := h.c.Ended()
	if !ended || reasonOfEnd(h.t, err) != reason {
		h.t.Errorf("ended %v with %v, want %s", ended, err, reason)
	}
}

func showEffect(e ConsumeEffect) string {
	switch e := e.(type) {
	case ConsumeLookup:
		return "lookup " + strings.Join(e.Topics, ",")
	case ConsumeJoin:
		return "join " + e.Settings.Group
	case ConsumeResolve:
		s := fmt.Sprintf("resolve %d", e.Partition.Partition)
		if e.Spec != nil {
			s += " " + strings.Join(strings.Fields(e.Spec.String()), " ")
		}
		if e.EndToo {
			s += " end"
		}
		return s
	case ConsumeFetch:
		return fmt.Sprintf("fetch %d@%d epoch %d", e.Start.Partition, e.Start.Offset, e.Start.LastEpoch)
	case ConsumeStop:
		return fmt.Sprintf("stop %d", e.Partition.Partition)
	case ConsumeAck:
		return fmt.Sprintf("ack %d %s", e.MemberEpoch, showOwned(e.Owned))
	case ConsumeRevoking:
		return "revoking " + showOwned(e.Partitions)
	case ConsumeCommit:
		s := fmt.Sprintf("commit #%d", e.Op)
		for _, o := range e.Offsets {
			s += fmt.Sprintf(" %d@%d", o.Partition, o.NextOffset)
		}
		return s
	case ConsumeLeave:
		return "leave"
	}
	return "?"
}

func showOwned(owned []client.OwnedPartition) string {
	var parts []string
	for _, o := range owned {
		parts = append(parts, fmt.Sprint(o.Partition))
	}
	return "[" + strings.Join(parts, " ") + "]"
}

func showError(e *typev1.Error) string {
	return rpc.ReasonName(e.GetReason()) + "/" + strings.TrimPrefix(e.GetAction().String(), "ACTION_")
}

func showConsume(m *gatewayv1.ConsumeResponse) string {
	switch v := m.Message.(type) {
	case *gatewayv1.ConsumeResponse_Opened:
		return fmt.Sprintf("opened %q %d", v.Opened.MemberId, v.Opened.Attach)
	case *gatewayv1.ConsumeResponse_Status:
		return "status " + rpc.ReasonName(v.Status.WaitingFor.GetReason())
	case *gatewayv1.ConsumeResponse_Assigned:
		return fmt.Sprintf("assigned %d@%d", v.Assigned.Partition, v.Assigned.StartOffset)
	case *gatewayv1.ConsumeResponse_Records:
		s := fmt.Sprintf("records %d", v.Records.Partition)
		for _, r := range v.Records.Records {
			s += fmt.Sprintf(" %d", r.Offset)
		}
		s += fmt.Sprintf(" next %d", v.Records.NextOffset)
		if v.Records.SeekId > 0 {
			s += fmt.Sprintf(" seek %d", v.Records.SeekId)
		}
		return s
	case *gatewayv1.ConsumeResponse_Progress:
		return fmt.Sprintf("progress %d next %d", v.Progress.Partition, v.Progress.NextOffset)
	case *gatewayv1.ConsumeResponse_CommitResult:
		s := fmt.Sprintf("committed %d", v.CommitResult.Sequence)
		for _, p := range v.CommitResult.Committed {
			s += fmt.Sprintf(" %d@%d", p.Partition, p.NextOffset)
		}
		if v.CommitResult.Error != nil {
			s += " !" + showError(v.CommitResult.Error)
		}
		for _, r := range v.CommitResult.Refused {
			s += fmt.Sprintf(" %d!%s", r.Partition, showError(r.Error))
		}
		return s
	case *gatewayv1.ConsumeResponse_Pong:
		return fmt.Sprintf("pong %d", v.Pong.PingId)
	case *gatewayv1.ConsumeResponse_PartitionError:
		return fmt.Sprintf("error %d %s", v.PartitionError.Partition, showError(v.PartitionError.Error))
	case *gatewayv1.ConsumeResponse_Revoke:
		return fmt.Sprintf("revoke %d within %s", v.Revoke.Partition, v.Revoke.Within.AsDuration())
	case *gatewayv1.ConsumeResponse_Drain:
		return "drain"
	case *gatewayv1.ConsumeResponse_Fenced:
		return "fenced " + showError(v.Fenced.Error)
	case *gatewayv1.ConsumeResponse_Closed:
		return "closed"
	}
	return "?"
}

// Messages of a client about topic a.

func names(parts ...int32) []*gatewayv1.PartitionName {
	var out []*gatewayv1.PartitionName
	for _, n := range parts {
		out = append(out, &gatewayv1.PartitionName{Topic: "a", Partition: n})
	}
	return out
}

func position(n int32, next int64) *gatewayv1.ConsumePosition {
	return &gatewayv1.ConsumePosition{Topic: "a", Partition: n, NextOffset: next}
}

func msgOpen() *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: &gatewayv1.ConsumeOpen{Topics: []string{"a"}}}}
}

func msgCredit(n int64) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Credit{Credit: &gatewayv1.ConsumeCredit{Bytes: n}}}
}

func msgRelease(p ...*gatewayv1.ConsumePosition) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Release{Release: &gatewayv1.ConsumeRelease{Positions: p}}}
}

func msgCommit(seq int64, p ...*gatewayv1.ConsumePosition) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Commit{Commit: &gatewayv1.ConsumeCommit{Sequence: seq, Positions: p}}}
}

func msgSeek(id int64, n int32, offset int64) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Seek{Seek: &gatewayv1.ConsumeSeek{
		SeekId: id, Topic: "a", Partition: n, To: &gatewayv1.ConsumeSeek_Offset{Offset: offset},
	}}}
}

func msgPause(parts ...int32) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Pause{Pause: &gatewayv1.ConsumePause{Partitions: names(parts...)}}}
}

func msgResume(parts ...int32) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Resume{Resume: &gatewayv1.ConsumeResume{Partitions: names(parts...)}}}
}

func msgRevoking(parts ...int32) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Revoking{Revoking: &gatewayv1.ConsumeRevoking{Partitions: names(parts...)}}}
}

func msgRevoked(parts ...int32) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Revoked{Revoked: &gatewayv1.ConsumeRevoked{Partitions: names(parts...)}}}
}

func msgPing(id int64) *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Ping{Ping: &gatewayv1.ConsumePing{PingId: id}}}
}

func msgLeave() *gatewayv1.ConsumeRequest {
	return &gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Leave{Leave: &gatewayv1.ConsumeLeave{}}}
}

func seconds(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
