package brokertest

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/topicid"
)

// producerIDBlock is how many ids a block of the test's controller has.
const producerIDBlock = 10

// control is what the controller remembers of brokers' requests.
type control struct {
	producerIDs int64
	elections   int64 // after the first
	generation  int64
	etcd        uint64 // id of the etcd cluster
	reports     []*controllerv1.ReplicaVouch
	onReport    func(*Controller, *controllerv1.ReportReplicasRequest) error
	onLeave     func(*Controller, *controllerv1.RequestLeaveRequest) *controllerv1.RequestLeaveResponse
	leaves      []*controllerv1.RequestLeaveRequest
	refuseISR   error
	refusedISR  int
	holdISR     <-chan struct{} // proposals wait for it; nil: they do not
}

// AllocateProducerIds hands out ids from 0 on, ten at a time.
func (c *Controller) AllocateProducerIds(context.Context, *controllerv1.AllocateProducerIdsRequest) (*controllerv1.AllocateProducerIdsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.control.producerIDs
	c.control.producerIDs += producerIDBlock
	return &controllerv1.AllocateProducerIdsResponse{FirstProducerId: first, Count: producerIDBlock}, nil
}

// OnReport is called, under a new revision, with each report of replicas, and may
// change the state; an error is the answer. Nil: reports are noted only.
func (c *Controller) OnReport(f func(*Controller, *controllerv1.ReportReplicasRequest) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control.onReport = f
}

// Reports are the vouches of all reports so far.
func (c *Controller) Reports() []*controllerv1.ReplicaVouch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.control.reports)
}

// ReportReplicas takes note.
func (c *Controller) ReportReplicas(_ context.Context, req *controllerv1.ReportReplicasRequest) (*controllerv1.ReportReplicasResponse, error) {
	var err error
	rev := c.Change(func(c *Controller) {
		c.control.reports = append(c.control.reports, req.GetVouches()...)
		if c.control.onReport != nil {
			err = c.control.onReport(c, req)
		}
	})
	if err != nil {
		return nil, err
	}
	return &controllerv1.ReportReplicasResponse{Position: &controllerv1.Position{Generation: c.Generation(), Revision: rev}}, nil
}

// OnLeave answers requests for leave, under a new revision, and may change the
// state. Nil: leave is granted at once.
func (c *Controller) OnLeave(f func(*Controller, *controllerv1.RequestLeaveRequest) *controllerv1.RequestLeaveResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control.onLeave = f
}

// Leaves are the requests for leave so far.
func (c *Controller) Leaves() []*controllerv1.RequestLeaveRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.control.leaves)
}

// RequestLeave answers as OnLeave says.
func (c *Controller) RequestLeave(_ context.Context, req *controllerv1.RequestLeaveRequest) (*controllerv1.RequestLeaveResponse, error) {
	resp := &controllerv1.RequestLeaveResponse{Granted: true}
	c.Change(func(c *Controller) {
		c.control.leaves = append(c.control.leaves, req)
		if c.control.onLeave != nil {
			resp = c.control.onLeave(c, req)
		}
	})
	return resp, nil
}

// Record is a partition's record, to be changed in place within Change, OnReport or
// OnLeave; each such change needs a higher partition epoch.
func (c *Controller) Record(id topicid.ID, n int32, change func(p *controllerv1.Partition)) {
	p := cloneOf(c.partitions[id][n])
	p.PartitionEpoch++
	change(p)
	c.partitions[id][n] = p
}

// CreateUnled makes a topic whose partitions never had a leader; within Change.
func (c *Controller) CreateUnled(id topicid.ID, name string, partitions int32, replicas ...int32) {
	c.topics[id] = &controllerv1.Topic{TopicId: id.Bytes(), Name: name, Partitions: partitions}
	c.partitions[id] = make([]*controllerv1.Partition, partitions)
	for n := range partitions {
		c.partitions[id][n] = &controllerv1.Partition{
			TopicId: id.Bytes(), Partition: n, Replicas: replicas, Isr: replicas, MinIsr: 1, PartitionEpoch: 1,
		}
	}
}

// Generation is that of the metadata.
func (c *Controller) Generation() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.control.generation
}

// Elected has the stream show another elected controller; within Change.
func (c *Controller) Elected() { c.control.elections++ }

// Regress has etcd go back: the revision falls, and the id of its cluster, if it is
// not 0, is another one; within Change.
func (c *Controller) Regress(generation, revision int64, etcdClusterID uint64) {
	c.control.generation, c.revision = generation, revision
	if etcdClusterID != 0 {
		c.control.etcd = etcdClusterID
	}
}

// Fence has a broker's record show it fenced and leaving; within Change, OnReport or
// OnLeave.
func (c *Controller) Fence(id int32) {
	b := proto.CloneOf(c.brokers[id])
	b.Fenced, b.Draining = true, true
	c.brokers[id] = b
}
