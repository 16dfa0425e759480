package groups

import (
	"math"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// TargetKind is how a reset says where to go.
type TargetKind int

// The kinds of targets.
const (
	// ToPlace goes to the offset that ResetPart.Found tells: of a place in the log, or
	// of a timestamp; without one, to the visible end.
	ToPlace TargetKind = iota + 1
	// ToOffset goes to Target.Offset in each partition.
	ToOffset
	// ShiftBy goes Target.Offset records on from what is committed, or back.
	ShiftBy
	// ToFound goes to the offset that ResetPart.Found tells, as it is.
	ToFound
)

// Target is where a reset goes.
type Target struct {
	Kind   TargetKind
	Offset int64
}

// ResetPart is what is known of a partition that is to be reset.
type ResetPart struct {
	ID         client.TopicPartition
	Topic      string
	Committed  int64 // next offset; -1: none
	Start, End int64 // of the log
	Found      int64 // see the kinds; -1: no record is that young
	Member     string
	// Err says why the log's bounds are not known; nil: they are.
	Err error
}

// ResetPlan is where one partition goes.
type ResetPlan struct {
	ResetPart
	New     int64 // -1 with an error
	Clamped bool  // what was asked for lies outside the log
}

// Plan says where each partition goes, in the order given. A partition whose log
// bounds are not known goes nowhere: a guess might skip records, or point at none.
func Plan(t Target, parts []ResetPart) []ResetPlan {
	out := make([]ResetPlan, len(parts))
	for i, p := range parts {
		out[i] = ResetPlan{ResetPart: p, New: -1}
		if p.Err != nil {
			continue
		}
		wanted := int64(0)
		switch t.Kind {
		case ToPlace:
			if wanted = p.Found; wanted < 0 {
				wanted = p.End
			}
		case ToFound:
			wanted = p.Found
		case ToOffset:
			wanted = t.Offset
		case ShiftBy:
			if p.Committed < 0 {
				out[i].Err = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
					"nothing is committed in partition %d of topic %q, so there is nothing to shift from; name a place, a time or an offset for it", p.ID.Partition, p.Topic).
					With("topic", p.Topic)
				continue
			}
			wanted = add(p.Committed, t.Offset)
		}
		out[i].New = min(max(wanted, p.Start), p.End)
		out[i].Clamped = out[i].New != wanted
	}
	return out
}

// add is a sum that stays within the numbers there are; a is not negative.
func add(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
