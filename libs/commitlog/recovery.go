package commitlog

import (
	"fmt"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// cut is where the valid part of the log ends, if not at the end of its files.
type cut struct {
	found  bool
	seg    int
	pos    int64
	reason error
}

// recover reads every batch from a segment on.
func (r *recovery) recover(from int) error {
	l := r.l
	r.epochs = r.stored.below(l.segs[from].base)
	if from == 0 {
		r.epochs = nil
	}
	r.report.ScannedFrom = -1
	for _, seg := range l.segs[:from] {
		if err := seg.checkLength(); err != nil {
			return err
		}
	}
	next := l.segs[from].base
	var at cut
	for i := from; i < len(l.segs) && !at.found; i++ {
		var err error
		if next, at, err = r.scan(i, next); err != nil {
			return err
		}
	}
	if r.report.ScannedFrom < 0 {
		r.report.ScannedFrom = next
	}
	if next < r.limit {
		return r.tooShort(next, at)
	}
	if at.found {
		if err := r.cut(at); err != nil {
			return err
		}
	}
	l.end, l.epochs = next, r.epochs
	if r.storedOK {
		// It may know of epochs whose batches were compacted away.
		l.epochs = r.stored.below(next)
	}
	r.report.EpochsRebuilt = !r.storedOK && len(r.epochs) > 0
	return r.settle(from)
}

// tooShort says where durable offsets are missing.
func (r *recovery) tooShort(end int64, at cut) error {
	seg := r.l.active()
	e := &CorruptError{
		Path: seg.path(), Position: seg.size.Load(), Offset: end,
		Detail: fmt.Sprintf("the log ends before this offset, and those below %d were durable", r.limit),
	}
	if at.found {
		e.Path, e.Position, e.Err = r.l.segs[at.seg].path(), at.pos, at.reason
	}
	return e
}

// scan checks one segment from the last index entry at or below the recovery
// point and makes the indexes anew from there. It returns the offset after the
// last valid batch.
func (r *recovery) scan(i int, expect int64) (next int64, at cut, err error) {
	seg := r.l.segs[i]
	f, err := seg.acquire()
	if err != nil {
		return expect, at, err
	}
	defer seg.release()
	from, maxTS, err := r.keepIndex(seg, f)
	if err != nil {
		return expect, at, err
	}
	size := seg.size.Load()
	sc := newScanner(f, size, make([]byte, min(scanBuffer, max(record.HeaderSize, size-from.pos))))
	next = max(expect, seg.base+from.rel)
	if r.report.ScannedFrom < 0 {
		r.report.ScannedFrom = next
	}
	if from.pos > 0 {
		r.epochs = r.stored.below(next)
	}
	if err := r.startProducers(next); err != nil {
		return next, at, err
	}
	seg.idx.mu.Lock()
	defer seg.idx.mu.Unlock()
	now := r.l.now().UnixMilli()
	pos := from.pos
	for pos < sc.size {
		h, err := sc.header(pos)
		if err == nil {
			err = r.checkBatch(&sc, pos, next, &h)
		}
		if err != nil && !isBatchFault(err) {
			return next, at, err
		}
		if err != nil {
			at = cut{found: true, seg: i, pos: pos, reason: err}
			break
		}
		if err := r.producers.applyAt(f, pos, &h, now); err != nil {
			return next, at, err
		}
		r.epochs, _ = r.epochs.assign(h.PartitionLeaderEpoch, h.BaseOffset)
		if err := seg.idx.noteLocked(indexPoint{h.BaseOffset - seg.base, pos}, int64(h.Size()), maxTS, r.l.config().IndexIntervalBytes); err != nil {
			return next, at, err
		}
		next, maxTS = h.NextOffset(), max(maxTS, h.MaxTimestamp)
		pos += int64(h.Size())
	}
	r.report.ScannedBytes += pos - from.pos
	r.report.IndexesRebuilt++
	seg.maxTS.Store(maxTS)
	seg.maxTSKnown.Store(true)
	if i+1 == len(r.l.segs) || at.found {
		return next, at, nil
	}
	base := r.l.segs[i+1].base
	if checkPlace(base, next, r.l.marks.gapsBelow) != nil {
		return next, cut{
			found: true, seg: i, pos: pos,
			reason: fmt.Errorf("the segment ends before offset %d and the next one begins at %d", next, base),
		}, nil
	}
	next = base
	return next, at, seg.idx.sealLocked(maxTS, indexPoint{next - seg.base, pos})
}

// startProducers finds the producers at the place where the scan begins. Batches below
// the newest snapshot are not looked at.
func (r *recovery) startProducers(offset int64) error {
	if r.producers.byID != nil {
		return nil
	}
	var err error
	r.producers, r.snapshots, err = r.l.producersAt(r.l.segs, r.snapshots, offset)
	return err
}

// keepIndex keeps the index entries below the recovery point, as far as they are
// believable and fit the log, and returns the last one: the scan begins there. The
// rest describes bytes that may not have been written.
func (r *recovery) keepIndex(seg *segment, f vfs.File) (indexPoint, int64, error) {
	x := seg.idx
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.ensureLocked(); err != nil {
		return indexPoint{}, 0, err
	}
	keep, last, maxTS := 0, indexPoint{}, int64(noTimestamp)
	if n, p, err := x.floorLocked(r.o.RecoveryPoint - seg.base); err == nil && r.storedOK && n < x.times.len() {
		ts, rel, err := x.timePoint(n)
		if ignoreBadIndex(err) != nil {
			return last, 0, err
		}
		if err == nil && rel == p.rel {
			keep, last, maxTS = n+1, p, ts
		}
	} else if ignoreBadIndex(err) != nil {
		return last, 0, err
	}
	if keep > 0 {
		sc := newScanner(f, seg.size.Load(), make([]byte, record.HeaderSize))
		h, err := sc.header(last.pos)
		if err != nil && !isBatchFault(err) {
			return last, 0, err
		}
		if err != nil || h.BaseOffset != seg.base+last.rel {
			keep, last, maxTS = 0, indexPoint{}, noTimestamp
		}
	}
	x.since = 0
	return last, maxTS, x.keepLocked(keep)
}

// checkBatch is everything that a batch at a place must satisfy. The leader epoch
// lies outside the checksum, and so is compared with the checkpoint, which is
// durable before an epoch's first batch is written.
func (r *recovery) checkBatch(sc *scanner, pos, next int64, h *record.Header) error {
	if err := checkPlace(h.BaseOffset, next, r.l.marks.gapsBelow); err != nil {
		return err
	}
	if err := sc.verify(pos, h); err != nil {
		return err
	}
	epoch := h.PartitionLeaderEpoch
	if epoch < 0 || epoch < r.epochs.latest() {
		return &record.CorruptError{Detail: fmt.Sprintf("the leader epoch is %d after %d", epoch, r.epochs.latest())}
	}
	if r.storedOK {
		return checkEpoch(h, r.stored)
	}
	return nil
}

// settle brings the files to the state that the scan found, durably.
func (r *recovery) settle(from int) error {
	l := r.l
	for i := from; i < len(l.segs); i++ {
		seg := l.segs[i]
		if err := syncSegment(seg); err != nil {
			return err
		}
		// Entries that were dropped must not come back: they would describe bytes
		// that are written anew.
		if err := seg.syncIndex(); err != nil {
			return err
		}
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	if !r.storedOK || !equalEpochs(l.epochs, r.stored) {
		if err := l.epochs.save(l.fs, l.dir); err != nil {
			return err
		}
	}
	return r.age(l.active())
}

func equalEpochs(a, b epochCache) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
