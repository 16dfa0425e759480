package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// VerifyOptions says how strictly Verify looks. The zero value does for a folder
// about which nothing else is known.
type VerifyOptions struct {
	// DurableBelow is the offset below which everything was durable, by the owner's
	// recovery point and high-watermark checkpoint; 0 when unknown. A log that ends
	// below is at fault, however its tail looks.
	DurableBelow int64
	// IndexIntervalBytes is the topic's index.interval.bytes; 0 is the default. An
	// index that lacks entries for more than twice as much at its end is called
	// short, and RepairIndexes makes entries at this distance.
	IndexIntervalBytes int64
	// MaxDecodedBytes is the most that one batch may unpack to; 0 is
	// record.DefaultMaxDecodedBytes.
	MaxDecodedBytes int
	// SkipRecords leaves the inside of batches alone: checksums are compared all the
	// same.
	SkipRecords bool
}

// maxFindings bounds the faults, and the notes, that a report lists.
const maxFindings = 1000

// Finding is something that Verify found at a place.
type Finding struct {
	Path     string
	Position int64 // byte in the file; -1 when the file as a whole is meant
	Offset   int64 // log offset, -1 when it has none
	Detail   string
}

func (f *Finding) String() string {
	s := f.Path
	if f.Position >= 0 {
		s += fmt.Sprintf(" at byte %d", f.Position)
	}
	if f.Offset >= 0 {
		s += fmt.Sprintf(" (offset %d)", f.Offset)
	}
	return s + ": " + f.Detail
}

// VerifyReport says what Verify found in a folder.
type VerifyReport struct {
	Dir          string
	Metadata     Metadata // zero when it cannot be read
	Start, End   int64    // offsets, as the files have them; End is one past the last valid batch
	Segments     int
	Batches      int64
	Records      int64
	Bytes        int64 // of .log files
	IndexEntries int64
	// Faults are in the order in which they were met, at most 1000 of them.
	Faults     []Finding
	FaultCount int
	// Notes are what an unclean stop leaves behind: a torn tail, short indexes, an
	// unfinished replacement. The next Open deals with them.
	Notes []Finding
	// TornBytes is the length of the torn tail that Open will cut off, TornAt where
	// it begins in the last segment; 0 when there is none.
	TornBytes, TornAt int64

	repair []repairWork // segments whose indexes are damaged, short or missing
	epochs epochCache   // as the batches have them
	badEpo bool         // the leader-epoch checkpoint is damaged or missing
	badSna []string     // producer snapshots that are damaged
	badLog bool         // some .log is at fault
}

// OK is true when there is no fault.
func (r *VerifyReport) OK() bool { return r.FaultCount == 0 }

// FirstFault is the fault that was met first, nil when there is none.
func (r *VerifyReport) FirstFault() *Finding {
	if len(r.Faults) == 0 {
		return nil
	}
	return &r.Faults[0]
}

func (r *VerifyReport) fault(path string, pos, offset int64, format string, args ...any) {
	if r.FaultCount++; len(r.Faults) < maxFindings {
		r.Faults = append(r.Faults, Finding{Path: path, Position: pos, Offset: offset, Detail: fmt.Sprintf(format, args...)})
	}
}

func (r *VerifyReport) note(path string, pos, offset int64, format string, args ...any) {
	if len(r.Notes) < maxFindings {
		r.Notes = append(r.Notes, Finding{Path: path, Position: pos, Offset: offset, Detail: fmt.Sprintf(format, args...)})
	}
}

// repairWork names a segment whose indexes are to be made anew.
type repairWork struct {
	base   int64
	sealed int64 // offset that it ends before, notSealed for the last one
	upTo   int64 // bytes of the .log that are valid
}

// verifier is one run of Verify.
type verifier struct {
	fs     vfs.FS
	dir    string
	o      VerifyOptions
	r      *VerifyReport
	marks  marks
	stored epochCache
	haveEp bool // stored can be believed
	next   int64
	lost   bool // behind damage, before the next valid batch
	reader *record.Reader
	scan   []byte
	batch  []byte
}

// Verify reads a replica's folder, which may have any name, and checks everything
// in it: batches, their checksums, records and offsets; indexes entry by entry; the
// leader epochs; the small files. It changes nothing. A log that is in use is
// read as it is at the moment, and may seem to have a torn tail.
//
// What is wrong is in the report. Errors are of the disk, and of a folder without
// any segment.
//
// The tail counts as torn, and not as a fault, if no valid batch lies behind it in
// the last segment and it looks as a crash leaves it: the file ends within the
// batch, or is zero from some sector on. A whole batch with a wrong checksum is a
// fault.
func Verify(fsys vfs.FS, dir string, o VerifyOptions) (VerifyReport, error) {
	if o.IndexIntervalBytes <= 0 {
		o.IndexIntervalBytes = DefaultIndexIntervalBytes
	}
	v := verifier{
		fs: fsys, dir: dir, o: o, r: &VerifyReport{Dir: dir, Start: -1, End: -1},
		reader: record.NewReader(o.MaxDecodedBytes), scan: make([]byte, scanBuffer),
	}
	err := v.run()
	return *v.r, err
}

func (v *verifier) run() error {
	segs, err := v.list()
	if err != nil {
		return err
	}
	if len(segs) == 0 {
		return fmt.Errorf("verify %s: it holds no segment (a file such as %s); give the folder of a replica", v.dir, filepath.Base(segmentPath(v.dir, 0, logSuffix)))
	}
	if err := v.smallFiles(); err != nil {
		return err
	}
	v.next = segs[0].base
	v.r.Start = max(v.next, v.marks.start)
	v.r.Segments = len(segs)
	for i := range segs {
		if err := v.segment(segs, i); err != nil {
			return err
		}
	}
	v.r.End = v.next
	if err := v.snapshots(); err != nil {
		return err
	}
	if v.next < v.o.DurableBelow {
		last := segs[len(segs)-1]
		v.r.badLog = true
		v.r.fault(last.logPath, -1, v.next, "the log ends here, and offsets below %d were durable", v.o.DurableBelow)
	}
	return nil
}

// list finds the segments as the next Open will see them: a replacement that was
// begun stands for what it replaces.
func (v *verifier) list() ([]*segment, error) {
	bases, err := listSegments(v.fs, v.dir)
	if err != nil {
		return nil, err
	}
	entries, err := v.fs.ReadDir(v.dir)
	if err != nil {
		return nil, err
	}
	var segs []*segment
	for _, base := range bases {
		segs = append(segs, newSegment(v.fs, v.dir, base))
	}
	for _, e := range entries {
		path := joinPath(v.dir, e.Name)
		if base, end, ok := parseSwap(e.Name); ok {
			v.r.note(path, -1, base, "a compaction was interrupted; the next start completes it")
			segs = swapIn(segs, newSegment(v.fs, v.dir, base), end)
			continue
		}
		for _, suffix := range []string{cleanedSuffix, deletedSuffix, ".tmp"} {
			if strings.HasSuffix(e.Name, suffix) {
				v.r.note(path, -1, -1, "a leftover that the next start removes or overwrites")
			}
		}
	}
	for i, s := range segs[:max(0, len(segs)-1)] {
		s.sealedAt.Store(segs[i+1].base)
	}
	return segs, nil
}

// swapIn puts a replacement in the place of the segments from its base up to end.
func swapIn(segs []*segment, s *segment, end int64) []*segment {
	s.logPath = swapPath(s.dir, s.base, end)
	var out []*segment
	placed := false
	for _, old := range segs {
		if !placed && old.base >= s.base {
			out, placed = append(out, s), true
		}
		if old.base < s.base || old.base >= end {
			out = append(out, old)
		}
	}
	if !placed {
		out = append(out, s)
	}
	return out
}

// smallFiles reads the files beside the segments.
func (v *verifier) smallFiles() error {
	damage := func(path string, err error) error {
		var corrupt *CorruptError
		var version *UnsupportedVersionError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &corrupt):
			v.r.fault(corrupt.Path, -1, -1, "%s", corrupt.Detail)
			return nil
		case errors.As(err, &version):
			v.r.fault(version.Path, -1, -1, "it has format version %d and this program reads up to %d", version.Version, version.Max)
			return nil
		case isNotExist(err):
			v.r.fault(path, -1, -1, "the file is missing")
			return nil
		}
		return err
	}
	m, err := ReadMetadata(v.fs, v.dir)
	if v.r.Metadata = m; err != nil {
		v.r.Metadata = Metadata{}
		if err := damage(joinPath(v.dir, metadataFile), err); err != nil {
			return err
		}
	}
	if v.marks, err = loadMarks(v.fs, v.dir); err != nil {
		// Without it gaps cannot be told from losses.
		v.marks = marks{gapsBelow: 1<<63 - 1}
		if err := damage(joinPath(v.dir, marksFile), err); err != nil {
			return err
		}
	}
	v.stored, err = loadEpochs(v.fs, v.dir)
	v.haveEp = err == nil
	empty := isNotExist(err) && v.isEmpty()
	if v.r.badEpo = err != nil && !empty; v.r.badEpo {
		return damage(joinPath(v.dir, epochFile), err)
	}
	return nil
}

// snapshots reads what the log remembers of its producers. It is not synced at once:
// a torn one is what a crash leaves.
func (v *verifier) snapshots() error {
	entries, err := v.fs.ReadDir(v.dir)
	if err != nil {
		return err
	}
	for _, s := range listSnapshots(entries) {
		path := segmentPath(v.dir, s.offset, snapshotSuffix)
		_, err := loadSnapshot(v.fs, v.dir, s.offset)
		var corrupt *CorruptError
		switch {
		case err == nil && s.offset > v.next:
			v.r.note(path, -1, s.offset, "it was made beyond the end of the log; the next start removes it")
		case errors.As(err, &corrupt):
			data, err := vfs.ReadFile(v.fs, path, maxSnapshot)
			if err != nil {
				return err
			}
			v.r.badSna = append(v.r.badSna, path)
			if n := len(data); n == 0 || data[n-1] != '\n' || bytes.Contains(data, make([]byte, 8)) {
				v.r.note(path, -1, s.offset, "the snapshot of the producers is torn; the next start does without it")
			} else {
				v.r.fault(path, -1, s.offset, "%s", corrupt.Detail)
			}
		case err != nil:
			return err
		}
	}
	return nil
}

// isEmpty is true of a log whose only segment has no bytes.
func (v *verifier) isEmpty() bool {
	bases, err := listSegments(v.fs, v.dir)
	if err != nil || len(bases) != 1 {
		return false
	}
	info, err := v.fs.Stat(segmentPath(v.dir, bases[0], logSuffix))
	return err == nil && info.Size == 0
}
