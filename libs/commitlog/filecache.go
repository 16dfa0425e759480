package commitlog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/leat-io/leat/libs/vfs"
)

// DefaultOpenFiles is how many files a log that has no FileCache of its owner keeps
// open.
const DefaultOpenFiles = 256

// FileCache bounds how many files the logs that share it keep open: those used last
// stay, the others are opened again when they are needed. Files that are in use,
// and .log files with unsynced bytes, are never closed, so that the bound is passed
// while more of them than that are busy: one per log that is written to, three per
// reader. Closing an unsynced file could lose the news of a failed write-back.
//
// It is safe for use by several goroutines and needs no closing.
type FileCache struct {
	capacity int64
	open     atomic.Int64
	opened   atomic.Int64

	mu sync.Mutex
	// idle is a ring of segments that nobody uses and whose files are open, the one
	// used last first; the zero segment is its head.
	idle segment
	errs []error // of closing files of others; the next caller hears of them
}

// NewFileCache returns a cache of so many files, 16 at least.
func NewFileCache(files int) *FileCache {
	c := &FileCache{capacity: int64(max(16, files))}
	c.idle.prev, c.idle.next = &c.idle, &c.idle
	return c
}

// Open is how many files are open now.
func (c *FileCache) Open() int { return int(c.open.Load()) }

// Opened is how many files were opened so far.
func (c *FileCache) Opened() int64 { return c.opened.Load() }

// opening counts a file that was opened.
func (c *FileCache) opening() {
	c.open.Add(1)
	c.opened.Add(1)
}

// pin keeps the segment's files from being closed until unpin. It opens nothing.
func (s *segment) pin() {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	s.pins++
	s.unlink()
}

// unpin ends a use. Files may be closed now, of this segment or of others.
func (s *segment) unpin() {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	s.pins--
	s.park()
}

// park makes an unused segment one that may be closed, and closes what is too much.
// The caller holds the cache's mu.
func (s *segment) park() {
	c := s.cache
	if s.pins > 0 || s.next != nil || s.writes.Load() != s.synced.Load() {
		return
	}
	if s.detached {
		c.note(s.closeFiles())
		return
	}
	s.prev, s.next = &c.idle, c.idle.next
	s.prev.next, s.next.prev = s, s
	for c.open.Load() > c.capacity && c.idle.prev != &c.idle {
		last := c.idle.prev
		last.unlink()
		c.note(last.closeFiles())
	}
}

// retryWithFiles opens a file, and tries again, once, after closing what nobody uses
// when the process has no descriptor left.
func retryWithFiles(c *FileCache, open func() (vfs.File, error)) (vfs.File, error) {
	f, err := open()
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		return f, err
	}
	c.mu.Lock()
	for c.idle.prev != &c.idle {
		last := c.idle.prev
		last.unlink()
		c.note(last.closeFiles())
	}
	c.mu.Unlock()
	return open()
}

// note keeps an error that nobody waits for. Closing a file that has no unsynced
// bytes hardly ever fails, and then the descriptor is gone all the same.
func (c *FileCache) note(err error) {
	if err != nil && len(c.errs) < 16 {
		c.errs = append(c.errs, err)
	}
}

// takeErrors hands out, once, what went wrong when files were closed.
func (c *FileCache) takeErrors() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.errs) == 0 {
		return nil
	}
	err := fmt.Errorf("close files that were open for long: %w", errors.Join(c.errs...))
	c.errs = nil
	return err
}

// unlink takes the segment out of the ring, if it is there. The caller holds the
// cache's mu.
func (s *segment) unlink() {
	if s.next != nil {
		s.prev.next, s.next.prev = s.next, s.prev
		s.prev, s.next = nil, nil
	}
}

// close closes the segment's files, for now: while nobody uses them.
func (s *segment) close() error {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	s.unlink()
	return s.closeFiles()
}

// detach closes the files of a segment that is no longer part of its log, and does
// not keep them open should anybody still look into it.
func (s *segment) detach() error {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	s.detached = true
	s.unlink()
	return s.closeFiles()
}
