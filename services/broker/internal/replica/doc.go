// Package replica is the loops around the partition core: each Replica carries
// out what its core decides on a log of the store, and the Manager opens,
// creates, sets aside and deletes replicas as the metadata says.
//
// The caller's duties, in order:
//
//  1. Make a Manager over a Store that has adopted its cluster; Apply images of
//     the metadata to it in order, from one goroutine, none of them older than
//     the process's own registration.
//  2. Find replicas with Lookup for each request, and give it what it asks for.
//  3. Produce takes over the batch's payload. Batch.Done is called exactly once,
//     possibly before Produce returns and with the replica's lock held: it must
//     not block and must not call the replica.
//  4. Subscribe before the first Read of a tail; the function is called as Done
//     is, after anything that may change what Read answers.
//  5. Run the Manager's Run for its clock: deadlines, checkpoints, disk watchdog, the
//     disks' room, retention and compaction.
//  6. Stop, which lets what is in flight end, before the store is closed.
//
// Lock order: replica, then whatever Done and subscribers lock. The manager's
// lock is never held while a replica's is taken by it, nor the reverse.
//
// An idle replica has no goroutine. While there is something to append one
// goroutine appends, and beside it at most one syncs; whoever waits for a sync is
// answered together.
package replica
