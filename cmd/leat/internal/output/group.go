package output

// Member is a member of a group. InstanceID is null for a dynamic member; times that
// are unknown, or that there are none of, are null.
type Member struct {
	MemberID           string   `json:"member_id"`
	InstanceID         *string  `json:"instance_id"`
	ClientID           string   `json:"client_id"`
	ClientHost         string   `json:"client_host"`
	MemberEpoch        int64    `json:"member_epoch"`
	Partitions         int32    `json:"partitions"`
	Topics             []string `json:"topics"`
	TopicPattern       *string  `json:"topic_pattern"`
	SessionTimeoutMs   *int64   `json:"session_timeout_ms"`
	RebalanceTimeoutMs *int64   `json:"rebalance_timeout_ms"`
	MaxProcessingMs    *int64   `json:"max_processing_ms"`
	Attached           bool     `json:"attached"`
	LastSignMs         *int64   `json:"last_sign_ms"`
	Stuck              bool     `json:"stuck"`
	ReplacedBy         *string  `json:"replaced_by"`
}

// GroupPartition is how far a group has come in a partition. Committed is -1
// without a commit; log_start, end, lag, delivered and processed are -1 where unknown;
// member is null where nobody holds it, target_member where nobody should; rates and
// times are null where unknown. With lag_at_least, lag_ms is a lower bound.
type GroupPartition struct {
	Topic               string   `json:"topic"`
	Partition           int32    `json:"partition"`
	Committed           int64    `json:"committed"`
	End                 int64    `json:"end"`
	Lag                 int64    `json:"lag"`
	Member              *string  `json:"member"`
	Metadata            string   `json:"metadata"`
	TopicID             string   `json:"topic_id"`
	CommittedAt         *int64   `json:"committed_at"`
	LogStart            int64    `json:"log_start"`
	LagMs               *int64   `json:"lag_ms"`
	LagAtLeast          bool     `json:"lag_at_least"`
	RecordsPerSecond    *float64 `json:"records_per_second"`
	AppendedPerSecond   *float64 `json:"appended_per_second"`
	CatchUpMs           *int64   `json:"catch_up_ms"`
	HeldBackBy          string   `json:"held_back_by"`
	HeldBackDetail      string   `json:"held_back_detail"`
	Delivered           int64    `json:"delivered"`
	Processed           int64    `json:"processed"`
	OldestUnprocessedMs *int64   `json:"oldest_unprocessed_ms"`
	Stuck               bool     `json:"stuck"`
	Revoking            bool     `json:"revoking"`
	RevokingRemainingMs *int64   `json:"revoking_remaining_ms"`
	TargetMember        *string  `json:"target_member"`
	UnownedMs           *int64   `json:"unowned_ms"`
}

// GroupDescription is what group describe prints. TotalLag counts the partitions
// whose lag is known; catch_up_ms is null where some partition's is unknown, or never.
type GroupDescription struct {
	Group         string           `json:"group"`
	State         string           `json:"state"`
	Epoch         int64            `json:"epoch"`
	Assignor      string           `json:"assignor"`
	Members       []Member         `json:"members"`
	Partitions    []GroupPartition `json:"partitions"`
	TotalLag      int64            `json:"total_lag"`
	CatchUpMs     *int64           `json:"catch_up_ms"`
	LastRebalance *Rebalance       `json:"last_rebalance"`
}

// Move is a partition that goes from one member to another, null where there is none.
type Move struct {
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	From      *string `json:"from"`
	To        *string `json:"to"`
}

// Rebalance is one change of who should hold what. FinishedAt is null while it goes
// on, or where another one began first. Moves may be fewer than moved: as many as are
// kept.
type Rebalance struct {
	Epoch            int64  `json:"epoch"`
	Cause            string `json:"cause"`
	StartedAt        *int64 `json:"started_at"`
	FinishedAt       *int64 `json:"finished_at"`
	Moved            int32  `json:"moved"`
	Moves            []Move `json:"moves"`
	LongestUnownedMs *int64 `json:"longest_unowned_ms"`
	TotalUnownedMs   *int64 `json:"total_unowned_ms"`
}

// GroupWhy is what group why prints, newest first.
type GroupWhy struct {
	Group      string      `json:"group"`
	State      string      `json:"state"`
	Rebalances []Rebalance `json:"rebalances"`
}

// SimulatedMember is how many partitions a member should hold now, and would.
type SimulatedMember struct {
	MemberID   string  `json:"member_id"`
	InstanceID *string `json:"instance_id"`
	Before     int32   `json:"before"`
	After      int32   `json:"after"`
}

// GroupSimulation is what group simulate prints.
type GroupSimulation struct {
	Group    string            `json:"group"`
	Assignor string            `json:"assignor"`
	Members  []SimulatedMember `json:"members"`
	Moves    []Move            `json:"moves"`
}

// OffsetReset is the reset of one partition, or how it would be. Offsets are -1 where
// there is none, or it is unknown.
type OffsetReset struct {
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Old       int64   `json:"old"`
	New       int64   `json:"new"`
	Clamped   bool    `json:"clamped"`
	LogStart  int64   `json:"log_start"`
	End       int64   `json:"end"`
	Member    *string `json:"member"`
	Error     *Error  `json:"error,omitempty"`
}

// GroupReset is what group reset prints. Online says that the group has members, which
// have to give the partitions up first.
type GroupReset struct {
	Group      string        `json:"group"`
	DryRun     bool          `json:"dry_run"`
	Online     bool          `json:"online"`
	Partitions []OffsetReset `json:"partitions"`
}
