package commitlog

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/leat-io/leat/libs/vfs"
)

const (
	marksFile    = "log-marks"
	marksKind    = "log-marks"
	marksVersion = 1
)

// noReset is marks.reset when no reset is under way.
const noReset = -1

// marks are the offsets that a log remembers about itself and that its batches
// cannot tell. It is a value.
type marks struct {
	// start is the log start offset: what lies below was deleted for good.
	start int64
	// gapsBelow is the offset below which batches need not follow one another
	// without gaps, because compaction took some out, here or at the leader.
	gapsBelow int64
	// cleanedBelow is the offset up to which the log has been compacted.
	cleanedBelow int64
	// tombstonesBelow is the highest offset up to which tombstones were removed. A
	// follower that starts below it has to start anew.
	tombstonesBelow int64
	// nextHorizon is when the next tombstone may go, in ms; noHorizon for never.
	nextHorizon int64
	// reset is the offset at which the log is to begin anew, empty, once all its
	// segments are gone; noReset when nothing of the kind is under way.
	reset int64
}

// fields gives the names of the marks in the file.
func (m *marks) fields() []struct {
	name  string
	value *int64
} {
	return []struct {
		name  string
		value *int64
	}{
		{"start", &m.start},
		{"gaps_below", &m.gapsBelow},
		{"cleaned_below", &m.cleanedBelow},
		{"tombstones_below", &m.tombstonesBelow},
		{"next_horizon", &m.nextHorizon},
		{"reset", &m.reset},
	}
}

// loadMarks reads the file. An absent one stands for a log that has none: it begins
// at 0 and was never compacted. Damage is a *CorruptError: nothing else knows what
// was deleted.
func loadMarks(fsys vfs.FS, dir string) (marks, error) {
	m := marks{reset: noReset, nextHorizon: noHorizon}
	path := joinPath(dir, marksFile)
	lines, err := readSmallFile(fsys, path, marksKind, marksVersion)
	if isNotExist(err) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, " ")
		for _, f := range m.fields() {
			if f.name != name {
				continue
			}
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return m, &CorruptError{Path: path, Offset: -1, Detail: fmt.Sprintf("the line %q does not fit", line)}
			}
			*f.value = n
		}
	}
	return m, nil
}

func (m marks) save(fsys vfs.FS, dir string) error {
	var lines []string
	for _, f := range m.fields() {
		if *f.value >= 0 {
			lines = append(lines, fmt.Sprintf("%s %d", f.name, *f.value))
		}
	}
	return vfs.WriteFileAtomic(fsys, joinPath(dir, marksFile), encodeSmallFile(marksKind, marksVersion, lines))
}

// currentMarks is a copy of the marks in force.
func (l *Log) currentMarks() marks {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.marks
}

// updateMarks changes the marks, durably before it returns. change works on a copy;
// with nothing changed nothing is written. It must not be called with mu held.
func (l *Log) updateMarks(change func(m *marks)) error {
	l.marksMu.Lock()
	defer l.marksMu.Unlock()
	old := l.currentMarks()
	m := old
	change(&m)
	if m == old {
		return nil
	}
	if err := m.save(l.fs, l.dir); err != nil {
		return l.diskError("marks", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks = m
	return nil
}

// diskError turns an error of a write that left everything as it was into what the
// caller is to see: *NoSpaceError, after which the log goes on, or a *FailedError,
// which is sticky.
func (l *Log) diskError(op string, err error) error {
	var unchanged *vfs.UnchangedError
	if errors.As(err, &unchanged) && isNoSpace(err) {
		return &NoSpaceError{Dir: l.dir, Op: op, Err: err}
	}
	return l.fail(op, err)
}
