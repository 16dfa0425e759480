//go:build unix && !linux

package vfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func syncData(f *os.File) error { return f.Sync() }

func writeVecAt(f *os.File, vecs [][]byte, off int64) (int, error) { return writeEach(f, vecs, off) }

func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w; stop the process that uses it, or choose another path", f.Name(), ErrLocked)
	}
	return err
}
