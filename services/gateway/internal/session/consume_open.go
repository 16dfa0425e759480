package session

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

func (c *Consume) receiveOpen(now time.Time, o *gatewayv1.ConsumeOpen) {
	settings, err := consumeSettings(o, c.limits)
	if err != nil {
		c.end(err)
		return
	}
	c.settings = settings
	c.openedAt = now
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
		c.attach = attach
	case ConsumeNew, ConsumeLeaving, ConsumeEnded:
	}
}

func (c *Consume) sendOpened() {
	c.lastStatus = typev1.ErrorReason_ERROR_REASON_UNSPECIFIED
	limits := &gatewayv1.ConsumeLimits{
		MaxMessageBytes: int32(c.settings.MaxMessageBytes), MaxUnansweredCommits: int32(c.limits.MaxCommits), MaxPartitions: int32(c.limits.MaxPartitions),
	}
	if c.settings.Group != "" {
		limits.SessionTimeout, limits.RebalanceTimeout = durationpb.New(c.settings.SessionTimeout), durationpb.New(c.settings.RebalanceTimeout)
	}
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Opened{Opened: &gatewayv1.ConsumeOpened{
		Handshake: c.identity.Handshake, Gateway: c.identity.Process, MemberId: c.memberID, Attach: c.attach,
		ResumeToken: resumeToken(c.memberID, c.attach), Limits: limits,
	}}})
}
