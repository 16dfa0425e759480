package partition

import "time"

// Replica names one life of one broker.
type Replica struct {
	Broker      int32
	Incarnation uint64
}

// Acks says whose storing the answer to a Produce waits for.
type Acks int8

// The acks.
const (
	AcksNone   Acks = iota // no answer but failures, which are counted
	AcksLeader             // the leader's durable append
	AcksAll                // the high watermark
)

// Verdict says how whole a replica was found when its log was opened.
type Verdict int8

// The verdicts.
const (
	Intact    Verdict = iota // whole, or a torn tail was cut above the marks
	Cut                      // cut below the recovery point or the high watermark
	UncleanOS                // durability=os, and the host went down uncleanly
	Missing                  // should be there and is not
	Corrupt                  // damaged
)

// Fence is a coordinator's permission to append to a shard.
type Fence struct {
	ShardEpoch int64
	Attempt    int32
}

// less orders fences: by shard epoch, then attempt.
func (f Fence) less(o Fence) bool {
	return f.ShardEpoch < o.ShardEpoch || f.ShardEpoch == o.ShardEpoch && f.Attempt < o.Attempt
}

// Reason says why something was refused or its outcome is not known.
type Reason int8

// The reasons. Their names are those of the error table.
const (
	ReasonNone Reason = iota
	ReasonNotLeader
	ReasonLeaderNotAvailable
	ReasonStaleLeaderEpoch
	ReasonUnknownLeaderEpoch
	ReasonNotEnoughReplicas
	ReasonShardFenced
	ReasonFenceNotAllowed
	ReasonTopicDeleted
	ReasonDiskOffline
	ReasonDiskFull
	ReasonReplicaWithheld
	ReasonMetadataRegressed
	ReasonDeadline
	ReasonLimit
	ReasonOffsetOutOfRange
	ReasonOffsetNotAvailable
	ReasonDraining
	ReasonBatchRefused
	ReasonInternalBug
)

var reasonNames = [...]string{
	"none", "NOT_LEADER", "LEADER_NOT_AVAILABLE", "STALE_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH",
	"NOT_ENOUGH_REPLICAS", "SHARD_FENCED", "fence not allowed", "TOPIC_DELETED", "DISK_OFFLINE", "DISK_FULL",
	"REPLICA_WITHHELD", "METADATA_REGRESSED", "DEADLINE_EXCEEDED", "LIMIT_EXCEEDED", "OFFSET_OUT_OF_RANGE",
	"OFFSET_NOT_AVAILABLE", "DRAINING", "batch refused", "INTERNAL_BUG",
}

func (r Reason) String() string {
	if r < 0 || int(r) >= len(reasonNames) {
		return "unknown reason"
	}
	return reasonNames[r]
}

// Outcome says what became of a Produce or Read.
type Outcome int8

// The outcomes.
const (
	OK       Outcome = iota // done
	Rejected                // not done, and it will not be
	Unknown                 // it may be in the log, now or after a crash
)

// Event is something that happened: one of the event types below.
type Event interface{ event() }

// Record is the partition record as the metadata stream has it. The slices are
// the caller's and are not kept. Records older than the one applied are ignored.
type Record struct {
	Generation  int64
	Revision    int64
	PartEpoch   int64
	LeaderEpoch int32
	Leader      Replica // zero: none
	Replicas    []int32
	ISR         []int32
	ELR         []int32
	MinISR      int32
	Shard       bool  // the partition belongs to an internal topic
	ShardEpoch  int64 // epoch of the shard's owner, 0: none yet
}

// Opened says how the log was found. It comes once.
type Opened struct {
	MaxEpochSeen int32 // newest leader epoch in the log, -1: none
	Start        int64 // first offset
	End          int64 // offset after the last record
	Durable      int64 // offset after the last durable record
	HW           int64 // last checkpoint of the high watermark
	Verdict      Verdict
	Fence        Fence // highest fence found in the log, of a shard
}

// Flushing says how appends become durable (durability, flush.messages,
// flush.ms). Without it each append is synced before it counts.
type Flushing struct {
	OS       bool          // an append counts at once; syncs come later
	Messages int64         // sync when so many records are not synced; 0: no limit
	Interval time.Duration // sync when a record has not been synced for so long; 0: no limit
}

// Produce asks to append one batch.
type Produce struct {
	Req         int64
	LeaderEpoch int32 // the client's belief, -1: none
	Acks        Acks
	Deadline    time.Duration
	Now         time.Duration
	Records     int32  // offsets that the batch takes, above 0
	Fence       *Fence // of a coordinator; nil: none
}

// ReadKind says what a Read is for.
type ReadKind int8

// The kinds of reads.
const (
	ReadFetch    ReadKind = iota // records from Offset on
	ReadEarliest                 // the log start
	ReadLatest                   // the visible end
)

// Read asks what may be read. It never waits inside the core.
type Read struct {
	Req         int64
	Kind        ReadKind
	Offset      int64
	ClientEpoch int32 // highest leader epoch the client has seen, -1: none
	ClientSeen  int64 // greatest visible end it has seen, -1: none
}

// Appended says that an Append is in the log, not necessarily durable.
type Appended struct {
	Op        int64
	Base, End int64 // offsets it took: End is one past the last
	Now       time.Duration
}

// Synced says that a Sync ended well; everything below End is durable.
type Synced struct {
	Op  int64
	End int64
}

// FailureKind says how an I/O failed.
type FailureKind int8

// The kinds of failures.
const (
	FailedIO   FailureKind = iota // the disk refused a write or an fsync
	FailedFull                    // the disk is full, and the log cannot go on from where it stands
	FailedBug                     // the log refused what the core had promised it
)

// IOFailed says that an Append or Sync failed. Nothing is acknowledged after it.
type IOFailed struct {
	Op   int64
	Kind FailureKind
}

// AppendRefused says that the log took nothing of an Append and is as it was, for
// instance because a setting changed since the batch was checked.
type AppendRefused struct {
	Op   int64
	Full bool // there is no room for it at the moment
}

// StartMoved says that the log begins later now: what lay below was retained for
// as long as it should be, or deleted.
type StartMoved struct{ Start int64 }

// Flush asks for a Sync of what is not durable yet, for a recovery point.
type Flush struct{}

// Tick says what time it is.
type Tick struct{ Now time.Duration }

// Deleted says that the topic is being deleted or is gone.
type Deleted struct{}

// DiskOffline says that the disk failed under another replica.
type DiskOffline struct{}

// Stop says that the process is stopping: nothing new is taken, what is in
// flight goes on.
type Stop struct{}

func (*Record) event()       {}
func (*Opened) event()       {}
func (Flushing) event()      {}
func (*Produce) event()      {}
func (*Read) event()         {}
func (*Appended) event()     {}
func (*Synced) event()       {}
func (IOFailed) event()      {}
func (AppendRefused) event() {}
func (StartMoved) event()    {}
func (Flush) event()         {}
func (Tick) event()          {}
func (Deleted) event()       {}
func (DiskOffline) event()   {}
func (Stop) event()          {}

// Effect is something to do: one of the effect types below.
type Effect interface{ effect() }

// Append says to append the batch of Req in the given leader epoch; it will
// begin at Base.
type Append struct {
	Op    int64
	Req   int64
	Epoch int32
	Base  int64
}

// Sync says to make durable what was appended.
type Sync struct{ Op int64 }

// Reply ends a Produce, or refuses a Read.
type Reply struct {
	Req     int64
	Outcome Outcome
	Reason  Reason // unless OK
	Base    int64  // first offset of an OK produce, else -1
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

// CheckpointHW says to note the high watermark with the next checkpoint.
type CheckpointHW struct{ HW int64 }

// Resign says that this replica stopped leading, or leads in another epoch.
type Resign struct{ Reason Reason }

// Withhold says that the replica serves nothing any more in this process's life.
type Withhold struct{ Reason Reason }

// WakeAt asks for a Tick at that time or soon after.
type WakeAt struct{ At time.Duration }

func (*Append) effect()      {}
func (*Sync) effect()        {}
func (*Reply) effect()       {}
func (*Serve) effect()       {}
func (Wait) effect()         {}
func (Visible) effect()      {}
func (CheckpointHW) effect() {}
func (Resign) effect()       {}
func (Withhold) effect()     {}
func (WakeAt) effect()       {}
