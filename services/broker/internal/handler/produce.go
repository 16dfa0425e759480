package handler

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Produce supports batches of Kafka's format version 2, acks 0, 1 and all, and
// the fences of shards. One goroutine reads and appends, this one answers.
func (h *Handlers) Produce(stream brokerv1.LogService_ProduceServer) error {
	m, serr := h.manager()
	if serr != nil {
		return serr
	}
	var first brokerv1.ProduceRequest
	payload, err := rpc.Recv(stream, &first)
	payload.Free()
	if err != nil {
		return endOfStream(err)
	}
	initial := first.GetInitial()
	if initial == nil {
		return protocolError("the first message of a produce stream must be initial")
	}
	if err := checkInitial(initial.GetHandshake(), initial.GetClientId()); err != nil {
		return err
	}
	err = stream.Send(&brokerv1.ProduceResponse{Message: &brokerv1.ProduceResponse_Initial{Initial: &brokerv1.ProduceInitialResponse{
		Handshake: rpc.LocalHandshake(), Broker: h.cfg.Broker, MaxInFlightBatches: int32(h.cfg.MaxInFlight),
	}}})
	if err != nil {
		return err
	}
	p := newProduceStream(h, m, stream)
	read := make(chan error, 1)
	h.readers.Go(func() { read <- p.read() })
	return p.answer(read)
}

// produceStream is one open stream.
type produceStream struct {
	h      *Handlers
	m      *replica.Manager
	stream brokerv1.LogService_ProduceServer
	ctx    context.Context

	mu       sync.Mutex
	results  []*brokerv1.ProduceResult // to be sent
	inFlight int                       // unanswered batches, those of acks=0 included
	perPart  map[store.Key]*partWindow

	news chan struct{} // results were added, or the window has room
	room chan struct{}
}

// partWindow is one partition's part of the window.
type partWindow struct {
	inFlight int
	// stuck is set from a batch that was refused for want of room until all before
	// it are answered, so that no later batch overtakes it meanwhile.
	stuck bool
}

func newProduceStream(h *Handlers, m *replica.Manager, stream brokerv1.LogService_ProduceServer) *produceStream {
	return &produceStream{
		h: h, m: m, stream: stream, ctx: stream.Context(), perPart: map[store.Key]*partWindow{},
		news: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// read takes batches until the client has sent all, within the window.
func (p *produceStream) read() error {
	for {
		if err := p.waitForRoom(); err != nil {
			return err
		}
		var req brokerv1.ProduceRequest
		payload, err := rpc.Recv(p.stream, &req)
		if err != nil {
			return err
		}
		batch := req.GetBatch()
		if batch == nil {
			payload.Free()
			return protocolError("only batches may follow initial on a produce stream")
		}
		p.take(batch, payload)
	}
}

// waitForRoom stops the reading while the window is full, of batches or of
// answers that the client does not read.
func (p *produceStream) waitForRoom() error {
	for {
		p.mu.Lock()
		full := p.inFlight+len(p.results) >= p.h.cfg.MaxInFlight
		p.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-p.room:
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
}

// take hands one batch to its replica, or answers it with an error. It takes over
// the payload.
func (p *produceStream) take(b *brokerv1.ProduceBatch, payload *rpc.Payload) {
	none := b.GetAcks() == typev1.Acks_ACKS_NONE
	refuse := func(err *rpc.Error) {
		payload.Free()
		p.m.CountFailure(err.Reason)
		if !none {
			p.add(failure(b.GetCorrelationId(), err))
		}
	}
	r, err := p.m.Lookup(b.GetTopicId(), b.GetPartition())
	if err != nil {
		refuse(err)
		return
	}
	batch, err := p.h.check(r, b, payload)
	if err != nil {
		refuse(err)
		return
	}
	if err := p.enter(r); err != nil {
		refuse(err)
		return
	}
	correlation, key := b.GetCorrelationId(), r.Key
	batch.Done = func(res replica.Result) { p.leave(key, correlation, none, res) }
	r.Produce(batch)
}

// check looks at a batch as far as a broker must before it stores it.
func (h *Handlers) check(r *replica.Replica, b *brokerv1.ProduceBatch, payload *rpc.Payload) (*replica.Batch, *rpc.Error) {
	batch := &replica.Batch{Payload: payload, LeaderEpoch: b.GetLeaderEpoch(), Trace: b.GetTrace(), Timeout: defaultProduceTimeout}
	switch b.GetAcks() {
	case typev1.Acks_ACKS_UNSPECIFIED, typev1.Acks_ACKS_ALL:
		batch.Acks = partition.AcksAll
	case typev1.Acks_ACKS_LEADER:
		batch.Acks = partition.AcksLeader
	case typev1.Acks_ACKS_NONE:
		batch.Acks = partition.AcksNone
	default:
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "acks is %d: choose none, leader or all", b.GetAcks())
	}
	if t := b.GetTimeout(); t != nil {
		if t.CheckValid() != nil || t.AsDuration() <= 0 || t.AsDuration() > maxProduceTimeout {
			return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "timeout is %v: choose a time above 0 and up to %v", t.AsDuration(), maxProduceTimeout)
		}
		batch.Timeout = t.AsDuration()
	}
	if f := b.GetShardFence(); f != nil {
		batch.Fence = &partition.Fence{ShardEpoch: f.GetShardEpoch(), Attempt: f.GetAttempt()}
	}
	limit := min(int(r.Config().MaxMessageBytes), h.cfg.MaxBatchBytes)
	header, err := record.Validate(payload.Vecs(), record.ValidateOptions{MaxBytes: limit, Fresh: true, AllowControl: r.Internal})
	// Compaction drops what has no key, so that such a record must not be acknowledged.
	keyed := r.Config().CleanupCompact
	if err == nil && (h.cfg.ValidateRecords || keyed) {
		err = h.checkRecords(payload, keyed)
	}
	if err != nil {
		return nil, replica.BatchError(err, r.Topic, limit)
	}
	if err := checkProducer(&header, batch.Acks); err != nil {
		return nil, err.With("topic", r.Topic)
	}
	batch.Header = header
	return batch, nil
}

// checkProducer refuses what a producer id cannot be combined with. Only a batch that
// waits for the high watermark can be told from its repetition for ever after.
func checkProducer(h *record.Header, acks partition.Acks) *rpc.Error {
	switch {
	case h.Attributes.Transactional():
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE, "the batch belongs to a transaction, and this release has none: send it without")
	case h.ProducerID >= 0 && acks != partition.AcksAll:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the batch of producer %d asks for other acks than all: an idempotent producer needs acks=all; or send the batch without a producer id", h.ProducerID)
	}
	return nil
}

// checkRecords looks at every record. A batch that came in pieces is put together
// in pooled memory for it.
func (h *Handlers) checkRecords(payload *rpc.Payload, keyed bool) error {
	validate := record.ValidateRecords
	if keyed {
		validate = record.ValidateKeyedRecords
	}
	vecs := payload.Vecs()
	if len(vecs) < 2 {
		return validate(vecs, h.cfg.MaxDecodedBytes)
	}
	buf := rpc.GetBuffer(payload.Len())
	defer buf.Free()
	record.CopyVec(buf.Bytes(), vecs)
	return validate([][]byte{buf.Bytes()}, h.cfg.MaxDecodedBytes)
}

// enter takes a place in the window for a batch of a partition. Beyond its half
// of the window a partition holds up the stream for a while, which is all that a
// client needs that sends as fast as it may; beyond that while it is stuck, and
// is refused, so that the others go on.
func (p *produceStream) enter(r *replica.Replica) *rpc.Error {
	if p.tryEnter(r.Key) {
		return nil
	}
	limit := time.NewTimer(p.h.cfg.PartitionWait)
	defer limit.Stop()
	for stuck := p.isStuck(r.Key); !stuck; {
		select {
		case <-p.room:
			if p.tryEnter(r.Key) {
				return nil
			}
		case <-limit.C:
			stuck = true
		case <-p.ctx.Done():
			stuck = true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.perPart[r.Key]; w != nil {
		w.stuck = true
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
		"%s is slow and holds half of the window of this stream: wait for its answers before sending more there", r.Name()).
		WithAction(typev1.Action_ACTION_RETRY).WithRetry(100*time.Millisecond).With("limit", "max_in_flight_batches", "topic", r.Topic)
}

func (p *produceStream) tryEnter(k store.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.perPart[k]
	if w == nil {
		w = &partWindow{}
		p.perPart[k] = w
	}
	if w.stuck || w.inFlight >= max(p.h.cfg.MaxInFlight/2, 1) {
		return false
	}
	w.inFlight++
	p.inFlight++
	return true
}

func (p *produceStream) isStuck(k store.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.perPart[k]
	return w != nil && w.stuck
}

// leave gives the place back and keeps the answer for sending. It is called with
// the replica's lock held.
func (p *produceStream) leave(key store.Key, correlation int64, none bool, res replica.Result) {
	var result *brokerv1.ProduceResult
	switch {
	case none:
	case res.Err != nil:
		result = failure(correlation, res.Err)
	default:
		result = &brokerv1.ProduceResult{CorrelationId: correlation, BaseOffset: res.Base, LeaderEpoch: res.Epoch}
		if res.LogAppendTime >= 0 {
			result.LogAppendTime = timestamppb.New(timeOf(res.LogAppendTime))
		}
	}
	p.mu.Lock()
	p.inFlight--
	if w := p.perPart[key]; w != nil {
		if w.inFlight--; w.inFlight == 0 {
			delete(p.perPart, key)
		}
	}
	if result != nil {
		p.results = append(p.results, result)
	}
	p.mu.Unlock()
	signal(p.room)
	signal(p.news)
}

func failure(correlation int64, err *rpc.Error) *brokerv1.ProduceResult {
	return &brokerv1.ProduceResult{CorrelationId: correlation, BaseOffset: -1, LeaderEpoch: -1, Error: rpc.ToProto(err)}
}

func (p *produceStream) add(result *brokerv1.ProduceResult) {
	p.mu.Lock()
	p.results = append(p.results, result)
	p.mu.Unlock()
	signal(p.news)
}

// takeResults empties the results, and tells whether batches are unanswered.
func (p *produceStream) takeResults() (results []*brokerv1.ProduceResult, inFlight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	results, p.results = p.results, nil
	signal(p.room)
	return results, p.inFlight
}

// answer sends results, many in one message where many are there, until the
// client has sent all and every batch is answered, or the stream breaks.
func (p *produceStream) answer(read <-chan error) error {
	draining := p.h.cfg.Draining
	refused, rerr := p.h.refused.serving()
	if rerr != nil {
		return rerr
	}
	var ended error // why reading ended; nil while it goes on
	stopping := false
	for {
		results, inFlight := p.takeResults()
		if len(results) > 0 {
			err := p.stream.Send(&brokerv1.ProduceResponse{Message: &brokerv1.ProduceResponse_Results{
				Results: &brokerv1.ProduceResults{Results: results},
			}})
			if err != nil {
				return err
			}
			continue
		}
		if ended != nil && inFlight == 0 {
			return endOfStream(ended)
		}
		if stopping && inFlight == 0 {
			return p.h.draining()
		}
		select {
		case <-p.news:
		case err := <-read:
			ended, read = err, nil
		case <-draining:
			stopping, draining = true, nil
		case <-refused:
			err := p.h.refused.reason(p.h.draining())
			if inFlight > 0 {
				err = err.WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
			}
			return err
		case <-p.ctx.Done():
			return p.ctx.Err() // nobody is there to hear the answers
		}
	}
}
