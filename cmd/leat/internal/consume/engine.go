package consume

import (
	"context"
	"errors"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// place is what is known of a partition.
type place struct {
	topicID   string // of the topic with the name, as assigned told it; empty: not told
	next      int64  // offset of the next record to print, -1 unknown
	flushed   int64  // next, as of the last written output
	committed int64  // confirmed by the coordinator
	assigned  bool
	revoking  bool
	revokeBy  time.Time
	failed    bool
	delivered bool // it has had records

	// Leader epochs of the records before next and flushed; -1: unknown. One that
	// is older than the record would make a broker say that the log was cut.
	epoch, flushedEpoch int32
}

// skipTo moves on past what is not printed.
func (p *place) skipTo(next int64) {
	if next > p.next {
		p.next, p.epoch = next, -1
	}
}

// engine is the state of a Run; only its goroutine touches it.
type engine struct {
	ctx     context.Context
	cfg     Config
	summary Summary
	started time.Time

	events  chan event
	session *session
	opened  bool // of the session
	backoff *rpc.Backoff

	everOpened  bool
	lostSince   time.Time
	reconnectAt time.Time
	heardAt     time.Time
	pingAt      time.Time
	pings       int64
	waiting     *rpc.Error // what the gateway says it waits for
	waitingFrom time.Time
	waitingTold bool
	memberID    string
	attach      int64
	fenced      *rpc.Error

	places    map[Partition]*place
	changedAt time.Time // of the assignment
	settledAt time.Time // the change behind which the group says that nothing more comes
	standing  chan standing
	asking    bool      // for the standing
	askAt     time.Time // at the earliest
	owed      int64     // credit to give back

	out       []byte // collected and not being written
	held      int64  // credit for what is in out
	writing   *write // under way; nil: none
	written   chan error
	spare     []byte // the buffer of the last write
	flushedAt time.Time

	commit     *commit // under way
	commitSeq  int64
	commitNext time.Time

	finishing   bool
	fatal       error // what Run ends with once it has said farewell
	outputLost  bool  // nothing can be printed any more
	finishUntil time.Time
	leaving     bool
	interrupt   <-chan struct{}
	progressAt  time.Time
}

func newEngine(ctx context.Context, cfg Config) *engine {
	cfg.Ends = maps.Clone(cfg.Ends) // the engine's own from here on
	if cfg.Note == nil {
		cfg.Note = func(string, ...any) {}
	}
	now := time.Now()
	return &engine{
		ctx: ctx, cfg: cfg, started: now, events: make(chan event, 16), written: make(chan error, 1), standing: make(chan standing, 1), places: map[Partition]*place{},
		backoff: &rpc.Backoff{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond}, interrupt: cfg.Interrupt,
		changedAt: now, flushedAt: now, commitNext: now.Add(commitEvery), lostSince: now, progressAt: now,
	}
}

func (e *engine) grouped() bool { return e.cfg.Open.GetGroup() != "" }
func (e *engine) commits() bool { return e.grouped() && e.cfg.AutoCommit }

func (e *engine) run() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		err := e.step(timer)
		if errors.Is(err, errDone) {
			return errors.Join(e.fatal, e.settle())
		}
		if err != nil && !e.endsWell(err) {
			return errors.Join(e.fatal, err, e.settle())
		}
	}
}

// endsWell keeps an error that ends the Run for its end, where there is a group to
// leave first: what was printed is committed, and the others of the group do not
// wait for a member that is gone.
func (e *engine) endsWell(err error) bool {
	if e.finishing || !e.grouped() || e.session == nil || !e.opened || e.ctx.Err() != nil {
		return false
	}
	e.fatal = err
	e.finish()
	return true
}

// step handles what is at hand, or else does what is due and waits.
func (e *engine) step(timer *time.Timer) error {
	select {
	case ev := <-e.events:
		if err := e.handle(ev); err != nil {
			return err
		}
		if time.Since(e.flushedAt) < flushEvery && e.owed < creditBytes/4 {
			return nil
		}
	case err := <-e.written:
		return e.wrote(err)
	case s := <-e.standing:
		e.stands(s)
	default:
	}
	now := time.Now()
	e.flush()
	if err := e.upkeep(now); err != nil {
		return err
	}
	timer.Reset(e.wakeIn(now))
	select {
	case ev := <-e.events:
		return e.handle(ev)
	case err := <-e.written:
		return e.wrote(err)
	case s := <-e.standing:
		e.stands(s)
	case <-timer.C:
	case <-e.interrupt:
		e.interrupt = nil
		e.summary.Interrupted = true
		e.finish()
	case <-e.ctx.Done():
		return e.ctx.Err()
	}
	return nil
}

// upkeep does what is due by the clock or by the state.
func (e *engine) upkeep(now time.Time) error {
	if !e.finishing && e.complete(now) {
		e.finish()
	}
	if e.finishing {
		if err := e.farewell(now); err != nil {
			return err
		}
	}
	if e.session == nil && !now.Before(e.reconnectAt) && !(e.finishing && !e.grouped()) {
		if !e.lostSince.IsZero() && now.Sub(e.lostSince) > lostLimit {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the gateway could not be reached for %v", lostLimit)
		}
		e.session = startSession(e.ctx, e.cfg.Client, e.openRequest(), e.events)
		e.opened, e.heardAt, e.pingAt = false, now, now.Add(pingEvery)
	}
	e.tellWaiting(now)
	if e.session == nil {
		return nil
	}
	if now.Sub(e.heardAt) > silenceLimit && e.opened {
		return e.broken(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the gateway has not answered for %v", silenceLimit))
	}
	if !e.opened {
		return nil
	}
	if now.After(e.pingAt) {
		e.pings++
		e.pingAt = now.Add(pingEvery)
		e.session.trySend(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Ping{Ping: &gatewayv1.ConsumePing{PingId: e.pings}}})
	}
	if e.owed > 0 && e.session.trySend(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Credit{Credit: &gatewayv1.ConsumeCredit{Bytes: e.owed}}}) {
		e.owed = 0
	}
	e.commitDue(now)
	e.giveUpRevoked(now)
	e.progress(now)
	return nil
}

func (e *engine) wakeIn(now time.Time) time.Duration {
	at := now.Add(500 * time.Millisecond)
	for _, t := range []time.Time{e.reconnectAt, e.finishUntil} {
		if !t.IsZero() && t.After(now) && t.Before(at) {
			at = t
		}
	}
	if e.commits() && e.commit == nil && e.commitNext.After(now) && e.commitNext.Before(at) {
		at = e.commitNext
	}
	return max(at.Sub(now), time.Millisecond)
}

func (e *engine) progress(now time.Time) {
	if e.cfg.Progress == nil || now.Sub(e.progressAt) < 500*time.Millisecond {
		return
	}
	e.progressAt = now
	s := e.summary
	s.Elapsed = now.Sub(e.started)
	e.cfg.Progress(s)
}

// openRequest is how the next stream is opened: as the first was, or going on
// where the last one broke.
func (e *engine) openRequest() *gatewayv1.ConsumeOpen {
	open := proto.Clone(e.cfg.Open).(*gatewayv1.ConsumeOpen)
	open.CreditBytes = e.firstCredit()
	open.MaxMessageBytes = rpc.MaxMessageBytes
	// Where the caller knows no ends, such as those of one replica, the gateway may.
	open.StopAtEnd = open.StopAtEnd || e.cfg.Ends != nil && !e.grouped()
	open.MemberId, open.Attach = e.memberID, e.attach
	if e.grouped() && e.memberID == "" {
		return open
	}
	for p, pl := range e.places {
		if pl.next >= 0 && !pl.failed && (pl.assigned || !e.grouped()) {
			open.Positions = append(open.Positions, &gatewayv1.ConsumePosition{
				Topic: p.Topic, Partition: p.Partition, NextOffset: pl.next, LeaderEpoch: &pl.epoch, TopicId: []byte(pl.topicID),
			})
		}
	}
	return open
}

// firstCredit is the credit of a new stream: what is not held by output that nobody has
// taken yet, and at least something, since none would mean no bound.
func (e *engine) firstCredit() int64 {
	held := e.held
	if e.writing != nil {
		held += e.writing.cost
	}
	return max(creditBytes-held, 1)
}

func (e *engine) place(topic string, partition int32) *place {
	p := Partition{topic, partition}
	pl := e.places[p]
	if pl == nil {
		pl = &place{next: -1, flushed: -1, committed: -1, epoch: -1, flushedEpoch: -1}
		e.places[p] = pl
	}
	return pl
}

// complete reports whether everything asked for has been printed.
func (e *engine) complete(now time.Time) bool {
	if e.cfg.MaxMessages > 0 && e.summary.Records >= e.cfg.MaxMessages {
		return true
	}
	live, assigned := 0, 0
	for p, pl := range e.places {
		if pl.failed {
			continue
		}
		if pl.assigned || !e.grouped() {
			assigned++
			if end, ok := e.cfg.Ends[p]; !ok || pl.next < end {
				live++
			}
		}
	}
	failed := len(e.places) - assigned
	if !e.grouped() {
		// With every partition failed nothing more can come, follow or not.
		return live == 0 && len(e.places) >= len(e.cfg.Partitions) && (e.cfg.Ends != nil || failed == len(e.places)) && len(e.places) > 0
	}
	if e.cfg.Ends == nil || live > 0 || !e.opened || e.revokingAny() {
		return false
	}
	return assigned >= len(e.cfg.Partitions) || e.settled(now, assigned)
}

func (e *engine) revokingAny() bool {
	for _, pl := range e.places {
		if pl.revoking {
			return true
		}
	}
	return false
}

// finish ends the printing; upkeep commits and leaves.
func (e *engine) finish() {
	if !e.finishing {
		e.finishing = true
		e.finishUntil = time.Now().Add(finishLimit)
	}
}

// farewell commits the last positions, leaves the group, and ends the Run. Whoever reads
// the output may take his time before that, unless the Run was interrupted.
func (e *engine) farewell(now time.Time) error {
	if e.unwritten() && !(e.summary.Interrupted && now.After(e.finishUntil)) {
		if !e.summary.Interrupted {
			e.finishUntil = now.Add(finishLimit)
		}
		if !e.grouped() {
			e.endSession() // it has given all that is wanted
		}
		return nil
	}
	if !e.grouped() || now.After(e.finishUntil) {
		return errDone
	}
	if e.commits() && len(e.dirty()) > 0 {
		return nil // commitDue does it, on a new stream if need be
	}
	if e.session == nil || !e.opened && e.waiting != nil {
		return errDone // detached: the coordinator notices by itself
	}
	if !e.opened {
		// The group may count us in already: we leave it once that is answered, lest
		// partitions wait for a whole session.
		if by := now.Add(leaveLimit); by.Before(e.finishUntil) {
			e.finishUntil = by
		}
		return nil
	}
	if !e.leaving {
		e.leaving = true
		e.finishUntil = now.Add(leaveLimit)
		e.session.send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Leave{Leave: &gatewayv1.ConsumeLeave{}}})
	}
	return nil
}
