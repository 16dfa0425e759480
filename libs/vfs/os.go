package vfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// OS is the file system of the operating system. Files it makes have mode 0640,
// directories 0750, both under the process's umask.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Create(path string) (File, error) {
	return wrapOS(os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640))
}

func (osFS) Open(path string) (File, error) {
	return wrapOS(os.OpenFile(path, os.O_RDWR, 0))
}

func (osFS) OpenRead(path string) (File, error) { return wrapOS(os.Open(path)) }

func (osFS) Remove(path string) error { return os.Remove(path) }

func (osFS) RemoveAll(path string) error { return os.RemoveAll(path) }

func (osFS) Rename(oldPath, newPath string) error { return os.Rename(oldPath, newPath) }

func (osFS) MkdirAll(path string) error { return os.MkdirAll(path, 0o750) }

func (osFS) ReadDir(path string) ([]DirEntry, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	out := make([]DirEntry, len(entries))
	for i, e := range entries {
		out[i] = DirEntry{Name: e.Name(), IsDir: e.IsDir()}
	}
	return out, nil
}

func (osFS) Stat(path string) (Info, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return Info{}, err
	}
	return Info{Size: fi.Size(), ModTime: fi.ModTime(), IsDir: fi.IsDir()}, nil
}

func (osFS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

type osFile struct {
	*os.File
	conn syscall.RawConn
}

func wrapOS(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &osFile{f, conn}, nil
}

func (f *osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (f *osFile) Sync() error { return syncData(f.File) }

func (f *osFile) WriteVecAt(vecs [][]byte, off int64) (int, error) {
	return writeVecAt(f.File, f.conn, vecs, off)
}
