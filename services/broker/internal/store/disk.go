package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs"
)

// Disk is one folder of log.dirs.
type Disk struct {
	Dir string
	// ID was drawn when the disk was first used.
	ID string

	fs        vfs.FS
	lock      io.Closer
	fresh     bool   // it had no disk.metadata: nothing was ever on it, or all is lost
	clusterID string // "" while fresh
	clean     bool   // the last process closed everything
	hostDown  bool   // the host went down under the last process
	failure   atomic.Pointer[error]
	told      atomic.Bool // DiskFailed has told of it

	recovery   map[Key]int64 // as read at the start
	watermarks map[Key]int64
	verdicts   map[Key]Verdict
	// verdictMu is held while the verdicts are written, and taken before the store's.
	verdictMu     sync.Mutex
	verdictsDirty bool       // what is written is not what is noted
	found         []*Replica // folders with an identity, before they are opened

	// What the marks were when last written, so that an idle disk is left alone.
	writtenRecovery, writtenWatermarks []string
	// The same by replica; nil: as read at the start. Guarded by checkpointMu.
	recordedRecovery, recordedWatermarks map[Key]int64
	writtenPosition                      Position
	writtenEtcd                          uint64
	writtenEpochs                        []string

	room room
}

// Err is why the disk is offline, nil while it is not.
func (d *Disk) Err() error {
	if p := d.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// openDisk locks a folder and reads its small files. Nothing is written but the
// lock file and, on a new disk, the folder. The disk is returned with an error too.
func openDisk(o *Options, dir string) (d *Disk, err error) {
	d = &Disk{Dir: dir, fs: o.FS, recovery: map[Key]int64{}, watermarks: map[Key]int64{}, verdicts: map[Key]Verdict{}}
	if err := o.FS.MkdirAll(dir); err != nil {
		return d, fmt.Errorf("make the data folder %s: %w", dir, err)
	}
	if err := o.FS.SyncDir(filepath.Dir(dir)); err != nil {
		return d, fmt.Errorf("make the data folder %s durable: %w", dir, err)
	}
	lock, err := o.FS.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			return d, &LockedError{Dir: dir, Err: err}
		}
		return d, fmt.Errorf("lock the data folder %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := errors.Join(d.readMeta(o), d.readMarks(o)); err != nil {
		return d, err
	}
	d.lock = lock
	return d, nil
}

// readMeta finds out whose disk this is.
func (d *Disk) readMeta(o *Options) error {
	meta, ok, err := readFields(d.fs, d.Dir, metaFile)
	if err != nil {
		return err
	}
	if !ok {
		var id [8]byte
		if _, err := io.ReadFull(rand.Reader, id[:]); err != nil {
			return fmt.Errorf("draw a disk id: %w", err)
		}
		d.fresh, d.ID = true, hex.EncodeToString(id[:])
		return nil
	}
	d.ID, d.clusterID = meta["disk_id"], meta["cluster_id"]
	if d.ID == "" || d.clusterID == "" {
		return &FileError{Path: filepath.Join(d.Dir, metaFile), Detail: "disk_id and cluster_id are not both there"}
	}
	if want := strconv.Itoa(int(o.BrokerID)); meta["broker_id"] != want {
		return &WrongOwnerError{Dir: d.Dir, What: "broker", Want: want, Got: meta["broker_id"]}
	}
	return nil
}

// readMarks reads what the last process left about itself and its replicas.
func (d *Disk) readMarks(o *Options) error {
	running, wasRunning, err := readFields(d.fs, d.Dir, runningFile)
	if err != nil {
		return err
	}
	closed, wasClosed, err := readFields(d.fs, d.Dir, cleanFile)
	if err != nil {
		return err
	}
	// A marker of another process than the last one says nothing.
	d.clean = wasClosed && wasRunning && closed["incarnation"] == running["incarnation"]
	d.hostDown = wasRunning && !d.clean && running["boot_id"] != o.BootID
	if d.recovery, err = readKeyed(d.fs, d.Dir, recoveryFile, parseOffset); err != nil {
		return err
	}
	if d.watermarks, err = readKeyed(d.fs, d.Dir, watermarkFile, parseOffset); err != nil {
		return err
	}
	d.verdicts, err = readKeyed(d.fs, d.Dir, verdictFile, parseVerdict)
	return err
}

// begin makes the disk this process's own: the marker goes first, durably; then
// the verdicts that the last stop calls for; then this process's name.
func (d *Disk) begin(o *Options) error {
	there, err := vfs.Exists(d.fs, filepath.Join(d.Dir, cleanFile))
	if err != nil {
		return err
	}
	if there {
		if err := d.fs.Remove(filepath.Join(d.Dir, cleanFile)); err != nil {
			return err
		}
		if err := d.fs.SyncDir(d.Dir); err != nil {
			return err
		}
	}
	if _, err := commitlog.PurgeDeleted(d.fs, d.Dir); err != nil {
		return err
	}
	if err := d.scan(o); err != nil {
		return err
	}
	if d.hostDown {
		for _, r := range d.found {
			if d.verdicts[r.Key] == Intact {
				d.verdicts[r.Key] = UncleanOS
			}
		}
		if err := d.writeVerdicts(d.verdicts); err != nil {
			return err
		}
	}
	return writeSmallFile(d.fs, d.Dir, runningFile, processLines(o))
}

func processLines(o *Options) []string {
	return []string{fmt.Sprintf("incarnation %016x", o.Incarnation), "boot_id " + o.BootID}
}

// scan lists the folders that say whose replica they are. One that says nothing
// is set aside if it holds anything.
func (d *Disk) scan(o *Options) error {
	entries, err := d.fs.ReadDir(d.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir || e.Name == asideDir || !strings.Contains(e.Name, "-") {
			continue
		}
		dir := filepath.Join(d.Dir, e.Name)
		m, err := commitlog.ReadMetadata(d.fs, dir)
		if err == nil {
			d.found = append(d.found, &Replica{Key: Key{Topic: m.TopicID, Partition: m.Partition}, Topic: m.Topic, Disk: d, Dir: dir})
			continue
		}
		inside, lerr := d.fs.ReadDir(dir)
		if lerr != nil {
			return lerr
		}
		if len(inside) == 0 || len(inside) == 1 && strings.HasSuffix(inside[0].Name, ".tmp") {
			// The process died between making the folder and naming it.
			for _, rest := range inside {
				if err := d.fs.Remove(filepath.Join(dir, rest.Name)); err != nil {
					return err
				}
			}
			if err := d.fs.Remove(dir); err != nil {
				return err
			}
			continue
		}
		to := filepath.Join(d.Dir, asideDir, fmt.Sprintf("unnamed-%016x-%s", o.Incarnation, e.Name))
		o.Logger.Error("set aside a folder that does not say whose replica it is", "dir", dir, "to", to, "error", err)
		if err := d.moveAside(dir, to); err != nil {
			return err
		}
	}
	return nil
}

// moveAside renames a folder into the quarantine, durably.
func (d *Disk) moveAside(dir, to string) error {
	aside := filepath.Join(d.Dir, asideDir)
	if err := d.fs.MkdirAll(aside); err != nil {
		return err
	}
	if err := d.fs.Rename(dir, to); err != nil {
		return err
	}
	return errors.Join(d.fs.SyncDir(aside), d.fs.SyncDir(d.Dir))
}

// asidePath is where a replica of a topic that nobody knows is kept.
func (d *Disk) asidePath(k Key) string {
	return filepath.Join(d.Dir, asideDir, fmt.Sprintf("%s-%d", k.Topic.Hex(), k.Partition))
}

func (d *Disk) writeMeta(brokerID int32, clusterID string) error {
	err := writeSmallFile(d.fs, d.Dir, metaFile, []string{"disk_id " + d.ID, "cluster_id " + clusterID, fmt.Sprintf("broker_id %d", brokerID)})
	if err == nil {
		d.fresh, d.clusterID = false, clusterID
	}
	return err
}

// writeVerdicts replaces the file; while the store serves only flushVerdicts does.
func (d *Disk) writeVerdicts(verdicts map[Key]Verdict) error {
	return writeSmallFile(d.fs, d.Dir, verdictFile, keyedLines(verdicts, func(v Verdict) string { return v.String() }))
}

func keyedLines[V any](values map[Key]V, format func(V) string) []string {
	keys := make([]Key, 0, len(values))
	for k := range values {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.Compare)
	lines := make([]string, len(keys))
	for i, k := range keys {
		lines[i] = k.String() + " " + format(values[k])
	}
	return lines
}
