package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/leat-io/leat/libs/commitlog"
)

// noteStray remembers that the folder of a replica that is not on the books may be on
// its disk: that of a bad copy until it is put away, or of a replica that could not be
// made whole. It is in the way of a topic that is made again under the name, so a deletion
// removes it, and of the same replica on another disk, see dropBegun. The caller holds mu.
func (s *Store) noteStray(r *Replica) {
	if s.strays[r.Key] == nil {
		s.strays[r.Key] = map[string]*Replica{}
	}
	s.strays[r.Key][r.Dir] = r
}

// dropStray forgets a folder that is on the books, or gone. The caller holds mu.
func (s *Store) dropStray(r *Replica) {
	delete(s.strays[r.Key], r.Dir)
	if len(s.strays[r.Key]) == 0 {
		delete(s.strays, r.Key)
	}
}

// Keys are those of all replicas, and those of which there may be such a folder, in no
// order.
func (s *Store) Keys() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.Collect(maps.Keys(s.replicas))
	for k := range s.strays {
		if s.replicas[k] == nil {
			keys = append(keys, k)
		}
	}
	return keys
}

// straysOf are such folders of a replica.
func (s *Store) straysOf(k Key) []*Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.strays[k]))
}

// begunOn is the disk with a folder of a replica that is not on the books and may hold
// records, one that was brought back and could not be opened for want of room: the replica
// is made nowhere else. Nil if there is none. The caller holds mu.
func (s *Store) begunOn(k Key) *Disk {
	for _, r := range s.strays[k] {
		if r.Disk.Err() != nil {
			continue
		}
		// What cannot be told is found out by whoever opens it.
		if untouched, err := s.isUntouched(r); err != nil || !untouched {
			return r.Disk
		}
	}
	return nil
}

// isUntouched reports whether there is no folder of a replica, or one that holds nothing.
func (s *Store) isUntouched(r *Replica) (bool, error) {
	m, err := commitlog.ReadMetadata(s.o.FS, r.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil // a folder without an identity is nobody's
	case err != nil:
		return false, err
	case m.TopicID != r.Key.Topic || m.Partition != r.Key.Partition:
		return true, nil // it has none: this is another one's
	}
	return commitlog.IsUntouched(s.o.FS, r.Dir)
}

// dropBegun removes the folders that were begun for a replica on other disks than the one
// on which it is to be made now: found at the next start, they would pass for another copy.
// Those on disks that are offline are left to the start that finds them repaired.
func (s *Store) dropBegun(r *Replica) error {
	for _, begun := range s.straysOf(r.Key) {
		if begun.Dir == r.Dir || begun.Disk.Err() != nil {
			continue
		}
		untouched, err := s.isUntouched(begun)
		if err == nil && !untouched {
			err = errors.New("it may hold records")
		}
		if err == nil {
			err = s.deleteStray(begun)
		}
		switch {
		case err == nil:
		case IsDiskFault(err): // which is not that of the disk that takes the replica
			s.mu.Lock()
			s.fail(begun.Disk, err)
			s.mu.Unlock()
		default:
			return fmt.Errorf("remove %s, which was begun before: %w", begun.Dir, err)
		}
	}
	return nil
}

// deleteStrays removes such folders of a replica. One whose disk is offline stays until
// that is repaired: ErrDiskOffline.
func (s *Store) deleteStrays(k Key) error {
	for _, r := range s.straysOf(k) {
		if r.Disk.Err() != nil {
			return fmt.Errorf("delete %s: %w", r.Dir, ErrDiskOffline)
		}
		if err := s.deleteStray(r); err != nil {
			return fmt.Errorf("delete %s: %w", r.Dir, err)
		}
	}
	return nil
}

func (s *Store) deleteStray(r *Replica) error {
	err := commitlog.DeleteFolder(s.o.FS, r.Dir, r.identity())
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.dropStray(r)
	case IsDiskFault(err):
		s.fail(r.Disk, err)
	}
	return err
}

// oneOf decides between two folders of one replica, found when the store opens. One that
// was only begun, and that could not be removed since its disk failed, goes where that is
// certain: it is untouched, no mark tells that it was in use, and nothing stands against it
// that would be forgotten with it. Whatever this replica ever took is in the other one then.
func (s *Store) oneOf(a, b *Replica) (*Replica, error) {
	for _, try := range [][2]*Replica{{a, b}, {b, a}} {
		begun, other := try[0], try[1]
		if begun.Disk.Err() != nil {
			return other, nil
		}
		verdict, others := begun.Disk.verdicts[begun.Key], other.Disk.verdicts[begun.Key]
		if begun.Disk.hasMarks(begun.Key) || verdict != Intact && verdict != others && others < Missing {
			continue
		}
		untouched, err := commitlog.IsUntouched(s.o.FS, begun.Dir)
		if err == nil && !untouched {
			continue
		}
		if err == nil && verdict != Intact {
			delete(begun.Disk.verdicts, begun.Key)
			err = begun.Disk.writeVerdicts(begun.Disk.verdicts)
		}
		if err == nil {
			err = commitlog.DeleteFolder(s.o.FS, begun.Dir, begun.identity())
		}
		if err == nil {
			s.o.Logger.Warn("removed an empty folder in which a replica was begun that is elsewhere", "dir", begun.Dir, "replica_dir", other.Dir, "topic_id", begun.Key.Topic)
		} else if err := s.tolerate(begun.Disk, err); err != nil {
			return nil, fmt.Errorf("remove %s, which was begun and never used: %w", begun.Dir, err)
		}
		return other, nil
	}
	return nil, &FileError{Path: b.Dir, Detail: fmt.Sprintf("the same replica is in %s too; remove the folder that is not needed", a.Dir)}
}

// hasMarks reports whether the marks that were read name a replica.
func (d *Disk) hasMarks(k Key) bool {
	_, a := d.recovery[k]
	_, b := d.watermarks[k]
	return a || b
}
