package commitlog

import "github.com/leat-io/leat/libs/record"

// AppendInfo says what became of an appended batch.
type AppendInfo struct {
	BaseOffset   int64
	LastOffset   int64
	SegmentBase  int64 // base offset of the segment that took the batch
	Position     int64 // byte of that segment's .log where the batch begins
	Size         int   // bytes of the batch
	MaxTimestamp int64 // ms, as stored
	AppendTime   int64 // ms by the log's clock, whatever the timestamp type
}

// ReadResult is a run of whole batches.
type ReadResult struct {
	Data           []byte // from the caller's alloc; empty when nothing lies below the limit
	FirstBatchBase int64  // base offset of the first batch, which may lie below the offset asked for, or above in a gap; -1 without data
	NextOffset     int64  // where to read on
}

// Special timestamps that OffsetForTimestamp takes in place of ms.
const (
	TimestampLatest   = int64(-1)
	TimestampEarliest = int64(-2)
)

// TimestampOffset answers OffsetForTimestamp.
type TimestampOffset struct {
	Found       bool  // false: no record is that new
	Offset      int64 // -1 unless Found
	Timestamp   int64 // ms of that record; record.NoTimestamp for the special queries
	LeaderEpoch int32 // of the batch that holds it; -1 when there is none
}

// EpochEnd answers EndOffsetForEpoch.
type EpochEnd struct {
	Epoch     int32 // the largest epoch in the log that is not above the one asked for
	EndOffset int64 // one past its last offset
}

// RecoveryReport says what Open did.
type RecoveryReport struct {
	Clean          bool  // nothing was scanned
	Created        bool  // the folder held no log
	Start          int64 // log start offset
	End            int64 // log end offset, all of it durable
	ScannedFrom    int64 // first offset whose batch was checked, End when none was
	ScannedBytes   int64
	CutBytes       int64  // bytes cut off the tail, 0 when it was whole
	CutPath        string // segment the cut begins in
	CutPosition    int64  // byte in that segment
	CutReason      string // what was wrong with the first batch cut
	BatchesPastCut int    // whole, valid batches among the bytes cut: more than a torn write leaves
	IndexesRebuilt int    // segments whose indexes were made anew
	EpochsRebuilt  bool   // the leader-epoch checkpoint was absent or damaged
}

// BatchInfo is one batch found by Scan.
type BatchInfo struct {
	Path     string // segment file
	Position int64  // byte in it
	Header   record.Header
	Batch    []byte // the encoded batch; valid during the callback only
	Err      error  // *record.CorruptError or *record.InvalidError when the batch is not valid, else nil
}

// EpochStart says where the batches of a leader epoch begin.
type EpochStart struct {
	Epoch       int32
	StartOffset int64
}
