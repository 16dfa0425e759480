package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/libs/rpc"
)

// DefaultGateway is where leat looks for a gateway unless told otherwise.
const DefaultGateway = "127.0.0.1:5328"

// IO is the world around a command.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
	// Getenv reads the environment; nil is an empty one.
	Getenv func(string) string
	// Signals delivers SIGINT and SIGTERM; the first ends a command in order,
	// the second at once. Nil is none.
	Signals <-chan os.Signal
}

// app is what the commands of one Run share.
type app struct {
	IO
	gateway        string
	output         string
	requestTimeout time.Duration
	interrupt      chan struct{} // closed at the first signal
	interrupted    atomic.Bool
}

// Run executes one command line and returns its exit code. It waits for
// everything that it started, except for a reader of an input that does not end.
func Run(ctx context.Context, args []string, streams IO) int {
	if streams.Getenv == nil {
		streams.Getenv = func(string) string { return "" }
	}
	a := &app{IO: streams, interrupt: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		a.watchSignals(ctx, cancel)
	}()
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	cmd, err := root.ExecuteContextC(ctx)
	cancel()
	<-watched
	return a.report(cmd, err)
}

// watchSignals closes interrupt at the first signal and cancels at the second.
func (a *app) watchSignals(ctx context.Context, cancel context.CancelFunc) {
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-a.Signals:
			if n > 0 {
				cancel()
				return
			}
			a.interrupted.Store(true)
			close(a.interrupt)
		}
	}
}

// callContext is for commands of a few calls: it ends at the first signal, and
// after the request timeout.
func (a *app) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, a.requestTimeout)
	return ctx, a.cancelOnInterrupt(ctx, cancel)
}

// cancelOnInterrupt has the first signal cancel a context; the function it
// returns cancels it too, and is to be called in any case.
func (a *app) cancelOnInterrupt(ctx context.Context, cancel context.CancelFunc) context.CancelFunc {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-a.interrupt:
			cancel()
		case <-ctx.Done():
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// report prints what went wrong, as a sentence with the reason and a next step,
// and gives the exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	if err == nil {
		return exit.OK
	}
	name := "leat"
	if cmd != nil {
		name = cmd.CommandPath()
	}
	var own *exit.Error
	isOwn := errors.As(err, &own)
	if isOwn && own.Quiet {
		return own.Code
	}
	if errors.Is(err, syscall.EPIPE) {
		return exit.OK // whoever read the output has seen enough
	}
	if a.interrupted.Load() && (!isOwn || own.Code == exit.Failed) {
		fmt.Fprintf(a.Err, "%s: interrupted\n", name)
		return exit.Interrupted
	}
	message, next, code := err.Error(), "", exit.Failed
	if typed, ok := asTyped(err); ok {
		message, next, code = describe(typed)
	}
	if isOwn {
		code = own.Code
		if own.Next != "" {
			next = own.Next
		}
	}
	fmt.Fprintf(a.Err, "%s: %s\n", name, message)
	if next != "" {
		fmt.Fprintf(a.Err, "  Next: %s\n", next)
	}
	return code
}

// asTyped finds the error of a gateway in err.
func asTyped(err error) (*rpc.Error, bool) {
	var typed *rpc.Error
	if errors.As(err, &typed) {
		return typed, true
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return rpc.FromError(err), true
	}
	return nil, false
}

// describe gives sentence, next step and exit code of an error.
func describe(e *rpc.Error) (message, next string, code int) {
	name := rpc.ReasonName(e.Reason)
	message = fmt.Sprintf("%s (%s)", strings.TrimRight(e.Message, ". \n"), name)
	if info, ok := rpc.ExplainReason(name); ok {
		next = info.NextStep
	}
	code = exit.Failed
	switch {
	case e.Metadata["last_reason"] != "" && e.Outcome == typev1.Outcome_OUTCOME_NOT_DONE:
		// The gateway speaks, of something behind it that it could not do in time.
		next = notDoneInTime(e)
		if e.Reason == typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED {
			code = exit.Unknown
		}
	case e.Reason == typev1.ErrorReason_ERROR_REASON_UNREACHABLE:
		message = plainUnreachable(e.Message) + " (" + name + ")"
		next = "Start a mesh with `leat dev`, or name the address of a running gateway with --gateway or LEAT_GATEWAY."
	case e.Reason == typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED:
		code = exit.Unknown
		if e.Outcome == typev1.Outcome_OUTCOME_NOT_DONE {
			next = notDoneInTime(e)
		}
	case e.Outcome == typev1.Outcome_OUTCOME_UNKNOWN && rpc.Retryable(e):
		code = exit.Unknown
	}
	return message, next, code
}

// notDoneInTime says what to do about something that was certainly not done when
// its time was over: that depends on what was in the way last.
func notDoneInTime(e *rpc.Error) string {
	next := "It was not done. Try again, and allow more time."
	if info, ok := rpc.ExplainReason(e.Metadata["last_reason"]); ok {
		next = "It was not done. What was in the way (" + info.Name + "): " + info.NextStep
	}
	return next
}

// plainUnreachable takes the wrapping of the transport off a refused connection.
func plainUnreachable(message string) string {
	before, after, ok := strings.Cut(message, `connection error: desc = "transport: `)
	if !ok {
		return strings.TrimRight(message, ". \n")
	}
	after = strings.TrimPrefix(strings.TrimSuffix(after, `"`), "Error while dialing: ")
	return "the gateway at " + before + after
}

// notef prints a line about what goes on, for people.
func (a *app) notef(format string, args ...any) {
	fmt.Fprintf(a.Err, "leat: "+format+"\n", args...)
}
