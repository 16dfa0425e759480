// Package replication is the streams between a follower and the leaders whose
// partitions it copies. It moves messages and bytes; what they mean is decided by
// the partition cores, through package replica.
//
// The caller's duties, in order:
//
//  1. Make Fetchers and give them to the replica manager as its Leaders; make a
//     Server, register it with gRPC, and Open it with the manager once replicas are
//     there. Until then it answers STARTING.
//  2. Run the Fetchers for as long as replicas follow. When their context ends,
//     every stream ends and nothing is delivered any more.
//  3. Ask Fetchers.Unreachable and Deaf for the health answers.
//  4. When the gRPC server has stopped, Wait for the Server.
//
// # What travels
//
// A follower opens one stream to each life of a broker that leads something it
// copies. On it, each partition has a session, numbered by the follower. A session
// begins with a hello (where the follower's log ends) that the leader answers with
// the end of that epoch in its own log, again and again until both agree. One whose log
// is empty above offset 0 is first sent what the leader remembers of producers. From then
// on the leader sends what its log holds and gets, within the session's window of
// bytes that the follower has not stored yet, and the follower tells its position
// whenever more of its log is durable. Partitions that are quiet cost nothing: what
// lives is the stream, on which the leader says something every HeartbeatInterval.
//
// Everything that waits is bounded: by the window of a session, by MaxStreamBytes of
// a stream, by one hello, one position, one watermark for each session.
//
// Lock order: a replica's lock, then that of a stream or link. Nothing here calls a
// replica with a lock of its own held.
package replication
