package commitlog

import (
	"errors"
	"io"

	"github.com/leat-io/leat/libs/vfs"
)

// cut removes everything from a place on: later segments, last one first, so that
// a crash in between leaves a log that is cut again; then the rest of the segment.
// settle makes it durable.
func (r *recovery) cut(at cut) error {
	l := r.l
	seg := l.segs[at.seg]
	size := seg.size.Load()
	r.report.CutPath, r.report.CutPosition, r.report.CutReason = seg.path(), at.pos, at.reason.Error()
	r.report.CutBytes = size - at.pos
	n, err := validAfter(seg, at.pos)
	if err != nil {
		return err
	}
	r.report.BatchesPastCut = n
	for i := len(l.segs) - 1; i > at.seg; i-- {
		later := l.segs[i]
		n, err := validAfter(later, 0)
		if err != nil {
			return err
		}
		r.report.BatchesPastCut += n
		r.report.CutBytes += later.size.Load()
		if err := l.removeSegment(later); err != nil {
			return err
		}
		l.segs = l.segs[:i]
	}
	seg.size.Store(at.pos)
	f, err := seg.grow()
	if err != nil {
		return err
	}
	defer seg.release()
	return f.Truncate(at.pos)
}

// removeSegment deletes a segment's files, the .log last: without it the others are
// ignored, and with it they are made anew.
func (l *Log) removeSegment(seg *segment) error {
	if err := seg.detach(); err != nil {
		return err
	}
	for _, path := range seg.files() {
		if err := l.fs.Remove(path); err != nil && !isNotExist(err) {
			return err
		}
	}
	return nil
}

// grow makes a sealed segment the active one: its .log is acquired for writing,
// whatever it was opened for. Nobody else uses it meanwhile.
func (s *segment) grow() (vfs.File, error) {
	s.sealedAt.Store(notSealed)
	if err := s.close(); err != nil {
		return nil, err
	}
	return s.acquire()
}

// validAfter counts whole, valid batches from the one at pos on, which is itself
// at fault: it skips it by its length, if that can be believed, and stops at the
// next fault. A torn write leaves none; more than none may be a sign of bit rot.
func validAfter(seg *segment, pos int64) (int, error) {
	f, err := seg.acquire()
	if err != nil {
		return 0, err
	}
	defer seg.release()
	sc := newScanner(f, seg.size.Load(), make([]byte, scanBuffer))
	count := 0
	for first := true; pos < sc.size; first = false {
		h, err := sc.header(pos)
		valid := err == nil
		if valid {
			if err = sc.verify(pos, &h); err == nil {
				count++
			}
		}
		if err != nil && !isBatchFault(err) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return count, err
		}
		if !valid || err != nil && !first {
			return count, nil
		}
		pos += int64(h.Size())
	}
	return count, nil
}
