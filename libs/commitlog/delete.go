package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leat-io/leat/libs/vfs"
)

// DeletedSuffix ends the name of a folder whose deletion has begun. Its content is
// of no more use; PurgeDeleted finishes the job after a crash.
const DeletedSuffix = ".deleted"

// Delete closes the log and removes its folder: first, durably, its name, so that
// it can never be opened again, then the files. Reads that run are waited for;
// later calls get ErrClosed. After an error the folder may be there under either
// name; Delete it again with DeleteFolder, or PurgeDeleted.
func (l *Log) Delete() error {
	defer l.stopCleaning()()
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if err := l.release(); err != nil {
		return err
	}
	return DeleteFolder(l.fs, l.dir, l.id)
}

// DeleteFolder removes a replica's folder that no Log has open, and what an earlier
// try left of it. An absent one is no error. A folder of the same name that is
// another topic's stays: that was made where this one's had lost its name already, and
// may be in use.
func DeleteFolder(fsys vfs.FS, dir string, id Metadata) error {
	others, err := isOthers(fsys, dir, id)
	if err != nil {
		return err
	}
	if others {
		return removeGrave(fsys, dir, id)
	}
	return removeFolder(fsys, dir, id)
}

// isOthers reports whether a folder belongs to another replica than id says, or is just
// being made for one. A damaged identity is id's: whoever makes a folder anew writes a
// whole one.
func isOthers(fsys vfs.FS, dir string, id Metadata) (bool, error) {
	m, err := ReadMetadata(fsys, dir)
	var corrupt *CorruptError
	var version *UnsupportedVersionError
	switch {
	case err == nil:
		return m.TopicID != id.TopicID || m.Partition != id.Partition, nil
	case errors.As(err, &corrupt), errors.As(err, &version):
		return false, nil
	case !isNotExist(err):
		return false, err
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil && !isNotExist(err) {
		return false, err
	}
	// The identity is durable before the first segment is made.
	return !slices.ContainsFunc(entries, func(e vfs.DirEntry) bool { return strings.HasSuffix(e.Name, logSuffix) }), nil
}

// gravePath is where a folder lies from the moment in which it has lost its name. It
// bears the id, since a topic's name may leave no room for a suffix.
func gravePath(dir string, id Metadata) string {
	return filepath.Join(filepath.Dir(dir), fmt.Sprintf("%x-%d%s", id.TopicID, id.Partition, DeletedSuffix))
}

// removeGrave removes what an earlier try has left of a folder.
func removeGrave(fsys vfs.FS, dir string, id Metadata) error {
	if err := fsys.RemoveAll(gravePath(dir, id)); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(dir))
}

// removeFolder removes a folder that is id's.
func removeFolder(fsys vfs.FS, dir string, id Metadata) error {
	parent, grave := filepath.Dir(dir), gravePath(dir, id)
	if err := fsys.RemoveAll(grave); err != nil {
		return err
	}
	if err := fsys.Rename(dir, grave); err != nil {
		if isNotExist(err) {
			return nil
		}
		return err
	}
	if err := fsys.SyncDir(parent); err != nil {
		return err
	}
	return removeGrave(fsys, dir, id)
}

// PurgeDeleted removes what interrupted deletions left among the folders of a disk
// and returns how many there were.
func PurgeDeleted(fsys vfs.FS, parent string) (int, error) {
	entries, err := fsys.ReadDir(parent)
	if err != nil {
		return 0, err
	}
	count := 0
	var errs []error
	for _, e := range entries {
		if !e.IsDir || !strings.HasSuffix(e.Name, DeletedSuffix) {
			continue
		}
		count++
		errs = append(errs, fsys.RemoveAll(filepath.Join(parent, e.Name)))
	}
	if count > 0 {
		errs = append(errs, fsys.SyncDir(parent))
	}
	return count, errors.Join(errs...)
}
