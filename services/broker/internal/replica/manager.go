package replica

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/store"
)

func itoa(v int64) string { return strconv.FormatInt(v, 10) }

// Config is what a Manager needs.
type Config struct {
	// Self is the broker and its incarnation.
	Self partition.Replica
	// Store has adopted its cluster by the first Apply.
	Store *store.Store
	// Confirm tells the controller that the replicas of topics are deleted. It is
	// called from Run and retried there.
	Confirm func(ctx context.Context, topicIDs [][]byte) error
	// Report tells the controller of replicas that were made or went bad. It is called
	// from Run and retried there; nil: nobody is told.
	Report  Report
	Logger  *slog.Logger
	Metrics *Metrics
	Tracer  trace.Tracer // nil: no traces
	// WatermarkInterval and RecoveryInterval say how often high watermarks and
	// recovery points are written.
	WatermarkInterval, RecoveryInterval time.Duration
	// DiskTimeout is how long one I/O may take before the disk counts as hung.
	DiskTimeout time.Duration
	// ProducerExpiration is how long an idle producer is remembered; 0: the default of
	// the log.
	ProducerExpiration time.Duration
	// CreateParallelism bounds how many replicas are created at a time.
	CreateParallelism int
	// Upkeep says how old records are taken out of the logs.
	Upkeep Upkeep
	// Settings are those of every partition's core.
	Settings partition.Settings
	// Leaders opens sessions with the leaders of replicas that follow; nil: they are
	// not followed.
	Leaders Leaders
	// ProposeISR brings a proposal to the controller, once. It is called from several
	// goroutines; nil: nothing is proposed.
	ProposeISR func(ctx context.Context, req *controllerv1.ProposeIsrRequest) (*controllerv1.ProposeIsrResponse, error)
}

// tickInterval is how late a deadline may be noticed.
const tickInterval = 50 * time.Millisecond

// Manager keeps the broker's replicas.
type Manager struct {
	cfg   Config
	start time.Time
	image atomic.Pointer[metadata.Image]

	mu       sync.RWMutex
	replicas map[store.Key]*Replica

	wakes       wakes
	proposals   proposals
	lastSession atomic.Int64
	leaseAt     atomic.Int64 // when the lease was last asked to be renewed, on the clock; 0: never

	activeMu sync.Mutex
	active   map[*Replica]struct{} // have I/O running that may hang

	deletionMu sync.Mutex
	deletions  map[topicid.ID]*deletion // on record, or not done here
	removing   map[store.Key]bool       // moved to other brokers, and not deleted yet
	deletionCh chan struct{}
	again      chan struct{}
	pending    atomic.Bool

	reports reports
	io      ioWatch

	disksHung atomic.Bool
	failures  chan diskFailure
	retainNow chan bool
	stopping  chan struct{} // closed once Stop is called
	stopOnce  sync.Once

	faultMu      sync.Mutex
	marksFaults  map[*store.Disk]bool // whose marks could not be written last time
	createFaults map[store.Key]bool   // that could not be created last time
}

type diskFailure struct {
	disk *store.Disk
	err  error
}

// NewManager makes a manager without replicas.
func NewManager(cfg Config) *Manager {
	cfg.Upkeep = cfg.Upkeep.withDefaults()
	if cfg.Leaders == nil {
		cfg.Leaders = noLeaders{}
	}
	if cfg.ProposeISR == nil {
		cfg.ProposeISR = proposeNothing
	}
	m := &Manager{
		cfg: cfg, start: time.Now(), reports: newReports(), replicas: map[store.Key]*Replica{}, active: map[*Replica]struct{}{},
		deletions: map[topicid.ID]*deletion{}, removing: map[store.Key]bool{}, deletionCh: make(chan struct{}, 1), again: make(chan struct{}, 1),
		failures: make(chan diskFailure, 64), retainNow: make(chan bool, 1), stopping: make(chan struct{}),
		marksFaults: map[*store.Disk]bool{}, createFaults: map[store.Key]bool{},
	}
	m.wakes.news = make(chan struct{}, 1)
	m.proposals.ctx, m.proposals.cancel = context.WithCancel(context.Background())
	return m
}

// now is the manager's monotonic clock; never 0.
func (m *Manager) now() time.Duration { return time.Since(m.start) + 1 }

func (m *Manager) brokerAddress(id int32) string {
	if image := m.image.Load(); image != nil {
		if b := image.Broker(id); b != nil {
			return b.GetAddress()
		}
	}
	return ""
}

// watch has the watchdog look at a replica until no I/O runs there any more.
func (m *Manager) watch(r *Replica) {
	m.activeMu.Lock()
	defer m.activeMu.Unlock()
	m.active[r] = struct{}{}
}

// diskFailed takes a disk offline. It does not block: a replica that reports has
// its own lock held, and others on the disk are told from Run.
func (m *Manager) diskFailed(d *store.Disk, err error) {
	select {
	case m.failures <- diskFailure{disk: d, err: err}:
	default: // 64 reports wait already; the disk is among them or reports again
	}
}

func (m *Manager) failDisk(f diskFailure) {
	for _, stored := range m.cfg.Store.DiskFailed(f.disk, f.err) {
		if r := m.get(stored.Key); r != nil {
			r.mu.Lock()
			r.step(partition.DiskOffline{})
			r.mu.Unlock()
		}
		m.reportBad(store.Vouch{DiskID: stored.Disk.ID, Key: stored.Key, LastEpoch: -1, Verdict: store.Corrupt})
	}
	m.countStates()
}

func (m *Manager) get(k store.Key) *Replica {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.replicas[k]
}

func (m *Manager) all() []*Replica {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make([]*Replica, 0, len(m.replicas))
	for _, r := range m.replicas {
		all = append(all, r)
	}
	return all
}

// Lookup finds a replica for a client, or says why it is not here.
func (m *Manager) Lookup(topic []byte, n int32) (*Replica, *rpc.Error) {
	image := m.image.Load()
	if image == nil {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STARTING, "broker %d is starting: try again shortly", m.cfg.Self.Broker)
	}
	id, err := topicid.FromBytes(topic)
	if err != nil {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "topic_id: %w", err)
	}
	if r := m.get(store.Key{Topic: id, Partition: n}); r != nil {
		return r, nil
	}
	return nil, m.notHere(image, id, n)
}

func (m *Manager) notHere(image *metadata.Image, id topicid.ID, n int32) *rpc.Error {
	t := image.TopicByID(id)
	where := []string{"topic_id", id.String(), "partition", itoa(int64(n))}
	switch {
	case image.Deletion(id) != nil, t != nil && t.Deleting:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED, "topic id %v is being deleted: stop working on it", id).
			WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE).With(where...)
	case t == nil:
		// A client has the id from somebody's metadata, which may be newer.
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, "broker %d knows no topic of id %v: refresh the metadata", m.cfg.Self.Broker, id).
			WithAction(typev1.Action_ACTION_RETRY).WithRetry(100 * time.Millisecond).With(where...)
	}
	where = append(where, "topic", t.Name)
	p := t.Partition(n)
	if p == nil {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, "topic %s has %d partitions and none of number %d: they count from 0", t.Name, t.NumPartitions(), n).With(where...)
	}
	leader := p.GetLeader()
	if leader.GetId() == 0 || leader.GetId() == m.cfg.Self.Broker {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "%s-%d has no serving leader at the moment: try again shortly", t.Name, n).With(where...)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_LEADER, "broker %d does not lead %s-%d: go to broker %d", m.cfg.Self.Broker, t.Name, n, leader.GetId()).
		With(where...).WithLeader(leader.GetId(), m.brokerAddress(leader.GetId()), int64(p.GetLeaderEpoch()))
}

// Describe tells about replicas; no names: all of them.
func (m *Manager) Describe(names []*brokerv1.ReplicaName) []*brokerv1.ReplicaDescription {
	var out []*brokerv1.ReplicaDescription
	if len(names) == 0 {
		for _, k := range m.keys() {
			if r := m.get(k); r != nil {
				out = append(out, r.Describe())
			}
		}
		return out
	}
	for _, n := range names {
		r, err := m.Lookup(n.GetTopicId(), n.GetPartition())
		if err != nil {
			out = append(out, &brokerv1.ReplicaDescription{TopicId: n.GetTopicId(), Partition: n.GetPartition(), Error: rpc.ToProto(err)})
			continue
		}
		d := r.Describe()
		if n.AgeOf != nil {
			r.tellAge(d, n.GetAgeOf())
		}
		out = append(out, d)
	}
	return out
}

// DisksOK reports whether no I/O has been running for longer than the watchdog
// allows, and at least one disk works.
func (m *Manager) DisksOK() bool { return !m.disksHung.Load() && m.cfg.Store.Usable() }

// pause waits; false: the manager stops.
func (m *Manager) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-m.stopping:
		return false
	}
}

// Again has a value when the image applied last is to be applied once more.
func (m *Manager) Again() <-chan struct{} { return m.again }

// Run keeps the clock until ctx ends: deadlines, the disk watchdog, checkpoints,
// failed disks, the disks' room, deletions, retention and compaction.
func (m *Manager) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { m.wakeLoop(ctx) })
	loops.Go(func() { m.lagLoop(ctx) })
	loops.Go(func() { m.deletionLoop(ctx) })
	loops.Go(func() { m.spaceLoop(ctx) })
	loops.Go(func() { m.retentionLoop(ctx) })
	loops.Go(func() { m.cleanerLoop(ctx) })
	loops.Go(func() { m.reportLoop(ctx) })
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	watermarks := time.NewTicker(m.cfg.WatermarkInterval)
	defer watermarks.Stop()
	recovery := time.NewTicker(m.cfg.RecoveryInterval)
	defer recovery.Stop()
	// Checkpoints write to disk; a slow one must not hold up deadlines.
	checkpoints := make(chan bool, 1)
	loops.Go(func() { m.checkpointLoop(ctx, checkpoints) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			m.tick()
		case <-watermarks.C:
			offer(checkpoints, false)
		case <-recovery.C:
			offer(checkpoints, true)
		case f := <-m.failures:
			m.failDisk(f)
		}
	}
}

func offer(ch chan bool, v bool) {
	select {
	case ch <- v:
	default: // one waits already
	}
}

// tick is the watchdog's look at I/O that runs.
func (m *Manager) tick() {
	now := m.now()
	hung := m.io.longest(now) > m.cfg.DiskTimeout
	m.activeMu.Lock()
	for r := range m.active {
		busy := false
		for _, since := range []int64{r.appendSince.Load(), r.syncSince.Load(), r.startSince.Load(), r.checkpointSince.Load()} {
			if since != 0 {
				busy = true
				hung = hung || now-time.Duration(since) > m.cfg.DiskTimeout
			}
		}
		if longest := r.reads.longest(now); longest > 0 {
			busy = true
			hung = hung || longest > m.cfg.DiskTimeout
		}
		if !busy {
			delete(m.active, r)
		}
	}
	m.activeMu.Unlock()
	if m.disksHung.Swap(hung) != hung {
		m.cfg.Logger.Warn("the disk watchdog changed its mind", "disks_ok", !hung, "limit", m.cfg.DiskTimeout)
	}
}

// tellCreate logs a replica that begins to resist its creation; err nil: it is made.
func (m *Manager) tellCreate(k store.Key, topic string, err error) {
	m.faultMu.Lock()
	defer m.faultMu.Unlock()
	if err == nil {
		delete(m.createFaults, k)
		return
	}
	if !m.createFaults[k] {
		m.createFaults[k] = true
		m.cfg.Logger.Error("could not create a replica; it is tried again every second", "topic", topic, "partition", k.Partition, "error", err)
	}
}

// Stop takes nothing new, waits until what is in flight has been answered or ctx
// ends, then until no sync runs. The store may be closed afterwards.
func (m *Manager) Stop(ctx context.Context) error {
	m.stopOnce.Do(func() { close(m.stopping) })
	all := m.all()
	for _, r := range all {
		r.mu.Lock()
		r.step(partition.Stop{})
		r.mu.Unlock()
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var err error
	for _, r := range all {
		for !r.idle() && err == nil {
			select {
			case <-ctx.Done():
				err = fmt.Errorf("%s has batches in flight that did not end in time", r.Name())
			case <-tick.C:
			}
		}
		r.awaitQuiet()
	}
	m.stopProposals()
	return err
}

// Busy reports whether something that was taken before a stop has not ended.
func (m *Manager) Busy() bool {
	for _, r := range m.all() {
		if !r.idle() {
			return true
		}
	}
	return false
}

// Leads reports whether a replica here leads.
func (m *Manager) Leads() bool {
	for _, r := range m.all() {
		r.mu.Lock()
		leads := r.core.Leads()
		r.mu.Unlock()
		if leads {
			return true
		}
	}
	return false
}

// LeaseRenewed says when the lease of the broker's registration was last asked to be
// renewed, with success.
func (m *Manager) LeaseRenewed(asked time.Time) {
	at := asked.Sub(m.start) + 1
	m.leaseAt.Store(int64(at))
	for _, r := range m.all() {
		if !r.Config().UncleanLeaderElectionEnable {
			continue
		}
		r.mu.Lock()
		r.step(partition.LeaseRenewed{Now: at})
		r.mu.Unlock()
	}
}

func (r *Replica) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Idle() && r.ops == 0
}
