package session

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// Bounds of what an open message may ask for.
const (
	minSessionTimeout   = time.Second
	maxSessionTimeout   = 30 * time.Minute
	minRebalanceTimeout = time.Second
	maxRebalanceTimeout = 24 * time.Hour
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
	AutoCommitInterval time.Duration // 0: none
	SessionTimeout     time.Duration
	RebalanceTimeout   time.Duration
	StopAtEnd          bool
	MaxMessageBytes    int
	Isolation          typev1.IsolationLevel
	CreditBytes        int64
	LeaveOffsets       bool
	Replica            *int32 // broker whose replicas are read; nil: the leaders

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

func (c *Consume) receiveOpen(now time.Time, o *gatewayv1.ConsumeOpen) {
	settings, err := consumeSettings(o, c.limits)
	if err != nil {
		c.end(err)
		return
	}
	c.settings = settings
	c.state = ConsumeJoining
	if settings.CreditBytes > 0 {
		c.addCredit(settings.CreditBytes)
	}
	if settings.AutoCommitInterval > 0 {
		c.autoAt = now.Add(settings.AutoCommitInterval)
	}
	// A member that resumes is not refused because a topic has gone meanwhile.
	if settings.Group != "" && (len(settings.Topics) == 0 || settings.Attach > 0) {
		c.do(ConsumeJoin{Settings: settings})
		return
	}
	topics := settings.Topics
	seen := map[string]bool{}
	for _, t := range topics {
		seen[t] = true
	}
	for _, p := range settings.partitions {
		if !seen[p.GetTopic()] {
			seen[p.GetTopic()] = true
			topics = append(topics[:len(topics):len(topics)], p.GetTopic())
		}
	}
	c.do(ConsumeLookup{Topics: topics})
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
		Replica:    o.Replica,
		partitions: o.GetPartitions(), positions: map[name]*gatewayv1.ConsumePosition{},
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
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
	if s.AutoCommitInterval > 0 && s.Group == "" {
		bad("auto_commit_interval is set, but no group to commit to; set group, or leave it out")
	}
	if s.AutoCommitInterval > 0 && s.LeaveOffsets {
		bad("auto_commit_interval and leave_offsets exclude each other; leave one out")
	}
	for _, p := range o.GetPositions() {
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

// Topic is what a ConsumeLookup is answered with.
type Topic struct {
	Name       string
	ID         [16]byte
	Partitions int32
	// Replicas lists, by partition, the brokers that hold it.
	Replicas [][]int32
}

// readable reports whether the stream may read a partition: it may have asked for
// one broker's replicas.
func (s *ConsumeSettings) readable(t Topic, partition int32) bool {
	return s.Replica == nil || int(partition) < len(t.Replicas) && slices.Contains(t.Replicas[partition], *s.Replica)
}

// LookedUp answers a ConsumeLookup.
func (c *Consume) LookedUp(now time.Time, topics []Topic, err error) {
	if c.state != ConsumeJoining {
		return
	}
	if err != nil {
		c.end(err)
		return
	}
	if c.settings.Group != "" {
		c.do(ConsumeJoin{Settings: c.settings})
		return
	}
	starts, err := c.manual(topics)
	if err != nil {
		c.end(err)
		return
	}
	c.state = ConsumeActive
	c.sendOpened()
	for _, a := range starts {
		c.add(a, "chosen by the client")
	}
	c.assigned = true
	c.checkEnd(now)
}

// manual lists the partitions of a stream without a group.
func (c *Consume) manual(topics []Topic) ([]client.AssignedPartition, error) {
	byName := map[string]Topic{}
	for _, t := range topics {
		byName[t.Name] = t
	}
	var out []client.AssignedPartition
	taken := map[name]bool{}
	add := func(t Topic, partition int32, offset int64) {
		if n := (name{t.Name, partition}); !taken[n] {
			taken[n] = true
			out = append(out, client.AssignedPartition{
				OwnedPartition: client.OwnedPartition{TopicPartition: client.TopicPartition{TopicID: t.ID, Partition: partition}},
				Topic:          t.Name, StartOffset: offset, StartLeaderEpoch: -1,
			})
		}
	}
	for _, p := range c.settings.partitions {
		t := byName[p.GetTopic()]
		if p.GetPartition() >= t.Partitions {
			return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION,
				"topic %q has no partition %d; its %d partitions are 0 to %d", t.Name, p.GetPartition(), t.Partitions, t.Partitions-1).With("topic", t.Name)
		}
		if !c.settings.readable(t, p.GetPartition()) {
			return nil, c.noReplica(t, p.GetPartition())
		}
		offset := int64(-1)
		if p.Offset != nil {
			offset = p.GetOffset()
		}
		add(t, p.GetPartition(), offset)
	}
	for _, topic := range c.settings.Topics {
		t := byName[topic]
		c.counts[topic] = t.Partitions
		held := false
		for n := range t.Partitions {
			if c.settings.readable(t, n) {
				add(t, n, -1)
				held = true
			}
		}
		if !held && t.Partitions > 0 {
			return nil, c.noReplica(t, -1)
		}
	}
	if len(out) > c.limits.MaxPartitions {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
			"the topics have %d partitions; one stream reads at most %d, so use several streams, or a group", len(out), c.limits.MaxPartitions)
	}
	return out, nil
}

// noReplica says that the broker asked for does not hold a partition, or, for -1,
// any of a topic's.
func (c *Consume) noReplica(t Topic, partition int32) error {
	if partition < 0 {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "broker %d holds no replica of topic %q; see which ones do with a description of the topic",
			*c.settings.Replica, t.Name).With("topic", t.Name)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "broker %d holds no replica of partition %d of topic %q; see which ones do with a description of the topic",
		*c.settings.Replica, partition, t.Name).With("topic", t.Name)
}

// WholeTopics lists the topics that the stream reads whole, without a group; their
// growth is to be told by Grown.
func (c *Consume) WholeTopics() []string {
	if c.state != ConsumeActive || c.settings.Group != "" || c.settings.StopAtEnd {
		return nil
	}
	return c.settings.Topics
}

// Grown tells how many partitions a topic has now. New ones are read from their
// beginning: nothing that was written to them was there to be missed before.
func (c *Consume) Grown(t Topic) {
	had, ok := c.counts[t.Name]
	if !ok || c.state != ConsumeActive || t.Partitions <= had {
		return
	}
	for n := had; n < t.Partitions && len(c.parts) < c.limits.MaxPartitions; n++ {
		id := client.TopicPartition{TopicID: t.ID, Partition: n}
		if _, held := c.parts[id]; held || !c.settings.readable(t, n) {
			continue
		}
		c.add(client.AssignedPartition{OwnedPartition: client.OwnedPartition{TopicPartition: id}, Topic: t.Name, StartOffset: 0, StartLeaderEpoch: -1},
			"the topic has grown")
	}
	c.counts[t.Name] = t.Partitions
}

// Attached says that the membership is on record, for the first time or again.
func (c *Consume) Attached(now time.Time, memberID string, attach int64) {
	switch c.state {
	case ConsumeJoining:
		c.memberID, c.attach = memberID, attach
		c.state = ConsumeActive
		c.sendOpened()
		c.reconcile(now)
	case ConsumeActive, ConsumeDraining:
		// The coordinator was lost and found again. The client may resume with the
		// number it knows: an older one of the same membership is as good.
		c.lastStatus = typev1.ErrorReason_ERROR_REASON_UNSPECIFIED
	case ConsumeNew, ConsumeLeaving, ConsumeEnded:
	}
}

func (c *Consume) sendOpened() {
	c.lastStatus = typev1.ErrorReason_ERROR_REASON_UNSPECIFIED
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Opened{Opened: &gatewayv1.ConsumeOpened{
		Handshake: c.identity.Handshake, Gateway: c.identity.Process, MemberId: c.memberID, Attach: c.attach,
	}}})
}
