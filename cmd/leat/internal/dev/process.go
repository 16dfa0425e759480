package dev

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// processes starts instances as processes.
type processes struct {
	folder folder
	binDir string
	self   string
	plan   *plan
	// A child dies with the thread that started it (Pdeathsig), so one goroutine
	// that keeps its thread starts them all.
	spawns chan func()
}

func newProcesses(f folder, binDir string, p *plan) (*processes, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the leat command itself: %w", err)
	}
	if binDir == "" {
		binDir = filepath.Dir(self)
	}
	s := &processes{folder: f, binDir: binDir, self: self, plan: p, spawns: make(chan func())}
	for _, kind := range startOrder {
		if kind == kindEtcd {
			continue
		}
		if _, err := exec.LookPath(s.binary(kind)); err != nil {
			return nil, exit.Failure("Build it with `make build`, or name the folder of the binaries with --bin-dir.", "--processes needs the binary of the %s: %w", kind, err)
		}
	}
	go s.spawner()
	return s, nil
}

func (s *processes) binary(kind string) string { return filepath.Join(s.binDir, kind) }

func (s *processes) spawner() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for spawn := range s.spawns {
		spawn()
	}
}

// close ends the spawner; all children must have ended.
func (s *processes) close() { close(s.spawns) }

func (s *processes) command(in *instance) *exec.Cmd {
	if in.kind == kindEtcd {
		return exec.Command(s.self, "etcd", "--name="+in.name, "--dir="+s.folder.instance(in.name), "--listen="+in.listen,
			"--peer="+in.peer, "--source="+in.settings[etcdSource],
			"--initial-cluster="+s.plan.initialCluster(), "--addr-file="+s.folder.addr(in.name))
	}
	return exec.Command(s.binary(in.kind), in.arguments()...)
}

// environment is ours without Leat's variables: the plan alone says how a
// service is set.
func environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LEAT_") {
			env = append(env, e)
		}
	}
	return env
}

// process is a life in a process.
type process struct {
	cmd     *exec.Cmd
	readyCh chan struct{}
	doneCh  chan struct{}
	waitErr error // set before doneCh is closed
	logPath string
}

func (s *processes) start(in *instance) (life, error) {
	if err := s.folder.forget(in.name); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.folder.log(in.name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{cmd: s.command(in), readyCh: make(chan struct{}), doneCh: make(chan struct{}), logPath: log.Name()}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = environment()
	p.cmd.SysProcAttr = childAttributes()
	started := make(chan error)
	s.spawns <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", in.name, err)
	}
	pidErr := writeWhole(s.folder.pid(in.name), fmt.Sprintf("%d\n", p.cmd.Process.Pid))
	go func() {
		err := p.cmd.Wait()
		p.waitErr = errors.Join(err, s.folder.forget(in.name))
		close(p.doneCh)
	}()
	if pidErr != nil {
		p.kill()
		return nil, pidErr
	}
	go p.watch(s.folder, in)
	return p, nil
}

// watch closes readyCh once the process says that it serves.
func (p *process) watch(f folder, in *instance) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		select {
		case <-p.doneCh:
			return
		case <-tick.C:
		}
		if _, err := os.Stat(f.addr(in.name)); err == nil && answersReady(client, in) {
			close(p.readyCh)
			return
		}
	}
}

// answersReady asks the operations HTTP. etcd writes its address file only when
// it serves, and who has no operations HTTP is taken at the word of its own.
func answersReady(client *http.Client, in *instance) bool {
	if in.ops == "" {
		return true
	}
	response, err := client.Get("http://" + in.ops + "/readyz")
	if err != nil {
		return false
	}
	return errors.Join(response.Body.Close()) == nil && response.StatusCode == http.StatusOK
}

func (p *process) ready() <-chan struct{} { return p.readyCh }
func (p *process) done() <-chan struct{}  { return p.doneCh }
func (p *process) describe() string       { return fmt.Sprintf("pid %d", p.cmd.Process.Pid) }

func (p *process) err() error {
	if p.waitErr == nil {
		return nil
	}
	if said := tail(p.logPath, 600); said != "" {
		return fmt.Errorf("%w; the end of %s:\n%s", p.waitErr, p.logPath, said)
	}
	return p.waitErr
}

// stop ends the process with SIGTERM, also one that is suspended, and with
// SIGKILL when the context ends.
func (p *process) stop(ctx context.Context) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-p.doneCh:
	case <-ctx.Done():
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.doneCh
}
