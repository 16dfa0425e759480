// Package shard runs the pure group core over real logs: one Shard for each
// partition of __consumer_offsets that this coordinator owns, and a Manager that
// starts and stops them as the metadata says.
//
// The caller's duties, in order:
//
//  1. New a Manager with a Log factory and a way to see the metadata, and Run it
//     once the process's metadata has reached its own registration.
//  2. Find a group's shard with Manager.For, and give it requests with Do and Post.
//     Every request is answered exactly once, also when the shard is lost.
//  3. Implement Peer for whatever carries members; call Detach on every shard it
//     used when it ends.
//
// A shard is fenced in the log before it serves: its first append under (shard
// epoch, attempt) is a FENCE, which the log remembers for as long as there is no higher
// one; once that has committed, the shard reads the log up to it.
// Appends of one shard go one at a time; everything that comes in meanwhile shares
// the next one. After an append whose outcome is unknown, the shard answers nothing
// until it has been fenced with the next attempt and loaded again.
//
// While the log is known to have no leader or too few in-sync replicas, questions and
// changes that have not been begun are refused for that reason at once; members and
// commits wait for it (short.go).
//
// Lock order: Manager.mu, then Shard.mu. Neither is held while a callback runs.
package shard
