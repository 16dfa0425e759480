package partition

import "time"

// Event is something that happened: one of the event types below. Step keeps
// nothing of an event but what it copies, so that the caller may use it again.
//
// Now is always the time at which the event is told, on the clock of Deadline.
type Event interface{ event() }

// Settings are those of the broker. Until they come the defaults hold.
type Settings struct {
	LagTimeMax time.Duration // replica.lag.time.max.ms; 0: DefaultLagTimeMax
	LeaseTTL   time.Duration // of the broker's registration; 0: DefaultLeaseTTL
}

// Defaults of Settings.
const (
	DefaultLagTimeMax = 10 * time.Second
	DefaultLeaseTTL   = 5 * time.Second
)

// Record is the partition record as the metadata stream, or the answer to a
// proposal, has it. The slices are the caller's and are not kept. Records older
// than the one applied are ignored.
type Record struct {
	Generation  int64
	Revision    int64
	PartEpoch   int64
	LeaderEpoch int32
	Leader      Replica // zero: none
	Replicas    []int32
	ISR         []int32
	ELR         []int32
	Barred      []int32 // members of ISR or ELR that may not lead
	MinISR      int32
	// Unclean says that the topic allows unclean elections
	// (unclean.leader.election.enable).
	Unclean bool
	// UncleanEpoch is the newest leader epoch whose leader was elected uncleanly;
	// 0: none. What was committed before it may be gone.
	UncleanEpoch int32
	// OnRecord says that the broker's record in the same image names this very
	// incarnation: it has vouched for its replicas.
	OnRecord   bool
	Shard      bool  // the partition belongs to an internal topic
	ShardEpoch int64 // epoch of the shard's owner, 0: none yet
	Now        time.Duration
}

// EpochStart says that the batches of a leader epoch begin at an offset.
type EpochStart struct {
	Epoch int32
	Start int64
}

// Opened says how the log was found. It comes once.
type Opened struct {
	MaxEpochSeen int32 // newest leader epoch in the log, -1: none
	// Epochs is the log's epoch cache, both columns rising. It is copied.
	Epochs  []EpochStart
	Start   int64 // first offset
	End     int64 // offset after the last record
	Durable int64 // offset after the last durable record
	HW      int64 // last checkpoint of the high watermark, also where there is no log
	Verdict Verdict
	// Absent says that there is no log to append to until a Reset has made one:
	// it is missing, or too damaged to be opened.
	Absent bool
	Fence  Fence // highest fence found in the log, of a shard
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
	// AllowFollower reads this replica up to its own high watermark also where it
	// does not lead.
	AllowFollower bool
}

// StartWanted asks the leader to let the log begin at Offset (DeleteRecords). It
// gets exactly one Reply: OK, with the log start as Base, once every in-sync
// replica has done it durably.
type StartWanted struct {
	Req      int64
	Offset   int64 // at most the high watermark; -1: the high watermark
	Deadline time.Duration
	Now      time.Duration
}

// Appended says that what an Append or AppendCopy named is in the log, not
// necessarily durable.
type Appended struct {
	Op        int64
	Base, End int64 // offsets it took: End is one past the last
	Now       time.Duration

	// Of an AppendCopy only. Base is that of the AppendCopy. An End below that of
	// the AppendCopy says that the log refused the rest of the run.
	LastEpoch int32        // leader epoch of the last batch taken
	Epochs    []EpochStart // epochs that are new in the log's epoch cache; copied
	Fence     Fence        // highest fence in the log, of a shard
}

// Duplicate answers an Append: the log remembers the batch as one of the last of
// its producer, at [Base,End), and took nothing. It waits like its original.
type Duplicate struct {
	Op        int64
	Base, End int64
}

// AppendRefused says that the log took nothing of an Append or AppendCopy and is
// as it was, for instance because a setting changed since the batch was checked.
type AppendRefused struct {
	Op   int64
	Full bool // there is no room for it at the moment
	Now  time.Duration
}

// Synced says that a Sync ended well; everything below End is durable.
type Synced struct {
	Op  int64
	End int64
	Now time.Duration
}

// Truncated says that a Truncate or Reset is done, durably.
type Truncated struct {
	Op  int64
	End int64 // where the log ends now
	// Epochs is the log's whole epoch cache as it is now. It is copied.
	Epochs []EpochStart
	Now    time.Duration
}

// FailureKind says how an I/O failed.
type FailureKind int8

// The kinds of failures.
const (
	FailedIO   FailureKind = iota // the disk refused a write or an fsync
	FailedFull                    // the disk is full, and the log cannot go on from where it stands
	FailedBug                     // the log refused what the core had promised it
)

// IOFailed says that an operation failed. Nothing is acknowledged after it.
type IOFailed struct {
	Op   int64
	Kind FailureKind
}

// StartMoved says that the log begins later now, durably: what lay below was
// retained for as long as it should be, or deleted.
type StartMoved struct {
	Op    int64 // of the MoveStart; 0: nobody asked
	Start int64
	Now   time.Duration
}

// VerdictCleared says that what ClearVerdict asked for is done, durably.
type VerdictCleared struct{}

// Flush asks for a Sync of what is not durable yet, for a recovery point.
type Flush struct{}

// Tick says what time it is.
type Tick struct{ Now time.Duration }

// LeaseRenewed says that the lease of the broker's registration was renewed. Now
// is when the request was sent, so that it is never later than etcd's own view. A
// lease that was lost, and granted anew, counts once the metadata has reached the
// revision of the new registration: others may have been elected meanwhile.
type LeaseRenewed struct{ Now time.Duration }

// ProposalHint says that the call that carried a proposal ended, however: answer,
// refusal, error or timeout. It settles nothing; the record does. If the record
// has not come, the same proposal is sent again after a while.
type ProposalHint struct {
	ID  int64
	Now time.Duration
}

// Deleted says that the topic is being deleted or is gone.
type Deleted struct{}

// DiskOffline says that the disk failed under another replica.
type DiskOffline struct{}

// Stop says that the process is stopping: nothing new is taken, what is in
// flight goes on.
type Stop struct{}

// Events of the leader: what followers said.

// Hello opens a session of a follower, or repeats itself after a truncation. Sess
// is chosen by the loop: the same for the repetitions, and above all earlier ones
// for a new session.
type Hello struct {
	Sess        int64
	From        Replica // of the stream, not of the message
	LeaderEpoch int32   // in which it means to follow
	LastEpoch   int32   // leader epoch of its last record, -1: none
	End         int64   // offset after its last record
	Now         time.Duration
}

// Position tells where a follower stands in an agreed session.
type Position struct {
	Sess        int64
	LeaderEpoch int32
	PartEpoch   int64 // of the newest record that the follower has applied
	LastEpoch   int32 // leader epoch of its last record, -1: none
	End         int64
	Durable     int64
	Start       int64 // its log start, durable
	Now         time.Duration
}

// Gone says that a session of a follower ended: its stream broke, it said so, or
// what it needs is not in the log any more.
type Gone struct {
	Sess int64
	Now  time.Duration
}

// Events of a follower: what the leader said. Those of another session than the
// one opened last are ignored.

// EpochEnd answers OpenLeader.
type EpochEnd struct {
	Sess            int64
	LeaderEpoch     int32
	LastEpoch       int32 // greatest epoch of the leader's log not above ours, -1: none
	End             int64 // the leader's end for it
	Agreed          bool
	LogStart        int64 // the leader's
	HW              int64 // the leader's
	TombstonesBelow int64 // the leader has removed tombstones below it; 0: none
	Now             time.Duration
}

// Batch brings a run of whole batches. Runs abut: Base is the End of the run
// before it in the session, or the End of the agreed Hello, also where the first
// batch of the run begins above it because compaction at the leader left a gap.
type Batch struct {
	Sess        int64
	Ref         int64 // the loop's handle of the bytes, above 0
	LeaderEpoch int32
	Base, End   int64
	HW          int64 // the leader's
	Start       int64 // the leader's log start
	Now         time.Duration
}

// Watermark brings the leader's marks without records.
type Watermark struct {
	Sess        int64
	LeaderEpoch int32
	HW          int64
	Start       int64
	Now         time.Duration
}

// LeaderGone says that the session with the leader ended, or could not be opened.
// A new one is opened after a while.
type LeaderGone struct {
	Sess int64
	Now  time.Duration
}

func (Settings) event()       {}
func (*Record) event()        {}
func (*Opened) event()        {}
func (Flushing) event()       {}
func (*Produce) event()       {}
func (*Read) event()          {}
func (*StartWanted) event()   {}
func (*Appended) event()      {}
func (*Duplicate) event()     {}
func (AppendRefused) event()  {}
func (*Synced) event()        {}
func (*Truncated) event()     {}
func (IOFailed) event()       {}
func (StartMoved) event()     {}
func (VerdictCleared) event() {}
func (Flush) event()          {}
func (Tick) event()           {}
func (LeaseRenewed) event()   {}
func (ProposalHint) event()   {}
func (Deleted) event()        {}
func (DiskOffline) event()    {}
func (Stop) event()           {}
func (*Hello) event()         {}
func (*Position) event()      {}
func (Gone) event()           {}
func (*EpochEnd) event()      {}
func (*Batch) event()         {}
func (*Watermark) event()     {}
func (LeaderGone) event()     {}
