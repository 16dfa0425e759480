package commitlog

import (
	"errors"
	"math"

	"github.com/leat-io/leat/libs/vfs"
)

// RepairReport says what RepairIndexes made anew.
type RepairReport struct {
	Before  VerifyReport // what was found
	Indexes []string     // paths of the .index files that were made anew, each with its .timeindex
	Epochs  bool         // the leader-epoch checkpoint was made anew
	// Snapshots are paths of damaged producer snapshots, which were removed: the next
	// start learns from the batches what they held.
	Snapshots []string
}

// RepairIndexes verifies a folder and makes anew, durably, what can be derived from
// the batches and is damaged, short or missing: indexes, and the leader-epoch
// checkpoint if no .log is at fault; damaged snapshots of the producers go. It never writes to a .log file; an index goes
// as far as the batches before the first fault. Nobody else may have the log open.
func RepairIndexes(fsys vfs.FS, dir string, o VerifyOptions) (RepairReport, error) {
	if o.IndexIntervalBytes <= 0 {
		o.IndexIntervalBytes = DefaultIndexIntervalBytes
	}
	before, err := Verify(fsys, dir, o)
	r := RepairReport{Before: before}
	if err != nil {
		return r, err
	}
	for _, work := range before.repair {
		done, err := repairIndex(fsys, dir, work, o.IndexIntervalBytes)
		if err != nil {
			return r, err
		}
		if done {
			r.Indexes = append(r.Indexes, segmentPath(dir, work.base, indexSuffix))
		}
	}
	if before.badEpo && !before.badLog {
		if err := before.epochs.save(fsys, dir); err != nil {
			return r, err
		}
		r.Epochs = true
	}
	for _, path := range before.badSna {
		if err := fsys.Remove(path); err != nil {
			return r, err
		}
		r.Snapshots = append(r.Snapshots, path)
	}
	return r, fsys.SyncDir(dir)
}

// repairSuffix ends the names of indexes that are being made.
const repairSuffix = ".tmp"

// repairIndex writes both indexes of a segment under other names and then renames
// them. It leaves a segment alone whose replacement is under way.
func repairIndex(fsys vfs.FS, dir string, work repairWork, interval int64) (done bool, err error) {
	f, err := fsys.OpenRead(segmentPath(dir, work.base, logSuffix))
	if isNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	x := newSegIndex(fsys, dir, work.base)
	names := []string{x.offsets.path, x.times.path}
	for _, e := range []*entryFile{&x.offsets, &x.times} {
		e.path += repairSuffix
		if err := e.create(); err != nil {
			return false, err
		}
	}
	if err := errors.Join(x.fill(f, work, interval), x.close()); err != nil {
		return false, err
	}
	for i, e := range []*entryFile{&x.offsets, &x.times} {
		if err := fsys.Rename(e.path, names[i]); err != nil {
			return false, err
		}
	}
	return true, fsys.SyncDir(dir)
}

// fill makes the entries for the batches of a .log, up to where they are valid, and
// syncs them.
func (x *segIndex) fill(f vfs.File, work repairWork, interval int64) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	sc := newScanner(f, min(size, work.upTo), make([]byte, scanBuffer))
	maxTS, pos := int64(noTimestamp), int64(0)
	for pos < sc.size {
		h, err := sc.header(pos)
		if isBatchFault(err) {
			break // a torn tail
		}
		if err != nil {
			return err
		}
		if err := x.note(indexPoint{h.BaseOffset - work.base, pos}, int64(h.Size()), maxTS, interval); err != nil {
			return err
		}
		if h.NumRecords > 0 {
			maxTS = max(maxTS, h.MaxTimestamp)
		}
		pos += int64(h.Size())
	}
	if work.sealed != notSealed && pos == size {
		if err := x.seal(maxTS, indexPoint{min(work.sealed-work.base, math.MaxUint32), pos}); err != nil {
			return err
		}
	}
	return x.sync()
}
