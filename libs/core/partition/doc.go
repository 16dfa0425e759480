// Package partition is the pure state machine of one replica of a partition:
// events in, effects out; no I/O, no clock, no goroutines. The replica's loop
// does what the effects say and reports back with events, and a simulation can
// do the same.
//
// The caller's duties, in order:
//
//  1. Make a State with New for the broker's own (id, incarnation), and feed it
//     Opened once the log is open, and Record for each partition record of the
//     metadata stream that names this broker among the replicas.
//  2. Call Step from one goroutine at a time. Carry the effects out in the order
//     given; the slice and what it holds are valid until the next Step.
//  3. Answer every Append, AppendCopy, Truncate, Reset, Sync and MoveStart with the event
//     that its comment names, with the Op it named, also when leadership was lost
//     meanwhile. Of Append, AppendCopy, Truncate and Reset one is outstanding at
//     most; one Sync and one MoveStart may run beside it.
//  4. Give each Produce and Read a Req of its own. A Produce gets exactly one
//     Reply. A Read gets exactly one of Serve, Wait and Reply within its Step.
//  5. Step a Tick no later than the last WakeAt asked for, so that no waiter
//     passes its deadline.
//  6. Note the high watermark of CheckpointHW; it need not be durable at once.
//  7. After Resign look again at everything that reads or waits here.
//
// Times are durations on one monotonic clock of the caller's choice.
//
// What is here serves a replica set of one: the high watermark is computed over
// the committed in-sync set, whose other members' positions are unknown until
// sessions exist, so that with more than one member it stands still instead of
// running ahead.
//
// After every Step the state is checked against the assertions of the design
// (see check.go). A breach never becomes an acknowledgement: the replica is
// withheld, everybody waiting is told that the outcome is unknown, and Violation
// returns what was breached.
package partition
