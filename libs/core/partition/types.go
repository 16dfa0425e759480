package partition

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
	ReasonNotEnoughReplicasAfterAppend // of an appended batch: its outcome is unknown
	ReasonUnknownReplica               // of a session: no replica of the partition, or its leader
	ReasonSuperseded                   // of a session: a newer one of the same broker took its place
	ReasonPositionInvalid              // of a session: what it told of itself cannot be
)

var reasonNames = [...]string{
	"none", "NOT_LEADER", "LEADER_NOT_AVAILABLE", "STALE_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH",
	"NOT_ENOUGH_REPLICAS", "SHARD_FENCED", "fence not allowed", "TOPIC_DELETED", "DISK_OFFLINE", "DISK_FULL",
	"REPLICA_WITHHELD", "METADATA_REGRESSED", "DEADLINE_EXCEEDED", "LIMIT_EXCEEDED", "OFFSET_OUT_OF_RANGE",
	"OFFSET_NOT_AVAILABLE", "DRAINING", "batch refused", "INTERNAL_BUG",
	"NOT_ENOUGH_REPLICAS_AFTER_APPEND", "unknown replica", "superseded", "invalid position",
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
