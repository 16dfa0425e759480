package replica

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/store"
)

const (
	// reportGather is how long news of replicas is gathered before it is told, so that
	// the folders of a large topic travel together.
	reportGather = 20 * time.Millisecond
	// reportAgain is when a controller is told once more of a folder while its
	// partition has no leader.
	reportAgain = 5 * time.Second
	// maxReport bounds the replicas of one report.
	maxReport = 5000
)

// Report brings news of replicas to the elected controller and returns the position
// at which it is on record.
type Report func(ctx context.Context, vouches []store.Vouch) (metadata.Position, error)

// reports is the news that the controller has yet to hear. There are two kinds.
// Replicas that were made for a partition which never had a leader are told, as
// intact, until the stream shows one: what a controller knows of them is in its
// memory only. Replicas that went bad at run time are told until a controller has
// put it on record.
type reports struct {
	mu   sync.Mutex
	made map[store.Key]madeReport
	bad  map[store.Key]*badReport
	news chan struct{}
}

type madeReport struct {
	elected int64         // election revision of the controller that was told; 0: none
	at      time.Duration // when
}

type badReport struct {
	vouch    store.Vouch
	accepted bool
	at       metadata.Position // where it is on record, once it is accepted
}

func newReports() reports {
	return reports{made: map[store.Key]madeReport{}, bad: map[store.Key]*badReport{}, news: make(chan struct{}, 1)}
}

func (p *reports) wake() {
	select {
	case p.news <- struct{}{}:
	default: // it has been woken already
	}
}

// reportBad has the controller told that a replica is not to be relied on.
func (m *Manager) reportBad(v store.Vouch) {
	m.reports.mu.Lock()
	defer m.reports.mu.Unlock()
	if m.reports.bad[v.Key] == nil {
		m.reports.bad[v.Key] = &badReport{vouch: v}
		m.reports.wake()
	}
}

// collectReports finds out what is to be told by an image that has been applied.
func (m *Manager) collectReports(image *metadata.Image) {
	if !m.onRecord(image) {
		return // the registration tells it
	}
	made := map[store.Key]madeReport{}
	for _, t := range image.Topics() {
		if t.Deleting {
			continue
		}
		for _, p := range t.Partitions() {
			if p.GetLeader().GetId() != 0 || !m.holds(p) {
				continue
			}
			k := store.Key{Topic: t.ID, Partition: p.GetPartition()}
			if _, ok := m.neverWritten(k); ok {
				made[k] = madeReport{}
			}
		}
	}
	m.reports.mu.Lock()
	defer m.reports.mu.Unlock()
	fresh := false
	for k := range made {
		told, was := m.reports.made[k]
		made[k] = told
		fresh = fresh || !was || told.elected != image.ControllerLeader().GetElectionRevision()
	}
	m.reports.made = made
	for k, b := range m.reports.bad {
		if p := image.Partition(k.Topic, k.Partition); p == nil || !m.holds(p) || b.accepted && !image.Position().Before(b.at) {
			delete(m.reports.bad, k)
			m.applyAgain() // a condemned replica may begin anew
		}
	}
	if fresh || len(m.reports.bad) > 0 {
		m.reports.wake()
	}
}

// neverWritten is the vouch for a whole replica that holds nothing yet.
func (m *Manager) neverWritten(k store.Key) (store.Vouch, bool) {
	r := m.get(k)
	if r == nil {
		return store.Vouch{}, false
	}
	stored := r.stored()
	if stored == nil || stored.Log == nil || m.cfg.Store.Verdict(k) != store.Intact || stored.Disk.Err() != nil {
		return store.Vouch{}, false
	}
	v := store.Vouch{DiskID: stored.Disk.ID, Key: k, LastEpoch: stored.Log.LatestEpoch(), End: stored.Log.EndOffset()}
	return v, v.LastEpoch < 0 && v.End == 0
}

// badIsTold reports whether what was found against a replica at run time is on
// record, as far as the image applied last shows.
func (m *Manager) badIsTold(k store.Key) bool {
	m.reports.mu.Lock()
	defer m.reports.mu.Unlock()
	return m.reports.bad[k] == nil
}

// due are the vouches that are to be told now, at most maxReport, and when the next
// ones are.
func (m *Manager) due(elected int64, now time.Duration) (vouches []store.Vouch, next time.Duration) {
	m.reports.mu.Lock()
	defer m.reports.mu.Unlock()
	for _, b := range m.reports.bad {
		if !b.accepted && len(vouches) < maxReport {
			vouches = append(vouches, b.vouch)
		}
	}
	for k, told := range m.reports.made {
		if told.elected == elected && now-told.at < reportAgain {
			if at := told.at + reportAgain; next == 0 || at < next {
				next = at
			}
			continue
		}
		if len(vouches) >= maxReport {
			next = now
			break
		}
		if v, ok := m.neverWritten(k); ok {
			vouches = append(vouches, v)
		}
	}
	slices.SortFunc(vouches, func(a, b store.Vouch) int { return a.Key.Compare(b.Key) })
	return vouches, next
}

// told notes that vouches are on record at a position.
func (m *Manager) told(vouches []store.Vouch, elected int64, now time.Duration, at metadata.Position) {
	m.reports.mu.Lock()
	defer m.reports.mu.Unlock()
	onRecord := false
	for _, v := range vouches {
		if b := m.reports.bad[v.Key]; b != nil && b.vouch == v {
			b.accepted, b.at = true, at
			onRecord = true
			continue
		}
		if _, wanted := m.reports.made[v.Key]; wanted {
			m.reports.made[v.Key] = madeReport{elected: elected, at: now}
		}
	}
	if onRecord {
		m.applyAgain() // the image may show it already
	}
}

// reportLoop tells the controller until ctx ends.
func (m *Manager) reportLoop(ctx context.Context) {
	if m.cfg.Report == nil {
		return
	}
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	failing := false
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.reports.news:
		case <-timer.C:
		}
		timer.Reset(reportGather)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		image := m.image.Load()
		if image == nil || !m.onRecord(image) {
			timer.Reset(time.Hour) // the next image wakes
			continue
		}
		elected := image.ControllerLeader().GetElectionRevision()
		vouches, next := m.due(elected, m.now())
		wait := time.Hour
		if len(vouches) > 0 {
			at, err := m.cfg.Report(ctx, vouches)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				if !failing && !errors.Is(err, context.Canceled) {
					failing = true
					m.cfg.Logger.Warn("could not tell the controller of replicas, trying again until it succeeds", "replicas", len(vouches), "error", err)
				}
				timer.Reset(backoff.Next())
				continue
			}
			failing = false
			backoff.Reset()
			m.told(vouches, elected, m.now(), at)
			m.cfg.Logger.Debug("told the controller of replicas", "replicas", len(vouches), "position", at.String())
			wait = reportAgain
		}
		if next > 0 {
			wait = min(wait, max(next-m.now(), 0))
		}
		timer.Reset(wait)
	}
}
