package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

const (
	// leaveShare of shutdown.timeout is how long a stop may wait for leave.
	leaveShare = 3
	// leaveAttempt bounds one request, and leavePause lies between two.
	leaveAttempt = time.Second
	leavePause   = 100 * time.Millisecond
	// leaveFailures ends the asking: with every controller away nobody can grant it.
	leaveFailures = 2
	// leaveLinger is how long clients may still come to be sent to the new leaders.
	leaveLinger = 200 * time.Millisecond
	// namedBlockers bounds the partitions of a log line.
	namedBlockers = 5
)

// errAllLeaving gives a leave up: nobody stays to take over.
var errAllLeaving = errors.New("every broker is leaving")

// runLeave is the first part to stop: it moves the leaderships elsewhere while
// everything still serves, so that clients are sent on with a hint and lose nothing.
func (b *Broker) runLeave(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	if b.cfg.ControlledShutdown && b.regressed.Load() == nil {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.ShutdownTimeout/leaveShare)
		defer cancel()
		b.leave(limit)
	}
	return nil
}

// leave asks for leave until it is granted and the metadata shows it, or ctx ends.
func (b *Broker) leave(ctx context.Context) {
	image := b.watcher.Image()
	if !b.unfenced(image) || !b.hasPartners(image) {
		return // nobody could take over
	}
	b.leaving.Store(true)
	began := time.Now()
	blockers, err := b.awaitLeave(ctx)
	if errors.Is(err, errAllLeaving) {
		b.logger.Info("stops without leave, as every broker does")
		return
	}
	if err == nil {
		b.logger.Info("leads nothing any more and stops", "took", time.Since(began).Round(time.Millisecond))
		return
	}
	b.logger.Warn("stops without leave: what it leads is without a leader until others are elected", "waited", time.Since(began).Round(time.Millisecond),
		"error", err, "blockers", len(blockers), "partitions", describeBlockers(blockers))
}

// awaitLeave returns what holds the leave up, and why it was given up.
func (b *Broker) awaitLeave(ctx context.Context) (blockers []*controllerv1.LeaveBlocker, err error) {
	for failures := 0; ; {
		resp, err := b.requestLeave(ctx)
		switch {
		case err == nil && resp.GetGranted():
			return nil, b.awaitLeadingNothing(ctx)
		case err == nil && resp.GetAllLeaving():
			return resp.GetBlockers(), errAllLeaving
		case err == nil:
			blockers, failures = resp.GetBlockers(), 0
		case ctx.Err() != nil:
			return blockers, err
		default:
			if failures++; failures >= leaveFailures || !rpc.Retryable(err) {
				return blockers, err
			}
		}
		select {
		case <-time.After(leavePause):
		case <-ctx.Done():
			return blockers, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "leave was not granted within a third of shutdown.timeout")
		}
	}
}

func (b *Broker) requestLeave(ctx context.Context) (*controllerv1.RequestLeaveResponse, error) {
	deadline, _ := ctx.Deadline()
	left := max(time.Until(deadline), 0)
	ctx, cancel := context.WithTimeout(ctx, leaveAttempt)
	defer cancel()
	return b.controllers.RequestLeave(ctx, &controllerv1.RequestLeaveRequest{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: b.self, Deadline: durationpb.New(left),
	})
}

// awaitLeadingNothing waits until the replicas have been told that this broker leads
// nothing: from then on they send clients to the new leaders.
func (b *Broker) awaitLeadingNothing(ctx context.Context) error {
	for {
		image, changed := b.watcher.Watch()
		if !b.leads(image) && !b.replicas.Load().Leads() {
			select {
			case <-time.After(leaveLinger):
			case <-ctx.Done():
			}
			return nil
		}
		select {
		case <-changed:
		case <-time.After(leavePause):
		case <-ctx.Done():
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "leave was granted, and the metadata did not show it in time")
		}
	}
}

// hasPartners reports whether another broker holds something that this one holds.
func (b *Broker) hasPartners(image *metadata.Image) bool {
	return anyPartition(image, func(p *controllerv1.Partition) bool {
		return len(p.GetReplicas()) > 1 && slices.Contains(p.GetReplicas(), b.self.GetId())
	})
}

func (b *Broker) leads(image *metadata.Image) bool {
	return anyPartition(image, func(p *controllerv1.Partition) bool {
		return p.GetLeader().GetId() == b.self.GetId() && p.GetLeader().GetIncarnation() == b.self.GetIncarnation()
	})
}

func anyPartition(image *metadata.Image, holds func(*controllerv1.Partition) bool) bool {
	for _, t := range image.Topics() {
		if !t.Deleting && slices.ContainsFunc(t.Partitions(), holds) {
			return true
		}
	}
	return false
}

func describeBlockers(blockers []*controllerv1.LeaveBlocker) string {
	var parts []string
	for _, p := range blockers[:min(len(blockers), namedBlockers)] {
		parts = append(parts, fmt.Sprintf("%s-%d: %s", p.GetTopic(), p.GetPartition(), p.GetError().GetMessage()))
	}
	if len(blockers) > namedBlockers {
		parts = append(parts, "…")
	}
	return strings.Join(parts, "; ")
}
