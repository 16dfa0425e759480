package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

const (
	// proposers bounds the proposals on their way to the controller.
	proposers = 32
	// proposalLimit bounds one call; the core has it repeated.
	proposalLimit = 5 * time.Second
	// proposalPatience is how long a controller may take before whoever waits for its
	// answer is told that the metadata cannot be reached, as with the metadata stream.
	proposalPatience = 1500 * time.Millisecond
)

// proposals are in-sync sets on their way to the controller. A replica has at most
// one; nothing runs while there is none.
type proposals struct {
	ctx     context.Context
	cancel  context.CancelFunc
	mu      sync.Mutex
	queue   []*proposal
	running int
	wg      sync.WaitGroup
}

type proposal struct {
	r *Replica
	e partition.Propose
}

// propose has a proposal carried to the controller. It does not block; the caller
// holds the replica's lock.
func (m *Manager) propose(r *Replica, e *partition.Propose) {
	p := &proposal{r: r, e: *e}
	r.proposedAt = m.now()
	p.e.ISR = slices.Clone(e.ISR)
	q := &m.proposals
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx.Err() != nil {
		return // it stops
	}
	q.queue = append(q.queue, p)
	if q.running < proposers {
		q.running++
		q.wg.Go(m.proposer)
	}
}

// proposer carries proposals until none is left.
func (m *Manager) proposer() {
	q := &m.proposals
	for {
		q.mu.Lock()
		if len(q.queue) == 0 || q.ctx.Err() != nil {
			q.queue = nil
			q.running--
			q.mu.Unlock()
			return
		}
		p := q.queue[0]
		q.queue[0] = nil
		q.queue = q.queue[1:]
		q.mu.Unlock()
		m.carry(q.ctx, p)
	}
}

// carry makes one call. Its answer settles nothing, but the record in it is as good
// as from the metadata stream; whoever asks for repetition is the core.
func (m *Manager) carry(ctx context.Context, p *proposal) {
	ctx, cancel := context.WithTimeout(ctx, proposalLimit)
	defer cancel()
	r := p.r
	req := &controllerv1.ProposeIsrRequest{
		Leader:  &typev1.Process{Id: m.cfg.Self.Broker, Incarnation: m.cfg.Self.Incarnation},
		TopicId: r.Key.Topic.Bytes(), Partition: r.Key.Partition, LeaderEpoch: p.e.LeaderEpoch, PartitionEpoch: p.e.PartEpoch,
	}
	for _, member := range p.e.ISR {
		req.Isr = append(req.Isr, &typev1.Process{Id: member.Broker, Incarnation: member.Incarnation})
	}
	m.cfg.Logger.Debug("proposes an in-sync set", "replica", r.Name(), "isr", p.e.ISR, "partition_epoch", p.e.PartEpoch, "leader_epoch", p.e.LeaderEpoch)
	err := failpoint.Hit(failpoint.ISRPropose)
	var resp *controllerv1.ProposeIsrResponse
	if err == nil {
		resp, err = m.cfg.ProposeISR(ctx, req)
	}
	if err != nil {
		m.cfg.Logger.Debug("a proposed in-sync set has no answer", "replica", r.Name(), "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return
	}
	r.undecided, r.proposedAt = undecided(err), 0
	if part := resp.GetPartition(); err == nil && part.GetPartition() == r.Key.Partition && string(part.GetTopicId()) == string(r.Key.Topic.Bytes()) {
		r.apply(metadata.PositionOf(resp.GetPosition()), part)
	}
	r.step(partition.ProposalHint{ID: p.e.ID, Now: m.now()})
}

// whyUndecided is why a change of the in-sync set that was proposed has not been decided;
// nil: it was, or it is early to say. The caller holds mu.
func (r *Replica) whyUndecided() error {
	if waited := r.m.now() - r.proposedAt; r.undecided == nil && r.proposedAt > 0 && waited >= proposalPatience {
		return fmt.Errorf("no controller has answered for %v", waited.Round(100*time.Millisecond))
	}
	return r.undecided
}

// undecided is why a proposal got no answer; nil: it got one, or the record that
// settles it is there already and on its way.
func undecided(err error) error {
	if rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH,
		typev1.ErrorReason_ERROR_REASON_STALE_PARTITION_EPOCH, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED) {
		return nil
	}
	return err
}

// proposeNothing is for a manager without a controller.
func proposeNothing(context.Context, *controllerv1.ProposeIsrRequest) (*controllerv1.ProposeIsrResponse, error) {
	return nil, errNoController
}

var errNoController = errors.New("there is no controller to bring a proposal to")

// stopProposals ends what is on its way and waits for it.
func (m *Manager) stopProposals() {
	m.proposals.mu.Lock()
	m.proposals.cancel() // nobody begins after this
	m.proposals.mu.Unlock()
	m.proposals.wg.Wait()
}
