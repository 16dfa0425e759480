package commitlog

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// A snapshot of the producers is named by the offset before which it holds all that
// was appended. It is written when a segment is made, at a Checkpoint and at a clean
// stop. One that is torn or damaged is not believed: an older one, or none, and the
// batches' headers from there on give the same.
//
// That at the base of each segment is kept as long as the segment is: where the records
// before it are deleted, nothing else tells what was remembered there, and a truncation
// may go down to it, since the high watermark can lag far behind what is durable.
const (
	snapshotSuffix  = ".snapshot"
	snapshotKind    = "producer-snapshot"
	snapshotVersion = 1
	maxSnapshot     = 64 << 20
	// keptSnapshots is how many are kept of those that lie below the durable end, besides
	// those at the bases of segments.
	keptSnapshots = 2
	// maxControlBatch is the largest control batch that is looked into.
	maxControlBatch = 64 << 10
)

// snapshotFile is one that the log knows of.
type snapshotFile struct {
	offset int64
	dirty  bool // not synced yet
}

// encode renders the producers as lines, in the order of their ids.
func (s *producerState) encode() []byte {
	lines := []string{
		fmt.Sprintf("offset %d", s.offset),
		fmt.Sprintf("fence %d %d", s.fence.ShardEpoch, s.fence.Attempt),
	}
	ids := make([]int64, 0, len(s.byID))
	for id := range s.byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var b []byte
	for _, id := range ids {
		p := s.byID[id]
		b = append(b[:0], "producer"...)
		for _, n := range []int64{id, int64(p.epoch), p.lastSeen, p.txnFirst} {
			b = strconv.AppendInt(append(b, ' '), n, 10)
		}
		for _, e := range p.batches[:p.count] {
			for _, n := range []int64{int64(e.baseSeq), int64(e.lastSeq), e.base, e.last, e.timestamp} {
				b = strconv.AppendInt(append(b, ' '), n, 10)
			}
		}
		lines = append(lines, string(b))
	}
	return encodeSmallFile(snapshotKind, snapshotVersion, lines)
}

// loadSnapshot reads a snapshot back. Damage is a *CorruptError.
func loadSnapshot(fsys vfs.FS, dir string, offset int64) (producerState, error) {
	path := segmentPath(dir, offset, snapshotSuffix)
	lines, err := readSmallFileMax(fsys, path, snapshotKind, snapshotVersion, maxSnapshot)
	if err != nil {
		return producerState{}, err
	}
	return parseSnapshot(path, lines, offset)
}

// parseSnapshot makes sense of the lines of a snapshot. Damage is a *CorruptError.
func parseSnapshot(path string, lines []string, offset int64) (producerState, error) {
	s := newProducerState(-1)
	for _, line := range lines {
		name, rest, _ := strings.Cut(line, " ")
		n, err := parseInts(rest)
		ok := err == nil
		switch name {
		case "offset":
			if ok = ok && len(n) == 1; ok {
				s.offset = n[0]
			}
		case "fence":
			if ok = ok && len(n) == 2; ok {
				s.fence = record.Fence{ShardEpoch: n[0], Attempt: n[1]}
			}
		case "producer":
			ok = ok && s.decodeProducer(n)
		}
		if !ok {
			return s, &CorruptError{Path: path, Offset: -1, Detail: fmt.Sprintf("the line %q does not fit", line)}
		}
	}
	if s.offset != offset {
		return s, &CorruptError{Path: path, Offset: -1, Detail: fmt.Sprintf("it is of offset %d", s.offset)}
	}
	return s, nil
}

func parseInts(s string) ([]int64, error) {
	var out []int64
	for _, f := range strings.Fields(s) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

func (s *producerState) decodeProducer(n []int64) bool {
	if len(n) < 4 || (len(n)-4)%5 != 0 || (len(n)-4)/5 > keptBatches || len(s.byID) >= maxProducers {
		return false
	}
	p := &producer{epoch: int16(n[1]), lastSeen: n[2], txnFirst: n[3]}
	for e := n[4:]; len(e) > 0; e = e[5:] {
		p.add(producerBatch{int32(e[0]), int32(e[1]), e[2], e[3], e[4]})
	}
	s.byID[n[0]] = p
	return true
}

// writeSnapshot writes the producers as they are now, unless there is a snapshot of
// this offset. The caller holds appendMu, so that nothing is appended meanwhile.
// Without space there is none this time.
func (l *Log) writeSnapshot(durably bool) error {
	l.mu.RLock()
	offset := l.producers.offset
	var data []byte
	known := slices.ContainsFunc(l.snapshots, func(s snapshotFile) bool { return s.offset == offset })
	if !known {
		data = l.producers.encode()
	}
	l.mu.RUnlock()
	if known {
		return nil
	}
	err := createFile(l.fs, segmentPath(l.dir, offset, snapshotSuffix), data, durably)
	if isNoSpace(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.snapshots = append(l.snapshots, snapshotFile{offset, !durably})
	return nil
}

// secureSnapshot reports whether there is a good snapshot of an offset, and makes it
// durable: where a process was killed before, it may be read from memory only.
func (l *Log) secureSnapshot(offset int64) (bool, error) {
	_, err := loadSnapshot(l.fs, l.dir, offset)
	var corrupt *CorruptError
	if errors.As(err, &corrupt) || isNotExist(err) {
		return false, nil
	}
	if err == nil {
		err = syncPath(l.fs, segmentPath(l.dir, offset, snapshotSuffix))
	}
	return err == nil, err
}

// keepProducersBelow sees to it that there is a snapshot, durably, at the base of the
// segment that is to be the log's first one. There is none where the disk was full when
// that segment was made, or where a power cut tore it. The caller holds changeMu, and has
// synced the log.
//
// Errors: *NoSpaceError, since nothing else tells what it would hold once the segments
// before are gone; *CorruptError; *FailedError.
func (l *Log) keepProducersBelow(base int64) error {
	if good, err := l.secureSnapshot(base); err != nil {
		return l.fail("retain", err)
	} else if good {
		return nil
	}
	defer l.holdStill()()
	state, snapshots, err := l.producersAt(l.segs, l.snapshots, base)
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		return err
	}
	if err != nil {
		return l.fail("retain", err)
	}
	state.offset = base
	if err := vfs.WriteFileAtomic(l.fs, segmentPath(l.dir, base, snapshotSuffix), state.encode()); err != nil {
		return l.diskError("retain", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at, _ := slices.BinarySearchFunc(snapshots, base, func(s snapshotFile, base int64) int { return cmp.Compare(s.offset, base) })
	l.snapshots = slices.Insert(snapshots, at, snapshotFile{offset: base})
	return nil
}

func createFile(fsys vfs.FS, path string, data []byte, durably bool) error {
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil && durably {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncSnapshots makes snapshots durable, and removes those that are of no more use.
// The caller holds syncMu.
func (l *Log) syncSnapshots() error {
	l.mu.RLock()
	snapshots, durable, bases := slices.Clone(l.snapshots), l.durable, l.segmentBases()
	l.mu.RUnlock()
	spare := func(s snapshotFile) bool {
		_, atBase := slices.BinarySearch(bases, s.offset)
		return s.offset <= durable && !atBase
	}
	below := 0
	for _, s := range snapshots {
		if spare(s) {
			below++
		}
	}
	var kept []snapshotFile
	for _, s := range snapshots {
		path := segmentPath(l.dir, s.offset, snapshotSuffix)
		if spare(s) && below > keptSnapshots {
			below--
			if err := l.removeSnapshot(s.offset); err != nil {
				return err
			}
			continue
		}
		if s.dirty {
			if err := syncPath(l.fs, path); err != nil {
				return err
			}
			s.dirty = false
		}
		kept = append(kept, s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Others may have come meanwhile; they are the last ones.
	l.snapshots = append(kept, l.snapshots[len(snapshots):]...)
	return nil
}

func syncPath(fsys vfs.FS, path string) error {
	f, err := fsys.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Checkpoint makes everything durable and returns the offset that the owner may
// note as the recovery point. It differs from Sync in that it also writes down what
// the log remembers of its producers, so that a recovery from that point on need not
// look at earlier batches.
//
// Errors are those of Sync.
func (l *Log) Checkpoint() (recoveryPoint int64, err error) {
	l.appendMu.Lock()
	l.mu.RLock()
	err = l.whole()
	l.mu.RUnlock()
	if err == nil && l.EndOffset() > l.StartOffset() {
		err = l.writeSnapshot(true)
		if err != nil {
			err = l.fail("checkpoint", err)
		} else {
			l.mu.Lock()
			l.newNames = true
			l.mu.Unlock()
		}
	}
	l.appendMu.Unlock()
	if err != nil {
		return l.DurableEnd(), err
	}
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	recoveryPoint, err = l.sync()
	if err == nil {
		if syncErr := l.syncSnapshots(); syncErr != nil {
			err = l.fail("checkpoint", syncErr)
		}
	}
	return recoveryPoint, err
}

// listSnapshots finds the snapshots among the names in a folder.
func listSnapshots(entries []vfs.DirEntry) []snapshotFile {
	var out []snapshotFile
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name, snapshotSuffix)
		if !ok || len(digits) != offsetDigits {
			continue
		}
		if offset, err := strconv.ParseInt(digits, 10, 64); err == nil && offset >= 0 {
			out = append(out, snapshotFile{offset: offset})
		}
	}
	slices.SortFunc(out, func(a, b snapshotFile) int { return cmp.Compare(a.offset, b.offset) })
	return out
}

// restoreProducers rebuilds what is remembered of producers for a log that ends at
// an offset. Only the caller knows the log, or it holds all locks but mu.
func (l *Log) restoreProducers(segs []*segment, snapshots []snapshotFile, end int64) error {
	state, good, err := l.producersAt(segs, snapshots, end)
	if err != nil {
		return err
	}
	return l.adoptProducers(state, good, end)
}

// producersAt gives the producers after all batches below an offset: from the newest
// good snapshot that is not above it, and the headers of the batches behind, of which one
// that is damaged is a *CorruptError. It leaves damaged snapshots out of the list it
// returns, and removes them.
func (l *Log) producersAt(segs []*segment, snapshots []snapshotFile, offset int64) (producerState, []snapshotFile, error) {
	state := newProducerState(segs[0].base)
	good := slices.Clone(snapshots)
	for i := len(good) - 1; i >= 0; i-- {
		if good[i].offset > offset {
			continue
		}
		loaded, err := loadSnapshot(l.fs, l.dir, good[i].offset)
		if err == nil {
			state = loaded
			break
		}
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) && !isNotExist(err) {
			return state, nil, err
		}
		if err := l.removeSnapshot(good[i].offset); err != nil {
			return state, nil, err
		}
		good = slices.Delete(good, i, i+1)
	}
	return state, good, l.replay(segs, &state, offset)
}

func (l *Log) removeSnapshot(offset int64) error {
	if err := l.fs.Remove(segmentPath(l.dir, offset, snapshotSuffix)); err != nil && !isNotExist(err) {
		return err
	}
	return nil
}

// adoptProducers makes a state that of the log, which ends at an offset. Snapshots
// above it are removed, durably: what comes at their offsets next is something else.
func (l *Log) adoptProducers(state producerState, snapshots []snapshotFile, end int64) error {
	kept := len(snapshots)
	for kept > 0 && snapshots[kept-1].offset > end {
		kept--
		if err := l.removeSnapshot(snapshots[kept].offset); err != nil {
			return err
		}
	}
	if kept < len(snapshots) {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return err
		}
	}
	state.offset = end
	l.mu.Lock()
	defer l.mu.Unlock()
	l.producers, l.snapshots = state, snapshots[:kept:kept]
	return nil
}

// replay applies the batches from the state's offset up to end.
func (l *Log) replay(segs []*segment, state *producerState, end int64) error {
	if state.offset >= end {
		return nil
	}
	v := view{segs: segs}
	buf := make([]byte, scanBuffer)
	for i := max(0, v.segmentOf(state.offset)); i < len(segs) && segs[i].base < end; i++ {
		if err := l.replaySegment(segs[i], state, end, buf); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) replaySegment(seg *segment, state *producerState, end int64, buf []byte) error {
	f, err := seg.acquire()
	if err != nil {
		return err
	}
	defer seg.release()
	now := l.now().UnixMilli()
	sc := newScanner(f, seg.size.Load(), buf)
	pos, err := seg.near(&sc, state.offset)
	if err != nil {
		return err
	}
	for pos < sc.size {
		h, err := sc.header(pos)
		if err != nil {
			return seg.fault(pos, state.offset, err)
		}
		if h.BaseOffset >= end {
			return nil
		}
		if h.BaseOffset >= state.offset {
			// A flipped bit in a fence would shut every coordinator out for good, and one
			// in a sequence would lose or repeat what a producer sends next.
			if err := sc.verify(pos, &h); err != nil {
				return seg.fault(pos, h.BaseOffset, err)
			}
			if err := state.applyAt(f, pos, &h, now); err != nil {
				return err
			}
		}
		pos += int64(h.Size())
	}
	return nil
}

// near finds a batch at or below an offset, as near as the index knows without
// being made anew; else the segment's first one.
func (s *segment) near(sc *scanner, offset int64) (int64, error) {
	if offset <= s.base {
		return 0, nil
	}
	p, err := s.idx.floor(min(offset-s.base, math.MaxUint32))
	if err != nil || p.pos >= sc.size {
		return 0, ignoreBadIndex(err)
	}
	h, err := sc.header(p.pos)
	if err != nil && !isBatchFault(err) {
		return 0, err
	}
	if err != nil || h.BaseOffset != s.base+p.rel {
		return 0, nil
	}
	return p.pos, nil
}

// applyAt notes a batch whose header was read from a place in a file, and whose checksum
// the caller has checked. It looks into a control batch only.
func (s *producerState) applyAt(f vfs.File, pos int64, h *record.Header, now int64) error {
	var kind int16
	var fence record.Fence
	if h.Attributes.Control() && h.Size() <= maxControlBatch {
		batch := make([]byte, h.Size())
		if n, err := f.ReadAt(batch, pos); n < len(batch) {
			return err
		}
		kind, fence, _ = record.Control(batch)
	}
	s.apply(h, kind, fence, now)
	return nil
}

// removeSnapshots removes every snapshot in the folder.
func (l *Log) removeSnapshots() error {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, s := range listSnapshots(entries) {
		if err := l.removeSnapshot(s.offset); err != nil {
			return err
		}
	}
	return nil
}
