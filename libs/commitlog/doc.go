// Package commitlog keeps one replica of a partition: segments of record batches
// with a sparse offset index and a time index each, over package vfs.
//
// The caller's duties, in order:
//
//  1. Hold the lock of the disk, so that no other process writes here.
//  2. Open with the topic id and what is on record about the folder: recovery
//     point, high-watermark checkpoint, whether the last stop was clean. A
//     CorruptError means that durable bytes are damaged or gone; the folder is
//     as it was found, and must be withheld, not deleted.
//  3. Validate each batch (package record) before Append; Append checks only that
//     its size and its length field agree. Append neither keeps nor changes the
//     buffers it is given.
//  4. Acknowledge nothing before Sync, begun after the Append, has returned an end
//     above it (or, where the topic says durability=os, before Append returned).
//     One Sync serves every Append before it: that is group commit, and it is
//     the caller's loop.
//  5. After a FailedError acknowledge nothing more from this log. It is never
//     retried into success.
//  6. Pass the high watermark as upTo of each Read; the log does not know it.
//  7. Note the durable end as the recovery point now and then, durably, and only
//     after Sync or Checkpoint returned it. Checkpoint also writes down the producers,
//     so that a recovery from there on reads nothing below.
//  8. Before TruncateTo or ResetTo lower the recovery point and the high-watermark
//     checkpoint on record, durably, where they lie above the offset. A copy that was
//     begun anew and WantsProducers gets those of the log that it copies, as
//     ProducersBelow renders them, with InheritProducers; before that it should count
//     for nothing.
//  9. Where producers are idempotent ask CheckProducer before each Append, and let no
//     other append come between.
//  10. Call Retain every minute or so, with the high watermark, and where the topic is
//     compacted Clean, which keeps tombstones for those who copy the log where
//     KeepTombstonesFrom is set; both do their work on the caller's goroutine. Where durability
//     is os, Sync when NeedsFlush says so.
//  11. Give all logs of a process one FileCache.
//  12. Close, then note the clean stop durably. A log that was not closed loses
//     nothing that was synced.
//
// All methods may run concurrently, but for what 9 says. The log starts no
// goroutines and reads no clock but Options.Now.
//
// A NoSpaceError says that what was begun has been undone: the log goes on and the
// call may be repeated when there is space. Whoever wants reads, deletion and cleaning
// to work on a full disk keeps a reserve, and gives it up then.
//
// What is synced when: Sync makes record bytes durable, then the names of new
// files. A new leader epoch's checkpoint is durable before its first batch is
// written, the log start before a segment goes, a truncation before TruncateTo
// returns, a compacted segment before the ones it replaces are touched. Index files
// are synced when their segment is sealed, and are rebuilt whenever they turn out
// short or wrong; nothing depends on them but speed.
//
// What may be lost when: what was appended and not synced, if power fails; nothing
// if only the process dies. What a Sync has answered for is lost by damage of the
// disk alone, and then Open says so.
//
// An open log that is left alone holds no file descriptor; see FileCache for the
// others. docs/format.md describes every file.
package commitlog
