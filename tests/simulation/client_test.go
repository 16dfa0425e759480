package simulation

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/topicid"
)

// topic is one life of a topic, as it was asked for.
type topic struct {
	name     string
	id       topicid.ID
	rf       int32
	min      int32 // as set last; 0: by default
	altering int   // changes of min under way
	low      int32 // the lowest of them
	os       bool
	unclean  bool
	clean    cleaning
	internal bool
	born     bool // etcd has had it
	parts    []*part
}

// Bounds of a partition, so that walks do not grow: of what is committed, and of what
// is appended beyond that.
const (
	maxInFlight = 5
	maxTruth    = 300
	maxTail     = 40
)

// writer is a producer of one partition.
type writer struct {
	w         *world
	p         *part
	acks      partition.Acks
	pid       int64 // -1: not idempotent
	epoch     int16
	next      int32 // sequence
	pending   []*sent
	made      int                     // batches
	said      commitlog.ProducerCheck // by the log that refused last
	committed map[int16]int32         // next sequence to be committed, by epoch (kept by the checks)
	acked     int
}

// sent is a batch that is not settled.
type sent struct {
	number int
	values []int64
	data   []byte
	header record.Header
	busy   int // requests on their way
	retry  time.Duration
	stuck  int
}

// valueOf is what makes a record different from all others. Tombstones say it in a header.
func valueOf(r *record.Record) int64 {
	if len(r.Headers) > 0 {
		return int64(binary.BigEndian.Uint64(r.Headers[0].Value))
	}
	if len(r.Value) < 8 {
		return -1
	}
	return int64(binary.BigEndian.Uint64(r.Value))
}

// keys is how many keys the records of a topic that is compacted have.
const keys = 6

// produce has a writer make a batch, or send one again.
func (wr *writer) produce() {
	w := wr.w
	if wr.p.gone {
		return
	}
	var again []*sent
	for _, s := range wr.pending {
		if s.busy == 0 && s.retry <= w.now {
			again = append(again, s)
		}
	}
	// No more than five between the oldest that is not settled and the newest.
	full := len(wr.pending) > 0 && wr.made-wr.pending[0].number >= maxInFlight
	if len(again) > 0 && (full || w.chance(70)) {
		wr.send(again[0])
		return
	}
	if full || int64(len(wr.p.truth)) > maxTruth+wr.p.deleted || wr.p.appended > int64(len(wr.p.truth))+maxTail {
		return
	}
	s := wr.batch(1 + w.n(3))
	s.number = wr.made
	wr.made++
	wr.pending = append(wr.pending, s)
	wr.send(s)
}

// batch encodes a batch of values that no other has.
func (wr *writer) batch(n int) *sent {
	w := wr.w
	o := record.DefaultBuilderOptions()
	if wr.pid >= 0 {
		o.ProducerID, o.ProducerEpoch, o.BaseSequence = wr.pid, wr.epoch, wr.next
		wr.next += int32(n)
	}
	b, err := record.NewBuilder(o)
	if err != nil {
		panic(err)
	}
	s := &sent{}
	size := 8
	if w.chance(10) {
		size += w.n(4000)
	}
	for range n {
		w.lastValue++
		s.values = append(s.values, w.lastValue)
		value := binary.BigEndian.AppendUint64(nil, uint64(w.lastValue))
		rec := &record.Record{Timestamp: w.clock().UnixMilli(), Value: append(value, make([]byte, size-8)...)}
		if wr.p.topic.clean.compact {
			rec.Key = fmt.Appendf(nil, "k%d", w.n(keys))
			if w.chance(25) {
				rec.Value, rec.Headers = nil, []record.RecordHeader{{Key: []byte("v"), Value: value}}
			}
		}
		if _, err := b.Append(rec); err != nil {
			panic(err)
		}
	}
	if s.data, err = b.Build(); err != nil {
		panic(err)
	}
	s.header, _ = record.ParseHeader(s.data)
	return s
}

// send sends a batch to whom the client takes for the leader.
func (wr *writer) send(s *sent) {
	w := wr.w
	rec := wr.p.record
	leader := rec.Leader.ID
	epoch := int32(-1)
	if w.chance(50) {
		epoch = rec.LeaderEpoch
	}
	if leader == 0 || w.faults && w.chance(10) {
		leader = w.anyBroker().id
		epoch = -1
	}
	b := w.broker(leader)
	s.busy++
	k := &call{deadline: w.now + produceLimit + callTimeout, lost: func() { s.busy--; s.retry = w.now; wr.unsure(s) }}
	w.calls = append(w.calls, k)
	client := node{cluster.KindGateway, 1}
	w.count("produce")
	w.send(&packet{from: client, to: b.node(), what: "produce", run: func() {
		r := b.get(wr.p.id)
		answer := func(res result) {
			w.send(&packet{from: b.node(), to: client, what: "answer to produce", run: func() {
				if k.done {
					return
				}
				k.done = true
				s.busy--
				wr.answered(s, res)
			}})
		}
		if r == nil || r.core == nil || r.gone || b.regressed {
			answer(result{outcome: partition.Rejected, reason: partition.ReasonNotLeader, base: -1})
			return
		}
		bt := &batch{data: s.data, header: s.header, acks: wr.acks, done: answer}
		r.produce(bt, epoch)
	}})
}

// unsure deals with a batch whose outcome is not known. One that is not idempotent
// is given up: it may be there.
func (wr *writer) unsure(s *sent) {
	if wr.pid < 0 {
		wr.drop(s)
	}
}

func (wr *writer) drop(s *sent) {
	wr.pending = slices.DeleteFunc(wr.pending, func(x *sent) bool { return x == s })
}

func (wr *writer) answered(s *sent, res result) {
	w := wr.w
	if !slices.Contains(wr.pending, s) {
		return
	}
	w.count("answer: " + outcomeName(res))
	switch {
	case res.outcome == partition.OK:
		if wr.acks == partition.AcksAll {
			for i, v := range s.values {
				if at, ok := wr.p.acked[v]; ok && at != res.base+int64(i) {
					w.fail("FALSE-ACK", "value %d of %s was acknowledged at %d and at %d", v, w.name(wr.p.id), at, res.base+int64(i))
				}
				wr.p.acked[v] = res.base + int64(i)
			}
			wr.acked += len(s.values)
			w.count("record acknowledged")
		}
		wr.drop(s)
	case res.outcome == partition.Unknown:
		s.retry = w.now
		wr.unsure(s)
	default:
		s.retry = w.now + time.Duration(w.n(20))*time.Millisecond
		if e, ok := res.err.(*errProducer); ok && wr.pid >= 0 && s == wr.pending[0] {
			wr.outOfSequence(s, e)
		}
	}
}

// outOfSequence deals with the log not knowing what the oldest unsettled batch
// follows. A leader of yesterday may say so too; it is believed after a while.
func (wr *writer) outOfSequence(s *sent, e *errProducer) {
	w := wr.w
	wr.said = e.check
	if s.stuck++; s.stuck < 5 {
		return
	}
	old := s.header.BaseSequence < e.check.NextSequence && s.header.ProducerEpoch == e.check.Epoch
	if e.check.Verdict == commitlog.ProducerOutOfOrder && !wr.p.lossy && wr.p.deleted == 0 && !(old && wr.p.topic.clean.compact) && wr.acks == partition.AcksAll && s.stuck > 30 {
		w.fail("IDEMPOTENCE", "producer %d/%d: sequence %d of %s is refused for good (%+v)", wr.pid, wr.epoch, s.header.BaseSequence, w.name(wr.p.id), e.check)
	}
	if e.check.Verdict == commitlog.ProducerOutOfOrder && (wr.p.deleted > 0 || wr.p.topic.clean.compact) && old {
		// It was stored most likely, and what the log knew of it went with the records.
		w.count("retry of a batch that the log has forgotten")
		wr.drop(s)
		return
	}
	if e.check.Verdict == commitlog.ProducerUnknown || wr.p.lossy || wr.acks != partition.AcksAll {
		// The log has forgotten this producer: begin anew, under another epoch. What was
		// unsettled stays so.
		w.count("producer began anew")
		wr.pending, wr.next = nil, 0
		wr.epoch++
	}
}

func outcomeName(res result) string {
	switch res.outcome {
	case partition.OK:
		return "OK"
	case partition.Unknown:
		return "unknown, " + res.reason.String()
	}
	return "refused, " + res.reason.String()
}

// reader is a client that reads one partition.
type reader struct {
	w     *world
	p     *part
	next  int64
	seen  int64
	epoch int32
	from  bool // also from followers
}

// read asks a broker for what comes next.
func (rd *reader) read() {
	w, p := rd.w, rd.p
	if p.gone {
		return
	}
	b := w.broker(p.record.Leader.ID)
	if b == nil || rd.from && w.chance(50) || w.chance(10) {
		b = w.anyBroker()
	}
	if !b.runs() || b.regressed {
		return
	}
	r := b.get(p.id)
	if r == nil || r.core == nil || r.gone || r.log == nil {
		return
	}
	q := &partition.Read{Req: 1 << 40, Kind: partition.ReadFetch, Offset: rd.next, ClientEpoch: rd.epoch, ClientSeen: rd.seen, AllowFollower: rd.from}
	if w.chance(10) {
		q.Kind = partition.ReadLatest
	}
	_, epoch := r.core.Leader()
	for _, e := range r.core.Step(q) {
		switch e := e.(type) {
		case *partition.Serve:
			rd.served(r, q.Kind, *e, epoch)
		case partition.Wait:
			rd.sees(r, r.core.HighWatermark(), epoch)
		case *partition.Reply:
			w.count("read refused: " + e.Reason.String())
			if e.Reason == partition.ReasonOffsetOutOfRange {
				rd.outOfRange(r)
			}
		}
		if w.failure != nil {
			return
		}
	}
}

func (rd *reader) served(r *replica, kind partition.ReadKind, e partition.Serve, epoch int32) {
	w, p := rd.w, rd.p
	w.count("read served")
	rd.sees(r, e.UpTo, epoch)
	if kind != partition.ReadFetch {
		return
	}
	data, next, err := r.read(rd.next, e.UpTo, 1+w.n(2000))
	if err != nil || len(data) == 0 {
		return
	}
	for len(data) > 0 {
		batch, rest, _ := record.NextBatch(data)
		h, _ := record.ParseHeader(batch)
		if !p.lossy && !r.b.disk.rotten[p.id] {
			wrong := ""
			if h.NextOffset() > int64(len(p.truth)) {
				wrong = fmt.Sprintf("a batch at %d, beyond what is committed", h.BaseOffset)
			} else {
				wrong = p.matches(&h, batch, max(h.BaseOffset, rd.next), h.NextOffset())
			}
			if wrong != "" {
				w.fail("UNSTABLE", "a client reads of %s from broker %d#%d %s", w.name(p.id), r.b.id, r.b.inc, wrong)
				return
			}
		}
		if h.BaseOffset > rd.next {
			w.count("gap read over")
			if o := p.firstDue(rd.next, h.BaseOffset); o < h.BaseOffset && !p.lossy {
				w.fail("GAP", "a client reads %s on from %d and gets %d, without the record at %d", w.name(p.id), rd.next, h.BaseOffset, o)
				return
			}
		}
		rd.next = h.NextOffset()
		data = rest
	}
	rd.next = next
	w.count("record read")
}

// sees checks that the visible end does not go back for a client.
func (rd *reader) sees(r *replica, end int64, epoch int32) {
	if end < rd.seen && !rd.p.lossy {
		rd.w.fail("BACKWARD", "a client saw %s up to %d, and broker %d#%d shows %d", rd.w.name(rd.p.id), rd.seen, r.b.id, r.b.inc, end)
		return
	}
	rd.seen, rd.epoch = end, max(rd.epoch, epoch)
}

// outOfRange begins again where the log begins.
func (rd *reader) outOfRange(r *replica) {
	p := rd.p
	switch {
	case rd.next < r.core.Start():
		rd.next = r.core.Start()
		if rd.next > p.deleted && !p.lossy {
			rd.w.fail("GAP", "%s begins at %d on broker %d#%d, and only what is below %d was deleted", rd.w.name(p.id), rd.next, r.b.id, r.b.inc, p.deleted)
		}
	case p.lossy:
		rd.next, rd.seen = r.core.HighWatermark(), r.core.HighWatermark()
	default:
		rd.w.fail("BACKWARD", "broker %d#%d knows no offset %d of %s, which a client has read up to", r.b.id, r.b.inc, rd.next, rd.w.name(p.id))
	}
}
