package client

import (
	"errors"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// fetchChunk is something received for a partition: a run of batches, news of its
// visible end, or its failure. The fetcher's lock guards what is not written once.
type fetchChunk struct {
	part    *fetchPart
	gen     int64
	data    []byte // batches that are not handed out yet
	next    int64  // offset after it
	visible *brokerv1.VisibleEnd
	trace   *typev1.TraceContext
	mark    bool // no batches: the visible end, or offsets without records
	err     *rpc.Error

	key  streamKey // of the stream that gets the credit back
	near bool      // it came from a replica in the rack
	cost int64
	refs int // the chunk itself and its events; at 0 the credit goes back
}

// unref gives up a reference. The lock is held.
func (c *fetchChunk) unref(f *Fetcher) {
	if c.refs--; c.refs > 0 || c.cost == 0 {
		return
	}
	if f.held[c.key] -= c.cost; f.held[c.key] <= 0 {
		delete(f.held, c.key)
	}
	if s := f.streams[c.key]; s != nil {
		s.giveBack(c.cost)
	}
}

// TryNext is Next without waiting; nil: there is none.
func (f *Fetcher) TryNext() *FetchEvent {
	for {
		f.mu.Lock()
		if len(f.queue) == 0 {
			f.mu.Unlock()
			return nil
		}
		c := f.queue[0]
		p := c.part
		if c.err != nil || c.mark {
			e := f.handOut(c)
			f.mu.Unlock()
			return e
		}
		data, from := c.data, p.delivered
		f.mu.Unlock()

		// Unpacking takes time and needs no lock: only this goroutine takes from the
		// queue, others at most drop chunks from it.
		b := decodeBatch(data, from, f.cfg.MaxDecodedBytes)

		f.mu.Lock()
		if p.gen != c.gen || len(f.queue) == 0 || f.queue[0] != c {
			f.mu.Unlock()
			continue
		}
		e := f.handOutBatch(c, b)
		f.mu.Unlock()
		if e != nil {
			return e
		}
	}
}

// pop takes the first chunk out. The lock is held.
func (f *Fetcher) pop() *fetchChunk {
	c := f.queue[0]
	f.queue[0] = nil
	f.queue = f.queue[1:]
	if c.part.last == c {
		c.part.last = nil
	}
	if len(f.queue) > 0 {
		poke(f.ready)
	}
	return c
}

// handOut makes an event of an error or of a mark. The lock is held.
func (f *Fetcher) handOut(c *fetchChunk) *FetchEvent {
	f.pop()
	p := c.part
	e := f.event(c, FetchProgress)
	if c.err != nil {
		e.Kind, e.Err = FetchError, c.err
	} else {
		if c.next > p.delivered {
			p.delivered, p.deliveredEpoch = c.next, -1
		}
	}
	e.NextOffset = p.delivered
	c.unref(f)
	return e
}

// event fills in what all events have.
func (f *Fetcher) event(c *fetchChunk, kind FetchKind) *FetchEvent {
	p := c.part
	e := &FetchEvent{
		TopicPartition: p.start.TopicPartition, Topic: p.start.Topic, Tag: p.start.Tag, Kind: kind,
		Offset: p.delivered, NextOffset: p.delivered, LeaderEpoch: -1, HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1,
	}
	if v := c.visible; v != nil {
		e.HighWatermark, e.LastStableOffset, e.LogStartOffset = v.HighWatermark, v.LastStableOffset, v.LogStartOffset
	}
	c.refs++
	e.release = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		c.unref(f)
	}
	return e
}

// decodedBatch is the first batch of a run.
type decodedBatch struct {
	rest    []byte
	size    int
	header  record.Header
	records []record.Record // at or above the offset wanted
	err     *rpc.Error
	after   int64 // where to read on after a damaged batch; -1: unknown
}

// decodeBatch takes the first batch off a run: checked, unpacked, and without what
// lies below the offset wanted or belongs to the mesh itself.
func decodeBatch(data []byte, from int64, maxDecoded int) decodedBatch {
	batch, rest, err := record.NextBatch(data)
	if err != nil {
		return decodedBatch{err: badBatch(err), after: -1}
	}
	b := decodedBatch{rest: rest, size: len(batch)}
	if b.header, err = record.Validate([][]byte{batch}, record.ValidateOptions{}); err != nil {
		b.err, b.after = badBatch(err), -1
		// The header may itself be damaged; it is a hint, no more.
		if h, herr := record.ParseHeader(batch); herr == nil && h.NextOffset() > from {
			b.after = h.NextOffset()
		}
		return b
	}
	if b.header.Attributes.Control() || b.header.NextOffset() <= from {
		return b
	}
	records, err := record.Decode(batch, maxDecoded)
	if err != nil {
		b.err, b.after = badBatch(err), b.header.NextOffset()
		return b
	}
	for len(records) > 0 && records[0].Offset < from {
		records = records[1:]
	}
	b.records = records
	return b
}

func badBatch(err error) *rpc.Error {
	var corrupt *record.CorruptError
	if errors.As(err, &corrupt) {
		return rpc.Errorf(reasonCorruptBatch, "a batch that was read is damaged: %w; seek behind it to go on", err).
			WithAction(typev1.Action_ACTION_CHOOSE)
	}
	return rpc.Errorf(reasonInvalidRecord, "a batch that was read cannot be decoded: %w; seek behind it to go on", err).
		WithAction(typev1.Action_ACTION_CHOOSE)
}

// handOutBatch makes an event of the first batch of a chunk; nil: there is nothing
// in it to tell. The lock is held.
func (f *Fetcher) handOutBatch(c *fetchChunk, b decodedBatch) *FetchEvent {
	p := c.part
	if b.err != nil {
		return f.handOutDamage(c, b)
	}
	c.data = b.rest
	var e *FetchEvent
	if next := b.header.NextOffset(); next > p.delivered {
		e = f.event(c, FetchProgress)
		if len(b.records) > 0 {
			e.Kind, e.Records = FetchRecords, b.records
		}
		e.Trace, e.Bytes, e.LeaderEpoch = c.trace, b.size, b.header.PartitionLeaderEpoch
		p.delivered, p.deliveredEpoch = next, b.header.PartitionLeaderEpoch
		e.NextOffset = next
	}
	if len(c.data) == 0 {
		f.pop()
		c.unref(f)
	}
	return e
}

// handOutDamage pauses a partition whose next batch cannot be read; what came
// after it is dropped.
func (f *Fetcher) handOutDamage(c *fetchChunk, b decodedBatch) *FetchEvent {
	p := c.part
	if c.near { // the leader's copy may be whole
		f.interrupt(p)
		p.received, p.receivedEpoch = p.delivered, p.deliveredEpoch
		f.leaveNear(p, b.err, time.Now())
		poke(f.wake)
		return nil
	}
	e := f.event(c, FetchError)
	err := b.err.With("topic", p.start.Topic, "partition", itoa(p.start.Partition), "offset", itoa(p.delivered))
	if b.after >= 0 {
		err = err.With("next_offset", itoa(b.after))
	}
	e.Err = err
	f.interrupt(p)
	p.failed, p.waiting = true, nil
	return e
}
