package store

import (
	"fmt"
	"sync/atomic"

	"github.com/leat-io/leat/libs/commitlog"
)

// Verdict says how whole a replica is after recovery.
type Verdict int8

// The verdicts, as written in the verdicts file.
const (
	Intact Verdict = iota
	Cut
	UncleanOS
	Missing
	Corrupt
)

var verdictNames = [...]string{"intact", "cut", "unclean-os", "missing", "corrupt"}

func (v Verdict) String() string {
	if v < 0 || int(v) >= len(verdictNames) {
		return "unknown"
	}
	return verdictNames[v]
}

func parseVerdict(s string) (Verdict, error) {
	for i, n := range verdictNames {
		if n == s {
			return Verdict(i), nil
		}
	}
	return Intact, fmt.Errorf("%q is no verdict", s)
}

// Replica is one replica on a disk.
type Replica struct {
	Key   Key
	Topic string // name of the topic
	Disk  *Disk
	Dir   string
	// Log is the open log, nil when it could not be opened (OpenErr says why). The
	// store closes it.
	Log     *commitlog.Log
	OpenErr error
	Report  commitlog.RecoveryReport
	// Verdict is what recovery and earlier starts say.
	Verdict Verdict
	// Fresh says that the verdict is about an earlier copy: this one was made in its
	// place, empty, and everything in it comes from a leader.
	Fresh bool

	pardoned bool // the verdict goes with the bad copy; guarded by the store

	hw atomic.Int64
	// ceiling is one above the offset that the marks on record must not pass; 0: none.
	ceiling atomic.Int64
}

// SetHighWatermark notes the mark for the next checkpoint. It is safe for use by
// several goroutines.
func (r *Replica) SetHighWatermark(hw int64) { r.hw.Store(hw) }

// HighWatermark is the mark last noted, at first that of the last checkpoint.
func (r *Replica) HighWatermark() int64 { return r.hw.Load() }

// Name is <topic>-<partition>.
func (r *Replica) Name() string { return fmt.Sprintf("%s-%d", r.Topic, r.Key.Partition) }

// identity is what the replica's folder says of itself.
func (r *Replica) identity() commitlog.Metadata {
	return commitlog.Metadata{Topic: r.Topic, Partition: r.Key.Partition, TopicID: r.Key.Topic}
}
