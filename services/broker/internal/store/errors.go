package store

import (
	"errors"
	"fmt"

	"github.com/leat-io/leat/libs/topicid"
)

// ErrDiskOffline says that no disk is left to take a replica, or that the
// replica's own disk failed.
var ErrDiskOffline = errors.New("disk offline")

// NoDiskError says that every folder of log.dirs is on a disk that failed.
type NoDiskError struct {
	Dirs []string
	Errs []error // by folder
}

func (e *NoDiskError) Error() string {
	s := "no folder of log.dirs can be used"
	for i, dir := range e.Dirs {
		s += fmt.Sprintf("; %s: %v", dir, e.Errs[i])
	}
	return s + "; repair or replace the disks, then start the broker again"
}

// Unwrap gives the causes.
func (e *NoDiskError) Unwrap() []error { return append([]error{ErrDiskOffline}, e.Errs...) }

// LockedError says that another process uses a data folder.
type LockedError struct {
	Dir string
	Err error
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("the data folder %s is in use by another process; stop that one, or give this broker a folder of its own with log.dirs", e.Dir)
}

// Unwrap is the cause, vfs.ErrLocked.
func (e *LockedError) Unwrap() error { return e.Err }

// WrongOwnerError says that a disk belongs to another cluster or broker.
type WrongOwnerError struct {
	Dir  string
	What string // "cluster" or "broker"
	Want string // whose it should be
	Got  string // whose it is
}

func (e *WrongOwnerError) Error() string {
	return fmt.Sprintf("the data folder %s belongs to %s %s, and this is %s %s; set log.dirs to this broker's own folders, or move that one away", e.Dir, e.What, e.Got, e.What, e.Want)
}

// FileError says that one of the small files of a disk cannot be used.
type FileError struct {
	Path   string
	Detail string
}

func (e *FileError) Error() string { return fmt.Sprintf("%s: %s", e.Path, e.Detail) }

// NameTakenError says that a replica's folder name is taken by another topic's.
type NameTakenError struct {
	Dir  string
	Want topicid.ID
	Got  topicid.ID
}

func (e *NameTakenError) Error() string {
	return fmt.Sprintf("%s still belongs to topic id %v, which is being deleted, and not to %v; it is tried again once that is gone", e.Dir, e.Got, e.Want)
}
