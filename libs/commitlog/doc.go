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
//     after Sync returned it.
//  8. Close, then note the clean stop durably. A log that was not closed loses
//     nothing that was synced.
//
// Append, Sync and Read may run concurrently. The log starts no goroutines and
// reads no clock but Options.Now.
//
// What is synced when: Sync makes record bytes durable, then the names of new
// files. A new leader epoch's checkpoint is durable before its first batch is
// written. Index files are synced when their
// segment is sealed, and are rebuilt whenever they turn out short or wrong;
// nothing depends on them but speed.
//
// What may be lost when: what was appended and not synced, if power fails; nothing
// if only the process dies. What a Sync has answered for is lost by damage of the
// disk alone, and then Open says so.
//
// An open log that is left alone holds one file descriptor, and one or three more
// for each sealed segment that was read.
package commitlog
