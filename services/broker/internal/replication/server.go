package replication

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

const (
	// DefaultWindow is how many bytes of a partition may be on the way to a follower
	// that has not stored them yet.
	DefaultWindow = 1 << 20
	// MaxStreamBytes bounds that for all partitions of a stream together.
	MaxStreamBytes = 64 << 20
	// maxWindow bounds what a follower may ask for.
	maxWindow = 16 << 20
	// maxRun is how much of one partition goes in one message, so that partitions
	// take turns and a window holds several runs.
	maxRun = 256 << 10
	// maxProducersPart is how much of a snapshot of producers goes in one message.
	maxProducersPart = 1 << 20
	// maxSessions bounds the sessions of a stream.
	maxSessions = 100_000
	// maxMarks bounds one message of watermarks.
	maxMarks = 512
	// HeartbeatInterval is how often a stream says something, whatever there is to say.
	HeartbeatInterval = 250 * time.Millisecond
	// drainGrace is how long a stream outlives the beginning of a drain at most, so
	// that what has been produced is still committed.
	drainGrace = 2 * time.Second
	// markDelay is how long a watermark may wait for records that carry it along.
	markDelay = 4 * time.Millisecond
)

// ServerConfig is what a Server needs.
type ServerConfig struct {
	Broker *typev1.Process
	Logger *slog.Logger
	// Draining is closed when the server drains.
	Draining <-chan struct{}
	// Image is the picture of the mesh.
	Image   func() *metadata.Image
	Metrics *replica.Metrics
}

// Server is the leader's side: it answers followers.
type Server struct {
	brokerv1.UnimplementedReplicationServiceServer

	cfg      ServerConfig
	replicas atomic.Pointer[replica.Manager]
	readers  sync.WaitGroup

	mu      sync.Mutex
	streams map[partition.Replica]*stream // the newest of each follower
}

// NewServer makes a server that answers STARTING.
func NewServer(cfg ServerConfig) *Server {
	return &Server{cfg: cfg, streams: map[partition.Replica]*stream{}}
}

// Open lets followers reach the replicas.
func (s *Server) Open(m *replica.Manager) { s.replicas.Store(m) }

// Wait returns when nothing of a stream is left; call it once the gRPC server has
// stopped.
func (s *Server) Wait() { s.readers.Wait() }

// Replicate serves one follower: one goroutine reads, this one sends.
func (s *Server) Replicate(gs brokerv1.ReplicationService_ReplicateServer) error {
	m := s.replicas.Load()
	if m == nil {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STARTING, "broker %d is starting: try again shortly", s.cfg.Broker.GetId())
	}
	first, err := gs.Recv()
	if err != nil {
		return endOfStream(err)
	}
	initial := first.GetInitial()
	if initial == nil {
		return protocolError("the first message of a replicate stream must be initial")
	}
	if err := s.checkInitial(initial); err != nil {
		return err
	}
	err = gs.Send(&brokerv1.ReplicateResponse{Message: &brokerv1.ReplicateResponse_Initial{
		Initial: &brokerv1.ReplicateInitialResponse{Handshake: rpc.LocalHandshake(), Leader: s.cfg.Broker},
	}})
	if err != nil {
		return err
	}
	st := newStream(s, m, gs, partition.Replica{Broker: initial.GetFollower().GetId(), Incarnation: initial.GetFollower().GetIncarnation()})
	s.enter(st)
	defer s.leave(st)
	read := make(chan error, 1)
	s.readers.Go(func() { read <- st.read() })
	return st.send(read)
}

// checkInitial refuses a follower that means another leader, or lives in another
// mesh or another life of it.
func (s *Server) checkInitial(in *brokerv1.ReplicateInitial) error {
	if err := rpc.CheckHandshake(in.GetHandshake()); err != nil {
		return err
	}
	image := s.cfg.Image()
	switch want, self := in.GetLeader(), s.cfg.Broker; {
	case in.GetFollower().GetId() <= 0 || in.GetFollower().GetIncarnation() == 0 || in.GetFollower().GetId() == self.GetId():
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the follower names itself broker %d: name the id and incarnation of another broker than %d", in.GetFollower().GetId(), self.GetId())
	case in.GetClusterId() != image.ClusterID():
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER, "broker %d belongs to cluster %q and the follower to %q: check the follower's etcd prefix and its addresses", self.GetId(), image.ClusterID(), in.GetClusterId())
	case want.GetId() != self.GetId() || want.GetIncarnation() != self.GetIncarnation():
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, "broker %d of incarnation %d is not the leader that is meant, broker %d of incarnation %d: refresh the metadata",
			self.GetId(), self.GetIncarnation(), want.GetId(), want.GetIncarnation())
	case in.GetGeneration() != image.Position().Generation:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND, "broker %d knows metadata generation %d and the follower %d: try again when both know the newer one",
			self.GetId(), image.Position().Generation, in.GetGeneration())
	}
	return s.checkLife(partition.Replica{Broker: in.GetFollower().GetId(), Incarnation: in.GetFollower().GetIncarnation()})
}

// checkLife refuses a follower that is an earlier life of its broker: neither the one on
// record nor the one that holds the registration key. It may be one that was cut off and
// replaced under the same id, with another disk. In-sync sets name brokers; so what it
// stores would count for its successor, which does not have it.
func (s *Server) checkLife(follower partition.Replica) error {
	image := s.cfg.Image()
	record := image.Broker(follower.Broker).GetBroker()
	registered := image.Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, follower.Broker).GetProcess()
	if record == nil && registered == nil || record.GetIncarnation() == follower.Incarnation || registered.GetIncarnation() == follower.Incarnation {
		return nil
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, "broker %d of incarnation %d is not the one that the metadata of broker %d knows: go on once it is registered, and stop if another process is",
		follower.Broker, follower.Incarnation, s.cfg.Broker.GetId())
}

// enter makes a stream the newest of its follower and ends the one before.
func (s *Server) enter(st *stream) {
	s.mu.Lock()
	old := s.streams[st.follower]
	s.streams[st.follower] = st
	s.mu.Unlock()
	if old != nil {
		close(old.superseded)
	}
}

func (s *Server) leave(st *stream) {
	s.mu.Lock()
	if s.streams[st.follower] == st {
		delete(s.streams, st.follower)
	}
	s.mu.Unlock()
	st.close()
}

func protocolError(format string, args ...any) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL, format, args...)
}

// endOfStream is nil when the other side has said all it had to say.
func endOfStream(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a signal waits already
	}
}
