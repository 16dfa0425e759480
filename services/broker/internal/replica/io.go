package replica

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
)

// start has a goroutine carry out what the core wants done to the log until it asks
// for no more, so that a disk that hangs holds up nobody but its own partitions. At
// most one such thing is outstanding. The caller holds mu.
func (r *Replica) start(task any) {
	r.task = task
	if r.draining {
		return
	}
	r.draining = true
	r.begin(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for r.task != nil {
			task := r.task
			r.task = nil
			switch e := task.(type) {
			case partition.Append:
				r.appendOne(&e)
			case partition.AppendCopy:
				r.appendCopy(&e)
			case partition.Truncate:
				r.truncate(&e)
			case partition.Reset:
				r.reset(&e)
			}
		}
		r.draining = false
	})
}

// begin runs a goroutine that awaitQuiet waits for. The caller holds mu.
func (r *Replica) begin(run func()) {
	r.ops++
	go func() {
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.ops--; r.ops == 0 {
				r.quiet.Broadcast()
			}
		}()
		run()
	}()
}

// ioBegins has the watchdog look at an I/O until since is 0 again.
func (r *Replica) ioBegins(since *atomic.Int64) {
	since.Store(int64(r.m.now()))
	r.m.watch(r)
}

// readBegins has the watchdog look at a read until reads.end.
func (r *Replica) readBegins() (id int64) {
	id = r.reads.start(r.m.now())
	r.m.watch(r)
	return id
}

// awaitQuiet waits until nothing appends or syncs.
func (r *Replica) awaitQuiet() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.ops > 0 {
		r.quiet.Wait()
	}
}

// appendOne hands one batch to the log. The caller holds mu, which is released
// during the I/O.
func (r *Replica) appendOne(a *partition.Append) {
	b := r.current
	if b == nil { // the core promises that there is one
		r.step(partition.AppendRefused{Op: a.Op, Now: r.m.now()})
		return
	}
	size, records := b.Payload.Len(), int64(b.Header.NumRecords)
	room := r.makeRoom(size)
	if leader, epoch := r.core.Leader(); r.core.Down() != partition.ReasonNone || leader != r.m.cfg.Self || epoch != a.Epoch {
		// Leadership went before the log was asked; the batch has been answered.
		r.current = nil
		b.Payload.Free()
		r.step(partition.AppendRefused{Op: a.Op, Now: r.m.now()})
		return
	}
	if !room {
		r.current = nil
		b.Payload.Free()
		r.step(partition.AppendRefused{Op: a.Op, Full: true, Now: r.m.now()})
		return
	}
	if r.settle(a, b) {
		return
	}
	vecs := b.Payload.Vecs()
	r.mu.Unlock()
	now := r.m.now()
	r.ioBegins(&r.appendSince)
	info, err := r.log().Append(vecs, a.Epoch)
	r.appendSince.Store(0)
	b.Payload.Free()
	r.mu.Lock()
	r.current = nil
	switch {
	case err == nil:
		b.appendTime = info.AppendTime
		r.recent.note(info.BaseOffset, now)
		r.ages.note(info.BaseOffset, now, false)
		if b.span != nil {
			r.ring.add(spanRange{base: info.BaseOffset, end: info.LastOffset + 1, span: b.span.SpanContext()})
		}
		r.m.cfg.Metrics.appendBytes.Add(float64(size))
		r.m.cfg.Metrics.appendRecords.Add(float64(records))
		r.step(&partition.Appended{Op: a.Op, Base: info.BaseOffset, End: info.LastOffset + 1, Now: now})
		r.grown()
	case refusedBatch(err):
		r.refused = BatchError(err, r.Topic, int(r.Config().MaxMessageBytes))
		r.step(partition.AppendRefused{Op: a.Op, Now: now})
		r.refused = nil
	case noSpace(err):
		r.m.cfg.Store.NoRoom(r.stored().Disk)
		r.step(partition.AppendRefused{Op: a.Op, Full: true, Now: now})
	default:
		r.failed(a.Op, err)
	}
}

// makeRoom asks for room on the disk, and waits where the disk is being slowed down.
// The caller holds mu, which is released meanwhile.
func (r *Replica) makeRoom(size int) bool {
	r.mu.Unlock()
	defer r.mu.Lock()
	delay, ok := r.m.cfg.Store.Admit(r.stored().Disk, int64(size), r.Internal)
	if delay > 0 {
		r.m.pause(delay)
	}
	return ok
}

// noSpace reports whether the log found no room, undid what it had begun, and goes
// on.
func noSpace(err error) bool {
	var full *commitlog.NoSpaceError
	return errors.As(err, &full) && !errors.Is(err, commitlog.ErrFailed)
}

// roomRetry is how long an operation that found no room on its disk waits before it
// tries again.
const roomRetry = 250 * time.Millisecond

// whenThereIsRoom tries an operation that changes nothing where the disk is full, again
// until there is room, the replica is taken down or the manager stops; since is what the
// disk watchdog looks at during a try. The caller does not hold mu.
func (r *Replica) whenThereIsRoom(since *atomic.Int64, try func() error) error {
	for told := false; ; told = true {
		r.ioBegins(since)
		err := try()
		since.Store(0)
		if !lacksRoom(err) {
			return err
		}
		if stored := r.stored(); stored != nil {
			r.m.cfg.Store.NoRoom(stored.Disk)
		}
		if !told {
			r.m.cfg.Logger.Warn("no room to change a log; it is tried again until there is", "replica", r.Name(), "error", err)
		}
		if !r.m.pause(roomRetry) || r.isDown() {
			return err
		}
	}
}

func (r *Replica) isDown() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Down() != partition.ReasonNone
}

// lacksRoom reports whether something was not done because a disk is full, which no
// log has failed for.
func lacksRoom(err error) bool {
	return (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && !errors.Is(err, commitlog.ErrFailed)
}

// refusedBatch reports whether the log took nothing and goes on.
func refusedBatch(err error) bool {
	var large *record.TooLargeError
	var invalid *record.InvalidError
	var corrupt *record.CorruptError
	return errors.As(err, &large) || errors.As(err, &invalid) || errors.As(err, &corrupt)
}

// startSync runs one sync beside the appends. The caller holds mu.
func (r *Replica) startSync(op int64) {
	r.begin(func() {
		began := time.Now()
		r.ioBegins(&r.syncSince)
		log := r.log()
		end, err := log.Sync()
		r.syncSince.Store(0)
		r.m.cfg.Metrics.fsync.Observe(time.Since(began).Seconds())
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil && !r.overtaken(log, err) {
			r.failed(op, err)
			return
		}
		r.step(&partition.Synced{Op: op, End: end, Now: r.m.now()})
	})
}

// overtaken reports whether an I/O failed because the replica begins anew in another
// folder, and its log was closed for that. What came of it says nothing about the log
// that is there now. The caller holds mu.
func (r *Replica) overtaken(log *commitlog.Log, err error) bool {
	return errors.Is(err, commitlog.ErrClosed) && (r.resetting || r.log() != log)
}

// outOfFiles reports whether descriptors ran out, which is not the disk's fault.
func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// failed takes the replica down after an I/O error, and its disk unless the disk
// is merely full, descriptors ran out, this log alone is damaged, or it is closed
// because its topic is deleted. The caller holds mu.
func (r *Replica) failed(op int64, err error) {
	kind := partition.FailedIO
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		kind = partition.FailedFull
	case errors.Is(err, commitlog.ErrFailed):
	default:
		kind = partition.FailedBug
	}
	if r.core.Down() == partition.ReasonNone && !r.toldFailed {
		r.toldFailed = true // a checkpoint meets it again
		r.m.cfg.Logger.Error("a write or sync of a log failed; nothing more is acknowledged from it", "replica", r.Name(), "dir", r.stored().Dir, "error", err)
	}
	deleted := r.core.Down() == partition.ReasonTopicDeleted
	r.step(partition.IOFailed{Op: op, Kind: kind})
	var corrupt *commitlog.CorruptError
	if kind == partition.FailedIO && !deleted && !outOfFiles(err) && !errors.As(err, &corrupt) {
		r.m.diskFailed(r.stored().Disk, err)
	}
}
