package commitlog

import (
	"fmt"
	"math"
	"time"

	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/record"
)

// AppendRun adds batches as AppendAt does, one after another, and writes as many of
// them at once as lie in one segment, of one leader epoch and without a gap: a
// follower gets many small ones together. It returns how many the log took; with an
// error, which is AppendAt's, it took none of the rest.
func (l *Log) AppendRun(batches [][][]byte) (taken int, err error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	cfg, now := l.config(), l.now()
	var group []record.Header
	for taken < len(batches) {
		group = l.groupOf(group[:0], batches[taken:], now, cfg)
		if len(group) < 2 {
			h, err := l.admitAt(batches[taken])
			if err == nil {
				_, err = l.append(batches[taken], &h, now, cfg, false)
			}
			if err != nil {
				return taken, err
			}
			taken++
			continue
		}
		n, err := l.appendGroup(batches[taken:taken+len(group)], group, now, cfg)
		taken += n
		if err != nil {
			return taken, err
		}
	}
	return taken, nil
}

// groupOf gathers the headers of the batches that may follow the log's end in one
// write. What is wrong with the first one that may not is found out by whoever appends
// it alone.
func (l *Log) groupOf(group []record.Header, batches [][][]byte, now time.Time, cfg *Config) []record.Header {
	seg := l.active()
	size := seg.size.Load()
	if size == 0 || now.Sub(l.firstAppend) >= cfg.SegmentAge {
		return group
	}
	l.mu.RLock()
	err, end, latest := l.usable(), l.end, l.epochs.latest()
	l.mu.RUnlock()
	if err != nil {
		return group
	}
	for _, vecs := range batches {
		h, err := record.ParseHeaderVec(vecs)
		if err != nil || h.BaseOffset != end || h.PartitionLeaderEpoch != latest || admitHeader(&h, vecs, latest) != nil {
			return group
		}
		size += int64(h.Size())
		// Each batch may get an entry of its own.
		room := cfg.SegmentIndexBytes - int64(len(group))*timeEntrySize
		if size > cfg.SegmentBytes || h.LastOffset()-seg.base >= math.MaxInt32 || seg.idx.full(room) {
			return group
		}
		group = append(group, h)
		end = h.NextOffset()
	}
	return group
}

// appendGroup writes batches behind each other at the end of the active segment, in
// one call. The caller holds appendMu.
func (l *Log) appendGroup(batches [][][]byte, headers []record.Header, now time.Time, cfg *Config) (taken int, err error) {
	seg := l.active()
	seg.pin()
	defer seg.unpin()
	pos := seg.size.Load()
	if err := l.writeGroup(seg, pos, batches); err != nil {
		return 0, l.undoWrite(seg, pos, err)
	}
	for i := range headers {
		h := &headers[i]
		point := indexPoint{h.BaseOffset - seg.base, pos}
		if err := seg.idx.note(point, int64(h.Size()), seg.maxTS.Load(), cfg.IndexIntervalBytes); err != nil {
			return i, l.fail("append", fmt.Errorf("index the batch at offset %d: %w", h.BaseOffset, err))
		}
		pos += int64(h.Size())
		var kind int16
		var fence record.Fence
		if h.Attributes.Control() {
			kind, fence = controlOf(batches[i])
		}
		l.publish(seg, h, now, kind, fence)
	}
	return len(headers), nil
}

func (l *Log) writeGroup(seg *segment, pos int64, batches [][][]byte) error {
	l.vecs = l.vecs[:0]
	for _, vecs := range batches {
		l.vecs = append(l.vecs, vecs...)
	}
	defer func() { clear(l.vecs) }() // the caller's buffers are not kept
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	f, err := seg.open()
	if err != nil {
		return err
	}
	seg.writes.Add(1)
	if err := failpoint.Hit(failpoint.LogAppend); err != nil {
		return err
	}
	_, err = f.WriteVecAt(l.vecs, pos)
	return err
}
