package simulation

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// disk is what a broker leaves behind when it stops: files, and small files, which
// the broker replaces atomically and durably and which are values here.
type disk struct {
	mem   *memfs.FS
	fs    *errorfs.FS
	fresh bool // nobody has adopted it
	room  fullness
	short int // bytes that a write on a full disk still writes

	verdicts   map[cluster.PartitionID]partition.Verdict
	recovery   map[cluster.PartitionID]int64
	watermarks map[cluster.PartitionID]int64
	kept       map[cluster.PartitionID]bool // a bad copy lies aside

	running, closed uint64 // incarnations
	boot, bootSaved int
	hist            history

	rotAt  map[cluster.PartitionID]int64 // offset of the batch that is hit
	rotten map[cluster.PartitionID]bool  // a bit was flipped, below the marks (nobody knows)
}

// history is what a broker notes of the metadata that it has followed.
type history struct {
	rev     int64
	cluster uint64
	epochs  map[cluster.PartitionID]int32
}

func newDisk() *disk {
	d := &disk{
		mem: memfs.New(), fresh: true, verdicts: map[cluster.PartitionID]partition.Verdict{}, recovery: map[cluster.PartitionID]int64{},
		watermarks: map[cluster.PartitionID]int64{}, kept: map[cluster.PartitionID]bool{}, rotten: map[cluster.PartitionID]bool{}, rotAt: map[cluster.PartitionID]int64{},
		hist: history{epochs: map[cluster.PartitionID]int32{}},
	}
	d.fs = errorfs.Wrap(d.mem)
	for _, dir := range []string{"/d", "/aside", "/unknown"} {
		_ = d.mem.MkdirAll(dir)
	}
	_ = d.mem.SyncDir("/")
	return d
}

// folder is where a replica lies, which bears the name of its topic.
func (w *world) folder(id cluster.PartitionID) string {
	return fmt.Sprintf("/d/%s-%d", w.part(id).topic.name, id.Number)
}

func folderName(id cluster.PartitionID) string {
	return fmt.Sprintf("%x-%d", id.Topic[:4], id.Number)
}

// found lists the replicas whose folders say whose they are.
func (d *disk) found(w *world) []cluster.PartitionID {
	var ids []cluster.PartitionID
	if n, err := commitlog.PurgeDeleted(d.fs, "/d"); n > 0 && err == nil {
		w.count("interrupted deletion ended")
	}
	entries, err := d.fs.ReadDir("/d")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if m, err := commitlog.ReadMetadata(d.fs, path.Join("/d", e.Name)); err == nil {
			ids = append(ids, cluster.PartitionID{Topic: m.TopicID, Number: m.Partition})
		} else if e.IsDir {
			// It says nothing: it was being made when the power failed.
			_ = d.fs.RemoveAll(path.Join("/d", e.Name))
		}
	}
	slices.SortFunc(ids, comparePartitions)
	return ids
}

func comparePartitions(a, b cluster.PartitionID) int {
	if c := a.Topic.Compare(b.Topic); c != 0 {
		return c
	}
	return int(a.Number - b.Number)
}

// wasHere reports whether a mark of an earlier process names a replica.
func (d *disk) wasHere(id cluster.PartitionID) bool {
	_, a := d.recovery[id]
	_, b := d.watermarks[id]
	return a || b
}

// open opens a log, or makes one.
func (d *disk) open(w *world, b *broker, id cluster.PartitionID) (*commitlog.Log, error) {
	log, report, err := commitlog.Open(commitlog.Options{
		Config: logConfig(w.part(id).topic), FS: d.fs, Dir: w.folder(id), Topic: "t", Partition: id.Number, TopicID: id.Topic,
		RecoveryPoint: d.recovery[id], HighWatermark: d.watermarks[id], CleanShutdown: d.closed == d.running && d.closed != 0,
		Files: b.files, Now: w.clock,
	})
	if report.CutBytes > 0 {
		w.count("torn tail cut")
		w.say("broker %d cuts %d bytes off the log of %s, which ends at %d", b.id, report.CutBytes, w.name(id), report.End)
	}
	if err == nil {
		w.part(id).retained(b, log, false)
	}
	return log, err
}

func logConfig(t *topic) commitlog.Config {
	c := commitlog.Config{
		SegmentBytes: commitlog.MinSegmentBytes, IndexIntervalBytes: 512, FileDeleteDelay: 1, ProducerExpiration: time.Hour,
		SegmentAge: t.clean.segmentAge, RetentionAge: t.clean.retain, RetentionBytes: t.clean.retainBytes,
	}
	if t.clean.compact {
		c.Cleanup = commitlog.CleanupCompact
		if t.clean.retain > 0 || t.clean.retainBytes > 0 {
			c.Cleanup |= commitlog.CleanupDelete
		}
	}
	return c
}

// clock is the wall clock of the simulation.
func (w *world) clock() time.Time { return time.Unix(1_700_000_000, 0).Add(w.now) }

// writeMarks writes the marks of the replicas down, as one moment has them.
func (b *broker) writeMarks() {
	d := b.disk
	if d.room == full {
		return // the earlier ones stay
	}
	watermarks, recovery := map[cluster.PartitionID]int64{}, map[cluster.PartitionID]int64{}
	for id, v := range d.watermarks {
		if d.verdicts[id] != partition.Intact {
			watermarks[id], recovery[id] = v, d.recovery[id]
		}
	}
	for _, r := range b.replicas {
		if r.log == nil || r.gone {
			continue
		}
		durable := r.log.DurableEnd()
		watermarks[r.id], recovery[r.id] = min(r.hwNoted, durable), durable
	}
	d.watermarks, d.recovery = watermarks, recovery
	d.hist = history{rev: b.hist.rev, cluster: b.hist.cluster, epochs: maps.Clone(b.hist.epochs)}
}

// lowerMarks has the marks of a replica lie at or below an offset.
func (b *broker) lowerMarks(r *replica, to int64) error {
	r.hwNoted = min(r.hwNoted, to)
	d := b.disk
	if max(d.recovery[r.id], d.watermarks[r.id]) > to {
		if d.room == full {
			return fmt.Errorf("lower the marks: %w", syscall.ENOSPC)
		}
		d.recovery[r.id], d.watermarks[r.id] = min(d.recovery[r.id], to), min(d.watermarks[r.id], to)
	}
	return nil
}

// dropVerdict settles what stood against a replica, unless the bad copy is still in
// its place.
func (b *broker) dropVerdict(r *replica, trust bool) {
	d := b.disk
	damaged := !r.fresh && !trust && (r.verdict == partition.Cut || r.verdict == partition.Corrupt)
	if r.log == nil && r.verdict != partition.Missing || r.log != nil && damaged {
		r.pardoned = true
		return
	}
	delete(d.verdicts, r.id)
	if r.log == nil {
		delete(d.recovery, r.id)
		delete(d.watermarks, r.id)
	}
	r.verdict, r.fresh = partition.Intact, false
}

// replace puts an empty log in the place of one that is bad or missing.
func (b *broker) replace(r *replica) error {
	d := b.disk
	delete(d.recovery, r.id)
	delete(d.watermarks, r.id)
	r.hwNoted = 0
	if r.log != nil {
		if err := r.log.Abort(); err != nil && !errors.Is(err, commitlog.ErrClosed) {
			return err
		}
	}
	dir := b.w.folder(r.id)
	there, err := vfs.Exists(d.fs, dir)
	if err != nil {
		return err
	}
	aside := path.Join("/aside", folderName(r.id))
	switch {
	case !there:
	case r.fresh || d.kept[r.id]:
		err = errors.Join(d.fs.RemoveAll(dir), d.fs.SyncDir("/d"))
	default:
		err = errors.Join(d.fs.RemoveAll(aside), d.fs.Rename(dir, aside), d.fs.SyncDir("/aside"), d.fs.SyncDir("/d"))
		d.kept[r.id] = true
	}
	if err != nil {
		return err
	}
	r.log, err = d.open(b.w, b, r.id)
	if err != nil {
		return err
	}
	r.fresh = r.verdict != partition.Intact
	delete(d.rotten, r.id)
	if r.pardoned {
		delete(d.verdicts, r.id)
		r.verdict, r.fresh, r.pardoned = partition.Intact, false, false
	}
	return nil
}

// dropKept removes the bad copy whose replacement is in sync.
func (b *broker) dropKept(id cluster.PartitionID) {
	if b.disk.kept[id] {
		_ = b.disk.fs.RemoveAll(path.Join("/aside", folderName(id)))
		_ = b.disk.fs.SyncDir("/aside")
		delete(b.disk.kept, id)
	}
}
