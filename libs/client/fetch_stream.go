package client

import (
	"context"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// minCredit is the least credit of one broker's stream, in bytes.
const minCredit = 64 << 10

// streamKey names a fetch stream: followers are read on one of their own.
type streamKey struct {
	addr   string
	follow bool
}

// fetchStream is a fetch stream to one broker. The fetcher's lock guards what is
// not written once. Its run goroutine sends; another one, which it waits for,
// receives.
type fetchStream struct {
	f      *Fetcher
	key    streamKey
	ctx    context.Context
	cancel context.CancelFunc

	byID      map[int64]*fetchPart
	adds      []*brokerv1.FetchPartition // to be sent
	removes   []int64                    // to be sent
	credit    int64                      // to be sent; below 0: held beyond the share
	granted   bool                       // the first credit has been computed
	idleSince time.Time
	wake      chan struct{} // has a value when there is something to send
}

// stream is the stream of that name. The lock is held.
func (f *Fetcher) stream(key streamKey) *fetchStream {
	s := f.streams[key]
	if s != nil {
		return s
	}
	s = &fetchStream{f: f, key: key, byID: make(map[int64]*fetchPart), wake: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(f.ctx)
	f.streams[key] = s
	f.wg.Go(s.run)
	return s
}

// add asks for a partition. The lock is held.
func (s *fetchStream) add(p *fetchPart, ask *brokerv1.FetchPartition) {
	s.byID[p.id] = p
	s.adds = append(s.adds, ask)
	poke(s.wake)
}

// drop ends an asking. The lock is held.
func (s *fetchStream) drop(id int64) {
	delete(s.byID, id)
	for i, a := range s.adds {
		if a.FetchId == id {
			s.adds = append(s.adds[:i:i], s.adds[i+1:]...)
			return
		}
	}
	s.removes = append(s.removes, id)
	poke(s.wake)
}

// giveBack returns credit to the broker. The lock is held.
func (s *fetchStream) giveBack(n int64) {
	if !s.granted {
		return // what is not held any more counts in the first credit
	}
	s.credit += n
	poke(s.wake)
}

// run opens the stream, and sends until it ends.
func (s *fetchStream) run() {
	defer s.cancel()
	stream, err := s.open()
	if err != nil {
		s.end(err, true)
		return
	}
	received := make(chan *rpc.Error, 1)
	go func() { received <- s.receive(stream) }()
	sendErr := s.send(stream, received)
	s.cancel()
	err = <-received
	if sendErr != nil && err.Reason == reasonCancelled {
		err = sendErr
	}
	s.end(err, false)
}

// open starts the stream and waits for the broker's greeting.
func (s *fetchStream) open() (brokerv1.LogService_FetchClient, *rpc.Error) {
	cfg := &s.f.client.cfg
	late := time.AfterFunc(cfg.RequestTimeout, s.cancel)
	defer late.Stop()
	conn, err := s.f.client.fetchConns.Get(s.key.addr)
	if err != nil {
		return nil, streamEnd(err, "broker", s.key.addr)
	}
	stream, err := brokerv1.NewLogServiceClient(conn).Fetch(s.ctx)
	if err != nil {
		return nil, streamEnd(err, "broker", s.key.addr)
	}
	share, credit := s.grant()
	hello := &brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Initial{Initial: &brokerv1.FetchInitial{
		Handshake: rpc.LocalHandshake(), ClientId: cfg.ClientID, IsolationLevel: s.f.cfg.Isolation, CreditBytes: credit,
		MaxResponseBytes: int32(min(int64(s.f.cfg.MaxResponseBytes), share)), Rack: s.f.cfg.Rack, AllowFollower: s.key.follow,
	}}}
	// A failed Send shows in Recv, with the reason.
	_ = stream.Send(hello)
	resp, err := stream.Recv()
	if err != nil {
		if !late.Stop() && s.f.ctx.Err() == nil {
			return nil, rpc.Errorf(reasonUnreachable, "broker %s did not answer within %v", s.key.addr, cfg.RequestTimeout).With("address", s.key.addr)
		}
		return nil, streamEnd(err, "broker", s.key.addr)
	}
	initial := resp.GetInitial()
	if initial == nil {
		return nil, rpc.Errorf(reasonStreamProtocol, "broker %s answered the opening of a fetch stream with something else; upgrade the older side", s.key.addr)
	}
	if err := rpc.CheckHandshake(initial.Handshake); err != nil {
		return nil, rpc.FromError(err)
	}
	s.f.mu.Lock()
	delete(s.f.down, s.key.addr)
	s.f.mu.Unlock()
	return stream, nil
}

// grant computes the stream's share of the credit, and what of it is not taken up
// by what is still held from an earlier stream.
func (s *fetchStream) grant() (share, first int64) {
	f := s.f
	streams := max(len(f.client.source.Brokers()), 1)
	if f.cfg.Rack != "" {
		streams *= 2 // one each for what is led there and for what is not
	}
	share = max(f.cfg.CreditBytes/int64(streams), minCredit)
	share = min(share, f.cfg.CreditBytes)
	f.mu.Lock()
	defer f.mu.Unlock()
	s.granted = true
	first = share - f.held[s.key]
	s.credit = min(first, 0)
	return share, max(first, 0)
}

// send sends what there is until the stream ends.
func (s *fetchStream) send(stream brokerv1.LogService_FetchClient, received chan *rpc.Error) *rpc.Error {
	for {
		s.f.mu.Lock()
		adds, removes, credit := s.adds, s.removes, s.credit
		s.adds, s.removes, s.credit = nil, nil, min(credit, 0)
		s.f.mu.Unlock()
		if len(adds)+len(removes) > 0 {
			if err := stream.Send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Update{
				Update: &brokerv1.FetchUpdate{Add: adds, RemoveFetchIds: removes},
			}}); err != nil {
				return streamEnd(err, "broker", s.key.addr)
			}
		}
		if credit > 0 {
			if err := stream.Send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Credit{
				Credit: &brokerv1.FetchCredit{Bytes: credit},
			}}); err != nil {
				return streamEnd(err, "broker", s.key.addr)
			}
		}
		select {
		case <-s.wake:
		case err := <-received:
			received <- err
			return nil
		case <-s.ctx.Done():
			return nil
		}
	}
}

// receive takes messages until the stream ends.
func (s *fetchStream) receive(stream brokerv1.LogService_FetchClient) *rpc.Error {
	for {
		var resp brokerv1.FetchResponse
		payload, err := rpc.Recv(stream, &resp)
		if err != nil {
			return streamEnd(err, "broker", s.key.addr)
		}
		switch m := resp.Message.(type) {
		case *brokerv1.FetchResponse_Batches:
			// One copy into memory of our own: the connection's buffers go back at once, and
			// records may be kept for as long as the application likes.
			data := make([]byte, payload.Len())
			record.CopyVec(data, payload.Vecs())
			payload.Free()
			s.batches(m.Batches, data)
			continue
		case *brokerv1.FetchResponse_Watermarks:
			s.watermarks(m.Watermarks)
		case *brokerv1.FetchResponse_PartitionError:
			s.partitionError(m.PartitionError)
		}
		payload.Free()
	}
}

// batches puts a run of batches in line.
func (s *fetchStream) batches(m *brokerv1.FetchBatches, data []byte) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	p := s.byID[m.FetchId]
	if p == nil {
		s.giveBack(m.CreditCost)
		return
	}
	s.well(p, m.VisibleEnd)
	if epoch, ok := lastEpoch(data); ok {
		p.receivedEpoch = epoch
	}
	p.received = max(p.received, m.NextOffset)
	f.held[s.key] += m.CreditCost
	f.push(&fetchChunk{
		part: p, gen: p.gen, data: data, next: m.NextOffset, visible: m.VisibleEnd, trace: m.Trace, mark: len(data) == 0,
		key: s.key, near: p.near, cost: m.CreditCost,
	})
}

// lastEpoch is the leader epoch of the last batch of a run.
func lastEpoch(data []byte) (epoch int32, ok bool) {
	for len(data) > 0 {
		batch, rest, err := record.NextBatch(data)
		if err != nil {
			return epoch, ok // told when it is handed out
		}
		h, err := record.ParseHeader(batch)
		if err != nil {
			return epoch, ok
		}
		epoch, ok, data = h.PartitionLeaderEpoch, true, rest
	}
	return epoch, ok
}

// well notes that a partition is being served. The lock is held.
func (s *fetchStream) well(p *fetchPart, v *brokerv1.VisibleEnd) {
	p.failures, p.nearTries, p.waiting = 0, 0, nil
	if v != nil {
		p.seenEpoch = max(p.seenEpoch, v.LeaderEpoch)
		p.seenEnd = max(p.seenEnd, v.HighWatermark)
		s.f.client.seen.note(p.start.TopicPartition, v.LeaderEpoch, v.HighWatermark)
	}
}

// watermarks puts news of visible ends in line; a newer one replaces one that
// still waits.
func (s *fetchStream) watermarks(m *brokerv1.FetchWatermarks) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range m.Watermarks {
		p := s.byID[w.FetchId]
		if p == nil {
			continue
		}
		s.well(p, w.VisibleEnd)
		if w.NextOffset > p.received {
			p.received, p.receivedEpoch = w.NextOffset, -1
		}
		if c := p.last; c != nil && c.mark && c.cost == 0 {
			c.next, c.visible = max(c.next, w.NextOffset), w.VisibleEnd
			continue
		}
		f.push(&fetchChunk{part: p, gen: p.gen, next: w.NextOffset, visible: w.VisibleEnd, mark: true})
	}
}

// partitionError ends one asking: it is repeated where the failure may pass.
func (s *fetchStream) partitionError(m *brokerv1.FetchPartitionError) {
	err := rpc.FromProto(m.Error)
	if err == nil {
		err = rpc.Errorf(reasonInternalBug, "broker %s ended a partition without saying why", s.key.addr)
	}
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	p := s.byID[m.FetchId]
	if p == nil {
		return
	}
	delete(s.byID, m.FetchId)
	p.at, p.id = nil, 0
	tp := p.start.TopicPartition
	now := time.Now()
	switch {
	case p.near:
		f.leaveNear(p, err, now)
	case err.Reason == reasonUnknownTopic || err.Reason == reasonUnknownPartition || err.Reason == reasonTopicDeleted:
		// The broker is right only if the metadata says so, too.
		f.client.refreshSoon()
		f.putOff(p, now, err)
		f.checkTopic(tp, p)
	case rpc.Retryable(err):
		f.client.learnFrom(tp, s.key.addr, err.Leader)
		f.putOff(p, now, err)
		if src, ok := f.source(tp, p, now); ok && src.Addr != s.key.addr && (p.failures == 1 || src.Epoch > p.epoch) {
			p.notBefore = now
		}
	default:
		f.fail(p, err)
	}
	poke(f.wake)
}

// end puts off everything that was asked for on the stream.
func (s *fetchStream) end(err *rpc.Error, unopened bool) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams[s.key] == s {
		delete(f.streams, s.key)
	}
	if f.closed || f.ctx.Err() != nil {
		return
	}
	now := time.Now()
	if unopened {
		d := f.down[s.key.addr]
		if d == nil {
			d = &downBroker{backoff: rpc.Backoff{Min: f.client.cfg.RetryBackoff, Max: f.client.cfg.RetryBackoffMax}}
			f.down[s.key.addr] = d
		}
		d.until = now.Add(d.backoff.Next())
	}
	for _, p := range s.byID {
		p.at, p.id = nil, 0
		if p.near {
			p.nearTries = nearTries
			f.leaveNear(p, err, now)
			continue
		}
		f.client.learnFrom(p.start.TopicPartition, s.key.addr, nil)
		f.putOff(p, now, err)
	}
	clear(s.byID)
	poke(f.wake)
}
