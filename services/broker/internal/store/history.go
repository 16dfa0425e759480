package store

import (
	"fmt"
	"maps"
	"path/filepath"
	"strconv"

	"github.com/leat-io/leat/libs/topicid"
)

// epochsFile keeps the highest leader epoch that was seen of each replica here. It is
// written lazily, on every disk.
const epochsFile = "leader-epochs"

// RegressedError says that the metadata is older than what this broker has followed:
// etcd went back in time.
type RegressedError struct {
	What string // "generation", "etcd cluster", "revision", "registration" or "leader epoch"
	Of   string // the partition, for a leader epoch
	Had  string // what was noted
	Got  string // what the metadata says
}

func (e *RegressedError) Error() string {
	what := e.What
	if e.Of != "" {
		what += " of " + e.Of
	}
	return fmt.Sprintf("the metadata's %s is %s, and this broker has followed %s: etcd went back in time or was made anew; restore the mesh, and do not start with the old data by force", what, e.Got, e.Had)
}

// History is what an image of the metadata says about its own past.
type History struct {
	Position
	// EtcdClusterID is the id of the etcd cluster that it comes from; 0: unknown.
	EtcdClusterID uint64
	// Registered is the create revision of this process's own registration key, as the
	// metadata shows it; 0: it does not. Nothing that was followed in an earlier life
	// may be as new.
	Registered int64
	// Epochs are the leader epochs of the partitions held here.
	Epochs map[Key]int32
}

// CheckHistory compares an image of the metadata with what was noted by earlier
// processes; a *RegressedError says that it is no continuation. Before Adopt.
func (s *Store) CheckHistory(h History) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.position
	number := func(v int64) string { return strconv.FormatInt(v, 10) }
	switch {
	case h.Generation < had.Generation:
		return &RegressedError{What: "generation", Had: number(had.Generation), Got: number(h.Generation)}
	case h.Generation > had.Generation:
		// Restored: the counters are above all that was, and revisions begin anew.
	case h.EtcdClusterID != 0 && s.etcdClusterID != 0 && h.EtcdClusterID != s.etcdClusterID:
		return &RegressedError{What: "etcd cluster", Had: fmt.Sprintf("%x", s.etcdClusterID), Got: fmt.Sprintf("%x", h.EtcdClusterID)}
	case h.Revision < had.Revision:
		return &RegressedError{What: "revision", Had: number(had.Revision), Got: number(h.Revision)}
	case h.Registered != 0 && h.Registered <= had.Revision:
		return &RegressedError{What: "registration", Had: "revision " + number(had.Revision), Got: "revision " + number(h.Registered)}
	}
	for k, epoch := range h.Epochs {
		if noted, ok := s.epochs[k]; ok && epoch < noted {
			return &RegressedError{What: "leader epoch", Of: k.String(), Had: number(int64(noted)), Got: number(int64(epoch))}
		}
	}
	return nil
}

// NoteHistory notes, for the next checkpoints, what an image says; lower values than
// before are ignored.
func (s *Store) NoteHistory(h History) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := s.position.Generation < h.Generation
	if s.position.less(h.Position) {
		s.position = h.Position
	}
	if h.EtcdClusterID != 0 && (newer || s.etcdClusterID == 0) {
		s.etcdClusterID = h.EtcdClusterID
	}
	for k, epoch := range h.Epochs {
		if noted, ok := s.epochs[k]; !ok || epoch > noted {
			s.epochs[k] = epoch
		}
	}
}

// forgetEpochs lets go of a topic's epochs. The caller holds mu.
func (s *Store) forgetEpochs(topic topicid.ID) {
	maps.DeleteFunc(s.epochs, func(k Key, _ int32) bool { return k.Topic == topic })
}

// readHistory raises what is noted to what stands on a disk. Only while the store
// opens.
func (s *Store) readHistory(d *Disk) error {
	fields, ok, err := readFields(d.fs, d.Dir, positionFile)
	if err != nil {
		return err
	}
	if ok {
		bad := func(err error) error {
			return &FileError{Path: filepath.Join(d.Dir, positionFile), Detail: err.Error()}
		}
		var noted Position
		var etcd uint64
		if noted.Generation, err = parseOffset(fields["generation"]); err != nil {
			return bad(err)
		}
		if noted.Revision, err = parseOffset(fields["revision"]); err != nil {
			return bad(err)
		}
		if text := fields["etcd_cluster_id"]; text != "" {
			if etcd, err = strconv.ParseUint(text, 16, 64); err != nil {
				return bad(err)
			}
		}
		d.writtenPosition, d.writtenEtcd = noted, etcd
		if etcd != 0 && (s.etcdClusterID == 0 || s.position.less(noted)) {
			s.etcdClusterID = etcd
		}
		if s.position.less(noted) {
			s.position = noted
		}
	}
	epochs, err := readKeyed(d.fs, d.Dir, epochsFile, func(text string) (int32, error) {
		v, err := strconv.ParseInt(text, 10, 32)
		return int32(v), err
	})
	for k, epoch := range epochs {
		if noted, ok := s.epochs[k]; !ok || epoch > noted {
			s.epochs[k] = epoch
		}
	}
	return err
}

// writeHistory notes on a disk what changed; the epochs only now and then.
func (s *Store) writeHistory(d *Disk, withEpochs bool) error {
	s.mu.Lock()
	position, etcd := s.position, s.etcdClusterID
	var epochs map[Key]int32
	if withEpochs {
		epochs = maps.Clone(s.epochs)
	}
	s.mu.Unlock()
	if withEpochs {
		lines := keyedLines(epochs, func(epoch int32) string { return strconv.FormatInt(int64(epoch), 10) })
		if err := writeIfChanged(d, epochsFile, lines, &d.writtenEpochs); err != nil {
			return err
		}
	}
	if position == d.writtenPosition && etcd == d.writtenEtcd {
		return nil
	}
	lines := []string{fmt.Sprintf("generation %d", position.Generation), fmt.Sprintf("revision %d", position.Revision)}
	if etcd != 0 {
		lines = append(lines, fmt.Sprintf("etcd_cluster_id %016x", etcd))
	}
	err := writeSmallFile(d.fs, d.Dir, positionFile, lines)
	if err == nil {
		d.writtenPosition, d.writtenEtcd = position, etcd
	}
	return err
}
