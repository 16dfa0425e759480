package consume

import (
	"context"
	"errors"
	"io"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Times of the engine.
const (
	creditBytes   = 4 << 20                // most bytes of records under way to us
	flushBytes    = 64 << 10               // output collected before it is written
	flushEvery    = 100 * time.Millisecond // while records keep coming
	commitEvery   = time.Second            // while records keep coming
	commitRetry   = 200 * time.Millisecond
	pingEvery     = 3 * time.Second
	silenceLimit  = 15 * time.Second       // without an answer to pings the stream counts as broken
	lostLimit     = 2 * time.Minute        // without a gateway Run gives up
	finishLimit   = 10 * time.Second       // for the last commit
	leaveLimit    = 3 * time.Second        // for the farewell
	settleAsk     = 300 * time.Millisecond // before the group is asked again whether more comes
	settleSome    = time.Second            // after the last change of an assignment that does not cover all, where it cannot be asked
	settleNone    = 3 * time.Second        // with no partition assigned, likewise
	statusPatient = 3 * time.Second        // of waiting before the user is told
)

// Partition names a partition.
type Partition struct {
	Topic     string
	Partition int32
}

// Config says what to consume and how.
type Config struct {
	// Client reaches the gateway.
	Client gatewayv1.ConsumerServiceClient
	// Open is what the first stream is opened with; later ones resume it.
	Open *gatewayv1.ConsumeOpen
	// Partitions are all partitions of the topics, as of the start.
	Partitions []Partition
	// Ends are where to stop, exclusive; nil is never.
	Ends map[Partition]int64
	// Standing tells how the group stands with a member; asked before a Run with Ends ends
	// with fewer partitions than all. Nil: it cannot be asked.
	Standing func(ctx context.Context, memberID string) (Standing, error)
	// MaxMessages is how many records to print; 0 is no bound.
	MaxMessages int64
	// AutoCommit commits what was printed; it needs a group.
	AutoCommit bool
	// Format prints a record.
	Format Format
	// Out takes the records.
	Out io.Writer
	// Note is told what people may want to know meanwhile; nil is silence.
	Note func(format string, args ...any)
	// Interrupt ends the printing; Run still commits what was printed.
	Interrupt <-chan struct{}
	// Progress is called now and then; nil is never.
	Progress func(Summary)
}

// Summary tells what was consumed.
type Summary struct {
	Records, Bytes int64
	Elapsed        time.Duration
	Interrupted    bool
	// OutputClosed says that the reader of the output went away.
	OutputClosed bool
	// Uncommitted is how many partitions have printed records whose commit was
	// not confirmed.
	Uncommitted int
	// CommitErr tells why, if it is known.
	CommitErr *rpc.Error
	// PartitionErr is the first error that ended the reading of a partition.
	PartitionErr *rpc.Error
}

// Run consumes until the ends or the maximum are reached, the interrupt, or an
// error that no new stream can mend.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := newEngine(ctx, cfg)
	err := e.run()
	cancel()
	e.endSession()
	e.summary.Elapsed = time.Since(e.started)
	if e.commits() {
		e.summary.Uncommitted = len(e.uncommitted())
	}
	return e.summary, err
}

// errDone ends the loop of the engine without an error.
var errDone = errors.New("done")
