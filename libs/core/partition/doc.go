// Package partition is the pure state machine of one replica of a partition:
// events in, effects out; no I/O, no clock, no goroutines. The replica's loop
// does what the effects say and reports back with events, and a simulation can
// do the same.
//
// The caller's duties, in order:
//
//  1. Make a State with New for the broker's own (id, incarnation). Feed it Settings
//     and Flushing, then Opened once the log is open (or found to be missing or too
//     damaged), and Record for each partition record of the metadata stream that names
//     this broker among the replicas, also where only what stands beside the record
//     changed (Unclean, OnRecord). A record that answers a proposal is fed the same
//     way.
//  2. Call Step from one goroutine at a time. Carry the effects out in the order
//     given; the slice and what it holds are valid until the next Step. Step keeps
//     nothing of an event.
//  3. Answer every Append, AppendCopy, Truncate, Reset, Sync, MoveStart and
//     ClearVerdict with the event that its comment names, with the Op it named, also when leadership was
//     lost meanwhile. Of Append, AppendCopy, Truncate and Reset one is outstanding at
//     most; one Sync and one MoveStart may run beside it. An AppendCopy takes whole
//     batches in order; where the log refuses one, Appended tells how far it got, or
//     AppendRefused that it got nowhere.
//  4. Before an Append ask the log whether the batch is a duplicate, with nothing
//     appended in between, and answer Duplicate if it is.
//  5. Give each Produce, StartWanted and Read a Req of its own. A Produce or
//     StartWanted gets exactly one Reply. A Read gets exactly one of Serve, Wait and
//     Reply within its Step.
//  6. Step a Tick no later than the last WakeAt asked for, so that no waiter passes
//     its deadline, and no follower lags unseen. Give every event the time of the
//     telling: commits of a leader that is alone on a topic with unclean elections
//     depend on it. Feed LeaseRenewed where NeedsLease.
//  7. Note the high watermark of CheckpointHW; it need not be durable at once.
//  8. After Resign look again at everything that reads or waits here.
//
// Towards followers, the loop of a leader gives each session a number above all
// earlier ones (Hello), feeds what the follower says in it, in the order of the
// stream, and Gone once, when the stream broke or the follower stopped. After
// SendBatches it streams the log from there on as it grows, within the window, runs
// abutting; a session whose place is not in the log any more is Gone, and the
// follower is told. After CloseSess or Gone nothing of the session is sent, and what
// still arrives is fed or dropped, as is easier.
//
// Towards the leader, the loop of a follower keeps one session per OpenLeader.Sess;
// the newest one counts. OpenLeader under the number of an open session repeats the
// Hello in it. LeaderGone is fed once when the session ended or could not be opened;
// after it, and after CloseLeader, nothing of that session is fed (it would be
// ignored). Of several SendPosition, as of SendHW, only the newest need be sent. The
// bytes of a Batch are the loop's until AppendCopy or DropRef names them: each Ref is
// named exactly once.
//
// Propose is sent once; its record, if one comes back, is fed, and then ProposalHint,
// whatever became of the call. The core asks again.
//
// Times are durations on one monotonic clock of the caller's choice, above 0.
//
// What rests on what: a follower counts only in a session in which it has told a
// position after both sides agreed on the common prefix of their logs under the
// present leader epoch; the high watermark is the smallest end that counts over the
// in-sync set of the record applied last and the unresolved proposal, and moves only
// while that record's set is not below min.insync.replicas; a proposal is resolved by
// a record with a higher partition epoch and by nothing else; a log is truncated to
// what two logs have in common by leader epochs, and below its high watermark only
// after an unclean election. A replica whose copy was found not to be intact neither
// leads nor is read until the metadata trusts it or it has been fetched again.
//
// After every Step the state is checked against the assertions of the design
// (see check.go). A breach never becomes an acknowledgement: the replica is
// withheld, everybody waiting is told that the outcome is unknown, and Violation
// returns what was breached.
package partition
