package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// spawner starts processes from one thread: they die with the thread that
// started them, so that nothing is left when the test is killed.
type spawner struct {
	t    *testing.T
	jobs chan func()
	done chan struct{}
}

func newSpawner(t *testing.T) *spawner {
	s := &spawner{t: t, jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// do runs a function on the thread and returns what it says.
func (s *spawner) do(f func() error) error {
	done := make(chan error)
	s.jobs <- func() { done <- f() }
	return <-done
}

func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}

// process is a Starter.
func (s *spawner) process(spec *Spec) (Life, error) {
	var cmd *exec.Cmd
	if spec.Kind == Etcd {
		ready := spec.Log + ".ready"
		if err := os.Remove(ready); err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		cmd = exec.Command(mesh.Bin(s.t, "leat"), append([]string{"etcd", "--addr-file=" + ready}, arguments(spec.Settings)...)...)
	} else {
		cmd = exec.Command(mesh.Bin(s.t, spec.Kind), arguments(spec.Settings)...)
	}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LEAT_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	log, err := os.OpenFile(filepath.Clean(spec.Log), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	// In a group of its own it does not hear the Ctrl-C that is meant for the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.do(cmd.Start); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// process is a life in a process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

func (p *process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.done
}

func (p *process) Terminate(limit time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
		p.Kill()
		return fmt.Errorf("it was killed, %v after SIGTERM", limit)
	}
}

func (p *process) Pause() error          { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) Resume() error         { return p.cmd.Process.Signal(syscall.SIGCONT) }
func (p *process) Done() <-chan struct{} { return p.done }
