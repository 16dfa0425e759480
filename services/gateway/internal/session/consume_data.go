package session

import (
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// messageOverhead is more than a message of records takes beside its records: the
// topic's name and seven numbers.
const messageOverhead = 512

// batch is what was fetched and is being handed out, message by message.
type batch struct {
	part  *part
	event *client.FetchEvent
	next  int     // index of the next record
	gate  *commit // it is handed out once this is committed; nil: at once
	// retryAt is when that commit is to be made again; zero: it is on its way.
	retryAt time.Time
}

// WantsData reports whether Fetched may bring something: one batch at a time is
// held, so that a slow client holds up its reading and nothing piles up here.
func (c *Consume) WantsData() bool {
	return c.state == ConsumeActive && c.batch == nil
}

// SetDeliverUntil says until when records may be handed out: a member whose
// coordinator has not confirmed its session for that long may have lost its
// partitions to another.
func (c *Consume) SetDeliverUntil(t time.Time) { c.deliverUntil = t }

// HoldsBack reports whether records are held back only because the session is not
// confirmed; SetDeliverUntil may free them.
func (c *Consume) HoldsBack(now time.Time) bool {
	return c.batch != nil && !c.deliverUntil.IsZero() && !now.Before(c.deliverUntil)
}

// addCredit adds to the credit; the first one turns it on.
func (c *Consume) addCredit(bytes int64) {
	if bytes < 0 || bytes > maxCredit {
		c.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
			"credit of %d bytes; grant 0 to %d, most often the cost that records stated", bytes, int64(maxCredit)))
		return
	}
	c.creditMode = true
	c.credit = min(c.credit+bytes, maxCredit)
}

// Fetched takes in what was read. The event is released once it is handed out.
func (c *Consume) Fetched(now time.Time, e *client.FetchEvent) {
	p := c.parts[e.TopicPartition]
	if p == nil || p.tag != e.Tag || !p.fetching || c.state != ConsumeActive {
		e.Release()
		return
	}
	if e.HighWatermark >= 0 {
		p.highMark = e.HighWatermark
	}
	switch e.Kind {
	case client.FetchError:
		e.Release()
		c.failPart(p, readError(p, e.Err))
	case client.FetchRecords:
		b := &batch{part: p, event: e}
		b.skip(p)
		if b.left(p) {
			c.batch = b
			c.commitFirst(b)
			return
		}
		c.moved(p, e.NextOffset, e.LeaderEpoch)
		c.passOver(p)
		e.Release()
	case client.FetchProgress:
		c.moved(p, e.NextOffset, e.LeaderEpoch)
		c.passOver(p)
		e.Release()
	default:
		e.Release()
	}
	c.checkEnd(now)
}

// readError is the error of a partition as readers are told it: what to do differs
// from what a writer would have to do.
func readError(p *part, err error) *rpc.Error {
	e := rpc.FromError(err)
	switch e.Reason {
	case typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH, typev1.ErrorReason_ERROR_REASON_INVALID_RECORD,
		typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE:
		e = e.WithAction(typev1.Action_ACTION_CHOOSE)
	case typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION:
		e = e.WithAction(typev1.Action_ACTION_DROP_PARTITION)
	}
	return e.With("topic", p.topic)
}

// skip passes by records below the position.
func (b *batch) skip(p *part) {
	for b.next < len(b.event.Records) && b.event.Records[b.next].Offset < p.position {
		b.next++
	}
}

// left reports whether there is a record to hand out.
func (b *batch) left(p *part) bool {
	return b.next < len(b.event.Records) && (p.end < 0 || b.event.Records[b.next].Offset < p.end)
}

// moved raises the position, and with it the epoch of what is before it (-1:
// unknown). An older epoch that stayed would make the broker take the position for
// one that was cut off.
func (c *Consume) moved(p *part, next int64, epoch int32) {
	if next > p.position {
		p.position, p.lastEpoch = next, epoch
	}
	if p.end >= 0 && p.position >= p.end {
		p.ended = true
		c.stop(p)
	}
	if p.position > p.told && !p.queued {
		p.queued = true
		c.progress = append(c.progress, p)
	}
}

// dropBatch gives back what is being handed out of a partition, or of any for nil.
func (c *Consume) dropBatch(p *part) {
	if c.batch == nil || p != nil && c.batch.part != p {
		return
	}
	c.batch.event.Release()
	c.batch = nil
}

// Outgoing is a message to send. Event is where records came from, for tracing;
// nil for other messages.
type Outgoing struct {
	Message *gatewayv1.ConsumeResponse
	Event   *client.FetchEvent
	Group   string // of the stream; empty: none
}

// Next takes the next message to send: control first, then progress, then records
// as far as credit goes. False: there is none now.
func (c *Consume) Next(now time.Time) (Outgoing, bool) {
	if len(c.out) > 0 {
		m := c.out[0]
		c.out = c.out[1:]
		return Outgoing{Message: m}, true
	}
	for len(c.progress) > 0 {
		p := c.progress[0]
		c.progress = c.progress[1:]
		p.queued = false
		if p.position <= p.told || p.revokeFrom || c.batch != nil && c.batch.part == p {
			continue
		}
		p.told = p.position
		m := &gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Progress{Progress: &gatewayv1.ConsumeProgress{
			Topic: p.topic, Partition: p.id.Partition, NextOffset: p.position, HighWatermark: p.highMark,
		}}}
		c.checkEnd(now)
		return Outgoing{Message: m}, true
	}
	if c.state == ConsumeActive && len(c.parts) > 0 && c.batch == nil {
		c.checkEnd(now)
		if len(c.out) > 0 {
			return c.Next(now)
		}
	}
	if c.batch == nil || c.batch.gate != nil || c.creditMode && c.credit <= 0 || c.HoldsBack(now) {
		return Outgoing{}, false
	}
	return c.records(now)
}

// records builds a message of records: at least one, then as many as credit, the
// size of a chunk and the client's largest message allow.
func (c *Consume) records(now time.Time) (Outgoing, bool) {
	b, p := c.batch, c.batch.part
	most := c.limits.ChunkBytes
	if c.creditMode {
		most = int(min(int64(most), c.credit))
	}
	most = min(most, c.settings.MaxMessageBytes-messageOverhead)
	m := &gatewayv1.ConsumeRecords{Topic: p.topic, Partition: p.id.Partition, HighWatermark: p.highMark, SeekId: p.seekID}
	epoch := b.event.LeaderEpoch
	for b.left(p) {
		r := consumeRecord(&b.event.Records[b.next], epoch)
		size := proto.Size(r) + recordFraming
		if len(m.Records) == 0 && size > c.settings.MaxMessageBytes-messageOverhead {
			c.tooLarge(p, r.GetOffset(), size)
			c.checkEnd(now)
			return c.Next(now)
		}
		if len(m.Records) > 0 && m.Cost+int64(size) > int64(most) {
			break
		}
		m.Records = append(m.Records, r)
		m.Cost += int64(size)
		b.next++
	}
	m.NextOffset = m.Records[len(m.Records)-1].GetOffset() + 1
	event := b.event
	if !b.left(p) {
		m.NextOffset = b.event.NextOffset
		if p.end >= 0 && m.NextOffset > p.end {
			m.NextOffset = p.end
		}
		c.batch = nil
		event.Release()
	}
	c.lastStatus = typev1.ErrorReason_ERROR_REASON_UNSPECIFIED
	p.told, p.anything = m.NextOffset, true
	p.handOut(m.NextOffset, now)
	c.moved(p, m.NextOffset, epoch)
	if c.creditMode {
		c.credit -= m.Cost
	}
	c.checkEnd(now)
	return Outgoing{Message: &gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Records{Records: m}}, Event: event, Group: c.settings.Group}, true
}

// recordFraming is the tag and the length of a record in its message, at most.
const recordFraming = 6

func (c *Consume) tooLarge(p *part, offset int64, size int) {
	c.failPart(p, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE,
		"the record at offset %d of partition %d of topic %q makes a message of %d bytes, and the stream takes %d; open with a larger max_message_bytes, or seek to %d to leave it out",
		offset, p.id.Partition, p.topic, size+messageOverhead, c.settings.MaxMessageBytes, offset+1).
		WithAction(typev1.Action_ACTION_CHOOSE))
}

func consumeRecord(r *record.Record, epoch int32) *gatewayv1.ConsumeRecord {
	out := &gatewayv1.ConsumeRecord{Offset: r.Offset, Key: r.Key, Value: r.Value, TimestampMs: r.Timestamp, LeaderEpoch: epoch}
	if len(r.Headers) > 0 {
		out.Headers = make([]*typev1.Header, len(r.Headers))
		for i, h := range r.Headers {
			out.Headers[i] = &typev1.Header{Key: h.Key, Value: h.Value}
		}
	}
	return out
}
