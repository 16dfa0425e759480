package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

// RunFunc is the life of one part. It blocks until ctx ends; it calls ready once
// others may rely on it, and may call it again without effect. It returns nil,
// or an error that is ctx's end, if it stopped because it was asked to.
type RunFunc func(ctx context.Context, ready func()) error

// Group runs parts: started in the order of Add, each once the one before is
// ready; stopped in reverse order, each once the one after has returned.
type Group struct {
	logger *slog.Logger
	parts  []*part
	ready  chan struct{}
	once   sync.Once
}

// part is one part and what is known of its life.
type part struct {
	name   string
	run    RunFunc
	cancel context.CancelFunc
	ready  chan struct{}
	done   chan struct{}
	err    error // set before done is closed
}

// New makes an empty group. A nil logger is silence.
func New(logger *slog.Logger) *Group {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Group{logger: logger, ready: make(chan struct{})}
}

// Add appends a part. Before Run only.
func (g *Group) Add(name string, run RunFunc) {
	g.parts = append(g.parts, &part{name: name, run: run, ready: make(chan struct{}), done: make(chan struct{})})
}

// Ready is closed once every part is ready. It stays open if one never is.
func (g *Group) Ready() <-chan struct{} { return g.ready }

// Run starts the parts and blocks until all have returned. It returns nil if ctx
// ended and every part stopped cleanly; otherwise the errors of the parts that
// failed, joined, each with the part's name. Once only.
func (g *Group) Run(ctx context.Context) error {
	// Parts outlive ctx: each is stopped in its turn.
	base := context.WithoutCancel(ctx)
	ended := make(chan *part, len(g.parts))
	started := 0
	var first *part
start:
	for _, p := range g.parts {
		if ctx.Err() != nil {
			break
		}
		p.start(base, ended)
		started++
		select {
		case <-p.ready:
			g.logger.Debug("part is ready", "part", p.name)
		case <-ctx.Done():
			break start
		case first = <-ended:
			break start
		}
	}
	if first == nil && started == len(g.parts) && ctx.Err() == nil {
		g.once.Do(func() { close(g.ready) })
		select {
		case <-ctx.Done():
		case first = <-ended:
		}
	}
	if first != nil {
		g.logger.Debug("part ended, stopping the others", "part", first.name, "error", first.err)
	}
	return g.stop(g.parts[:started], ctx)
}

// start runs the part in a goroutine of its own.
func (p *part) start(base context.Context, ended chan<- *part) {
	ctx, cancel := context.WithCancel(base)
	p.cancel = cancel
	var once sync.Once
	go func() {
		defer func() {
			if v := recover(); v != nil {
				p.err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
			}
			close(p.done)
			ended <- p
		}()
		p.err = p.run(ctx, func() { once.Do(func() { close(p.ready) }) })
	}()
}

// ErrEnded is the failure of a part that returned nil without being asked to.
var ErrEnded = errors.New("ended without being asked to")

// stop ends the parts in reverse and collects what went wrong. A part that
// returned by itself has failed, unless ctx has ended, which it may know from
// elsewhere.
func (g *Group) stop(parts []*part, ctx context.Context) error {
	asked := ctx.Err() != nil
	errs := make([]error, len(parts))
	for i := len(parts) - 1; i >= 0; i-- {
		p := parts[i]
		early := !asked && p.finished()
		p.cancel()
		<-p.done
		errs[i] = p.verdict(early)
		g.logger.Debug("part has stopped", "part", p.name, "error", errs[i])
	}
	return errors.Join(errs...)
}

// finished reports whether the part has returned.
func (p *part) finished() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// verdict is the part's contribution to the error of the group. early says that
// it had returned before it was asked to stop.
func (p *part) verdict(early bool) error {
	switch {
	case p.err == nil && early:
		return fmt.Errorf("%s: %w", p.name, ErrEnded)
	case p.err == nil, !early && errors.Is(p.err, context.Canceled):
		return nil
	default:
		return fmt.Errorf("%s: %w", p.name, p.err)
	}
}
