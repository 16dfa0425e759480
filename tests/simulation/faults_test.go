package simulation

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/errorfs"
)

// crashBroker ends a broker's process; its host goes on.
func (w *world) crashBroker() {
	b := w.anyBroker()
	if !b.up {
		return
	}
	w.count("fault: process crash")
	w.say("broker %d#%d crashes", b.id, b.inc)
	b.crash(false, nil)
	if w.chance(30) {
		w.count("fault: restart inside the lease")
		b.start()
	}
}

// keep says how much of each unsynced change reached the disk.
func (w *world) keep() func() int {
	switch w.n(4) {
	case 0:
		return nil
	case 1:
		return func() int { return 1000 }
	}
	return func() int {
		if w.chance(60) {
			return 1000 * w.n(2)
		}
		return w.n(1000)
	}
}

func osPart(p *part) bool { return p.topic.os }
func anyPart(*part) bool  { return true }

// powerBroker takes the power from a broker's host. Under durability=os that is the
// loss of a disk.
func (w *world) powerBroker() {
	b := w.anyBroker()
	if b.disk.running == 0 || !w.mayLose(b, osPart) {
		return
	}
	w.noteLoss(b, osPart)
	w.count("fault: power cut")
	w.say("the host of broker %d#%d loses power", b.id, b.inc)
	if b.up {
		b.crash(true, w.keep())
	} else {
		b.powerOff(w.keep())
	}
}

// powerMesh takes the power from all.
func (w *world) powerMesh() {
	if !w.chance(30) {
		return
	}
	for _, p := range w.order {
		if p.topic.os && !p.gone && !p.lossy {
			if !w.conf.Unclean {
				return // nothing is promised then
			}
			p.lossy = true
		}
	}
	w.count("fault: power cut of the whole mesh")
	w.say("the whole mesh loses power")
	for _, b := range w.bs[1:] {
		if b.up {
			b.crash(true, w.keep())
		} else {
			b.powerOff(w.keep())
		}
	}
}

// powerMidway takes the power from a host in the middle of the next operation of its
// disk, after a few calls of it.
func (w *world) powerMidway() {
	b := w.find(func(b *broker) bool {
		return b.runs() && (slices.ContainsFunc(b.replicas, (*replica).busy) || len(b.deletions) > 0)
	})
	if b == nil || !w.mayLose(b, osPart) {
		return
	}
	w.noteLoss(b, osPart)
	after := w.n(12)
	off := false
	b.disk.fs.OnCall(func(op errorfs.Op, _ string) error {
		if off {
			return errPower
		}
		if !op.Changes() {
			return nil
		}
		if after--; after < 0 {
			off = true
			return errPower
		}
		return nil
	})
	w.count("fault: power cut in the middle of an operation")
	w.say("the host of broker %d#%d loses power in the middle of an operation", b.id, b.inc)
	for _, t := range w.topics {
		if d := b.deletions[t.id]; d != nil && !d.gone {
			b.deleteTopic(t, d)
		}
	}
	for _, r := range slices.Clone(b.replicas) {
		for i := 0; i < 3 && r.busy() && !off && w.failure == nil && b.up; i++ {
			r.operate()
		}
	}
	b.disk.setRules()
	if b.up {
		b.crash(true, w.keep())
	}
}

// failDisk has one call of a broker's disk fail.
func (w *world) failDisk() {
	b := w.anyBroker()
	if !b.runs() || b.diskBad || len(b.replicas) == 0 {
		return
	}
	// Its copies count for nothing until it has been started again.
	if !w.mayLose(b, anyPart) {
		return
	}
	w.noteLoss(b, anyPart)
	ops := []errorfs.Op{errorfs.OpWrite}
	if w.chance(50) {
		ops = []errorfs.Op{errorfs.OpSync}
	}
	w.count("fault: a write or sync fails")
	w.say("the disk of broker %d#%d begins to fail", b.id, b.inc)
	b.failing = true
	b.disk.fs.Add(errorfs.Rule{Ops: ops, After: w.n(3), Times: 1, Err: errDisk, Short: w.n(40)})
}

// wipe loses a disk.
func (w *world) wipe() {
	b := w.anyBroker()
	if b.disk.running == 0 || !w.mayLose(b, anyPart) {
		return
	}
	w.noteLoss(b, anyPart)
	w.count("fault: disk lost")
	w.say("broker %d loses its disk", b.id)
	if b.up {
		b.crash(false, nil)
	}
	b.disk, b.wiped = newDisk(), w.lives
}

// rot flips a bit in what a stopped broker has below its marks.
func (w *world) rot() {
	b := w.find(func(b *broker) bool { return !b.up && len(b.disk.recovery) > 0 })
	if b == nil {
		return
	}
	var ids []cluster.PartitionID
	for _, p := range w.order {
		if b.disk.recovery[p.id] > 0 && !p.gone && !b.disk.rotten[p.id] {
			ids = append(ids, p.id)
		}
	}
	if len(ids) == 0 {
		return
	}
	id := ids[w.n(len(ids))]
	only := func(p *part) bool { return p.id == id }
	if !w.mayLose(b, only) {
		return
	}
	if b.flip(id) {
		w.noteLoss(b, only)
		b.disk.rotten[id] = true
		w.count("fault: bit flipped")
		w.say("a bit flips in the log of %s on the disk of broker %d", w.name(id), b.id)
	}
}

// flip changes a bit in a batch below the recovery point.
func (b *broker) flip(id cluster.PartitionID) bool {
	w, mem := b.w, b.disk.mem
	entries, err := mem.ReadDir(w.folder(id))
	if err != nil {
		return false
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, ".log") {
			continue
		}
		f, err := mem.Open(path.Join(w.folder(id), e.Name))
		if err != nil {
			return false
		}
		size, _ := f.Size()
		data := make([]byte, size)
		_, _ = f.ReadAt(data, 0)
		var places []int
		for at := 0; at+record.HeaderSize <= len(data); {
			h, err := record.ParseHeader(data[at:])
			if err != nil || at+h.Size() > len(data) || h.NextOffset() > b.disk.recovery[id] {
				break
			}
			places = append(places, at)
			at += h.Size()
		}
		done := false
		if len(places) > 0 {
			at := places[w.n(len(places))]
			h, _ := record.ParseHeader(data[at:])
			b.disk.rotAt[id] = h.BaseOffset
			at += 21 + w.n(h.Size()-21) // not the offset, length and epoch, which no checksum covers
			data[at] ^= 1 << w.n(8)
			_, err := f.WriteAt(data[at:at+1], int64(at))
			done = err == nil && f.Sync() == nil
		}
		_ = f.Close()
		if done {
			return true
		}
	}
	return false
}

// pauseBroker stops the clock for a process; hangDisk for its disk only.
func (w *world) pauseBroker() {
	if b := w.anyBroker(); b.runs() {
		b.paused = true
		w.count("fault: process paused")
		w.say("broker %d#%d pauses", b.id, b.inc)
	}
}

func (w *world) hangDisk() {
	if b := w.anyBroker(); b.runs() && !b.diskHung {
		b.diskHung = true
		w.count("fault: disk hangs")
		w.say("the disk of broker %d#%d hangs", b.id, b.inc)
	}
}

// resume lets one that is paused go on.
func (w *world) resume() {
	if b := w.find(func(b *broker) bool { return b.up && (b.paused || b.diskHung) }); b != nil {
		b.paused, b.diskHung = false, false
		w.say("broker %d#%d goes on", b.id, b.inc)
	}
	for _, c := range w.ctls {
		if c.paused && w.chance(50) {
			c.paused = false
		}
		if !c.up && w.chance(50) {
			c.start()
		}
	}
}

func (w *world) stopBroker() {
	b := w.anyBroker()
	if !b.runs() {
		return
	}
	w.count("orderly stop")
	w.say("broker %d#%d stops in good order", b.id, b.inc)
	b.stop()
}

func (w *world) startBroker() {
	b := w.find(func(b *broker) bool { return !b.up })
	if b == nil {
		b = w.find(func(b *broker) bool { return b.up && (b.diskBad || b.cramped && b.disk.room == roomy) })
		if b == nil || !w.chance(30) {
			return
		}
		b.crash(false, nil) // somebody has changed the disk's cable, or made room
	}
	b.start()
}

// cut cuts a broker off from another, from a controller or from etcd.
func (w *world) cut() {
	a := w.anyBroker().node()
	var z node
	switch w.n(4) {
	case 0:
		z = etcdNode()
	case 1:
		z = w.ctls[w.n(len(w.ctls))].node()
	case 2:
		a, z = w.ctls[w.n(len(w.ctls))].node(), etcdNode()
	default:
		z = w.anyBroker().node()
	}
	if a == z {
		return
	}
	w.down[pair(a, z)] = true
	w.count("fault: cut off")
	w.say("%v and %v are cut off from each other", a, z)
}

func (w *world) heal() {
	if len(w.down) == 0 {
		return
	}
	clear(w.down)
	w.say("the network is whole again")
}

func (w *world) breakStream() {
	if len(w.links) == 0 {
		return
	}
	l := w.links[w.n(len(w.links))]
	if l.broken || l.l == nil {
		return
	}
	a, z := l.f.b, l.l.b
	w.count("fault: stream broken")
	w.say("the stream of broker %d to broker %d breaks", a.id, z.id)
	for _, x := range w.links {
		if !x.broken && x.l != nil && x.f.b == a && x.l.b == z {
			w.breakLink(x)
		}
	}
}

func (w *world) etcdAway() {
	if !w.etcd.down {
		w.etcd.down = true
		w.count("fault: etcd away")
		w.say("etcd is away")
	}
}

func (w *world) etcdBack() {
	if w.etcd.down {
		w.etcd.down = false
		w.say("etcd is back")
	}
}

// loseLease ends a lease before its time, or all of them.
func (w *world) loseLease() {
	e := w.etcd
	if e.down || len(e.leases) == 0 {
		return
	}
	w.count("fault: lease lost")
	if w.chance(20) {
		for _, l := range slices.Clone(e.leases) {
			e.revoke(l)
		}
		return
	}
	e.revoke(e.leases[w.n(len(e.leases))])
}

func (w *world) crashController() {
	if c := w.ctls[w.n(len(w.ctls))]; c.up {
		w.count("fault: controller crash")
		c.crash()
		if w.chance(50) {
			c.start()
		}
	}
}

func (w *world) pauseController() {
	if c := w.ctls[w.n(len(w.ctls))]; c.runs() {
		c.paused = true
		w.count("fault: controller paused")
		w.say("controller %d#%d pauses", c.id, c.inc)
	}
}

// checkpoint writes a broker's marks down.
func (w *world) checkpoint() {
	b := w.anyBroker()
	if !b.runs() || b.diskBad || !b.adopted {
		return
	}
	if w.chance(40) {
		for _, r := range slices.Clone(b.replicas) {
			if r.core != nil && r.log != nil && r.core.Down() == partition.ReasonNone && w.failure == nil {
				r.step(partition.Flush{})
				if _, err := r.log.Checkpoint(); err != nil {
					r.failed(0, err)
					return
				}
			}
		}
	}
	b.writeMarks()
	w.count("checkpoint")
}

const maxPass = 4 * time.Millisecond
