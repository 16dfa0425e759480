package commitlog

import (
	"fmt"

	"github.com/leat-io/leat/libs/record"
)

// MaxProducerSnapshot bounds the bytes of a snapshot of producers.
const MaxProducerSnapshot = maxSnapshot

// ProducersBelow renders what the log remembers of producers by batches that lie
// wholly below an offset, and its fence, for InheritProducers of a copy that begins
// there. What lies above the copy learns from the batches.
func (l *Log) ProducersBelow(offset int64) []byte {
	l.mu.RLock()
	defer l.mu.RUnlock()
	below := newProducerState(offset)
	below.fence = l.producers.fence
	for id, p := range l.producers.byID {
		kept := *p
		kept.count = 0
		for _, b := range p.batches[:p.count] {
			if b.last < offset {
				kept.add(b)
			}
		}
		if kept.txnFirst >= offset {
			kept.txnFirst = noTransaction
		}
		if kept.count > 0 || p.count == 0 {
			below.byID[id] = &kept
		}
	}
	return below.encode()
}

// WantsProducers reports whether the log is empty and begins above 0, as one does that
// begins anew. Without what others remember of producers whose records lay below, it
// would take a producer's first batch, sent once more, for new.
func (l *Log) WantsProducers() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end > 0 && l.marks.start == l.end && len(l.epochs) == 0
}

// InheritProducers has an empty log remember, durably, the producers of the log that
// it is to be a copy of, as ProducersBelow of where this one begins rendered them.
//
// Errors: *OutOfOrderError where the log is not empty, or *CorruptError where the
// snapshot is damaged or of another offset: nothing was changed. *NoSpaceError,
// ErrClosed, *FailedError.
func (l *Log) InheritProducers(snapshot []byte) error {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.mu.RLock()
	err, start, end, empty := l.usable(), l.marks.start, l.end, l.marks.start == l.end && len(l.epochs) == 0
	l.mu.RUnlock()
	if err != nil {
		return err
	}
	if !empty {
		return &OutOfOrderError{Offset: start, End: end}
	}
	path := segmentPath(l.dir, end, snapshotSuffix)
	state, err := decodeSnapshot(path, snapshot, end)
	if err != nil {
		return err
	}
	err = l.removeSnapshots()
	if err == nil {
		err = createFile(l.fs, path, snapshot, true)
	}
	if err == nil {
		err = l.fs.SyncDir(l.dir)
	}
	if isNoSpace(err) {
		return &NoSpaceError{Dir: l.dir, Op: "inherit producers", Err: err}
	}
	if err != nil {
		return l.fail("inherit producers", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.producers, l.snapshots = state, []snapshotFile{{offset: end}}
	return nil
}

// decodeSnapshot reads a snapshot that another log rendered for a copy that begins at
// an offset.
func decodeSnapshot(path string, data []byte, offset int64) (producerState, error) {
	lines, err := decodeSmallFile(path, data, snapshotKind, snapshotVersion)
	if err != nil {
		return producerState{}, err
	}
	s, err := parseSnapshot(path, lines, offset)
	if err != nil {
		return s, err
	}
	for id, p := range s.byID {
		for _, b := range p.batches[:p.count] {
			if b.base > b.last || b.last >= offset || b.base < 0 || id == record.NoProducerID {
				return s, &CorruptError{Path: path, Offset: b.base, Detail: fmt.Sprintf("a batch [%d,%d] of producer %d does not lie below %d", b.base, b.last, id, offset)}
			}
		}
	}
	return s, nil
}
