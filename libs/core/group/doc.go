// Package group is the pure state machine of one shard of consumer groups:
// events in, effects out. It does no I/O, starts no goroutine and reads no clock,
// so that a simulation can drive it step by step.
//
// The caller's duties, in order:
//
//  1. Make a State with New and give it the topics with Topics before anything
//     else, and again whenever they change.
//  2. Give it Claim when the shard is assigned to this process. Run the Fence
//     effect: append a FENCE under (epoch, attempt). Answer FenceResult.
//  3. Run the Load effect: give every record of the shard's log, from its start to
//     the fencing record, as Replayed, then Loaded.
//  4. From then on give it requests, and run the effects of each Step in order. An
//     Append or Barrier is answered with Committed or Failed; at most one is
//     unanswered at a time, and what comes in meanwhile shares the next one.
//  5. Deliver Reply and Send as they are. Both come only after an Append or
//     Barrier that was begun after their cause has committed, so that a process
//     which no longer owns the shard confirms nothing. The exceptions are refusals
//     that say nothing about the group (loading, too much queued, shard lost).
//  6. Answer a ResolveStart with Start events that together name each of its
//     partitions, found or failed. It is the one effect that may be run before what
//     caused it has committed: it changes nothing.
//  7. Call Step with a Tick at the time of the newest WakeAt.
//  8. On Abandon forget every member's stream of this shard. With Reload a Fence
//     follows, else the State waits for another Claim.
//
// Three epochs order everything. The group epoch is the version of the target: who
// should hold what; it is written after the target's parts. The member epoch is
// the newest one whose Assignment the member has acknowledged. The assignment
// epoch of a partition is the group epoch in which its member got it; it tells one
// tenure of the same partition by the same member from the next.
//
// A partition is in the hands of at most one member. A member gets it only when no
// record names another holder, and a holder ends only by its own word (an
// acknowledgement without the partition, a resume without it, a leave) or by being
// expelled. An acknowledgement gives a partition up only if the member must have
// known of its tenure: it listed that tenure before, or it has acknowledged the
// epoch in which the tenure was revoked. An older acknowledgement that is still on
// its way therefore never ends a newer tenure.
//
// Nobody is given a partition without a committed offset, unless its member wants
// that, nor one whose offset is being reset: first the offset is written. A reset, and
// what a member gets back after one, is in a group epoch above those of all tenures
// before it, so that commits of what was read before are refused.
//
// The key-value pairs of one Append are ordered so that every prefix of the log is
// a state in which these rules hold.
package group
