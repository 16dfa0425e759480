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
	// OpenFiles bounds the files that all logs together keep open; 0:
	// commitlog.DefaultOpenFiles.
	OpenFiles int
	// Space says how much of each disk stays free.
	Space Space
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
	if o.OpenFiles <= 0 {
		o.OpenFiles = commitlog.DefaultOpenFiles
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
	files *commitlog.FileCache

	mu       sync.Mutex
	replicas map[Key]*Replica
	perDisk  map[*Disk]int
	// away are replicas that should be here and may be on a disk that failed at the
	// start.
	away    map[Key]struct{}
	usage   map[*Disk]int64 // see used; nil: unknown
	usageAt time.Time
	adopted bool
	closed  bool

	// checkpointMu keeps two checkpoints from writing over each other.
	checkpointMu sync.Mutex
	position     Position
}

// Position is how new the metadata was that this broker has seen.
type Position struct{ Generation, Revision int64 }

func (p Position) less(o Position) bool {
	return p.Generation < o.Generation || p.Generation == o.Generation && p.Revision < o.Revision
}

// Open locks and reads the disks, takes the clean-shutdown markers away and opens
// every replica found. A disk that refuses to work is offline, with whatever is on
// it, and the others go on. Errors: *NoDiskError, *LockedError, *WrongOwnerError,
// *FileError, others of the disk. On an error nothing stays locked.
func Open(o Options) (_ *Store, err error) {
	o = o.withDefaults()
	if err := checkDirs(o.Dirs); err != nil {
		return nil, err
	}
	s := &Store{
		o: o, files: commitlog.NewFileCache(o.OpenFiles), replicas: map[Key]*Replica{}, perDisk: map[*Disk]int{}, away: map[Key]struct{}{},
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
		err := d.readPosition(&s.position)
		if err == nil {
			err = d.begin(&o)
		}
		if err := s.tolerate(d, err); err != nil {
			return nil, fmt.Errorf("begin on %s: %w", d.Dir, err)
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
	var all []*Replica
	for _, d := range s.online() {
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

// openReplica recovers one log. Damage becomes a verdict, not an error, and a disk
// that fails takes all its replicas along.
func (s *Store) openReplica(r *Replica) error {
	if r.Disk.Err() != nil {
		return nil
	}
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
	return s.tolerate(r.Disk, fmt.Errorf("open the log in %s: %w", r.Dir, err))
}

func (s *Store) logOptions(r *Replica, c commitlog.Config) commitlog.Options {
	return commitlog.Options{
		Config: c, FS: s.o.FS, Dir: r.Dir, Topic: r.Topic, Partition: r.Key.Partition, TopicID: r.Key.Topic,
		RecoveryPoint: r.Disk.recovery[r.Key], HighWatermark: r.Disk.watermarks[r.Key],
		CleanShutdown: r.Disk.clean, Files: s.files, Now: s.o.Now, Logger: s.o.Logger,
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
		if err := s.tolerate(d, d.writeVerdicts()); err != nil {
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

// OpenFiles is how many files the logs have open.
func (s *Store) OpenFiles() int { return s.files.Open() }

// Usable reports whether a disk is online.
func (s *Store) Usable() bool { return len(s.online()) > 0 }

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
		if err := keeper.writeVerdicts(); err != nil {
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
			if verdict == Missing && s.replicas[k] == nil {
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
	delete(s.away, k)
	for _, d := range s.online() {
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
	if s.position.less(p) {
		s.position = p
	}
}
