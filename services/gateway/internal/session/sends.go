package session

import (
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// deliveryGrace is how long beyond the delivery timeout a send waits for the
// producer, which runs on the same timeout, to tell what became of it. The
// producer alone knows whether a record was ever sent, and what the last problem
// was; the session's own answer is for the case that it says nothing.
const deliveryGrace = 2 * time.Second

func (p *Produce) receiveSend(now time.Time, m *gatewayv1.ProduceSend, bytes int64) {
	if _, taken := p.byID[m.GetId()]; taken {
		p.fail(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
			"send id %d is in use by a send that has no result yet; number the sends of a stream 1, 2, 3 …", m.GetId()))
		return
	}
	n := len(m.GetRecords())
	p.summary.Records += int64(n)
	p.lastSeq++
	s := &send{
		id: m.GetId(), topic: m.GetTopic(), bytes: bytes, deadline: now.Add(p.settings.DeliveryTimeout + deliveryGrace),
		results: make([]recordOutcome, n), remaining: n,
	}
	p.sends[p.lastSeq] = s
	p.byID[s.id] = p.lastSeq
	p.order = append(p.order, p.lastSeq)
	// A send counts as one record at least, so that empty ones are bounded too.
	p.records += max(n, 1)
	p.bytes += bytes

	if err := p.refuse(m); err != nil {
		p.answerAll(p.lastSeq, s, err)
		return
	}
	p.effects = append(p.effects, ProduceAppend{
		Seq: p.lastSeq, Topic: s.topic, Records: m.GetRecords(), Trace: m.GetTrace(), Deadline: now.Add(p.settings.DeliveryTimeout),
	})
}

// refuse tells why a send as a whole is not taken.
func (p *Produce) refuse(m *gatewayv1.ProduceSend) error {
	if p.state == ProduceDraining {
		return errDraining()
	}
	return CheckSend(m.GetTopic(), m.GetRecords(), p.limits.MaxSendRecords)
}

// CheckSend checks what can be told of a send by itself.
func CheckSend(topic string, records []*gatewayv1.ProduceRecord, maxRecords int) error {
	switch {
	case topic == "":
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME, "the send names no topic; set topic")
	case topic == client.OffsetsTopic:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_TOPIC, "topic %q belongs to Leat itself and takes no records from clients; choose another topic", topic).With("topic", topic)
	case len(records) == 0:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the send for topic %q holds no records; put in 1 to %d", topic, maxRecords).With("topic", topic)
	case len(records) > maxRecords:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "the send for topic %q holds %d records; the limit is %d, so split it",
			topic, len(records), maxRecords).With("topic", topic).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
	}
	return nil
}

// Done says what became of one record of a ProduceAppend. What is answered
// already, because its deadline passed, is ignored.
func (p *Produce) Done(seq int64, index int, r RecordResult) {
	if s, ok := p.sends[seq]; ok {
		p.outcome(s, index, r)
		p.answer(seq, s)
	}
	p.settle()
}

// outcome notes the result of a record, once.
func (p *Produce) outcome(s *send, index int, r RecordResult) {
	if index < 0 || index >= len(s.results) || s.results[index].done {
		return
	}
	s.results[index] = newOutcome(r)
	s.remaining--
}

// answerAll gives every record of a send the same error.
func (p *Produce) answerAll(seq int64, s *send, err error) {
	for i := range s.results {
		p.outcome(s, i, RecordResult{Partition: -1, Offset: -1, LeaderEpoch: -1, Err: err})
	}
	if len(s.results) == 0 {
		p.emit(seq, s, []*gatewayv1.RecordRange{errorRange(s.topic, err)})
		p.settle()
		return
	}
	p.answer(seq, s)
	p.settle()
}

// answer sends the result of a send that is complete.
func (p *Produce) answer(seq int64, s *send) {
	if s.remaining > 0 {
		return
	}
	silent := p.settings.Acks == typev1.Acks_ACKS_NONE
	for i := range s.results {
		switch o := &s.results[i]; {
		case o.err == nil:
			p.summary.Acknowledged++
		case o.err.GetOutcome() == typev1.Outcome_OUTCOME_NOT_DONE:
			p.summary.Failed++
		default:
			p.summary.Unknown++
		}
	}
	p.emit(seq, s, ranges(s.topic, s.results, silent))
}

func (p *Produce) emit(seq int64, s *send, r []*gatewayv1.RecordRange) {
	delete(p.sends, seq)
	delete(p.byID, s.id)
	p.out = append(p.out, outgoing{
		message: &gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Result{
			Result: &gatewayv1.ProduceResult{Id: s.id, Ranges: r},
		}},
		records: max(len(s.results), 1), bytes: s.bytes,
	})
}

// expire answers a send whose deadline has passed without a word from the
// producer: what has no result may be on its way.
func (p *Produce) expire(seq int64, s *send) {
	err := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED,
		"the delivery timeout of %s passed before topic %q acknowledged; see whether its brokers are well, or allow more time",
		p.settings.DeliveryTimeout, s.topic).With("topic", s.topic).WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
	for i := range s.results {
		p.outcome(s, i, RecordResult{Partition: -1, Offset: -1, LeaderEpoch: -1, Err: err})
	}
	p.answer(seq, s)
	p.settle()
}

// RecordOverhead is what a record takes in memory beside its bytes, roughly: it
// is charged too, so that the smallest records cannot take many times their limit.
const RecordOverhead = 128

// SendSize is what a send takes of the gateway's memory, in bytes.
func SendSize(m proto.Message, records int) int64 {
	return int64(proto.Size(m)) + int64(records)*RecordOverhead
}
