package shard

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// Owner is who owns a shard.
type Owner struct {
	ID          int32 // 0: nobody
	Incarnation uint64
	Addr        string // "" if it is not registered
	Epoch       int64
}

// Picture is what the manager sees of the metadata.
type Picture struct {
	// Known is false until the internal topic exists.
	Known bool
	// Topic is the internal topic, Shards the owners of its partitions.
	Topic  topicid.ID
	Shards []Owner
	// MaxMessageBytes is the internal topic's.
	MaxMessageBytes int
	// Topics are the present ones; the pointer changes only when they do.
	Topics group.Topics
}

// Metadata shows the newest picture, and a channel that is closed when there is a
// newer one.
type Metadata interface {
	Picture() (*Picture, <-chan struct{})
}

// ManagerConfig is what a Manager needs.
type ManagerConfig struct {
	Config
	// ID and Incarnation are this coordinator's.
	ID          int32
	Incarnation uint64
	Metadata    Metadata
	// OpenLog gives the partitions of one life of the internal topic.
	OpenLog func(topicid.ID) Log
	// EnsureTopic asks for the internal topic to be created.
	EnsureTopic func(ctx context.Context) error
	// MaxLoads is how many shards may be read at once.
	MaxLoads int
}

// Manager runs the shards that the metadata gives to this coordinator.
type Manager struct {
	cfg     ManagerConfig
	metrics *metrics
	want    chan struct{} // somebody needs the internal topic
	loads   chan struct{}

	wg sync.WaitGroup // of the shards, lost ones included

	mu       sync.Mutex
	running  bool
	stopping bool
	picture  *Picture
	shards   map[int32]*runner
}

// runner is a shard and its goroutine.
type runner struct {
	*Shard
	topic  topicid.ID
	cancel context.CancelCauseFunc
}

// NewManager makes a manager; nothing happens before Run.
func NewManager(cfg ManagerConfig) *Manager {
	m := newMetrics()
	cfg.Config.metrics = m
	return &Manager{
		cfg:     cfg,
		metrics: m,
		want:    make(chan struct{}, 1),
		loads:   make(chan struct{}, max(1, cfg.MaxLoads)),
		picture: &Picture{},
		shards:  make(map[int32]*runner),
	}
}

// Run follows the metadata until ctx ends, then stops every shard and waits for
// them.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	var wg sync.WaitGroup
	wg.Go(func() { m.ensureLoop(ctx) })
	defer wg.Wait()
	base := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		picture, changed := m.cfg.Metadata.Picture()
		m.apply(base, picture)
		ready()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	m.stopAll()
	return nil
}

// apply starts what is new, stops what is lost, and tells the rest of new topics.
func (m *Manager) apply(ctx context.Context, p *Picture) {
	m.mu.Lock()
	defer m.mu.Unlock()
	newTopics := m.picture.Topics.View != p.Topics.View || !slices.Equal(m.picture.Topics.Deleted, p.Topics.Deleted)
	m.picture, m.running = p, true
	for n, r := range m.shards {
		if r.topic != p.Topic || m.mine(p, n) != r.epoch {
			r.cancel(nil)
			delete(m.shards, n)
			continue
		}
		if newTopics {
			r.setTopics(p.Topics)
		}
	}
	for n := range p.Shards {
		if epoch := m.mine(p, int32(n)); epoch != 0 && m.shards[int32(n)] == nil {
			m.start(ctx, p, int32(n), epoch)
		}
	}
}

// mine is the shard epoch under which this process owns the shard; 0: it does not.
func (m *Manager) mine(p *Picture, n int32) int64 {
	if !p.Known || int(n) >= len(p.Shards) {
		return 0
	}
	if o := p.Shards[n]; o.ID == m.cfg.ID && o.Incarnation == m.cfg.Incarnation {
		return o.Epoch
	}
	return 0
}

func (m *Manager) start(ctx context.Context, p *Picture, n int32, epoch int64) {
	ctx, cancel := context.WithCancelCause(ctx)
	cfg := m.cfg.Config
	if p.MaxMessageBytes > 0 {
		cfg.MaxBatchBytes = p.MaxMessageBytes
	}
	s := newShard(cfg, m.cfg.OpenLog(p.Topic), n, epoch, p.Topics, m.loads)
	r := &runner{Shard: s, topic: p.Topic, cancel: cancel}
	m.shards[n] = r
	m.wg.Go(func() {
		defer cancel(nil)
		s.run(ctx)
	})
}

func (m *Manager) stopAll() {
	m.mu.Lock()
	m.stopping = true
	all := slices.Collect(maps.Values(m.shards))
	clear(m.shards)
	m.mu.Unlock()
	for _, r := range all {
		r.cancel(errStopping)
	}
	m.wg.Wait()
}

// For finds the shard that serves a group. The error says where to go, or that it
// is worth waiting.
func (m *Manager) For(groupName string) (*Shard, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.stopping:
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "this coordinator is stopping; go to another one")
	case !m.running:
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STARTING, "this coordinator is starting; try again shortly")
	case !m.picture.Known || len(m.picture.Shards) == 0:
		select {
		case m.want <- struct{}{}:
		default:
		}
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE,
			"%s does not exist yet and is being created; try again shortly", client.OffsetsTopic)
	}
	n := client.GroupShard(groupName, int32(len(m.picture.Shards)))
	if r := m.shards[n]; r != nil {
		return r.Shard, nil
	}
	return nil, m.elsewhere(n)
}

// elsewhere says who owns a shard that is not served here.
func (m *Manager) elsewhere(n int32) *rpc.Error {
	o := m.picture.Shards[n]
	if o.ID == 0 || o.Addr == "" {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE,
			"shard %d of %s has no serving owner at the moment; try again shortly", n, client.OffsetsTopic)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR,
		"shard %d of %s is owned by coordinator %d at %s; ask there", n, client.OffsetsTopic, o.ID, o.Addr).
		WithLeader(o.ID, o.Addr, o.Epoch)
}

// Elsewhere is the error for a group whose shard was lost: with the new owner
// where it is known.
func (m *Manager) Elsewhere(groupName string) *rpc.Error {
	if s, err := m.For(groupName); err != nil {
		return rpc.FromError(err)
	} else if s != nil {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, "shard %d is being loaded; try again shortly", s.Partition())
	}
	return nil
}

// Shards lists the shards served here, by number.
func (m *Manager) Shards() []*Shard {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*Shard
	for _, n := range slices.Sorted(maps.Keys(m.shards)) {
		all = append(all, m.shards[n].Shard)
	}
	return all
}

// Silence tells since when the logs of the shards served here have answered nothing
// although at least one was asked the whole time, and lists the shards that wait for
// theirs. No shard waits: the time is zero.
func (m *Manager) Silence() (since time.Time, waiting []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var worked time.Time
	for _, n := range slices.Sorted(maps.Keys(m.shards)) {
		asked, answered := m.shards[n].patience()
		if answered.After(worked) {
			worked = answered
		}
		if asked.IsZero() {
			continue
		}
		waiting = append(waiting, n)
		if since.IsZero() || asked.Before(since) {
			since = asked
		}
	}
	if len(waiting) > 0 && worked.After(since) {
		since = worked
	}
	return since, waiting
}

// ensureLoop has the internal topic created when somebody needs it.
func (m *Manager) ensureLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.want:
		}
		if picture, _ := m.cfg.Metadata.Picture(); picture.Known {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, 30*time.Second)
		if err := m.cfg.EnsureTopic(attempt); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("the internal topic of groups could not be created; the next request tries again", "topic", client.OffsetsTopic, "error", err)
		}
		cancel()
	}
}
