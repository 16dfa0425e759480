// Package handler serves GroupService: it translates frames and requests into
// events of the group core, finds the shard of each group, and translates what
// comes back.
//
// The caller's duties, in order: New with a shard.Manager; register it; Drain it
// before the manager stops, so that streams end as DRAINING and not as a lost
// shard; Wait once the gRPC server has stopped.
//
// # What a client of Join may rely on
//
// MemberOpen is answered by MemberOpened and then an Assignment, or by
// MemberFenced. Between its MemberOpen and the MemberOpened a client ignores
// assignments of that member: they belong to the stream before. MemberFenced ends
// the member on this stream; its error's action says how to go on:
//
//   - RETRY (COORDINATOR_LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR with
//     the owner's address): the membership stands. Open again, with the attach
//     number and what is held, at the address in the hint or here.
//   - REJOIN: the membership is over. Drop everything, draw a new member id, open
//     with attach 0.
//   - STOP: another process or stream has the membership.
//   - FIX: the request is wrong.
//
// The end of the stream detaches its members: none leaves by it. A MemberDetach does
// that to one of them while the stream goes on. Whoever speaks for many clients sends
// it when one of these has gone, also after a MemberFenced with STOP: a newcomer under
// the same instance id waits for it, or for the session's end.
//
// An AssignmentAck may be sent as often as what is held changes. It has no answer.
// A partition named by it is kept, one that is missing has been given up; an
// acknowledgement that cannot have known of a partition's tenure does not end it.
//
// A partition that the group has no committed offset of is assigned once the
// coordinator has found where it starts, by the member's reset policy, and has
// committed that. Partitions that were created after somebody had subscribed start at
// 0, whatever the policy says. A start_offset of -1 comes only under the policy none,
// where it is an error of that partition, and with leave_starts, where the member
// finds its start.
//
// # What a client of ResetOffsets may rely on
//
// Each row of the answer says what became of one partition. A row without an error is
// committed, and whoever is assigned the partition after it starts there; commits of
// what was read before are refused. An answer that is unknown, or lost, may have reset
// any of them; asking again is safe.
package handler
