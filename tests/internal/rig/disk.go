package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Small disks are mounted in a mount namespace of the thread that starts the
// processes: nobody else sees them, and the system takes them away with the last of
// its processes, however the test ends. What looks into a small disk has to do so
// from that thread.

// fillerChunk is how much is written at a time when a disk is filled.
const fillerChunk = 1 << 20

// filler is the file that fills a small disk.
const filler = "filler"

// mountSmall gives processes disks of their own. Where the system does not let it,
// smallRefused says why, and the folders are as any others.
func (r *Rig) mountSmall(sizes map[string]int64) {
	r.t.Helper()
	if len(sizes) == 0 {
		return
	}
	for name := range sizes {
		if err := os.MkdirAll(r.spec(name).Dir, 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	r.smallRefused = r.spawn.do(func() error {
		if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
			return fmt.Errorf("a mount namespace: %w", err)
		}
		if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
		for name, size := range sizes {
			if err := syscall.Mount("leat-test", r.spec(name).Dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("size=%d,mode=0755", size)); err != nil {
				return fmt.Errorf("a disk of %d bytes for %s: %w", size, name, err)
			}
			r.small[name] = true
		}
		return nil
	})
}

// SmallDisk reports whether a process has a disk of its own, of the size that
// Options.SmallDisks named; an error says why it has not.
func (r *Rig) SmallDisk(name string) error {
	if r.small[name] {
		return nil
	}
	if r.smallRefused != nil {
		return r.smallRefused
	}
	return fmt.Errorf("no small disk was asked for %s", name)
}

// FillDisk writes a file to the small disk of a process until the system says that
// nothing more fits, and returns its size. Called again it fills what has become free
// since.
func (r *Rig) FillDisk(name string) (int64, error) {
	if err := r.SmallDisk(name); err != nil {
		return 0, err
	}
	size := int64(0)
	err := r.spawn.do(func() error {
		f, err := os.OpenFile(filepath.Join(r.spec(name).Dir, filler), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		for chunk := make([]byte, fillerChunk); len(chunk) > 0; {
			if _, err := f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
				chunk = chunk[:len(chunk)/2] // down to the last byte
			} else if err != nil {
				return err
			}
		}
		size, err = f.Seek(0, 2)
		return err
	})
	return size, err
}

// FreeDisk takes away what FillDisk wrote.
func (r *Rig) FreeDisk(name string) error {
	if err := r.SmallDisk(name); err != nil {
		return err
	}
	return r.spawn.do(func() error { return os.Remove(filepath.Join(r.spec(name).Dir, filler)) })
}

// onDisk runs f where the disk of a process is seen.
func (r *Rig) onDisk(name string, f func() error) error {
	if r.small[name] {
		return r.spawn.do(f)
	}
	return f()
}
