package store

import (
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/failpoint"
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
		o.Now = failpoint.Now
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
	away map[Key]struct{}
	// replaced are the replicas of which a bad copy is kept in a quarantine.
	replaced map[Key]bool
	// replacing are those for which Replace runs; true: their verdict is cleared
	// meanwhile.
	replacing map[Key]bool
	// unfinished is what Replace had taken out where it failed.
	unfinished map[Key]takenOut
	// strays are folders, by path, that may be on a disk for a replica that is not on
	// the books: see noteStray.
	strays  map[Key]map[string]*Replica
	usage   map[*Disk]int64 // see used; nil: unknown
	usageAt time.Time
	adopted bool
	closed  bool

	// checkpointMu keeps two checkpoints from writing over each other.
	checkpointMu sync.Mutex
	position     Position
	// Of the newest position, and of all replicas that were ever here; guarded by mu.
	etcdClusterID uint64
	epochs        map[Key]int32
}

// Position is how new the metadata was that this broker has seen.
type Position struct{ Generation, Revision int64 }

func (p Position) less(o Position) bool {
	return p.Generation < o.Generation || p.Generation == o.Generation && p.Revision < o.Revision
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
	all := s.Unordered()
	slices.SortFunc(all, func(a, b *Replica) int { return a.Key.Compare(b.Key) })
	return all
}

// Unordered are all replicas in no order, for who looks at them often.
func (s *Store) Unordered() []*Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Replica, 0, len(s.replicas))
	for _, r := range s.replicas {
		all = append(all, r)
	}
	return all
}

// HighestPosition is the newest metadata position that was ever noted.
func (s *Store) HighestPosition() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position
}
