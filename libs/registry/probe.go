package registry

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Verdict is what a probe found out about a process.
type Verdict int

// The verdicts.
const (
	// Unreachable proves nothing: no answer, or one that cannot be read.
	Unreachable Verdict = iota
	// Alive: the very process answered.
	Alive
	// Refused: its host answers and nobody listens there, twice. It is dead.
	Refused
	// Replaced: another life of a process answers at its address. It is dead.
	Replaced
)

// Dead tells whether the verdict proves the process dead.
func (v Verdict) Dead() bool { return v == Refused || v == Replaced }

// String is for logs.
func (v Verdict) String() string {
	switch v {
	case Alive:
		return "it answers"
	case Refused:
		return "its address refused two dials"
	case Replaced:
		return "another process answers at its address"
	}
	return "it does not answer"
}

const (
	// probeTimeout bounds one question to a process.
	probeTimeout = time.Second
	// refusalGap is the time between the two dials that must be refused.
	refusalGap = 20 * time.Millisecond
	// watchInterval is the time between questions to a process that is watched.
	watchInterval = 500 * time.Millisecond
)

// Target is a process to be probed.
type Target struct {
	Kind    controllerv1.ServiceKind
	Process *typev1.Process
	Address string // host:port
}

// Prober asks processes who they are. Safe for concurrent use.
type Prober struct {
	dial rpc.DialConfig
}

// NewProber makes a prober that dials as given.
func NewProber(dial rpc.DialConfig) *Prober { return &Prober{dial: dial} }

// Probe finds out whether a process lives at its address. It takes about two
// seconds at most.
func (p *Prober) Probe(ctx context.Context, t Target) Verdict {
	for try := 0; p.refuses(ctx, t.Address); try++ {
		if try == 1 {
			return Refused
		}
		select {
		case <-time.After(refusalGap):
		case <-ctx.Done():
			return Unreachable
		}
	}
	conn, err := rpc.Dial(t.Address, p.dial)
	if err != nil {
		return Unreachable
	}
	defer conn.Close()
	v, _ := ask(ctx, conn, t)
	return v
}

// AwaitDeath watches a process and returns as soon as it is proved dead, or
// Unreachable when ctx ends. It holds a connection, whose breaking makes it look
// at once.
func (p *Prober) AwaitDeath(ctx context.Context, t Target) Verdict {
	conn, err := rpc.Dial(t.Address, p.dial)
	if err != nil {
		<-ctx.Done()
		return Unreachable
	}
	defer conn.Close()
	for ctx.Err() == nil {
		switch v, _ := ask(ctx, conn, t); v {
		case Replaced:
			return Replaced
		case Alive:
			wait, cancel := context.WithTimeout(ctx, watchInterval)
			if conn.GetState() == connectivity.Ready {
				conn.WaitForStateChange(wait, connectivity.Ready)
			} else {
				<-wait.Done()
			}
			cancel()
			continue
		}
		// The dials of a probe are its own, so that the connection's waits between
		// attempts do not hold it up.
		if v := p.Probe(ctx, t); v.Dead() {
			return v
		}
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
		}
	}
	return Unreachable
}

// ask puts the question over a connection.
func ask(ctx context.Context, conn *grpc.ClientConn, t Target) (Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	id, err := meshv1.NewIdentityServiceClient(conn).GetIdentity(ctx, &meshv1.GetIdentityRequest{})
	if err != nil {
		return Unreachable, err
	}
	same := id.GetKind() == KindName(t.Kind) &&
		id.GetProcess().GetId() == t.Process.GetId() &&
		id.GetProcess().GetIncarnation() == t.Process.GetIncarnation()
	if same {
		return Alive, nil
	}
	return Replaced, nil
}

// refuses tells whether an address refuses a dial.
func (p *Prober) refuses(ctx context.Context, addr string) bool {
	d := net.Dialer{Timeout: probeTimeout}
	if ip := net.ParseIP(p.dial.SourceAddress); ip != nil {
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		// Closing right away is all there is to do; nothing was sent.
		_ = conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
