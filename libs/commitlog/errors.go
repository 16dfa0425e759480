package commitlog

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrFailed is what a FailedError wraps: an earlier write or fsync failed and the
// log takes nothing more.
var ErrFailed = errors.New("log failed")

// ErrClosed says that the log was closed, aborted or deleted.
var ErrClosed = errors.New("log closed")

// FailedError is the sticky error of a log after a failed write or fsync: every
// later Append and Sync returns it. Reads go on. Both ErrFailed and the cause
// (EIO, ENOSPC) are found by errors.Is.
type FailedError struct {
	Dir string // the log's folder
	Op  string // what failed first: append, roll, sync
	Err error  // the cause
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("%s: %v: %s: %v; nothing is written here any more: check the disk, then restart the broker so that the log recovers",
		e.Dir, ErrFailed, e.Op, e.Err)
}

// Unwrap gives ErrFailed and the cause.
func (e *FailedError) Unwrap() []error { return []error{ErrFailed, e.Err} }

// NoSpaceError says that the disk is full. What was begun has been undone: nothing
// was appended or changed, the log goes on, and the call may be repeated once there
// is space. The cause (ENOSPC, EDQUOT) is found by errors.Is.
type NoSpaceError struct {
	Dir string // the log's folder
	Op  string // what found no room
	Err error
	// Begun says that a reset is on record and not finished. The log is empty, and
	// takes nothing until ResetTo or TruncateTo has been repeated, or it is opened anew.
	Begun bool
}

func (e *NoSpaceError) Error() string {
	if e.Begun {
		return fmt.Sprintf("%s: %s: no space left: %v; the log begins anew and could not finish that: free space on the disk, then try again", e.Dir, e.Op, e.Err)
	}
	return fmt.Sprintf("%s: %s: no space left: %v; nothing was changed: free space on the disk, then try again", e.Dir, e.Op, e.Err)
}

// Unwrap is the cause.
func (e *NoSpaceError) Unwrap() error { return e.Err }

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// OffsetOutOfRangeError says that a read began outside the log.
type OffsetOutOfRangeError struct {
	Offset int64 // what was asked for
	Start  int64 // first offset of the log
	End    int64 // one past the last
}

func (e *OffsetOutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d is out of range: the log holds offsets from %d up to, not including, %d; read from one of those",
		e.Offset, e.Start, e.End)
}

// TopicIDMismatchError says that the folder belongs to another topic, for
// instance to a deleted one of the same name.
type TopicIDMismatchError struct {
	Dir  string
	Want [16]byte
	Got  [16]byte
}

func (e *TopicIDMismatchError) Error() string {
	return fmt.Sprintf("%s belongs to topic id %x, not %x; set the folder aside, it must not be served", e.Dir, e.Got, e.Want)
}

// UnsupportedVersionError says that a file was written by a newer release.
type UnsupportedVersionError struct {
	Path    string
	Version int
	Max     int // the newest version this program reads
}

func (e *UnsupportedVersionError) Error() string {
	return fmt.Sprintf("%s has format version %d and this program reads up to %d; use the release that wrote it, or a newer one", e.Path, e.Version, e.Max)
}

// CorruptError says that bytes which were durable are damaged or gone, and
// where. Nothing is changed on disk when it is returned: keep the folder until a
// healthy copy is in sync elsewhere.
type CorruptError struct {
	Path     string // the file at fault
	Position int64  // byte in that file
	Offset   int64  // log offset where the fault begins, -1 when it has none
	Detail   string
	Err      error // the cause, may be nil
}

func (e *CorruptError) Error() string {
	s := fmt.Sprintf("%s is corrupt at byte %d", e.Path, e.Position)
	if e.Offset >= 0 {
		s += fmt.Sprintf(" (offset %d)", e.Offset)
	}
	s += ": " + e.Detail
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s + "; keep the folder and restore this replica from another one"
}

// Unwrap is the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// StaleEpochError says that an append names an older leader epoch than the log
// has already seen.
type StaleEpochError struct {
	Epoch  int32 // what the append named
	Latest int32 // the newest in the log
}

func (e *StaleEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d is older than epoch %d, which the log has seen; this broker no longer leads, ask for the newer leader", e.Epoch, e.Latest)
}

// OutOfOrderError says that a batch with an offset of its own lies below the log's
// end. Nothing was appended.
type OutOfOrderError struct {
	Offset int64 // base offset of the batch
	End    int64 // of the log
}

func (e *OutOfOrderError) Error() string {
	return fmt.Sprintf("a batch at offset %d cannot follow a log that ends before %d; truncate the log first, or go on with a later batch", e.Offset, e.End)
}
