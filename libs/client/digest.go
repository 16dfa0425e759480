package client

import (
	"context"
	"slices"
	"sync"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// DigestQuery asks one broker for the hash of what its replica of a partition holds
// in the offsets [From, To).
type DigestQuery struct {
	TopicPartition
	Broker   int32
	From, To int64
}

// DigestResult answers a DigestQuery.
type DigestResult struct {
	DigestQuery
	Digest  []byte // SHA-256, the same for the same records however they are batched; nil with an error
	Records int64
	Err     error // *rpc.Error
}

// DigestReplicas asks brokers for digests of their replicas; each waits, until ctx
// ends, for its replica to reach To. One attempt each, since a replica that is away
// is what the asker wants to know. There is a result for each query, in order.
func (c *Client) DigestReplicas(ctx context.Context, queries []DigestQuery) []DigestResult {
	results := make([]DigestResult, len(queries))
	byAddr := make(map[string][]int)
	for i, q := range queries {
		results[i].DigestQuery = q
		n, ok := c.source.Broker(q.Broker)
		if !ok {
			results[i].Err = rpc.Errorf(reasonUnreachable, "broker %d is not in service", q.Broker).WithOutcome(outcomeNotDone)
			continue
		}
		byAddr[n.Addr] = append(byAddr[n.Addr], i)
	}
	var wg sync.WaitGroup
	for addr, all := range byAddr {
		for asked := range slices.Chunk(all, maxAskedAtOnce) {
			wg.Go(func() { c.digestAt(ctx, addr, results, asked) })
		}
	}
	wg.Wait()
	return results
}

// digestAt asks one broker.
func (c *Client) digestAt(ctx context.Context, addr string, results []DigestResult, asked []int) {
	req := &brokerv1.DigestReplicasRequest{}
	for _, i := range asked {
		q := results[i]
		req.Replicas = append(req.Replicas, &brokerv1.DigestReplica{TopicId: q.TopicID.Bytes(), Partition: q.Partition, FromOffset: q.From, ToOffset: q.To})
	}
	var resp *brokerv1.DigestReplicasResponse
	conn, err := c.askConns.Get(addr)
	if err == nil {
		// Not bounded by the request timeout: it waits for replicas as long as ctx lets it.
		resp, err = brokerv1.NewLogServiceClient(conn).DigestReplicas(ctx, req)
	}
	for n, i := range asked {
		r := &results[i]
		if r.Err = answerError(addr, err, resp.GetResults(), n, len(asked)); r.Err == nil {
			r.Digest, r.Records = resp.Results[n].Digest, resp.Results[n].Records
		}
	}
}
