package metadata

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// attemptLimit bounds one attempt of a call, so that a controller that hangs does
// not use up the caller's whole deadline.
const attemptLimit = 10 * time.Second

// lookupLimit bounds the look for controllers beside those that are known.
const lookupLimit = 500 * time.Millisecond

// ControllersOptions tell a Controllers where controllers are.
type ControllersOptions struct {
	// Watcher's image names the elected controller; nil: ask the discovered ones.
	Watcher *Watcher
	// Discover returns addresses of controllers, in no order.
	Discover func(ctx context.Context) ([]string, error)
	Pool     Conns
	Logger   *slog.Logger
}

// Controllers calls the elected controller. Each call finds it by the image, by
// discovery and by NOT_CONTROLLER hints, and is repeated until it is answered or
// its context ends; give each context a deadline. Errors are *rpc.Error; when the
// context ends, the last failure is returned, which says more than the deadline.
// Mutations without a request id get one, so that repeating them is harmless.
// The methods are safe for concurrent use.
type Controllers struct {
	opts ControllersOptions

	mu    sync.Mutex
	known []string // addresses that answered, the latest last
}

// maxKnown bounds the addresses that are remembered.
const maxKnown = 8

// remember keeps the address of a controller that answered: with etcd away, and every
// lease with it, nobody else tells of it.
func (c *Controllers) remember(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.known, addr); i >= 0 {
		c.known = slices.Delete(c.known, i, i+1)
	}
	c.known = append(c.known, addr)
	c.known = c.known[max(0, len(c.known)-maxKnown):]
}

// remembered lists those addresses, the latest first.
func (c *Controllers) remembered() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.known)
	slices.Reverse(list)
	return list
}

// NewControllers makes a client; it opens nothing by itself.
func NewControllers(opts ControllersOptions) *Controllers { return &Controllers{opts: opts} }

// RegisterBroker brings a broker's registration and vouches.
func (c *Controllers) RegisterBroker(ctx context.Context, req *controllerv1.RegisterBrokerRequest) (*controllerv1.RegisterBrokerResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.RegisterBrokerResponse, error) {
		return controllerv1.NewControllerServiceClient(conn).RegisterBroker(ctx, req)
	})
}

// ProposeIsr brings a leader's proposal.
func (c *Controllers) ProposeIsr(ctx context.Context, req *controllerv1.ProposeIsrRequest) (*controllerv1.ProposeIsrResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.ProposeIsrResponse, error) {
		return controllerv1.NewControllerServiceClient(conn).ProposeIsr(ctx, req)
	})
}

// RequestLeave asks for leave.
func (c *Controllers) RequestLeave(ctx context.Context, req *controllerv1.RequestLeaveRequest) (*controllerv1.RequestLeaveResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.RequestLeaveResponse, error) {
		return controllerv1.NewControllerServiceClient(conn).RequestLeave(ctx, req)
	})
}

// ConfirmDeletion tells that a broker has deleted topics' replicas.
func (c *Controllers) ConfirmDeletion(ctx context.Context, req *controllerv1.ConfirmDeletionRequest) (*controllerv1.ConfirmDeletionResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.ConfirmDeletionResponse, error) {
		return controllerv1.NewControllerServiceClient(conn).ConfirmDeletion(ctx, req)
	})
}

// ReportReplicas tells news of a living broker's replicas.
func (c *Controllers) ReportReplicas(ctx context.Context, req *controllerv1.ReportReplicasRequest) (*controllerv1.ReportReplicasResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.ReportReplicasResponse, error) {
		return controllerv1.NewControllerServiceClient(conn).ReportReplicas(ctx, req)
	})
}

// AllocateProducerIds takes a block of producer ids. A repeated attempt may
// leave a block unused.
func (c *Controllers) AllocateProducerIds(ctx context.Context, req *controllerv1.AllocateProducerIdsRequest) (*controllerv1.AllocateProducerIdsResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.AllocateProducerIdsResponse, error) {
		return controllerv1.NewControllerServiceClient(conn).AllocateProducerIds(ctx, req)
	})
}

// EnsureInternalTopic creates an internal topic if it does not exist.
func (c *Controllers) EnsureInternalTopic(ctx context.Context, req *controllerv1.EnsureInternalTopicRequest) (*controllerv1.EnsureInternalTopicResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.EnsureInternalTopicResponse, error) {
		return controllerv1.NewControllerServiceClient(conn).EnsureInternalTopic(ctx, req)
	})
}

// CreateTopics creates topics.
func (c *Controllers) CreateTopics(ctx context.Context, req *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
	if req.GetRequestId() == "" {
		req.RequestId = newRequestID()
	}
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.CreateTopicsResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).CreateTopics(ctx, req)
	})
}

// DeleteTopics deletes topics.
func (c *Controllers) DeleteTopics(ctx context.Context, req *controllerv1.DeleteTopicsRequest) (*controllerv1.DeleteTopicsResponse, error) {
	if req.GetRequestId() == "" {
		req.RequestId = newRequestID()
	}
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.DeleteTopicsResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).DeleteTopics(ctx, req)
	})
}

// AlterTopic changes a topic.
func (c *Controllers) AlterTopic(ctx context.Context, req *controllerv1.AlterTopicRequest) (*controllerv1.AlterTopicResponse, error) {
	if req.GetRequestId() == "" {
		req.RequestId = newRequestID()
	}
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.AlterTopicResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).AlterTopic(ctx, req)
	})
}

// ElectLeaders elects preferred or, by an operator's will, unclean leaders.
func (c *Controllers) ElectLeaders(ctx context.Context, req *controllerv1.ElectLeadersRequest) (*controllerv1.ElectLeadersResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.ElectLeadersResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).ElectLeaders(ctx, req)
	})
}

// PlanReassignment says what a reassignment would move.
func (c *Controllers) PlanReassignment(ctx context.Context, req *controllerv1.PlanReassignmentRequest) (*controllerv1.PlanReassignmentResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.PlanReassignmentResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).PlanReassignment(ctx, req)
	})
}

// ApplyReassignment begins a planned reassignment.
func (c *Controllers) ApplyReassignment(ctx context.Context, req *controllerv1.ApplyReassignmentRequest) (*controllerv1.ApplyReassignmentResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.ApplyReassignmentResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).ApplyReassignment(ctx, req)
	})
}

// ListReassignments tells what is being reassigned.
func (c *Controllers) ListReassignments(ctx context.Context, req *controllerv1.ListReassignmentsRequest) (*controllerv1.ListReassignmentsResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.ListReassignmentsResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).ListReassignments(ctx, req)
	})
}

// ControlReassignment pauses, resumes or cancels a reassignment.
func (c *Controllers) ControlReassignment(ctx context.Context, req *controllerv1.ControlReassignmentRequest) (*controllerv1.ControlReassignmentResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.ControlReassignmentResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).ControlReassignment(ctx, req)
	})
}

// RemoveBroker forgets a broker that holds nothing and does not run.
func (c *Controllers) RemoveBroker(ctx context.Context, req *controllerv1.RemoveBrokerRequest) (*controllerv1.RemoveBrokerResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.RemoveBrokerResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).RemoveBroker(ctx, req)
	})
}

// DescribeCluster tells the elected controller's view.
func (c *Controllers) DescribeCluster(ctx context.Context, req *controllerv1.DescribeClusterRequest) (*controllerv1.DescribeClusterResponse, error) {
	return call(ctx, c, func(ctx context.Context, conn *grpc.ClientConn) (*controllerv1.DescribeClusterResponse, error) {
		return controllerv1.NewAdminServiceClient(conn).DescribeCluster(ctx, req)
	})
}

func newRequestID() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// call repeats one call until it is answered or ctx ends.
func call[R any](ctx context.Context, c *Controllers, do func(context.Context, *grpc.ClientConn) (R, error)) (R, error) {
	var zero R
	var last *rpc.Error
	hint := ""
	tried := map[string]bool{}
	backoff := rpc.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	for {
		addr := hint
		hint = ""
		if addr == "" {
			addr = c.choose(ctx, tried)
		}
		if addr == "" {
			if last == nil { // what a controller said before says more
				last = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE,
					"no controller is known; check that a controller and etcd run")
			}
		} else {
			resp, err := attempt(ctx, c, addr, do)
			if err == nil {
				c.remember(addr)
				return resp, nil
			}
			e := rpc.FromError(err)
			if last == nil || !rpc.Ended(ctx) {
				last = e
			}
			if !again(e) {
				return zero, e
			}
			if l := e.Leader; l != nil && l.GetAddress() != "" && l.GetAddress() != addr {
				hint = l.GetAddress()
				if !tried[hint] {
					tried[addr] = true
					continue
				}
			}
			tried[addr] = true
			c.opts.Logger.Debug("asking a controller again", "controller", addr, "error", e)
		}
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
			return zero, last
		}
	}
}

// attempt makes one call at one address.
func attempt[R any](ctx context.Context, c *Controllers, addr string, do func(context.Context, *grpc.ClientConn) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	conn, err := c.opts.Pool.Get(addr)
	if err != nil {
		var zero R
		return zero, err
	}
	if c.opts.Watcher != nil {
		done := make(chan struct{})
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			if c.deposed(ctx, done, addr) {
				cancel()
			}
		}()
		defer func() {
			close(done)
			<-watching
		}()
	}
	return do(ctx, conn)
}

// deposed waits until the image names another leader than when it was called, at
// another address than the one that is being asked: that one may hang.
func (c *Controllers) deposed(ctx context.Context, done <-chan struct{}, addr string) bool {
	before := c.opts.Watcher.Image().ControllerLeader().GetElectionRevision()
	for {
		image, changed := c.opts.Watcher.Watch()
		if l := image.ControllerLeader(); l.GetElectionRevision() > before && l.GetAddress() != addr {
			return true
		}
		select {
		case <-changed:
		case <-done:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// again tells whether another attempt can end otherwise.
func again(e *rpc.Error) bool {
	switch e.Reason {
	case typev1.ErrorReason_ERROR_REASON_NOT_CONTROLLER,
		typev1.ErrorReason_ERROR_REASON_CANCELLED, // of an attempt; the caller's own end is seen by its context
		typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE,
		typev1.ErrorReason_ERROR_REASON_STALE_CONTROLLER,
		typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE,
		typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND,
		typev1.ErrorReason_ERROR_REASON_UNREACHABLE,
		typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST,
		typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED,
		typev1.ErrorReason_ERROR_REASON_STARTING,
		typev1.ErrorReason_ERROR_REASON_DRAINING:
		return true
	}
	return false
}

// choose picks the address to ask: the elected controller of the image, else one
// that has not been tried, else any. Empty: none is known.
func (c *Controllers) choose(ctx context.Context, tried map[string]bool) string {
	var candidates []string
	if c.opts.Watcher != nil {
		image := c.opts.Watcher.Image()
		if l := image.ControllerLeader(); l != nil {
			candidates = append(candidates, l.GetAddress())
		}
		for _, r := range image.Registrations(controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER) {
			candidates = append(candidates, r.GetAddress())
		}
	}
	for _, addr := range candidates {
		if !tried[addr] {
			return addr
		}
	}
	if c.opts.Discover != nil {
		lookup, cancel := ctx, context.CancelFunc(func() {})
		if len(candidates)+len(c.remembered()) > 0 {
			// With etcd away nobody is found there, and those who are known can be asked
			// again.
			lookup, cancel = context.WithTimeout(ctx, lookupLimit)
		}
		found, err := c.opts.Discover(lookup)
		cancel()
		if err != nil {
			c.opts.Logger.Debug("cannot look up controllers", "error", err)
		}
		candidates = append(candidates, found...)
	}
	candidates = append(candidates, c.remembered()...)
	for _, addr := range candidates {
		if !tried[addr] {
			return addr
		}
	}
	clear(tried)
	if len(candidates) > 0 {
		return candidates[0]
	}
	return ""
}
