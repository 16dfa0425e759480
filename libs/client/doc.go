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
// Delivery is at least once until idempotence comes with replication: a batch
// whose outcome is unknown is sent again, and its records may then be in the log
// twice; Result.MaybeDuplicated says so. The order of one partition's records is
// kept in every case. Where a failed batch could only be sent again behind a later
// one that was stored meanwhile, it fails instead, with its outcome.
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
