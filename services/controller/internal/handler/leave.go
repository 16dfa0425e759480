package handler

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
)

const (
	// leaveLimit bounds how long one request waits for what holds a leave up; the
	// leaver asks again.
	leaveLimit = 4 * time.Second
	// leavePause is the time between two looks at it.
	leavePause = 200 * time.Millisecond
	// answerMargin is what is kept of the caller's time for the answer.
	answerMargin = 250 * time.Millisecond
	// maxBlockers bounds the partitions that an answer names.
	maxBlockers = 100
)

// errBlocked ends a command that has nothing to write because a leave is held up.
var errBlocked = errors.New("the leave is held up")

// RequestLeave grants leave. A broker's grant is the transaction that fences it and
// moves its leaderships; what holds it up is waited for a while and then named. The
// other kinds hold nothing that would have to be moved first.
func (s *controllerServer) RequestLeave(ctx context.Context, req *controllerv1.RequestLeaveRequest) (*controllerv1.RequestLeaveResponse, error) {
	leaver, err := life(req.GetProcess(), "the leaving process")
	if err != nil {
		return nil, err
	}
	if req.GetKind() != controllerv1.ServiceKind_SERVICE_KIND_BROKER {
		if err := s.h.cfg.Loop.CheckLeading(); err != nil {
			return nil, err
		}
		return &controllerv1.RequestLeaveResponse{Granted: true}, nil
	}
	limit := min(leaveLimit, max(req.GetDeadline().AsDuration()/2, leavePause))
	if deadline, ok := ctx.Deadline(); ok {
		// What holds the leave up is to be told before the caller gives the answer up.
		limit = min(limit, max(time.Until(deadline)-answerMargin, answerMargin))
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		blockers, err := s.leave(ctx, waiting, leaver, req.GetDecommission())
		if err != nil {
			return nil, err
		}
		if len(blockers) == 0 {
			return &controllerv1.RequestLeaveResponse{Granted: true}, nil
		}
		if s.allLeaving(leaver, time.Now()) {
			return &controllerv1.RequestLeaveResponse{Blockers: blockerMessages(blockers), AllLeaving: true}, nil
		}
		select {
		case <-time.After(leavePause):
			continue
		case <-waiting.Done():
		}
		return &controllerv1.RequestLeaveResponse{Blockers: blockerMessages(blockers)}, nil
	}
}

// leave tries once: it asks those who are to take over whether they live, and then
// grants leave if enough of them answered before waiting ended.
func (s *controllerServer) leave(ctx, waiting context.Context, leaver cluster.Process, decommission bool) ([]cluster.Blocker, error) {
	var wanted []cluster.Process
	s.h.cfg.Store.View(func(state *cluster.State, _ int64) { wanted = cluster.LeaveProbes(state, leaver) })
	probes := s.h.cfg.Liveness.Probe(waiting, wanted)
	var blockers []cluster.Blocker
	changes := false
	position, err := s.h.command(ctx, reconcile.Command{
		Name: "request leave",
		Plan: func(state *cluster.State, _ int) (plan cluster.Plan, err error) {
			if plan, blockers, err = cluster.Leave(state, leaver, probes, decommission); err == nil && len(blockers) > 0 {
				err = errBlocked
			}
			changes = changes || !plan.IsEmpty()
			return plan, err
		},
	})
	if len(blockers) > 0 && err != nil {
		return blockers, nil
	}
	if err == nil && changes {
		s.h.cfg.Logger.Info("broker fenced", "broker", leaver.ID, "broker_incarnation", leaver.Incarnation,
			"reason", "it was granted leave", "decommission", decommission, "revision", position.GetRevision())
	}
	return nil, err
}

// askedLately is how long ago a broker may have asked for leave to count as leaving:
// it asks again sooner.
const askedLately = 2 * time.Second

// leavers remembers who has asked for leave and was held up.
type leavers struct {
	mu    sync.Mutex
	asked map[cluster.Process]time.Time
}

// allLeaving takes note of a leaver and reports whether every broker that lives has
// asked for leave of late, and there are several: the mesh is being stopped.
func (s *controllerServer) allLeaving(leaver cluster.Process, now time.Time) bool {
	l := &s.leavers
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked == nil {
		l.asked = map[cluster.Process]time.Time{}
	}
	l.asked[leaver] = now
	maps.DeleteFunc(l.asked, func(_ cluster.Process, at time.Time) bool { return now.Sub(at) > askedLately })
	live, all := 0, true
	s.h.cfg.Store.View(func(state *cluster.State, _ int64) {
		for _, b := range state.Brokers() {
			if b.Value.Fenced {
				continue
			}
			live++
			if _, asks := l.asked[b.Value.Process]; !asks {
				all = false
			}
		}
	})
	return all && live > 1
}

func blockerMessages(blockers []cluster.Blocker) []*controllerv1.LeaveBlocker {
	list := make([]*controllerv1.LeaveBlocker, 0, min(len(blockers), maxBlockers))
	for _, b := range blockers[:min(len(blockers), maxBlockers)] {
		list = append(list, &controllerv1.LeaveBlocker{
			Topic: b.Name, Partition: b.Partition, Error: rpc.ToProto(reconcile.FromRejection(b.Rejection)),
		})
	}
	return list
}
