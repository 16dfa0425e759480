package handler

import (
	"cmp"
	"context"
	"slices"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
)

const (
	// catchUpLimit is how long a registration waits for the state to show its key.
	catchUpLimit = 2 * time.Second
	// maxVouches bounds the replicas that one message tells of.
	maxVouches = 200_000
	// maxConfirmed bounds the topics of one confirmation.
	maxConfirmed = 10_000
)

// controllerServer does what ControllerService asks of the leader.
type controllerServer struct {
	controllerv1.UnimplementedControllerServiceServer
	h       *Handler
	leavers leavers
}

// RegisterBroker takes a broker's registration and vouch, and answers when the
// record is as registered.
func (s *controllerServer) RegisterBroker(ctx context.Context, req *controllerv1.RegisterBrokerRequest) (*controllerv1.RegisterBrokerResponse, error) {
	r, err := registration(req)
	if err != nil {
		return nil, err
	}
	if err := s.h.cfg.Loop.CheckLeading(); err != nil {
		return nil, err
	}
	if err := s.catchUp(ctx, req); err != nil {
		return nil, err
	}
	if err := s.checkPredecessor(ctx, r.Process); err != nil {
		return nil, err
	}
	known := false
	// Vouches go into the state before the plan is made; the plan is the same
	// command's, so that no other broker's registration comes between.
	plan := func(state *cluster.State, _ int) (cluster.Plan, error) {
		if b := state.Broker(r.Process.ID); b != nil && b.Value.Process == r.Process {
			known = true
		}
		if err := checkEpochs(state, r); err != nil {
			return cluster.Plan{}, err
		}
		return cluster.RegisterBroker(state, r)
	}
	s.h.cfg.Store.Remember(func(state *cluster.State) {
		// Only of the life that holds the key, so that a late word of an earlier
		// one is not taken for it.
		if reg := state.Registration(cluster.KindBroker, r.Process.ID); reg != nil && reg.Value.Process == r.Process {
			state.SetVouches(r)
		}
	})
	position, err := s.h.do(ctx, "register broker", plan, nil)
	if err != nil {
		return nil, err
	}
	resp := &controllerv1.RegisterBrokerResponse{Position: position}
	s.h.cfg.Store.View(func(state *cluster.State, _ int64) {
		b := state.Broker(r.Process.ID)
		resp.Unfenced = b != nil && b.Value.Process == r.Process && !b.Value.Fenced
	})
	if resp.Unfenced && !known {
		s.h.cfg.Logger.Info("broker unfenced", "broker", r.Process.ID, "broker_incarnation", r.Process.Incarnation, "address", r.Address,
			"replicas", len(r.Vouches), "reason", "its registration and vouch are accepted", "revision", position.GetRevision())
	}
	return resp, nil
}

// registration reads a request.
func registration(req *controllerv1.RegisterBrokerRequest) (cluster.BrokerRegistration, error) {
	process, err := life(req.GetBroker(), "the registering broker")
	if err != nil {
		return cluster.BrokerRegistration{}, err
	}
	if err := rpc.CheckHandshake(req.GetHandshake()); err != nil {
		return cluster.BrokerRegistration{}, err
	}
	r := cluster.BrokerRegistration{Process: process, Address: req.GetAddress(), Rack: req.GetRack(), ClusterID: req.GetClusterId()}
	if r.Address == "" {
		return r, invalid("broker %d does not say where it listens", process.ID)
	}
	r.Vouches, err = vouches(process, req.GetVouches())
	return r, err
}

// vouches reads what a broker says of its replicas.
func vouches(process cluster.Process, list []*controllerv1.ReplicaVouch) ([]cluster.Vouch, error) {
	if len(list) > maxVouches {
		return nil, invalid("broker %d tells of %d replicas at once; at most %d", process.ID, len(list), maxVouches)
	}
	read := make([]cluster.Vouch, 0, len(list))
	for _, v := range list {
		id, err := topicid.FromBytes(v.GetTopicId())
		if err != nil {
			return nil, invalid("a vouch of broker %d: %v", process.ID, err)
		}
		if v.GetVerdict() == controllerv1.ReplicaVerdict_REPLICA_VERDICT_UNSPECIFIED {
			return nil, invalid("broker %d vouches for %v-%d without a verdict", process.ID, id, v.GetPartition())
		}
		read = append(read, cluster.Vouch{
			Topic: id, Partition: v.GetPartition(), LastEpoch: v.GetLastEpoch(),
			End: v.GetEndOffset(), Verdict: cluster.Verdict(v.GetVerdict()),
		})
	}
	return read, nil
}

// checkEpochs refuses a broker whose records are of a later leader epoch than the
// metadata knows: nobody can have led in it, unless etcd went back in time.
func checkEpochs(state *cluster.State, r cluster.BrokerRegistration) error {
	for _, v := range r.Vouches {
		p := state.Partition(v.Topic, v.Partition)
		if p == nil || v.LastEpoch <= p.Value.LeaderEpoch {
			continue
		}
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED,
			"broker %d has records of leader epoch %d in partition %v-%d, and the metadata knows epochs up to %d: etcd went back in time; restore the mesh before anything else",
			r.Process.ID, v.LastEpoch, v.Topic, v.Partition, p.Value.LeaderEpoch)
	}
	return nil
}

// catchUp waits until the state shows the broker's registration key, and refuses
// a broker that has seen what etcd does not know any more.
func (s *controllerServer) catchUp(ctx context.Context, req *controllerv1.RegisterBrokerRequest) error {
	store := s.h.cfg.Store
	wait, cancel := context.WithTimeout(ctx, catchUpLimit)
	defer cancel()
	seen := req.GetHighestPosition()
	generation := s.h.position(0).GetGeneration()
	if seen.GetGeneration() <= generation {
		want := req.GetRegistrationRevision()
		if seen.GetGeneration() == generation {
			want = max(want, seen.GetRevision())
		}
		if store.WaitRevision(wait, want) == nil {
			return nil
		}
		if ctx.Err() != nil {
			return rpc.FromError(ctx.Err())
		}
		revision, err := store.CurrentRevision(ctx)
		if err != nil {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE, "%w", err).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
		}
		if revision >= seen.GetRevision() {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND,
				"this controller knows the metadata up to revision %d and the registration is of %d; try again", store.Revision(), want)
		}
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED,
		"broker %d has seen metadata of %d/%d, which etcd does not know any more: etcd went back in time; restore the mesh before anything else",
		req.GetBroker().GetId(), seen.GetGeneration(), seen.GetRevision())
}

// checkPredecessor refuses a newcomer while the life on record still answers.
func (s *controllerServer) checkPredecessor(ctx context.Context, newcomer cluster.Process) error {
	var on *cluster.Entry[cluster.Broker]
	registered := false
	s.h.cfg.Store.View(func(state *cluster.State, _ int64) {
		on = state.Broker(newcomer.ID)
		reg := state.Registration(cluster.KindBroker, newcomer.ID)
		registered = reg != nil && reg.Value.Process == newcomer
	})
	if on == nil || on.Value.Process == newcomer || on.Value.Fenced || !registered {
		return nil // one that does not hold the registration key is refused for that
	}
	verdict := s.h.cfg.Prober.Probe(ctx, registry.Target{
		Kind:    controllerv1.ServiceKind_SERVICE_KIND_BROKER,
		Process: processMessage(on.Value.Process), Address: on.Value.Address,
	})
	if verdict != registry.Alive {
		// Dead, or silent with its key gone, which is what fences it.
		return nil
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID,
		"broker %d is running already, at %s; stop it, or give this process another node.id", newcomer.ID, on.Value.Address)
}

// ProposeIsr takes a leader's proposal.
func (s *controllerServer) ProposeIsr(ctx context.Context, req *controllerv1.ProposeIsrRequest) (*controllerv1.ProposeIsrResponse, error) {
	leader, err := life(req.GetLeader(), "the proposing leader")
	if err != nil {
		return nil, err
	}
	id, err := topicid.FromBytes(req.GetTopicId())
	if err != nil {
		return nil, invalid("%v", err)
	}
	proposal := cluster.ISRProposal{
		Leader: leader, Topic: id, Partition: req.GetPartition(),
		LeaderEpoch: req.GetLeaderEpoch(), PartitionEpoch: req.GetPartitionEpoch(),
	}
	for _, p := range req.GetIsr() {
		proposal.ISR = append(proposal.ISR, cluster.Process{ID: p.GetId(), Incarnation: p.GetIncarnation()})
	}
	s.upTo(ctx, func(state *cluster.State) bool {
		p := state.Partition(id, proposal.Partition)
		return p != nil && p.Value.LeaderEpoch >= proposal.LeaderEpoch && p.Value.PartitionEpoch >= proposal.PartitionEpoch
	})
	position, err := s.h.command(ctx, reconcile.Command{
		Name: "propose isr", Batch: true,
		Plan: func(state *cluster.State, attempt int) (cluster.Plan, error) {
			plan, err := cluster.ProposeISR(state, proposal)
			if err != nil && attempt > 0 {
				return cluster.Plan{}, nil // settled by an earlier attempt; the record tells
			}
			return plan, err
		},
	})
	if err != nil {
		return nil, err
	}
	resp := &controllerv1.ProposeIsrResponse{Position: position}
	s.h.cfg.Store.View(func(state *cluster.State, _ int64) {
		if p := state.Partition(id, req.GetPartition()); p != nil {
			resp.Partition = partitionMessage(p.Value, true)
		}
	})
	return resp, nil
}

// upTo brings the state up to date if it lacks what the caller has seen: a caller that
// watches a standby may be ahead of the leader by a moment, and what it tells would
// otherwise be lost or refused.
func (s *controllerServer) upTo(ctx context.Context, has func(*cluster.State) bool) {
	behind := false
	s.h.cfg.Store.View(func(state *cluster.State, _ int64) { behind = !has(state) })
	if !behind {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpLimit)
	defer cancel()
	if err := s.h.cfg.Store.Sync(ctx); err != nil {
		s.h.cfg.Logger.Debug("cannot catch up with a caller", "error", err)
	}
}

// ReportReplicas takes a living broker's news of its replicas.
func (s *controllerServer) ReportReplicas(ctx context.Context, req *controllerv1.ReportReplicasRequest) (*controllerv1.ReportReplicasResponse, error) {
	broker, err := life(req.GetBroker(), "the reporting broker")
	if err != nil {
		return nil, err
	}
	told, err := vouches(broker, req.GetVouches())
	if err != nil {
		return nil, err
	}
	if err := s.h.cfg.Loop.CheckLeading(); err != nil {
		return nil, err
	}
	s.upTo(ctx, func(state *cluster.State) bool {
		return !slices.ContainsFunc(told, func(v cluster.Vouch) bool { return state.Partition(v.Topic, v.Partition) == nil })
	})
	s.h.cfg.Store.Remember(func(state *cluster.State) { state.NoteReplicas(broker, told) })
	position, err := s.h.do(ctx, "report replicas", func(state *cluster.State, _ int) (cluster.Plan, error) {
		return cluster.ReportReplicas(state, broker, told)
	}, nil)
	if err != nil {
		return nil, err
	}
	bad := 0
	for _, v := range told {
		if v.Verdict != cluster.Intact {
			bad++
		}
	}
	if bad > 0 {
		s.h.cfg.Logger.Warn("replicas barred", "broker", broker.ID, "broker_incarnation", broker.Incarnation, "count", bad,
			"reason", "the broker says that they are damaged or lost", "revision", position.GetRevision())
	}
	return &controllerv1.ReportReplicasResponse{Position: position}, nil
}

// ConfirmDeletion takes a broker's word that it holds no replica of some topics.
func (s *controllerServer) ConfirmDeletion(ctx context.Context, req *controllerv1.ConfirmDeletionRequest) (*controllerv1.ConfirmDeletionResponse, error) {
	broker, err := life(req.GetBroker(), "the confirming broker")
	if err != nil {
		return nil, err
	}
	if len(req.GetTopicIds()) > maxConfirmed {
		return nil, invalid("%d topics confirmed at once; at most %d", len(req.GetTopicIds()), maxConfirmed)
	}
	ids := make([][16]byte, 0, len(req.GetTopicIds()))
	for _, raw := range req.GetTopicIds() {
		id, err := topicid.FromBytes(raw)
		if err != nil {
			return nil, invalid("%v", err)
		}
		ids = append(ids, id)
	}
	s.upTo(ctx, func(state *cluster.State) bool {
		return !slices.ContainsFunc(ids, func(id [16]byte) bool { return state.Deletion(id) == nil })
	})
	if _, err := s.h.do(ctx, "confirm deletion", func(state *cluster.State, _ int) (cluster.Plan, error) {
		return cluster.ConfirmDeletion(state, broker, ids)
	}, nil); err != nil {
		return nil, err
	}
	return &controllerv1.ConfirmDeletionResponse{}, nil
}

// AllocateProducerIds hands out a block. A block whose answer is lost stays
// unused.
func (s *controllerServer) AllocateProducerIds(ctx context.Context, req *controllerv1.AllocateProducerIdsRequest) (*controllerv1.AllocateProducerIdsResponse, error) {
	if _, err := life(req.GetProcess(), "the asking process"); err != nil {
		return nil, err
	}
	var first int64
	if _, err := s.h.do(ctx, "allocate producer ids", func(state *cluster.State, _ int) (plan cluster.Plan, err error) {
		plan, first, err = cluster.AllocateProducerIDs(state)
		return plan, err
	}, nil); err != nil {
		return nil, err
	}
	return &controllerv1.AllocateProducerIdsResponse{FirstProducerId: first, Count: cluster.ProducerIDBlock}, nil
}

// EnsureInternalTopic creates an internal topic if it does not exist.
func (s *controllerServer) EnsureInternalTopic(ctx context.Context, req *controllerv1.EnsureInternalTopicRequest) (*controllerv1.EnsureInternalTopicResponse, error) {
	var outcome cluster.TopicOutcome
	created := false
	position, err := s.h.do(ctx, "ensure internal topic", func(state *cluster.State, _ int) (cluster.Plan, error) {
		id, shift, err := draw()
		if err != nil {
			return cluster.Plan{}, err
		}
		var plan cluster.Plan
		plan, outcome, err = cluster.EnsureInternalTopic(state, s.h.cfg.Limits, req.GetName(), id, shift)
		created = created || !plan.IsEmpty()
		return plan, err
	}, nil)
	if err != nil {
		return nil, err
	}
	if created {
		s.h.cfg.Logger.Info("topic created", "topic", outcome.Name, "topic_id", outcome.ID.String(), "partitions", outcome.Partitions, "internal", true)
	}
	return &controllerv1.EnsureInternalTopicResponse{TopicId: outcome.ID.Bytes(), Position: position}, nil
}

// GetReach tells whom this controller reaches, whether it leads or not.
func (s *controllerServer) GetReach(ctx context.Context, _ *controllerv1.GetReachRequest) (*controllerv1.GetReachResponse, error) {
	resp := &controllerv1.GetReachResponse{Controller: processMessage(s.h.cfg.Self)}
	for life := range s.h.cfg.Liveness.Reach(ctx) {
		resp.Brokers = append(resp.Brokers, processMessage(life))
	}
	slices.SortFunc(resp.Brokers, func(a, b *typev1.Process) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return resp, nil
}
