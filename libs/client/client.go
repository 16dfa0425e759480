package client

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/leat-io/leat/libs/rpc"
)

// Client is the way into the mesh for one process. It is safe for concurrent use.
type Client struct {
	cfg    Config
	source MetadataSource
	tracer trace.Tracer
	hints  hintTable
	seen   seenTable

	pool    *rpc.ConnPool
	ownPool bool
	// Connections by what they carry: records in, records out, control of groups,
	// and single questions.
	dataConns, fetchConns, groupConns, askConns conns

	batches *senders // for ProduceBatch
	ids     producerIDs
	joins   *joins
	refresh chan struct{}

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	polls  *pollSource // nil with Config.Source
}

// New checks the configuration and returns a client. It connects to nothing yet.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := &Client{cfg: cfg, source: cfg.Source, refresh: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	provider := cfg.TracerProvider
	if provider == nil {
		provider = noop.NewTracerProvider()
	}
	c.tracer = provider.Tracer("github.com/leat-io/leat/libs/client")
	if c.pool = cfg.Conns; c.pool == nil {
		c.pool, c.ownPool = newPool(cfg), true
	}
	c.dataConns, c.fetchConns = conns{c.pool, "produce"}, conns{c.pool, "fetch"}
	c.groupConns, c.askConns = conns{c.pool, "group"}, conns{c.pool, ""}
	if c.source == nil {
		c.polls = newPollSource(cfg, c.askConns)
		c.source = c.polls
		c.spawn(func() { c.polls.run(c.ctx) })
	}
	c.batches = c.newSenders("produce batch")
	c.joins = newJoins(c)
	c.spawn(c.refreshLoop)
	return c, nil
}

// spawn runs f on a goroutine that Close waits for.
func (c *Client) spawn(f func()) { c.wg.Go(f) }

// Close waits for the client's goroutines. Producers, fetchers, members and
// consumers made from it must have been closed.
func (c *Client) Close() error {
	c.cancel()
	c.batches.close()
	c.joins.close()
	c.wg.Wait()
	if c.ownPool {
		return c.pool.Close()
	}
	return nil
}

// Metadata is the client's source of metadata.
func (c *Client) Metadata() MetadataSource { return c.source }

// refreshSoon asks for fresh metadata without waiting for it.
func (c *Client) refreshSoon() {
	select {
	case c.refresh <- struct{}{}:
	default:
	}
}

// refreshElsewhere asks for fresh metadata because that of the last refresh did not
// help: somebody else may know more.
func (c *Client) refreshElsewhere() {
	if c.polls != nil {
		c.polls.doubt("")
	}
	c.refreshSoon()
}

// refreshDoubting asks for fresh metadata, somebody else before an address that may
// have been cut off. Where news comes by itself there is nothing to ask.
func (c *Client) refreshDoubting(addr string) {
	if c.polls != nil {
		c.polls.doubt(addr)
		c.refreshSoon()
	}
}

func (c *Client) refreshLoop() {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.refresh:
		}
		// What failed is seen by those who wait for the metadata; they ask again.
		if err := c.source.Refresh(c.ctx); err != nil && c.ctx.Err() == nil {
			c.cfg.Logger.Debug("metadata refresh failed; it is tried again when needed", "error", err)
		}
	}
}

// bounded gives ctx a deadline if it has none.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.RetryTimeout)
}
