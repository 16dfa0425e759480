package memfs

import (
	"errors"
	"io"
	"io/fs"
	"time"
)

// file is an open file.
type file struct {
	fs       *FS
	node     *node
	path     string
	writable bool
	life     int
	closed   bool
}

// enter locks the file system and checks that the file may be used.
func (f *file) enter(op string, writing bool) error {
	f.fs.mu.Lock()
	var err error
	switch {
	case f.closed:
		err = fs.ErrClosed
	case f.life != f.fs.life:
		err = ErrCrashed
	case writing && !f.writable:
		err = fs.ErrPermission
	default:
		return nil
	}
	f.fs.mu.Unlock()
	return &fs.PathError{Op: op, Path: f.path, Err: err}
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.enter("read", false); err != nil {
		return 0, err
	}
	defer f.fs.mu.Unlock()
	if off < 0 {
		return 0, &fs.PathError{Op: "read", Path: f.path, Err: fs.ErrInvalid}
	}
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return f.WriteVecAt([][]byte{p}, off)
}

func (f *file) WriteVecAt(vecs [][]byte, off int64) (int, error) {
	if err := f.enter("write", true); err != nil {
		return 0, err
	}
	defer f.fs.mu.Unlock()
	if off < 0 {
		return 0, &fs.PathError{Op: "write", Path: f.path, Err: errors.New("negative offset")}
	}
	var data []byte
	for _, v := range vecs {
		data = append(data, v...)
	}
	f.touch()
	f.node.write(write{off: off, data: data})
	return len(data), nil
}

func (f *file) touch() {
	f.fs.clock = f.fs.clock.Add(time.Second)
	f.node.mod = f.fs.clock
}

func (n *node) write(w write) {
	n.data = w.apply(n.data, 1000)
	n.pending = append(n.pending, w)
}

func (f *file) Sync() error {
	if err := f.enter("sync", false); err != nil {
		return err
	}
	defer f.fs.mu.Unlock()
	for _, w := range f.node.pending {
		f.node.durable = w.apply(f.node.durable, 1000)
	}
	f.node.pending = nil
	return nil
}

func (f *file) Truncate(size int64) error {
	if err := f.enter("truncate", true); err != nil {
		return err
	}
	defer f.fs.mu.Unlock()
	if size < 0 {
		return &fs.PathError{Op: "truncate", Path: f.path, Err: fs.ErrInvalid}
	}
	f.touch()
	f.node.write(write{off: size, truncate: true})
	return nil
}

func (f *file) Size() (int64, error) {
	if err := f.enter("size", false); err != nil {
		return 0, err
	}
	defer f.fs.mu.Unlock()
	return int64(len(f.node.data)), nil
}

func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return &fs.PathError{Op: "close", Path: f.path, Err: fs.ErrClosed}
	}
	f.closed = true
	if f.life == f.fs.life {
		f.fs.open--
	}
	return nil
}
