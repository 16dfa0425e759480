package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"
)

// ErrLocked says that another holder, in this process or another one, has the
// lock. It is returned wrapped with the path; test with errors.Is.
var ErrLocked = errors.New("already locked")

// FS is a file system. Errors of an absent or existing path satisfy
// errors.Is(err, fs.ErrNotExist) and fs.ErrExist. A call that fails has, as far
// as the caller can know, either happened or not.
type FS interface {
	// Create makes an empty file for reading and writing, or empties the one that
	// is there. The caller owns the File. The name is not durable before SyncDir.
	Create(path string) (File, error)
	// Open opens an existing file for reading and writing. The caller owns the File.
	Open(path string) (File, error)
	// OpenRead opens an existing file for reading; writing to it fails. The caller
	// owns the File.
	OpenRead(path string) (File, error)
	// Remove deletes a file or an empty directory. Files that are open stay
	// readable until closed. Not durable before SyncDir of the parent.
	Remove(path string) error
	// RemoveAll deletes a tree. An absent path is no error. When it fails, part of
	// the tree may be gone.
	RemoveAll(path string) error
	// Rename moves a file or directory, replacing a file at the new path in one
	// step. Durable after SyncDir of both parents.
	Rename(oldPath, newPath string) error
	// MkdirAll makes a directory and its parents; one that exists is no error. Not
	// durable before SyncDir of each parent.
	MkdirAll(path string) error
	// ReadDir lists the names in a directory, sorted. The caller owns the slice.
	ReadDir(path string) ([]DirEntry, error)
	// Stat describes a file or directory.
	Stat(path string) (Info, error)
	// SyncDir makes the entries of a directory durable: what was created, removed
	// and renamed in it before the call.
	SyncDir(path string) error
	// Lock creates the file if need be and takes an exclusive lock on it without
	// waiting. It fails with ErrLocked when somebody holds it. Close of the result
	// releases the lock; so does the end of the process. The file stays.
	Lock(path string) (io.Closer, error)
}

// File is an open file. ReadAt, WriteAt and WriteVecAt may run concurrently with
// one another and with Sync; Close must come last, once.
type File interface {
	// ReadAt reads as io.ReaderAt says: fewer bytes than asked come with an error,
	// io.EOF at the end. The buffer is the caller's.
	io.ReaderAt
	// WriteAt writes at a byte offset, extending the file, with holes read as
	// zeroes. It does not keep the buffer. When it fails, any part of the bytes may
	// have been written.
	io.WriterAt
	// WriteVecAt writes the concatenation of vecs at a byte offset, in one system
	// call where the system can. It keeps neither the slice nor the buffers, and
	// changes neither. It fails as WriteAt does.
	WriteVecAt(vecs [][]byte, off int64) (int, error)
	// Sync makes the file's bytes and length durable (fdatasync where there is
	// one). After a failure the file's durable state is unknown for good.
	Sync() error
	// Truncate sets the length in bytes; growing adds zeroes. Durable after Sync.
	Truncate(size int64) error
	// Size is the current length in bytes.
	Size() (int64, error)
	// Close releases the descriptor. It does not sync. Calls after it fail with
	// fs.ErrClosed.
	Close() error
}

// DirEntry is one name in a directory.
type DirEntry struct {
	Name  string
	IsDir bool
}

// Info describes a file or directory.
type Info struct {
	Size    int64 // bytes; of a directory, unspecified
	ModTime time.Time
	IsDir   bool
}

// ReadFile reads a whole file of at most limit bytes. A longer one is an error,
// so that a damaged small file cannot take all memory.
func ReadFile(fsys FS, path string, limit int64) (_ []byte, err error) {
	f, err := fsys.OpenRead(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("read %s: it has %d bytes where at most %d are expected", path, size, limit)
	}
	buf := make([]byte, size)
	if n, err := f.ReadAt(buf, 0); n < len(buf) {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return buf, nil
}

// WriteFileAtomic replaces path with data so that after a crash at any moment
// the file holds the old bytes or the new ones, whole. It writes path+".tmp",
// syncs it, renames it and syncs the directory; when it returns nil the new
// bytes are durable. A leftover ".tmp" is overwritten by the next call.
//
// An error that satisfies errors.As for *UnchangedError came before anything was
// synced or renamed: the file is as it was, and the call may be repeated.
func WriteFileAtomic(fsys FS, path string, data []byte) error {
	staged, err := StageFile(fsys, path, data)
	if err != nil {
		return err
	}
	return staged.Commit()
}

// StagedFile is a replacement of a file that lies durably beside it.
type StagedFile struct {
	fsys FS
	path string
}

// StageFile writes, durably, what is to replace a file, beside it: what needs room on the
// disk is done then. Until Commit the file itself is not touched. Errors are those of
// WriteFileAtomic.
func StageFile(fsys FS, path string, data []byte) (StagedFile, error) {
	staged := StagedFile{fsys: fsys, path: path}
	f, err := fsys.Create(staged.temporary())
	if err != nil {
		return staged, &UnchangedError{Path: path, Err: err}
	}
	if _, err = f.WriteAt(data, 0); err != nil {
		return staged, &UnchangedError{Path: path, Err: errors.Join(err, f.Close())}
	}
	return staged, errors.Join(f.Sync(), f.Close())
}

func (s StagedFile) temporary() string { return s.path + ".tmp" }

// Commit replaces the file, durably.
func (s StagedFile) Commit() error {
	if err := s.fsys.Rename(s.temporary(), s.path); err != nil {
		return err
	}
	return s.fsys.SyncDir(filepath.Dir(s.path))
}

// UnchangedError says that the replacement of a file could not be written, and that
// the file itself was not touched.
type UnchangedError struct {
	Path string // the file that was to be replaced
	Err  error
}

func (e *UnchangedError) Error() string {
	return fmt.Sprintf("%s stays as it was: %v", e.Path, e.Err)
}

// Unwrap is the cause.
func (e *UnchangedError) Unwrap() error { return e.Err }

// Exists reports whether a path is there.
func Exists(fsys FS, path string) (bool, error) {
	_, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
