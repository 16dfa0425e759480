package handler

import (
	"math"
	"sync"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Fetch supports adding, moving and removing partitions, credit, news of visible
// ends and typed errors of partitions. Isolation levels do not differ before
// transactions. One goroutine reads requests, this one sends; what is in memory
// for the stream is one response.
func (h *Handlers) Fetch(stream brokerv1.LogService_FetchServer) error {
	m, serr := h.manager()
	if serr != nil {
		return serr
	}
	first, err := stream.Recv()
	if err != nil {
		return endOfStream(err)
	}
	initial := first.GetInitial()
	if initial == nil {
		return protocolError("the first message of a fetch stream must be initial")
	}
	if err := checkInitial(initial.GetHandshake(), initial.GetClientId()); err != nil {
		return err
	}
	if initial.GetCreditBytes() < 0 || initial.GetMaxResponseBytes() < 0 {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "credit_bytes is %d and max_response_bytes %d: neither may be negative", initial.GetCreditBytes(), initial.GetMaxResponseBytes())
	}
	err = stream.Send(&brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Initial{
		Initial: &brokerv1.FetchInitialResponse{Handshake: rpc.LocalHandshake(), Broker: h.cfg.Broker},
	}})
	if err != nil {
		return err
	}
	f := newFetchStream(h, m, stream, initial)
	defer f.close()
	read := make(chan error, 1)
	h.readers.Go(func() { read <- f.read() })
	return f.send(read)
}

// fetchStream is one open stream.
type fetchStream struct {
	h           *Handlers
	m           *replica.Manager
	stream      brokerv1.LogService_FetchServer
	maxResponse int
	// allowFollower reads replicas that follow as well.
	allowFollower bool
	held          [2]int64 // sizes of the last two responses; owned by the sender

	// mu is taken after a replica's lock by asking.notify; so no replica is called
	// while it is held.
	mu          sync.Mutex
	credit      int64
	askings     map[int64]*asking
	byPartition map[store.Key]*asking
	queue       []*asking // to be looked at, each at most once; served in turn
	starved     []*asking // have something to send, and there is no credit
	closed      bool

	news chan struct{} // the queue or the credit grew
}

// asking is one partition asked for.
type asking struct {
	s       *fetchStream
	id      int64
	key     store.Key
	keyed   bool             // key is valid and in byPartition
	replica *replica.Replica // nil with err
	err     *rpc.Error       // why there is nothing to ask
	cancel  func()

	// Owned by the sender.
	pos  replica.Position
	told *brokerv1.VisibleEnd // what the client knows at told position
	next int64                // position at which it was told

	// Guarded by s.mu.
	queued, starving, dead bool
}

func newFetchStream(h *Handlers, m *replica.Manager, stream brokerv1.LogService_FetchServer, initial *brokerv1.FetchInitial) *fetchStream {
	size := int(initial.GetMaxResponseBytes())
	if size == 0 {
		size = defaultResponseBytes
	}
	return &fetchStream{
		h: h, m: m, stream: stream, maxResponse: min(max(size, minResponseBytes), h.cfg.MaxFetchBytes), credit: initial.GetCreditBytes(),
		allowFollower: initial.GetAllowFollower(),
		askings:       map[int64]*asking{}, byPartition: map[store.Key]*asking{}, news: make(chan struct{}, 1),
	}
}

// read takes requests until the client ends the stream.
func (f *fetchStream) read() error {
	for {
		req, err := f.stream.Recv()
		if err != nil {
			return err
		}
		switch msg := req.GetMessage().(type) {
		case *brokerv1.FetchRequest_Update:
			err = f.update(msg.Update)
		case *brokerv1.FetchRequest_Credit:
			err = f.grant(msg.Credit.GetBytes())
		default:
			err = protocolError("only updates and credit may follow initial on a fetch stream")
		}
		if err != nil {
			return err
		}
	}
}

// grant adds credit and lets those that starved for it be looked at again.
func (f *fetchStream) grant(bytes int64) error {
	if bytes <= 0 {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "credit of %d bytes: grant more than 0", bytes)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.credit > math.MaxInt64-bytes {
		f.credit = math.MaxInt64
	} else {
		f.credit += bytes
	}
	if f.credit > 0 {
		for _, a := range f.starved {
			a.starving = false
			f.enqueue(a)
		}
		f.starved = f.starved[:0]
	}
	signal(f.news)
	return nil
}

// update adds, moves and removes partitions.
func (f *fetchStream) update(u *brokerv1.FetchUpdate) error {
	for _, id := range u.GetRemoveFetchIds() {
		f.drop(f.find(id))
	}
	for _, p := range u.GetAdd() {
		if old := f.find(p.GetFetchId()); old != nil {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "fetch_id %d is in use: choose a new one for each asking", p.GetFetchId())
		}
		if err := f.add(p); err != nil {
			return err
		}
	}
	return nil
}

func (f *fetchStream) find(id int64) *asking {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.askings[id]
}

// add asks for a partition; what is wrong with the asking is its own error.
func (f *fetchStream) add(p *brokerv1.FetchPartition) error {
	a := &asking{s: f, id: p.GetFetchId(), pos: replica.Position{
		Offset: p.GetFetchOffset(), LeaderEpoch: p.GetCurrentLeaderEpoch(), LastEpoch: p.GetLastFetchedEpoch(), Seen: p.GetSeenVisibleEnd(),
		AllowFollower: f.allowFollower,
	}}
	a.replica, a.err = f.m.Lookup(p.GetTopicId(), p.GetPartition())
	var moved *asking
	if id, err := topicid.FromBytes(p.GetTopicId()); err == nil {
		a.key, a.keyed = store.Key{Topic: id, Partition: p.GetPartition()}, true
	}
	f.mu.Lock()
	if a.keyed {
		moved = f.byPartition[a.key]
	}
	count := len(f.askings)
	f.mu.Unlock()
	f.drop(moved)
	if count >= f.h.cfg.MaxPartitions && moved == nil {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "more than %d partitions on one fetch stream: open another stream", f.h.cfg.MaxPartitions).With("limit", "partitions of a fetch stream")
	}
	// Subscribed before it is first looked at, so that no news falls between.
	if a.replica != nil {
		a.cancel = a.replica.Subscribe(a.notify)
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		a.unsubscribe()
		return nil
	}
	f.askings[a.id] = a
	if a.keyed {
		f.byPartition[a.key] = a
	}
	f.enqueue(a)
	f.mu.Unlock()
	signal(f.news)
	return nil
}

// notify has the sender look at the asking again. It is called with the replica's
// lock held.
func (a *asking) notify(more bool) {
	f := a.s
	f.mu.Lock()
	defer f.mu.Unlock()
	// One that waits for credit gains nothing from more to read.
	if a.starving && more {
		return
	}
	f.enqueue(a)
	signal(f.news)
}

// enqueue puts an asking in the queue unless it is there. The caller holds mu.
func (f *fetchStream) enqueue(a *asking) {
	if a.dead || a.queued {
		return
	}
	a.queued = true
	f.queue = append(f.queue, a)
}

func (a *asking) unsubscribe() {
	if a.cancel != nil {
		a.cancel()
	}
}

// drop ends an asking; nil does nothing.
func (f *fetchStream) drop(a *asking) {
	if a == nil {
		return
	}
	f.mu.Lock()
	f.remove(a)
	f.mu.Unlock()
	a.unsubscribe()
}

// remove takes an asking off the books. The caller holds mu.
func (f *fetchStream) remove(a *asking) {
	a.dead = true
	if f.askings[a.id] == a {
		delete(f.askings, a.id)
	}
	if a.keyed && f.byPartition[a.key] == a {
		delete(f.byPartition, a.key)
	}
}

// close ends every asking.
func (f *fetchStream) close() {
	f.mu.Lock()
	f.closed = true
	all := make([]*asking, 0, len(f.askings))
	for _, a := range f.askings {
		all = append(all, a)
	}
	f.queue, f.starved = nil, nil
	f.mu.Unlock()
	for _, a := range all {
		f.drop(a)
	}
	f.h.onTheWay.Add(-f.held[0] - f.held[1])
}
