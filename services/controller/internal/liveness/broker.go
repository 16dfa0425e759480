package liveness

import (
	"context"
	"fmt"
	"sync"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

const (
	// probeInterval is the time between questions to a broker by the leader;
	// standbys ask five times less often.
	probeInterval   = 200 * time.Millisecond
	standbyInterval = 5 * probeInterval
	// streamLimit bounds the opening of a health stream.
	streamLimit = time.Second
	// maxUnanswered bounds the questions of a stream whose sending is remembered.
	maxUnanswered = 64
)

// watchBroker keeps a health stream to a broker until it is proved dead or ctx
// ends.
func (m *Monitor) watchBroker(ctx context.Context, t target, nudge <-chan struct{}) {
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	conn, err := rpc.Dial(t.address, m.cfg.Dial)
	if err != nil {
		m.cfg.Logger.Warn("a broker's address cannot be dialled", "broker", t.process.ID, "address", t.address, "error", err)
		<-ctx.Done()
		return
	}
	defer conn.Close()
	for ctx.Err() == nil {
		client := brokerv1.NewHealthStreamServiceClient(conn)
		answered, err := m.stream(ctx, client, t, nudge)
		if ctx.Err() != nil {
			return
		}
		if answered {
			backoff.Reset()
		}
		m.cfg.Logger.Debug("health stream ended", "broker", t.process.ID, "address", t.address, "error", err)
		// The breaking of the stream is news in itself: look at once.
		if v := m.cfg.Prober.Probe(ctx, t.registry()); v.Dead() {
			m.dead(t, v)
			return
		}
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
		}
	}
}

// stream runs one health stream until it breaks.
func (m *Monitor) stream(ctx context.Context, client brokerv1.HealthStreamServiceClient, t target, nudge <-chan struct{}) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opening := time.AfterFunc(streamLimit, cancel)
	defer opening.Stop()
	stream, err := client.WatchHealth(ctx)
	if err != nil {
		return false, err
	}
	initial := &brokerv1.HealthInitial{
		Handshake:  rpc.LocalHandshake(),
		Controller: &typev1.Process{Id: m.cfg.Self.ID, Incarnation: m.cfg.Self.Incarnation},
	}
	if err := stream.Send(&brokerv1.WatchHealthRequest{Message: &brokerv1.WatchHealthRequest_Initial{Initial: initial}}); err != nil {
		return false, err
	}
	first, err := stream.Recv()
	if err != nil {
		return false, err
	}
	opening.Stop()
	if who := first.GetInitial().GetBroker(); who.GetId() != t.process.ID || who.GetIncarnation() != t.process.Incarnation {
		return false, fmt.Errorf("broker %d under incarnation %d answered", who.GetId(), who.GetIncarnation())
	}
	asked := &questions{sent: map[int64]question{}}
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		defer cancel()
		m.ask(ctx, stream, asked, nudge)
	}()
	defer func() {
		cancel()
		<-asking
	}()
	for {
		msg, err := stream.Recv()
		if err != nil {
			return answered, err
		}
		a := msg.GetAnswer()
		if a.GetBroker().GetId() != t.process.ID || a.GetBroker().GetIncarnation() != t.process.Incarnation || !a.GetDisksOk() {
			continue
		}
		answered = true
		m.alive(t, sign{
			at: time.Now(), question: asked.take(a.GetProbeId()),
			revision: a.GetPosition().GetRevision(), unreachable: a.GetUnreachableLeaders(), deaf: a.GetDeafLeaders(),
		})
	}
}

// ask puts a question again and again, and at once when nudged, until ctx ends or
// the stream breaks.
func (m *Monitor) ask(ctx context.Context, stream brokerv1.HealthStreamService_WatchHealthClient, asked *questions, nudge <-chan struct{}) {
	for {
		probe := &brokerv1.HealthProbe{ProbeId: asked.put(m.cfg.Store.Revision())}
		if err := stream.Send(&brokerv1.WatchHealthRequest{Message: &brokerv1.WatchHealthRequest_Probe{Probe: probe}}); err != nil {
			return // the reader learns why
		}
		interval := standbyInterval
		if m.isLeading() {
			interval = probeInterval
		}
		wait := time.NewTimer(interval)
		select {
		case <-wait.C:
		case <-nudge:
		case <-ctx.Done():
		}
		wait.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// question is when a question was sent, and what was known then.
type question struct {
	at       time.Time
	revision int64 // of the controller's metadata
}

// questions remembers the questions of a stream.
type questions struct {
	mu   sync.Mutex
	last int64
	sent map[int64]question
}

// put begins a question and returns its number.
func (q *questions) put(revision int64) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last++
	q.sent[q.last] = question{at: time.Now(), revision: revision}
	delete(q.sent, q.last-maxUnanswered)
	return q.last
}

// take gives an answered question; zero if it is not remembered.
func (q *questions) take(id int64) question {
	q.mu.Lock()
	defer q.mu.Unlock()
	sent := q.sent[id]
	delete(q.sent, id)
	return sent
}
