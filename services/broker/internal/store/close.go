package store

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Close syncs and closes every log, writes the marks and, on each disk where all
// of that went well, the clean-shutdown marker; then it releases the locks. The
// caller has made sure that nobody uses the logs.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	adopted := s.adopted
	s.mu.Unlock()
	errs, bad := s.closeLogs()
	if adopted {
		for d, err := range s.Checkpoint(true) {
			errs = append(errs, err)
			bad[d] = true
		}
	}
	for _, d := range s.disks {
		if bad[d] || d.Err() != nil {
			continue
		}
		if err := writeSmallFile(d.fs, d.Dir, cleanFile, processLines(&s.o)); err != nil {
			errs = append(errs, fmt.Errorf("mark %s as cleanly closed: %w", d.Dir, err))
		}
	}
	return errors.Join(append(errs, s.unlock())...)
}

// closeLogs closes every log, several at a time, and tells on which disks that
// failed.
func (s *Store) closeLogs() (errs []error, bad map[*Disk]bool) {
	bad = map[*Disk]bool{}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(s.o.OpenParallelism)
	for _, r := range s.Replicas() {
		if r.Log == nil {
			continue
		}
		g.Go(func() error {
			broken := r.Disk.Err() != nil
			var err error
			if broken {
				err = r.Log.Abort()
			} else {
				err = r.Log.Close()
			}
			if err != nil || broken {
				mu.Lock()
				defer mu.Unlock()
				bad[r.Disk] = true
				if broken && err != nil {
					// That the disk is broken was told when it broke.
					s.o.Logger.Debug("close a log on a disk that is offline", "dir", r.Dir, "error", err)
				} else if err != nil {
					errs = append(errs, fmt.Errorf("close the log in %s: %w", r.Dir, err))
				}
			}
			return nil
		})
	}
	_ = g.Wait() // the functions report through errs
	return errs, bad
}

// Abort releases files and locks without writing anything, as a crash would.
func (s *Store) Abort() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	return s.abandon()
}

func (s *Store) abandon() error {
	var errs []error
	for _, r := range s.Replicas() {
		if r.Log != nil {
			errs = append(errs, r.Log.Abort())
		}
	}
	return errors.Join(append(errs, s.unlock())...)
}

func (s *Store) unlock() error {
	var errs []error
	for _, d := range s.disks {
		if d.lock != nil {
			errs = append(errs, d.lock.Close())
		}
	}
	return errors.Join(errs...)
}
