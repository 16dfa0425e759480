package handler

import (
	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// maxWatermarks bounds one message of news.
const maxWatermarks = 256

// send looks at the askings in turn and sends what they have, until the client
// ends the stream or it breaks.
func (f *fetchStream) send(read <-chan error) error {
	var marks []*brokerv1.FetchWatermark
	ended, err := f.h.refused.serving()
	if err != nil {
		return err
	}
	for {
		select {
		case <-ended:
			return f.h.refused.reason(f.h.draining())
		case <-f.h.cfg.Draining:
			return f.h.draining()
		case err := <-read:
			return endOfStream(err)
		default:
		}
		a, credit := f.next()
		if a == nil || len(marks) >= maxWatermarks {
			if err := f.sendWatermarks(&marks); err != nil {
				return err
			}
		}
		if a == nil {
			select {
			case <-f.news:
			case <-ended:
			case <-f.h.cfg.Draining:
				return f.h.draining()
			case err := <-read:
				return endOfStream(err)
			}
			continue
		}
		if err := f.serve(a, credit, &marks); err != nil {
			return err
		}
	}
}

// next takes the asking whose turn it is; nil if there is none.
func (f *fetchStream) next() (*asking, int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.queue) > 0 {
		a := f.queue[0]
		f.queue[0] = nil
		f.queue = f.queue[1:]
		a.queued = false
		if !a.dead {
			return a, f.credit
		}
	}
	f.queue = nil // lets the backing array go
	return nil, f.credit
}

// serve sends what one asking has: an error, a run of batches, or news of where
// the visible end is. Errors are the stream's.
func (f *fetchStream) serve(a *asking, credit int64, marks *[]*brokerv1.FetchWatermark) error {
	if a.err != nil {
		return f.fail(a, a.err, marks)
	}
	size := int(min(int64(f.responseSize()), max(credit, 0)))
	chunk, rerr := a.replica.Read(a.pos, size)
	switch {
	case rerr != nil:
		return f.fail(a, rerr, marks)
	case chunk.More:
		f.starve(a)
		return nil
	case chunk.Payload != nil:
		return f.sendBatches(a, chunk, marks)
	case chunk.Next > a.pos.Offset:
		// Nothing is left of these offsets; look behind them.
		a.advance(chunk.Next)
		f.requeue(a)
		return nil
	}
	a.pos.LastEpoch = -1
	if a.isNews(chunk) {
		a.told, a.next = chunk.Visible, a.pos.Offset
		*marks = append(*marks, &brokerv1.FetchWatermark{FetchId: a.id, NextOffset: a.pos.Offset, VisibleEnd: chunk.Visible})
	}
	return nil
}

// responseSize is how large the next response may be. While much is on its way to
// readers, most likely ones that do not read, it is small.
func (f *fetchStream) responseSize() int {
	if f.h.onTheWay.Load() >= f.h.cfg.FetchMemory {
		return min(f.maxResponse, smallResponseBytes)
	}
	return f.maxResponse
}

// hold counts a response as on its way. When one is handed to the transport the
// one before the last has left: the transport takes no more while it holds one.
func (f *fetchStream) hold(size int64) {
	f.h.onTheWay.Add(size - f.held[0])
	f.held = [2]int64{f.held[1], size}
}

// advance moves the position; that the client's past is the log's has been
// established by then.
func (a *asking) advance(next int64) {
	a.pos.Offset, a.pos.LastEpoch = next, -1
}

// isNews reports whether the client does not know yet where it stands.
func (a *asking) isNews(c replica.Chunk) bool {
	t, v := a.told, c.Visible
	return t == nil || a.next != a.pos.Offset || t.LeaderEpoch != v.LeaderEpoch || t.HighWatermark != v.HighWatermark ||
		t.LastStableOffset != v.LastStableOffset || t.LogStartOffset != v.LogStartOffset
}

func (f *fetchStream) requeue(a *asking) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enqueue(a)
}

// starve keeps an asking until credit comes, if none has come meanwhile.
func (f *fetchStream) starve(a *asking) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.dead || a.queued || a.starving {
		return
	}
	if f.credit > 0 {
		f.enqueue(a)
		return
	}
	a.starving = true
	f.starved = append(f.starved, a)
}

// sendBatches sends a run of batches. News that was gathered goes first, so that
// no partition's visible end seems to go back.
func (f *fetchStream) sendBatches(a *asking, c replica.Chunk, marks *[]*brokerv1.FetchWatermark) error {
	if err := f.sendWatermarks(marks); err != nil {
		c.Payload.Free()
		return err
	}
	cost := int64(c.Payload.Len())
	f.mu.Lock()
	if a.dead {
		f.mu.Unlock()
		c.Payload.Free()
		return nil
	}
	f.credit -= cost
	f.mu.Unlock()
	f.hold(cost)
	msg := &brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Batches{Batches: &brokerv1.FetchBatches{
		FetchId: a.id, NextOffset: c.Next, VisibleEnd: c.Visible, CreditCost: cost, Trace: a.replica.TraceFetch(c.First, c.Next, int(cost)),
	}}}
	if err := rpc.Send(f.stream, msg, c.Payload); err != nil {
		return err
	}
	a.advance(c.Next)
	a.told, a.next = c.Visible, c.Next
	f.requeue(a)
	return nil
}

func (f *fetchStream) sendWatermarks(marks *[]*brokerv1.FetchWatermark) error {
	if len(*marks) == 0 {
		return nil
	}
	err := f.stream.Send(&brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Watermarks{
		Watermarks: &brokerv1.FetchWatermarks{Watermarks: *marks},
	}})
	*marks = nil
	return err
}

// fail ends an asking with its error.
func (f *fetchStream) fail(a *asking, rerr *rpc.Error, marks *[]*brokerv1.FetchWatermark) error {
	if err := f.sendWatermarks(marks); err != nil {
		return err
	}
	f.mu.Lock()
	dead := a.dead
	f.mu.Unlock()
	if dead {
		return nil
	}
	f.drop(a)
	return f.stream.Send(&brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_PartitionError{
		PartitionError: &brokerv1.FetchPartitionError{FetchId: a.id, Error: rpc.ToProto(rerr)},
	}})
}
