package store

import (
	"fmt"
	"maps"
	"slices"

	"github.com/leat-io/leat/libs/commitlog"
)

// noteStray remembers that the folder of a replica that is not on the books may be on
// its disk: that of a bad copy until it is put away, or of a replica that could not be
// made whole. It is in the way of nobody but a topic that is made again under the name,
// so a deletion removes it. The caller holds mu.
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

// deleteStrays removes such folders of a replica. One whose disk is offline stays until
// that is repaired: ErrDiskOffline.
func (s *Store) deleteStrays(k Key) error {
	s.mu.Lock()
	strays := slices.Collect(maps.Values(s.strays[k]))
	s.mu.Unlock()
	for _, r := range strays {
		if r.Disk.Err() != nil {
			return fmt.Errorf("delete %s: %w", r.Dir, ErrDiskOffline)
		}
		err := commitlog.DeleteFolder(s.o.FS, r.Dir, r.identity())
		s.mu.Lock()
		switch {
		case err == nil:
			s.dropStray(r)
		case IsDiskFault(err):
			s.fail(r.Disk, err)
		}
		s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("delete %s: %w", r.Dir, err)
		}
	}
	return nil
}
