package dev

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
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// patience is for what takes seconds here, and much longer on a machine that is busy
// with other things.
const patience = 3 * time.Minute

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// freePorts is a base from which no port of a mesh is taken. It lies below the ports
// that systems give to outgoing connections: those of a mesh that starts could take
// what its own later services are to listen on. Until the test ends the last port of
// the block, which no small mesh needs, keeps other tests from finding it too.
func freePorts(t *testing.T) int {
	t.Helper()
	for range 1000 {
		base := 10000 + rand.IntN(100)*portsInAll
		reserved, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+portsInAll-1)))
		if err != nil {
			continue
		}
		free := true
		for p := base; p < base+portsInAll-1 && free; p++ {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
			if free = err == nil; free {
				l.Close()
			}
		}
		if free {
			t.Cleanup(func() { reserved.Close() })
			return base
		}
		reserved.Close()
	}
	t.Fatal("found no free block of ports")
	return 0
}

// mesh is a Run under test.
type mesh struct {
	t         *testing.T
	data      string
	out       lockedBuffer
	interrupt chan struct{}
	done      chan error
}

func options(t *testing.T) Options {
	return Options{
		Data: t.TempDir(), Brokers: 2, Controllers: 1, Coordinators: 1, Gateways: 2, Etcds: 1, Processes: true,
		PortBase: freePorts(t), BinDir: binaries(t), Leat: "leat",
	}
}

func startMesh(t *testing.T, o Options) *mesh {
	t.Helper()
	m := &mesh{t: t, data: o.Data, interrupt: make(chan struct{}), done: make(chan error, 1)}
	o.Out, o.Interrupt = &m.out, m.interrupt
	ctx, cancel := context.WithCancel(context.Background())
	go func() { m.done <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-m.done:
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
	return m
}

func (m *mesh) awaitReady() {
	m.t.Helper()
	eventually(m.t, "ready", func() bool {
		select {
		case err := <-m.done:
			m.done <- err
			m.t.Fatalf("Run ended with %v; it said:\n%s", err, m.out.String())
		default:
		}
		return strings.Contains(m.out.String(), "\nready: ")
	})
}

// stop interrupts and gives what Run returned.
func (m *mesh) stop() error {
	m.t.Helper()
	close(m.interrupt)
	select {
	case err := <-m.done:
		m.done <- err
		return err
	case <-time.After(patience):
		m.t.Fatalf("Run does not end; it said:\n%s", m.out.String())
		return nil
	}
}

func (m *mesh) pid(name string) int {
	m.t.Helper()
	pid, ok := readPid(filepath.Join(m.data, "run", name+".pid"))
	if !ok {
		m.t.Fatalf("no pid of %s", name)
	}
	return pid
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var sevenNames = []string{"etcd-1", "controller-1", "coordinator-1", "broker-1", "broker-2", "gateway-1", "gateway-2"}

func TestSupervisorStartsInOrderAndStopsInTheOther(t *testing.T) {
	o := options(t)
	// What an earlier life has left goes before anything starts.
	if err := os.MkdirAll(filepath.Join(o.Data, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, stale := range []string{"broker-9.pid", "broker-9.addr", "gateway-1.addr"} {
		if err := os.WriteFile(filepath.Join(o.Data, "run", stale), []byte("1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := startMesh(t, o)
	m.awaitReady()
	if exists(filepath.Join(o.Data, "run", "broker-9.addr")) || exists(filepath.Join(o.Data, "run", "broker-9.pid")) {
		t.Error("stale files are still there")
	}
	var order []string
	for _, line := range strings.Split(m.out.String(), "\n") {
		if name, rest, ok := strings.Cut(line, " "); ok && strings.Contains(rest, "up after") {
			order = append(order, name)
		}
	}
	kindsInOrder := regexp.MustCompile(`-\d`).ReplaceAllString(strings.Join(order, " "), "")
	if kindsInOrder != "etcd controller broker broker coordinator gateway gateway" || order[len(order)-1] != "gateway-1" {
		t.Errorf("started in the order %v", order)
	}
	pids := map[string]int{}
	for _, name := range sevenNames {
		pids[name] = m.pid(name)
		if !alive(pids[name]) {
			t.Errorf("%s does not run", name)
		}
		addr, err := os.ReadFile(filepath.Join(o.Data, "run", name+".addr"))
		if err != nil || !regexp.MustCompile(`^127\.0\.0\.1:\d+\n$`).Match(addr) {
			t.Errorf("%s.addr: %q, %v", name, addr, err)
		}
	}
	if want := fmt.Sprintf("127.0.0.1:%d", o.PortBase); !strings.Contains(m.out.String(), "ready: the gateway is at "+want) {
		t.Errorf("no ready line with %s:\n%s", want, m.out.String())
	}
	if m.pid("dev") != os.Getpid() {
		t.Error("dev.pid is not the supervisor's")
	}
	if err := m.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	for name, pid := range pids {
		if alive(pid) {
			t.Errorf("%s still runs", name)
		}
		if log, err := os.ReadFile(filepath.Join(o.Data, "log", name+".log")); err != nil || !strings.Contains(string(log), "stopped by SIGTERM") {
			t.Errorf("%s was not asked to stop: %q, %v", name, log, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(o.Data, "run", "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "dev.lock" {
		t.Errorf("left in run/: %v, %v", left, err)
	}
}

func TestSupervisorLeavesTheDeadAloneUntilAsked(t *testing.T) {
	o := options(t)
	m := startMesh(t, o)
	m.awaitReady()
	ctx := context.Background()
	dead := m.pid("broker-1")
	others := map[string]int{}
	for _, name := range sevenNames {
		if name != "broker-1" {
			others[name] = m.pid(name)
		}
	}
	if err := syscall.Kill(dead, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a word about broker-1", func() bool {
		return strings.Contains(m.out.String(), "broker-1 (pid "+strconv.Itoa(dead)+") ended by itself: signal: killed")
	})
	if exists(filepath.Join(o.Data, "run", "broker-1.addr")) || exists(filepath.Join(o.Data, "run", "broker-1.pid")) {
		t.Error("the files of the dead are still there")
	}
	if err := Control(ctx, o.Data, "restart", "broker-1"); err != nil {
		t.Fatal(err)
	}
	if again := m.pid("broker-1"); again == dead || !alive(again) || !exists(filepath.Join(o.Data, "run", "broker-1.addr")) {
		t.Error("broker-1 is not back")
	}
	before := m.pid("gateway-1")
	if err := Control(ctx, o.Data, "restart", "gateway-1"); err != nil {
		t.Fatal(err)
	}
	if m.pid("gateway-1") == before || alive(before) {
		t.Error("restart did not stop the old gateway-1")
	}
	delete(others, "gateway-1")
	if err := Control(ctx, o.Data, "stop", "broker-2"); err != nil {
		t.Fatal(err)
	}
	if alive(others["broker-2"]) {
		t.Error("broker-2 still runs")
	}
	if err := Control(ctx, o.Data, "start", "broker-2"); err != nil {
		t.Fatal(err)
	}
	if err := Control(ctx, o.Data, "start", "broker-2"); exit.CodeOf(err) != exit.Failed || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("starting what runs: %v", err)
	}
	if err := Control(ctx, o.Data, "restart", "broker-7"); exit.CodeOf(err) != exit.Wrong || !strings.Contains(err.Error(), "broker-7") {
		t.Errorf("restarting what there is not: %v", err)
	}
	delete(others, "broker-2")
	for name, pid := range others {
		if !alive(pid) || m.pid(name) != pid {
			t.Errorf("%s was touched", name)
		}
	}
	// A suspended process is stopped all the same.
	if err := syscall.Kill(m.pid("broker-1"), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := m.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if strings.Contains(m.out.String(), "was killed") {
		t.Errorf("somebody had to be killed:\n%s", m.out.String())
	}
}

func TestSupervisorGivesUpWhenAServiceCannotStart(t *testing.T) {
	o := options(t)
	failing := filepath.Join(o.BinDir, kindCoordinator)
	if err := os.Remove(failing); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(failing, []byte("#!/bin/sh\necho no luck today\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := startMesh(t, o)
	err := <-m.done
	m.done <- err
	if err == nil || !strings.Contains(err.Error(), "coordinator-1") || !strings.Contains(err.Error(), "no luck today") {
		t.Errorf("Run: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(o.Data, "run", "*.pid"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestSecondDevOnTheSameFolderIsRefused(t *testing.T) {
	o := options(t)
	m := startMesh(t, o)
	m.awaitReady()
	second := o
	second.PortBase, second.Out = freePorts(t), &lockedBuffer{}
	err := Run(context.Background(), second)
	if exit.CodeOf(err) != exit.Failed || !strings.Contains(err.Error(), o.Data) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("a second Run: %v", err)
	}
	if exists(filepath.Join(o.Data, "run", "gateway-1.addr")) == false {
		t.Error("the refused one has removed files of the first")
	}
	// Taken ports name port, setting and flag.
	third := o
	third.Data, third.Out = t.TempDir(), &lockedBuffer{}
	err = Run(context.Background(), third)
	if exit.CodeOf(err) != exit.Failed || !strings.Contains(err.Error(), strconv.Itoa(o.PortBase)) || !strings.Contains(err.Error(), "listen") {
		t.Errorf("taken ports: %v", err)
	}
	var own *exit.Error
	if !errors.As(err, &own) || !strings.Contains(own.Next, "--port-base") {
		t.Errorf("no flag is named: %v", err)
	}
}

func TestControlWithoutDev(t *testing.T) {
	err := Control(context.Background(), t.TempDir(), "restart", "broker-1")
	if exit.CodeOf(err) != exit.Failed || !strings.Contains(err.Error(), "no leat dev runs") {
		t.Errorf("Control: %v", err)
	}
}

// TestLockDiesWithItsProcess: a folder whose leat dev was killed can be taken.
func TestLockDiesWithItsProcess(t *testing.T) {
	dir := t.TempDir()
	f, release, err := takeFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	// A child must not inherit the lock.
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	if _, _, err := takeFolder(dir); err == nil {
		t.Fatal("the folder was taken twice")
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	g, release, err := takeFolder(dir)
	if err != nil || f != g {
		t.Fatalf("the folder is not free: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
}
