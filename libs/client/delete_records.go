package client

import (
	"context"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// RecordsToDelete says which records of a partition go: those below Before, or, if
// that is -1, all that are committed.
type RecordsToDelete struct {
	TopicPartition
	Before int64
}

// DeletedRecords is what became of a RecordsToDelete.
type DeletedRecords struct {
	RecordsToDelete
	LogStart int64 // where every in-sync replica begins now; -1 with an error
	Err      error // *rpc.Error
}

// DeleteRecords moves log starts up, retrying what can be retried until ctx ends, or
// Config.RetryTimeout has passed where it has no deadline: moving a start a second
// time changes nothing. There is a result for each partition asked, in order.
func (c *Client) DeleteRecords(ctx context.Context, wanted []RecordsToDelete) []DeletedRecords {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	results := make([]DeletedRecords, len(wanted))
	for i, w := range wanted {
		results[i] = DeletedRecords{RecordsToDelete: w, LogStart: -1}
	}
	c.askLeaders(ctx, leaderQuestions{
		count: len(wanted), what: "delete records of ",
		of: func(i int) (TopicPartition, *error) { return results[i].TopicPartition, &results[i].Err },
		ask: func(ctx context.Context, addr string, asked []int, epochs map[int]int32) []int {
			return c.deleteRecordsAt(ctx, addr, results, asked, epochs)
		},
	})
	return results
}

// deleteRecordsAt asks one broker, and returns the partitions to be asked again.
func (c *Client) deleteRecordsAt(ctx context.Context, addr string, results []DeletedRecords, asked []int, epochs map[int]int32) []int {
	req := &brokerv1.DeleteRecordsRequest{}
	for _, i := range asked {
		r := results[i]
		req.Partitions = append(req.Partitions, &brokerv1.DeleteRecordsPartition{
			TopicId: r.TopicID.Bytes(), Partition: r.Partition, BeforeOffset: r.Before, LeaderEpoch: epochs[i],
		})
	}
	resp, err := askBroker(ctx, c, addr, func(ctx context.Context, b brokerv1.LogServiceClient) (*brokerv1.DeleteRecordsResponse, error) {
		return b.DeleteRecords(ctx, req)
	})
	var again []int
	for n, i := range asked {
		r := &results[i]
		if r.Err = answerError(addr, err, resp.GetResults(), n, len(asked)); r.Err == nil {
			r.LogStart = resp.Results[n].LogStartOffset
		} else if c.mayPass(r.TopicPartition, addr, rpc.FromError(r.Err)) {
			again = append(again, i)
		}
	}
	return again
}
