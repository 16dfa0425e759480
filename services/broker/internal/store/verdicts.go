package store

import (
	"errors"
	"maps"
)

// noteVerdict changes a verdict in memory; Intact removes it. flushVerdicts makes it
// durable. The caller holds mu.
func (d *Disk) noteVerdict(k Key, v Verdict) {
	if v == Intact {
		if _, there := d.verdicts[k]; !there {
			return
		}
		delete(d.verdicts, k)
	} else if d.verdicts[k] == v {
		return
	} else {
		d.verdicts[k] = v
	}
	d.verdictsDirty = true
}

// flushVerdicts makes every verdict that was noted before the call durable. Those who
// come while one writes are served together by the next, so that thousands of
// replicas that are settled at once cost a few writes. The caller does not hold mu.
func (s *Store) flushVerdicts() error {
	var errs []error
	for _, d := range s.online() {
		errs = append(errs, s.flushVerdictsOf(d))
	}
	return errors.Join(errs...)
}

func (s *Store) flushVerdictsOf(d *Disk) error {
	d.verdictMu.Lock()
	defer d.verdictMu.Unlock()
	s.mu.Lock()
	if !d.verdictsDirty {
		s.mu.Unlock()
		return nil
	}
	d.verdictsDirty = false
	verdicts := maps.Clone(d.verdicts)
	s.mu.Unlock()
	err := d.writeVerdicts(verdicts)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d.verdictsDirty = true
	return errors.Join(err, s.tolerate(d, err))
}
