package session

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// ProduceLimits bounds one produce stream.
type ProduceLimits struct {
	MaxInFlightRecords int           // unanswered records, beyond which nothing is read
	MaxInFlightBytes   int64         // the same in bytes of records
	MaxSendRecords     int           // records in one send
	OpenTimeout        time.Duration // silence before open
	DeliveryTimeout    time.Duration // of streams that name none
	MaxDeliveryTimeout time.Duration // the longest a stream may name
	Linger             time.Duration // of streams that name none
	MaxLinger          time.Duration // the longest a stream may name
	DrainTimeout       time.Duration // from drain to the end of a stream that does not close
}

// ProduceSettings is what a client's open asks for, with every default filled in.
type ProduceSettings struct {
	ClientID        string
	Acks            typev1.Acks
	DeliveryTimeout time.Duration // rounded by StepUp
	StopPartition   bool
	Compression     typev1.CompressionType
	Partitioner     gatewayv1.Partitioner
	Linger          time.Duration
}

// ProduceState is the state of a produce stream; see docs/streams.md.
type ProduceState int

// The states of a produce stream.
const (
	ProduceNew        ProduceState = iota // waits for open
	ProduceOpening                        // open has come, the producer is being found
	ProduceOpen                           // takes sends
	ProduceDraining                       // the gateway stops: refuses sends
	ProduceHalfClosed                     // the client has ended: answers what is left
	ProduceFailing                        // a rule was broken: answers what is left, then fails
	ProduceEnded                          // over
)

// String names the state as the documentation does.
func (s ProduceState) String() string {
	return [...]string{"NEW", "OPENING", "OPEN", "DRAINING", "HALF_CLOSED", "FAILING", "ENDED"}[s]
}

// ProduceEffect is something that a caller has to do for a Produce.
type ProduceEffect interface{ produceEffect() }

// ProduceAcquire asks for a producer with the settings; Opened or Fail answers it.
type ProduceAcquire struct{ Settings ProduceSettings }

// ProduceAppend asks to append records, in order; Done answers each of them.
type ProduceAppend struct {
	Seq   int64 // which send, as numbered by the machine, from 1
	Topic string
	// Records are numbered by their index.
	Records []*gatewayv1.ProduceRecord
	// Trace is the send's own context; nil: that of the stream.
	Trace *typev1.TraceContext
	// Deadline is when handing records over stops making sense.
	Deadline time.Time
}

func (ProduceAcquire) produceEffect() {}
func (ProduceAppend) produceEffect()  {}

// RecordResult is what became of one record.
type RecordResult struct {
	Partition       int32 // -1: none was chosen
	Offset          int64 // -1: none
	LeaderEpoch     int32 // -1: none
	Err             error
	MaybeDuplicated bool
}

// Produce is the state machine of one produce stream.
type Produce struct {
	limits   ProduceLimits
	identity Identity
	settings ProduceSettings

	state   ProduceState
	endErr  error
	startAt time.Time
	drainAt time.Time // when a draining stream ends whatever the client does

	sends   map[int64]*send // unanswered, by number
	byID    map[int64]int64 // the client's id to number
	order   []int64         // numbers by deadline, oldest first; answered ones are skipped
	lastSeq int64

	records int   // unanswered, or answered and not yet sent
	bytes   int64 // the same

	effects []ProduceEffect
	out     []outgoing
	summary gatewayv1.ProduceSummary
}

// outgoing is a message on its way, with what its sending frees.
type outgoing struct {
	message *gatewayv1.ProduceResponse
	records int
	bytes   int64
}

// send is one unanswered send.
type send struct {
	id        int64
	topic     string
	bytes     int64
	deadline  time.Time
	results   []recordOutcome
	remaining int
}

// Identity is what a stream's opened message says of the gateway.
type Identity struct {
	Handshake *typev1.Handshake
	Process   *typev1.Process
}

// NewProduce returns a stream in state NEW.
func NewProduce(now time.Time, limits ProduceLimits, id Identity) *Produce {
	return &Produce{limits: limits, identity: id, startAt: now, sends: map[int64]*send{}, byID: map[int64]int64{}}
}

// State is where the stream stands.
func (p *Produce) State() ProduceState { return p.state }

// Settings is what the client's open asked for.
func (p *Produce) Settings() ProduceSettings { return p.settings }

// Ended reports whether the stream is over and everything was taken to be sent,
// and with which error.
func (p *Produce) Ended() (bool, error) {
	return p.state == ProduceEnded && len(p.out) == 0, p.endErr
}

// TakeEffects returns what there is to do, in order, and forgets it.
func (p *Produce) TakeEffects() []ProduceEffect {
	e := p.effects
	p.effects = nil
	return e
}

// Next takes the next message to send; nil: none now. Its place in the window is
// free once it is taken, so it is to be sent before anything more is read.
func (p *Produce) Next() *gatewayv1.ProduceResponse {
	if len(p.out) == 0 {
		return nil
	}
	o := p.out[0]
	p.out = p.out[1:]
	p.records -= o.records
	p.bytes -= o.bytes
	return o.message
}

// WantsRead reports whether another client message may be read: the window is not
// full. One message may overshoot it.
func (p *Produce) WantsRead() bool {
	switch p.state {
	case ProduceNew:
		return true
	case ProduceOpen, ProduceDraining:
		return p.records < p.limits.MaxInFlightRecords && p.bytes < p.limits.MaxInFlightBytes
	case ProduceOpening, ProduceHalfClosed, ProduceFailing, ProduceEnded:
	}
	return false
}

// WakeAt is when Tick is next needed; zero: not at all.
func (p *Produce) WakeAt() time.Time {
	if p.state == ProduceNew {
		return p.startAt.Add(p.limits.OpenTimeout)
	}
	if p.state == ProduceEnded {
		return time.Time{}
	}
	wake := p.drainAt
	if s := p.oldest(); s != nil && (wake.IsZero() || s.deadline.Before(wake)) {
		wake = s.deadline
	}
	return wake
}

// oldest is the unanswered send with the nearest deadline.
func (p *Produce) oldest() *send {
	if len(p.order) > 2*len(p.sends)+1024 {
		// One send that takes long must not keep the numbers of all that followed it.
		p.order = slices.DeleteFunc(p.order, func(seq int64) bool { return p.sends[seq] == nil })
	}
	for len(p.order) > 0 {
		if s, ok := p.sends[p.order[0]]; ok {
			return s
		}
		p.order = p.order[1:]
	}
	return nil
}

// Tick lets time pass: an open that did not come, deadlines, the end of a drain.
func (p *Produce) Tick(now time.Time) {
	switch p.state {
	case ProduceNew:
		if !now.Before(p.startAt.Add(p.limits.OpenTimeout)) {
			p.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
				"no open message came within %s; send open first, right after the stream begins", p.limits.OpenTimeout))
		}
		return
	case ProduceEnded:
		return
	case ProduceOpening, ProduceOpen, ProduceDraining, ProduceHalfClosed, ProduceFailing:
	}
	for s := p.oldest(); s != nil && !now.Before(s.deadline); s = p.oldest() {
		p.expire(p.order[0], s)
	}
	if !p.drainAt.IsZero() && !now.Before(p.drainAt) && p.state != ProduceEnded {
		p.end(errDraining())
	}
}

// Receive takes a message of the client; bytes is its size.
func (p *Produce) Receive(now time.Time, m *gatewayv1.ProduceRequest, bytes int64) {
	switch p.state {
	case ProduceNew:
		open, ok := m.GetMessage().(*gatewayv1.ProduceRequest_Open)
		if !ok {
			p.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
				"the first message of a produce stream is %s; send open first, an empty one will do", produceKind(m)))
			return
		}
		p.receiveOpen(open.Open)
	case ProduceOpen, ProduceDraining:
		s, ok := m.GetMessage().(*gatewayv1.ProduceRequest_Send)
		if !ok {
			p.fail(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
				"got %s on an open produce stream; only send may follow open", produceKind(m)))
			return
		}
		p.receiveSend(now, s.Send, bytes)
	case ProduceOpening, ProduceHalfClosed, ProduceFailing, ProduceEnded:
		// Nothing is read in these; what was on its way is dropped.
	}
}

func produceKind(m *gatewayv1.ProduceRequest) string {
	switch m.GetMessage().(type) {
	case *gatewayv1.ProduceRequest_Open:
		return "a second open"
	case *gatewayv1.ProduceRequest_Send:
		return "send"
	}
	return "empty, or of a kind that this gateway does not know"
}

func (p *Produce) receiveOpen(o *gatewayv1.ProduceOpen) {
	settings, err := produceSettings(o, p.limits)
	if err != nil {
		p.end(err)
		return
	}
	p.settings = settings
	p.state = ProduceOpening
	p.effects = append(p.effects, ProduceAcquire{Settings: settings})
}

// Opened says that the producer of a ProduceAcquire is there.
func (p *Produce) Opened() {
	if p.state != ProduceOpening {
		return
	}
	p.state = ProduceOpen
	p.reply(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Opened{Opened: &gatewayv1.ProduceOpened{
		Handshake: p.identity.Handshake, Gateway: p.identity.Process,
		MaxInFlightRecords: int32(p.limits.MaxInFlightRecords), MaxInFlightBytes: p.limits.MaxInFlightBytes,
		DeliveryTimeout: durationpb.New(p.settings.DeliveryTimeout),
	}}})
}

// Fail ends the stream with an error once what is unanswered has been answered.
func (p *Produce) Fail(err error) { p.fail(err) }

// HalfClose says that the client will send nothing more.
func (p *Produce) HalfClose() {
	switch p.state {
	case ProduceNew:
		p.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
			"the produce stream ended before its open message; send open, then sends, then close"))
	case ProduceOpening, ProduceOpen, ProduceDraining:
		p.state = ProduceHalfClosed
		p.settle()
	case ProduceHalfClosed, ProduceFailing, ProduceEnded:
	}
}

// Drain says that the gateway is stopping: later sends are refused, what is on
// its way is answered, and after a while the stream ends.
func (p *Produce) Drain(now time.Time) {
	switch p.state {
	case ProduceNew, ProduceOpening:
		p.end(errDraining())
	case ProduceOpen:
		p.state = ProduceDraining
		p.drainAt = now.Add(p.limits.DrainTimeout)
		p.reply(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Drain{Drain: &gatewayv1.ProduceDrain{}}})
	case ProduceHalfClosed, ProduceFailing:
		p.drainAt = now.Add(p.limits.DrainTimeout)
	case ProduceDraining, ProduceEnded:
	}
}

func errDraining() error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING,
		"the gateway is stopping; open the stream again, at another gateway or once this one is back")
}

func (p *Produce) reply(m *gatewayv1.ProduceResponse) {
	p.out = append(p.out, outgoing{message: m})
}

func (p *Produce) end(err error) {
	p.state, p.endErr = ProduceEnded, err
}

func (p *Produce) fail(err error) {
	if p.state == ProduceEnded || p.state == ProduceFailing {
		return
	}
	p.state, p.endErr = ProduceFailing, err
	p.settle()
}

// settle ends a stream that takes no more once everything is answered.
func (p *Produce) settle() {
	if len(p.sends) > 0 {
		return
	}
	switch p.state {
	case ProduceHalfClosed:
		p.reply(&gatewayv1.ProduceResponse{Message: &gatewayv1.ProduceResponse_Summary{Summary: &gatewayv1.ProduceSummary{
			Records: p.summary.Records, Acknowledged: p.summary.Acknowledged,
			Failed: p.summary.Failed, Unknown: p.summary.Unknown,
		}}})
		p.end(nil)
	case ProduceFailing:
		p.end(p.endErr)
	case ProduceNew, ProduceOpening, ProduceOpen, ProduceDraining, ProduceEnded:
	}
}
