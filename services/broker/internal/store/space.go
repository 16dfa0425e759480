package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/vfs"
)

// Space says how much of each disk stays free, in bytes. The zero value sets no
// limits.
type Space struct {
	// Reserve is kept from records, for deletions, cleaning, checkpoints and, its
	// first half, for the internal topics. Below 0: a twentieth of the disk, at most
	// 1 GiB.
	Reserve int64
	// Throttle is where appends are slowed down to ThrottleRate, and Warn where the
	// operator is told. Below 0: twice and four times the reserve.
	Throttle, Warn int64
	// ThrottleRate is in bytes a second for the whole disk; 0 slows nothing down.
	ThrottleRate int64
}

// Bounds of what is computed.
const (
	reserveShare = 20
	maxReserve   = 1 << 30
	// maxDelay bounds how long one batch is slowed down.
	maxDelay = time.Second
	// refusedFor is how long a disk counts as full after the last refusal, so that
	// one that hovers at its reserve is not told of again and again.
	refusedFor = 5 * time.Second
)

// Stage says how full a disk is.
type Stage int32

// The stages.
const (
	Roomy     Stage = iota
	Low             // the operator is told
	Throttled       // appends are slowed down
	Full            // appends are refused
)

var stageNames = [...]string{"roomy", "low", "throttled", "full"}

func (s Stage) String() string {
	if s < 0 || int(s) >= len(stageNames) {
		return "unknown"
	}
	return stageNames[s]
}

// room is how much room a disk has.
type room struct {
	known atomic.Bool
	total atomic.Int64
	// free is what the system said last, less what was admitted since.
	free    atomic.Int64
	refused atomic.Int64 // when an append was refused last, in ns; 0: never
	stage   atomic.Int32
	// appended is what was admitted since the replicas' sizes were added up.
	appended atomic.Int64

	reserve, throttle, warn atomic.Int64

	mu   sync.Mutex
	paid time.Time // up to when the throttle's rate is used up
}

// Stage is how full the disk was found last.
func (d *Disk) Stage() Stage { return Stage(d.room.stage.Load()) }

// Free is how many bytes the disk has left, Total how many it has; ok is false
// where the system does not tell.
func (d *Disk) Free() (free, total int64, ok bool) {
	return max(d.room.free.Load(), 0), d.room.total.Load(), d.room.known.Load()
}

// Reserve is how many bytes are kept from records.
func (d *Disk) Reserve() int64 { return d.room.reserve.Load() }

// Admit asks to append n bytes. ok is false while that would use up the reserve;
// otherwise the caller waits for delay first. Internal topics may use the first half of
// the reserve.
func (s *Store) Admit(d *Disk, n int64, internal bool) (delay time.Duration, ok bool) {
	r := &d.room
	if !r.known.Load() {
		r.appended.Add(n)
		return 0, true
	}
	keep := r.reserve.Load()
	if internal {
		keep /= 2
	}
	free := r.free.Add(-n)
	if free < keep {
		r.free.Add(n)
		s.NoRoom(d)
		return 0, false
	}
	r.appended.Add(n)
	if free >= r.throttle.Load() || internal {
		return 0, true
	}
	return r.delay(n, s.o.Space.ThrottleRate, s.o.Now()), true
}

// NoRoom notes that the disk had no room for an append.
func (s *Store) NoRoom(d *Disk) { d.room.refused.Store(s.o.Now().UnixNano()) }

// delay is how long n bytes have to wait at a rate.
func (r *room) delay(n, rate int64, now time.Time) time.Duration {
	if rate <= 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paid.Before(now) {
		r.paid = now
	}
	wait := r.paid.Sub(now)
	r.paid = r.paid.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return min(wait, maxDelay)
}

// RefreshSpace asks the system about every disk, logs each change of a disk's
// stage, and returns the disks whose stage became another one.
func (s *Store) RefreshSpace() []*Disk {
	var changed []*Disk
	for _, d := range s.disks {
		if d.Err() != nil {
			continue
		}
		if s.refreshSpace(d) {
			changed = append(changed, d)
		}
	}
	return changed
}

func (s *Store) refreshSpace(d *Disk) (changed bool) {
	r := &d.room
	space, err := vfs.DiskSpace(d.fs, d.Dir)
	if err != nil {
		// A disk that does not tell is not full; one that is broken fails elsewhere.
		if r.known.Swap(false) && !errors.Is(err, errors.ErrUnsupported) {
			s.o.Logger.Warn("the system does not tell how much room a disk has", "dir", d.Dir, "error", err)
		}
	} else {
		if failpoint.Hit(failpoint.DiskSpace) != nil {
			space.Free = 0
		}
		s.o.Space.limits(space.Total, r)
		r.total.Store(space.Total)
		r.free.Store(space.Free)
		r.known.Store(true)
	}
	was := d.Stage()
	is := r.judge(was, s.o.Now())
	if is == was {
		return false
	}
	r.stage.Store(int32(is))
	free, total, _ := d.Free()
	args := []any{"dir", d.Dir, "stage", is.String(), "was", was.String(), "free_bytes", free, "total_bytes", total, "reserve_bytes", d.Reserve()}
	switch {
	case is == Full:
		s.o.Logger.Error("a disk is full: appends are refused, reads, deletions and cleaning go on; delete topics, shorten retention or make the disk larger", args...)
	case is > was:
		s.o.Logger.Warn("a disk is getting full", args...)
	default:
		s.o.Logger.Info("a disk has room again", args...)
	}
	return true
}

// limits computes the limits for a disk of a size.
func (o *Space) limits(total int64, r *room) {
	reserve := o.Reserve
	if reserve < 0 {
		reserve = min(total/reserveShare, maxReserve)
	}
	throttle, warn := o.Throttle, o.Warn
	if throttle < 0 {
		throttle = 2 * reserve
	}
	if warn < 0 {
		warn = 4 * reserve
	}
	r.reserve.Store(reserve)
	r.throttle.Store(throttle)
	r.warn.Store(warn)
}

// judge says how full the disk is. It takes an eighth more to leave a stage than to
// enter it.
func (r *room) judge(was Stage, now time.Time) Stage {
	refused := r.refused.Load()
	recently := refused != 0 && now.UnixNano()-refused < int64(refusedFor)
	if !r.known.Load() {
		if recently {
			return Full
		}
		return Roomy
	}
	free := r.free.Load()
	below := func(limit int64, stage Stage) bool {
		if was >= stage {
			limit += limit / 8
		}
		return free < limit
	}
	switch {
	case recently, below(r.reserve.Load(), Full):
		return Full
	case below(r.throttle.Load(), Throttled):
		return Throttled
	case below(r.warn.Load(), Low):
		return Low
	}
	return Roomy
}

// usageFresh is how old the sums of the replicas' sizes may be when a new replica is
// placed.
const usageFresh = 5 * time.Second

// used is how many bytes the replicas of each disk have. The caller holds mu.
func (s *Store) used() map[*Disk]int64 {
	now := s.o.Now()
	if s.usage == nil || now.Sub(s.usageAt) >= usageFresh {
		s.usage, s.usageAt = map[*Disk]int64{}, now
		for _, d := range s.disks {
			d.room.appended.Store(0)
		}
		for _, r := range s.replicas {
			if r.Log == nil {
				continue
			}
			// One that cannot be asked counts as empty; it is only about balance.
			if n, err := r.Log.Size(); err == nil {
				s.usage[r.Disk] += n
			}
		}
	}
	return s.usage
}

// replicaWeight is how many bytes a replica counts for beside those that it has: an
// empty one is likely to grow.
const replicaWeight = 16 << 20

// emptiest is the disk that takes the next replica: the one whose replicas have the
// fewest bytes, by its size, and are the fewest; a full one only if all are. Nil
// when none is online. The caller holds mu.
func (s *Store) emptiest() *Disk {
	var best *Disk
	var bestLoad float64
	used := s.used()
	for _, d := range s.disks {
		if d.Err() != nil {
			continue
		}
		load := float64(used[d] + d.room.appended.Load() + int64(s.perDisk[d])*replicaWeight)
		if _, total, known := d.Free(); known && total > 0 {
			load /= float64(total)
		}
		if best != nil {
			if was, is := best.Stage() == Full, d.Stage() == Full; was != is && is || was == is && load >= bestLoad {
				continue
			}
		}
		best, bestLoad = d, load
	}
	return best
}

// Describe says in words how full the disk is.
func (d *Disk) Describe() string {
	free, total, known := d.Free()
	if !known {
		return "no space left"
	}
	return fmt.Sprintf("%d of %d bytes are free, and %d are kept in reserve (log.dir.reserve.bytes)", free, total, d.Reserve())
}
