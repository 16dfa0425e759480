package vfs

import "errors"

// Space is the room on the disk that a path lies on.
type Space struct {
	Total int64 // bytes of the disk
	Free  int64 // bytes that this process may still fill
}

// SpaceReporter is a file system that knows how much room its disks have.
type SpaceReporter interface {
	// DiskSpace tells about the disk of a path that exists. It fails with
	// errors.ErrUnsupported where nobody knows.
	DiskSpace(path string) (Space, error)
}

// DiskSpace asks a file system, if it is a SpaceReporter; others fail with
// errors.ErrUnsupported.
func DiskSpace(fsys FS, path string) (Space, error) {
	if r, ok := fsys.(SpaceReporter); ok {
		return r.DiskSpace(path)
	}
	return Space{}, errors.ErrUnsupported
}
