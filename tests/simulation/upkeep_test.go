package simulation

import (
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/vfs"
)

// upkeep is a cleaning or a retention that is to be carried out, with the high
// watermark that was read when it was decided on.
type upkeep struct {
	clean bool
	upTo  int64
}

// calmRecovery is the step of a recovery from which on retention rests and little is
// produced, so that followers catch up with what is there.
const calmRecovery = firstRecovery + 5000

// upkeepStep has a broker decide to clean a log, or to look for what is too old in it.
func (w *world) upkeepStep() {
	b := w.find(func(b *broker) bool { return b.runs() && !b.diskBad && len(b.replicas) > 0 })
	if b == nil {
		return
	}
	at := w.n(len(b.replicas))
	for i := range b.replicas {
		r := b.replicas[(at+i)%len(b.replicas)]
		c := &r.p.topic.clean
		retains := c.retain > 0 || c.retainBytes > 0 || r.log != nil && r.log.StartOffset() > 0
		retains = retains && w.step < calmRecovery
		if r.log == nil || r.core == nil || r.gone || r.upkeep != nil || r.core.Down() != partition.ReasonNone || !c.compact && !retains {
			continue
		}
		r.upkeep = &upkeep{clean: c.compact && (!retains || w.chance(60)), upTo: r.core.HighWatermark()}
		return
	}
}

// runUpkeep carries out a cleaning or a retention, as brokers do beside everything else.
func (r *replica) runUpkeep() partition.Event {
	u := r.upkeep
	r.upkeep = nil
	if r.log == nil || r.core.Down() != partition.ReasonNone {
		return nil
	}
	if u.clean {
		return r.runClean(u)
	}
	return r.runRetain(u)
}

func (r *replica) runClean(u *upkeep) partition.Event {
	c := &r.p.topic.clean
	o := commitlog.DefaultCleanOptions(u.upTo)
	o.MinDirtyRatio, o.DeleteRetention, o.MinLag, o.MaxLag = c.minDirty, c.deleteRetain, c.minLag, c.maxLag
	o.DedupeBufferBytes = commitlog.MinDedupeBufferBytes
	o.KeepTombstonesFrom = r.lowestCopy
	if r.lowestCopy() < u.upTo {
		r.w.count("compaction beside a copy that lags")
	}
	report, err := r.log.Clean(o)
	if err != nil {
		return r.upkeepFailed(err)
	}
	if !report.Ran {
		return nil
	}
	r.w.count("log compacted")
	if report.RecordsRemoved > 0 {
		r.w.count("records compacted away")
	}
	if report.Tombstones > 0 {
		r.w.count("tombstones removed")
	}
	r.w.say("broker %d#%d compacts %s from %d to %d (%s): %d of %d records go, %d of them tombstones", r.b.id, r.b.inc, r.w.name(r.id), report.From, report.To, report.Why, report.RecordsRemoved, report.RecordsRead, report.Tombstones)
	r.checkCleaned()
	return nil
}

// checkCleaned compares a log that was just cleaned with what is committed.
func (r *replica) checkCleaned() {
	p := r.p
	if p.lossy || p.gone || r.b.disk.rotten[r.id] || r.cutting() {
		return
	}
	from, to := max(r.log.StartOffset(), p.deleted), min(r.core.HighWatermark(), int64(len(p.truth)))
	if wrong := r.differs(from, to); wrong != "" {
		r.w.fail("CLEANED", "broker %d#%d has compacted %s and holds, up to %d, %s", r.b.id, r.b.inc, r.w.name(r.id), to, wrong)
	}
}

func (r *replica) runRetain(u *upkeep) partition.Event {
	was := r.log.StartOffset()
	res, err := r.log.Retain(r.w.clock(), u.upTo)
	if err != nil && errors.Is(err, errPower) {
		return nil
	}
	if res.Segments > 0 {
		r.w.count("segments retired")
		r.w.say("broker %d#%d takes %d segments out of %s, which begins at %d instead of %d", r.b.id, r.b.inc, res.Segments, r.w.name(r.id), res.Start, was)
	}
	switch start := r.log.StartOffset(); {
	case start <= was:
	case start > u.upTo:
		r.w.fail("RETENTION", "broker %d#%d takes %s away up to %d; the high watermark was %d", r.b.id, r.b.inc, r.w.name(r.id), start, u.upTo)
	default:
		r.p.retained(r.b, r.log, true)
		there, existsErr := vfs.Exists(r.b.disk.mem, path.Join(r.log.Dir(), fmt.Sprintf("%020d.log", start)))
		if err == nil && (existsErr != nil || !there) {
			r.w.fail("RETENTION", "broker %d#%d lets %s begin at %d, where no segment begins", r.b.id, r.b.inc, r.w.name(r.id), start)
		}
	}
	if err != nil {
		return r.upkeepFailed(err)
	}
	if res.Start > r.core.Start() {
		return partition.StartMoved{Start: res.Start}
	}
	return nil
}

// retained takes note of where a log begins, and looks whether what went was old
// enough, or too much.
func (p *part) retained(b *broker, log *commitlog.Log, sized bool) {
	start := log.StartOffset()
	c := &p.topic.clean
	if start <= p.deleted || c.retain == 0 && c.retainBytes == 0 {
		return
	}
	size, err := log.Size()
	if err != nil {
		return
	}
	for o := start - 1; o >= p.deleted && !p.lossy && !p.gone && !b.disk.rotten[p.id]; o-- {
		if o >= int64(len(p.truth)) {
			p.w.fail("RETENTION", "broker %d#%d took offset %d out of %s, which was not committed", b.id, b.inc, o, p.w.name(p.id))
			return
		}
		switch age := p.w.clock().Sub(time.UnixMilli(p.stamps[o])); {
		case p.mayBeGone(o): // compaction may have taken it before
		case c.retain > 0 && age+time.Millisecond > c.retain:
		case c.retainBytes > 0 && (!sized || size >= c.retainBytes):
		default:
			p.w.fail("RETENTION", "broker %d#%d took offset %d out of %s, which is %v old; %d bytes followed it (%+v)", b.id, b.inc, o, p.w.name(p.id), age, size, *c)
			return
		}
		if p.truth[o].base == o {
			size += int64(p.sizes[o])
		}
	}
	p.deleted = start
}

// upkeepFailed deals with what cleaning or retention ran into.
func (r *replica) upkeepFailed(err error) partition.Event {
	if errors.Is(err, commitlog.ErrClosed) {
		return nil
	}
	var full *commitlog.NoSpaceError
	if errors.As(err, &full) {
		r.w.count("upkeep without room")
		return nil
	}
	return r.failed(0, err)
}
