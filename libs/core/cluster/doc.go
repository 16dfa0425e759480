// Package cluster is the controller's mind: what the records of the metadata are,
// what must always hold for them, and which writes follow from a command or from
// the state itself. It is pure: no I/O, no clock, no goroutines, no randomness but
// what is handed in.
//
// The caller's duties, in order:
//
//  1. Keep a [State] equal to what etcd holds, with Set and Delete, each record
//     with its revisions.
//  2. For each command call its function (CreateTopics, DeleteTopics, AlterTopic,
//     RegisterBroker, FenceBroker …). It reads the State, changes nothing, and
//     returns a [Plan] or a [Rejection].
//  3. Write the plan stage by stage: the writes of one stage in transactions that
//     compare each key's expected revision and the caller's leadership, in any
//     order; the next stage only when all of the stage before is known to have
//     taken place. Several stages may go into one transaction.
//  4. Bring the State up to what was written, and call [Reconcile] until its plan
//     is empty: it elects leaders, assigns shards, finishes deletions, and cleans
//     up behind a controller that died between two stages.
//  5. If anything failed, bring the State up to date first and plan anew: plans
//     are not kept.
//
// A State is not safe for concurrent use. Records in it are shared with whoever
// read them and are never written to in place.
package cluster
