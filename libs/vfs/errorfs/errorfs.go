package errorfs

import (
	"io"
	"path/filepath"
	"strings"
	"sync"

	"github.com/leat-io/leat/libs/vfs"
)

// Op names a call, of the file system or of a file.
type Op string

// The calls.
const (
	OpCreate    Op = "create"
	OpOpen      Op = "open"
	OpRemove    Op = "remove"
	OpRemoveAll Op = "remove-all"
	OpRename    Op = "rename"
	OpMkdirAll  Op = "mkdir-all"
	OpReadDir   Op = "read-dir"
	OpStat      Op = "stat"
	OpSyncDir   Op = "sync-dir"
	OpLock      Op = "lock"
	OpRead      Op = "read"
	OpWrite     Op = "write"
	OpSync      Op = "sync"
	OpTruncate  Op = "truncate"
	OpSize      Op = "size"
	OpClose     Op = "close"
)

// Changes reports whether the call changes the disk or what is durable on it.
func (o Op) Changes() bool {
	switch o {
	case OpCreate, OpRemove, OpRemoveAll, OpRename, OpMkdirAll, OpSyncDir, OpWrite, OpSync, OpTruncate:
		return true
	}
	return false
}

// Rule makes calls fail. The zero fields match everything.
type Rule struct {
	Ops   []Op   // the calls; none means all that change the disk
	Path  string // part of the path, or a pattern for its last element (filepath.Match)
	After int    // how many matching calls go through first
	Times int    // how many fail then; 0 means all
	Err   error  // what they fail with
	// Short lets a failing write put this many of its bytes on the disk first.
	Short int

	seen int
}

func (r *Rule) matches(op Op, path string) bool {
	if len(r.Ops) == 0 && !op.Changes() {
		return false
	}
	found := len(r.Ops) == 0
	for _, o := range r.Ops {
		found = found || o == op
	}
	if !found {
		return false
	}
	if r.Path == "" || strings.Contains(path, r.Path) {
		return true
	}
	ok, err := filepath.Match(r.Path, filepath.Base(path))
	return ok && err == nil
}

// hit counts a matching call and says whether it fails.
func (r *Rule) hit() bool {
	r.seen++
	return r.seen > r.After && (r.Times == 0 || r.seen <= r.After+r.Times)
}

// FS is the wrapped file system. It is safe for use by several goroutines.
type FS struct {
	inner vfs.FS

	mu     sync.Mutex
	rules  []*Rule
	onCall func(op Op, path string) error
	counts map[Op]int
	space  func(path string) (vfs.Space, error)
}

// Wrap returns a file system that passes every call on to inner.
func Wrap(inner vfs.FS) *FS { return &FS{inner: inner, counts: map[Op]int{}} }

var _ vfs.FS = (*FS)(nil)

// Add puts a rule in force. The first rule that lets a call fail decides.
func (f *FS) Add(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &r)
}

// Clear drops all rules and the hook.
func (f *FS) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.onCall = nil, nil
}

// OnCall sets a hook that sees every call before it is made, one at a time; an
// error makes the call fail. It must not call the file system.
func (f *FS) OnCall(hook func(op Op, path string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onCall = hook
}

// Count is how many calls of a kind were tried.
func (f *FS) Count(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[op]
}

// check decides over a call. short is how many bytes a failing write still writes.
func (f *FS) check(op Op, path string) (short int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[op]++
	if f.onCall != nil {
		if err := f.onCall(op, path); err != nil {
			return 0, err
		}
	}
	for _, r := range f.rules {
		if r.matches(op, path) && r.hit() {
			return r.Short, r.Err
		}
	}
	return 0, nil
}

func (f *FS) guard(op Op, path string) error {
	_, err := f.check(op, path)
	return err
}

func (f *FS) wrap(op Op, path string, open func(string) (vfs.File, error)) (vfs.File, error) {
	if err := f.guard(op, path); err != nil {
		return nil, err
	}
	inner, err := open(path)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, inner: inner, path: path}, nil
}

// Create implements vfs.FS.
func (f *FS) Create(path string) (vfs.File, error) { return f.wrap(OpCreate, path, f.inner.Create) }

// Open implements vfs.FS.
func (f *FS) Open(path string) (vfs.File, error) { return f.wrap(OpOpen, path, f.inner.Open) }

// OpenRead implements vfs.FS.
func (f *FS) OpenRead(path string) (vfs.File, error) { return f.wrap(OpOpen, path, f.inner.OpenRead) }

// Remove implements vfs.FS.
func (f *FS) Remove(path string) error {
	if err := f.guard(OpRemove, path); err != nil {
		return err
	}
	return f.inner.Remove(path)
}

// RemoveAll implements vfs.FS.
func (f *FS) RemoveAll(path string) error {
	if err := f.guard(OpRemoveAll, path); err != nil {
		return err
	}
	return f.inner.RemoveAll(path)
}

// Rename implements vfs.FS. Rules see the new path.
func (f *FS) Rename(oldPath, newPath string) error {
	if err := f.guard(OpRename, newPath); err != nil {
		return err
	}
	return f.inner.Rename(oldPath, newPath)
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(path string) error {
	if err := f.guard(OpMkdirAll, path); err != nil {
		return err
	}
	return f.inner.MkdirAll(path)
}

// ReadDir implements vfs.FS.
func (f *FS) ReadDir(path string) ([]vfs.DirEntry, error) {
	if err := f.guard(OpReadDir, path); err != nil {
		return nil, err
	}
	return f.inner.ReadDir(path)
}

// Stat implements vfs.FS.
func (f *FS) Stat(path string) (vfs.Info, error) {
	if err := f.guard(OpStat, path); err != nil {
		return vfs.Info{}, err
	}
	return f.inner.Stat(path)
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(path string) error {
	if err := f.guard(OpSyncDir, path); err != nil {
		return err
	}
	return f.inner.SyncDir(path)
}

// Lock implements vfs.FS.
func (f *FS) Lock(path string) (io.Closer, error) {
	if err := f.guard(OpLock, path); err != nil {
		return nil, err
	}
	return f.inner.Lock(path)
}

// SetSpace decides what DiskSpace answers; nil asks the wrapped file system again.
func (f *FS) SetSpace(space func(path string) (vfs.Space, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.space = space
}

// DiskSpace implements vfs.SpaceReporter.
func (f *FS) DiskSpace(path string) (vfs.Space, error) {
	f.mu.Lock()
	space := f.space
	f.mu.Unlock()
	if space != nil {
		return space(path)
	}
	return vfs.DiskSpace(f.inner, path)
}

type file struct {
	fs    *FS
	inner vfs.File
	path  string
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.guard(OpRead, f.path); err != nil {
		return 0, err
	}
	return f.inner.ReadAt(p, off)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return f.WriteVecAt([][]byte{p}, off)
}

func (f *file) WriteVecAt(vecs [][]byte, off int64) (int, error) {
	short, err := f.fs.check(OpWrite, f.path)
	if err == nil {
		return f.inner.WriteVecAt(vecs, off)
	}
	if short == 0 {
		return 0, err
	}
	var all []byte
	for _, v := range vecs {
		all = append(all, v...)
	}
	n, innerErr := f.inner.WriteAt(all[:min(short, len(all))], off)
	if innerErr != nil {
		return n, innerErr
	}
	return n, err
}

func (f *file) Sync() error {
	if err := f.fs.guard(OpSync, f.path); err != nil {
		return err
	}
	return f.inner.Sync()
}

func (f *file) Truncate(size int64) error {
	if err := f.fs.guard(OpTruncate, f.path); err != nil {
		return err
	}
	return f.inner.Truncate(size)
}

func (f *file) Size() (int64, error) {
	if err := f.fs.guard(OpSize, f.path); err != nil {
		return 0, err
	}
	return f.inner.Size()
}

func (f *file) Close() error {
	err := f.fs.guard(OpClose, f.path)
	if innerErr := f.inner.Close(); innerErr != nil {
		return innerErr
	}
	return err
}
