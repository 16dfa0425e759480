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
//     disks' room, retention and compaction, and news of replicas for the controller,
//     which Config.Report carries there.
//  6. Give the Manager Leaders where it follows, and tell the replica what its leader
//     says with EpochEnd, Producers, Batches, Watermark and LeaderGone. Tell what followers say
//     with Hello, FollowerPosition and FollowerGone; ReadLog is what they are sent.
//     What they are told comes through Follower and Upstream.
//  7. Call LeaseRenewed after each renewal of the broker's registration.
//  8. Stop, which lets what is in flight end, before the store is closed.
//
// Lock order: replica, then whatever Done, subscribers, Follower and Upstream lock. The manager's
// lock is never held while a replica's is taken by it, nor the reverse.
//
// An idle replica has no goroutine. While there is something to do to the log, one
// goroutine does it (append a client's batch or a leader's run, truncate, reset), and
// beside it at most one syncs and one moves the log's start; whoever waits for a sync
// is answered together. A proposal is carried to the controller by one of a few
// goroutines that live while there are any. Cores that want to know the time stand in
// one heap, by when.
package replica
