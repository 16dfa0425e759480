package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/leat-io/leat/cmd/leat/internal/consume"
	"github.com/leat-io/leat/cmd/leat/internal/output"
	"github.com/leat-io/leat/cmd/leat/internal/produce"
)

func durationProto(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// onTerminal reports whether w is a terminal, where progress may be drawn.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isTerminal(f.Fd())
}

// line draws and erases one line of progress on stderr.
func (a *app) line() (draw func(format string, args ...any), clear func()) {
	drawn := false
	draw = func(format string, args ...any) {
		drawn = true
		fmt.Fprintf(a.Err, "\r\x1b[K"+format, args...)
	}
	clear = func() {
		if drawn {
			drawn = false
			fmt.Fprint(a.Err, "\r\x1b[K")
		}
	}
	return draw, clear
}

// waiting says on a terminal what is waited for, and for how long so far, until the
// function that it returns is called.
func (a *app) waiting(format string, args ...any) (done func()) {
	if !onTerminal(a.Err) {
		return func() {}
	}
	draw, clear := a.line()
	what, began := fmt.Sprintf(format, args...), time.Now()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			draw("%s: %d s", what, int(time.Since(began).Seconds()))
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
		clear()
	}
}

func (a *app) produceProgress() (func(produce.Summary), func()) {
	if !onTerminal(a.Err) {
		return nil, func() {}
	}
	draw, clear := a.line()
	return func(s produce.Summary) {
		draw("%s records sent, %s acknowledged, %s records/s", output.Count(s.Records), output.Count(s.Acked), output.Count(int64(float64(s.Acked)/max(s.Elapsed.Seconds(), 1e-9))))
	}, clear
}

func (a *app) consumeProgress() (func(consume.Summary), func()) {
	if !onTerminal(a.Err) || onTerminal(a.Out) {
		return nil, func() {} // the records themselves are the progress
	}
	draw, clear := a.line()
	return func(s consume.Summary) {
		draw("%s records, %s, %s records/s", output.Count(s.Records), output.Bytes(s.Bytes), output.Count(int64(float64(s.Records)/max(s.Elapsed.Seconds(), 1e-9))))
	}, clear
}
