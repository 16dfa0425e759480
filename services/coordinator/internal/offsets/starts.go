package offsets

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

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
	topics := make(map[group.TopicID][]int)
	for i, p := range parts {
		results[i] = group.StartResult{Part: p, Next: -1, LeaderEpoch: -1, Failed: "it has no such offset"}
		topics[p.Topic] = append(topics[p.Topic], i)
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
	// Each topic for itself: one that is gone is waited for, and must not keep the
	// others waiting.
	var g errgroup.Group
	g.SetLimit(maxTopicsAsked)
	for _, which := range topics {
		g.Go(func() error {
			// A timestamp after the last record's has no offset: there the end is meant, as
			// of before the question, so that it passes over no record of that time which
			// comes in between.
			if spec.GetTimestamp() != nil {
				s.ask(ctx, client.Latest(), results, which)
			}
			s.ask(ctx, spec, results, which)
			return nil
		})
	}
	_ = g.Wait() // failures are in the results
	return results
}

// maxTopicsAsked is how many topics are asked about at a time.
const maxTopicsAsked = 16

// ask asks for some of the results. One that has no such offset stays as it is.
func (s *Starts) ask(ctx context.Context, spec *typev1.OffsetSpec, results []group.StartResult, which []int) {
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
		case answers[k].Offset >= 0:
			r.Next, r.Failed = answers[k].Offset, ""
		}
	}
}
