package brokertest

import (
	"context"
	"slices"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// SetBroker puts a life of a broker on record, unfenced, with its address.
func (c *Controller) SetBroker(p *typev1.Process, addr string) {
	c.Change(func(c *Controller) { c.brokers[p.GetId()] = &controllerv1.Broker{Broker: p, Address: addr} })
}

// CreateReplicated makes a topic whose partitions are led by the replicas in turn,
// in leader epoch 1. The replicas are on record.
func (c *Controller) CreateReplicated(name string, partitions, minISR int32, configs map[string]string, replicas ...int32) topicid.ID {
	id := c.NewID()
	c.Change(func(c *Controller) {
		c.topics[id] = &controllerv1.Topic{TopicId: id.Bytes(), Name: name, Partitions: partitions, Configs: configs}
		c.partitions[id] = make([]*controllerv1.Partition, partitions)
		for n := range partitions {
			at := int(n) % len(replicas)
			order := slices.Concat(replicas[at:], replicas[:at])
			c.partitions[id][n] = &controllerv1.Partition{
				TopicId: id.Bytes(), Partition: n, Replicas: order, Isr: slices.Clone(order), MinIsr: minISR, PartitionEpoch: 1, LeaderEpoch: 1,
				Leader: c.brokers[order[0]].GetBroker(),
			}
		}
	})
	return id
}

// Elect has a broker lead a partition in the next leader epoch, whatever is in sync;
// 0: nobody.
func (c *Controller) Elect(id topicid.ID, n, broker int32) {
	c.SetPartition(id, n, func(p *controllerv1.Partition) {
		p.LeaderEpoch++
		p.Leader = nil
		if b := c.brokers[broker]; b != nil {
			p.Leader = b.GetBroker()
		}
	})
}

// SetISR replaces a partition's in-sync set.
func (c *Controller) SetISR(id topicid.ID, n int32, isr ...int32) {
	c.SetPartition(id, n, func(p *controllerv1.Partition) { p.Isr = isr })
}

// Partition is a partition's record.
func (c *Controller) Partition(id topicid.ID, n int32) *controllerv1.Partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.partitions[id][n]
}

// RefuseProposals has ProposeIsr fail from now on; nil ends that.
func (c *Controller) RefuseProposals(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control.refuseISR = err
}

// HoldProposals has ProposeIsr answer nothing until it is let go.
func (c *Controller) HoldProposals() (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	hold := make(chan struct{})
	c.control.holdISR = hold
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.control.holdISR = nil
		close(hold)
	}
}

// RefusedProposals is how many were refused, or held, so far.
func (c *Controller) RefusedProposals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.control.refusedISR
}

// ProposeIsr accepts what the current leader proposes under the current epochs, if
// the members it adds are the ones on record, and answers anything else with the
// record as it is.
func (c *Controller) ProposeIsr(ctx context.Context, req *controllerv1.ProposeIsrRequest) (*controllerv1.ProposeIsrResponse, error) {
	id, err := topicid.FromBytes(req.GetTopicId())
	if err != nil {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "topic_id: %w", err)
	}
	c.mu.Lock()
	refuse, hold := c.control.refuseISR, c.control.holdISR
	if refuse != nil || hold != nil {
		c.control.refusedISR++
	}
	c.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if refuse != nil {
		return nil, refuse
	}
	var record *controllerv1.Partition
	frozen := false
	rev := c.Change(func(c *Controller) {
		if frozen = c.control.refuseISR != nil || c.control.holdISR != nil && hold == nil; frozen {
			c.control.refusedISR++ // since this call looked
			return
		}
		record = c.partitions[id][req.GetPartition()]
		l := record.GetLeader()
		if l.GetId() != req.GetLeader().GetId() || l.GetIncarnation() != req.GetLeader().GetIncarnation() ||
			record.GetLeaderEpoch() != req.GetLeaderEpoch() || record.GetPartitionEpoch() != req.GetPartitionEpoch() {
			return
		}
		isr := record.GetIsr()
		if c.accepts(record, req.GetIsr()) {
			isr = nil
			for _, m := range req.GetIsr() {
				isr = append(isr, m.GetId())
			}
		}
		c.Record(id, req.GetPartition(), func(p *controllerv1.Partition) { p.Isr = isr })
		record = c.partitions[id][req.GetPartition()]
	})
	if frozen {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE, "the in-sync sets stand still")
	}
	return &controllerv1.ProposeIsrResponse{Partition: record, Position: &controllerv1.Position{Generation: c.Generation(), Revision: rev}}, nil
}

// accepts reports whether the members that a proposal adds are alive as they are
// named.
func (c *Controller) accepts(record *controllerv1.Partition, isr []*typev1.Process) bool {
	for _, m := range isr {
		b := c.brokers[m.GetId()]
		if !slices.Contains(record.GetIsr(), m.GetId()) && (b.GetFenced() || b.GetBroker().GetIncarnation() != m.GetIncarnation()) {
			return false
		}
	}
	return true
}

// Process is a broker's life on record; within Change.
func (c *Controller) Process(broker int32) *typev1.Process { return c.brokers[broker].GetBroker() }
