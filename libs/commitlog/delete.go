package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"
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

// DeleteFolder removes a replica's folder that no Log has open. An absent one is no
// error.
func DeleteFolder(fsys vfs.FS, dir string, id Metadata) error {
	parent := filepath.Dir(dir)
	// Named by id, since a topic's name may leave no room for a suffix.
	grave := filepath.Join(parent, fmt.Sprintf("%x-%d%s", id.TopicID, id.Partition, DeletedSuffix))
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
	if err := fsys.RemoveAll(grave); err != nil {
		return err
	}
	return fsys.SyncDir(parent)
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
