package session

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// Bounds of what an open message may ask for.
const (
	minSessionTimeout   = time.Second
	maxSessionTimeout   = 30 * time.Minute
	minRebalanceTimeout = time.Second
	maxRebalanceTimeout = 24 * time.Hour
	minMaxProcessing    = time.Second
	maxMaxProcessing    = 7 * 24 * time.Hour
	maxStartDuration    = 100 * 365 * 24 * time.Hour
	maxRackName         = 255
	minAutoCommit       = 100 * time.Millisecond
	maxAutoCommit       = time.Hour
	minMessageBytes     = 4 << 10
	defaultMessageBytes = 4 << 20 // what a generated stub takes
	maxGroupName        = 255
	maxCommitMetadata   = 4 << 10
	maxCredit           = 1 << 40
)

// ConsumeSettings is what a client's open asks for, with every default filled in.
type ConsumeSettings struct {
	ClientID           string
	Group              string
	Topics             []string
	TopicPattern       string
	MemberID           string
	InstanceID         string
	Attach             int64
	Assignor           string
	StartAt            gatewayv1.StartAt
	StartTimestampMs   int64
	StartByDuration    time.Duration // for START_AT_BY_DURATION
	AutoCommitInterval time.Duration // 0: none
	SessionTimeout     time.Duration
	RebalanceTimeout   time.Duration
	StopAtEnd          bool
	MaxMessageBytes    int
	Isolation          typev1.IsolationLevel
	CreditBytes        int64
	LeaveOffsets       bool
	AtMostOnce         bool          // commit before records are handed over
	MaxProcessing      time.Duration // 0: never expelled for a lack of progress
	ClientRack         string        // read from a replica there; empty: from leaders
	Replica            *int32        // broker whose replicas are read; nil: the leaders

	partitions []*gatewayv1.ConsumePartition
	positions  map[name]*gatewayv1.ConsumePosition
}

// Positions lists the partitions of which the client has received something on an
// earlier stream.
func (s *ConsumeSettings) Positions() []*gatewayv1.ConsumePosition {
	out := make([]*gatewayv1.ConsumePosition, 0, len(s.positions))
	for _, p := range s.positions {
		out = append(out, p)
	}
	return out
}

// consumeSettings checks an open message and fills in what it leaves out.
func consumeSettings(o *gatewayv1.ConsumeOpen, limits ConsumeLimits) (ConsumeSettings, error) {
	if err := rpc.CheckHandshake(o.GetHandshake()); err != nil {
		return ConsumeSettings{}, err
	}
	s := ConsumeSettings{
		ClientID: o.GetClientId(), Group: o.GetGroup(), Topics: o.GetTopics(), TopicPattern: o.GetTopicPattern(),
		MemberID: o.GetMemberId(), InstanceID: o.GetInstanceId(), Attach: o.GetAttach(), Assignor: o.GetAssignor(),
		StartAt: o.GetStartAt(), StartTimestampMs: o.GetStartTimestampMs(), StopAtEnd: o.GetStopAtEnd(),
		MaxMessageBytes: int(o.GetMaxMessageBytes()), Isolation: o.GetIsolationLevel(), CreditBytes: o.GetCreditBytes(), LeaveOffsets: o.GetLeaveOffsets(),
		Replica: o.Replica, AtMostOnce: o.GetAtMostOnce(), ClientRack: o.GetClientRack(),
		partitions: o.GetPartitions(), positions: map[name]*gatewayv1.ConsumePosition{},
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	s.takeToken(o.GetResumeToken(), bad)
	s.checkWhat(bad)
	s.checkNumbers(limits, bad)
	var err error
	if s.SessionTimeout, err = durationIn("session_timeout", o.GetSessionTimeout(), minSessionTimeout, maxSessionTimeout, 15*time.Second); err != nil {
		errs = append(errs, err)
	}
	if s.RebalanceTimeout, err = durationIn("rebalance_timeout", o.GetRebalanceTimeout(), minRebalanceTimeout, maxRebalanceTimeout, 15*time.Minute); err != nil {
		errs = append(errs, err)
	}
	if s.AutoCommitInterval, err = durationIn("auto_commit_interval", o.GetAutoCommitInterval(), minAutoCommit, maxAutoCommit, 0); err != nil {
		errs = append(errs, err)
	}
	if s.MaxProcessing, err = durationIn("max_processing", o.GetMaxProcessing(), minMaxProcessing, maxMaxProcessing, 0); err != nil {
		errs = append(errs, err)
	}
	if s.StartByDuration, err = durationIn("start_by_duration", o.GetStartByDuration(), time.Millisecond, maxStartDuration, 0); err != nil {
		errs = append(errs, err)
	}
	s.checkTogether(bad)
	s.takePositions(o.GetPositions(), limits, bad)
	if err := errors.Join(errs...); err != nil {
		return ConsumeSettings{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "open: %w", err)
	}
	if s.MaxMessageBytes == 0 {
		s.MaxMessageBytes = defaultMessageBytes
	}
	s.MaxMessageBytes = min(s.MaxMessageBytes, limits.MaxMessageBytes)
	if s.StartAt == gatewayv1.StartAt_START_AT_UNSPECIFIED {
		s.StartAt = gatewayv1.StartAt_START_AT_LATEST
	}
	return s, nil
}

// takeToken reads what a resume token stands for.
func (s *ConsumeSettings) takeToken(token string, bad func(string, ...any)) {
	if token == "" {
		return
	}
	if s.MemberID != "" || s.Attach != 0 {
		bad("resume_token stands for member_id and attach; leave those out")
		return
	}
	var err error
	if s.MemberID, s.Attach, err = parseToken(token); err != nil {
		bad("%w", err)
	}
}

// checkTogether checks what must not, or must, stand beside each other.
func (s *ConsumeSettings) checkTogether(bad func(string, ...any)) {
	if s.AutoCommitInterval > 0 && s.Group == "" {
		bad("auto_commit_interval is set, but no group to commit to; set group, or leave it out")
	}
	if s.AutoCommitInterval > 0 && s.LeaveOffsets {
		bad("auto_commit_interval and leave_offsets exclude each other; leave one out")
	}
	if s.AtMostOnce && (s.Group == "" || s.AutoCommitInterval > 0 || s.LeaveOffsets) {
		bad("at_most_once commits in a group before records are sent, so that it needs group, and excludes auto_commit_interval and leave_offsets")
	}
	if s.MaxProcessing > 0 && s.Group == "" {
		bad("max_processing is about a member of a group; set group, or leave it out")
	}
	if byDuration := s.StartAt == gatewayv1.StartAt_START_AT_BY_DURATION; byDuration != (s.StartByDuration > 0) {
		bad("start_by_duration and start_at START_AT_BY_DURATION go together; set both, or neither")
	}
	if s.ClientRack != "" && s.Replica != nil {
		bad("client_rack and replica exclude each other; leave one out")
	}
	if len(s.ClientRack) > maxRackName {
		bad("client_rack has %d bytes; use at most %d", len(s.ClientRack), maxRackName)
	}
}

// takePositions checks and keeps what the client has received on an earlier stream.
func (s *ConsumeSettings) takePositions(positions []*gatewayv1.ConsumePosition, limits ConsumeLimits, bad func(string, ...any)) {
	for _, p := range positions {
		if p.GetNextOffset() < 0 || p.GetTopic() == "" || p.GetPartition() < 0 {
			bad("positions: partition %d of topic %q at %d is not a place; use the next offset received", p.GetPartition(), p.GetTopic(), p.GetNextOffset())
		}
		if n := len(p.GetTopicId()); n != 0 && n != len(topicid.ID{}) {
			bad("positions: the topic id of partition %d of topic %q has %d bytes; use the 16 that assigned told, or none", p.GetPartition(), p.GetTopic(), n)
		}
		s.positions[name{p.GetTopic(), p.GetPartition()}] = p
	}
	if len(s.positions) > limits.MaxPartitions {
		bad("positions names %d partitions; the limit is %d", len(s.positions), limits.MaxPartitions)
	}
}

// checkWhat checks what is to be read, and as whom.
func (s *ConsumeSettings) checkWhat(bad func(string, ...any)) {
	for _, t := range s.Topics {
		if t == "" {
			bad("topics holds an empty name")
		}
	}
	if s.Replica != nil && *s.Replica < 0 {
		bad("replica is %d; name a broker by its id, or leave it out to read from leaders", *s.Replica)
	}
	if s.Group == "" {
		if len(s.Topics) == 0 && len(s.partitions) == 0 {
			bad("nothing to read; set topics, or partitions")
		}
		if s.TopicPattern != "" {
			bad("topic_pattern works in a group only; set group, or name the topics")
		}
		if s.MemberID != "" || s.InstanceID != "" || s.Attach != 0 || s.Assignor != "" {
			bad("member_id, instance_id, attach and assignor belong to a group; set group, or leave them out")
		}
	} else {
		if s.Replica != nil {
			bad("replica and a group exclude each other: a group reads from leaders; leave one out")
		}
		if len(s.Group) > maxGroupName {
			bad("the group name has %d bytes; use at most %d", len(s.Group), maxGroupName)
		}
		if len(s.partitions) > 0 {
			bad("partitions by hand and a group exclude each other; leave one out")
		}
		if len(s.Topics) == 0 && s.TopicPattern == "" {
			bad("nothing to subscribe to; set topics, or topic_pattern")
		}
		if _, err := regexp.Compile(s.TopicPattern); err != nil {
			bad("topic_pattern is not a regular expression (RE2): %w", err)
		}
		if s.Attach < 0 || s.Attach > 0 && s.MemberID == "" {
			bad("attach %d needs the member_id it belongs to, both as told by opened", s.Attach)
		}
		if s.Assignor != "" && s.Assignor != "uniform" && s.Assignor != "range" {
			bad("assignor %q is unknown; use uniform or range", s.Assignor)
		}
	}
	seen := map[name]bool{}
	for _, p := range s.partitions {
		n := name{p.GetTopic(), p.GetPartition()}
		switch {
		case n.topic == "" || n.partition < 0:
			bad("partitions: %d of topic %q is not a partition", n.partition, n.topic)
		case seen[n]:
			bad("partitions: %d of topic %q is named twice", n.partition, n.topic)
		case p.Offset != nil && p.GetOffset() < 0:
			bad("partitions: offset %d of partition %d of topic %q is negative; leave it out and set start_at", p.GetOffset(), n.partition, n.topic)
		}
		seen[n] = true
	}
}

// checkNumbers checks limits and enums.
func (s *ConsumeSettings) checkNumbers(limits ConsumeLimits, bad func(string, ...any)) {
	if len(s.ClientID) > maxClientID {
		bad("client_id has %d bytes; use at most %d", len(s.ClientID), maxClientID)
	}
	if len(s.partitions) > limits.MaxPartitions || len(s.Topics) > limits.MaxPartitions {
		bad("one stream reads at most %d partitions; use several streams, or a group", limits.MaxPartitions)
	}
	if _, ok := gatewayv1.StartAt_name[int32(s.StartAt)]; !ok {
		bad("start_at %d is not one that this gateway knows", s.StartAt)
	}
	if s.StartTimestampMs < 0 {
		bad("start_timestamp_ms is %d; use milliseconds since 1970", s.StartTimestampMs)
	}
	if _, ok := typev1.IsolationLevel_name[int32(s.Isolation)]; !ok {
		bad("isolation_level %d is not one that this gateway knows", s.Isolation)
	}
	if s.MaxMessageBytes != 0 && s.MaxMessageBytes < minMessageBytes {
		bad("max_message_bytes is %d; use at least %d, or 0 for the default of %d", s.MaxMessageBytes, minMessageBytes, defaultMessageBytes)
	}
	if s.CreditBytes < 0 || s.CreditBytes > maxCredit {
		bad("credit_bytes is %d; use 0 (no credit) to %d", s.CreditBytes, int64(maxCredit))
	}
}
