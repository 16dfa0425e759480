package commitlog

import (
	"errors"

	"github.com/leat-io/leat/libs/vfs"
)

var errStub = errors.New("under construction")

// Log is one replica's log.
type Log struct{}

// Open opens or makes a log and recovers it.
func Open(o Options) (*Log, RecoveryReport, error) { return nil, RecoveryReport{}, errStub }

// Append adds one validated batch; not synced.
func (l *Log) Append(vecs [][]byte, leaderEpoch int32) (AppendInfo, error) {
	return AppendInfo{}, errStub
}

// Sync makes durable what was appended before it began.
func (l *Log) Sync() (durableEnd int64, err error) { return 0, errStub }

// SetConfig changes the topic's settings; the next Append follows them.
func (l *Log) SetConfig(c Config) error { return errStub }

// StartOffset is the first offset.
func (l *Log) StartOffset() int64 { return 0 }

// EndOffset is one past the last offset appended.
func (l *Log) EndOffset() int64 { return 0 }

// DurableEnd is one past the last offset known durable.
func (l *Log) DurableEnd() int64 { return 0 }

// Err is the sticky error, nil while the log is healthy.
func (l *Log) Err() error { return nil }

// Size is the bytes of all segments.
func (l *Log) Size() int64 { return 0 }

// Read reads whole batches, starting with the one that contains offset and ending
// below upTo. alloc is called at most once.
func (l *Log) Read(offset, upTo int64, maxBytes int, alloc func(n int) []byte) (ReadResult, error) {
	return ReadResult{}, errStub
}

// OffsetForTimestamp finds the first record below upTo with a timestamp of at
// least ts.
func (l *Log) OffsetForTimestamp(ts, upTo int64) (TimestampOffset, error) {
	return TimestampOffset{}, errStub
}

// EndOffsetForEpoch finds where an epoch ends; ok is false when the log has none
// as old.
func (l *Log) EndOffsetForEpoch(epoch int32) (_ EpochEnd, ok bool) { return EpochEnd{}, false }

// LatestEpoch is the newest leader epoch in the log, -1 when empty.
func (l *Log) LatestEpoch() int32 { return -1 }

// Close syncs everything, trims the indexes and releases the files.
func (l *Log) Close() error { return errStub }

// Abort releases the files without writing anything.
func (l *Log) Abort() error { return errStub }

// Delete closes the log and removes its folder.
func (l *Log) Delete() error { return errStub }

// Scan reads a folder offline, batch by batch, without changing anything.
func Scan(fsys vfs.FS, dir string, fn func(BatchInfo) error) error { return errStub }
