package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
)

// replacedPath is where the bad copy of a replica is kept until its replacement is
// in sync.
func (d *Disk) replacedPath(k Key) string {
	return filepath.Join(d.Dir, asideDir, fmt.Sprintf("replaced-%s-%d", k.Topic.Hex(), k.Partition))
}

// SetVerdict notes, durably, what was found against a replica while it was in use:
// that its log is damaged. Until it is cleared nothing that the replica holds is
// vouched for. Errors: ErrDiskOffline, which is verdict enough; those of the disk.
func (s *Store) SetVerdict(k Key, v Verdict) error {
	s.mu.Lock()
	r := s.replicas[k]
	switch {
	case r == nil:
		s.mu.Unlock()
		return fmt.Errorf("note that %v is %v: there is no such replica", k, v)
	case r.Disk.Err() != nil:
		s.mu.Unlock()
		return fmt.Errorf("note that %s is %v: %w", r.Dir, v, ErrDiskOffline)
	}
	was := r.Disk.verdicts[k]
	r.Disk.noteVerdict(k, v)
	s.mu.Unlock()
	err := s.flushVerdictsOf(r.Disk)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		r.Disk.noteVerdict(k, was)
		return err
	}
	r.Verdict = v
	return nil
}

// Replace puts a fresh, empty replica in the place of one that is cut, corrupt or
// missing, for the caller to fill from the leader's log. The bad copy is kept in the
// quarantine until DropReplaced; a replacement that turned out bad in its turn is
// deleted. The verdict stays, durably, until ClearVerdict, unless that has come before
// or comes meanwhile. The caller has made sure that nobody uses the log but readers,
// for whom it waits. From one goroutine for each key. Errors are those of Create; after
// one, full disks say, it may be called again and goes on where it stood, on another disk
// perhaps.
func (s *Store) Replace(k Key, topic string, c commitlog.Config) (*Replica, error) {
	out, err := s.takeOut(k)
	if err != nil {
		return nil, fmt.Errorf("replace %s-%d: %w", topic, k.Partition, err)
	}
	r, err := s.putAnew(k, topic, c, out)
	if s.endReplacing(k, r, out) {
		err = errors.Join(err, s.flushVerdicts())
	}
	if err != nil {
		return nil, err
	}
	s.o.Logger.Warn("made a replica anew; its leader fills it", "dir", r.Dir, "topic_id", k.Topic, "was", out.verdict.String())
	return r, nil
}

// endReplacing applies a pardon that came before Replace or meanwhile; r is the
// replacement. Where there is none, what was taken out is kept for the next try.
func (s *Store) endReplacing(k Key, r *Replica, out takenOut) (pardoned bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pardoned = s.replacing[k]
	delete(s.replacing, k)
	if r == nil {
		out.pardoned = pardoned
		s.unfinished[k] = out
		return false
	}
	delete(s.unfinished, k)
	if out.replica != nil {
		s.dropStray(out.replica) // it was put away
	}
	if pardoned {
		for _, d := range s.online() {
			d.noteVerdict(k, Intact)
		}
		r.Verdict, r.Fresh = Intact, false
	}
	return pardoned
}

// takenOut is what was on the books about a replica that is replaced.
type takenOut struct {
	replica  *Replica // nil: it was missing
	verdict  Verdict
	marked   bool // there may be marks on a disk
	pardoned bool // by the end of a try that failed
}

// putAnew puts a bad copy away and makes its replacement.
func (s *Store) putAnew(k Key, topic string, c commitlog.Config, out takenOut) (*Replica, error) {
	if out.marked {
		// What the bad copy had reached says nothing about its successor, and must be
		// gone before that has a folder.
		for _, err := range s.Checkpoint(true) {
			return nil, err
		}
	}
	if out.replica != nil {
		if err := s.putAway(out.replica); err != nil {
			return nil, err
		}
	}
	return s.createOn(s.placeFor(k, out.replica), k, topic, c, func(r *Replica) error {
		if out.verdict == Intact {
			return nil // it was cleared before
		}
		return s.moveVerdict(k, out.verdict, r.Disk)
	})
}

// takeOut closes a replica's log and takes it and its marks off the books. From then
// on a verdict that is cleared waits for the end of Replace.
func (s *Store) takeOut(k Key) (out takenOut, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.replicas[k]
	switch _, away := s.away[k]; {
	case !s.adopted || s.closed:
		return out, errors.New("the store is not open for it; call Adopt first, and not after Close")
	case away, r != nil && r.Disk.Err() != nil:
		return out, ErrDiskOffline
	}
	for _, d := range s.online() {
		_, a := d.recovery[k]
		_, b := d.watermarks[k]
		out.marked = out.marked || a || b
		delete(d.recovery, k)
		delete(d.watermarks, k)
		out.verdict = max(out.verdict, d.verdicts[k])
	}
	if was, ok := s.unfinished[k]; ok && r == nil {
		s.replacing[k] = was.pardoned
		return was, nil
	}
	s.replacing[k] = r != nil && r.pardoned
	if r == nil {
		return out, nil
	}
	if r.Log != nil {
		if err := r.Log.Abort(); err != nil && !errors.Is(err, commitlog.ErrClosed) {
			s.o.Logger.Warn("close a log that is replaced", "dir", r.Dir, "error", err)
		}
	}
	s.forget(r)
	s.noteStray(r)
	out.replica, out.marked, out.verdict = r, true, max(out.verdict, r.Verdict)
	return out, nil
}

// putAway moves the bad copy into the quarantine, or deletes it if that holds an
// earlier one already: then this one was a replacement.
func (s *Store) putAway(r *Replica) error {
	if r.Fresh || s.HasReplaced(r.Key) {
		return s.removeDir(r.Dir)
	}
	there, err := vfs.Exists(s.o.FS, r.Dir)
	if err != nil || !there {
		return err
	}
	to := r.Disk.replacedPath(r.Key)
	if err := r.Disk.moveAside(r.Dir, to); err != nil {
		return fmt.Errorf("keep the bad copy of %s: %w", r.Name(), err)
	}
	s.mu.Lock()
	s.replaced[r.Key] = true
	s.mu.Unlock()
	s.o.Logger.Warn("keeps the bad copy of a replica until its replacement is in sync", "dir", r.Dir, "to", to, "verdict", r.Verdict.String())
	return nil
}

func (s *Store) removeDir(dir string) error {
	if err := s.o.FS.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return s.o.FS.SyncDir(filepath.Dir(dir))
}

// placeFor is the disk for a replacement: that of the bad copy while it has room.
func (s *Store) placeFor(k Key, old *Replica) *Disk {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.begunOn(k)
	switch {
	case d != nil:
	case old != nil && old.Disk.Err() == nil && old.Disk.Stage() != Full:
		d = old.Disk
	default:
		d = s.emptiest()
	}
	s.perDisk[d]++
	return d
}

// moveVerdict has the verdict lie beside the replica that it is about, and nowhere
// else.
func (s *Store) moveVerdict(k Key, v Verdict, to *Disk) error {
	s.mu.Lock()
	to.noteVerdict(k, v)
	s.mu.Unlock()
	if err := s.flushVerdictsOf(to); err != nil {
		return err
	}
	s.mu.Lock()
	for _, d := range s.online() {
		if d != to {
			d.noteVerdict(k, Intact)
		}
	}
	s.mu.Unlock()
	return s.flushVerdicts()
}

// HasReplaced reports whether a bad copy of a replica is kept.
func (s *Store) HasReplaced(k Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replaced[k]
}

// DropReplaced removes the bad copy of a replica whose replacement is in sync. An
// absent one is no error.
func (s *Store) DropReplaced(k Key) error {
	if !s.HasReplaced(k) {
		return nil
	}
	for _, d := range s.online() {
		dir := d.replacedPath(k)
		there, err := vfs.Exists(s.o.FS, dir)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if err := s.removeDir(dir); err != nil {
			return err
		}
		s.o.Logger.Info("removed the bad copy of a replica that was made anew", "dir", dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.replaced, k)
	return nil
}

// noteReplaced finds the bad copies that are kept, and the replicas that are being
// fetched in their place. Only while the store opens.
func (s *Store) noteReplaced() error {
	for _, d := range s.online() {
		entries, err := s.o.FS.ReadDir(filepath.Join(d.Dir, asideDir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			if err := s.tolerate(d, err); err != nil {
				return err
			}
		}
		for _, e := range entries {
			if k, ok := parseReplaced(e.Name); ok {
				s.replaced[k] = true
			}
		}
	}
	for k, r := range s.replicas {
		// A missing one whose folder is there was made anew.
		r.Fresh = r.Verdict == Missing || r.Verdict != Intact && s.replaced[k]
	}
	return nil
}

// parseReplaced reads the name of a folder that replacedPath made.
func parseReplaced(name string) (k Key, ok bool) {
	rest, ok := strings.CutPrefix(name, "replaced-")
	id, number, cut := strings.Cut(rest, "-")
	if !ok || !cut {
		return k, false
	}
	topic, err := topicid.ParseHex(id)
	if err != nil {
		return k, false
	}
	n, err := strconv.ParseInt(number, 10, 32)
	return Key{Topic: topic, Partition: int32(n)}, err == nil
}
