package mesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// portBlock is how many ports from its base on a mesh may use.
const portBlock = 200

// Options describes a mesh to start; the zero value is three brokers and one
// of everything else, in one process.
type Options struct {
	// Processes runs each service as a process of its own.
	Processes bool
	// Args are further arguments of `leat dev`.
	Args []string
}

// Mesh is a running mesh.
type Mesh struct {
	t        *testing.T
	opts     Options
	Data     string
	PortBase int
	dev      *exec.Cmd
	devDone  chan struct{}
	output   *syncBuffer
}

// Bin returns the path of one of our binaries.
func Bin(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("LEAT_BIN")
	if dir == "" {
		dir = filepath.Join(Root(t), "bin")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not built: run 'make build' first (%v)", name, err)
	}
	return path
}

// Root returns the folder of the repository.
func Root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.work above the working directory")
	return ""
}

// Tool returns the path of a pinned tool that `make` has built.
func Tool(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("LEAT_TOOLS")
	if dir == "" {
		dir = filepath.Join(Root(t), ".cache", "tools")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the tool %s is not built: run the tests by 'make test-cluster' (%v)", name, err)
	}
	return path
}

// Start starts a mesh and waits until it is ready.
func Start(t *testing.T, opts Options) *Mesh {
	t.Helper()
	m := &Mesh{t: t, opts: opts, Data: DataFolder(t), PortBase: FreePorts(t)}
	m.Up()
	t.Cleanup(func() {
		m.Stop()
		if t.Failed() {
			m.dumpLogs()
		}
	})
	return m
}

// DataFolder is a folder of the test's own; it is kept for study in the folder
// that LEAT_TEST_DATA names, if any.
func DataFolder(t *testing.T) string {
	t.Helper()
	keep := os.Getenv("LEAT_TEST_DATA")
	if keep == "" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(keep, filepath.Base(t.Name())+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("data folder: %s", dir)
	return dir
}

// FreePorts finds a block of 200 ports that nobody listens on, and keeps other
// tests from finding it too: until the test ends it listens on the last one, which
// a mesh of less than twenty brokers does not need.
func FreePorts(t *testing.T) int {
	t.Helper()
	for range 1000 {
		base := 10000 + rand.IntN(100)*portBlock
		reserved, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+portBlock-1)))
		if err != nil {
			continue
		}
		if blockIsFree(base) {
			t.Cleanup(func() { reserved.Close() })
			return base
		}
		reserved.Close()
	}
	t.Fatal("found no free block of ports")
	return 0
}

func blockIsFree(base int) bool {
	for p := base; p < base+portBlock-1; p++ {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// Up starts `leat dev` on the mesh's folder, which may hold an earlier life of
// the mesh, and waits until it is ready.
func (m *Mesh) Up() {
	m.t.Helper()
	args := []string{"dev", "--data", m.Data, "--port-base", strconv.Itoa(m.PortBase)}
	if m.opts.Processes {
		args = append(args, "--processes")
	}
	args = append(args, m.opts.Args...)
	m.output = &syncBuffer{}
	m.dev = exec.Command(Bin(m.t, "leat"), args...)
	m.dev.Stdout, m.dev.Stderr = m.output, m.output
	if err := m.dev.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.devDone = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(m.dev, m.devDone)
	m.awaitServices()
	if r := m.Leat("cluster", "wait", "--timeout", "110s"); r.Code != 0 {
		m.t.Fatalf("the mesh is not ready: %s\nleat dev said:\n%s", r, m.output)
	}
}

// awaitServices waits until `leat dev` says that every service of the mesh is up.
// `leat cluster wait` knows nothing of one that has not got as far as to register.
func (m *Mesh) awaitServices() {
	m.t.Helper()
	Eventually(m.t, 2*time.Minute, "leat dev has started everything", func() (bool, string) {
		said := m.output.String()
		select {
		case <-m.devDone:
			m.t.Fatalf("leat dev ended while it was starting; it said:\n%s", said)
		default:
		}
		return strings.Contains(said, "\nready: "), said
	})
}

// Output is what `leat dev` has printed so far.
func (m *Mesh) Output() string { return m.output.String() }

// Stop stops the mesh with SIGTERM, as Ctrl-C would, and waits for its end.
func (m *Mesh) Stop() {
	m.t.Helper()
	if m.dev == nil {
		return
	}
	_ = m.dev.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.devDone:
	case <-time.After(60 * time.Second):
		_ = m.dev.Process.Kill()
		<-m.devDone
		m.t.Errorf("leat dev did not stop within a minute of SIGTERM; it said:\n%s", m.output)
	}
	if code := m.dev.ProcessState.ExitCode(); code != 0 && m.dev.ProcessState.Exited() {
		m.t.Errorf("leat dev exited with %d after SIGTERM; it said:\n%s", code, m.output)
	}
	m.dev = nil
}

// KillAll kills every process of the mesh at once with SIGKILL.
func (m *Mesh) KillAll() {
	m.t.Helper()
	if m.opts.Processes {
		for _, pid := range m.pids() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = m.dev.Process.Kill()
	<-m.devDone
	m.dev = nil
}

func (m *Mesh) pids() map[string]int {
	m.t.Helper()
	files, err := filepath.Glob(filepath.Join(m.Data, "run", "*.pid"))
	if err != nil {
		m.t.Fatal(err)
	}
	pids := map[string]int{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			m.t.Fatalf("%s holds %q, not a pid", f, text)
		}
		pids[strings.TrimSuffix(filepath.Base(f), ".pid")] = pid
	}
	return pids
}

// Kill kills one process, such as "broker-1", with SIGKILL.
func (m *Mesh) Kill(service string) {
	m.t.Helper()
	pid, ok := m.pids()[service]
	if !ok {
		m.t.Fatalf("no pid file for %s", service)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		m.t.Fatalf("kill %s (pid %d): %v", service, pid, err)
	}
}

// Restart runs `leat dev restart` for one service and demands success.
func (m *Mesh) Restart(service string) {
	m.t.Helper()
	m.MustLeat("dev", "restart", service, "--data", m.Data)
}

// Addr is the address of a process, from its .addr file.
func (m *Mesh) Addr(service string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Data, "run", service+".addr"))
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// Gateway is the address of the first gateway.
func (m *Mesh) Gateway() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(m.PortBase))
}

// Result is how a command ended.
type Result struct {
	Args           []string
	Stdout, Stderr string
	Code           int
}

// String tells the whole of it, for failure messages.
func (r Result) String() string {
	return fmt.Sprintf("leat %s: exit code %d\nstdout:\n%s\nstderr:\n%s",
		strings.Join(r.Args, " "), r.Code, clip(r.Stdout), clip(r.Stderr))
}

func clip(s string) string {
	if len(s) > 4000 {
		return s[:2000] + "\n…\n" + s[len(s)-2000:]
	}
	return s
}

// Command prepares a leat command against the mesh's gateway.
func (m *Mesh) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, Bin(m.t, "leat"), args...)
	cmd.Env = append(os.Environ(), "LEAT_GATEWAY="+m.Gateway())
	return cmd
}

// Leat runs a leat command to its end, two minutes at the most.
func (m *Mesh) Leat(args ...string) Result {
	m.t.Helper()
	return m.LeatInput("", args...)
}

// LeatInput runs a leat command with an input.
func (m *Mesh) LeatInput(stdin string, args ...string) Result {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := m.Command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	return run(m.t, cmd, args)
}

// MustLeat runs a leat command that has to succeed, and returns its stdout.
func (m *Mesh) MustLeat(args ...string) string {
	m.t.Helper()
	return m.MustLeatInput("", args...)
}

// MustLeatInput runs a leat command with an input; it has to succeed.
func (m *Mesh) MustLeatInput(stdin string, args ...string) string {
	m.t.Helper()
	r := m.LeatInput(stdin, args...)
	if r.Code != 0 {
		m.t.Fatal(r)
	}
	return r.Stdout
}

func run(t *testing.T, cmd *exec.Cmd, args []string) Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("leat %s: %v", strings.Join(args, " "), err)
	}
	return Result{Args: args, Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

func (m *Mesh) dumpLogs() {
	if m.output != nil {
		m.t.Logf("leat dev:\n%s", clip(m.output.String()))
	}
	files, _ := filepath.Glob(filepath.Join(m.Data, "log", "*.log"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if len(text) > 3000 {
			text = text[len(text)-3000:]
		}
		m.t.Logf("%s:\n%s", filepath.Base(f), text)
	}
}
