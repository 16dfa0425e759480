package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/obs"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker"
	"github.com/leat-io/leat/services/controller"
	"github.com/leat-io/leat/services/coordinator"
	"github.com/leat-io/leat/services/gateway"
	"github.com/leat-io/leat/tests/internal/rig"
)

// disk is what a broker writes to: memory that outlives its lives, behind faults
// that belong to the present one.
type disk struct {
	memory *memfs.FS
	faults *errorfs.FS
	boot   int // counts the lives of its host
}

// disks are those of all brokers of a mesh in process.
type disks struct {
	t  *testing.T
	mu sync.Mutex
	of map[string]*disk
}

func newDisks(t *testing.T) *disks { return &disks{t: t, of: map[string]*disk{}} }

func (d *disks) disk(name string) *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of[name] == nil {
		d.of[name] = &disk{memory: memfs.New()}
	}
	return d.of[name]
}

// wipe is for a broker that does not run.
func (d *disks) wipe(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of[name] = &disk{memory: memfs.New()}
}

// faults are those of the broker's present life.
func (d *disks) faults(name string) *errorfs.FS { return d.disk(name).faults }

// powerOff makes the disk forget what is not durable, or, with a chooser, all but
// parts of it, and gives the host another life; the broker must be killed then.
func (d *disks) powerOff(name string, keep func() int) {
	k := d.disk(name)
	k.memory.Crash(keep)
	k.boot++
}

func (d *disks) readFolder(name, path string) (map[string][]byte, error) {
	memory := d.disk(name).memory
	entries, err := memory.ReadDir(path)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, ".log") {
			continue
		}
		f, err := memory.OpenRead(path + "/" + e.Name)
		if err != nil {
			return nil, err
		}
		size, err := f.Size()
		if err == nil {
			text := make([]byte, size)
			if _, err = f.ReadAt(text, 0); err == nil || errors.Is(err, io.EOF) {
				files[e.Name], err = text, nil
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// mount makes a folder that power cuts leave alone, as where a disk is mounted.
func mount(memory *memfs.FS, dir string) error {
	if err := memory.MkdirAll(dir); err != nil {
		return err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if err := memory.SyncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}

// life is a rig.Starter.
func (d *disks) life(s *rig.Spec) (rig.Life, error) {
	log, err := os.OpenFile(s.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	g := &goroutines{t: d.t, name: s.Name, done: make(chan struct{})}
	var svc service.Service
	var common *service.Common
	var deps service.Deps
	switch s.Kind {
	case rig.Broker:
		k := d.disk(s.Name)
		k.faults = errorfs.Wrap(k.memory)
		g.faults = k.faults
		if err := mount(k.memory, filepath.Dir(s.Dir)); err != nil {
			return nil, err
		}
		svc, common, deps, err = build(s, log, broker.DefaultConfig, broker.New, func(c *broker.Config) {
			c.FS, c.BootID = k.faults, fmt.Sprintf("%s, life %d", s.Name, k.boot)
		})
	case rig.Controller:
		svc, common, deps, err = build(s, log, controller.DefaultConfig, controller.New, nil)
	case rig.Coordinator:
		svc, common, deps, err = build(s, log, coordinator.DefaultConfig, coordinator.New, nil)
	case rig.Gateway:
		svc, common, deps, err = build(s, log, gateway.DefaultConfig, gateway.New, nil)
	default:
		err = fmt.Errorf("there is no service %s", s.Kind)
	}
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	go func() {
		g.err = errors.Join(run(ctx, svc, common.OpsListen, deps), log.Close())
		close(g.done)
	}()
	return g, nil
}

func build[C any, P service.Config[C], S service.Service](s *rig.Spec, log io.Writer, defaults func() C, make func(C, service.Deps) (S, error), edit func(*C)) (service.Service, *service.Common, service.Deps, error) {
	cfg := defaults()
	common := P(&cfg).Base()
	common.ShutdownTimeout = 5 * time.Second
	for key, value := range s.Settings {
		if err := config.Set(&cfg, key, value); err != nil {
			return nil, nil, service.Deps{}, err
		}
	}
	if edit != nil {
		edit(&cfg)
	}
	incarnation := service.NewIncarnation()
	deps := service.Deps{
		Logger:      obs.NewLogger(log, common.LogLevel, common.LogFormat, s.Kind, common.NodeID, incarnation),
		Registry:    obs.NewRegistry(s.Kind, "test"),
		Incarnation: incarnation,
	}
	svc, err := make(cfg, deps)
	return svc, common, deps, err
}

// run runs a service beside its operations HTTP.
func run(ctx context.Context, svc service.Service, opsListen string, deps service.Deps) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listener, err := net.Listen("tcp", opsListen)
	if err != nil {
		return err
	}
	ops := obs.NewOpsServer(listener, deps.Registry, func() bool {
		select {
		case <-svc.Ready():
			return ctx.Err() == nil
		default:
			return false
		}
	})
	var wait sync.WaitGroup
	var opsErr error
	wait.Go(func() { opsErr = ops.Run(ctx) })
	err = svc.Run(ctx)
	if err == nil && ctx.Err() == nil {
		err = errors.New("the service ended without being asked to")
	}
	cancel()
	wait.Wait()
	return errors.Join(err, opsErr)
}

// goroutines is a life in the test's own process.
type goroutines struct {
	t      *testing.T
	name   string
	cancel context.CancelFunc
	faults *errorfs.FS // nil for others than brokers
	killed atomic.Bool
	done   chan struct{}
	err    error // set before done is closed
}

// Kill lets nothing more reach the disk. The rig has silenced its connections
// before, so that it can tell nobody that it ends.
func (g *goroutines) Kill() {
	g.killed.Store(true)
	if g.faults != nil {
		g.faults.OnCall(func(op errorfs.Op, path string) error {
			if op == errorfs.OpClose {
				return nil
			}
			return fmt.Errorf("%s of %s after a kill: %w", op, path, syscall.EIO)
		})
	}
	g.cancel()
	select {
	case <-g.done:
	case <-time.After(time.Minute):
		panic(g.name + " does not end within a minute of its kill") // with all goroutines
	}
}

func (g *goroutines) Terminate(limit time.Duration) error {
	g.cancel()
	select {
	case <-g.done:
		return g.err
	case <-time.After(limit):
		return fmt.Errorf("it did not stop within %v", limit)
	}
}

func (g *goroutines) Pause() error {
	return errors.New("goroutines cannot be paused: this test is for processes")
}
func (g *goroutines) Resume() error         { return nil }
func (g *goroutines) Done() <-chan struct{} { return g.done }
