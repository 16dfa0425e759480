// Package cluster is the controller's mind: what the records of the metadata are,
// what must always hold for them, and which writes follow from a command or from
// the state itself. It is pure: no I/O, no clock, no goroutines, no randomness but
// what is handed in.
//
// The caller's duties, in order:
//
//  1. Keep a [State] equal to what etcd holds, with Set and Delete, each record
//     with its revisions; and what brokers say of their replicas, with SetVouches
//     as they register and NoteReplicas while they run. Where it is known who keeps
//     up with the metadata, have elections prefer them with PreferHearing.
//  2. For each command call its function (CreateTopics, DeleteTopics, AlterTopic,
//     RegisterBroker, ReportReplicas, FenceBroker, ProposeISR, ElectLeaders …). It
//     reads the State, changes nothing, and returns a [Plan] or a [Rejection].
//  3. Write the plan stage by stage: the writes of one stage in transactions that
//     compare each key's expected revision and the caller's leadership, in any
//     order; the next stage only when all of the stage before is known to have
//     taken place. Several stages may go into one transaction.
//  4. Bring the State up to what was written, and call [Reconcile] until its plan
//     is empty: it elects leaders, assigns shards, gives internal topics their
//     replicas, finishes deletions, and cleans up behind a controller that died
//     between two stages. Call it also after news from brokers and every now and
//     then; where nothing has changed it costs nothing.
//  5. Time what [Waiting] lists, and tell Reconcile what is overdue.
//  6. Before [Leave], and where [AdvanceReassignments] asks for it, probe whom
//     LeaveProbes or the answer names, noting the State's revision before each
//     probe is sent. AdvanceReassignments, [LeadersUnreachable] and, if
//     auto.leader.rebalance.enable says so, [PreferredMoves] are called at the
//     caller's pace.
//  7. If anything failed, bring the State up to date first and plan anew: plans
//     are not kept.
//
// Commands are carried out one at a time, each to the end of its last stage: Leave
// relies on nobody else's write coming between its stages.
//
// A State is not safe for concurrent use; Reconcile may run beside readers. Records
// in it are shared with whoever read them and are never written to in place.
package cluster
