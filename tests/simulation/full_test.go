package simulation

import (
	"errors"
	"syscall"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/vfs/errorfs"
)

// fullness is how little room a disk has.
type fullness int

const (
	roomy   fullness = iota
	reserve          // only the reserve is left: appends are refused, all else goes on
	full             // nothing can be written
)

// fillDisk lets a disk be full for a while.
func (w *world) fillDisk() {
	b := w.find(func(b *broker) bool { return b.runs() && b.disk.room == roomy && len(b.replicas) > 0 })
	if b == nil {
		return
	}
	b.disk.room = reserve + fullness(w.n(2))
	b.disk.short = w.n(40)
	b.disk.setRules()
	w.count("fault: disk full")
	w.say("the disk of broker %d#%d is full (nothing at all can be written: %v)", b.id, b.inc, b.disk.room == full)
}

// makeRoom ends that.
func (w *world) makeRoom() {
	b := w.find(func(b *broker) bool { return b.disk.room != roomy })
	if b == nil {
		return
	}
	b.disk.room = roomy
	b.disk.setRules()
	w.say("the disk of broker %d has room again", b.id)
	if b.runs() && b.adopted && b.of != nil {
		b.apply() // what could not be made is tried again
	}
}

// setRules has the file system fail as the disk does.
func (d *disk) setRules() {
	d.fs.Clear()
	if d.room == full {
		d.fs.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite, errorfs.OpCreate, errorfs.OpMkdirAll}, Err: syscall.ENOSPC, Short: d.short})
	}
}

// hasRoom reports whether the broker lets a batch be appended.
func (r *replica) hasRoom() bool {
	switch r.b.disk.room {
	case roomy:
		return true
	case reserve:
		return r.p.topic.internal // which may use half of it
	}
	return r.w.chance(50) // it has not looked lately, and the log finds out
}

// noSpace reports whether a log found no room, undid what it had begun, and goes on.
func noSpace(err error) bool {
	var space *commitlog.NoSpaceError
	return errors.As(err, &space) && !errors.Is(err, commitlog.ErrFailed)
}

// lacksRoom reports whether something was not done because the disk is full, which no
// log has failed for: it is tried again.
func lacksRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) && !errors.Is(err, commitlog.ErrFailed)
}

// awaitRoom leaves an operation to be tried again.
func (r *replica) awaitRoom() partition.Event {
	r.w.count("operation waits for room")
	return nil
}

// refuseFull is the answer to an append for which there is no room.
func (r *replica) refuseFull(op int64) partition.Event {
	r.w.count("append refused for want of room")
	return partition.AppendRefused{Op: op, Full: true}
}
