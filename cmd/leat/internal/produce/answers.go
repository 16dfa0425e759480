package produce

import (
	"errors"
	"io"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// handle takes an event of a session. An error is one that ends the Run.
func (e *engine) handle(ev event) error {
	if ev.session != e.session {
		return nil // of a session that was given up
	}
	switch {
	case ev.err != nil:
		return e.broken(ev.err)
	case ev.opened != nil:
		e.opened(ev.opened)
	case ev.response.GetResult() != nil:
		e.result(ev.response.GetResult())
	case ev.response.GetDrain() != nil:
		e.session.draining = true
		e.cfg.Note("the gateway is stopping; the rest goes to a new stream")
	case ev.response.GetSummary() != nil:
		e.closing(ev.response.GetSummary())
	}
	if s := e.session; s != nil && s.draining && s.outstanding == 0 && e.summaryUntil.IsZero() {
		e.dropSession()
	}
	return nil
}

func (e *engine) opened(o *gatewayv1.ProduceOpened) {
	e.session.opened = true
	if e.everLost {
		e.cfg.Note("connected to the gateway again")
	}
	e.everOpened, e.everLost = true, false
	e.backoff.Reset()
	if n := int(o.GetMaxInFlightRecords()); n > 0 {
		e.maxRecs = min(maxInFlightRecords, n)
	}
	if n := o.GetMaxInFlightBytes(); n > 0 {
		e.maxSize = min(maxInFlightBytes, n)
	}
	e.timeout = max(e.cfg.DeliveryTimeout, o.GetDeliveryTimeout().AsDuration())
}

// broken handles the end of the session's stream. What it has not answered may
// or may not be stored; it is sent again.
func (e *engine) broken(err error) error {
	halfClosed := !e.summaryUntil.IsZero()
	wasOpened := e.session.opened
	e.dropSession()
	if halfClosed && (errors.Is(err, io.EOF) || e.pending.Len() == 0) {
		return nil
	}
	typed := rpc.FromError(err)
	if errors.Is(err, io.EOF) {
		typed = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the gateway ended the stream")
	}
	if !e.everOpened && typed.Reason == typev1.ErrorReason_ERROR_REASON_UNREACHABLE {
		return typed // nothing was reached yet: better say so at once
	}
	if !rpc.Retryable(typed) || !e.everOpened && time.Since(e.started) > e.cfg.DeliveryTimeout {
		return typed
	}
	if wasOpened || !e.everLost {
		e.cfg.Note("lost the gateway (%s); trying again", rpc.ReasonName(typed.Reason))
	}
	e.everLost = true
	return nil
}

// dropSession gives the session up: its unanswered chunks become uncertain.
func (e *engine) dropSession() {
	s := e.session
	if s == nil {
		return
	}
	e.session = nil
	for el := e.pending.Front(); el != nil; el = el.Next() {
		if c := el.Value.(*chunk); c.sent {
			c.sent, c.uncertain = false, true
		}
	}
	s.halfClose()
	s.end()
	e.reconnectAt = time.Now().Add(e.backoff.Next())
}

func (e *engine) abandonSession() {
	if e.session != nil {
		e.session.end()
		e.session = nil
	}
}

// reconnect opens a new session once there is something to send.
func (e *engine) reconnect(now time.Time) {
	if e.session != nil || now.Before(e.reconnectAt) || !e.interruptUntil.IsZero() && e.pending.Len() == 0 {
		return
	}
	if e.pending.Len() == 0 && len(e.held) == 0 && e.everOpened {
		e.reconnectAt = time.Time{}
		return
	}
	e.reconnectAt = time.Time{}
	e.session = startSession(e.ctx, e.cfg.Client, e.open, e.events)
}

// result ends a send: each of its records was acknowledged, failed, or goes
// back to be sent again.
func (e *engine) result(r *gatewayv1.ProduceResult) {
	el, ok := e.byID[r.GetId()]
	if !ok || !el.Value.(*chunk).sent {
		return
	}
	c := el.Value.(*chunk)
	waited := time.Since(c.sentAt)
	next := el.Next()
	e.remove(el)
	c.sent = false
	again := &chunk{born: c.born, uncertain: c.uncertain}
	told := make([]bool, len(c.items))
	for _, g := range r.GetRanges() {
		first, end := int(g.GetFirst()), int(g.GetFirst())+int(g.GetCount())
		if first < 0 || end > len(c.items) || first > end {
			continue
		}
		err := rpc.FromProto(g.GetError())
		for i := first; i < end; i++ {
			if told[i] {
				continue
			}
			told[i] = true
			if err != nil && e.sendAgain(err, c) {
				again.items = append(again.items, c.items[i])
				again.bytes += sizeOf(c.items[i].Record) + recordOverhead
				continue
			}
			e.answered(c, c.items[i], g, int64(i-first), err, waited)
		}
	}
	for i, item := range c.items {
		if !told[i] {
			e.tell(Result{Number: item.Number, Partition: -1, Offset: -1, Unknown: true, Err: rpc.Errorf(
				typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "the gateway's result says nothing about record %d", item.Number)})
		}
	}
	if len(again.items) > 0 {
		e.add(again, next)
		e.session.draining = true // let the rest be answered, then go on with a new stream
	}
}

// sendAgain reports whether records that were certainly not stored should be
// sent once more: the gateway itself has not begun with them. Anything else the
// gateway has tried for the whole delivery timeout already.
func (e *engine) sendAgain(err *rpc.Error, c *chunk) bool {
	if err.Outcome != typev1.Outcome_OUTCOME_NOT_DONE || !e.interruptUntil.IsZero() || time.Since(c.born) > e.cfg.DeliveryTimeout {
		return false
	}
	return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DRAINING, typev1.ErrorReason_ERROR_REASON_STARTING)
}

func (e *engine) answered(c *chunk, item Item, g *gatewayv1.RecordRange, index int64, err *rpc.Error, waited time.Duration) {
	r := Result{Number: item.Number, Partition: g.GetPartition(), Offset: -1, Err: err}
	switch {
	case err == nil:
		if g.GetBaseOffset() >= 0 {
			r.Offset = g.GetBaseOffset() + index
		}
		r.MaybeDuplicated = c.uncertain || g.GetMaybeDuplicated()
		e.latency.add(waited, 1)
	default:
		r.Unknown = c.uncertain || err.Outcome != typev1.Outcome_OUTCOME_NOT_DONE
	}
	e.tell(r)
}

// closing takes the gateway's own count: failures of acks 0 are told only here.
func (e *engine) closing(s *gatewayv1.ProduceSummary) {
	if e.open.GetAcks() != typev1.Acks_ACKS_NONE {
		return
	}
	failed, unknown := s.GetFailed()-e.summary.Failed, s.GetUnknown()-e.summary.Unknown
	if failed > 0 {
		e.summary.Failed += failed
		e.summary.Acked -= failed
	}
	if unknown > 0 {
		e.summary.Unknown += unknown
		e.summary.Acked -= unknown
	}
}

// expire ends what has waited too long.
func (e *engine) expire(now time.Time) {
	if !e.interruptUntil.IsZero() && now.After(e.interruptUntil) {
		e.giveUp(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CANCELLED, "interrupted before the gateway had answered"))
	}
	for el := e.pending.Front(); el != nil; el = e.pending.Front() {
		c := el.Value.(*chunk)
		limit := e.cfg.DeliveryTimeout
		if c.sent {
			limit = e.timeout + answerGrace
		}
		if now.Sub(c.born) <= limit {
			return
		}
		e.fail(e.remove(el), rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED,
			"no acknowledgement within the delivery timeout of %v; raise --delivery-timeout, or see `leat cluster describe`", e.cfg.DeliveryTimeout))
	}
}
