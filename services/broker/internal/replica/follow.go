package replica

import (
	"errors"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/rpc"
)

// Leaders opens sessions with the leaders of replicas that follow.
type Leaders interface {
	// Open begins a session, of which nothing is told before its first Hello. It is
	// called with the replica's lock held: it does not block and does not call the
	// replica. What the leader says comes as EpochEnd, Batches, Watermark and
	// LeaderGone of the replica, in the order in which it said it.
	Open(r *Replica, leader partition.Replica, sess int64, leaderEpoch int32) Upstream
}

// Upstream is the follower's end of a session with its leader. Its methods are called
// with the replica's lock held: they do not block and do not call the replica.
type Upstream interface {
	// Hello tells where the log ends, at first and after each truncation.
	// wantsProducers asks for what the leader remembers of producers; they come as
	// Producers of the replica.
	Hello(lastEpoch int32, end int64, wantsProducers bool)
	// Position tells how far the log has come; only the newest counts.
	Position(FollowerPosition)
	// Close ends the session.
	Close()
}

// maxRunBytes bounds what a replica holds of its leader's and has not appended: the
// largest window, and a batch that goes beyond it.
const maxRunBytes = 2 * rpc.MaxMessageBytes

// noLeaders is for a manager that follows nobody.
type noLeaders struct{}

func (noLeaders) Open(*Replica, partition.Replica, int64, int32) Upstream { return noUpstream{} }

type noUpstream struct{}

func (noUpstream) Hello(int32, int64, bool)  {}
func (noUpstream) Position(FollowerPosition) {}
func (noUpstream) Close()                    {}

// Run is a run of whole batches from the leader.
type Run struct {
	LeaderEpoch int32
	Base, End   int64 // it abuts the run before it
	HW, Start   int64 // the leader's
	Trace       *typev1.TraceContext
	Payload     *rpc.Payload
}

// openLeader opens a session, or says hello again in it. The caller holds mu.
func (r *Replica) openLeader(e *partition.OpenLeader) {
	if r.upstream == nil || r.upSess != e.Sess {
		r.closeUpstream()
		r.upstream, r.upSess = r.m.cfg.Leaders.Open(r, e.Leader, e.Sess, e.Epoch), e.Sess
	}
	r.inherited = nil
	log := r.log()
	r.upstream.Hello(e.LastEpoch, e.End, log != nil && log.EndOffset() == e.End && log.WantsProducers())
}

// Producers takes a part of what the leader remembers of producers. When it has come
// whole it is made durable, and then the leader hears hello again: only from then on
// may this copy count.
func (r *Replica) Producers(sess int64, part []byte, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || sess != r.upSess {
		return
	}
	if len(r.inherited)+len(part) > commitlog.MaxProducerSnapshot {
		r.inheritFailed(sess, errors.New("the leader sends more than any log remembers"))
		return
	}
	r.inherited = append(r.inherited, part...)
	log := r.log()
	if !last || log == nil {
		return
	}
	snapshot := r.inherited
	r.inherited = nil
	r.begin(func() {
		r.ioBegins(&r.appendSince)
		err := log.InheritProducers(snapshot)
		r.appendSince.Store(0)
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case errors.Is(err, commitlog.ErrFailed) && !r.overtaken(log, err):
			r.failed(0, err)
		case sess != r.upSess:
		case err != nil || r.log() != log:
			r.inheritFailed(sess, err)
		default:
			r.upstream.Hello(r.core.LastEpoch(), r.core.End(), false)
		}
	})
}

// inheritFailed leaves a session in which the producers could not be taken over; the
// next one asks again. The caller holds mu.
func (r *Replica) inheritFailed(sess int64, err error) {
	r.m.cfg.Logger.Warn("could not take over what the leader remembers of producers; asks again", "replica", r.Name(), "error", err)
	r.closeUpstream()
	r.step(partition.LeaderGone{Sess: sess, Now: r.m.now()})
}

// closeUpstream ends the session with the leader. The caller holds mu.
func (r *Replica) closeUpstream() {
	if r.upstream != nil {
		r.upstream.Close()
		r.upstream, r.upSess = nil, 0
	}
}

// EpochEnd takes the leader's answer to a hello.
func (r *Replica) EpochEnd(sess int64, e EpochEnd) {
	now := r.m.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step(&partition.EpochEnd{
		Sess: sess, LeaderEpoch: e.LeaderEpoch, LastEpoch: e.LastEpoch, End: e.End, Agreed: e.Agreed,
		LogStart: e.LogStart, HW: e.HW, TombstonesBelow: e.TombstonesBelow, Now: now,
	})
}

// Batches takes a run of batches from the leader, and its payload.
func (r *Replica) Batches(sess int64, run *Run) {
	now := r.m.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || sess != r.upSess {
		run.Payload.Free()
		return
	}
	size := int64(run.Payload.Len())
	if r.runBytes > 0 && r.runBytes+size > maxRunBytes {
		// No leader that keeps to the window sends so much.
		run.Payload.Free()
		r.m.cfg.Logger.Error("a leader sent more than the window allows; its session is ended", "replica", r.Name(), "bytes", r.runBytes+size)
		r.closeUpstream()
		r.step(partition.LeaderGone{Sess: sess, Now: now})
		return
	}
	r.runBytes += size
	r.lastRef++
	if r.runs == nil {
		r.runs = map[int64]*Run{}
	}
	r.runs[r.lastRef] = run
	r.leaderHW = run.HW
	r.step(&partition.Batch{
		Sess: sess, Ref: r.lastRef, LeaderEpoch: run.LeaderEpoch, Base: run.Base, End: run.End, HW: run.HW, Start: run.Start, Now: now,
	})
}

// dropRun frees a run unread. The caller holds mu.
func (r *Replica) dropRun(ref int64) {
	if run := r.takeRun(ref); run != nil {
		run.Payload.Free()
	}
}

// takeRun takes a run off the books; nil: there is none. The caller holds mu.
func (r *Replica) takeRun(ref int64) *Run {
	run := r.runs[ref]
	if run != nil {
		delete(r.runs, ref)
		r.runBytes -= int64(run.Payload.Len())
	}
	return run
}

// Watermark takes the leader's marks.
func (r *Replica) Watermark(sess int64, leaderEpoch int32, hw, start int64) {
	now := r.m.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if sess != r.upSess {
		return
	}
	r.leaderHW = hw
	r.step(&partition.Watermark{Sess: sess, LeaderEpoch: leaderEpoch, HW: hw, Start: start, Now: now})
}

// LeaderGone says that the session with the leader ended, or could not be opened.
func (r *Replica) LeaderGone(sess int64) {
	now := r.m.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if sess == r.upSess {
		r.upstream, r.upSess = nil, 0
	}
	r.step(partition.LeaderGone{Sess: sess, Now: now})
}
