package client

import (
	"context"
	"strconv"
	"sync"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// maxHints bounds what is remembered of leader hints; beyond it they are
// forgotten, which costs a detour.
const maxHints = 10_000

// hintTable remembers leaders that brokers have named and that the metadata does
// not know yet.
type hintTable struct {
	mu    sync.Mutex
	hints map[TopicPartition]Leader
}

// learn remembers a hint, unless it is older than the one that is known.
func (h *hintTable) learn(p TopicPartition, l Leader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.hints[p]; ok && old.Epoch > l.Epoch {
		return
	}
	if h.hints == nil || len(h.hints) >= maxHints {
		h.hints = make(map[TopicPartition]Leader)
	}
	h.hints[p] = l
}

// better is the hint for p if it is newer than what the metadata says; else it is
// forgotten.
func (h *hintTable) better(p TopicPartition, known Leader, ok bool) (Leader, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hint, has := h.hints[p]
	if !has {
		return known, ok
	}
	if ok && known.Epoch >= hint.Epoch {
		delete(h.hints, p)
		return known, true
	}
	return hint, true
}

// forget drops a hint that has led nowhere.
func (h *hintTable) forget(p TopicPartition, addr string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hints[p].Addr == addr {
		delete(h.hints, p)
	}
}

// leader is where a partition is led, as far as is known now.
func (c *Client) leader(p TopicPartition) (Leader, bool) {
	l, ok := c.source.Leader(p)
	return c.hints.better(p, l, ok)
}

// learnFrom takes in what an error tells about a partition's leader, and asks for
// fresh metadata.
func (c *Client) learnFrom(p TopicPartition, asked string, hint *typev1.LeaderHint) {
	defer c.refreshSoon()
	if c.polls != nil {
		c.polls.doubt(asked)
	}
	if hint == nil {
		c.hints.forget(p, asked)
		return
	}
	if hint.Id < 0 {
		return
	}
	addr := hint.Address
	if addr == "" {
		n, ok := c.source.Broker(hint.Id)
		if !ok {
			return
		}
		addr = n.Addr
	}
	c.hints.learn(p, Leader{ID: hint.Id, Addr: addr, Epoch: int32(hint.Epoch)})
}

// mayPass reports whether a failure about a partition may pass, and takes in what
// it tells.
func (c *Client) mayPass(p TopicPartition, asked string, err *rpc.Error) bool {
	switch err.Reason {
	case reasonUnknownTopic, reasonUnknownPartition, reasonTopicDeleted:
		// The broker may be behind the metadata, or ahead of it: it is right only if the
		// metadata says so, too.
		c.refreshSoon()
		_, ok := c.source.Leader(p)
		return ok
	}
	if !rpc.Retryable(err) {
		return false
	}
	c.learnFrom(p, asked, err.Leader)
	return true
}

// awaitTopic finds a topic, retrying what may pass for the given time.
func (c *Client) awaitTopic(ctx context.Context, name string, patience time.Duration) (*Topic, error) {
	t, err := c.source.Topic(ctx, name)
	if err == nil || !rpc.Retryable(err) || ctx.Err() != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for failures := 1; ; failures++ {
		if !sleep(ctx, c.cfg.backoff(failures)) {
			return nil, contextError(ctx, "find topic "+strconv.Quote(name), err).WithOutcome(outcomeNotDone).With("topic", name)
		}
		t, again := c.source.Topic(ctx, name)
		if again == nil || ctx.Err() == nil && !rpc.Retryable(again) {
			return t, again
		}
		if ctx.Err() == nil {
			err = again
		}
	}
}
