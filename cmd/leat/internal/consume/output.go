package consume

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"
)

// write is one that has not come back. The engine goes on meanwhile, so that whoever
// reads the output slowly, or not at all, costs neither the stream nor the place in the
// group. What piles up is bounded by the credit: it is given back for what was written.
type write struct {
	marks map[*place]mark // what is printed once it is done
	cost  int64
	out   []byte
}

// mark is a place in a partition.
type mark struct {
	next  int64
	epoch int32
}

// flush begins to write the output, unless a write is under way.
func (e *engine) flush() {
	e.flushedAt = time.Now()
	if e.writing != nil {
		return
	}
	if len(e.out) == 0 || e.outputLost {
		e.out = e.out[:0]
		e.owed += e.held
		e.held = 0
		if !e.outputLost {
			for _, pl := range e.places {
				pl.flushed, pl.flushedEpoch = pl.next, pl.epoch
			}
		}
		return
	}
	w := &write{marks: map[*place]mark{}, cost: e.held, out: e.out}
	for _, pl := range e.places {
		if pl.next > pl.flushed {
			w.marks[pl] = mark{pl.next, pl.epoch}
		}
	}
	e.writing, e.out, e.spare, e.held = w, e.spare[:0], nil, 0
	go func() {
		_, err := e.cfg.Out.Write(w.out)
		e.written <- err
	}()
}

// wrote takes in what came of a write: only now may its records be committed. A reader
// that went away ends the printing quietly.
func (e *engine) wrote(err error) error {
	w := e.writing
	e.writing, e.spare = nil, w.out[:0]
	e.owed += w.cost
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		e.summary.OutputClosed, e.outputLost = true, true
		e.finish() // what was not printed stays uncommitted
		return nil
	}
	if err != nil {
		e.outputLost = true
		return fmt.Errorf("write the records: %w", err)
	}
	for pl, m := range w.marks {
		if m.next > pl.flushed {
			pl.flushed, pl.flushedEpoch = m.next, m.epoch
		}
	}
	if len(e.out) >= flushBytes {
		e.flushedAt = time.Time{} // step writes the next part before it goes on
	}
	return nil
}

// unwritten reports whether there is output that has not been written.
func (e *engine) unwritten() bool {
	return e.writing != nil || len(e.out) > 0 && !e.outputLost
}

// forgetMark says that a write under way tells nothing of the place any more.
func (e *engine) forgetMark(pl *place) {
	if e.writing != nil {
		delete(e.writing.marks, pl)
	}
}

// settle writes what is left of the output, where nothing else goes on, and waits for
// that: for a while only, once it is interrupted.
func (e *engine) settle() error {
	ended := e.ctx.Done()
	var limit <-chan time.Time
	if e.summary.Interrupted {
		limit = time.After(time.Until(e.finishUntil))
	}
	for {
		if e.flush(); e.writing == nil {
			return nil
		}
		select {
		case err := <-e.written:
			if err := e.wrote(err); err != nil {
				return err
			}
			continue
		case <-e.interrupt:
			e.interrupt = nil
			e.summary.Interrupted = true
		case <-ended:
			ended = nil
		case <-limit:
			return nil
		}
		if limit == nil {
			limit = time.After(finishLimit)
		}
	}
}
