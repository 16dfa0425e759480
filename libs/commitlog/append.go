package commitlog

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/record"
)

// Append adds one batch, given as the concatenation of vecs, and returns the
// offsets that it got. The caller has validated it (record.Validate). Base offset,
// leader epoch and, with LogAppendTime, the timestamp are set on the way to disk;
// vecs are neither changed nor kept. The batch is readable at once and durable
// after a Sync that begins later.
//
// Errors: *record.TooLargeError above max.message.bytes, *record.InvalidError and
// *record.CorruptError when the header and the bytes do not agree,
// *StaleEpochError, *NoSpaceError, ErrClosed: nothing was appended and the log goes
// on. *FailedError: the write failed, now or earlier, and the log is done.
func (l *Log) Append(vecs [][]byte, leaderEpoch int32) (AppendInfo, error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	cfg := l.config()
	h, err := l.admit(vecs, leaderEpoch, cfg)
	if err != nil {
		return AppendInfo{}, err
	}
	now := l.now()
	stamp := cfg.TimestampType == record.LogAppendTime
	if stamp {
		h.MaxTimestamp = now.UnixMilli()
	}
	return l.append(vecs, &h, now, cfg, stamp)
}

// AppendAt adds one batch as its leader stored it: with the base offset, leader
// epoch and timestamps that are in it. Its offset must not lie below the log's end;
// it may lie above, where compaction at the leader left a gap. Otherwise it is
// Append, less the limit of max.message.bytes, which is the leader's to apply.
//
// Besides Append's errors: *OutOfOrderError when the offset lies below the end.
// Nothing was appended then.
func (l *Log) AppendAt(vecs [][]byte) (AppendInfo, error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	h, err := l.admitAt(vecs)
	if err != nil {
		return AppendInfo{}, err
	}
	return l.append(vecs, &h, l.now(), l.config(), false)
}

// append stores an admitted batch. The caller holds appendMu.
func (l *Log) append(vecs [][]byte, h *record.Header, now time.Time, cfg *Config, stamp bool) (AppendInfo, error) {
	seg, err := l.rollFor(h, now, cfg)
	if err != nil {
		return AppendInfo{}, err
	}
	if err := l.enterEpoch(h); err != nil {
		return AppendInfo{}, l.diskError("append", err)
	}
	seg.pin()
	defer seg.unpin()
	pos := seg.size.Load()
	if err := l.write(seg, pos, vecs, h, stamp); err != nil {
		return AppendInfo{}, l.undoWrite(seg, pos, err)
	}
	if pos == 0 {
		l.firstAppend = now
	}
	point := indexPoint{h.BaseOffset - seg.base, pos}
	if err := seg.idx.note(point, int64(h.Size()), seg.maxTS.Load(), cfg.IndexIntervalBytes); err != nil {
		return AppendInfo{}, l.fail("append", err)
	}
	var kind int16
	var fence record.Fence
	if h.Attributes.Control() {
		kind, fence = controlOf(vecs)
	}
	l.publish(seg, h, now, kind, fence)
	return AppendInfo{
		BaseOffset: h.BaseOffset, LastOffset: h.LastOffset(), SegmentBase: seg.base, Position: pos,
		Size: h.Size(), MaxTimestamp: h.MaxTimestamp, AppendTime: now.UnixMilli(),
	}, nil
}

// controlOf looks into a control batch.
func controlOf(vecs [][]byte) (int16, record.Fence) {
	n := record.VecLen(vecs)
	if n > maxControlBatch {
		return 0, record.Fence{}
	}
	batch := make([]byte, n)
	record.CopyVec(batch, vecs)
	kind, fence, _ := record.Control(batch)
	return kind, fence
}

// admit refuses what must not reach the disk, and gives the batch its place.
func (l *Log) admit(vecs [][]byte, leaderEpoch int32, cfg *Config) (record.Header, error) {
	l.mu.RLock()
	err, end, latest := l.usable(), l.end, l.epochs.latest()
	l.mu.RUnlock()
	if err != nil {
		return record.Header{}, err
	}
	h, err := record.ParseHeaderVec(vecs)
	if err != nil {
		return h, err
	}
	if h.Size() > cfg.MaxMessageBytes {
		return h, &record.TooLargeError{Size: h.Size(), Limit: cfg.MaxMessageBytes}
	}
	h.BaseOffset, h.PartitionLeaderEpoch = end, leaderEpoch
	return h, admitHeader(&h, vecs, latest)
}

// admitAt is admit for a batch that has its place.
func (l *Log) admitAt(vecs [][]byte) (record.Header, error) {
	l.mu.RLock()
	err, end, latest, gapsBelow := l.usable(), l.end, l.epochs.latest(), l.marks.gapsBelow
	l.mu.RUnlock()
	if err != nil {
		return record.Header{}, err
	}
	h, err := record.ParseHeaderVec(vecs)
	if err != nil {
		return h, err
	}
	if h.BaseOffset < end {
		return h, &OutOfOrderError{Offset: h.BaseOffset, End: end}
	}
	if err := admitHeader(&h, vecs, latest); err != nil || h.BaseOffset == end || h.BaseOffset <= gapsBelow {
		return h, err
	}
	// The mark is durable before the gap is; it is set ahead, so that a log with
	// many gaps is not slowed down by each.
	ahead := min(h.BaseOffset, math.MaxInt64-gapsAhead) + gapsAhead
	return h, l.updateMarks(func(m *marks) { m.gapsBelow = max(m.gapsBelow, ahead) })
}

// gapsAhead is how many offsets above a follower's gap others may follow.
const gapsAhead = 1 << 20

// admitHeader checks what a batch must satisfy in any case.
func admitHeader(h *record.Header, vecs [][]byte, latest int32) error {
	if n := record.VecLen(vecs); n != h.Size() {
		return &record.CorruptError{Position: min(n, h.Size()), Detail: fmt.Sprintf("the batch should have %d bytes and %d came", h.Size(), n)}
	}
	if h.PartitionLeaderEpoch < 0 || h.PartitionLeaderEpoch < latest {
		return &StaleEpochError{Epoch: h.PartitionLeaderEpoch, Latest: latest}
	}
	return h.Check()
}

// rollFor returns the segment that takes a batch, a new one if the active one is
// full, old, or too far behind in offsets. Its errors are the caller's.
func (l *Log) rollFor(h *record.Header, now time.Time, cfg *Config) (*segment, error) {
	seg := l.active()
	size := seg.size.Load()
	if h.BaseOffset < seg.base {
		return nil, l.fail("append", fmt.Errorf("offset %d lies below the active segment, which begins at %d: there was no room for the batch that it was made for; after a restart the log goes on from there", h.BaseOffset, seg.base))
	}
	fits := h.LastOffset()-seg.base < math.MaxInt32
	if size == 0 && (fits || h.BaseOffset == seg.base) {
		return seg, nil
	}
	if fits && size+int64(h.Size()) <= cfg.SegmentBytes &&
		now.Sub(l.firstAppend) < cfg.SegmentAge &&
		!seg.idx.full(cfg.SegmentIndexBytes) {
		return seg, nil
	}
	// It begins where the log ends, also where a gap follows: should the batch find no room,
	// the next one may lie in that gap.
	base := l.EndOffset()
	if h.LastOffset()-base >= math.MaxInt32 {
		base = h.BaseOffset
	}
	return l.roll(base)
}

// roll seals the active segment and makes one that begins at base. The caller holds
// appendMu.
func (l *Log) roll(base int64) (*segment, error) {
	seg := l.active()
	seg.pin()
	defer seg.unpin()
	// Where gaps are allowed, a file that lost its end could pass for one with a gap
	// behind it. So it is durable before there is a next one.
	if base <= l.currentMarks().gapsBelow {
		if err := syncSegment(seg); err != nil {
			return nil, l.fail("roll", err)
		}
	}
	err := failpoint.Hit(failpoint.LogRoll)
	var next *segment
	if err == nil {
		next, err = createSegment(l.fs, l.dir, base, l.files)
	}
	if isNoSpace(err) {
		return nil, &NoSpaceError{Dir: l.dir, Op: "roll", Err: err}
	}
	if err != nil {
		return nil, l.fail("roll", err)
	}
	if err := l.writeSnapshot(false); err != nil {
		return nil, l.fail("roll", errors.Join(err, next.close()))
	}
	seg.sealedAt.Store(base)
	if err := seg.idx.seal(seg.maxTS.Load(), indexPoint{base - seg.base, seg.size.Load()}); err != nil {
		return nil, l.fail("roll", errors.Join(err, next.close()))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segs = append(l.segs, next)
	l.unsynced = append(l.unsynced, seg)
	l.newNames = true
	return next, nil
}

// enterEpoch checkpoints a leader epoch, durably, before its first batch is
// written. So the checkpoint knows the epoch of every batch on disk, whether or not
// that was synced, and recovery can tell a damaged epoch from a new one. The caller
// holds appendMu, and nobody else changes epochs.
func (l *Log) enterEpoch(h *record.Header) error {
	l.mu.RLock()
	epochs, changed := l.epochs.assign(h.PartitionLeaderEpoch, h.BaseOffset)
	l.mu.RUnlock()
	if !changed {
		return nil
	}
	return epochs.save(l.fs, l.dir)
}

// write puts the batch at a byte of the segment: the patched copy of its header,
// then the rest as it came, in one call.
func (l *Log) write(seg *segment, pos int64, vecs [][]byte, h *record.Header, stamp bool) error {
	record.CopyVec(l.head[:], vecs)
	l.vecs = append(l.vecs[:0], l.head[:])
	skip := record.HeaderSize
	for _, v := range vecs {
		if skip < len(v) {
			l.vecs = append(l.vecs, v[skip:])
		}
		skip = max(0, skip-len(v))
	}
	record.PatchBaseOffset(l.head[:], h.BaseOffset)
	record.PatchPartitionLeaderEpoch(l.head[:], h.PartitionLeaderEpoch)
	if stamp {
		record.PatchLogAppendTime(l.head[:], l.vecs[1:], h.MaxTimestamp)
	}
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	f, err := seg.open()
	if err == nil {
		seg.writes.Add(1)
		err = failpoint.Hit(failpoint.LogAppend)
	}
	if err == nil {
		_, err = f.WriteVecAt(l.vecs, pos)
	}
	clear(l.vecs) // the caller's buffers are not kept
	return err
}

// undoWrite cuts off what a write that found no space may have left, so that the
// log goes on as if it had not been tried. Any other fault is final.
func (l *Log) undoWrite(seg *segment, pos int64, err error) error {
	if !isNoSpace(err) {
		return l.fail("append", err)
	}
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	f, undoErr := seg.open()
	if undoErr == nil {
		undoErr = f.Truncate(pos)
	}
	if undoErr != nil {
		return l.fail("append", errors.Join(err, undoErr))
	}
	seg.writes.Add(-1)
	return &NoSpaceError{Dir: l.dir, Op: "append", Err: err}
}

// publish lets readers see the batch.
func (l *Log) publish(seg *segment, h *record.Header, now time.Time, kind int16, fence record.Fence) {
	if h.NumRecords > 0 {
		seg.maxTS.Store(max(seg.maxTS.Load(), h.MaxTimestamp))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end == l.durable {
		l.unsyncedSince = now
	}
	seg.size.Add(int64(h.Size()))
	l.end = h.NextOffset()
	l.epochs, _ = l.epochs.assign(h.PartitionLeaderEpoch, h.BaseOffset)
	l.producers.apply(h, kind, fence, now.UnixMilli())
}
