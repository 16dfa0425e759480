//go:build unix && !linux

package vfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func syncData(f *os.File) error { return f.Sync() }

// writeVecAt writes one piece after the other: there is no positioned gather write
// in the standard library.
func writeVecAt(f *os.File, _ syscall.RawConn, vecs [][]byte, off int64) (int, error) {
	total := 0
	for _, v := range vecs {
		n, err := f.WriteAt(v, off+int64(total))
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w; stop the process that uses it, or choose another path", f.Name(), ErrLocked)
	}
	return err
}
