package commitlog

import (
	"fmt"
	"math"

	"github.com/leat-io/leat/libs/record"
)

// noHorizon is the delete horizon of a log without tombstones that wait for one.
const noHorizon = -1

// Cleanable says what a cleaning would find to do.
type Cleanable struct {
	FirstDirty int64 // first offset that no cleaning has covered
	Limit      int64 // where the dirty range ends: at a segment that is active, too young, or not below UpTo
	CleanBytes int64 // of the segments below FirstDirty
	DirtyBytes int64 // of those from there to Limit
	Ratio      float64
	Due        bool
	Why        string // in words, why it is due or not

	horizonDue bool
}

// Any reports whether a cleaning could find anything at all.
func (s *Cleanable) Any() bool { return s.DirtyBytes > 0 || s.horizonDue }

// Cleanable says whether a cleaning is due, and for whom of several logs it is most
// urgent: the one with the highest Ratio.
func (l *Log) Cleanable(o CleanOptions) (Cleanable, error) {
	if err := o.Validate(); err != nil {
		return Cleanable{}, fmt.Errorf("clean %s: %w", l.dir, err)
	}
	if o.Now.IsZero() {
		o.Now = l.now()
	}
	return l.cleanable(&o)
}

// cleanable is Cleanable over options that are complete.
func (l *Log) cleanable(o *CleanOptions) (Cleanable, error) {
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	l.mu.RLock()
	err, segs, m, durable := l.usable(), l.segs, l.marks, l.durable
	l.mu.RUnlock()
	if err != nil {
		return Cleanable{}, err
	}
	// DeleteRecords may have moved the start beyond everything that was cleaned, and
	// into the active segment (case 12).
	s := Cleanable{FirstDirty: max(m.start, m.cleanedBelow, segs[0].base)}
	s.horizonDue = m.nextHorizon != noHorizon && m.nextHorizon <= o.Now.UnixMilli()
	now, oldest := o.Now.UnixMilli(), int64(math.MaxInt64)
	interval := l.config().IndexIntervalBytes
	s.Limit = segs[0].base
	for i, seg := range segs[:len(segs)-1] {
		end := segs[i+1].base
		if end > min(o.UpTo, durable) {
			break
		}
		size, err := seg.length()
		if err != nil {
			return s, err
		}
		if end <= s.FirstDirty {
			s.CleanBytes, s.Limit = s.CleanBytes+size, end
			continue
		}
		newest, err := l.segmentTime(seg, interval, now)
		if err != nil {
			return s, err
		}
		if o.MinLag > 0 && now-newest < o.MinLag.Milliseconds() {
			break
		}
		first, err := l.firstTime(seg, now)
		if err != nil {
			return s, err
		}
		s.DirtyBytes, s.Limit, oldest = s.DirtyBytes+size, end, min(oldest, first)
	}
	// Tombstones are looked for in all that was cleaned, or not at all.
	s.horizonDue = s.horizonDue && s.Limit >= s.FirstDirty
	s.judge(o, now, oldest)
	return s, nil
}

// judge decides whether a cleaning is due.
func (s *Cleanable) judge(o *CleanOptions, now, oldest int64) {
	if s.DirtyBytes > 0 {
		s.Ratio = float64(s.DirtyBytes) / float64(s.CleanBytes+s.DirtyBytes)
	}
	switch {
	case s.DirtyBytes > 0 && s.Ratio >= o.MinDirtyRatio:
		s.Due, s.Why = true, fmt.Sprintf("%.3f of the log is dirty and min.cleanable.dirty.ratio is %.3f", s.Ratio, o.MinDirtyRatio)
	case s.DirtyBytes > 0 && o.MaxLag > 0 && now-oldest > o.MaxLag.Milliseconds():
		s.Due, s.Why = true, fmt.Sprintf("a record has been dirty for %d ms and max.compaction.lag.ms is %d", now-oldest, o.MaxLag.Milliseconds())
	case s.horizonDue:
		s.Due, s.Why = true, "tombstones have been readable for delete.retention.ms"
	case s.DirtyBytes == 0:
		s.Why = "nothing is dirty that may be cleaned"
	default:
		s.Why = fmt.Sprintf("only %.3f of the log is dirty and min.cleanable.dirty.ratio is %.3f", s.Ratio, o.MinDirtyRatio)
	}
}

// segmentTime is when the newest record of a segment was written, in ms.
func (l *Log) segmentTime(seg *segment, interval, now int64) (int64, error) {
	ts, err := seg.maxTimestamp(interval)
	if err != nil {
		return 0, err
	}
	return l.believable(seg, ts, now)
}

// firstTime is when the first batch of a segment was written, in ms.
func (l *Log) firstTime(seg *segment, now int64) (int64, error) {
	f, err := l.fs.OpenRead(seg.path())
	if err != nil {
		return 0, err
	}
	size, err := f.Size()
	var h record.Header
	if err == nil && size > 0 {
		sc := newScanner(f, size, make([]byte, record.HeaderSize))
		h, err = sc.header(0)
		err = seg.faultOf(0, seg.base, err)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil || size == 0 {
		return math.MaxInt64, err
	}
	ts := h.BaseTimestamp
	if h.Attributes.HasDeleteHorizon() {
		ts = h.MaxTimestamp
	}
	return l.believable(seg, ts, now)
}

// believable is a timestamp, or the file's last change where there is none or one
// from the future: a client's mistake must not keep a segment from being cleaned
// forever.
func (l *Log) believable(seg *segment, ts, now int64) (int64, error) {
	if ts >= 0 && ts <= now {
		return ts, nil
	}
	info, err := l.fs.Stat(seg.path())
	if err != nil {
		return 0, err
	}
	return min(info.ModTime.UnixMilli(), now), nil
}

// faultOf is fault for an error that may be nil.
func (s *segment) faultOf(pos, offset int64, err error) error {
	if err == nil {
		return nil
	}
	return s.fault(pos, offset, err)
}

// groupSegments joins neighbours that will fit in one segment: so many small ones,
// as cleaning leaves them, become few. A group holds one at least.
func groupSegments(segs []*segment, cfg *Config) ([][]*segment, error) {
	var groups [][]*segment
	var bytes, entries int64
	for i, seg := range segs {
		size, err := seg.length()
		if err != nil {
			return nil, err
		}
		n := size/cfg.IndexIntervalBytes + 2 // index entries, at most
		last := len(groups) - 1
		if i == 0 || bytes+size > cfg.SegmentBytes || (entries+n)*timeEntrySize > cfg.SegmentIndexBytes ||
			seg.sealedAt.Load()-1-groups[last][0].base >= math.MaxInt32 {
			groups = append(groups, segs[i:i+1:i+1])
			bytes, entries = size, n
			continue
		}
		groups[last] = append(groups[last], seg)
		bytes, entries = bytes+size, entries+n
	}
	return groups, nil
}
