package service

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/obs"
	"github.com/leat-io/leat/libs/version"
)

// Service is a service that has been made and not yet run.
type Service interface {
	// Run serves until ctx ends, then stops in order. It returns nil after a
	// clean stop.
	Run(ctx context.Context) error
	// Ready is closed once the service serves.
	Ready() <-chan struct{}
	// Addr is the bound address, host:port.
	Addr() string
}

// Config is a pointer to a struct that embeds Common.
type Config[C any] interface {
	*C
	Base() *Common
}

// EnvPrefix begins the environment variables of all settings.
const EnvPrefix = "LEAT_"

// Exit codes of a service's process.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInterrupted = 130
)

// checkConfigFlag makes a process check its settings and end, for those who
// write manifests.
const checkConfigFlag = "--check-config"

// Main is the whole main of a service's binary. cfg holds the defaults; where it
// names no address to listen on, that is the default port on 127.0.0.1. Main
// does not return: it exits with 0 after a clean stop (SIGTERM, SIGINT, --help,
// --version, --check-config), 1 after a failure, told in one line on stderr, 2 after wrong usage,
// and 130 at once at the second signal.
func Main[C any, P Config[C], S Service](kind string, defaultPort int, cfg C, build func(C, Deps) (S, error)) {
	// gRPC's own log would put lines of another shape among ours; what matters in
	// it comes back as errors.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	p := process{
		kind: kind, name: filepath.Base(os.Args[0]), args: os.Args[1:], environ: os.Environ(),
		stdout: os.Stdout, stderr: os.Stderr, signals: signals, exit: os.Exit, killGrace: killGrace,
	}
	os.Exit(run[C, P](&p, defaultPort, cfg, build))
}

// process is what a run takes from the operating system.
type process struct {
	kind, name     string
	args, environ  []string
	stdout, stderr io.Writer
	signals        <-chan os.Signal
	exit           func(code int) // for the second signal
	killGrace      time.Duration
}

// fail prints err, one line for each thing that is wrong, and gives the code.
func (p *process) fail(code int, err error) int {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(p.stderr, "%s: %s\n", p.name, line)
	}
	return code
}

// run is Main with everything from outside passed in.
func run[C any, P Config[C], S Service](p *process, defaultPort int, cfg C, build func(C, Deps) (S, error)) int {
	common := P(&cfg).Base()
	if common.Listen == "" {
		common.Listen = net.JoinHostPort("127.0.0.1", fmt.Sprint(defaultPort))
	}
	args := slices.DeleteFunc(slices.Clone(p.args), func(a string) bool { return a == checkConfigFlag })
	err := config.Load(&cfg, config.Options{Args: args, Environ: p.environ, EnvPrefix: EnvPrefix})
	switch {
	case errors.Is(err, config.ErrHelp):
		return p.help(&cfg)
	case errors.Is(err, config.ErrVersion):
		fmt.Fprintf(p.stdout, "%s %s\n", p.name, version.String())
		return ExitOK
	case err != nil:
		return p.fail(ExitUsage, err)
	}
	if err := common.Validate(); err != nil {
		return p.fail(ExitUsage, err)
	}
	if len(args) < len(p.args) {
		fmt.Fprintln(p.stdout, "The settings are right.")
		return ExitOK
	}
	if common.NodeID == 0 {
		common.NodeID = drawNodeID()
	}
	incarnation := NewIncarnation()
	deps := Deps{
		Logger:      obs.NewLogger(p.stderr, common.LogLevel, common.LogFormat, p.kind, common.NodeID, incarnation),
		Registry:    obs.NewRegistry(p.kind, version.String()),
		Incarnation: incarnation,
	}
	tp, flush, err := obs.NewTracerProvider(context.Background(), obs.TraceConfig{
		Endpoint: common.OTLPEndpoint, SampleRatio: common.TraceSampleRatio, Kind: p.kind, ID: common.NodeID,
		Incarnation: incarnation, Version: version.String(), Logger: deps.Logger,
	})
	if err != nil {
		return p.fail(ExitFailed, err)
	}
	deps.TracerProvider = tp
	lis, err := Listen(common)
	if err != nil {
		return p.fail(ExitFailed, err)
	}
	common.Listener = lis
	svc, err := build(cfg, deps)
	if err != nil {
		return p.fail(ExitFailed, errors.Join(err, closeQuietly(lis)))
	}
	err = p.serve(svc, common, deps)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if ferr := flush(ctx); ferr != nil {
		deps.Logger.Debug("the last spans could not be delivered", "error", ferr)
	}
	if err != nil {
		return p.fail(ExitFailed, err)
	}
	return ExitOK
}

// help prints what --help asks for.
func (p *process) help(cfg any) int {
	fmt.Fprintf(p.stdout, "%s runs one %s of a Leat mesh until SIGTERM.\n\nUsage: %s [--config=FILE] [--key=value]... | --help | --check-config | --version\n\n", p.name, p.kind, p.name)
	fmt.Fprintf(p.stdout, "Settings, by flag, environment variable or a line key=value of the file; the first that names a key decides:\n")
	if err := config.Usage(p.stdout, cfg, EnvPrefix); err != nil {
		return p.fail(ExitFailed, err)
	}
	return ExitOK
}

// NewIncarnation draws the number that tells this life of a process from all
// others; never 0.
func NewIncarnation() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails: it would crash the process instead
		if n := binary.BigEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// drawNodeID draws the id of a process that was given none. It lies above what
// people give, and among so many numbers that two processes hardly meet; if they
// do, the second one's registration is refused.
func drawNodeID() int32 {
	const first = 1 << 16
	return first + int32(NewIncarnation()%(math.MaxInt32-first))
}

// closeQuietly closes what may be closed already.
func closeQuietly(c io.Closer) error {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// writeAddrFile puts the address into the file, whole or not at all.
func writeAddrFile(path, addr string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp*")
	if err != nil {
		return fmt.Errorf("write addr.file: %w", err)
	}
	_, err = tmp.WriteString(addr + "\n")
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write addr.file: %w", err), os.Remove(tmp.Name()))
	}
	return nil
}

// isClosed reports whether the channel is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// logStart is the first line of a life.
func logStart(logger *slog.Logger, common *Common, addr string) {
	logger.Info("starting", "version", version.String(), "pid", os.Getpid(), "address", addr, "advertised", common.Advertise(common.Listener))
}
