package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"syscall"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
)

// Create makes a replica on the emptiest disk and opens its log; one that
// was set aside is brought back instead, since it is the same topic id. The
// folder is durable when it returns. A replica that is there already is returned
// as it is, and where Replace has taken one out and failed, that is finished. Several
// may be created at a time, each key by one caller. Errors:
// *NameTakenError while another topic's folder has the name; ErrDiskOffline when
// no disk is left; those of the disk, which is offline after an I/O error. After one,
// full disks say, it may be called again, and leaves nothing of the earlier try.
func (s *Store) Create(k Key, topic string, c commitlog.Config) (*Replica, error) {
	s.mu.Lock()
	if r := s.replicas[k]; r != nil {
		s.mu.Unlock()
		return r, nil
	}
	if !s.adopted || s.closed {
		s.mu.Unlock()
		return nil, errors.New("create a replica: the store is not open for it; call Adopt first, and not after Close")
	}
	if out, ok := s.unfinished[k]; ok {
		// The bad copy may lie in its place still. That it is to be made says that
		// nothing stands against it any more.
		out.pardoned = true
		s.unfinished[k] = out
		s.mu.Unlock()
		return s.Replace(k, topic, c)
	}
	d := s.asideOn(k)
	if d == nil {
		d = s.begunOn(k)
	}
	if d == nil {
		d = s.emptiest()
	}
	s.perDisk[d]++
	s.mu.Unlock()
	return s.createOn(d, k, topic, c, nil)
}

// createOn makes a replica on a disk, where it has been counted. With first it is one that takes the place of a
// bad copy, and first is called before it has a folder.
func (s *Store) createOn(d *Disk, k Key, topic string, c commitlog.Config, first func(*Replica) error) (*Replica, error) {
	if d == nil {
		return nil, fmt.Errorf("create %s-%d: no disk of log.dirs is online: %w", topic, k.Partition, ErrDiskOffline)
	}
	r := &Replica{Key: k, Topic: topic, Disk: d}
	r.Dir = filepath.Join(d.Dir, r.Name())
	err := s.dropBegun(r)
	if err == nil && first != nil {
		err = first(r)
	}
	if err == nil {
		err = s.create(r, c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.perDisk[d]--
		s.noteStray(r)
		if IsDiskFault(err) {
			s.fail(d, err)
		}
		return nil, err
	}
	s.dropStray(r)
	if first != nil {
		r.Verdict = d.verdicts[k]
		r.Fresh = r.Verdict != Intact
	}
	s.replicas[k] = r
	return r, nil
}

// create makes the folder and the log of a replica that is not on the books yet.
func (s *Store) create(r *Replica, c commitlog.Config) error {
	if m, err := commitlog.ReadMetadata(s.o.FS, r.Dir); err == nil && m.TopicID != r.Key.Topic {
		return &NameTakenError{Dir: r.Dir, Want: r.Key.Topic, Got: m.TopicID}
	}
	if err := s.bringBack(r); err != nil {
		return err
	}
	log, report, err := commitlog.Open(s.logOptions(r, c))
	if err != nil {
		return fmt.Errorf("create the log in %s: %w", r.Dir, err)
	}
	// Open has synced the names of the folder and of the first segment.
	r.Log, r.Report = log, report
	return nil
}

// IsDiskFault reports whether an error says that a disk refuses to work: not that
// it is full, that descriptors ran out, or that its content is damaged.
func IsDiskFault(err error) bool {
	for _, e := range []syscall.Errno{syscall.EIO, syscall.EROFS, syscall.ENXIO, syscall.ENODEV} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// asideOn is the disk in whose quarantine the replica is; nil if in none.
func (s *Store) asideOn(k Key) *Disk {
	for _, d := range s.disks {
		if d.Err() != nil {
			continue
		}
		if there, err := vfs.Exists(s.o.FS, d.asidePath(k)); err == nil && there {
			return d
		}
	}
	return nil
}

// bringBack moves a replica out of the quarantine: the metadata knows its topic
// again, for instance after a restore.
func (s *Store) bringBack(r *Replica) error {
	from := r.Disk.asidePath(r.Key)
	if there, err := vfs.Exists(s.o.FS, from); err != nil || !there {
		return err
	}
	if err := s.o.FS.Rename(from, r.Dir); err != nil {
		return fmt.Errorf("bring back %s: %w", from, err)
	}
	s.o.Logger.Warn("brought a replica back from the quarantine: its topic is known again", "dir", r.Dir, "topic_id", r.Key.Topic)
	return errors.Join(s.o.FS.SyncDir(r.Disk.Dir), s.o.FS.SyncDir(filepath.Dir(from)))
}

// SetAside closes a replica of which the metadata knows nothing and moves its
// folder into the quarantine, where it is kept until a deletion record names its
// topic id. On a disk that is offline it is left to the next start. The caller has
// made sure that nobody uses the log.
func (s *Store) SetAside(k Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.replicas[k]
	if r == nil {
		return nil
	}
	if r.Disk.Err() != nil {
		s.forget(r)
		if r.Log == nil {
			return nil
		}
		return r.Log.Abort()
	}
	if r.Log != nil {
		if err := r.Log.Close(); err != nil && !errors.Is(err, commitlog.ErrClosed) {
			s.o.Logger.Warn("close a log that is set aside", "dir", r.Dir, "error", err)
		}
	}
	to := r.Disk.asidePath(k)
	if err := r.Disk.moveAside(r.Dir, to); err != nil {
		return fmt.Errorf("set aside %s: %w", r.Dir, err)
	}
	s.forget(r)
	s.o.Logger.Warn("set aside a replica of an unknown topic; it is deleted once its topic's deletion is on record", "dir", r.Dir, "to", to, "topic_id", k.Topic)
	return nil
}

func (s *Store) forget(r *Replica) {
	delete(s.replicas, r.Key)
	s.perDisk[r.Disk]--
}

// Delete removes a replica for good, also what lies on a disk of one that Replace or
// Create could not bring about. An absent one is no error. Several may be
// deleted at a time, each key by one caller, who has made sure that nobody uses
// the log any more but readers, for whom the log waits. What lies on a disk that
// is offline stays until the disk is repaired: ErrDiskOffline.
func (s *Store) Delete(k Key) error {
	if r := s.Replica(k); r != nil {
		if r.Disk.Err() != nil {
			return fmt.Errorf("delete %s: %w", r.Dir, ErrDiskOffline)
		}
		var err error
		if r.Log != nil {
			err = r.Log.Delete()
		}
		if r.Log == nil || errors.Is(err, commitlog.ErrClosed) {
			err = commitlog.DeleteFolder(s.o.FS, r.Dir, r.identity())
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", r.Dir, err)
		}
	}
	if err := errors.Join(s.deleteStrays(k), s.DropReplaced(k)); err != nil {
		return err
	}
	s.mu.Lock()
	if r := s.replicas[k]; r != nil {
		s.forget(r)
	}
	delete(s.away, k)
	delete(s.unfinished, k)
	s.usage = nil
	for _, d := range s.online() {
		delete(d.recovery, k)
		delete(d.watermarks, k)
		d.noteVerdict(k, Intact)
	}
	s.mu.Unlock()
	return s.flushVerdicts()
}

// ForgetTopic removes from the quarantines what belongs to a topic, and every
// verdict on its replicas.
func (s *Store) ForgetTopic(topic [16]byte) error {
	s.forgetNotes(topic)
	return errors.Join(s.flushVerdicts(), s.emptyQuarantine(topic))
}

// forgetNotes forgets what is known of a topic's replicas.
func (s *Store) forgetNotes(topic topicid.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.away, func(k Key, _ struct{}) bool { return k.Topic == topic })
	s.forgetEpochs(topic)
	maps.DeleteFunc(s.replaced, func(k Key, _ bool) bool { return k.Topic == topic })
	maps.DeleteFunc(s.unfinished, func(k Key, _ takenOut) bool { return k.Topic == topic })
	for _, d := range s.online() {
		for k := range d.verdicts {
			if k.Topic == topic {
				d.noteVerdict(k, Intact)
			}
		}
	}
}

// emptyQuarantine removes what was set aside of a topic.
func (s *Store) emptyQuarantine(topic topicid.ID) error {
	for _, d := range s.online() {
		aside := filepath.Join(d.Dir, asideDir)
		entries, err := s.o.FS.ReadDir(aside)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		changed := false
		for _, e := range entries {
			dir := filepath.Join(aside, e.Name)
			m, err := commitlog.ReadMetadata(s.o.FS, dir)
			if err != nil || m.TopicID != topic {
				continue
			}
			if err := s.o.FS.RemoveAll(dir); err != nil {
				return err
			}
			changed = true
		}
		if changed {
			if err := s.o.FS.SyncDir(aside); err != nil {
				return err
			}
		}
	}
	return nil
}

// DiskFailed takes a disk offline for the rest of the process's life and returns
// the replicas on it. Only the first call for a disk returns any.
func (s *Store) DiskFailed(d *Disk, cause error) []*Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(d, cause)
	if d.told.Swap(true) {
		return nil
	}
	var all []*Replica
	for _, r := range s.replicas {
		if r.Disk == d {
			all = append(all, r)
		}
	}
	return all
}

// NewlyFailed are disks that the store itself found to be failed, and about whose
// replicas DiskFailed has not told yet.
func (s *Store) NewlyFailed() []*Disk {
	var disks []*Disk
	for _, d := range s.disks {
		if d.Err() != nil && !d.told.Load() {
			disks = append(disks, d)
		}
	}
	return disks
}

func (s *Store) fail(d *Disk, cause error) {
	if !d.failure.CompareAndSwap(nil, &cause) {
		return
	}
	s.o.Logger.Error("a disk failed: its replicas are offline until it is repaired and the broker restarted", "dir", d.Dir, "disk_id", d.ID, "error", cause)
}
