package simulation

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
)

// replica is the loop around one replica's core: what the broker does in goroutines
// is done here one thing at a time, in an order that the seed draws.
type replica struct {
	w  *world
	b  *broker
	id cluster.PartitionID
	p  *part

	log       *commitlog.Log
	verdict   partition.Verdict
	fresh     bool // the log was made in the place of a bad one
	pardoned  bool
	condemned bool // its log was found to be damaged while it was read
	hwNoted   int64
	gone      bool

	core     *partition.State
	applied  int64 // revision of the record told last
	onRecord bool
	nextReq  int64
	batches  map[int64]*batch
	starts   map[int64]func(partition.Outcome)
	current  *batch           // of the Append
	task     partition.Effect // an Append, AppendCopy, Truncate or Reset
	cut      bool             // the log was cut or emptied, and the core has not been told
	syncOp   int64            // 0: none
	moveOp   int64
	moveTo   int64
	upkeep   *upkeep
	results  []partition.Event // what operations reported, not told to the core yet
	wake     time.Duration

	leaseTold time.Duration
	hwSeen    int64
	ledEpoch  int32 // newest leader epoch in which it began to lead

	sessions map[int64]*link // of followers
	copies   map[int64]int64 // how far followers in agreed sessions have come
	upstream *link           // with its leader
	runs     map[int64][]byte
	lastRef  int64
	refused  error // of the last append that the log took nothing of
}

// batch is a produce on its way through a replica.
type batch struct {
	data    []byte
	header  record.Header
	acks    partition.Acks
	fence   *partition.Fence
	limit   time.Duration // how long it may take, if longer than produceLimit
	done    func(result)
	replied bool
}

// result is the answer to a produce.
type result struct {
	outcome partition.Outcome
	reason  partition.Reason
	base    int64
	epoch   int32
	err     error // what the log said to a batch that it refused
}

// errProducer is what a log says of a batch that does not follow its producer's last.
type errProducer struct{ check commitlog.ProducerCheck }

func (e *errProducer) Error() string { return "the batch does not follow the last of its producer" }

func newReplica(b *broker, id cluster.PartitionID) *replica {
	return &replica{
		w: b.w, b: b, id: id, p: b.w.part(id), batches: map[int64]*batch{}, starts: map[int64]func(partition.Outcome){},
		sessions: map[int64]*link{}, copies: map[int64]int64{}, runs: map[int64][]byte{}, ledEpoch: -1,
	}
}

// open makes the core and tells it how the log was found.
func (r *replica) open() {
	os := r.p.topic.os
	r.core = partition.New(r.b.self())
	opened := &partition.Opened{MaxEpochSeen: -1, Verdict: r.verdict, HW: r.hwNoted}
	if r.verdict == partition.UncleanOS && !os {
		opened.Verdict = partition.Intact
	}
	if r.log != nil {
		opened.MaxEpochSeen, opened.Start, opened.End, opened.Durable = r.log.LatestEpoch(), r.log.StartOffset(), r.log.EndOffset(), r.log.DurableEnd()
		opened.Epochs = epochsOf(r.log)
		if f := r.log.Fence(); r.p.topic.internal {
			opened.Fence = partition.Fence{ShardEpoch: f.ShardEpoch, Attempt: int32(f.Attempt)}
		}
	} else {
		opened.Absent = true
		if opened.Verdict == partition.Intact {
			opened.Verdict = partition.Corrupt
		}
	}
	r.step(partition.Settings{LagTimeMax: lagTimeMax, LeaseTTL: leaseTTL})
	r.step(partition.Flushing{OS: os})
	if r.b.lease != nil {
		r.step(partition.LeaseRenewed{Now: r.b.lease.asked})
	}
	if r.b.diskBad {
		r.step(partition.DiskOffline{})
	}
	r.hwSeen = -1
	r.step(opened)
}

func epochsOf(log *commitlog.Log) []partition.EpochStart {
	var all []partition.EpochStart
	for _, e := range log.Epochs() {
		all = append(all, partition.EpochStart{Epoch: e.Epoch, Start: e.StartOffset})
	}
	return all
}

// mayReplace reports whether one that was missing may be made anew.
func (r *replica) mayReplace(rec cluster.Partition) bool {
	return r.log == nil && r.verdict == partition.Missing && r.b.onRecord() && !slices.Contains(rec.Barred, r.b.id)
}

// mayReopen reports whether one that was condemned at run time may begin anew: the
// controller has put it on record.
func (r *replica) mayReopen() bool {
	_, untold := r.b.bad[r.id]
	return r.condemned && !untold
}

// retire takes a replica out of use. Who waits for it learns nothing.
func (r *replica) retire() {
	if r.gone {
		return
	}
	r.gone = true
	for _, req := range sortedKeys(r.batches) {
		r.answer(r.batches[req], result{outcome: partition.Unknown, reason: partition.ReasonDraining, base: -1})
	}
	for _, req := range sortedKeys(r.starts) {
		r.starts[req](partition.Unknown)
	}
	r.batches, r.starts = map[int64]*batch{}, map[int64]func(partition.Outcome){}
	r.w.breakLinks(func(l *link) bool { return l.f == r || l.l == r })
	r.task, r.syncOp, r.moveOp, r.upkeep, r.results, r.wake = nil, 0, 0, nil, nil, 0
}

func sortedKeys[V any](m map[int64]V) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// tell hands the core its record, if it changed.
func (r *replica) tell(rec cluster.Partition) {
	c, ok := r.b.of.at(rec.Key(), r.b.rev)
	onRecord := r.b.onRecord()
	if !ok || r.gone || c.rev == r.applied && onRecord == r.onRecord {
		return
	}
	r.applied, r.onRecord = c.rev, onRecord
	r.take(rec, r.b.rev)
}

// take steps a record, and what waited for it.
func (r *replica) take(rec cluster.Partition, rev int64) {
	r.step(&partition.Record{
		Generation: 1, Revision: rev, PartEpoch: rec.PartitionEpoch, LeaderEpoch: rec.LeaderEpoch,
		Leader:   partition.Replica{Broker: rec.Leader.ID, Incarnation: rec.Leader.Incarnation},
		Replicas: rec.Replicas, ISR: rec.ISR, ELR: rec.ELR, Barred: rec.Barred, MinISR: rec.MinISR,
		Unclean: r.p.topic.unclean, UncleanEpoch: rec.UncleanEpoch, OnRecord: r.onRecord, Shard: r.p.topic.internal, ShardEpoch: rec.ShardEpoch, Now: r.w.now,
	})
	_, epoch := r.core.Leader()
	for _, sess := range sortedKeys(r.sessions) {
		if l := r.sessions[sess]; l != nil && l.parked != nil && l.parked.LeaderEpoch <= epoch {
			h := l.parked
			l.parked = nil
			h.Now = r.w.now
			r.hear(l, h)
		}
	}
}

// produce takes a batch.
func (r *replica) produce(b *batch, leaderEpoch int32) {
	r.nextReq++
	req := r.nextReq
	r.batches[req] = b
	r.step(&partition.Produce{
		Req: req, LeaderEpoch: leaderEpoch, Acks: b.acks, Now: r.w.now, Deadline: r.w.now + max(produceLimit, b.limit),
		Records: b.header.LastOffsetDelta + 1, Fence: b.fence,
	})
}

// answer ends a batch.
func (r *replica) answer(b *batch, res result) {
	if b == nil || b.replied {
		return
	}
	b.replied = true
	b.done(res)
}

// step applies an event and carries out the effects.
func (r *replica) step(ev partition.Event) {
	if r.core == nil || r.w.failure != nil {
		return
	}
	effects := r.core.Step(ev)
	if err := r.core.Violation(); err != nil {
		r.w.fail("ASSERT", "broker %d#%d, %s: %v", r.b.id, r.b.inc, r.w.name(r.id), err)
		return
	}
	r.watch()
	for _, e := range effects {
		r.carry(e)
		if r.w.failure != nil {
			return
		}
	}
}

func (r *replica) carry(e partition.Effect) {
	switch e := e.(type) {
	case *partition.Append:
		c := *e
		// The batch stays with the append, also if it is answered before the log is asked.
		r.task, r.current = &c, r.batches[e.Req]
	case *partition.AppendCopy:
		c := *e
		r.task = &c
	case *partition.Truncate:
		c := *e
		r.task = &c
	case *partition.Reset:
		c := *e
		r.task = &c
	case partition.DropRef:
		delete(r.runs, e.Ref)
	case *partition.Sync:
		r.syncOp = e.Op
	case *partition.MoveStart:
		r.moveOp, r.moveTo = e.Op, e.To
	case *partition.Reply:
		r.reply(e)
	case *partition.CheckpointHW:
		r.hwNoted = e.HW
	case partition.Withhold:
		r.w.count("withheld: " + e.Reason.String())
		r.w.say("broker %d#%d withholds %s: %v", r.b.id, r.b.inc, r.w.name(r.id), e.Reason)
	case partition.Replaced:
		r.b.dropKept(r.id)
		r.w.count("bad copy replaced")
	case partition.ClearVerdict:
		leader, _ := r.core.Leader()
		r.b.dropVerdict(r, leader == r.b.self())
		r.results = append(r.results, partition.VerdictCleared{})
	case partition.WakeAt:
		r.wake = e.At
	default:
		r.carrySession(e)
	}
}

func (r *replica) reply(e *partition.Reply) {
	if done := r.starts[e.Req]; done != nil {
		delete(r.starts, e.Req)
		done(e.Outcome)
		return
	}
	b := r.batches[e.Req]
	delete(r.batches, e.Req)
	res := result{outcome: e.Outcome, reason: e.Reason, base: e.Base, epoch: e.Epoch}
	if e.Reason == partition.ReasonBatchRefused {
		res.err = r.refused
	}
	if b != nil && e.Outcome == partition.OK {
		r.checkAck(b, e)
	}
	r.answer(b, res)
}

// busy reports whether an operation on the log is asked for.
func (r *replica) busy() bool {
	return !r.gone && (r.task != nil || r.syncOp != 0 || r.moveOp != 0 || r.upkeep != nil)
}

// operate carries out one operation on the log; its result is told at once or later.
func (r *replica) operate() {
	var ev partition.Event
	switch {
	case r.upkeep != nil && (r.task == nil && r.syncOp == 0 && r.moveOp == 0 || r.w.chance(40)):
		ev = r.runUpkeep()
	case r.task != nil && (r.syncOp == 0 && r.moveOp == 0 || r.w.chance(60)):
		e := r.task
		r.task = nil
		ev = r.runTask(e)
	case r.syncOp != 0:
		ev = r.runSync()
	case r.moveOp != 0:
		ev = r.runMove()
	}
	if ev == nil || r.gone || r.w.failure != nil {
		return
	}
	if r.w.chance(70) {
		r.tellResult(ev)
		return
	}
	r.results = append(r.results, ev)
}

// tellResult tells the core the result of an operation.
func (r *replica) tellResult(ev partition.Event) {
	now := r.w.now
	switch e := ev.(type) {
	case *partition.Appended:
		e.Now = now
	case *partition.Synced:
		e.Now = now
	case *partition.Truncated:
		e.Now, r.cut = now, false
	case partition.StartMoved:
		if e.Op == 0 { // nobody asked: what counts is where the log begins now
			e.Start = r.log.StartOffset()
			if r.cut || e.Start <= r.core.Start() {
				return
			}
		}
		e.Now = now
		ev = e
	case partition.AppendRefused:
		e.Now = now
		ev = e
	}
	r.step(ev)
}

// failed is the result of an operation that the disk refused.
func (r *replica) failed(op int64, err error) partition.Event {
	if errors.Is(err, errPower) {
		return nil // the host is down; nobody is told
	}
	var corrupt *commitlog.CorruptError
	if errors.As(err, &corrupt) && r.b.disk.rotten[r.id] {
		r.damaged() // a truncation met what had rotted
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) {
		// It can be read, and goes on once the broker has been started again with room.
		r.w.count("replica takes nothing more for want of room")
		r.w.say("broker %d#%d, %s: takes nothing more: %v", r.b.id, r.b.inc, r.w.name(r.id), err)
		r.b.cramped = true
		r.step(partition.IOFailed{Op: op, Kind: partition.FailedFull})
		return nil
	}
	kind := partition.FailedBug
	if errors.Is(err, commitlog.ErrFailed) || errors.Is(err, errDisk) {
		kind = partition.FailedIO
	}
	if kind == partition.FailedBug {
		r.w.fail("BUG", "broker %d#%d, %s: the log refuses what the core promised: %v", r.b.id, r.b.inc, r.w.name(r.id), err)
		return nil
	}
	r.step(partition.IOFailed{Op: op, Kind: kind})
	r.b.diskFailed()
	return nil
}
