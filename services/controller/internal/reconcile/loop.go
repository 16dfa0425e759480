package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/controller/internal/store"
)

const (
	// maxQueue bounds the commands that wait: every partition of a large mesh may
	// have an ISR proposal under way when a broker comes back.
	maxQueue = 16_384
	// maxAttempts bounds how often one command is planned anew.
	maxAttempts = 8
	// silenceLimit is how long etcd may be silent before commands are refused at
	// once instead of waiting.
	silenceLimit = 2 * time.Second
	// tickInterval is the pace at which the state is looked at without news.
	tickInterval = 500 * time.Millisecond
)

// ErrGiveWay is returned by a command's Plan to end the term in favour of another
// controller.
var ErrGiveWay = errors.New("another controller should lead")

// Command is something to be decided and written.
type Command struct {
	// Name is for logs.
	Name string
	// Plan decides; it is called with the newest state, and again after a conflict
	// or an unknown outcome, with the number of the attempt from 0. It runs in the
	// loop, one command at a time.
	Plan func(state *cluster.State, attempt int) (cluster.Plan, error)
	// Done, if not nil, is called in the loop once everything is written.
	Done func(revision int64)
	// Cause, if not empty, says in logs of elections what brought them, in place of
	// Name.
	Cause string
	// Preferred says that the leaders it elects are preferred ones.
	Preferred bool
	// Batch allows planning it together with others of its kind, each on the state
	// before all of them, as long as they write different keys.
	Batch bool
}

// Config says what a Loop works with.
type Config struct {
	Store  *store.Store
	Self   cluster.Process
	Logger *slog.Logger
	// Prepare is the first command of each term.
	Prepare Command
	// Observe returns what has been found out about processes: commands to be
	// carried out. It is called in the loop whenever the state has changed, and at
	// each tick.
	Observe func(state *cluster.State, revision int64) []Command
	// Wake, if not nil, makes the loop call Observe.
	Wake <-chan struct{}
	// Leading, if not nil, is told when a term begins and ends.
	Leading func(leading bool)
	// Probes returns the lives that have answered lately; nil: none is known.
	Probes func() cluster.Probes
	// FolderWait is how long the first leader of a topic waits for replicas that
	// have not been made. UncleanWait is how long an unclean election waits: no
	// earlier leader may be able to commit on its own any more.
	FolderWait, UncleanWait time.Duration
	// RebalanceInterval is the time between looks for preferred leaders that do not
	// lead; 0: they are left alone.
	RebalanceInterval time.Duration
}

// Loop takes commands. Its methods are safe for concurrent use; Lead is called by
// one goroutine at a time.
type Loop struct {
	cfg     Config
	queue   chan *request
	leading atomic.Bool
	stats   *stats

	mu     sync.Mutex // orders the end of a term against Do
	closed bool       // no term takes requests from the queue
}

type request struct {
	Command
	ctx     context.Context
	begun   atomic.Bool
	outcome chan outcome
}

type outcome struct {
	revision int64
	err      error
}

// New makes a loop, which does nothing before Lead.
func New(cfg Config) *Loop {
	return &Loop{cfg: cfg, queue: make(chan *request, maxQueue), closed: true, stats: newStats()}
}

// IsLeading tells whether commands are taken here.
func (l *Loop) IsLeading() bool { return l.leading.Load() }

// Do carries a command out and returns the revision at which the store shows all
// of it. Errors are *rpc.Error: NOT_CONTROLLER or CONTROLLER_NOT_AVAILABLE if this
// controller does not lead, METADATA_UNAVAILABLE while etcd is away, what the
// command's Plan rejected it with, or the end of ctx with an outcome that is
// unknown if the command had begun.
func (l *Loop) Do(ctx context.Context, c Command) (int64, error) {
	if silent := l.cfg.Store.Silent(); silent > silenceLimit {
		return 0, unavailable(silent).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
	}
	r := &request{Command: c, ctx: ctx, outcome: make(chan outcome, 1)}
	if err := l.enqueue(r); err != nil {
		return 0, err
	}
	look := time.NewTicker(tickInterval)
	defer look.Stop()
	for {
		select {
		case o := <-r.outcome:
			return o.revision, o.err
		case <-look.C:
			// etcd went away meanwhile: the caller learns the reason early enough to
			// do something else.
			if silent := l.cfg.Store.Silent(); silent > silenceLimit {
				return 0, unavailable(silent).WithOutcome(r.abandon())
			}
		case <-ctx.Done():
			return 0, rpc.FromError(ctx.Err()).WithOutcome(r.abandon())
		}
	}
}

// abandon tells what can be said of a request for which nobody waits any more:
// one that has not begun will be passed over.
func (r *request) abandon() typev1.Outcome {
	if r.begun.CompareAndSwap(false, true) {
		return typev1.Outcome_OUTCOME_NOT_DONE
	}
	return typev1.Outcome_OUTCOME_UNKNOWN
}

func (l *Loop) enqueue(r *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.notLeading()
	}
	select {
	case l.queue <- r:
		return nil
	default:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
			"the controller has %d commands waiting; try again later", maxQueue)
	}
}

// CheckLeading returns what Do would if this controller does not lead, so that
// nothing is begun in vain.
func (l *Loop) CheckLeading() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.notLeading()
	}
	return nil
}

// notLeading says who leads instead.
func (l *Loop) notLeading() *rpc.Error {
	var e *rpc.Error
	l.cfg.Store.View(func(state *cluster.State, _ int64) {
		election := state.Election()
		if election == nil || election.Value.Controller == l.cfg.Self {
			return
		}
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_CONTROLLER,
			"controller %d does not lead; ask controller %d at %s", l.cfg.Self.ID, election.Value.Controller.ID, election.Value.Address).
			WithLeader(election.Value.Controller.ID, election.Value.Address, election.Create)
	})
	if e != nil {
		return e
	}
	if silent := l.cfg.Store.Silent(); silent > silenceLimit {
		return unavailable(silent).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE) // nobody can be elected
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE,
		"no controller leads at the moment; an election takes about a second")
}

func unavailable(silent time.Duration) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE,
		"etcd has not answered the controller for %v; what changes metadata waits until it does", silent.Round(time.Millisecond))
}

// Lead takes commands until ctx ends or the term is lost. It is for
// registry.Election.
func (l *Loop) Lead(ctx context.Context, term *registry.Term) {
	t := &tenure{
		loop: l, term: term, writer: store.NewWriter(l.cfg.Store, term), waits: newWaits(l.cfg), failing: map[string]string{},
		rebalance: time.Now().Add(l.cfg.RebalanceInterval),
	}
	if err := l.cfg.Store.WaitRevision(ctx, term.ElectionRevision()); err != nil {
		return
	}
	if _, err := t.carryOut(ctx, l.cfg.Prepare); err != nil {
		l.cfg.Logger.Warn("cannot begin to lead", "error", err)
		return
	}
	l.setOpen(true)
	defer l.setOpen(false)
	if err := t.run(ctx); err != nil && ctx.Err() == nil {
		l.cfg.Logger.Warn("stepping down", "error", err)
	}
}

// setOpen begins or ends the taking of requests; what waits at the end is told.
func (l *Loop) setOpen(open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = !open
	l.leading.Store(open)
	if l.cfg.Leading != nil {
		l.cfg.Leading(open)
	}
	for !open {
		select {
		case r := <-l.queue:
			if r.begun.CompareAndSwap(false, true) {
				r.outcome <- outcome{err: l.notLeading()}
			}
		default:
			return
		}
	}
}
