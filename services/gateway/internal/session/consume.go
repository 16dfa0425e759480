package session

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// ConsumeLimits bounds one consume stream.
type ConsumeLimits struct {
	OpenTimeout     time.Duration // silence before open
	DrainTimeout    time.Duration // from drain to the end of a stream that does not close
	MaxPartitions   int           // held by one stream
	MaxCommits      int           // unanswered, beyond which nothing is read
	MaxUnread       int           // messages other than records that wait for the client, likewise
	ChunkBytes      int           // of records in one message, but for a larger record
	MaxMessageBytes int           // the largest message that a client may ask for
}

// ConsumeState is the state of a consume stream; see docs/streams.md.
type ConsumeState int

// The states of a consume stream.
const (
	ConsumeNew      ConsumeState = iota // waits for open
	ConsumeJoining                      // open has come, the stream does not stand yet
	ConsumeActive                       // hands records out
	ConsumeDraining                     // the gateway stops: no records
	ConsumeLeaving                      // settles commits and leaves
	ConsumeEnded                        // over
)

// String names the state as the documentation does.
func (s ConsumeState) String() string {
	return [...]string{"NEW", "JOINING", "ACTIVE", "DRAINING", "LEAVING", "ENDED"}[s]
}

// ConsumeEffect is something that a caller has to do for a Consume.
type ConsumeEffect interface{ consumeEffect() }

// ConsumeLookup asks for the topics by name; LookedUp answers it.
type ConsumeLookup struct{ Topics []string }

// ConsumeJoin asks to join the group of the settings; Attached, Assigned, Waiting
// and Fenced tell how it goes.
type ConsumeJoin struct{ Settings ConsumeSettings }

// ConsumeResolve asks for an offset; Resolved answers it with the same tag.
type ConsumeResolve struct {
	Partition client.TopicPartition
	Topic     string
	Tag       int64
	Spec      *typev1.OffsetSpec
	// EndToo asks for the visible end before it.
	EndToo bool
}

// ConsumeFetch asks to read a partition from a place on, instead of what is read
// of it now; Fetched brings what is read, with the same tag.
type ConsumeFetch struct{ Start client.FetchStart }

// ConsumeStop asks to read a partition no more.
type ConsumeStop struct{ Partition client.TopicPartition }

// ConsumeAck tells the coordinator what is held.
type ConsumeAck struct {
	MemberEpoch int64
	Owned       []client.OwnedPartition
}

// ConsumeRevoking tells the coordinator that a revocation is being heeded.
type ConsumeRevoking struct{ Partitions []client.OwnedPartition }

// ConsumeCommit asks to commit; Committed answers it with the same number. Commits
// are to be made one after the other, in order.
type ConsumeCommit struct {
	Op      int64
	Offsets []client.CommitOffset
}

// ConsumeLeave asks to leave the group; Left answers it.
type ConsumeLeave struct{}

func (ConsumeLookup) consumeEffect()   {}
func (ConsumeJoin) consumeEffect()     {}
func (ConsumeResolve) consumeEffect()  {}
func (ConsumeFetch) consumeEffect()    {}
func (ConsumeStop) consumeEffect()     {}
func (ConsumeAck) consumeEffect()      {}
func (ConsumeRevoking) consumeEffect() {}
func (ConsumeCommit) consumeEffect()   {}
func (ConsumeLeave) consumeEffect()    {}

// Consume is the state machine of one consume stream.
type Consume struct {
	limits   ConsumeLimits
	identity Identity
	settings ConsumeSettings

	state      ConsumeState
	endErr     error
	startAt    time.Time
	openedAt   time.Time
	drainAt    time.Time
	halfClosed bool // the client can send nothing more
	leaveAsked bool // the ConsumeLeave effect is out
	attach     int64
	memberID   string

	parts    map[client.TopicPartition]*part
	byName   map[name]*part
	wanted   *client.Assignment // not acknowledged yet
	assigned bool               // something was assigned, be it nothing
	counts   map[string]int32   // partitions of whole topics read without a group
	lastTag  int64

	creditMode   bool
	credit       int64
	deliverUntil time.Time // zero: no limit
	batch        *batch    // what is being handed out
	progress     []*part   // whose progress is due, each once

	starts     []*part // whose start is to be committed
	commits    map[int64]*commit
	lastOp     int64
	lastSeq    int64
	autoAt     time.Time // of the next auto-commit; zero: none
	lastStatus typev1.ErrorReason

	effects []ConsumeEffect
	out     []*gatewayv1.ConsumeResponse // all but records and progress
}

// name is how clients name a partition.
type name struct {
	topic     string
	partition int32
}

// NewConsume returns a stream in state NEW.
func NewConsume(now time.Time, limits ConsumeLimits, id Identity) *Consume {
	return &Consume{
		limits: limits, identity: id, startAt: now,
		parts: map[client.TopicPartition]*part{}, byName: map[name]*part{},
		commits: map[int64]*commit{}, counts: map[string]int32{},
	}
}

// State is where the stream stands.
func (c *Consume) State() ConsumeState { return c.state }

// Settings is what the client's open asked for.
func (c *Consume) Settings() ConsumeSettings { return c.settings }

// Ended reports whether the stream is over and everything was taken to be sent,
// and with which error.
func (c *Consume) Ended() (bool, error) {
	return c.state == ConsumeEnded && len(c.out) == 0, c.endErr
}

// TakeEffects returns what there is to do, in order, and forgets it.
func (c *Consume) TakeEffects() []ConsumeEffect {
	c.commitStarts()
	e := c.effects
	c.effects = nil
	return e
}

func (c *Consume) do(e ConsumeEffect) { c.effects = append(c.effects, e) }

// WantsRead reports whether another client message may be read. A client that
// reads no answers, or commits faster than its group's coordinator, waits.
func (c *Consume) WantsRead() bool {
	switch c.state {
	case ConsumeEnded, ConsumeLeaving:
		return false
	case ConsumeNew, ConsumeJoining, ConsumeActive, ConsumeDraining:
	}
	return !c.halfClosed && len(c.out) < c.limits.MaxUnread && len(c.commits) < c.limits.MaxCommits
}

// WakeAt is when Tick is next needed; zero: not at all.
func (c *Consume) WakeAt() time.Time {
	var wake time.Time
	earliest := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	switch c.state {
	case ConsumeNew:
		return c.startAt.Add(c.limits.OpenTimeout)
	case ConsumeEnded:
		return wake
	case ConsumeJoining, ConsumeActive, ConsumeDraining, ConsumeLeaving:
	}
	earliest(c.drainAt)
	if c.state != ConsumeLeaving {
		earliest(c.autoAt)
		if c.batch != nil {
			earliest(c.batch.retryAt)
		}
		for _, p := range c.parts {
			earliest(p.revokeBy)
		}
	}
	return wake
}

// Tick lets time pass: an open that did not come, auto-commits, revocations that
// were not heeded, the end of a drain.
func (c *Consume) Tick(now time.Time) {
	switch c.state {
	case ConsumeNew:
		if !now.Before(c.startAt.Add(c.limits.OpenTimeout)) {
			c.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
				"no open message came within %s; send open first, right after the stream begins", c.limits.OpenTimeout))
		}
		return
	case ConsumeEnded:
		return
	case ConsumeJoining, ConsumeActive, ConsumeDraining, ConsumeLeaving:
	}
	if !c.drainAt.IsZero() && !now.Before(c.drainAt) {
		c.end(errDraining())
		return
	}
	if c.state == ConsumeLeaving {
		return
	}
	c.retryGate(now)
	if !c.autoAt.IsZero() && !now.Before(c.autoAt) {
		c.autoAt = now.Add(c.settings.AutoCommitInterval)
		c.autoCommit(nil)
	}
	for _, p := range c.parts {
		if !p.revokeBy.IsZero() && !now.Before(p.revokeBy) {
			c.Fenced(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_MEMBER_FENCED,
				"partition %d of topic %q was not given up within the rebalance timeout; drop everything and open a new stream, and answer revoke sooner",
				p.id.Partition, p.topic).With("topic", p.topic))
			return
		}
	}
}

func (c *Consume) send(m *gatewayv1.ConsumeResponse) { c.out = append(c.out, m) }

func (c *Consume) pong(id int64) {
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Pong{Pong: &gatewayv1.ConsumePong{PingId: id}}})
}

func (c *Consume) end(err error) {
	if c.state == ConsumeEnded {
		return
	}
	c.dropBatch(nil)
	c.progress, c.starts = nil, nil
	for _, p := range c.parts {
		c.stop(p) // the client may take a while to read that it is over
	}
	c.state, c.endErr = ConsumeEnded, err
}

// Fail ends the stream with an error.
func (c *Consume) Fail(err error) { c.end(err) }

// Fenced ends the membership, and with it the stream.
func (c *Consume) Fenced(err error) {
	if c.state == ConsumeEnded {
		return
	}
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Fenced{Fenced: &gatewayv1.ConsumeFenced{Error: rpc.ToProto(err)}}})
	c.end(err)
}

// Waiting tells the client what the stream waits for, once for each reason in turn.
func (c *Consume) Waiting(err error) {
	reason := rpc.ReasonOf(err)
	if c.state == ConsumeEnded || c.state == ConsumeNew || reason == c.lastStatus || len(c.out) >= c.limits.MaxUnread {
		return
	}
	c.lastStatus = reason
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Status{Status: &gatewayv1.ConsumeStatus{WaitingFor: rpc.ToProto(err)}}})
}

// HalfClose says that the client will send nothing more. That is a leave, but for
// two streams: one that stops at the end goes on to it, and one that drains is
// being reopened elsewhere.
func (c *Consume) HalfClose(now time.Time) {
	if c.halfClosed {
		return
	}
	c.halfClosed = true
	switch c.state {
	case ConsumeNew:
		c.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
			"the consume stream ended before its open message; send open first"))
	case ConsumeJoining, ConsumeActive:
		if !c.settings.StopAtEnd {
			c.leave(now)
			return
		}
		for _, p := range c.parts {
			if p.revokeFrom {
				p.revokeDone = true
			}
		}
		c.reconcile(now)
	case ConsumeDraining:
		c.end(nil)
	case ConsumeLeaving, ConsumeEnded:
	}
}

// Drain says that the gateway is stopping: no more records; commits are answered
// until the client goes, or for a while.
func (c *Consume) Drain(now time.Time) {
	switch c.state {
	case ConsumeNew, ConsumeJoining:
		c.end(errDraining())
	case ConsumeActive:
		c.state = ConsumeDraining
		c.drainAt = now.Add(c.limits.DrainTimeout)
		c.dropBatch(nil)
		for _, p := range c.sortedParts() {
			c.stop(p)
			c.giveBack(p)
		}
		c.autoCommit(nil)
		c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Drain{Drain: &gatewayv1.ConsumeDrain{
			ResumeToken: resumeToken(c.memberID, c.attach), Within: durationpb.New(c.limits.DrainTimeout),
		}}})
		if c.halfClosed {
			c.end(errDraining())
		}
	case ConsumeLeaving:
		c.drainAt = now.Add(c.limits.DrainTimeout)
	case ConsumeDraining, ConsumeEnded:
	}
}

// leave stops handing out, commits what auto-commit still owes, and goes once
// every commit has its answer.
func (c *Consume) leave(time.Time) {
	c.state = ConsumeLeaving
	c.dropBatch(nil)
	for _, p := range c.sortedParts() {
		c.stop(p)
		c.giveBack(p)
	}
	c.commitStarts()
	c.autoCommit(nil)
	c.settle()
}

// settle goes on with a leave.
func (c *Consume) settle() {
	if c.state != ConsumeLeaving || len(c.commits) > 0 {
		return
	}
	if c.settings.Group == "" {
		c.closed()
		return
	}
	if !c.leaveAsked {
		c.leaveAsked = true
		c.do(ConsumeLeave{})
	}
}

// Left says that the group has been left, or that it could not be told so; then
// the session timeout does it.
func (c *Consume) Left() {
	if c.state == ConsumeLeaving {
		c.closed()
	}
}

func (c *Consume) closed() {
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Closed{Closed: &gatewayv1.ConsumeClosed{}}})
	c.end(nil)
}
