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
// Every error that comes out is, or wraps, a *rpc.Error: reason, outcome and
// action tell what happened, whether it took place, and what to do.
//
// Goroutines: a Client has one that refreshes metadata and, unless it was given a
// source, one that polls. A Producer has one for time, and two for each broker it
// sends to. A Fetcher has one, and two for each broker it reads from. A Member has
// one, and all members of a Client share two for each coordinator. A Consumer is a
// Fetcher, a Member and one goroutine that commits. None outlives the Close of its
// owner.
//
// Locks are taken in this order: a producer's, a topic's (or a partition's, then a
// topic's), a sender's; a fetcher's; each before those of the leader hints and of
// the metadata source.
package client
