package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/leat-io/leat/libs/commitlog"
)

// Open locks and reads the disks, takes the clean-shutdown markers away and opens
// every replica found. A disk that refuses to work is offline, with whatever is on
// it, and the others go on. Two folders of one replica are an error, unless one of them was
// only begun. Errors: *NoDiskError, *LockedError, *WrongOwnerError,
// *FileError, others of the disk. On an error nothing stays locked.
func Open(o Options) (_ *Store, err error) {
	o = o.withDefaults()
	if err := checkDirs(o.Dirs); err != nil {
		return nil, err
	}
	s := &Store{
		o: o, files: commitlog.NewFileCache(o.OpenFiles), replicas: map[Key]*Replica{}, perDisk: map[*Disk]int{}, away: map[Key]struct{}{}, replaced: map[Key]bool{}, replacing: map[Key]bool{}, unfinished: map[Key]takenOut{}, strays: map[Key]map[string]*Replica{}, epochs: map[Key]int32{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.abandon())
		}
	}()
	for _, dir := range o.Dirs {
		d, err := openDisk(&o, filepath.Clean(dir))
		s.disks = append(s.disks, d)
		if err := s.tolerate(d, err); err != nil {
			return nil, err
		}
		if first := s.clusterID(); d.clusterID != "" && d.clusterID != first {
			return nil, &WrongOwnerError{Dir: d.Dir, What: "cluster", Want: first, Got: d.clusterID}
		}
	}
	for _, d := range s.online() {
		err := s.readHistory(d)
		if err == nil {
			err = d.begin(&o)
		}
		if err := s.tolerate(d, err); err != nil {
			return nil, beginError(d.Dir, err)
		}
	}
	if err := s.openAll(); err != nil {
		return nil, err
	}
	if len(s.online()) == 0 {
		return nil, s.noDisk()
	}
	s.RefreshSpace()
	return s, nil
}

// beginError tells what to do about a disk that cannot be begun with.
func beginError(dir string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("begin on %s: %w; the disk has no room even for the broker's own small files: make some by removing what is not the broker's, or make the disk larger, then start again", dir, err)
	}
	return fmt.Errorf("begin on %s: %w", dir, err)
}

// tolerate takes a disk that refuses to work offline; other errors are the
// caller's.
func (s *Store) tolerate(d *Disk, err error) error {
	if err == nil || !IsDiskFault(err) {
		return err
	}
	s.fail(d, err)
	return nil
}

// online are the disks that work.
func (s *Store) online() []*Disk {
	var disks []*Disk
	for _, d := range s.disks {
		if d.Err() == nil {
			disks = append(disks, d)
		}
	}
	return disks
}

func (s *Store) noDisk() error {
	e := &NoDiskError{}
	for _, d := range s.disks {
		e.Dirs, e.Errs = append(e.Dirs, d.Dir), append(e.Errs, d.Err())
	}
	return e
}

func checkDirs(dirs []string) error {
	if len(dirs) == 0 {
		return errors.New("log.dirs names no folder; name at least one")
	}
	seen := map[string]bool{}
	for _, dir := range dirs {
		if strings.TrimSpace(dir) == "" {
			return errors.New("log.dirs has an empty entry; separate folders by single commas")
		}
		if clean := filepath.Clean(dir); seen[clean] {
			return fmt.Errorf("log.dirs names %s twice; name each folder once", clean)
		} else {
			seen[clean] = true
		}
	}
	return nil
}

// openAll opens the replicas that were found, several at a time.
func (s *Store) openAll() error {
	for _, d := range s.online() {
		for _, r := range d.found {
			if other, twice := s.replicas[r.Key]; twice {
				var err error
				if r, err = s.oneOf(other, r); err != nil {
					return err
				}
			}
			s.replicas[r.Key] = r
		}
		d.found = nil
	}
	all := s.Replicas()
	for _, r := range all {
		s.perDisk[r.Disk]++
	}
	var g errgroup.Group
	g.SetLimit(s.o.OpenParallelism)
	for _, r := range all {
		g.Go(func() error { return s.openReplica(r) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := s.keepVerdicts(all); err != nil {
		return err
	}
	return s.noteReplaced()
}

// openReplica recovers one log. Damage becomes a verdict, not an error, and a disk
// that fails takes all its replicas along.
func (s *Store) openReplica(r *Replica) error {
	if r.Disk.Err() != nil {
		return nil
	}
	r.Verdict = r.Disk.verdicts[r.Key]
	r.hw.Store(r.Disk.watermarks[r.Key])
	o := s.logOptions(r, commitlog.Config{})
	o.RecoveryPoint, o.HighWatermark, o.CleanShutdown = r.Disk.recovery[r.Key], r.Disk.watermarks[r.Key], r.Disk.clean
	log, report, err := commitlog.Open(o)
	r.Report = report
	var corrupt *commitlog.CorruptError
	var mismatch *commitlog.TopicIDMismatchError
	var version *commitlog.UnsupportedVersionError
	switch {
	case err == nil:
		r.Log = log
		return nil
	case errors.As(err, &corrupt), errors.As(err, &mismatch), errors.As(err, &version):
		r.OpenErr, r.Verdict = err, Corrupt
		s.o.Logger.Error("withheld a replica whose log is damaged", "replica", r.Name(), "dir", r.Dir, "error", err)
		return nil
	}
	return s.tolerate(r.Disk, fmt.Errorf("open the log in %s: %w", r.Dir, err))
}

// logOptions are those of a log of which nothing is on record yet; the disk's marks
// are read only while the store opens, when nobody changes them.
func (s *Store) logOptions(r *Replica, c commitlog.Config) commitlog.Options {
	return commitlog.Options{
		Config: c, FS: s.o.FS, Dir: r.Dir, Topic: r.Topic, Partition: r.Key.Partition, TopicID: r.Key.Topic,
		Files: s.files, Now: s.o.Now, Logger: s.o.Logger,
	}
}

// keepVerdicts makes new verdicts durable before anything is created or followed.
func (s *Store) keepVerdicts(all []*Replica) error {
	changed := map[*Disk]bool{}
	for _, r := range all {
		if r.Verdict != r.Disk.verdicts[r.Key] {
			r.Disk.verdicts[r.Key] = r.Verdict
			changed[r.Disk] = true
		}
	}
	for d := range changed {
		if d.Err() != nil {
			continue
		}
		if err := s.tolerate(d, d.writeVerdicts(d.verdicts)); err != nil {
			return err
		}
	}
	return nil
}
