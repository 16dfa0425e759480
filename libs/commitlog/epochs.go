package commitlog

import (
	"fmt"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

const (
	epochFile    = "leader-epoch-checkpoint"
	epochKind    = "leader-epoch-checkpoint"
	epochVersion = 1
)

func joinPath(dir, name string) string { return filepath.Join(dir, name) }

// epochEntry says that an epoch's batches begin at an offset.
type epochEntry struct {
	epoch int32
	start int64
}

// epochCache lists the leader epochs of a log, both columns rising. It is a value:
// whoever changes it makes a new one, so that a snapshot stays as it is.
type epochCache []epochEntry

// latest is the newest epoch, record.NoLeaderEpoch without any.
func (c epochCache) latest() int32 {
	if len(c) == 0 {
		return record.NoLeaderEpoch
	}
	return c[len(c)-1].epoch
}

// assign returns the cache after a batch of an epoch at an offset, and whether it
// is another one.
func (c epochCache) assign(epoch int32, start int64) (epochCache, bool) {
	if epoch <= c.latest() {
		return c, false
	}
	return append(c[:len(c):len(c)], epochEntry{epoch, start}), true
}

// at is the epoch of the batch at an offset.
func (c epochCache) at(offset int64) int32 {
	i := sort.Search(len(c), func(i int) bool { return c[i].start > offset })
	if i == 0 {
		return record.NoLeaderEpoch
	}
	return c[i-1].epoch
}

// below is the cache of a log that ends at an offset.
func (c epochCache) below(end int64) epochCache {
	i := sort.Search(len(c), func(i int) bool { return c[i].start >= end })
	return c[:i:i]
}

// from is the cache of a log that begins at an offset.
func (c epochCache) from(start int64) epochCache {
	i := sort.Search(len(c), func(i int) bool { return c[i].start > start })
	return c[max(0, i-1):]
}

// endOf finds the largest epoch that is not above epoch, and its end.
func (c epochCache) endOf(epoch int32, logEnd int64) (EpochEnd, bool) {
	i := sort.Search(len(c), func(i int) bool { return c[i].epoch > epoch })
	if i == 0 {
		return EpochEnd{Epoch: record.NoLeaderEpoch, EndOffset: -1}, false
	}
	end := logEnd
	if i < len(c) {
		end = c[i].start
	}
	return EpochEnd{Epoch: c[i-1].epoch, EndOffset: end}, true
}

func (c epochCache) save(fsys vfs.FS, dir string) error {
	staged, err := c.stage(fsys, dir)
	if err != nil {
		return err
	}
	return staged.Commit()
}

// stage writes the checkpoint beside the present one, which it does not touch.
func (c epochCache) stage(fsys vfs.FS, dir string) (vfs.StagedFile, error) {
	lines := make([]string, len(c))
	for i, e := range c {
		lines[i] = fmt.Sprintf("%d %d", e.epoch, e.start)
	}
	return vfs.StageFile(fsys, joinPath(dir, epochFile), encodeSmallFile(epochKind, epochVersion, lines))
}

// loadEpochs reads the checkpoint. A damaged one is a *CorruptError, an absent one
// fs.ErrNotExist; both can be made anew from the log.
func loadEpochs(fsys vfs.FS, dir string) (epochCache, error) {
	path := joinPath(dir, epochFile)
	lines, err := readSmallFile(fsys, path, epochKind, epochVersion)
	if err != nil {
		return nil, err
	}
	c := make(epochCache, 0, len(lines))
	for _, line := range lines {
		left, right, _ := strings.Cut(line, " ")
		epoch, err1 := strconv.ParseInt(left, 10, 32)
		start, err2 := strconv.ParseInt(right, 10, 64)
		if err1 != nil || err2 != nil || int32(epoch) <= c.latest() || len(c) > 0 && start <= c[len(c)-1].start {
			return nil, &CorruptError{Path: path, Offset: -1, Detail: fmt.Sprintf("the line %q does not fit", line)}
		}
		c = append(c, epochEntry{int32(epoch), start})
	}
	return c, nil
}

// Epochs lists the leader epochs of the log and where their batches begin, both
// rising.
func (l *Log) Epochs() []EpochStart {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := make([]EpochStart, len(l.epochs))
	for i, e := range l.epochs {
		all[i] = EpochStart{Epoch: e.epoch, StartOffset: e.start}
	}
	return all
}
