package offsets

import (
	"context"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/topicid"
)

// Starts finds where partitions start that a group has no committed offset of, by
// asking their leaders. It is safe for concurrent use.
type Starts struct{ client *client.Client }

// NewStarts asks through the client, which stays the caller's.
func NewStarts(c *client.Client) *Starts { return &Starts{client: c} }

// Resolve has a result for each partition, in order, at the latest when ctx ends.
func (s *Starts) Resolve(ctx context.Context, policy group.StartPolicy, parts []group.Part) []group.StartResult {
	results := make([]group.StartResult, len(parts))
	all := make([]int, len(parts))
	for i, p := range parts {
		results[i] = group.StartResult{Part: p, Next: -1, LeaderEpoch: -1}
		all[i] = i
	}
	var spec *typev1.OffsetSpec
	switch policy.Kind {
	case group.StartEarliest:
		spec = client.Earliest()
	case group.StartTimestamp:
		spec = client.AtTimestamp(time.UnixMilli(policy.TimestampMs))
	case group.StartDuration:
		spec = client.AtTimestamp(failpoint.Now().Add(-policy.Back))
	default:
		spec = client.Latest()
	}
	// A timestamp after the last record's has no offset: there the end is meant, as of
	// later than the question, so that it cannot lie before a record of that time.
	if none := s.ask(ctx, spec, results, all); len(none) > 0 {
		s.ask(ctx, client.Latest(), results, none)
	}
	return results
}

// ask asks for some of the results, and lists those that have no such offset.
func (s *Starts) ask(ctx context.Context, spec *typev1.OffsetSpec, results []group.StartResult, which []int) (none []int) {
	queries := make([]client.OffsetQuery, 0, len(which))
	for _, i := range which {
		queries = append(queries, client.OffsetQuery{
			TopicPartition: client.TopicPartition{TopicID: topicid.ID(results[i].Topic), Partition: results[i].Partition}, Spec: spec,
		})
	}
	answers := s.client.ListOffsets(ctx, queries, typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED)
	for k, i := range which {
		r := &results[i]
		switch {
		case k >= len(answers):
			r.Failed = "the question was not answered"
		case answers[k].Err != nil:
			r.Failed = answers[k].Err.Error()
		case answers[k].Offset < 0:
			r.Failed = "there is no record of that time or later"
			none = append(none, i)
		default:
			r.Next, r.Failed = answers[k].Offset, ""
		}
	}
	return none
}
