package simulation

import (
	"cmp"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/topicid"
)

// broker is one broker with its disk, and the process that runs on it, if one does.
type broker struct {
	w        *world
	id       int32
	disk     *disk
	up       bool
	paused   bool
	hostDown bool // nobody refuses a connection there
	diskHung bool
	diskBad  bool // an I/O failed; nothing more is written in this life
	failing  bool // one will
	cramped  bool // a replica cannot go on because the disk was full, until the next start

	wiped     uint64 // the lives up to this one had a disk that is gone
	unplugged uint64 // ... a host that has lost power since

	inc       uint64
	files     *commitlog.FileCache
	lease     *lease
	regRev    int64 // create revision of its registration key; 0: it has none
	floor     int64 // of its first one: nothing counts before the stream has reached it
	adopted   bool
	regressed bool
	followed  int64 // revision followed while the registration was the present one

	of        *etcd // whose history the image is from
	rev       int64 // revision of the image; 0: none
	source    int   // index of the controller that it listens to
	hist      history
	vouched   int64 // election revision of the controller that was told last
	vouchAt   time.Duration
	replicas  []*replica // by partition
	deletions map[topicid.ID]*deletion
	bad       map[cluster.PartitionID]int64 // replicas that went bad, to the revision at which that is on record; 0: it is not
}

func (b *broker) node() node { return node{cluster.KindBroker, b.id} }
func (b *broker) runs() bool { return b.up && !b.paused }
func (b *broker) self() partition.Replica {
	return partition.Replica{Broker: b.id, Incarnation: b.inc}
}

func (b *broker) life() cluster.Process { return cluster.Process{ID: b.id, Incarnation: b.inc} }

// start starts a process on the disk: it recovers the logs, and notes what it found
// against them before anything else.
func (b *broker) start() {
	w := b.w
	w.lives++
	d := b.disk
	b.up, b.paused, b.hostDown, b.diskHung, b.diskBad, b.failing = true, false, false, false, false, false
	b.inc, b.files, b.lease, b.regRev, b.floor = w.lives, commitlog.NewFileCache(64), nil, 0, 0
	b.adopted, b.regressed, b.of, b.rev, b.vouched, b.vouchAt, b.followed = false, false, nil, 0, 0, 0, 0
	b.deletions = map[topicid.ID]*deletion{}
	b.replicas, b.bad, b.source = nil, map[cluster.PartitionID]int64{}, w.n(len(w.ctls))
	b.cramped = false
	d.setRules()
	clean := d.closed == d.running && d.closed != 0
	hostDown := d.running != 0 && !clean && d.boot != d.bootSaved
	ids := d.found(w)
	w.say("broker %d starts as #%d (clean=%v, the host was down=%v)", b.id, b.inc, clean, hostDown)
	for _, id := range ids {
		r := newReplica(b, id)
		r.verdict = d.verdicts[id]
		if hostDown && r.verdict == partition.Intact {
			r.verdict = partition.UncleanOS
		}
		var err error
		r.hwNoted = d.watermarks[id]
		r.log, err = d.open(w, b, id)
		if errors.Is(err, syscall.ENOSPC) {
			w.count("start refused for want of room")
			w.say("broker %d cannot start: %v", b.id, err)
			b.crash(false, nil)
			return
		}
		if err != nil {
			w.say("broker %d withholds its replica of %s: %v", b.id, w.name(id), err)
			w.count("verdict: corrupt")
			r.log, r.verdict = nil, partition.Corrupt
		}
		if r.verdict != partition.Intact {
			d.verdicts[id] = r.verdict
		}
		r.fresh = r.verdict == partition.Missing || r.verdict != partition.Intact && d.kept[id]
		b.replicas = append(b.replicas, r)
	}
	d.closed, d.running, d.bootSaved = 0, b.inc, d.boot
	b.hist = history{rev: d.hist.rev, cluster: d.hist.cluster, epochs: map[cluster.PartitionID]int32{}}
	for id, e := range d.hist.epochs {
		b.hist.epochs[id] = e
	}
}

// crash ends the process. With power the host goes down too, and what was not synced
// goes as keep says.
func (b *broker) crash(power bool, keep func() int) {
	w := b.w
	for _, r := range b.replicas {
		r.retire()
		if r.log != nil && !power {
			_ = r.log.Abort()
		}
	}
	w.breakLinks(func(l *link) bool { return l.f.b == b || l.l.b == b })
	b.up, b.replicas, b.lease = false, nil, nil
	if power {
		b.powerOff(keep)
	}
}

// powerOff takes the power from the host.
func (b *broker) powerOff(keep func() int) {
	b.disk.mem.Crash(keep)
	b.disk.boot++
	b.unplugged = b.w.lives
	b.hostDown = true
}

// stop is an orderly stop: everything is closed, and that is noted.
func (b *broker) stop() {
	for _, r := range b.replicas {
		r.step(partition.Stop{})
	}
	if b.up && !b.diskBad {
		for _, r := range b.replicas {
			if r.log != nil && (r.core == nil || r.core.Down() == partition.ReasonNone) {
				if r.log.Close() != nil {
					b.diskBad = true
				}
			}
		}
	}
	ok := b.up && !b.diskBad
	for _, r := range b.replicas {
		if r.core != nil && r.core.Down() != partition.ReasonNone {
			ok = false
		}
	}
	if ok {
		b.writeMarks()
		b.disk.closed = b.inc
	}
	lease := b.lease
	b.crash(false, nil)
	if lease != nil && !b.w.etcd.down && b.w.reaches(b.node(), etcdNode()) {
		b.w.etcd.revoke(lease)
	}
}

// get is a replica of the process, nil without.
func (b *broker) get(id cluster.PartitionID) *replica {
	i, ok := slices.BinarySearchFunc(b.replicas, id, func(r *replica, id cluster.PartitionID) int { return comparePartitions(r.id, id) })
	if !ok {
		return nil
	}
	return b.replicas[i]
}

func (b *broker) put(r *replica) {
	i, ok := slices.BinarySearchFunc(b.replicas, r.id, func(r *replica, id cluster.PartitionID) int { return comparePartitions(r.id, id) })
	if ok {
		b.replicas[i] = r
		return
	}
	b.replicas = slices.Insert(b.replicas, i, r)
}

func (b *broker) remove(id cluster.PartitionID) {
	b.replicas = slices.DeleteFunc(b.replicas, func(r *replica) bool { return r.id == id })
}

// register makes the registration key, by create only.
func (b *broker) register() {
	w := b.w
	if !b.runs() || b.lease != nil && !b.lease.gone && b.regRev > 0 || w.etcd.down || !w.reaches(b.node(), etcdNode()) {
		return
	}
	rec := cluster.Registration{Kind: cluster.KindBroker, Process: b.life(), Address: "h"}
	if now, ok := w.etcd.get(rec.Key()); ok {
		if now.rec.(cluster.Registration).Process == b.life() {
			if l := w.etcd.lease(now.lease); l != nil && l.owner == b.node() && l.life == b.inc {
				b.lease, b.regRev = l, now.create // the answer had got lost
			}
		}
		return
	}
	l := w.etcd.grant(b.node(), b.inc)
	b.lease = l
	rev, err := w.etcd.commit(&txn{why: "register", from: b.node(), lease: l.id, writes: []cluster.Write{{Key: rec.Key(), Record: rec}}})
	if err != nil {
		w.etcd.revoke(l)
		b.lease, b.regRev = nil, 0
		return
	}
	b.regRev = rev
	if b.floor == 0 {
		b.floor = rev
	}
	w.count("registration")
	w.say("broker %d#%d registers (revision %d)", b.id, b.inc, rev)
}

// listen takes in what the metadata stream brings.
func (b *broker) listen() {
	w := b.w
	if !b.runs() || b.floor == 0 {
		return
	}
	c := w.ctls[b.source]
	if !c.runs() || c.state == nil || !w.reaches(b.node(), c.node()) || c.rev <= b.rev && w.chance(20) {
		b.source = w.n(len(w.ctls))
		return
	}
	if b.of != nil && c.of != b.of || b.of == nil && b.hist.cluster != 0 && c.of.cluster != b.hist.cluster {
		b.checkHistory(c)
		return
	}
	if c.rev <= b.rev {
		return
	}
	to := c.rev
	if w.chance(50) {
		to = b.rev + 1 + int64(w.n(int(c.rev-b.rev)))
	}
	if b.rev == 0 {
		to = c.rev // a snapshot
	}
	if !b.adopted {
		if to < b.floor {
			return
		}
		if b.regressedAt(c.of, to) {
			b.regress("its disk has followed newer metadata")
			return
		}
		b.regressed = false
	}
	b.of, b.rev = c.of, to
	b.note()
	if !b.adopted {
		b.adopt()
	}
	b.apply()
}

// regressedAt reports whether an image is no continuation of what the disk has seen.
func (b *broker) regressedAt(of *etcd, rev int64) bool {
	h := &b.hist
	if h.cluster != 0 && h.cluster != of.cluster || rev < h.rev || b.floor <= h.rev {
		return true
	}
	for id, e := range h.epochs {
		if p, ok := of.partitionAt(id, rev); ok && p.LeaderEpoch < e {
			return true
		}
	}
	return false
}

// checkHistory is for a stream of another history than the one followed so far.
func (b *broker) checkHistory(c *controller) {
	if c.of.cluster != b.hist.cluster {
		b.regress("the metadata is of another etcd")
		return
	}
	// The same etcd, older than it was. Nothing is applied that is not newer, and the
	// registration tells.
	if b.adopted && b.regRev > 0 && b.regRev <= b.followed {
		b.regress("its new registration is older than what it followed")
	}
	if !b.adopted && b.floor > 0 && b.regressedAt(c.of, c.rev) {
		b.regress("its disk has followed newer metadata")
	}
}

// regress has the broker serve nothing.
func (b *broker) regress(why string) {
	if !b.regressed {
		b.regressed = true
		b.w.count("METADATA_REGRESSED")
		b.w.say("broker %d#%d serves nothing: %s", b.id, b.inc, why)
	}
}

// note notes what the image says of its own past.
func (b *broker) note() {
	b.hist.rev, b.hist.cluster = max(b.hist.rev, b.rev), b.of.cluster
	if b.regRev > 0 && b.rev >= b.regRev {
		b.followed = b.rev
	}
	for _, p := range b.w.order {
		if rec, ok := b.of.partitionAt(p.id, b.rev); ok && slices.Contains(rec.Replicas, b.id) {
			if e, had := b.hist.epochs[p.id]; !had || rec.LeaderEpoch > e {
				b.hist.epochs[p.id] = rec.LeaderEpoch
			}
		}
	}
}

// adopt finds out what should be here and is not.
func (b *broker) adopt() {
	d := b.disk
	for _, p := range b.w.order {
		rec, ok := b.of.partitionAt(p.id, b.rev)
		if !ok || !b.w.alive(p, b.of, b.rev) || !slices.Contains(rec.Replicas, b.id) || b.get(p.id) != nil || d.verdicts[p.id] != partition.Intact {
			continue
		}
		if d.fresh || d.wasHere(p.id) {
			d.verdicts[p.id] = partition.Missing
			b.w.count("verdict: missing")
			b.w.say("broker %d misses its replica of %s", b.id, b.w.name(p.id))
		}
	}
	d.fresh, b.adopted = false, true
}

// onRecord reports whether the image shows this life as the one that has vouched.
func (b *broker) onRecord() bool {
	rec, ok := b.of.brokerAt(b.id, b.rev)
	return ok && rec.Process == b.life()
}

// apply makes the replicas what the image says.
func (b *broker) apply() {
	if b.regressed {
		return
	}
	w := b.w
	b.applyDeletions()
	for _, r := range slices.Clone(b.replicas) {
		p := w.part(r.id)
		rec, ok := b.of.partitionAt(r.id, b.rev)
		if ok && slices.Contains(rec.Replicas, b.id) && w.alive(p, b.of, b.rev) || b.goes(r.id.Topic) || b.deletions[r.id.Topic] != nil {
			continue
		}
		if !ok || !w.alive(p, b.of, b.rev) {
			b.setAside(r)
			continue
		}
		w.count("replica removed")
		w.say("broker %d#%d removes its replica of %s", b.id, b.inc, w.name(r.id))
		r.retire()
		b.remove(r.id)
		if r.log != nil {
			_ = r.log.Abort()
		}
		_ = b.disk.fs.RemoveAll(w.folder(r.id))
		_ = b.disk.fs.SyncDir("/d")
		b.forget(r.id)
	}
	for _, p := range w.order {
		rec, ok := b.of.partitionAt(p.id, b.rev)
		if !ok || !slices.Contains(rec.Replicas, b.id) || !w.alive(p, b.of, b.rev) {
			continue
		}
		r := b.get(p.id)
		if r == nil || r.core == nil || r.mayReplace(rec) || r.mayReopen() {
			r = b.make(p, rec)
		}
		if r != nil {
			r.tell(rec)
		}
	}
}

// forget takes a replica off the books of the disk.
func (b *broker) forget(id cluster.PartitionID) {
	d := b.disk
	delete(d.verdicts, id)
	delete(d.recovery, id)
	delete(d.watermarks, id)
	delete(d.rotten, id)
	b.dropKept(id)
}

// make opens a replica for use, or makes one.
func (b *broker) make(p *part, rec cluster.Partition) *replica {
	d := b.disk
	old := b.get(p.id)
	if old != nil {
		old.retire()
	}
	verdict := d.verdicts[p.id]
	if old == nil || old.log == nil {
		if verdict == partition.Missing && b.onRecord() && !slices.Contains(rec.Barred, b.id) {
			delete(d.verdicts, p.id)
			delete(d.recovery, p.id)
			delete(d.watermarks, p.id)
			verdict, old = partition.Intact, nil
		}
	}
	r := newReplica(b, p.id)
	r.verdict = verdict
	if old != nil {
		r.log, r.fresh, r.hwNoted, r.pardoned = old.log, old.fresh, old.hwNoted, old.pardoned
		if r.log != nil && r.log.Err() != nil && !old.condemned {
			return nil // its disk has failed
		}
	}
	if r.log == nil && verdict == partition.Intact {
		if b.diskBad {
			return nil
		}
		var err error
		var taken *commitlog.TopicIDMismatchError
		if r.log, err = d.open(b.w, b, p.id); errors.As(err, &taken) {
			b.w.count("name of a folder taken by a deleted topic")
			return nil // until that is gone
		}
		if errors.Is(err, syscall.ENOSPC) {
			b.w.count("replica not made for want of room")
			return nil // until there is some
		}
		if err != nil {
			b.diskFailed()
			return nil
		}
		b.w.say("broker %d#%d makes a replica of %s", b.id, b.inc, b.w.name(p.id))
	}
	b.put(r)
	r.open()
	return r
}

// diskFailed takes the disk offline for this life.
func (b *broker) diskFailed() {
	if b.diskBad {
		return
	}
	b.diskBad = true
	b.w.count("disk offline")
	b.w.say("broker %d#%d takes its disk offline", b.id, b.inc)
	for _, r := range slices.Clone(b.replicas) {
		if r.core != nil {
			r.step(partition.DiskOffline{})
			b.bad[r.id] = 0
		}
	}
}

// ring tells the replicas what time it is, where they asked for it.
func (b *broker) ring() {
	for _, r := range b.replicas {
		if r.core == nil {
			continue
		}
		if r.core.NeedsLease() && b.lease != nil && !b.lease.gone && b.lease.asked > r.leaseTold {
			r.leaseTold = b.lease.asked
			r.step(partition.LeaseRenewed{Now: b.lease.asked})
		}
		if r.wake > 0 && r.wake <= b.w.now {
			r.wake = 0
			r.step(partition.Tick{Now: b.w.now})
		}
	}
}

// vouches are what the broker says of its replicas when it registers.
func (b *broker) vouches() []cluster.Vouch {
	var all []cluster.Vouch
	for _, r := range b.replicas {
		v := cluster.Vouch{Topic: r.id.Topic, Partition: r.id.Number, LastEpoch: -1, Verdict: verdictOf(r.verdict)}
		if r.log != nil {
			v.LastEpoch, v.End = r.log.LatestEpoch(), r.log.EndOffset()
		}
		if b.diskBad || r.condemned {
			v.Verdict = cluster.Corrupt
		}
		if r.verdict == partition.UncleanOS && !b.w.part(r.id).topic.os {
			v.Verdict = cluster.Intact
		}
		if r.log == nil && r.verdict != partition.Corrupt {
			v.Verdict = cluster.Missing
		}
		all = append(all, v)
	}
	for id, v := range b.disk.verdicts {
		if v != partition.Intact && b.get(id) == nil {
			all = append(all, cluster.Vouch{Topic: id.Topic, Partition: id.Number, LastEpoch: -1, Verdict: cluster.Missing})
		}
	}
	slices.SortFunc(all, func(x, y cluster.Vouch) int {
		return cmp.Or(x.Topic.Compare(y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	return all
}

func verdictOf(v partition.Verdict) cluster.Verdict {
	switch v {
	case partition.Intact:
		return cluster.Intact
	case partition.Cut:
		return cluster.Cut
	case partition.UncleanOS:
		return cluster.UncleanOS
	case partition.Missing:
		return cluster.Missing
	}
	return cluster.Corrupt
}
