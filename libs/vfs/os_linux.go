package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// iovMax is what Linux takes in one pwritev call (IOV_MAX).
const iovMax = 1024

// syncData is fdatasync: the bytes and the length, not the times.
func syncData(f *os.File) error {
	return control(f, "fdatasync", func(fd int) error {
		for {
			if err := unix.Fdatasync(fd); err != unix.EINTR {
				return err
			}
		}
	})
}

// vecWrite is one gathering write. It is taken from a pool, with the function that
// runs on the descriptor, so that writing allocates nothing.
type vecWrite struct {
	rest  [][]byte // what is not written yet; the backing array is ours
	off   int64
	total int
	err   error
	run   func(fd uintptr)
}

// vecWrites carries nothing from one use to the next.
var vecWrites = sync.Pool{New: func() any {
	w := new(vecWrite)
	w.run = w.write
	return w
}}

// writeVecAt gathers vecs into as few pwritev calls as IOV_MAX and short writes
// allow.
func writeVecAt(f *os.File, conn syscall.RawConn, vecs [][]byte, off int64) (int, error) {
	if len(vecs) == 1 {
		return f.WriteAt(vecs[0], off)
	}
	w := vecWrites.Get().(*vecWrite)
	all := append(w.rest[:0], vecs...)
	w.rest, w.off, w.total, w.err = all, off, 0, nil
	err := conn.Control(w.run)
	total, opErr := w.total, w.err
	clear(all) // the caller's buffers are not kept
	w.rest = all[:0]
	vecWrites.Put(w)
	if err != nil {
		return total, err
	}
	if opErr != nil {
		return total, &os.PathError{Op: "pwritev", Path: f.Name(), Err: opErr}
	}
	return total, nil
}

func (w *vecWrite) write(fd uintptr) {
	for len(w.rest) > 0 {
		if len(w.rest[0]) == 0 {
			w.rest = w.rest[1:]
			continue
		}
		n, err := unix.Pwritev(int(fd), w.rest[:min(len(w.rest), iovMax)], w.off+int64(w.total))
		if err == unix.EINTR {
			continue
		}
		if err == nil && n <= 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			w.err = err
			return
		}
		w.total += n
		for n > 0 {
			k := min(n, len(w.rest[0]))
			if w.rest[0] = w.rest[0][k:]; len(w.rest[0]) == 0 {
				w.rest = w.rest[1:]
			}
			n -= k
		}
	}
}

// control runs fn on the descriptor and keeps the file from being closed
// meanwhile. Regular files never block in the poller, so it is a plain call.
func control(f *os.File, op string, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var opErr error
	if err := conn.Control(func(fd uintptr) { opErr = fn(int(fd)) }); err != nil {
		return err
	}
	if opErr != nil {
		return &os.PathError{Op: op, Path: f.Name(), Err: opErr}
	}
	return nil
}

func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w; stop the process that uses it, or choose another path", f.Name(), ErrLocked)
	}
	if err != nil {
		return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	return nil
}

// DiskSpace implements SpaceReporter.
func (osFS) DiskSpace(path string) (Space, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Space{}, &os.PathError{Op: "statfs", Path: path, Err: err}
		}
		return Space{Total: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize}, nil
	}
}
