package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// ErrorDomain is the domain of every ErrorInfo that Leat sends.
const ErrorDomain = "leat"

// Limits that keep an error's details under 8 KiB, with 4 KiB left for further
// ones: the message travels in the status and once more in the details.
const (
	maxMessageBytes  = 1200
	maxMetadataBytes = 1000
)

// Ended reports whether ctx has ended, or its deadline has passed: gRPC goes by the clock,
// and may answer DEADLINE_EXCEEDED a moment before the context's own timer fires. What
// fails then says less than what failed before.
func Ended(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

// GRPCStatus gives the status that a unary call or the end of a stream carries:
// code and message, one ErrorInfo (reason and metadata), a RetryInfo where a
// retry makes sense, and the Error message with the rest. It makes an Error an
// answer that grpc sends as it is, also from within wrapped errors.
func (e *Error) GRPCStatus() *status.Status {
	p := ToProto(e)
	st := status.New(codes.Code(p.Code), p.Message)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: ReasonName(e.Reason), Domain: ErrorDomain, Metadata: withLeader(p.Metadata, p.Leader),
	}}
	if p.RetryDelay != nil {
		details = append(details, &errdetails.RetryInfo{RetryDelay: p.RetryDelay})
	}
	// The metadata is in the ErrorInfo already; the other copies are small.
	p.Metadata = nil
	details = append(details, protoadapt.MessageV1Of(p))
	for _, d := range e.Details {
		details = append(details, protoadapt.MessageV1Of(d))
	}
	if withDetails, err := st.WithDetails(details...); err == nil {
		return withDetails
	}
	return st
}

// Metadata keys that carry the leader hint to clients that know nothing but
// google.rpc.ErrorInfo.
const (
	keyLeaderID      = "leader_id"
	keyLeaderAddress = "leader_address"
	keyLeaderEpoch   = "leader_epoch"
)

// withLeader adds the hint to metadata.
func withLeader(m map[string]string, l *typev1.LeaderHint) map[string]string {
	if l == nil {
		return m
	}
	out := map[string]string{
		keyLeaderID: fmt.Sprint(l.Id), keyLeaderAddress: truncate(l.Address, 300), keyLeaderEpoch: fmt.Sprint(l.Epoch),
	}
	maps.Copy(out, m)
	return out
}

// splitLeader takes the hint out again; one that is known already stays.
func splitLeader(m map[string]string, l *typev1.LeaderHint) (map[string]string, *typev1.LeaderHint) {
	out := maps.Clone(m)
	address, ok := out[keyLeaderAddress]
	if !ok {
		return out, l
	}
	if l == nil {
		// Numbers that cannot be read count as unknown: an address alone helps.
		id, err := strconv.ParseInt(out[keyLeaderID], 10, 32)
		if err != nil {
			id = -1
		}
		epoch, err := strconv.ParseInt(out[keyLeaderEpoch], 10, 64)
		if err != nil {
			epoch = -1
		}
		l = &typev1.LeaderHint{Id: int32(id), Address: address, Epoch: epoch}
	}
	for _, k := range []string{keyLeaderID, keyLeaderAddress, keyLeaderEpoch} {
		delete(out, k)
	}
	if len(out) == 0 {
		out = nil
	}
	return out, l
}

// ToProto gives the form that errors take inside stream messages; nil for nil.
// Messages and metadata are cut to their limits.
func ToProto(err error) *typev1.Error {
	e := FromError(err)
	if e == nil {
		return nil
	}
	p := &typev1.Error{
		Code:     int32(validCode(e.Code)),
		Reason:   e.Reason,
		Message:  truncate(e.Message, maxMessageBytes),
		Outcome:  e.Outcome,
		Action:   e.Action,
		Metadata: truncateMetadata(e.Metadata),
		Leader:   e.Leader,
	}
	if e.RetryDelay > 0 {
		p.RetryDelay = durationpb.New(e.RetryDelay)
	}
	return p
}

// FromProto gives the Go form of an error from a stream message; nil for nil.
// Reasons of newer releases pass as their numbers, with the outcome and action
// that came along.
func FromProto(p *typev1.Error) *Error {
	if p == nil {
		return nil
	}
	return &Error{
		Code:       validCode(codes.Code(p.Code)),
		Reason:     p.Reason,
		Outcome:    p.Outcome,
		Action:     p.Action,
		Message:    p.Message,
		Metadata:   maps.Clone(p.Metadata),
		RetryDelay: retryDelay(p.RetryDelay),
		Leader:     p.Leader,
	}
}

// FromError sees any error as an Error: itself where it is or wraps one; a gRPC
// status with Leat's details as what was sent; a status without them by its
// code; a context's end as CANCELLED or DEADLINE_EXCEEDED; anything else as
// INTERNAL_BUG with the error as its cause. nil gives nil.
func FromError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		if e == nil {
			return Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "nil *rpc.Error returned as an error")
		}
		return e
	}
	var holder interface{ GRPCStatus() *status.Status }
	if errors.As(err, &holder) {
		if st := holder.GRPCStatus(); st != nil && st.Code() != codes.OK {
			return fromStatus(st, err)
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return withCause(Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "%s", err.Error()), err)
	case errors.Is(err, context.Canceled):
		return withCause(Errorf(typev1.ErrorReason_ERROR_REASON_CANCELLED, "%s", err.Error()), err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		// A stream that ended in the middle of something.
		return withCause(Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the other side ended the connection: %s", err.Error()), err)
	}
	return withCause(Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "%s", err.Error()), err)
}

// fromStatus reads a status, with our details or without.
func fromStatus(st *status.Status, cause error) *Error {
	var (
		info  *errdetails.ErrorInfo
		retry *errdetails.RetryInfo
		own   *typev1.Error
		other []proto.Message
	)
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.Domain == ErrorDomain {
				info = d
			}
		case *errdetails.RetryInfo:
			retry = d
		case *typev1.Error:
			own = d
		case proto.Message:
			other = append(other, d)
		}
	}
	var e *Error
	switch {
	case own != nil:
		e = FromProto(own)
	case info != nil:
		known, _ := ExplainReason(info.Reason)
		e = Errorf(known.Reason, "%s", st.Message())
	default:
		e = fromBareStatus(st)
		if retry != nil {
			e.RetryDelay = retryDelay(retry.RetryDelay)
		}
		e.Code, e.Cause = validCode(st.Code()), cause
		return e
	}
	e.Code, e.Message, e.Details, e.Cause = validCode(st.Code()), st.Message(), other, cause
	if info != nil {
		e.Metadata, e.Leader = splitLeader(info.Metadata, e.Leader)
	}
	if retry != nil {
		e.RetryDelay = retryDelay(retry.RetryDelay)
	}
	return e
}

// bareReasons tells what a status means that carries none of our details: it
// comes from grpc itself or from something between the two ends.
var bareReasons = map[codes.Code]typev1.ErrorReason{
	codes.Canceled:           typev1.ErrorReason_ERROR_REASON_CANCELLED,
	codes.InvalidArgument:    typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
	codes.DeadlineExceeded:   typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED,
	codes.PermissionDenied:   typev1.ErrorReason_ERROR_REASON_NOT_AUTHORIZED,
	codes.ResourceExhausted:  typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
	codes.NotFound:           typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
	codes.AlreadyExists:      typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
	codes.FailedPrecondition: typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
	codes.OutOfRange:         typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
	codes.Unimplemented:      typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE,
	codes.Unavailable:        typev1.ErrorReason_ERROR_REASON_UNREACHABLE,
	codes.Unauthenticated:    typev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED,
}

// fromBareStatus reads a status without our details.
func fromBareStatus(st *status.Status) *Error {
	reason, ok := bareReasons[st.Code()]
	if !ok {
		reason = typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG
	}
	message := st.Message()
	switch st.Code() {
	case codes.ResourceExhausted:
		if strings.Contains(message, "larger than max") {
			return tooLarge(message)
		}
	case codes.Unavailable:
		e := Errorf(reason, "%s", message)
		if neverSent(message) {
			e.Outcome = typev1.Outcome_OUTCOME_NOT_DONE
		}
		return e
	case codes.Unimplemented:
		return Errorf(reason, "%s: the other side does not know this method; check the address, and whether both sides are of compatible releases", message)
	}
	return Errorf(reason, "%s", message)
}

// tooLarge reads grpc's complaints about a message above the limit, such as
// "grpc: received message larger than max (17 vs. 16)".
func tooLarge(message string) *Error {
	e := Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
		"a message is larger than the limit grpc.max.message.bytes (%s): send less at once, or raise the limit on both sides", message).
		With("limit", "grpc.max.message.bytes")
	var size, limit int64
	if open := strings.LastIndexByte(message, '('); open >= 0 {
		if n, err := fmt.Sscanf(message[open:], "(%d vs. %d)", &size, &limit); err == nil && n == 2 {
			e = e.With("limit_bytes", fmt.Sprint(limit), "bytes", fmt.Sprint(size))
		}
	}
	return e
}

// neverSent reports whether grpc says that there was no connection to send on.
func neverSent(message string) bool {
	return strings.Contains(message, "Error while dialing") ||
		strings.Contains(message, "connection refused") ||
		strings.Contains(message, "no children to pick from") ||
		strings.Contains(message, "produced zero addresses")
}

// validCode replaces the codes that an error must not have.
func validCode(c codes.Code) codes.Code {
	if c == codes.OK || c == codes.Unknown || c > codes.Unauthenticated {
		return codes.Internal
	}
	return c
}

// withCause sets the cause of an error just made.
func withCause(e *Error, cause error) *Error {
	e.Cause = cause
	return e
}

// retryDelay reads a delay from the wire; 0 if absent or nonsense.
func retryDelay(d *durationpb.Duration) time.Duration {
	if d == nil || d.CheckValid() != nil {
		return 0
	}
	return max(d.AsDuration(), 0)
}

// truncate cuts s to at most n bytes of valid UTF-8, saying that it did.
func truncate(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	const mark = "… (cut)"
	s = s[:n-len(mark)]
	for len(s) > 0 {
		r, size := utf8.DecodeLastRuneInString(s)
		if r != utf8.RuneError || size > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s + mark
}

// truncateMetadata keeps what fits, in the order of the keys, and makes it
// valid UTF-8.
func truncateMetadata(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	room := maxMetadataBytes
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if room < 64 {
			break
		}
		key, value := truncate(k, 100), truncate(m[k], 400)
		if len(key)+len(value) > room {
			continue
		}
		room -= len(key) + len(value)
		out[key] = value
	}
	return out
}
