package replica

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Apply makes the broker's replicas what an image says: what is deleted stops
// serving at once, and goes in the background; what is unknown is set aside; what
// is to be held is opened or made. It reports whether something could not be done
// and is to be tried again soon, or when Again says. From one goroutine, images in
// order.
func (m *Manager) Apply(image *metadata.Image) (again bool) {
	m.image.Store(image)
	m.cfg.Store.NoteHistory(History(image, m.cfg.Self))
	m.endDeleting(image)
	m.applyDeletions(image)
	again = m.setAsideUnknown(image)
	again = m.applyPartitions(image) || again
	m.collectReports(image)
	m.countStates()
	return again
}

func (m *Manager) keys() []store.Key {
	m.mu.RLock()
	defer m.mu.RUnlock()
	keys := make([]store.Key, 0, len(m.replicas))
	for k := range m.replicas {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, store.Key.Compare)
	return keys
}

// endDeleting stops serving topics whose deletion has begun.
func (m *Manager) endDeleting(image *metadata.Image) {
	for _, r := range m.all() {
		t := image.TopicByID(r.Key.Topic)
		if t != nil && t.Deleting || image.Deletion(r.Key.Topic) != nil {
			r.end()
		}
	}
}

// end stops serving a replica because its topic goes.
func (r *Replica) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step(partition.Deleted{})
}

// retire takes a replica off the books and waits until nothing of it touches the
// log but readers, for whom the log itself waits.
func (m *Manager) retire(k store.Key) {
	m.mu.Lock()
	r := m.replicas[k]
	delete(m.replicas, k)
	m.mu.Unlock()
	if r == nil {
		return
	}
	r.mu.Lock()
	r.step(partition.Deleted{})
	r.gone = true
	r.closeSessions(r.readError(commitlog.ErrClosed))
	for ref := range r.runs {
		r.dropRun(ref)
	}
	r.isr.forget(m.cfg.Metrics)
	r.mu.Unlock()
	m.wakes.drop(r)
	r.awaitQuiet()
}

// setAsideUnknown moves folders away that the metadata does not place here.
func (m *Manager) setAsideUnknown(image *metadata.Image) (again bool) {
	for _, stored := range m.cfg.Store.Unordered() {
		t := image.TopicByID(stored.Key.Topic)
		if image.Deletion(stored.Key.Topic) != nil || m.isDeleting(stored.Key.Topic) || t != nil && (t.Deleting || m.holds(t.Partition(stored.Key.Partition))) {
			continue
		}
		if t != nil && t.Partition(stored.Key.Partition) != nil {
			m.remove(stored.Key)
			continue
		}
		m.retire(stored.Key)
		ended := m.io.begin(m.now())
		err := m.cfg.Store.SetAside(stored.Key)
		if ended(); err != nil {
			again = true
			m.cfg.Logger.Error("could not set a replica aside", "dir", stored.Dir, "error", err)
		}
	}
	return again
}

func (m *Manager) holds(p *controllerv1.Partition) bool {
	return slices.Contains(p.GetReplicas(), m.cfg.Self.Broker)
}

// applyPartitions opens, creates and tells replicas what their records say.
func (m *Manager) applyPartitions(image *metadata.Image) bool {
	var again atomic.Bool
	var created atomic.Int64
	making, more := 0, false
	began := time.Now()
	var g errgroup.Group
	g.SetLimit(max(m.cfg.CreateParallelism, 1))
	onRecord := m.onRecord(image)
	for _, t := range image.Topics() {
		if t.Deleting {
			continue
		}
		for _, p := range t.Partitions() {
			if !m.holds(p) {
				continue
			}
			k := store.Key{Topic: t.ID, Partition: p.GetPartition()}
			if m.isRemoving(k) {
				again.Store(true) // it was moved away and is to come back
				continue
			}
			r := m.get(k)
			if r != nil && !m.mayReplace(r, p, onRecord) && !m.mayReopen(r) {
				r.tell(image, t, p)
				continue
			}
			if m.cfg.Store.Replica(k) == nil {
				if making++; making > createChunk {
					more = true
					continue
				}
			}
			g.Go(func() error {
				if r := m.make(k, t, p, onRecord, &created); r != nil {
					r.tell(image, t, p)
				} else {
					again.Store(true)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // the functions report through again
	if n := created.Load(); n > 0 {
		m.cfg.Logger.Info("created replicas", "count", n, "took", time.Since(began).Round(time.Millisecond), "position", image.Position().String())
	}
	m.pending.Store(more)
	if more {
		m.applyAgain()
	}
	return again.Load()
}

// createChunk bounds the replicas made for one image, so that many new ones do not
// hold up news of the others.
const createChunk = 128

// Pending reports whether the image applied last asks for more replicas than have
// been made so far; Again brings them.
func (m *Manager) Pending() bool { return m.pending.Load() }

// applyAgain asks for another Apply.
func (m *Manager) applyAgain() {
	select {
	case m.again <- struct{}{}:
	default: // it has been asked for already
	}
}

// onRecord reports whether the image shows this life of the broker as the one
// that has vouched.
func (m *Manager) onRecord(image *metadata.Image) bool {
	b := image.Broker(m.cfg.Self.Broker)
	return b != nil && b.GetBroker().GetIncarnation() == m.cfg.Self.Incarnation
}

func (m *Manager) barred(p *controllerv1.Partition) bool {
	return slices.Contains(p.GetBarred(), m.cfg.Self.Broker)
}

// mayReplace reports whether a replica that was withheld as missing may be made
// anew, so that somebody can be elected: the stream shows this incarnation on record,
// the replica not barred, and no leader. Where there is one the core sees to it.
func (m *Manager) mayReplace(r *Replica, p *controllerv1.Partition, onRecord bool) bool {
	return r.stored() == nil && r.verdict == store.Missing && onRecord && !m.barred(p) && p.GetLeader().GetId() == 0
}

// make opens or creates one replica; nil if that failed for now. created counts
// those that are new.
func (m *Manager) make(k store.Key, t *metadata.Topic, p *controllerv1.Partition, onRecord bool, created *atomic.Int64) *Replica {
	m.retire(k) // which may have been about to make it
	verdict := m.cfg.Store.Verdict(k)
	stored := m.cfg.Store.Replica(k)
	if stored == nil && verdict == store.Missing && onRecord && !m.barred(p) {
		if err := m.cfg.Store.ClearVerdict(k); err != nil {
			m.cfg.Logger.Error("could not clear the verdict on a replica", "topic", t.Name, "partition", k.Partition, "error", err)
			return nil
		}
		verdict = m.cfg.Store.Verdict(k)
	}
	if stored == nil && verdict == store.Intact {
		var err error
		ended := m.io.begin(m.now())
		stored, err = m.cfg.Store.Create(k, t.Name, m.logConfig(k, &t.Config))
		if ended(); err != nil {
			m.tellCreate(k, t.Name, err)
			return nil
		}
		m.tellCreate(k, t.Name, nil)
		m.cfg.Logger.Debug("created a replica", "dir", stored.Dir, "topic_id", k.Topic)
		created.Add(1)
	}
	r := newReplica(m, k, t.Name, t.Internal, stored, verdict)
	r.configure(&t.Config)
	r.open(!t.Config.FsyncBeforeAck())
	m.mu.Lock()
	m.replicas[k] = r
	m.mu.Unlock()
	return r
}

// tell hands a replica its record and its topic's configuration, if they changed.
func (r *Replica) tell(image *metadata.Image, t *metadata.Topic, p *controllerv1.Partition) {
	configured := r.appliedConfig != nil && *r.appliedConfig == t.Config
	if !configured {
		r.configure(&t.Config)
	}
	onRecord := r.m.onRecord(image)
	if configured && r.appliedPartition == p && r.appliedOnRecord == onRecord {
		return
	}
	r.appliedPartition, r.appliedOnRecord = p, onRecord
	_ = failpoint.Hit(failpoint.RecordApply) // a record cannot be refused
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onRecord = onRecord
	r.apply(image.Position(), p)
}

// apply steps a partition record and what waited for it. The caller holds mu.
func (r *Replica) apply(pos metadata.Position, p *controllerv1.Partition) {
	r.undecided, r.proposedAt = nil, 0 // what it was about has been decided
	r.step(&partition.Record{
		Generation: pos.Generation, Revision: pos.Revision, PartEpoch: p.GetPartitionEpoch(), LeaderEpoch: p.GetLeaderEpoch(),
		Leader:   partition.Replica{Broker: p.GetLeader().GetId(), Incarnation: p.GetLeader().GetIncarnation()},
		Replicas: p.GetReplicas(), ISR: p.GetIsr(), ELR: p.GetElr(), Barred: p.GetBarred(), MinISR: p.GetMinIsr(),
		Unclean: r.Config().UncleanLeaderElectionEnable, UncleanEpoch: p.GetUncleanEpoch(), OnRecord: r.onRecord, Shard: r.Internal, ShardEpoch: p.GetShardEpoch(), Now: r.m.now(),
	})
	r.countISR(p)
	r.unpark()
	r.tellReaders(false)
}

// configure applies a topic's configuration to the log and the core.
func (r *Replica) configure(c *topicconfig.Config) {
	r.appliedConfig = c
	r.config.Store(c)
	if r.log() != nil {
		if err := r.log().SetConfig(r.m.logConfig(r.Key, c)); err != nil {
			r.m.cfg.Logger.Error("the log does not take its topic's configuration; it keeps the earlier one", "replica", r.Name(), "error", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step(flushing(c))
}

// logConfig translates what the log needs to know.
func logConfig(k store.Key, c *topicconfig.Config) commitlog.Config {
	lc := commitlog.Config{
		SegmentBytes: int64(c.SegmentBytes), SegmentIndexBytes: int64(c.SegmentIndexBytes), SegmentAge: segmentAge(k, c),
		IndexIntervalBytes: int64(c.IndexIntervalBytes), MaxMessageBytes: int(c.MaxMessageBytes),
		RetentionBytes: c.RetentionBytes, FileDeleteDelay: max(milliseconds(c.FileDeleteDelayMs), 1),
	}
	if c.MessageTimestampType == record.LogAppendTime.String() {
		lc.TimestampType = record.LogAppendTime
	}
	if c.CleanupDelete {
		lc.Cleanup |= commitlog.CleanupDelete
	}
	if c.CleanupCompact {
		lc.Cleanup |= commitlog.CleanupCompact
	}
	// To the log zero means no limit; to the operator it means nothing is kept.
	if c.RetentionMs >= 0 {
		lc.RetentionAge = max(milliseconds(c.RetentionMs), 1)
	}
	if c.RetentionBytes == 0 {
		lc.RetentionBytes = 1
	}
	return lc
}

// segmentAge is segment.ms, less a share of segment.jitter.ms that is the replica's
// own, and no more than max.compaction.lag.ms where that counts: the active segment
// is never cleaned.
func segmentAge(k store.Key, c *topicconfig.Config) time.Duration {
	age := milliseconds(c.SegmentMs)
	if jitter := min(c.SegmentJitterMs, c.SegmentMs); jitter > 0 {
		h := fnv.New64a()
		fmt.Fprint(h, k)
		age -= milliseconds(int64(h.Sum64() % uint64(jitter)))
	}
	if c.CleanupCompact {
		age = min(age, max(milliseconds(c.MaxCompactionLagMs), time.Millisecond))
	}
	return max(age, time.Millisecond)
}

func flushing(c *topicconfig.Config) partition.Flushing {
	f := partition.Flushing{OS: !c.FsyncBeforeAck()}
	if !f.OS {
		return f
	}
	if c.FlushMessages < math.MaxInt64 {
		f.Messages = c.FlushMessages
	}
	if c.FlushMs < math.MaxInt64 {
		f.Interval = milliseconds(c.FlushMs)
	}
	return f
}

// maxMs is the longest time in ms that is told from "no limit".
const maxMs = math.MaxInt64 / int64(time.Millisecond)

// milliseconds does not overflow for the "no limit" values.
func milliseconds(ms int64) time.Duration { return time.Duration(min(ms, maxMs)) * time.Millisecond }

// countStates keeps the gauge of replicas by state.
func (m *Manager) countStates() {
	counts := map[string]float64{"leading": 0, "idle": 0, "offline": 0}
	for _, r := range m.all() {
		r.mu.Lock()
		switch {
		case r.core.Down() != partition.ReasonNone:
			counts["offline"]++
		case r.core.Leads():
			counts["leading"]++
		default:
			counts["idle"]++
		}
		r.mu.Unlock()
	}
	for state, n := range counts {
		m.cfg.Metrics.replicas.WithLabelValues(state).Set(n)
	}
}
