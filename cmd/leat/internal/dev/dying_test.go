package dev

import (
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// deadPid is the id of a process that has ended.
func deadPid(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// TestStartWhileTheKilledDie: what the processes of a killed mesh held, locks and
// ports, is free only some moments after the kill; a new start waits for that. The time
// of the test is its own: it does not depend on how soon this machine lets go.
func TestStartWhileTheKilledDie(t *testing.T) {
	dir, dead, base := t.TempDir(), deadPid(t), freePorts(t)
	synctest.Test(t, func(t *testing.T) { startWhileTheKilledDie(t, dir, dead, base) })
}

func startWhileTheKilledDie(t *testing.T, dir string, dead, portBase int) {
	f, die, err := takeFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(f.pid("dev"), fmt.Sprintln(dead)); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = die() })
	f, release, err := takeFolder(dir)
	if err != nil {
		t.Fatalf("the lock was not waited for: %v", err)
	}
	defer func() { _ = release() }()

	o := defaults()
	o.PortBase = portBase
	p, err := newPlan(&o, f, serviceKinds())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.PortBase)))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.awaitPorts(false); exit.CodeOf(err) != exit.Failed {
		t.Errorf("a taken port, and nothing was killed: %v", err)
	}
	crashed, err := f.cleanRun()
	if err != nil || !crashed {
		t.Errorf("cleanRun: crashed %v, %v", crashed, err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = l.Close() })
	if err := p.awaitPorts(crashed); err != nil {
		t.Errorf("the ports were not waited for: %v", err)
	}
	if crashed, err := f.cleanRun(); err != nil || crashed {
		t.Errorf("cleanRun after an end in order: crashed %v, %v", crashed, err)
	}
}
