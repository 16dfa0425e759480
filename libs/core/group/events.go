package group

import "time"

// Event is something that happened. Req is a number that the caller draws, unique
// among its unanswered requests of the shard; it comes back in exactly one Reply.
type Event interface{ isEvent() }

// Op numbers an Append or Barrier.
type Op uint64

type (
	// Claim says that the shard is assigned to this process under the epoch.
	Claim struct{ Epoch int64 }
	// FenceResult answers a Fence. A fence that failed or is unknown is repeated
	// with the next attempt.
	FenceResult struct{ OK bool }
	// Replayed brings one record of the log while loading, in log order.
	Replayed struct{ KV KV }
	// Loaded ends the load.
	Loaded struct{}
	// LoadFailed ends it without success: the shard is fenced and loaded again.
	LoadFailed struct{}
	// Deposed says that the shard belongs to somebody else, or that this process
	// stops.
	Deposed struct{}
	// Topics brings the present topics, and the ids of those that have a deletion
	// record. Offsets go only by the latter.
	Topics struct {
		View    *TopicView
		Deleted []TopicID
	}
	// Open joins a group or resumes a membership.
	Open struct {
		Req                              uint64
		Group, Member, Instance          string
		Topics                           []string
		Pattern                          string
		Assignor                         string        // empty: whatever the group uses
		SessionTimeout, RebalanceTimeout time.Duration // 0: the defaults
		Attach                           int64         // 0: a new member
		Owned                            []Owned       // what a resuming member holds
		ClientID, ClientHost             string
		// Start says where partitions without a committed offset start.
		Start StartPolicy
		// MaxProcessing is how long a record may wait while nothing of its partition is
		// released, before the member is expelled; 0: for ever.
		MaxProcessing time.Duration
		// Silence is how long ago a member that resumes gave its last sign of life, where
		// another process speaks for it; 0: this is one. So it is in the events below.
		Silence time.Duration
	}
	// Ack says what a member holds, having taken in the assignment of Epoch.
	Ack struct {
		Group, Member string
		Attach, Epoch int64
		Owned         []Owned
		Silence       time.Duration
	}
	// Commit commits offsets for a member.
	Commit struct {
		Req                     uint64
		Group, Member           string
		Attach, Epoch, Sequence int64
		Offsets                 []OffsetCommit
		Silence                 time.Duration
	}
	// AdminCommit commits offsets for a group without members.
	AdminCommit struct {
		Req     uint64
		Group   string
		Offsets []OffsetCommit
	}
	// ResetOffsets sets offsets of a group, with members or without. Partitions that
	// are held are revoked first; where that takes longer than Timeout (0: the default)
	// the holder keeps them.
	ResetOffsets struct {
		Req     uint64
		Group   string
		Offsets []OffsetCommit // each partition once
		Timeout time.Duration
	}
	// Start answers a ResolveStart, in part or as a whole.
	Start struct {
		Job     uint64
		Group   string
		Results []StartResult
	}
	// Ping asks for a sign that the membership stands, and tells how far it has come.
	Ping struct {
		Req           uint64
		Group, Member string
		Attach        int64
		Progress      []Progress // what changed since the last ping, at least
		Silence       time.Duration
	}
	// Revoking is a sign of life: the member hands out no more records of Parts.
	Revoking struct {
		Group, Member string
		Attach        int64
		Parts         []Owned
		Silence       time.Duration
	}
	// Leave ends a membership. A static member only lets go of its partitions; its
	// place is kept until its session timeout.
	Leave struct {
		Req           uint64
		Group, Member string
		Attach        int64
	}
	// Gone says that the member's stream broke. The member is detached until it
	// resumes or its session lapses; this is never a leave.
	Gone struct {
		Group, Member string
		Attach        int64
	}
	// FetchOffsets asks for committed offsets; no Parts: all that exist.
	FetchOffsets struct {
		Req   uint64
		Group string
		Parts []Part
	}
	// Describe asks for everything about a group.
	Describe struct {
		Req   uint64
		Group string
	}
	// Simulate asks who would hold what if members, by their id or instance id, were
	// taken out, and Add members with the subscription of Like (one of these, too;
	// empty: the first member's) came.
	Simulate struct {
		Req    uint64
		Group  string
		Remove []string
		Add    int
		Like   string
	}
	// Delete deletes a group without members.
	Delete struct {
		Req   uint64
		Group string
	}
	// Committed says that an Append or Barrier is durable.
	Committed struct{ Op Op }
	// Failed says that an Append or Barrier is not known to be durable.
	Failed struct {
		Op   Op
		Kind FailKind
	}
	// Tick lets time pass.
	Tick struct{}
)

// OffsetCommit is one offset of a commit. AssignmentEpoch names the tenure; an
// administrator's commit ignores it.
type OffsetCommit struct {
	Part
	NextOffset      int64
	LeaderEpoch     int32
	Metadata        string
	AssignmentEpoch int64
}

// FailKind says what is known about a failed append.
type FailKind uint8

// The kinds of failures.
const (
	// NotDone: nothing of it is in the log nor will be; it is tried again.
	NotDone FailKind = iota + 1
	// Unknown: it may be in the log, or the log refused the fence. The state is
	// dropped and loaded again under the next attempt.
	Unknown
)

func (Claim) isEvent()        {}
func (FenceResult) isEvent()  {}
func (Replayed) isEvent()     {}
func (Loaded) isEvent()       {}
func (LoadFailed) isEvent()   {}
func (Deposed) isEvent()      {}
func (Topics) isEvent()       {}
func (Open) isEvent()         {}
func (Ack) isEvent()          {}
func (Commit) isEvent()       {}
func (AdminCommit) isEvent()  {}
func (ResetOffsets) isEvent() {}
func (Start) isEvent()        {}
func (Ping) isEvent()         {}
func (Revoking) isEvent()     {}
func (Leave) isEvent()        {}
func (Gone) isEvent()         {}
func (FetchOffsets) isEvent() {}
func (Describe) isEvent()     {}
func (Simulate) isEvent()     {}
func (Delete) isEvent()       {}
func (Committed) isEvent()    {}
func (Failed) isEvent()       {}
func (Tick) isEvent()         {}
