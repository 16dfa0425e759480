package group

import (
	"fmt"
	"time"
)

// Effect is something for the caller to do. Effects are run in order.
type Effect interface{ isEffect() }

type (
	// Fence asks for a first append under (Epoch, Attempt); answer FenceResult.
	Fence struct {
		Epoch   int64
		Attempt int32
	}
	// Load asks for the records of the log up to the fence.
	Load struct{}
	// Append asks to append records, in order, with acks=all. The slice is the
	// caller's to read; it does not change.
	Append struct {
		Op  Op
		KVs []KV
	}
	// Barrier asks to append a record that means nothing, with acks=all.
	Barrier struct{ Op Op }
	// ResolveStart asks where partitions start that have no committed offset. Each is
	// answered with a Start, found or failed; Failed ones are asked for again under
	// another Job. It changes nothing outside.
	ResolveStart struct {
		Job    uint64
		Group  string
		Policy StartPolicy // never StartLeft
		Parts  []Part
		Tries  int // that failed before, of the partition with the most
	}
	// Reply answers a request: with a Result, or with an Err.
	Reply struct {
		Req    uint64
		Result Result
		Err    *Error
	}
	// Send is a message to the member's stream of that attach number, if it still
	// exists.
	Send struct {
		Group, Member string
		Attach        int64
		Message       Message
	}
	// WakeAt asks for a Tick at that time; it replaces earlier ones.
	WakeAt struct{ Mono time.Duration }
	// Abandon ends every stream of the shard's members. With Reload the shard is
	// fenced and loaded again; else it is lost.
	Abandon struct{ Reload bool }
)

func (Fence) isEffect()        {}
func (Load) isEffect()         {}
func (Append) isEffect()       {}
func (Barrier) isEffect()      {}
func (ResolveStart) isEffect() {}
func (Reply) isEffect()        {}
func (Send) isEffect()         {}
func (WakeAt) isEffect()       {}
func (Abandon) isEffect()      {}

// Result is the answer to a request.
type Result interface{ isResult() }

type (
	// Opened answers Open.
	Opened struct {
		Attach, MemberEpoch          int64
		SessionTimeout, PingInterval time.Duration
	}
	// CommitDone answers Commit and AdminCommit: everything but Refused is committed.
	CommitDone struct{ Refused []PartError }
	// Pong answers Ping.
	Pong struct{}
	// Left answers Leave.
	Left struct{}
	// Offsets answers FetchOffsets, in the order asked or by partition.
	Offsets struct{ Offsets []OffsetAt }
	// Described answers Describe.
	Described struct{ Description }
	// ResetDone answers ResetOffsets, in the order asked.
	ResetDone struct{ Rows []ResetRow }
	// Simulated answers Simulate.
	Simulated struct {
		Assignor string
		Members  []SimulatedMember
		Moves    []Move
	}
	// DeleteDone answers Delete.
	DeleteDone struct{}
)

func (Opened) isResult()     {}
func (CommitDone) isResult() {}
func (Pong) isResult()       {}
func (Left) isResult()       {}
func (Offsets) isResult()    {}
func (Described) isResult()  {}
func (ResetDone) isResult()  {}
func (Simulated) isResult()  {}
func (DeleteDone) isResult() {}

// PartError is a refused part of a commit.
type PartError struct {
	Part
	Err *Error
}

// OffsetAt is the committed offset of a partition; NextOffset -1: none.
type OffsetAt struct {
	Part
	OffsetValue
}

// Message is a frame to a member.
type Message interface{ isMessage() }

type (
	// Assignment is the whole set that the member should hold.
	Assignment struct {
		// Epoch is reached by acknowledging it; it is the group epoch.
		Epoch      int64
		Partitions []Assigned
		Cause      string
		// RevocationTimeout is 0 where nothing is revoked.
		RevocationTimeout time.Duration
	}
	// Fenced ends the membership on that stream.
	Fenced struct{ Err *Error }
)

func (Assignment) isMessage() {}
func (Fenced) isMessage()     {}

// Assigned is a partition of an Assignment.
type Assigned struct {
	Part
	Topic string
	Epoch int64
	// Start is the committed offset; -1: none, under StartLeft.
	Start            int64
	StartLeaderEpoch int32
}

// Reason is why something was refused.
type Reason uint8

// The reasons of refusals.
const (
	ReasonLoading Reason = iota + 1
	ReasonShardLost
	ReasonUnknownMember
	ReasonMemberFenced
	ReasonInstanceFenced
	ReasonStreamSuperseded
	ReasonStaleCommit
	ReasonUnknownGroup
	ReasonGroupNotEmpty
	ReasonLimitExceeded
	ReasonOffsetMetadataTooLarge
	ReasonInvalidRequest
	ReasonUnknownTopic
	ReasonUnknownPartition
	ReasonTopicDeleted
	ReasonOverloaded
	ReasonRevocationTimeout
	ReasonResetInProgress
)

// Error is a refusal, or with Unknown set an outcome that is not known.
type Error struct {
	Reason  Reason
	Message string
	// Unknown says that what was asked for may have taken place.
	Unknown bool
}

func (e *Error) Error() string { return e.Message }

func errorf(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Message: fmt.Sprintf(format, args...)}
}
