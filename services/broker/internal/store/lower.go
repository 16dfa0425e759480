package store

import "fmt"

// LowerMarks has the marks of a replica on record, its recovery point and its high
// watermark, lie at or below an offset, durably, until MarksLowered: before the log is
// cut there. It writes only if a mark on record lies above.
func (s *Store) LowerMarks(k Key, to int64) error {
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	r := s.Replica(k)
	if r == nil {
		return fmt.Errorf("lower the marks of %v: there is no such replica", k)
	}
	r.ceiling.Store(to + 1)
	r.hw.Store(min(r.hw.Load(), to))
	if d := r.Disk; s.writtenAbove(d, k, to) {
		if err := s.checkpointDisk(d, true); err != nil {
			return fmt.Errorf("lower the marks of %s: %w", r.Name(), err)
		}
	}
	return nil
}

// MarksLowered lets the marks of a replica follow its log again.
func (s *Store) MarksLowered(k Key) {
	if r := s.Replica(k); r != nil {
		r.ceiling.Store(0)
	}
}

// writtenAbove reports whether a mark of a replica on record may lie above an offset.
// The caller holds checkpointMu.
func (s *Store) writtenAbove(d *Disk, k Key, to int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	recovery, watermarks := d.recordedRecovery, d.recordedWatermarks
	if recovery == nil {
		recovery = d.recovery
	}
	if watermarks == nil {
		watermarks = d.watermarks
	}
	return max(recovery[k], watermarks[k]) > to
}
