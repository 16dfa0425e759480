package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"

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

// writeVecAt gathers vecs into as few pwritev calls as IOV_MAX and short writes
// allow. A batch that came in few pieces, as most do, allocates nothing.
func writeVecAt(f *os.File, vecs [][]byte, off int64) (int, error) {
	if len(vecs) == 1 {
		return f.WriteAt(vecs[0], off)
	}
	total := 0
	err := control(f, "pwritev", func(fd int) error {
		var few [8][]byte
		rest := append(few[:0], vecs...)
		for len(rest) > 0 {
			if len(rest[0]) == 0 {
				rest = rest[1:]
				continue
			}
			n, err := unix.Pwritev(fd, rest[:min(len(rest), iovMax)], off+int64(total))
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return err
			}
			if n <= 0 {
				return io.ErrShortWrite
			}
			total += n
			for n > 0 {
				k := min(n, len(rest[0]))
				if rest[0] = rest[0][k:]; len(rest[0]) == 0 {
					rest = rest[1:]
				}
				n -= k
			}
		}
		return nil
	})
	return total, err
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
