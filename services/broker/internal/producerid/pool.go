package producerid

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

const (
	// attemptLimit bounds one attempt to get a block; another one follows.
	attemptLimit = 10 * time.Second
	// maxWait bounds how long a producer waits for a block, whatever its deadline.
	maxWait = 10 * time.Second
)

// Block is a run of ids that nobody else has.
type Block struct {
	First int64
	Count int32
}

// Config is what a Pool needs.
type Config struct {
	// Allocate asks the elected controller for a block. It may be called again after
	// an error, and blocks may then have been allocated in vain.
	Allocate func(ctx context.Context) (Block, error)
	Logger   *slog.Logger
}

// Pool holds up to two blocks. Its methods are safe for concurrent use.
type Pool struct {
	cfg  Config
	want chan struct{} // a block is missing

	mu      sync.Mutex
	next    int64 // of the block in use
	end     int64 // offset after its last id
	spare   Block
	highest int64         // end of the highest block that was ever held
	arrived chan struct{} // closed and replaced when a block arrives
	failure error         // why the last attempt gave none; nil: it did
}

// New makes an empty pool; Run fills it.
func New(cfg Config) *Pool {
	p := &Pool{cfg: cfg, want: make(chan struct{}, 1), arrived: make(chan struct{})}
	p.want <- struct{}{}
	return p
}

// Next is an id that was never handed out. It waits, within ctx, while no block is
// there. The error is retryable, and nothing was done.
func (p *Pool) Next(ctx context.Context) (int64, *rpc.Error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for {
		id, arrived, ok := p.take()
		if ok {
			return id, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return 0, p.none()
		}
	}
}

// take hands out an id if there is one.
func (p *Pool) take() (id int64, arrived <-chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == p.end && p.spare.Count > 0 {
		p.next, p.end = p.spare.First, p.spare.First+int64(p.spare.Count)
		p.spare = Block{}
	}
	if p.spare.Count == 0 {
		p.ask()
	}
	if p.next == p.end {
		return 0, p.arrived, false
	}
	p.next++
	return p.next - 1, p.arrived, true
}

func (p *Pool) ask() {
	select {
	case p.want <- struct{}{}:
	default: // asked already
	}
}

func (p *Pool) none() *rpc.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE, "no producer ids are left here, and no controller has allocated more: bring controllers and etcd back, or ask another broker")
	if p.failure != nil {
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE, "no producer ids are left here, and no controller has allocated more (%w): bring controllers and etcd back, or ask another broker", p.failure)
	}
	return e.WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
}

// Held is how many ids are in store.
func (p *Pool) Held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end - p.next + int64(p.spare.Count)
}

// Run keeps the pool filled until ctx ends, and then returns nil.
func (p *Pool) Run(ctx context.Context) error {
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.want:
		}
		for ctx.Err() == nil && p.missing() {
			if p.fill(ctx) {
				backoff.Reset()
				continue
			}
			select {
			case <-time.After(backoff.Next()):
			case <-ctx.Done():
			}
		}
	}
}

func (p *Pool) missing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next == p.end || p.spare.Count == 0
}

// fill gets one block; false: it did not.
func (p *Pool) fill(ctx context.Context) bool {
	attempt, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	b, err := p.cfg.Allocate(attempt)
	if ctx.Err() != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		err = p.check(b)
	}
	if err != nil {
		if p.failure == nil {
			p.cfg.Logger.Warn("cannot get producer ids, trying again until it succeeds", "held", p.end-p.next+int64(p.spare.Count), "error", err)
		}
		p.failure = err
		return false
	}
	if p.failure != nil {
		p.cfg.Logger.Info("got producer ids again")
	}
	p.failure = nil
	p.highest = b.First + int64(b.Count)
	if p.next == p.end && p.spare.Count == 0 {
		p.next, p.end = b.First, p.highest
	} else {
		p.spare = b
	}
	close(p.arrived)
	p.arrived = make(chan struct{})
	return true
}

// check refuses a block that cannot be new: ids only rise, also over a restore. The
// caller holds mu.
func (p *Pool) check(b Block) error {
	if b.Count <= 0 || b.First < 0 || b.First > math.MaxInt64-int64(b.Count) {
		return fmt.Errorf("the controller allocated %d producer ids from %d on, which is no block", b.Count, b.First)
	}
	if b.First < p.highest {
		return fmt.Errorf("the controller allocated producer ids from %d on although those below %d were allocated before: etcd went back in time", b.First, p.highest)
	}
	return nil
}
