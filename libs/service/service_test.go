package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/config"
)

type fakeConfig struct {
	Common
	Mode string `config:"fake.mode" default:"good" help:"What the fake does."`
}

func fakeDefaults() fakeConfig {
	var c fakeConfig
	config.SetDefaults(&c)
	return c
}

// fake is a service that does what its mode says.
type fake struct {
	cfg   fakeConfig
	ready chan struct{}
}

var errFake = errors.New("the fake failed")

func newFake(cfg fakeConfig, deps Deps) (*fake, error) {
	if cfg.Mode == "no new" {
		return nil, errFake
	}
	if deps.Logger == nil || deps.TracerProvider == nil || deps.Registry == nil || deps.Incarnation == 0 || cfg.Listener == nil {
		return nil, errors.New("something is missing in deps")
	}
	return &fake{cfg: cfg, ready: make(chan struct{})}, nil
}

func (f *fake) Ready() <-chan struct{} { return f.ready }

func (f *fake) Addr() string { return f.cfg.Listener.Addr().String() }

func (f *fake) Run(ctx context.Context) error {
	switch f.cfg.Mode {
	case "fails":
		return errFake
	case "ends":
		return nil
	}
	if f.cfg.Mode != "never ready" {
		close(f.ready)
	}
	<-ctx.Done()
	switch f.cfg.Mode {
	case "stuck":
		select {}
	case "canceled":
		return ctx.Err()
	case "bad stop":
		return errFake
	}
	return f.cfg.Listener.Close()
}

// safeBuffer is written by the process and read by the test.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// started is a process under test.
type started struct {
	signals        chan os.Signal
	stdout, stderr safeBuffer
	code           chan int
	exited         chan int // of the second signal
}

func start(t *testing.T, args ...string) *started {
	t.Helper()
	s := &started{signals: make(chan os.Signal, 2), code: make(chan int, 1), exited: make(chan int, 1)}
	p := process{
		kind: "broker", name: "broker", args: args, stdout: &s.stdout, stderr: &s.stderr, signals: s.signals,
		exit: func(code int) { s.exited <- code }, killGrace: 10 * time.Millisecond,
	}
	go func() { s.code <- run[fakeConfig](&p, 5331, fakeDefaults(), newFake) }()
	return s
}

func (s *started) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-s.code:
		return code
	case <-time.After(30 * time.Second):
		t.Fatalf("does not end; stderr:\n%s", s.stderr.String())
		return -1
	}
}

// waitFor polls until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (s *started) waitLog(t *testing.T, text string) {
	t.Helper()
	waitFor(t, text+" in the log", func() bool { return strings.Contains(s.stderr.String(), text) })
}

const anyPort = "--listen=127.0.0.1:0"

func TestHelpAndVersion(t *testing.T) {
	s := start(t, "--help")
	if code := s.wait(t); code != ExitOK {
		t.Errorf("--help exits with %d", code)
	}
	for _, want := range []string{"--listen=STRING (default 127.0.0.1:5331) [LEAT_LISTEN]", "--fake.mode=STRING (default good)", "--config=FILE", "--node.id"} {
		if !strings.Contains(s.stdout.String(), want) {
			t.Errorf("help lacks %q:\n%s", want, s.stdout.String())
		}
	}
	s = start(t, "--version")
	if code := s.wait(t); code != ExitOK || !strings.HasPrefix(s.stdout.String(), "broker ") {
		t.Errorf("--version prints %q, exits with %d", s.stdout.String(), code)
	}
}

func TestWrongUsage(t *testing.T) {
	for arg, want := range map[string]string{
		"--node.ids=3":            `broker: flag: unknown setting "node.ids"; did you mean "node.id"?`,
		"--node.id=-1":            "broker: node.id: -1 is not allowed",
		"--listen=0.0.0.0:1":      "allow.insecure=true",
		"--lease.ttl=5":           "give a duration with its unit",
		"--config=/no/such/file":  "/no/such/file",
		"stray":                   `"stray" is no flag`,
		"--etcd.endpoints=":       "etcd.endpoints",
		"--trace.sample.ratio=-1": "trace.sample.ratio",
	} {
		s := start(t, arg)
		if code := s.wait(t); code != ExitUsage || !strings.Contains(s.stderr.String(), want) {
			t.Errorf("%s: exit code %d, %q", arg, code, s.stderr.String())
		}
	}
}

func TestCheckConfig(t *testing.T) {
	s := start(t, "--check-config", "--node.id=7")
	if code := s.wait(t); code != ExitOK || strings.Contains(s.stderr.String(), "starting") {
		t.Errorf("--check-config exits with %d and says %q", code, s.stderr.String())
	}
	s = start(t, "--node.ids=7", "--check-config")
	if code := s.wait(t); code != ExitUsage {
		t.Errorf("--check-config with an unknown key exits with %d", code)
	}
}

func TestDrawnNodeID(t *testing.T) {
	a, b := drawNodeID(), drawNodeID()
	if a < 1<<16 || b < 1<<16 || a == b {
		t.Errorf("drew %d and %d", a, b)
	}
}

func TestFailures(t *testing.T) {
	for mode, want := range map[string]string{
		"no new":   "broker: the fake failed\n",
		"fails":    "broker: the fake failed\n",
		"ends":     "broker: the service ended without being asked to\n",
		"bad stop": "broker: the fake failed\n",
		"stuck":    "broker: did not stop within",
	} {
		t.Run(mode, func(t *testing.T) {
			timeout := 10 * time.Second
			if mode == "stuck" {
				timeout = 10 * time.Millisecond // the one that uses it up
			}
			s := start(t, anyPort, "--fake.mode="+mode, "--shutdown.timeout="+timeout.String())
			if mode == "stuck" || mode == "bad stop" {
				s.waitLog(t, "msg=ready")
				s.signals <- syscall.SIGTERM
			}
			if code := s.wait(t); code != ExitFailed || !strings.Contains(s.stderr.String(), want) {
				t.Errorf("exit code %d, stderr:\n%s", code, s.stderr.String())
			}
		})
	}
}

func TestPortTaken(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	_, port, _ := net.SplitHostPort(lis.Addr().String())
	for _, args := range [][]string{{"--listen=" + lis.Addr().String()}, {anyPort, "--ops.listen=" + lis.Addr().String()}} {
		s := start(t, args...)
		code := s.wait(t)
		want := fmt.Sprintf("port %s is taken", port)
		if code != ExitFailed || !strings.Contains(s.stderr.String(), want) || !strings.Contains(s.stderr.String(), "listen=host:port") {
			t.Errorf("%v: exit code %d, %s", args, code, s.stderr.String())
		}
	}
}

// The whole of a good life: listens, writes its address, becomes ready, stops.
func TestLife(t *testing.T) {
	addrFile := filepath.Join(t.TempDir(), "broker-1.addr")
	s := start(t, anyPort, "--ops.listen=127.0.0.1:0", "--addr.file="+addrFile)
	s.waitLog(t, "msg=ready")
	addr, err := os.ReadFile(addrFile)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimSpace(string(addr)))
	if err != nil {
		t.Errorf("nobody listens at the written address %q: %v", addr, err)
	} else {
		conn.Close()
	}
	if code := s.readyz(t); code != http.StatusOK {
		t.Errorf("/readyz says %d", code)
	}
	s.signals <- syscall.SIGTERM
	if code := s.wait(t); code != ExitOK {
		t.Errorf("exit code %d, stderr:\n%s", code, s.stderr.String())
	}
	if _, err := os.Stat(addrFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("addr.file stays behind: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(addrFile), "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if !strings.Contains(s.stderr.String(), "component=broker-1") {
		t.Error("log lines do not name the component")
	}
}

// readyz asks the operations HTTP, whose address is in the log.
func (s *started) readyz(t *testing.T) int {
	t.Helper()
	m := regexp.MustCompile(`operations HTTP listens".*address=(\S+)`).FindStringSubmatch(s.stderr.String())
	if m == nil {
		t.Fatalf("no address in %s", s.stderr.String())
	}
	resp, err := http.Get("http://" + m[1] + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// The address is known before the service is ready, and /readyz tells the
// difference.
func TestListensBeforeReady(t *testing.T) {
	addrFile := filepath.Join(t.TempDir(), "addr")
	s := start(t, anyPort, "--fake.mode=never ready", "--addr.file="+addrFile, "--ops.listen=127.0.0.1:0")
	waitFor(t, "addr.file", func() bool { _, err := os.Stat(addrFile); return err == nil })
	if code := s.readyz(t); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz says %d", code)
	}
	if strings.Contains(s.stderr.String(), "msg=ready") {
		t.Error("says it is ready")
	}
	s.signals <- syscall.SIGINT
	if code := s.wait(t); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestSecondSignal(t *testing.T) {
	s := start(t, anyPort, "--fake.mode=stuck", "--shutdown.timeout=1h")
	s.waitLog(t, "msg=ready")
	s.signals <- syscall.SIGTERM
	s.waitLog(t, "msg=stopping")
	s.signals <- syscall.SIGTERM
	if code := <-s.exited; code != ExitInterrupted {
		t.Errorf("exits with %d", code)
	}
	s.wait(t)
}

func TestCanceledIsClean(t *testing.T) {
	s := start(t, anyPort, "--fake.mode=canceled")
	s.waitLog(t, "msg=ready")
	s.signals <- syscall.SIGTERM
	if code := s.wait(t); code != ExitOK {
		t.Errorf("exit code %d: %s", code, s.stderr.String())
	}
}

func TestAddrFileCannotBeWritten(t *testing.T) {
	s := start(t, anyPort, "--addr.file=/no/such/folder/addr")
	if code := s.wait(t); code != ExitFailed || !strings.Contains(s.stderr.String(), "addr.file") {
		t.Errorf("exit code %d: %s", code, s.stderr.String())
	}
}

func TestNewIncarnation(t *testing.T) {
	if a, b := NewIncarnation(), NewIncarnation(); a == 0 || a == b {
		t.Errorf("drew %d and %d", a, b)
	}
}
