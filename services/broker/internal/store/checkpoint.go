package store

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/leat-io/leat/libs/failpoint"
)

// Checkpoint writes recovery points (if asked) and high watermarks that changed,
// one file per disk. It returns the disks on which that failed, with the errors.
func (s *Store) Checkpoint(recoveryPoints bool) map[*Disk]error {
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	failed := map[*Disk]error{}
	for _, d := range s.disks {
		if d.Err() != nil {
			continue
		}
		if err := s.checkpointDisk(d, recoveryPoints); err != nil {
			failed[d] = fmt.Errorf("checkpoint %s: %w", d.Dir, err)
		}
	}
	return failed
}

func (s *Store) checkpointDisk(d *Disk, recoveryPoints bool) error {
	if err := failpoint.Hit(failpoint.Checkpoint); err != nil {
		return err
	}
	watermarks, recovery := s.marksOf(d)
	format := func(v int64) string { return strconv.FormatInt(v, 10) }
	// Recovery points first: a high watermark is never above what the points of
	// the same moment call durable, so either file alone is true.
	if recoveryPoints {
		if err := writeIfChanged(d, recoveryFile, keyedLines(recovery, format), &d.writtenRecovery); err != nil {
			return err
		}
		d.recordedRecovery = recovery
	}
	if err := writeIfChanged(d, watermarkFile, keyedLines(watermarks, format), &d.writtenWatermarks); err != nil {
		return err
	}
	d.recordedWatermarks = watermarks
	return s.writeHistory(d, recoveryPoints)
}

// marksOf gathers the marks of a disk's replicas. Those of a replica that did not
// open stay what they were.
func (s *Store) marksOf(d *Disk) (watermarks, recovery map[Key]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	watermarks, recovery = map[Key]int64{}, map[Key]int64{}
	for k, v := range d.watermarks {
		if d.verdicts[k] != Intact {
			watermarks[k], recovery[k] = v, d.recovery[k]
		}
	}
	for k, r := range s.replicas {
		if r.Disk != d || r.Log == nil {
			continue
		}
		// The mark must not pass what is durable: a recovery that ends below it
		// is a loss.
		durable := r.Log.DurableEnd()
		if ceiling := r.ceiling.Load(); ceiling > 0 {
			durable = min(durable, ceiling-1)
		}
		watermarks[k], recovery[k] = min(r.hw.Load(), durable), durable
	}
	return watermarks, recovery
}

func writeIfChanged(d *Disk, kind string, lines []string, written *[]string) error {
	if *written != nil && slices.Equal(*written, lines) {
		return nil
	}
	if err := writeSmallFile(d.fs, d.Dir, kind, lines); err != nil {
		return err
	}
	*written = lines
	return nil
}
