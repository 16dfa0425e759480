package storage

import (
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/leat-io/leat/libs/vfs"
)

// warmFS keeps the files of removed segments and hands them out again for new ones,
// with the pages that they have, and counts the syncs of .log files. Freshly
// allocated page cache is several times slower to write on a virtual machine, and
// how slow depends on what ran before.
type warmFS struct {
	vfs.FS
	mu    sync.Mutex
	spare []string // files of removed segments
	next  int
	dir   string
	sizes map[string]*atomic.Int64 // logical sizes of .log files
	syncs atomic.Int64
}

func newWarmFS(dir string) *warmFS {
	return &warmFS{FS: vfs.OS(), dir: dir, sizes: map[string]*atomic.Int64{}}
}

type warmFile struct {
	vfs.File
	fs   *warmFS
	size *atomic.Int64
}

func isLog(path string) bool { return strings.HasSuffix(path, ".log") }

func (w *warmFS) wrap(path string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !isLog(path) {
		return f, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	size := w.sizes[path]
	if size == nil {
		size = new(atomic.Int64)
		n, err := f.Size()
		if err != nil {
			return nil, err
		}
		size.Store(n)
		w.sizes[path] = size
	}
	return &warmFile{File: f, fs: w, size: size}, nil
}

// Create takes a spare file, with its pages, if there is one.
func (w *warmFS) Create(path string) (vfs.File, error) {
	w.mu.Lock()
	if !isLog(path) || len(w.spare) == 0 {
		w.mu.Unlock()
		f, err := w.FS.Create(path)
		return w.wrap(path, f, err)
	}
	spare := w.spare[len(w.spare)-1]
	w.spare = w.spare[:len(w.spare)-1]
	w.sizes[path] = new(atomic.Int64)
	w.mu.Unlock()
	if err := w.Rename(spare, path); err != nil {
		return nil, err
	}
	f, err := w.FS.Open(path)
	return w.wrap(path, f, err)
}

func (w *warmFS) Open(path string) (vfs.File, error) {
	f, err := w.FS.Open(path)
	return w.wrap(path, f, err)
}

func (w *warmFS) OpenRead(path string) (vfs.File, error) {
	f, err := w.FS.OpenRead(path)
	return w.wrap(path, f, err)
}

// Remove keeps the file of a .log under another name.
func (w *warmFS) Remove(path string) error {
	if !isLog(path) {
		return w.FS.Remove(path)
	}
	w.mu.Lock()
	w.next++
	spare := filepath.Join(w.dir, "spare-"+string(rune('a'+w.next%26))+filepath.Base(path))
	w.spare = append(w.spare, spare)
	delete(w.sizes, path)
	w.mu.Unlock()
	return w.FS.Rename(path, spare)
}

func (f *warmFile) Size() (int64, error) { return f.size.Load(), nil }

func (f *warmFile) Truncate(n int64) error {
	f.size.Store(n)
	return nil
}

func (f *warmFile) grow(end int64) {
	for {
		n := f.size.Load()
		if n >= end || f.size.CompareAndSwap(n, end) {
			return
		}
	}
}

func (f *warmFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(b, off)
	f.grow(off + int64(n))
	return n, err
}

func (f *warmFile) WriteVecAt(vecs [][]byte, off int64) (int, error) {
	n, err := f.File.WriteVecAt(vecs, off)
	f.grow(off + int64(n))
	return n, err
}

func (f *warmFile) Sync() error {
	f.fs.syncs.Add(1)
	return f.File.Sync()
}
