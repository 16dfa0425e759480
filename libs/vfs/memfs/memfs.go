package memfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/leat-io/leat/libs/vfs"
)

// ErrCrashed is what files that were open before a crash answer.
var ErrCrashed = errors.New("the file system has crashed since this file was opened")

// FS is a file system in memory. It is safe for use by several goroutines. Use New.
type FS struct {
	mu    sync.Mutex
	root  *node
	life  int // counts crashes
	locks map[string]int
	open  int
	clock time.Time // advances by a second with each write, so that tests repeat
}

// node is a file or a directory.
type node struct {
	dir bool

	// of a file
	data    []byte  // as read
	durable []byte  // as after a crash
	pending []write // since the last sync, in order
	mod     time.Time

	// of a directory
	names        map[string]*node
	durableNames map[string]*node
	changes      []change // since the last sync, in order
}

// write is a change of a file: bytes at a place, or a new length.
type write struct {
	off      int64
	data     []byte
	truncate bool // to off
}

// change is a change of a directory: a name now means node, or nothing. A rename
// inside one directory drops the old name in the same step.
type change struct {
	name string
	to   *node
	drop string
}

// New returns an empty file system. Its root is "/"; relative paths begin there
// too.
func New() *FS {
	return &FS{root: newDir(), locks: map[string]int{}, clock: time.Unix(1_700_000_000, 0)}
}

// OpenFiles is the number of files opened since the last crash and not yet closed.
func (f *FS) OpenFiles() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

func newDir() *node {
	return &node{dir: true, names: map[string]*node{}, durableNames: map[string]*node{}}
}

var _ vfs.FS = (*FS)(nil)

// Crash loses power: everything not durable is forgotten, and every open file and
// lock is dead. keep, if not nil, is asked for each unsynced change, in order, how
// many thousandths of it reached the disk; 0 is none and 1000 all of it. Of a write
// that is a prefix; a change of a name is kept from 500 on. Once a name's change is
// lost, so are the later ones of that directory.
func (f *FS) Crash(keep func() int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.life++
	f.open = 0
	clear(f.locks)
	if keep == nil {
		keep = func() int { return 0 }
	}
	f.root.crash(keep, map[*node]bool{})
}

func (n *node) crash(keep func() int, seen map[*node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	if !n.dir {
		for _, w := range n.pending {
			n.durable = w.apply(n.durable, keep())
		}
		n.data, n.pending = append([]byte(nil), n.durable...), nil
		return
	}
	for _, c := range n.changes {
		if keep() < 500 {
			break
		}
		setName(n.durableNames, c)
	}
	n.changes = nil
	n.names = make(map[string]*node, len(n.durableNames))
	for _, name := range sortedNames(n.durableNames) {
		n.names[name] = n.durableNames[name]
		n.names[name].crash(keep, seen)
	}
}

func (w *write) apply(b []byte, thousandths int) []byte {
	if w.truncate {
		if thousandths < 500 {
			return b
		}
		return resize(b, w.off)
	}
	data := w.data[:len(w.data)*min(thousandths, 1000)/1000]
	if len(data) == 0 {
		return b
	}
	if end := w.off + int64(len(data)); end > int64(len(b)) {
		b = resize(b, end)
	}
	copy(b[w.off:], data)
	return b
}

func resize(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		// What comes after must read as zeroes if the file grows again.
		clear(b[size:])
		return b[:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

func setName(names map[string]*node, c change) {
	if c.to == nil {
		delete(names, c.name)
	} else {
		names[c.name] = c.to
	}
	if c.drop != "" {
		delete(names, c.drop)
	}
}

func sortedNames(names map[string]*node) []string {
	out := make([]string, 0, len(names))
	for n := range names {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

func (n *node) set(name string, to *node) { n.change(change{name: name, to: to}) }

func (n *node) change(c change) {
	setName(n.names, c)
	n.changes = append(n.changes, c)
}

func split(path string) []string {
	path = strings.Trim(filepath.ToSlash(filepath.Clean("/"+path)), "/")
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

// lookup finds a node; the caller holds mu.
func (f *FS) lookup(op, path string) (*node, error) {
	n := f.root
	for _, name := range split(path) {
		if n = n.names[name]; n == nil {
			return nil, &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist}
		}
	}
	return n, nil
}

// parent finds the directory that a path lies in, and its last name.
func (f *FS) parent(op, path string) (*node, string, error) {
	parts := split(path)
	if len(parts) == 0 {
		return nil, "", &fs.PathError{Op: op, Path: path, Err: fs.ErrInvalid}
	}
	n, err := f.lookup(op, strings.Join(parts[:len(parts)-1], "/"))
	if err == nil && !n.dir {
		err = &fs.PathError{Op: op, Path: path, Err: errors.New("not a directory")}
	}
	return n, parts[len(parts)-1], err
}

func (f *FS) openNode(op, path string, writable bool) (vfs.File, error) {
	n, err := f.lookup(op, path)
	if err != nil {
		return nil, err
	}
	if n.dir {
		return nil, &fs.PathError{Op: op, Path: path, Err: errors.New("is a directory")}
	}
	f.open++
	return &file{fs: f, node: n, path: path, writable: writable, life: f.life}, nil
}

// Create implements vfs.FS.
func (f *FS) Create(path string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, name, err := f.parent("create", path)
	if err != nil {
		return nil, err
	}
	if n := dir.names[name]; n == nil {
		dir.set(name, &node{mod: f.clock})
	} else if !n.dir {
		n.write(write{truncate: true})
	}
	return f.openNode("create", path, true)
}

// Open implements vfs.FS.
func (f *FS) Open(path string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.openNode("open", path, true)
}

// OpenRead implements vfs.FS.
func (f *FS) OpenRead(path string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.openNode("open", path, false)
}

// Remove implements vfs.FS.
func (f *FS) Remove(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, name, err := f.parent("remove", path)
	if err != nil {
		return err
	}
	n := dir.names[name]
	if n == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
	}
	if n.dir && len(n.names) > 0 {
		return &fs.PathError{Op: "remove", Path: path, Err: errors.New("directory not empty")}
	}
	dir.set(name, nil)
	return nil
}

// RemoveAll implements vfs.FS.
func (f *FS) RemoveAll(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, name, err := f.parent("remove", path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if n := dir.names[name]; n != nil {
		n.empty()
		dir.set(name, nil)
	}
	return nil
}

// empty removes what a directory holds, name by name, as a disk would see it.
func (n *node) empty() {
	for _, name := range sortedNames(n.names) {
		n.names[name].empty()
		n.set(name, nil)
	}
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldPath, newPath string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, oldName, err := f.parent("rename", oldPath)
	if err != nil {
		return err
	}
	to, newName, err := f.parent("rename", newPath)
	if err != nil {
		return err
	}
	n := from.names[oldName]
	if n == nil {
		return &fs.PathError{Op: "rename", Path: oldPath, Err: fs.ErrNotExist}
	}
	if over := to.names[newName]; over != nil && (over.dir || n.dir) {
		return &fs.PathError{Op: "rename", Path: newPath, Err: fs.ErrExist}
	}
	switch {
	case from != to:
		to.set(newName, n)
		from.set(oldName, nil)
	case oldName != newName:
		to.change(change{name: newName, to: n, drop: oldName})
	}
	return nil
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.root
	for _, name := range split(path) {
		next := n.names[name]
		if next == nil {
			next = newDir()
			n.set(name, next)
		}
		if !next.dir {
			return &fs.PathError{Op: "mkdir", Path: path, Err: errors.New("not a directory")}
		}
		n = next
	}
	return nil
}

// ReadDir implements vfs.FS.
func (f *FS) ReadDir(path string) ([]vfs.DirEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup("readdir", path)
	if err != nil {
		return nil, err
	}
	var out []vfs.DirEntry
	for _, name := range sortedNames(n.names) {
		out = append(out, vfs.DirEntry{Name: name, IsDir: n.names[name].dir})
	}
	return out, nil
}

// Stat implements vfs.FS.
func (f *FS) Stat(path string) (vfs.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup("stat", path)
	if err != nil {
		return vfs.Info{}, err
	}
	return vfs.Info{Size: int64(len(n.data)), ModTime: n.mod, IsDir: n.dir}, nil
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup("syncdir", path)
	if err != nil {
		return err
	}
	for _, c := range n.changes {
		setName(n.durableNames, c)
	}
	n.changes = nil
	return nil
}

// Lock implements vfs.FS.
func (f *FS) Lock(path string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, name, err := f.parent("lock", path)
	if err != nil {
		return nil, err
	}
	key := strings.Join(split(path), "/")
	if _, held := f.locks[key]; held {
		return nil, fmt.Errorf("lock %s: %w", path, vfs.ErrLocked)
	}
	if dir.names[name] == nil {
		dir.set(name, &node{mod: f.clock})
	}
	f.locks[key] = f.life
	return &lock{fs: f, key: key, life: f.life}, nil
}

type lock struct {
	fs   *FS
	key  string
	life int
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.life == l.fs.life {
		delete(l.fs.locks, l.key)
	}
	return nil
}
