package shard

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/coordinator/internal/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	topicA = group.Topic{ID: group.TopicID{1}, Name: "a", Partitions: 2}
	a0     = group.Part{Topic: topicA.ID}
)

func offsetOf(p group.Part, next int64) group.KV {
	return group.KV{Key: group.Key{Kind: group.KindOffset, Group: "g", Part: p}, Value: group.OffsetValue{NextOffset: next, LeaderEpoch: -1}}
}

func testConfig() Config {
	return Config{
		Group: group.DefaultConfig(), AppendTimeout: 10 * time.Second, LoadTimeout: time.Minute,
		Starts: &logtest.Starts{First: 3, Last: 100}, MaxBatchBytes: 1 << 20, MaxRequests: 64, DrainTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler), metrics: newMetrics(),
	}
}

func topics(list ...group.Topic) group.Topics { return group.Topics{View: group.NewTopicView(list)} }

// start runs a shard over the log until the returned function is called.
func start(t testing.TB, log Log, epoch int64) (*Shard, func(cause error)) {
	t.Helper()
	s := newShard(testConfig(), log, 0, epoch, topics(topicA), make(chan struct{}, 4))
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx)
	}()
	return s, func(cause error) {
		cancel(cause)
		<-done
	}
}

func fetch(req uint64) group.Event {
	return group.FetchOffsets{Req: req, Group: "g", Parts: []group.Part{a0}}
}

func commit(next int64) func(uint64) group.Event {
	return func(req uint64) group.Event {
		return group.AdminCommit{Req: req, Group: "g", Offsets: []group.OffsetCommit{{Part: a0, NextOffset: next}}}
	}
}

// ask is Do for requests that must be taken.
func ask(t *testing.T, s *Shard, event func(uint64) group.Event) group.Reply {
	t.Helper()
	r, err := s.Do(t.Context(), event)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// served is ask that goes on while the shard is loading, or its log confirms nothing.
func served(t *testing.T, s *Shard, event func(uint64) group.Event) group.Result {
	t.Helper()
	for range 1000 {
		r, err := s.Do(t.Context(), event)
		switch {
		case err != nil && !rpc.Retryable(err):
			t.Fatal(err)
		case err == nil && r.Err == nil:
			return r.Result
		case err == nil && r.Err.Reason != group.ReasonLoading:
			t.Fatal(r.Err)
		}
		pause()
	}
	t.Fatal("the shard goes on loading")
	return nil
}

// pause lets a little (synthetic) time pass.
func pause() { <-time.After(10 * time.Millisecond) }

func nextOffset(r group.Result) int64 { return r.(group.Offsets).Offsets[0].NextOffset }

// fakePeer records what a stream is told.
type fakePeer struct {
	mu    sync.Mutex
	sent  []group.Message
	lost  []bool // the values of reload
	ended bool
}

func (p *fakePeer) Send(_, _ string, _ int64, m group.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, m)
}

func (p *fakePeer) Lost(_, _ string, _ int64, reload bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = append(p.lost, reload)
}

func (p *fakePeer) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

func (p *fakePeer) told() (sent []group.Message, lost []bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(sent, p.sent...), append(lost, p.lost...)
}

// join opens a member on the peer and waits for the answer.
func join(t *testing.T, s *Shard, p Peer, member string) group.Reply {
	t.Helper()
	answered := newAnswer()
	err := s.Post(t.Context(), Request{
		Peer: p, Group: "g", Member: member, Done: answered.set,
		Make: func(req uint64) group.Event {
			return group.Open{Req: req, Group: "g", Member: member, Topics: []string{"a"}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return <-answered.ch
}

// metadataOf is a Metadata that tests change.
type metadataOf struct {
	mu      sync.Mutex
	picture *Picture
	changed chan struct{}
}

func (m *metadataOf) Picture() (*Picture, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.picture, m.changed
}

func (m *metadataOf) set(p *Picture) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.picture = p
	close(m.changed)
	m.changed = make(chan struct{})
}

var internalTopic = topicid.ID{9}
