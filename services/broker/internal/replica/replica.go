package replica

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Replica is the loop around one replica's core.
type Replica struct {
	Key      store.Key
	Topic    string
	Internal bool

	m       *Manager
	home    atomic.Pointer[store.Replica] // nil: missing
	verdict store.Verdict
	config  atomic.Pointer[topicconfig.Config]

	// Owned by the manager's Apply.
	appliedPartition *controllerv1.Partition
	appliedConfig    *topicconfig.Config
	appliedOnRecord  bool

	recent    recent
	condemned atomic.Bool // its log was found damaged while it was read
	withheld  bool        // because of that; guarded by mu
	// damageTold says that damage of the log has been told and counted.
	damageTold atomic.Bool
	// checkpointed is one above the end of the log as of its last checkpoint; guarded by
	// mu.
	checkpointed int64

	// When the running append, sync, move of the start and checkpoint began, in ns of the
	// manager's clock; 0: none.
	appendSince, syncSince, startSince, checkpointSince atomic.Int64
	reads                                               ioWatch

	// Where the replica waits for its Tick; guarded by the manager's wakes.
	wakeAt    time.Duration
	wakePlace int // in the heap, from 1 on; 0: it does not wait

	mu         sync.Mutex
	core       *partition.State
	batches    map[int64]*Batch                  // by Req: queued, in flight or waiting
	starts     map[int64]func(int64, *rpc.Error) // by Req: who wants the log to begin later
	nextReq    int64
	task       any  // to be done to the log: an Append, AppendCopy, Truncate or Reset
	toldFailed bool // that the log failed is logged
	draining   bool
	current    *Batch // of an Append, or with the log
	ops        int    // goroutines that work on the log
	resetting  bool   // the log is being made anew, perhaps in another folder
	quiet      *sync.Cond
	readers    map[*subscription]struct{}
	ring       spanRing
	ages       ages
	refused    *rpc.Error // what the log said to the append it refused last
	gone       bool       // deleted, set aside or replaced

	sessions  map[int64]*leaderSession // of followers with this leader
	copies    copies
	upstream  Upstream // of this follower with its leader; nil: none
	upSess    int64
	runs      map[int64]*Run // from the leader, not appended yet
	runBytes  int64
	lastRef   int64
	inherited []byte  // of the leader's producers, as far as it has come
	leaderHW  int64   // as last told
	onRecord  bool    // the metadata shows this life of the broker as the one that vouched
	isr       isrSeen // as of the record applied last
	// undecided is why the last proposal got no answer; nil: it got one, or a record came.
	undecided error
	// proposedAt is since when a proposal has been on its way; 0: none is.
	proposedAt time.Duration

	// What was last said about faults of retention and cleaning; "": all is well.
	retainFault, cleanFault string
}

// Batch is a batch to append.
type Batch struct {
	// Payload is the encoded batch, validated. The replica owns it from Produce on.
	Payload *rpc.Payload
	Header  record.Header
	Acks    partition.Acks
	// LeaderEpoch is the client's belief, -1: none.
	LeaderEpoch int32
	// Timeout is how long the answer may take.
	Timeout time.Duration
	Fence   *partition.Fence
	Trace   *typev1.TraceContext
	// Done takes the result, once.
	Done func(Result)

	span       trace.Span
	appendTime int64
}

// Result is what became of a batch.
type Result struct {
	Base          int64 // -1 with an error
	Epoch         int32 // -1 with an error
	LogAppendTime int64 // ms; record.NoTimestamp unless the topic stamps records
	Err           *rpc.Error
}

// subscription is a reader that wants to hear of changes.
type subscription struct{ notify func(more bool) }

// Name is <topic>-<partition>.
func (r *Replica) Name() string { return r.Topic + "-" + strconv.Itoa(int(r.Key.Partition)) }

// Config is the topic's configuration in force.
func (r *Replica) Config() *topicconfig.Config { return r.config.Load() }

// newReplica makes the loop of a stored replica, or of one that is missing.
func newReplica(m *Manager, key store.Key, topic string, internal bool, stored *store.Replica, verdict store.Verdict) *Replica {
	r := &Replica{
		Key: key, Topic: topic, Internal: internal, m: m, verdict: verdict,
		core: partition.New(m.cfg.Self), batches: map[int64]*Batch{}, readers: map[*subscription]struct{}{}, ages: ages{since: m.now()},
	}
	r.quiet = sync.NewCond(&r.mu)
	if stored != nil {
		r.home.Store(stored)
	}
	return r
}

// stored is where the replica lies, nil while it is missing. It changes when a bad
// copy is replaced.
func (r *Replica) stored() *store.Replica { return r.home.Load() }

// log is the open log, nil while there is none.
func (r *Replica) log() *commitlog.Log {
	if stored := r.stored(); stored != nil {
		return stored.Log
	}
	return nil
}

// open tells the core how the log was found. durability=os must be known by then.
func (r *Replica) open(os bool) {
	opened := &partition.Opened{MaxEpochSeen: -1, Verdict: coreVerdict(r.verdict, os)}
	if stored := r.stored(); stored != nil {
		opened.HW = stored.HighWatermark()
	}
	if log := r.log(); log != nil {
		opened.MaxEpochSeen, opened.Start, opened.End, opened.Durable = log.LatestEpoch(), log.StartOffset(), log.EndOffset(), log.DurableEnd()
		opened.Epochs = epochsOf(log)
		if f := log.Fence(); r.Internal {
			opened.Fence = partition.Fence{ShardEpoch: f.ShardEpoch, Attempt: int32(f.Attempt)}
		}
	} else {
		opened.Absent = true
		if opened.Verdict == partition.Intact {
			opened.Verdict = partition.Corrupt
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step(r.m.cfg.Settings)
	if at := r.m.leaseAt.Load(); at > 0 {
		r.step(partition.LeaseRenewed{Now: time.Duration(at)})
	}
	if r.m.cfg.Store.Offline(r.Key) {
		r.step(partition.DiskOffline{})
	}
	r.step(opened)
}

func coreVerdict(v store.Verdict, os bool) partition.Verdict {
	switch v {
	case store.Intact:
		return partition.Intact
	case store.UncleanOS:
		if os {
			return partition.UncleanOS
		}
		return partition.Intact
	case store.Cut:
		return partition.Cut
	case store.Missing:
		return partition.Missing
	}
	return partition.Corrupt
}

// Produce takes a batch. Done tells what becomes of it.
func (r *Replica) Produce(b *Batch) {
	b.span = r.startAppend(b.Trace, b.Header.NumRecords, b.Payload.Len())
	now := r.m.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextReq++
	req := r.nextReq
	r.batches[req] = b
	r.step(&partition.Produce{
		Req: req, LeaderEpoch: b.LeaderEpoch, Acks: b.Acks, Now: now, Deadline: now + b.Timeout,
		Records: b.Header.LastOffsetDelta + 1, Fence: b.Fence,
	})
}

// step applies an event and carries out the effects. The caller holds mu.
func (r *Replica) step(ev partition.Event) {
	for _, e := range r.core.Step(ev) {
		switch e := e.(type) {
		case *partition.Append:
			// The batch stays with the append from here on, also if it is answered
			// before the log is asked.
			r.current = r.batches[e.Req]
			r.start(*e)
		case *partition.AppendCopy:
			r.start(*e)
		case *partition.Truncate:
			r.start(*e)
		case *partition.Reset:
			r.start(*e)
		case partition.DropRef:
			r.dropRun(e.Ref)
		case *partition.Sync:
			r.startSync(e.Op)
		case *partition.MoveStart:
			r.moveStart(e.Op, e.To)
		case *partition.Reply:
			r.reply(e)
		case *partition.CheckpointHW:
			if stored := r.stored(); stored != nil {
				stored.SetHighWatermark(e.HW)
			}
		case *partition.Visible:
			r.tellReaders(true)
		case partition.Resign:
			r.tellReaders(false)
		case partition.Withhold:
			r.logWithheld(e.Reason)
		case partition.Replaced:
			r.inBackground("remove the bad copy", r.m.cfg.Store.DropReplaced)
		case partition.ClearVerdict:
			r.clearVerdict()
		case partition.WakeAt:
			r.m.wakes.add(r, e.At)
		default:
			r.stepSession(e)
		}
	}
}

// stepSession carries out what concerns other brokers. The caller holds mu.
func (r *Replica) stepSession(e partition.Effect) {
	switch e := e.(type) {
	case *partition.SendEpochEnd:
		if s := r.sessions[e.Sess]; s != nil {
			if e.Agreed {
				r.copies.begin(e.Sess) // before it is looked which tombstones are gone
			}
			end := EpochEnd{LeaderEpoch: e.LeaderEpoch, LastEpoch: e.LastEpoch, End: e.End, Agreed: e.Agreed, LogStart: e.LogStart, HW: e.HW}
			if log := r.log(); log != nil {
				end.TombstonesBelow = log.TombstonesBelow()
			}
			s.f.EpochEnd(end)
		}
	case *partition.SendBatches:
		if s := r.sessions[e.Sess]; s != nil {
			s.sending = true
			s.f.Send(e.From)
		}
	case *partition.SendHW:
		if s := r.sessions[e.Sess]; s != nil {
			s.f.Watermark(e.HW, e.Start)
		}
	case partition.CloseSess:
		r.closeSession(e.Sess, r.sessionError(e.Reason))
	case *partition.Propose:
		r.m.propose(r, e)
	case *partition.OpenLeader:
		r.openLeader(e)
	case partition.CloseLeader:
		if e.Sess == r.upSess {
			r.closeUpstream()
		}
	case *partition.SendPosition:
		if r.upstream != nil && e.Sess == r.upSess {
			r.upstream.Position(FollowerPosition{
				LeaderEpoch: e.LeaderEpoch, PartEpoch: e.PartEpoch, LastEpoch: e.LastEpoch, End: e.End, Durable: e.Durable, Start: e.Start,
			})
		}
	}
}

// clearVerdict notes that what stood against the replica does no longer. The caller
// holds mu.
func (r *Replica) clearVerdict() {
	what, do := "clear the verdict", r.m.cfg.Store.ClearVerdict
	if leader, _ := r.core.Leader(); leader == r.m.cfg.Self {
		what, do = "trust the replica, which was elected as it is", r.m.cfg.Store.Trust
	}
	r.inBackground(what, func(k store.Key) error {
		if err := do(k); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.step(partition.VerdictCleared{})
		return nil
	})
}

func (r *Replica) logWithheld(reason partition.Reason) {
	if reason == partition.ReasonTopicDeleted {
		return
	}
	args := []any{"replica", r.Name(), "topic_id", r.Key.Topic, "reason", reason.String()}
	if err := r.core.Violation(); err != nil {
		args = append(args, "violation", err)
	}
	r.m.cfg.Logger.Error("a replica is offline", args...)
}

// tellReaders has every reader look again. The caller holds mu.
func (r *Replica) tellReaders(more bool) {
	for s := range r.readers {
		s.notify(more)
	}
}

// reply ends a batch.
func (r *Replica) reply(e *partition.Reply) {
	b := r.batches[e.Req]
	if b == nil {
		r.replyStart(e)
		return
	}
	delete(r.batches, e.Req)
	result := Result{Base: e.Base, Epoch: e.Epoch, LogAppendTime: record.NoTimestamp}
	switch {
	case e.Outcome == partition.OK:
		_ = failpoint.Hit(failpoint.Acknowledge) // what is stored cannot be refused
		if r.Config().MessageTimestampType == record.LogAppendTime.String() {
			result.LogAppendTime = b.appendTime
		}
	case e.Reason == partition.ReasonBatchRefused && r.refused != nil:
		result.Err = r.refused
	case e.Reason == partition.ReasonDeadline && e.Outcome == partition.Unknown && e.Acks == partition.AcksAll && r.whyUndecided() != nil:
		result.Err = r.undecidedError(r.whyUndecided())
	default:
		result.Err = r.refusal(e.Reason, e.Outcome)
	}
	r.endSpan(b, e, result)
	if result.Err != nil {
		r.m.cfg.Metrics.Failure(result.Err.Reason)
	}
	// The log may be reading the current batch; drain frees that one.
	if b != r.current {
		b.Payload.Free()
	}
	b.Done(result)
}

func (r *Replica) endSpan(b *Batch, e *partition.Reply, result Result) {
	if b.span == nil {
		return
	}
	if result.Err == nil {
		b.span.SetAttributes(attribute.Int64("messaging.leat.offset", e.Base), attribute.Int("messaging.leat.leader_epoch", int(e.Epoch)))
	} else {
		b.span.RecordError(result.Err)
		b.span.SetAttributes(attribute.String("error.type", rpc.ReasonName(result.Err.Reason)))
	}
	b.span.End()
	b.span = nil
}
