package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// Open opens the log in a folder, or makes one, and recovers it: after a clean
// shutdown by looking at the end of the last segment only, else by reading every
// batch from the recovery point on. A torn tail is cut off the files, and what is
// kept is synced, before Open returns; the report says what was done.
//
// Errors: *CorruptError when the log would end below the recovery point or the
// high watermark, or a small file is damaged; *TopicIDMismatchError;
// *UnsupportedVersionError; others are of the disk or the options. No .log file is
// changed when Open fails for damage. The caller owns the Log and ends with Close
// or Abort.
func Open(o Options) (_ *Log, _ RecoveryReport, err error) {
	o = o.WithDefaults()
	if err := o.Validate(); err != nil {
		return nil, RecoveryReport{}, fmt.Errorf("open log: %w", err)
	}
	l := &Log{
		fs: o.FS, dir: o.Dir, now: o.Now, log: o.Logger, files: o.Files,
		id: Metadata{Topic: o.Topic, Partition: o.Partition, TopicID: o.TopicID},
	}
	l.cfg.Store(&o.Config)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.release())
		}
	}()
	r := &recovery{l: l, o: &o, limit: max(o.RecoveryPoint, o.HighWatermark)}
	bases, err := r.openFolder()
	if err != nil {
		return nil, RecoveryReport{}, err
	}
	switch {
	case l.marks.reset != noReset:
		r.snapshots = nil
		err = r.finishReset(bases)
	case len(bases) == 0:
		err = r.create()
	default:
		err = r.open(bases)
	}
	if err != nil {
		return nil, r.report, err
	}
	if r.producers.byID != nil {
		err = l.adoptProducers(r.producers, r.snapshots, l.end)
	} else {
		err = l.restoreProducers(l.segs, r.snapshots, l.end)
	}
	if err != nil {
		return nil, r.report, err
	}
	// An idle log keeps no descriptor.
	for _, seg := range l.segs {
		if err := seg.close(); err != nil {
			return nil, r.report, err
		}
	}
	l.durable = l.end
	l.epochs = l.epochs.from(l.segs[0].base)
	r.report.Start, r.report.End = l.marks.start, l.end
	l.logReport(&r.report)
	return l, r.report, nil
}

// openFolder makes or checks the folder's identity and lists the segments.
func (r *recovery) openFolder() ([]int64, error) {
	l := r.l
	entries, err := l.fs.ReadDir(l.dir)
	if err == nil {
		entries, err = l.finishReplacements(entries)
	}
	if err != nil && !isNotExist(err) {
		return nil, err
	}
	bases := segmentBases(entries)
	r.snapshots = listSnapshots(entries)
	if l.marks, err = loadMarks(l.fs, l.dir); err != nil {
		return nil, err
	}
	r.limit = max(r.limit, l.marks.start)
	if len(bases) == 0 && r.limit > 0 && l.marks.reset == noReset {
		return nil, &CorruptError{Path: l.dir, Offset: 0, Detail: fmt.Sprintf("there is no segment, and offsets below %d were durable", r.limit)}
	}
	if err := l.fs.MkdirAll(l.dir); err != nil {
		return nil, err
	}
	m, err := ReadMetadata(l.fs, l.dir)
	switch {
	case isNotExist(err) && len(bases) > 0:
		// The identity is durable before the first segment is made.
		return nil, &CorruptError{Path: filepath.Join(l.dir, metadataFile), Offset: -1, Detail: "the file is missing although there are segments"}
	case isNotExist(err):
		return nil, writeMetadata(l.fs, l.dir, l.id)
	case err != nil:
		return nil, err
	case m.TopicID != l.id.TopicID:
		return nil, &TopicIDMismatchError{Dir: l.dir, Want: l.id.TopicID, Got: m.TopicID}
	case m.Partition != l.id.Partition:
		return nil, &CorruptError{
			Path: filepath.Join(l.dir, metadataFile), Offset: -1,
			Detail: fmt.Sprintf("it names partition %d where %d belongs", m.Partition, l.id.Partition),
		}
	}
	return bases, nil
}

func (l *Log) logReport(r *RecoveryReport) {
	if r.CutBytes > 0 {
		l.log.Warn("cut a torn tail off the log", "dir", l.dir, "segment", filepath.Base(r.CutPath), "position", r.CutPosition,
			"bytes", r.CutBytes, "reason", r.CutReason, "end", r.End, "batches_past_cut", r.BatchesPastCut)
	}
	l.log.Debug("opened log", "dir", l.dir, "clean", r.Clean, "start", r.Start, "end", r.End, "scanned_bytes", r.ScannedBytes)
}

// recovery is one run of Open over a folder. It reads first, decides, and only
// then changes .log files.
type recovery struct {
	l      *Log
	o      *Options
	limit  int64 // the log must not end below
	report RecoveryReport

	snapshots []snapshotFile // that are in the folder
	producers producerState  // after the batches scanned so far; zero before

	stored   epochCache // as checkpointed
	storedOK bool
	epochs   epochCache // as found in the log so far
}

// create makes the first segment of a log. The folder's own name is made durable
// first: where there is a segment, it is.
func (r *recovery) create() error {
	l := r.l
	if err := l.fs.SyncDir(filepath.Dir(l.dir)); err != nil {
		return err
	}
	seg, err := createSegment(l.fs, l.dir, 0, l.files)
	if err != nil {
		return err
	}
	l.segs = []*segment{seg}
	r.report.Created, r.report.Clean = true, true
	return l.fs.SyncDir(l.dir)
}

// finishReset goes on with a ResetTo that a crash cut short.
func (r *recovery) finishReset(bases []int64) error {
	var segs []*segment
	for _, base := range bases {
		segs = append(segs, newCachedSegment(r.l.fs, r.l.dir, base, r.l.files))
	}
	return r.l.finishReset(segs)
}

// dropExpired leaves out, and removes, segments that lie wholly below the log's start: a
// retention that was cut short. That begins with a snapshot of the producers at the base
// of the first segment that is to stay; segments below which there is none wait for the
// next Retain.
func (r *recovery) dropExpired(bases []int64) ([]int64, error) {
	l := r.l
	if bases[0] > l.marks.start {
		return nil, &CorruptError{
			Path: segmentPath(l.dir, l.marks.start, logSuffix), Offset: l.marks.start,
			Detail: fmt.Sprintf("the log begins at this offset, and the first segment there is begins at %d", bases[0]),
		}
	}
	n, _ := slices.BinarySearch(bases, l.marks.start+1)
	for n--; n > 0; n-- {
		good, err := l.secureSnapshot(bases[n])
		if err != nil {
			return nil, err
		}
		if good {
			break
		}
	}
	for _, base := range bases[:n] {
		if err := l.removeSegment(newCachedSegment(l.fs, l.dir, base, l.files)); err != nil {
			return nil, err
		}
	}
	return bases[n:], nil
}

func (r *recovery) open(bases []int64) error {
	l := r.l
	bases, err := r.dropExpired(bases)
	if err != nil {
		return err
	}
	for i, base := range bases {
		seg := newCachedSegment(l.fs, l.dir, base, l.files)
		if i+1 < len(bases) {
			seg.sealedAt.Store(bases[i+1])
		}
		l.segs = append(l.segs, seg)
	}
	stored, err := loadEpochs(l.fs, l.dir)
	var corrupt *CorruptError
	switch {
	case err == nil:
		r.stored, r.storedOK = stored, true
	case !isNotExist(err) && !errors.As(err, &corrupt):
		return err
	}
	// A log that is empty has no checkpoint yet.
	maybeEmpty := isNotExist(err) && len(bases) == 1
	if r.o.CleanShutdown && (r.storedOK || maybeEmpty) {
		if done, err := r.openClean(); done || err != nil {
			return err
		}
	}
	from := r.firstToScan()
	if !r.storedOK {
		from = 0
	}
	return r.recover(from)
}

// firstToScan is the index of the segment that holds the recovery point.
func (r *recovery) firstToScan() int {
	v := view{segs: r.l.segs}
	return max(0, v.segmentOf(r.o.RecoveryPoint))
}

// openClean finds the end of the log from the last index entry on. done is false
// when anything is not as a clean shutdown leaves it; nothing was changed then.
func (r *recovery) openClean() (done bool, err error) {
	l := r.l
	seg := l.active()
	f, err := seg.acquire()
	if err != nil {
		return false, err
	}
	defer seg.release()
	p, maxTS, err := seg.idx.last()
	if err != nil {
		return false, ignoreBadIndex(err)
	}
	sc := newScanner(f, seg.size.Load(), make([]byte, lookupBuffer))
	next, pos := seg.base+p.rel, p.pos
	interval := l.config().IndexIntervalBytes
	for pos < sc.size {
		h, err := sc.header(pos)
		if err != nil && !isBatchFault(err) {
			return false, err
		}
		if err != nil || checkPlace(h.BaseOffset, next, l.marks.gapsBelow) != nil || pos-p.pos > interval {
			return false, nil
		}
		// Where a batch ends is confirmed by where the next one begins; of the last one only
		// its checksum tells.
		if pos+int64(h.Size()) >= sc.size {
			err := sc.verify(pos, &h)
			if err != nil && !isBatchFault(err) {
				return false, err
			}
			if err != nil {
				return false, nil
			}
		}
		next, maxTS = h.NextOffset(), max(maxTS, h.MaxTimestamp)
		pos += int64(h.Size())
	}
	if pos != sc.size || next < r.limit {
		return false, nil
	}
	if len(r.stored.below(next)) != len(r.stored) || len(r.stored) == 0 && next > l.segs[0].base {
		return false, nil
	}
	seg.idx.since = pos - p.pos
	seg.maxTS.Store(maxTS)
	seg.maxTSKnown.Store(true)
	l.end, l.epochs = next, r.stored
	r.report.Clean, r.report.ScannedFrom = true, next
	return true, r.age(seg)
}

func ignoreBadIndex(err error) error {
	if errors.Is(err, errBadIndex) {
		return nil
	}
	return err
}

// age lets the active segment's age count from its last change: when it got its
// first batch is not on record, and clients' timestamps prove nothing.
func (r *recovery) age(seg *segment) error {
	info, err := r.l.fs.Stat(seg.path())
	r.l.firstAppend = info.ModTime
	if now := r.l.now(); now.Before(info.ModTime) {
		r.l.firstAppend = now
	}
	return err
}
