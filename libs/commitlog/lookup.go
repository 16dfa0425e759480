package commitlog

import (
	"errors"
	"io"

	"github.com/leat-io/leat/libs/record"
)

// OffsetForTimestamp answers as Kafka does: the first offset, in offset order, whose
// record has a timestamp of at least ts ms, among those below upTo. Two special
// values ask for something else: TimestampEarliest for the log's start and
// TimestampLatest for upTo, or the log's end if that is lower.
//
// It decodes one batch, rarely more. Damage is *CorruptError.
func (l *Log) OffsetForTimestamp(ts, upTo int64) (TimestampOffset, error) {
	none := TimestampOffset{Offset: -1, Timestamp: record.NoTimestamp, LeaderEpoch: record.NoLeaderEpoch}
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	v, err := l.begin()
	if err != nil {
		return none, err
	}
	upTo = min(upTo, v.end)
	switch ts {
	case TimestampEarliest:
		return TimestampOffset{Found: true, Offset: v.start, Timestamp: record.NoTimestamp, LeaderEpoch: l.EpochAt(v.start)}, nil
	case TimestampLatest:
		return TimestampOffset{Found: true, Offset: upTo, Timestamp: record.NoTimestamp, LeaderEpoch: l.EpochAt(upTo - 1)}, nil
	}
	q := timeQuery{ts: ts, upTo: upTo, interval: l.config().IndexIntervalBytes, from: v.start, gapsBelow: v.gapsBelow}
	for _, seg := range v.segs {
		if seg.base >= upTo {
			break
		}
		if end := seg.sealedAt.Load(); end != notSealed && end <= v.start {
			continue
		}
		newest, err := seg.maxTimestamp(q.interval)
		if err != nil {
			return none, err
		}
		if newest < ts {
			continue
		}
		if res, found, err := q.inSegment(seg); err != nil || found {
			return res, err
		}
	}
	return none, nil
}

type timeQuery struct {
	ts        int64
	from      int64
	upTo      int64
	interval  int64
	gapsBelow int64
}

// inSegment looks from the last place before which every record is known to be
// older.
func (q *timeQuery) inSegment(seg *segment) (TimestampOffset, bool, error) {
	none := TimestampOffset{Offset: -1, Timestamp: record.NoTimestamp, LeaderEpoch: record.NoLeaderEpoch}
	seg.pin()
	defer seg.unpin()
	rel, err := seg.idx.floorTime(q.ts)
	if errors.Is(err, errBadIndex) {
		if err = seg.rebuild(q.interval); err == nil {
			rel, err = seg.idx.floorTime(q.ts)
		}
		if errors.Is(err, errBadIndex) {
			err = seg.indexFault()
		}
	}
	if err != nil {
		return none, false, err
	}
	buf := lookupBuffers.Get().(*[]byte)
	defer lookupBuffers.Put(buf)
	pos, h, found, err := seg.find(seg.base+rel, q.interval, q.gapsBelow, *buf)
	if err == nil && !found && seg.base+rel < seg.sealedAt.Load() {
		var inGap bool
		if inGap, err = seg.endsInGap(q.gapsBelow, q.interval); err == nil && !inGap {
			err = seg.endsEarly(seg.base + rel)
		}
	}
	if err != nil || !found {
		return none, false, err
	}
	f, err := seg.open()
	if err != nil {
		return none, false, err
	}
	sc := newScanner(f, seg.size.Load(), *buf)
	for h.BaseOffset < q.upTo {
		if h.MaxTimestamp >= q.ts && h.NextOffset() > q.from {
			if res, found, err := q.inBatch(seg, &sc, pos, &h); err != nil || found {
				return res, found, err
			}
		}
		pos += int64(h.Size())
		if pos >= sc.size {
			break
		}
		next := h.NextOffset()
		if h, err = sc.header(pos); err != nil {
			return none, false, seg.fault(pos, next, err)
		}
	}
	return none, false, nil
}

// inBatch reads a batch's records. Its header may promise more than they keep.
func (q *timeQuery) inBatch(seg *segment, sc *scanner, pos int64, h *record.Header) (TimestampOffset, bool, error) {
	none := TimestampOffset{Offset: -1, Timestamp: record.NoTimestamp, LeaderEpoch: record.NoLeaderEpoch}
	batch := make([]byte, h.Size())
	if n, err := sc.file.ReadAt(batch, pos); n < len(batch) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return none, false, err
	}
	r := record.NewReader(0)
	if err := r.Reset(batch); err != nil {
		return none, false, seg.fault(pos, h.BaseOffset, err)
	}
	for r.Next() {
		rec := r.Record()
		if rec.Offset >= q.upTo {
			return none, false, nil
		}
		if rec.Timestamp >= q.ts && rec.Offset >= q.from {
			return TimestampOffset{Found: true, Offset: rec.Offset, Timestamp: rec.Timestamp, LeaderEpoch: h.PartitionLeaderEpoch}, true, nil
		}
	}
	if err := r.Err(); err != nil {
		return none, false, seg.fault(pos, h.BaseOffset, err)
	}
	return none, false, nil
}
