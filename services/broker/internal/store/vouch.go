package store

import (
	"errors"
	"slices"
)

// Adopt binds the disks to the cluster. expected are the replicas that, by the
// metadata, this broker holds: those that were on its disks and are not get the
// verdict missing, and where a disk is offline they are taken to be on that. On a broker whose disks are not new a replica that was never
// here is not missing but still to be made. Errors: *WrongOwnerError, those of
// the disk.
func (s *Store) Adopt(clusterID string, expected []Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if clusterID == "" {
		return errors.New("adopt disks: the cluster id is empty")
	}
	if have := s.clusterID(); have != "" && have != clusterID {
		return &WrongOwnerError{Dir: s.disks[0].Dir, What: "cluster", Want: clusterID, Got: have}
	}
	disks := s.online()
	if len(disks) == 0 {
		return s.noDisk()
	}
	anyFresh := slices.ContainsFunc(disks, func(d *Disk) bool { return d.fresh })
	anyOffline := len(disks) < len(s.disks)
	keeper := disks[0]
	lost := false
	for _, k := range expected {
		if s.replicas[k] != nil || s.hasVerdict(k) {
			continue
		}
		switch {
		case anyOffline:
			s.away[k] = struct{}{}
			s.o.Logger.Error("a replica that should be here is taken to be on the disk that is offline", "topic_id", k.Topic, "partition", k.Partition)
		case anyFresh || s.wasHere(k):
			keeper.verdicts[k] = Missing
			lost = true
			s.o.Logger.Error("a replica that should be here is missing", "topic_id", k.Topic, "partition", k.Partition)
		}
	}
	if lost {
		if err := keeper.writeVerdicts(keeper.verdicts); err != nil {
			return err
		}
	}
	for _, d := range disks {
		if d.fresh {
			if err := s.tolerate(d, d.writeMeta(s.o.BrokerID, clusterID)); err != nil {
				return err
			}
		}
	}
	s.adopted = true
	return nil
}

func (s *Store) hasVerdict(k Key) bool {
	return slices.ContainsFunc(s.disks, func(d *Disk) bool { return d.verdicts[k] != Intact })
}

// wasHere reports whether a mark of an earlier process names the replica.
func (s *Store) wasHere(k Key) bool {
	return slices.ContainsFunc(s.disks, func(d *Disk) bool {
		_, a := d.recovery[k]
		_, b := d.watermarks[k]
		return a || b
	})
}

// Vouch is what the broker says about one replica when it registers.
type Vouch struct {
	DiskID    string
	Key       Key
	LastEpoch int32 // -1: no record
	End       int64
	Verdict   Verdict
}

// Vouches tells about every replica on the disks and every one that is missing.
// Verdicts of durability=os count only where isOS says so; nil: nowhere.
func (s *Store) Vouches(isOS func(Key) bool) []Vouch {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Vouch
	for _, r := range s.replicas {
		v := Vouch{DiskID: r.Disk.ID, Key: r.Key, LastEpoch: -1, Verdict: r.Verdict}
		if r.Log != nil {
			v.LastEpoch, v.End = r.Log.LatestEpoch(), r.Log.EndOffset()
		}
		if r.Disk.Err() != nil {
			v.Verdict = Corrupt // whatever is there, it cannot be served
		}
		if v.Verdict == UncleanOS && (isOS == nil || !isOS(r.Key)) {
			v.Verdict = Intact
		}
		all = append(all, v)
	}
	for _, d := range s.disks {
		for k, verdict := range d.verdicts {
			if verdict != Intact && s.replicas[k] == nil {
				// Whatever was found against it, its folder is gone by now.
				all = append(all, Vouch{DiskID: d.ID, Key: k, LastEpoch: -1, Verdict: Missing})
			}
		}
	}
	for k := range s.away {
		// Not missing: that might be taken for one that was never made.
		all = append(all, Vouch{Key: k, LastEpoch: -1, Verdict: Corrupt})
	}
	slices.SortFunc(all, func(a, b Vouch) int { return a.Key.Compare(b.Key) })
	return all
}

// Verdict is what stands against a replica, also one that is missing.
func (s *Store) Verdict(k Key) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.replicas[k]; r != nil {
		return r.Verdict
	}
	if _, away := s.away[k]; away {
		return Missing
	}
	for _, d := range s.disks {
		if v := d.verdicts[k]; v != Intact {
			return v
		}
	}
	return Intact
}

// Offline reports whether a replica is on a disk that is offline, as far as that
// can be known.
func (s *Store) Offline(k Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.replicas[k]; r != nil {
		return r.Disk.Err() != nil
	}
	_, away := s.away[k]
	return away
}

// ClearVerdict forgets what stood against a replica, durably. Only a metadata
// stream that shows this process's incarnation on record and the replica not
// barred permits it. A replica whose log did not open stays withheld, and so does one
// whose log is cut or corrupt and was not replaced: what is wrong with it is there
// still. Its verdict goes with it when it is replaced.
func (s *Store) ClearVerdict(k Key) error { return s.clear(k, false) }

// Trust is ClearVerdict for a replica that was elected leader in spite of what stands
// against it: by the operator, or because the topic allows unclean elections.
func (s *Store) Trust(k Key) error { return s.clear(k, true) }

func (s *Store) clear(k Key, trust bool) error {
	r, marked, ok := s.clearVerdict(k, trust)
	if !ok {
		return nil
	}
	if err := s.flushVerdicts(); err != nil {
		return err
	}
	s.mu.Lock()
	if r != nil && s.replicas[k] == r {
		r.Verdict, r.Fresh = Intact, false
	}
	s.mu.Unlock()
	if !marked {
		return nil
	}
	// Marks of the lost replica must be gone before its successor has a folder,
	// or the next start would take it for one that was cut.
	var errs []error
	for _, err := range s.Checkpoint(true) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// clearVerdict notes that nothing stands against a replica any more; ok is false if it
// stays withheld. marked says that the replica is not there and left marks behind.
func (s *Store) clearVerdict(k Key, trust bool) (r *Replica, marked, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, runs := s.replacing[k]; runs {
		s.replacing[k] = true
		return nil, false, false
	}
	r = s.replicas[k]
	if r != nil {
		damaged := !r.Fresh && !trust && (r.Verdict == Cut || r.Verdict == Corrupt)
		if r.Log == nil || damaged {
			r.pardoned = true
			return r, false, false
		}
	}
	delete(s.away, k)
	for _, d := range s.online() {
		if _, there := d.verdicts[k]; !there {
			continue
		}
		d.noteVerdict(k, Intact)
		if r == nil {
			// What the lost replica had reached says nothing about its successor.
			_, a := d.recovery[k]
			_, b := d.watermarks[k]
			marked = marked || a || b
			delete(d.recovery, k)
			delete(d.watermarks, k)
		}
	}
	return r, marked, true
}
