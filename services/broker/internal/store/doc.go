// Package store keeps a broker's disks: which replica lies on which, the small
// files beside the replicas' folders, and what a restart must know. It knows
// nothing of leaders, streams or gRPC.
//
// The caller's duties, in order:
//
//  1. Open with the folders of log.dirs. Each is locked; the clean-shutdown marker
//     is taken away durably before anything else is written; every replica found
//     is opened and recovered.
//  2. Wait for the metadata of the mesh, and ask CheckHistory whether it continues what
//     the disks have followed; if not, touch nothing. Note with NoteHistory what is
//     followed from then on. Then call Adopt with the cluster id and
//     the replicas that this broker should hold. Disks of another cluster are
//     refused; what should be there and is not gets a verdict that survives
//     restarts. Only now may replicas be created.
//  3. Vouch with Vouches, once Adopt has returned.
//  4. Create, SetAside and Delete from one goroutine for each replica, as the metadata
//     says. A folder is durable when Create returns. Note with SetVerdict what proves
//     damaged at run time; Replace what is not intact, ClearVerdict when the metadata
//     permits, Trust what was elected as it is, and DropReplaced once the replacement is
//     in sync. Before a log is cut, LowerMarks.
//  5. Note high watermarks with Replica.SetHighWatermark; call Checkpoint now and
//     then.
//  6. Report a failed read, write or fsync of a log with DiskFailed, and serve
//     nothing from that disk any more; ask NewlyFailed for those that the store met
//     itself.
//  7. Ask Admit before each append, and wait or refuse as it says; call RefreshSpace
//     several times a second, or room that was made is not noticed.
//  8. Close when nobody uses the logs: they are synced and closed, the marks
//     written, and last the clean-shutdown marker.
//
// The files are described in docs/format-disk.md.
package store
