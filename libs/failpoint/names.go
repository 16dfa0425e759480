package failpoint

// The places. Each is named after the package that has it and the step that it
// comes before, or after where it says so.
const (
	LogAppend     = "commitlog.append"       // a batch is admitted and about to be written
	LogWritten    = "commitlog.written"      // after the write, before the index and the readers
	LogIndex      = "commitlog.index"        // a point goes into the index
	LogFsync      = "commitlog.fsync"        // a log is synced
	LogSynced     = "commitlog.synced"       // after the sync, before anybody is told
	LogRoll       = "commitlog.roll"         // a new segment begins
	LogTruncate   = "commitlog.truncate"     // a log is cut
	Checkpoint    = "broker.checkpoint"      // recovery points or high watermarks are written
	DiskSpace     = "broker.disk.space"      // an error: the disk has no room
	FollowAppend  = "broker.follower.append" // a follower stores what its leader sent
	ISRPropose    = "broker.isr.propose"     // a leader proposes another in-sync set
	RecordApply   = "broker.record.apply"    // a replica takes a partition's new record
	Acknowledge   = "broker.acknowledge"     // a producer is answered
	TxnBefore     = "controller.txn.before"  // an etcd transaction is sent
	TxnAfter      = "controller.txn.after"   // it was answered; an error: the answer is lost
	GroupAppend   = "coordinator.append"     // a shard's changes are written: commits, members, targets
	GroupAppended = "coordinator.appended"   // after that; an error: the outcome is unknown
	GroupAssign   = "coordinator.assign"     // an assignment is told to a member
)

// Names lists all places.
func Names() []string {
	return []string{
		LogAppend, LogWritten, LogIndex, LogFsync, LogSynced, LogRoll, LogTruncate, Checkpoint, DiskSpace,
		FollowAppend, ISRPropose, RecordApply, Acknowledge, TxnBefore, TxnAfter, GroupAppend, GroupAppended, GroupAssign,
	}
}
