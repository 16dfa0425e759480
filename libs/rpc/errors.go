package rpc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// Error is the one form that failures take between Leat's processes and
// towards its clients. Build one with Errorf, so that code, outcome, action and
// retry delay agree with the published table of reasons.
//
// An Error is a value to its makers: the With methods return a changed copy, so
// that one Error may be shared.
type Error struct {
	// Code is the canonical gRPC code; never OK and never Unknown.
	Code codes.Code
	// Reason is the stable name of the failure.
	Reason typev1.ErrorReason
	// Outcome says whether what was asked for took place.
	Outcome typev1.Outcome
	// Action is what a client that does not know the reason should do.
	Action typev1.Action
	// Message says what happened, to what, and what to do next.
	Message string
	// Metadata names the things concerned, such as "topic" or "limit".
	Metadata map[string]string
	// RetryDelay is the earliest useful retry; 0 where a retry is pointless.
	RetryDelay time.Duration
	// Leader tells where to go instead; nil if unknown.
	Leader *typev1.LeaderHint
	// Details are further messages for the status, after those that every error
	// carries; whoever adds them keeps them within 4 KiB. They do not travel inside
	// streams.
	Details []proto.Message
	// Cause is the error beneath, for logs and for errors.Is; it does not travel.
	Cause error
}

// Errorf makes an Error of the given reason; code, outcome, action and retry
// delay come from the table of reasons. The text is fmt.Errorf's; an operand
// of %w becomes the Cause.
func Errorf(reason typev1.ErrorReason, format string, args ...any) *Error {
	info := infoOf(reason)
	formatted := fmt.Errorf(format, args...)
	e := &Error{
		Code:       info.Code,
		Reason:     info.Reason,
		Outcome:    info.Outcome,
		Action:     info.Action,
		Message:    formatted.Error(),
		RetryDelay: info.RetryDelay,
	}
	switch u := formatted.(type) {
	case interface{ Unwrap() error }:
		e.Cause = u.Unwrap()
	case interface{ Unwrap() []error }:
		e.Cause = errors.Join(u.Unwrap()...)
	}
	return e
}

// Error gives the reason's name and the message.
func (e *Error) Error() string {
	return ReasonName(e.Reason) + ": " + e.Message
}

// Unwrap gives the cause, if there is one.
func (e *Error) Unwrap() error { return e.Cause }

// clone copies e without sharing its map.
func (e *Error) clone() *Error {
	c := *e
	c.Metadata = maps.Clone(e.Metadata)
	return &c
}

// With returns a copy with the given keys and values added to the metadata. A
// last key without a value gets an empty one.
func (e *Error) With(kv ...string) *Error {
	c := e.clone()
	if c.Metadata == nil {
		c.Metadata = make(map[string]string, (len(kv)+1)/2)
	}
	for i := 0; i < len(kv); i += 2 {
		value := ""
		if i+1 < len(kv) {
			value = kv[i+1]
		}
		c.Metadata[kv[i]] = value
	}
	return c
}

// WithOutcome returns a copy that states another outcome than its reason does
// by default.
func (e *Error) WithOutcome(o typev1.Outcome) *Error {
	c := e.clone()
	c.Outcome = o
	return c
}

// WithAction returns a copy that asks for another action than its reason does
// by default.
func (e *Error) WithAction(a typev1.Action) *Error {
	c := e.clone()
	c.Action = a
	return c
}

// WithLeader returns a copy that tells where the leader (or the owning
// coordinator, or the elected controller) is.
func (e *Error) WithLeader(id int32, addr string, epoch int64) *Error {
	c := e.clone()
	c.Leader = &typev1.LeaderHint{Id: id, Address: addr, Epoch: epoch}
	return c
}

// WithDetails returns a copy with further messages for the status.
func (e *Error) WithDetails(details ...proto.Message) *Error {
	c := e.clone()
	c.Details = append(slices.Clone(c.Details), details...)
	return c
}

// WithRetry returns a copy with another retry delay; 0 or less takes it away.
func (e *Error) WithRetry(d time.Duration) *Error {
	c := e.clone()
	c.RetryDelay = max(d, 0)
	return c
}

// ReasonOf gives the reason of err as FromError sees it, and
// ERROR_REASON_UNSPECIFIED for nil.
func ReasonOf(err error) typev1.ErrorReason {
	if err == nil {
		return typev1.ErrorReason_ERROR_REASON_UNSPECIFIED
	}
	return FromError(err).Reason
}

// IsReason reports whether err has one of the reasons.
func IsReason(err error, reasons ...typev1.ErrorReason) bool {
	if err == nil {
		return false
	}
	got := ReasonOf(err)
	for _, r := range reasons {
		if got == r {
			return true
		}
	}
	return false
}

// Retryable reports whether the same request may succeed later, here or
// elsewhere: its action is to retry or to reopen. Retrying an error whose
// outcome is unknown may do the work twice.
func Retryable(err error) bool {
	if err == nil {
		return false
	}
	switch FromError(err).Action {
	case typev1.Action_ACTION_RETRY, typev1.Action_ACTION_REOPEN:
		return true
	default:
		return false
	}
}
