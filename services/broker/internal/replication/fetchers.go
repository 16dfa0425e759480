package replication

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

const (
	// listenTick is how often it is looked at whether leaders say something. Silence is
	// counted in ticks, so that a process that was stopped does not take its own
	// absence for theirs.
	listenTick = 100 * time.Millisecond
	// unreachableTicks is the silence after which a leader counts as unreachable.
	unreachableTicks = 10
	// brokenTicks is the silence after which its stream is given up.
	brokenTicks = 30
	// deafTicks is how long a leader may leave a hello unanswered before it counts as
	// deaf. It speaks, but has not heard of its leadership: perhaps it reaches no
	// controller.
	deafTicks = 20
)

// FetchersConfig is what Fetchers need.
type FetchersConfig struct {
	Broker *typev1.Process
	Pool   *rpc.ConnPool
	Logger *slog.Logger
	// Image is the picture of the mesh.
	Image   func() *metadata.Image
	Metrics *replica.Metrics
	// Window is how many bytes of a partition may be on the way; 0: DefaultWindow.
	Window int64
}

// Fetchers is the follower's side: a link to each leader that is followed.
type Fetchers struct {
	cfg    FetchersConfig
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	links  map[partition.Replica]*link
	closed bool
}

var _ replica.Leaders = (*Fetchers)(nil)

// NewFetchers makes fetchers without links. Links begin with the first session, also
// before Run.
func NewFetchers(cfg FetchersConfig) *Fetchers {
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
	f := &Fetchers{cfg: cfg, links: map[partition.Replica]*link{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Run listens for silence until ctx ends, then ends every link and waits for it.
func (f *Fetchers) Run(ctx context.Context) error {
	tick := time.NewTicker(listenTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, l := range f.all() {
				l.listen()
			}
		case <-ctx.Done():
			f.Close()
			return nil
		}
	}
}

// Close ends every link and waits for it. Sessions opened later go nowhere.
func (f *Fetchers) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	f.wg.Wait()
}

func (f *Fetchers) all() []*link {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*link, 0, len(f.links))
	for _, l := range f.links {
		all = append(all, l)
	}
	return all
}

// Open begins a session with the leader of a replica, of which nothing is sent
// before its first Hello. It is called with the replica's lock held.
func (f *Fetchers) Open(r *replica.Replica, leader partition.Replica, sess int64, leaderEpoch int32) replica.Upstream {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[leader]
	if l == nil {
		l = newLink(f, leader)
		if f.closed {
			l.dead = true
			return l.add(r, sess, leaderEpoch)
		}
		f.links[leader] = l
		up := l.add(r, sess, leaderEpoch)
		f.wg.Go(l.run)
		return up
	}
	return l.add(r, sess, leaderEpoch)
}

// retire takes a link off the books if nothing is followed on it any more.
func (f *Fetchers) retire(l *link) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fetches) > 0 && f.ctx.Err() == nil {
		return false
	}
	l.dead = true
	delete(f.links, l.leader)
	return true
}

// Unreachable are the leaders that are followed and have not been heard of for a
// second.
func (f *Fetchers) Unreachable() []int32 {
	return f.leaders(func(l *link) bool { return l.silence.Load() >= unreachableTicks })
}

// Deaf are the leaders that are followed and have left the hello of a leadership
// unanswered for two seconds.
func (f *Fetchers) Deaf() []int32 {
	return f.leaders(func(l *link) bool { return l.deaf.Load() })
}

// leaders lists leaders that are followed.
func (f *Fetchers) leaders(which func(*link) bool) []int32 {
	var ids []int32
	for _, l := range f.all() {
		if which(l) && l.wanted() {
			ids = append(ids, l.leader.Broker)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// address is where the metadata has a life of a broker; empty: nowhere.
func (f *Fetchers) address(p partition.Replica) string {
	b := f.cfg.Image().Broker(p.Broker)
	if b == nil || b.GetBroker().GetIncarnation() != p.Incarnation {
		return ""
	}
	return b.GetAddress()
}
