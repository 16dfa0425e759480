package replication

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

const (
	// connLane keeps replication apart from what clients do on the same address.
	connLane = "replication"
	// maxPerMessage bounds the partitions of one hello or one message of positions.
	maxPerMessage = 1000
	// linger is how long a link outlives what is followed on it.
	linger = 3 * time.Second
	// openLimit bounds the opening of a stream.
	openLimit = 3 * time.Second
)

// link is the way to one life of a leader: one stream, opened anew when it breaks,
// for as long as something is followed on it.
type link struct {
	f      *Fetchers
	leader partition.Replica

	mu       sync.Mutex
	fetches  map[int64]*fetch // by number on the link
	lastWire int64
	todo     []*fetch // have a hello or a position to send
	stops    []int64
	dead     bool
	ticks    int64            // of listen so far
	asked    map[int64]*fetch // by number: their hello has not been answered

	news    chan struct{}
	heard   atomic.Bool
	silence atomic.Int32 // ticks without a word
	deaf    atomic.Bool  // a hello has not been answered for too long
	broken  chan struct{}
}

func newLink(f *Fetchers, leader partition.Replica) *link {
	return &link{
		f: f, leader: leader, fetches: map[int64]*fetch{}, asked: map[int64]*fetch{},
		news: make(chan struct{}, 1), broken: make(chan struct{}, 1),
	}
}

// add makes a session.
func (l *link) add(r *replica.Replica, sess int64, leaderEpoch int32) *fetch {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastWire++
	f := &fetch{l: l, r: r, sess: sess, wire: l.lastWire, epoch: leaderEpoch, dead: l.dead}
	if !l.dead {
		l.fetches[f.wire] = f
	}
	return f
}

func (l *link) wanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.fetches) > 0
}

// listen counts the silence, and tells of it once.
func (l *link) listen() {
	l.countUnanswered()
	if l.heard.Swap(false) {
		if l.silence.Swap(0) >= unreachableTicks {
			l.f.cfg.Logger.Info("hears a leader again", "leader", l.leader.Broker, "incarnation", l.leader.Incarnation)
		}
		return
	}
	silence := l.silence.Add(1)
	if silence == unreachableTicks && l.wanted() {
		l.f.cfg.Logger.Warn("has not heard a leader for a while; tells the controller", "leader", l.leader.Broker, "incarnation", l.leader.Incarnation, "silence", unreachableTicks*listenTick)
	}
	if silence%brokenTicks == 0 {
		signal(l.broken)
	}
}

// countUnanswered looks whether a hello waits for its answer too long, and tells of
// it once. A leader answers each, and be it with a refusal, unless it has not heard of
// the leader epoch that the hello names.
func (l *link) countUnanswered() {
	l.mu.Lock()
	l.ticks++
	var late *fetch
	for _, f := range l.asked {
		if l.ticks-f.askedAt >= deafTicks {
			late = f
			break
		}
	}
	l.mu.Unlock()
	if was := l.deaf.Swap(late != nil); late != nil && !was {
		l.f.cfg.Logger.Warn("a leader does not answer a hello; it may not have heard that it leads; tells the controller",
			"leader", l.leader.Broker, "incarnation", l.leader.Incarnation, "replica", late.r.Name(), "leader_epoch", late.epoch, "waited", deafTicks*listenTick)
	}
}

// run keeps a stream open until nothing has been followed for a while.
func (l *link) run() {
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	failing := false
	for {
		if !l.awaitWanted() && l.f.retire(l) {
			return
		}
		worked, err := l.once()
		if worked {
			backoff.Reset()
		}
		if err != nil && l.f.ctx.Err() == nil && (worked || !failing) {
			l.f.cfg.Logger.Warn("no replication stream to a leader; trying again", "leader", l.leader.Broker, "incarnation", l.leader.Incarnation, "error", err)
		}
		failing = err != nil
		l.pause(backoff.Next())
	}
}

// awaitWanted waits for something to follow; false: there is nothing, and has not been
// for a while, or everything ends. Between the sessions of a leader there is nothing
// for a moment, which must not make its silence begin anew.
func (l *link) awaitWanted() bool {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for !l.wanted() {
		select {
		case <-timer.C:
			return false
		case <-l.news:
		case <-l.f.ctx.Done():
			return false
		}
	}
	return l.f.ctx.Err() == nil
}

// pause waits.
func (l *link) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.f.ctx.Done():
	}
}

// once opens a stream and works on it until it breaks or is not needed any more;
// worked: the leader has accepted it.
func (l *link) once() (worked bool, err error) {
	ctx, cancel := context.WithCancel(l.f.ctx)
	defer cancel()
	stream, err := l.open(ctx, cancel)
	if err != nil {
		return false, err
	}
	defer l.lost()
	select {
	case <-l.broken: // of the time without a stream
	default:
	}
	l.heard.Store(true)
	l.silence.Store(0)
	read := make(chan error, 1)
	go func() { read <- l.read(stream) }()
	err = l.send(ctx, stream, read)
	cancel()
	// Nothing is delivered any more once the reader has ended.
	rerr := <-read
	if !l.wanted() {
		return true, nil
	}
	return true, cmp.Or(err, rerr)
}

// open opens a stream and waits for the leader to accept it.
func (l *link) open(ctx context.Context, cancel context.CancelFunc) (brokerv1.ReplicationService_ReplicateClient, error) {
	addr := l.f.address(l.leader)
	if addr == "" {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the metadata has no address for broker %d of incarnation %d", l.leader.Broker, l.leader.Incarnation)
	}
	conn, err := l.f.cfg.Pool.GetLane(addr, connLane)
	if err != nil {
		return nil, err
	}
	limit := time.AfterFunc(openLimit, cancel)
	defer limit.Stop()
	conn.ResetConnectBackoff() // the waiting is done here
	stream, err := brokerv1.NewReplicationServiceClient(conn).Replicate(ctx)
	if err != nil {
		return nil, err
	}
	image := l.f.cfg.Image()
	err = stream.Send(&brokerv1.ReplicateRequest{Message: &brokerv1.ReplicateRequest_Initial{Initial: &brokerv1.ReplicateInitial{
		Handshake: rpc.LocalHandshake(), Follower: l.f.cfg.Broker, Leader: &typev1.Process{Id: l.leader.Broker, Incarnation: l.leader.Incarnation},
		ClusterId: image.ClusterID(), Generation: image.Position().Generation,
	}}})
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	resp, err := stream.Recv() // tells why, if the sending failed
	if err != nil {
		return nil, err
	}
	initial := resp.GetInitial()
	if initial == nil {
		return nil, protocolError("broker %d answers initial with something else", l.leader.Broker)
	}
	if err := rpc.CheckHandshake(initial.GetHandshake()); err != nil {
		return nil, err
	}
	if got := initial.GetLeader(); got.GetId() != l.leader.Broker || got.GetIncarnation() != l.leader.Incarnation {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, "at %s answers broker %d of incarnation %d instead of broker %d of incarnation %d: refresh the metadata",
			addr, got.GetId(), got.GetIncarnation(), l.leader.Broker, l.leader.Incarnation)
	}
	return stream, nil
}

// send sends hellos, positions and stops as they come up.
func (l *link) send(ctx context.Context, stream brokerv1.ReplicationService_ReplicateClient, read chan error) error {
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for {
		for _, req := range l.requests() {
			if err := stream.Send(req); err != nil {
				return nil // the reader tells why
			}
		}
		if !l.wanted() {
			idle.Reset(linger)
		}
		select {
		case <-l.news:
		case <-idle.C:
			if !l.wanted() {
				return nil
			}
		case err := <-read:
			read <- err
			return err
		case <-l.broken:
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST, "broker %d has said nothing for %v", l.leader.Broker, brokenTicks*listenTick)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// requests takes what is to be sent.
func (l *link) requests() []*brokerv1.ReplicateRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hellos []*brokerv1.HelloPartition
	var positions []*brokerv1.ReplicaPosition
	for _, f := range l.todo {
		f.queued = false
		if f.dead {
			continue
		}
		if f.hello != nil {
			hellos = append(hellos, f.hello)
			f.hello, f.sent = nil, true
			f.askedAt = l.ticks
			l.asked[f.wire] = f
		}
		if f.told {
			f.told = false
			positions = append(positions, &brokerv1.ReplicaPosition{
				Session: f.wire, LeaderEpoch: f.pos.LeaderEpoch, PartitionEpoch: f.pos.PartEpoch, LastEpoch: f.pos.LastEpoch,
				EndOffset: f.pos.End, DurableEndOffset: f.pos.Durable, LogStartOffset: f.pos.Start,
			})
		}
	}
	l.todo = nil
	var reqs []*brokerv1.ReplicateRequest
	for n := 0; len(l.stops) > 0; l.stops = l.stops[n:] {
		n = min(len(l.stops), maxPerMessage)
		reqs = append(reqs, &brokerv1.ReplicateRequest{Message: &brokerv1.ReplicateRequest_Stop{Stop: &brokerv1.ReplicateStop{Sessions: l.stops[:n]}}})
	}
	l.stops = nil
	for n := 0; len(hellos) > 0; hellos = hellos[n:] {
		n = min(len(hellos), maxPerMessage)
		reqs = append(reqs, &brokerv1.ReplicateRequest{Message: &brokerv1.ReplicateRequest_Hello{Hello: &brokerv1.ReplicateHello{Partitions: hellos[:n]}}})
	}
	for n := 0; len(positions) > 0; positions = positions[n:] {
		n = min(len(positions), maxPerMessage)
		reqs = append(reqs, &brokerv1.ReplicateRequest{Message: &brokerv1.ReplicateRequest_Positions{Positions: &brokerv1.ReplicatePositions{Positions: positions[:n]}}})
	}
	return reqs
}

// read delivers what the leader says until the stream ends.
func (l *link) read(stream brokerv1.ReplicationService_ReplicateClient) error {
	for {
		var resp brokerv1.ReplicateResponse
		payload, err := rpc.Recv(stream, &resp)
		if err != nil {
			return err
		}
		l.heard.Store(true)
		switch msg := resp.GetMessage().(type) {
		case *brokerv1.ReplicateResponse_Batches:
			l.batches(msg.Batches, payload)
			continue
		case *brokerv1.ReplicateResponse_EpochEnd:
			l.epochEnd(msg.EpochEnd)
		case *brokerv1.ReplicateResponse_Watermarks:
			for _, w := range msg.Watermarks.GetWatermarks() {
				if f := l.find(w.GetSession()); f != nil {
					f.r.Watermark(f.sess, f.epoch, w.GetHighWatermark(), w.GetLogStartOffset())
				}
			}
		case *brokerv1.ReplicateResponse_Producers:
			l.producers(msg.Producers)
		case *brokerv1.ReplicateResponse_PartitionError:
			l.refuse(msg.PartitionError)
		default:
			payload.Free()
			return protocolError("broker %d sends something that this release does not know", l.leader.Broker)
		}
		payload.Free()
	}
}

// find gives the fetch of a session, nil if it has ended.
func (l *link) find(wire int64) *fetch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fetches[wire]
}

func (l *link) batches(b *brokerv1.ReplicateBatches, payload *rpc.Payload) {
	f := l.find(b.GetSession())
	if f == nil || payload.Len() == 0 {
		payload.Free()
		return
	}
	l.f.cfg.Metrics.ReplicatedIn(payload.Len())
	f.r.Batches(f.sess, &replica.Run{
		LeaderEpoch: b.GetLeaderEpoch(), Base: b.GetBaseOffset(), End: b.GetNextOffset(), HW: b.GetHighWatermark(),
		Start: b.GetLogStartOffset(), Trace: b.GetTrace(), Payload: payload,
	})
}

// answered gives the fetch whose hello is answered, nil if it has ended.
func (l *link) answered(wire int64) *fetch {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asked, wire)
	return l.fetches[wire]
}

func (l *link) producers(p *brokerv1.ReplicateProducers) {
	if f := l.answered(p.GetSession()); f != nil {
		f.r.Producers(f.sess, p.GetSnapshot(), p.GetLast())
	}
}

func (l *link) epochEnd(e *brokerv1.ReplicateEpochEnd) {
	f := l.answered(e.GetSession())
	if f == nil {
		return
	}
	f.r.EpochEnd(f.sess, replica.EpochEnd{
		LeaderEpoch: e.GetLeaderEpoch(), LastEpoch: e.GetLastEpoch(), End: e.GetEndOffset(), Agreed: e.GetAgreed(),
		LogStart: e.GetLogStartOffset(), HW: e.GetHighWatermark(), TombstonesBelow: e.GetTombstonesRemovedBelow(),
	})
}

// refuse ends a session that the leader does not serve, or no longer.
func (l *link) refuse(e *brokerv1.ReplicateError) {
	l.mu.Lock()
	f := l.fetches[e.GetSession()]
	if f != nil {
		l.remove(f)
	}
	l.mu.Unlock()
	if f == nil {
		return
	}
	l.f.cfg.Logger.Debug("a leader ended the session of a replica", "leader", l.leader.Broker, "replica", f.r.Name(), "error", rpc.FromProto(e.GetError()))
	f.r.LeaderGone(f.sess)
}

// lost ends the sessions that a broken stream had. Those of which the leader has not
// heard wait for the next one.
func (l *link) lost() {
	l.mu.Lock()
	var gone []*fetch
	for _, f := range l.fetches {
		if f.sent {
			l.remove(f)
			gone = append(gone, f)
		}
	}
	l.stops = nil
	l.mu.Unlock()
	for _, f := range gone {
		f.r.LeaderGone(f.sess)
	}
}
