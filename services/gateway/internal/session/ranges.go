package session

import (
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// maxFullErrors is how many errors of one result carry their sentence. The others
// keep reason, outcome and action, so that ten thousand failures fit a message.
const maxFullErrors = 32

// recordOutcome is what became of one record, in the form that results carry.
type recordOutcome struct {
	done      bool
	partition int32
	offset    int64
	epoch     int32
	dup       bool
	err       *typev1.Error
}

func newOutcome(r RecordResult) recordOutcome {
	o := recordOutcome{done: true, partition: max(r.Partition, -1), offset: -1, epoch: -1}
	if r.Err != nil {
		o.err = rpc.ToProto(r.Err)
		if o.err.GetOutcome() == typev1.Outcome_OUTCOME_UNSPECIFIED {
			o.err.Outcome = typev1.Outcome_OUTCOME_UNKNOWN
		}
		return o
	}
	o.offset, o.epoch, o.dup = r.Offset, r.LeaderEpoch, r.MaybeDuplicated
	return o
}

// follows reports whether o is the record right after the n records that begin
// with first, with the same fate.
func (o *recordOutcome) follows(first *recordOutcome, n int) bool {
	if o.partition != first.partition || o.dup != first.dup || o.epoch != first.epoch {
		return false
	}
	if o.err != nil || first.err != nil {
		return sameError(o.err, first.err)
	}
	if first.offset < 0 {
		return o.offset < 0
	}
	return o.offset == first.offset+int64(n)
}

// sameError reports whether two records failed for the same reason, in words too.
func sameError(a, b *typev1.Error) bool {
	if a == nil || b == nil {
		return false
	}
	return a == b || a.GetReason() == b.GetReason() && a.GetOutcome() == b.GetOutcome() && proto.Equal(a, b)
}

// ranges joins records with consecutive offsets, or the same error. silent leaves
// errors, offsets and epochs out: acks none tells them only in the summary.
func ranges(topic string, results []recordOutcome, silent bool) []*gatewayv1.RecordRange {
	var out []*gatewayv1.RecordRange
	full := 0
	for i := 0; i < len(results); {
		first := results[i]
		n := 1
		for i+n < len(results) && (results[i+n].follows(&first, n) ||
			silent && results[i+n].partition == first.partition) {
			n++
		}
		r := &gatewayv1.RecordRange{
			First: int32(i), Count: int32(n), Topic: topic, Partition: first.partition,
			BaseOffset: first.offset, LeaderEpoch: first.epoch, MaybeDuplicated: first.dup,
		}
		switch {
		case silent:
			r.BaseOffset, r.LeaderEpoch, r.MaybeDuplicated = -1, -1, false
		case first.err != nil:
			full++
			r.Error = first.err
			if full > maxFullErrors {
				r.Error = brief(first.err)
			}
		}
		out = append(out, r)
		i += n
	}
	return out
}

// brief is an error without its sentence and metadata.
func brief(e *typev1.Error) *typev1.Error {
	return &typev1.Error{
		Code: e.GetCode(), Reason: e.GetReason(), Outcome: e.GetOutcome(), Action: e.GetAction(), RetryDelay: e.GetRetryDelay(),
	}
}

func errorRange(topic string, err error) *gatewayv1.RecordRange {
	return &gatewayv1.RecordRange{Topic: topic, Partition: -1, BaseOffset: -1, LeaderEpoch: -1, Error: rpc.ToProto(err)}
}

// Ranges tells what became of the records of one send, in order.
func Ranges(topic string, results []RecordResult) []*gatewayv1.RecordRange {
	outcomes := make([]recordOutcome, len(results))
	for i, r := range results {
		outcomes[i] = newOutcome(r)
	}
	return ranges(topic, outcomes, false)
}
