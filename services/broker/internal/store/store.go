package store

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs"
)

// Options says where a broker's disks are and who the broker is.
type Options struct {
	// FS is the file system; nil is that of the operating system.
	FS vfs.FS
	// Dirs are the folders of log.dirs, at least one.
	Dirs []string
	// BrokerID and Incarnation name the process.
	BrokerID    int32
	Incarnation uint64
	// BootID names the life of the host; empty: unknown, always the same.
	BootID string
	// OpenParallelism bounds how many logs are opened at a time; 0: by the number
	// of processors.
	OpenParallelism int
	// Logger gets what recovery found; nil is silence.
	Logger *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.OpenParallelism <= 0 {
		o.OpenParallelism = 4 * runtime.GOMAXPROCS(0)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Store is a broker's disks. Methods are safe for use by several goroutines
// except where they say otherwise.
type Store struct {
	o     Options
	disks []*Disk

	mu       sync.Mutex
	replicas map[Key]*Replica
	perDisk  map[*Disk]int
	adopted  bool
	closed   bool

	// checkpointMu keeps two checkpoints from writing over each other.
	checkpointMu sync.Mutex
	position     Position
	written      Position
}

// Position is how new the metadata was that this broker has seen.
type Position struct{ Generation, Revision int64 }

// Open locks and reads the disks, takes the clean-shutdown markers away and opens
// every replica found. Errors: *LockedError, *WrongOwnerError, *FileError, those
// of the disk. On an error nothing stays locked.
func Open(o Options) (_ *Store, err error) {
	o = o.withDefaults()
	if err := checkDirs(o.Dirs); err != nil {
		return nil, err
	}
	s := &Store{o: o, replicas: map[Key]*Replica{}, perDisk: map[*Disk]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.abandon())
		}
	}()
	for _, dir := range o.Dirs {
		d, err := openDisk(&o, filepath.Clean(dir))
		if err != nil {
			return nil, err
		}
		s.disks = append(s.disks, d)
		if first := s.clusterID(); d.clusterID != "" && d.clusterID != first {
			return nil, &WrongOwnerError{Dir: d.Dir, What: "cluster", Want: first, Got: d.clusterID}
		}
	}
	if s.position, err = s.readPosition(); err != nil {
		return nil, err
	}
	for _, d := range s.disks {
		if err := d.begin(&o); err != nil {
			return nil, fmt.Errorf("begin on %s: %w", d.Dir, err)
		}
	}
	return s, s.openAll()
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
	var all []*Replica
	for _, d := range s.disks {
		for _, r := range d.found {
			if other, twice := s.replicas[r.Key]; twice {
				return &FileError{Path: r.Dir, Detail: fmt.Sprintf("the same replica is in %s too; remove the folder that is not needed", other.Dir)}
			}
			s.replicas[r.Key] = r
			s.perDisk[d]++
			all = append(all, r)
		}
		d.found = nil
	}
	var g errgroup.Group
	g.SetLimit(s.o.OpenParallelism)
	for _, r := range all {
		g.Go(func() error { return s.openReplica(r) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return s.keepVerdicts(all)
}

// openReplica recovers one log. Damage becomes a verdict, not an error.
func (s *Store) openReplica(r *Replica) error {
	r.Verdict = r.Disk.verdicts[r.Key]
	r.hw.Store(r.Disk.watermarks[r.Key])
	log, report, err := commitlog.Open(s.logOptions(r, commitlog.Config{}))
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
	return fmt.Errorf("open the log in %s: %w", r.Dir, err)
}

func (s *Store) logOptions(r *Replica, c commitlog.Config) commitlog.Options {
	return commitlog.Options{
		Config: c, FS: s.o.FS, Dir: r.Dir, Topic: r.Topic, Partition: r.Key.Partition, TopicID: r.Key.Topic,
		RecoveryPoint: r.Disk.recovery[r.Key], HighWatermark: r.Disk.watermarks[r.Key],
		CleanShutdown: r.Disk.clean, Now: s.o.Now, Logger: s.o.Logger,
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
		if err := d.writeVerdicts(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) clusterID() string {
	for _, d := range s.disks {
		if d.clusterID != "" {
			return d.clusterID
		}
	}
	return ""
}

// ClusterID is the cluster that the disks belong to; empty: all of them are new.
func (s *Store) ClusterID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clusterID()
}

// Disks are the broker's disks, in the order of log.dirs.
func (s *Store) Disks() []*Disk { return s.disks }

// Replica is the replica of that key, nil if there is none.
func (s *Store) Replica(k Key) *Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replicas[k]
}

// Replicas are all replicas, by key.
func (s *Store) Replicas() []*Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Replica, 0, len(s.replicas))
	for _, r := range s.replicas {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Replica) int { return a.Key.Compare(b.Key) })
	return all
}

// Adopt binds the disks to the cluster. expected are the replicas that, by the
// metadata, this broker holds: those that were on its disks and are not get the
// verdict missing. On a broker whose disks are not new a replica that was never
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
	anyFresh := slices.ContainsFunc(s.disks, func(d *Disk) bool { return d.fresh })
	keeper := s.disks[0]
	lost := false
	for _, k := range expected {
		if s.replicas[k] != nil || s.hasVerdict(k) {
			continue
		}
		if anyFresh || s.wasHere(k) {
			keeper.verdicts[k] = Missing
			lost = true
			s.o.Logger.Error("a replica that should be here is missing", "topic_id", k.Topic, "partition", k.Partition)
		}
	}
	if lost {
		if err := keeper.writeVerdicts(); err != nil {
			return err
		}
	}
	for _, d := range s.disks {
		if d.fresh {
			if err := d.writeMeta(s.o.BrokerID, clusterID); err != nil {
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
		if v.Verdict == UncleanOS && (isOS == nil || !isOS(r.Key)) {
			v.Verdict = Intact
		}
		all = append(all, v)
	}
	for _, d := range s.disks {
		for k, verdict := range d.verdicts {
			if verdict == Missing && s.replicas[k] == nil {
				all = append(all, Vouch{DiskID: d.ID, Key: k, LastEpoch: -1, Verdict: Missing})
			}
		}
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
	for _, d := range s.disks {
		if v := d.verdicts[k]; v != Intact {
			return v
		}
	}
	return Intact
}

// ClearVerdict forgets what stood against a replica, durably. Only a metadata
// stream that shows this process's incarnation on record and the replica not
// barred permits it. A replica whose log did not open stays withheld.
func (s *Store) ClearVerdict(k Key) error {
	lost, err := s.clearVerdict(k)
	if err != nil || !lost {
		return err
	}
	// Marks of the lost replica must be gone before its successor has a folder,
	// or the next start would take it for one that was cut.
	var errs []error
	for _, err := range s.Checkpoint(true) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// clearVerdict reports whether the replica was not there at all.
func (s *Store) clearVerdict(k Key) (lost bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.replicas[k]; r != nil {
		if r.Log == nil {
			return false, nil
		}
		r.Verdict = Intact
	}
	for _, d := range s.disks {
		if _, there := d.verdicts[k]; !there {
			continue
		}
		delete(d.verdicts, k)
		if s.replicas[k] == nil {
			// What the lost replica had reached says nothing about its successor.
			lost = true
			delete(d.recovery, k)
			delete(d.watermarks, k)
		}
		if err := d.writeVerdicts(); err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// HighestPosition is the newest metadata position that was ever noted.
func (s *Store) HighestPosition() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position
}

// SetPosition notes a metadata position for the next checkpoint; an older one is
// ignored.
func (s *Store) SetPosition(p Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Generation > s.position.Generation || p.Generation == s.position.Generation && p.Revision > s.position.Revision {
		s.position = p
	}
}
