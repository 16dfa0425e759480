package partition

import "time"

// Effect is something to do: one of the effect types below. Effects and what they
// point to are valid until the next Step.
type Effect interface{ effect() }

// Effects on the log. Append, AppendCopy, Truncate and Reset exclude each other:
// one is outstanding at most. One Sync and one MoveStart may run beside it.

// Append says to append the batch of Req in the given leader epoch; it will
// begin at Base. Answered with Appended, Duplicate, AppendRefused or IOFailed.
type Append struct {
	Op    int64
	Req   int64
	Epoch int32
	Base  int64
}

// AppendCopy says to append, as they are, the batches that the Batch of Ref
// brought, and to free their bytes. Answered with Appended, AppendRefused or
// IOFailed.
type AppendCopy struct {
	Op        int64
	Ref       int64
	Base, End int64
}

// DropRef says to free the bytes of a Batch without using them.
type DropRef struct{ Ref int64 }

// Sync says to make durable what was appended. Answered with Synced or IOFailed.
type Sync struct{ Op int64 }

// Truncate says to cut the log, durably, so that it ends at To. Where the recovery
// point or the checkpoint of the high watermark lies above To, it is lowered to To
// first, durably. Answered with Truncated or IOFailed.
type Truncate struct {
	Op int64
	To int64
	// Unclean says that records below the high watermark go, because an unclean
	// election chose a leader without them. To be logged and counted.
	Unclean bool
	From    int64 // the end so far
	HW      int64 // the high watermark so far
}

// Reset says to let the log begin anew, durably and empty, at To; recovery point
// and checkpoint of the high watermark are set to To first, durably. Answered with
// Truncated or IOFailed.
type Reset struct {
	Op int64
	To int64
	// Keep says that what is there is a copy which is not intact: it is set aside,
	// not deleted, until Replaced.
	Keep bool
}

// Replaced says that the log is in sync again: what a Reset kept may be deleted.
type Replaced struct{}

// ClearVerdict says that the verdict on the replica is settled and may be cleared,
// durably. Answered with VerdictCleared: until then the replica does not join the
// in-sync set, of which it would be no good member after a restart.
type ClearVerdict struct{}

// MoveStart says to let the log begin at To, durably (commitlog's log start).
// Answered with StartMoved or IOFailed.
type MoveStart struct {
	Op int64
	To int64
}

// CheckpointHW says to note the high watermark with the next checkpoint.
type CheckpointHW struct{ HW int64 }

// Effects towards clients.

// Reply ends a Produce or StartWanted, or refuses a Read.
type Reply struct {
	Req     int64
	Outcome Outcome
	Reason  Reason // unless OK
	Base    int64  // first offset of an OK produce, log start of an OK StartWanted, else -1
	Epoch   int32  // leader epoch of an OK produce, else -1
	Acks    Acks   // of the produce
	// Records of the produce.
	Records int32
}

// Serve says that Req may read from From up to, not including, UpTo.
type Serve struct {
	Req        int64
	From, UpTo int64
}

// Wait says that Req stands at the visible end; Visible brings more.
type Wait struct{ Req int64 }

// Visible says that the visible end moved.
type Visible struct{ HW int64 }

// Effects towards followers. Sess is the one of their Hello.

// SendEpochEnd answers a Hello. The loop adds how far its log has removed
// tombstones.
type SendEpochEnd struct {
	Sess        int64
	LeaderEpoch int32
	LastEpoch   int32
	End         int64
	Agreed      bool
	LogStart    int64
	HW          int64
}

// SendBatches says to stream, from now on and within the window, everything in the
// log from From on as it grows, beyond the high watermark too, until CloseSess or
// Gone. It comes once in a session, after the agreeing SendEpochEnd.
type SendBatches struct {
	Sess int64
	From int64
}

// SendHW says to tell a follower the high watermark and the log start, with the
// next batches or by themselves. Only the newest of a session counts.
type SendHW struct {
	Sess  int64
	HW    int64
	Start int64
}

// CloseSess ends, or refuses, a session of a follower.
type CloseSess struct {
	Sess   int64
	Reason Reason
}

// Propose says to propose an in-sync set to the controller, once; ProposalHint
// tells that the call ended, and the record that comes back, if any, is told as a
// Record first. The same ID comes again until a record resolves it.
type Propose struct {
	ID          int64
	LeaderEpoch int32
	PartEpoch   int64
	ISR         []Replica // members that are added name their incarnation, others 0
}

// Effects towards the leader. Sess is chosen by the core, rising.

// OpenLeader says to open a session with the leader, or, where Sess is open, to
// say Hello again in it after a truncation. Answered with EpochEnd or LeaderGone.
type OpenLeader struct {
	Sess      int64
	Leader    Replica
	Epoch     int32
	LastEpoch int32 // leader epoch of the last record, -1: none
	End       int64
}

// CloseLeader ends a session with the leader.
type CloseLeader struct{ Sess int64 }

// SendPosition tells the leader where this replica stands. Only the newest counts.
type SendPosition struct {
	Sess        int64
	LeaderEpoch int32
	PartEpoch   int64
	LastEpoch   int32
	End         int64
	Durable     int64
	Start       int64
}

// Effects on the replica.

// Resign says that this replica stopped leading, or leads in another epoch.
type Resign struct{ Reason Reason }

// Withhold says that the replica serves nothing: for ReasonReplicaWithheld until
// it has been fetched again or is trusted again, else for the rest of the
// process's life.
type Withhold struct{ Reason Reason }

// WakeAt asks for a Tick at that time or soon after.
type WakeAt struct{ At time.Duration }

func (*Append) effect()       {}
func (*AppendCopy) effect()   {}
func (DropRef) effect()       {}
func (*Sync) effect()         {}
func (*Truncate) effect()     {}
func (*Reset) effect()        {}
func (Replaced) effect()      {}
func (ClearVerdict) effect()  {}
func (*MoveStart) effect()    {}
func (*CheckpointHW) effect() {}
func (*Reply) effect()        {}
func (*Serve) effect()        {}
func (Wait) effect()          {}
func (*Visible) effect()      {}
func (*SendEpochEnd) effect() {}
func (*SendBatches) effect()  {}
func (*SendHW) effect()       {}
func (CloseSess) effect()     {}
func (*Propose) effect()      {}
func (*OpenLeader) effect()   {}
func (CloseLeader) effect()   {}
func (*SendPosition) effect() {}
func (Resign) effect()        {}
func (Withhold) effect()      {}
func (WakeAt) effect()        {}
