// Package client is the routing client of the mesh: it finds the leaders of
// partitions and the owners of groups, and talks to brokers and coordinators
// over gRPC streams. Applications in Go use it in direct mode; the gateway and
// the coordinator are built on it.
//
// The caller's duties, in order:
//
//  1. New, with the addresses of some brokers or gateways, or with a source of
//     metadata of its own. One Client serves a whole process.
//  2. NewProducer, NewFetcher, JoinGroup or NewConsumer for the work itself, and
//     the methods of Client for single questions. The examples show a producer and
//     a consumer from beginning to end.
//  3. Close what was made, then Close the Client: it waits for its goroutines.
//
// Producing is idempotent by default: a batch whose outcome is unknown is sent again
// under the same number, and is stored once and in order. A record that is given up
// after all, because its time ran out, says whether it may be stored. Without
// idempotence, which needs acks all, what is sent again may be in the log twice;
// Result.MaybeDuplicated says so. The order of one partition's records is kept there,
// too: where a failed batch could only be sent again behind a later one that was
// stored meanwhile, it fails instead, with its outcome.
//
// What was seen of a partition, its leader's epoch and its visible end, goes along
// with every reading. Positions are kept through every failure; only a position that
// lies outside the log of a leader that knows all of it is told, and a log that was
// cut by an unclean election is told as LOG_TRUNCATED, with where both agree.
//
// Consuming: a Consumer in a group shares the partitions with the other members. It
// pings by itself while the application takes its time, so that a record that takes
// ten minutes costs no partition; what the application has been given it says is
// worked on (released) by asking for more, with Poll or the loop over Records, or by
// Release. Auto-commit commits what was released and nothing else.
//
// A record comes twice, or more often, exactly where it was handed out and no commit
// behind it has taken effect when somebody begins with the partition anew:
//
//   - The process ended, or Close was called, before the record was released; or less
//     than the auto-commit interval (5 s) after, and without Close.
//   - The membership was lost (OnLost): the coordinator heard nothing of the process
//     for a session timeout, a revocation was not heeded within the rebalance timeout,
//     MaxProcessing passed, or another process took the InstanceID. What was not
//     committed by then goes to whoever has the partition next, also while this process
//     still works on it: its commits change nothing.
//   - A commit failed, or its outcome is unknown, which the next Poll or the commit
//     itself tells, and no later one took effect.
//   - The offsets were reset, or somebody has sought back.
//
// Otherwise a record comes once. A rebalance alone repeats nothing: a revocation waits
// for what was handed out, and commits it. A record that the producer has sent twice,
// because it is not idempotent, is two records.
//
// With AtMostOnce the positions are committed first and the records handed out after:
// nothing comes twice, and what was committed and not handed out when the process or
// its membership ended (at most what one Poll has taken, up to 500 records) never comes.
//
// A record is left out only by the reset policy, where the position lies outside the
// log by the word of the partition's leader: retention has removed what comes next, or
// an unclean election has cut the log. Broken streams, silence and leaders that are
// behind leave the position where it is.
//
// With ClientRack a consumer reads from an in-sync replica in its rack, up to the high
// watermark that it knows: records come later by about a round trip, and nothing that
// was seen is taken back. The leader is read instead for a while after any trouble there.
//
// Every error that comes out is, or wraps, a *rpc.Error: reason, outcome and
// action tell what happened, whether it took place, and what to do.
//
// Goroutines: a Client has one that refreshes metadata and, unless it was given a
// source, one that polls. A Producer has one for time, and two for each broker it
// sends to. A Fetcher has one, and two for each broker it reads from. A Member has
// one, and all members of a Client share two for each coordinator, on a connection of
// their own, which data does not delay. A Consumer is a Fetcher, a Member and one
// goroutine that commits. None outlives the Close of its
// owner.
//
// Locks are taken in this order: a producer's, a topic's (or a partition's, then a
// topic's), a sender's; a fetcher's; each before those of the leader hints and of
// the metadata source.
package client
