package handler

import (
	"unicode/utf8"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
)

// reasonOf names the core's reasons as they travel.
func reasonOf(r group.Reason) typev1.ErrorReason {
	switch r {
	case group.ReasonLoading:
		return typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING
	case group.ReasonShardLost:
		return typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR
	case group.ReasonUnknownMember:
		return typev1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER
	case group.ReasonMemberFenced:
		return typev1.ErrorReason_ERROR_REASON_MEMBER_FENCED
	case group.ReasonInstanceFenced:
		return typev1.ErrorReason_ERROR_REASON_INSTANCE_FENCED
	case group.ReasonStreamSuperseded:
		return typev1.ErrorReason_ERROR_REASON_STREAM_SUPERSEDED
	case group.ReasonStaleCommit:
		return typev1.ErrorReason_ERROR_REASON_STALE_COMMIT
	case group.ReasonUnknownGroup:
		return typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP
	case group.ReasonGroupNotEmpty:
		return typev1.ErrorReason_ERROR_REASON_GROUP_NOT_EMPTY
	case group.ReasonLimitExceeded:
		return typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED
	case group.ReasonOffsetMetadataTooLarge:
		return typev1.ErrorReason_ERROR_REASON_OFFSET_METADATA_TOO_LARGE
	case group.ReasonInvalidRequest:
		return typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST
	case group.ReasonUnknownTopic:
		return typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC
	case group.ReasonUnknownPartition:
		return typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION
	case group.ReasonTopicDeleted:
		return typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED
	case group.ReasonRevocationTimeout:
		return typev1.ErrorReason_ERROR_REASON_REVOCATION_TIMEOUT
	case group.ReasonResetInProgress:
		return typev1.ErrorReason_ERROR_REASON_RESET_IN_PROGRESS
	case group.ReasonOverloaded:
		return typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE
	}
	return typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG
}

// fromCore translates a refusal. The core says of everything whether it may have
// taken place.
func (h *Handler) fromCore(groupName string, e *group.Error) *rpc.Error {
	out := rpc.Errorf(reasonOf(e.Reason), "%s", e.Message)
	if e.Reason == group.ReasonShardLost {
		if elsewhere := h.manager.Elsewhere(groupName); elsewhere != nil {
			out = elsewhere
		}
	}
	if e.Unknown {
		return out.WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
	}
	return out.WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
}

// The limits of names, in bytes.
const (
	maxName         = 255
	maxTopicName    = 249
	maxTopics       = 10_000
	maxPattern      = 1024
	maxSubscription = 256 << 10
	maxPartitions   = 20_000
)

// checkName refuses names that cannot be kept or shown.
func checkName(reason typev1.ErrorReason, what, name string) *rpc.Error {
	switch {
	case name == "":
		return rpc.Errorf(reason, "the %s is empty; name one", what)
	case len(name) > maxName:
		return rpc.Errorf(reason, "the %s has %d bytes; use at most %d", what, len(name), maxName)
	case !utf8.ValidString(name):
		return rpc.Errorf(reason, "the %s is not UTF-8", what)
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f {
			return rpc.Errorf(reason, "the %s %q contains a control character", what, name)
		}
	}
	return nil
}

func checkGroup(name string) *rpc.Error {
	return checkName(typev1.ErrorReason_ERROR_REASON_INVALID_GROUP, "group name", name)
}

const invalidReason = typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST

func invalid(format string, args ...any) *rpc.Error {
	return rpc.Errorf(invalidReason, format, args...)
}

func limit(name string, format string, args ...any) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, format, args...).With("limit", name)
}
