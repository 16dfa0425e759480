package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/leat-io/leat/libs/obs"
)

// killGrace is what a service may take beyond shutdown.timeout before its
// process gives up on it.
const killGrace = 5 * time.Second

// serve runs the service until a signal or a failure.
func (p *process) serve(svc Service, common *Common, deps Deps) (err error) {
	defer func() { err = errors.Join(err, closeQuietly(common.Listener)) }()
	addr := common.Listener.Addr().String()
	logStart(deps.Logger, common, addr)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	failed := make(chan error, 2)
	running := 1
	if common.OpsListen != "" {
		lis, err := listen(common.OpsListen, "ops.listen")
		if err != nil {
			return err
		}
		ops := obs.NewOpsServer(lis, deps.Registry, func() bool { return isClosed(svc.Ready()) && ctx.Err() == nil })
		deps.Logger.Info("operations HTTP listens", "address", ops.Addr())
		running++
		go func() { failed <- ops.Run(ctx) }()
	}
	if common.AddrFile != "" {
		if err := writeAddrFile(common.AddrFile, addr); err != nil {
			return err
		}
		defer func() {
			if rerr := os.Remove(common.AddrFile); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
				deps.Logger.Warn("addr.file stays behind", "error", rerr)
			}
		}()
	}
	go func() { failed <- svc.Run(ctx) }()
	ready := svc.Ready()
	for {
		select {
		case <-ready:
			ready = nil
			deps.Logger.Info("ready", "address", addr)
		case err := <-failed:
			running--
			if err == nil {
				err = errors.New("the service ended without being asked to")
			}
			cancel()
			return errors.Join(err, p.awaitStop(failed, running, common, deps))
		case sig := <-p.signals:
			deps.Logger.Info("stopping", "signal", sig.String(), "timeout", common.ShutdownTimeout)
			cancel()
			return p.awaitStop(failed, running, common, deps)
		}
	}
}

// awaitStop waits for what still runs. A second signal exits at once.
func (p *process) awaitStop(failed <-chan error, running int, common *Common, deps Deps) error {
	limit := time.NewTimer(common.ShutdownTimeout + p.killGrace)
	defer limit.Stop()
	var errs []error
	for running > 0 {
		select {
		case err := <-failed:
			running--
			if !errors.Is(err, context.Canceled) {
				errs = append(errs, err)
			}
		case <-p.signals:
			deps.Logger.Warn("stopping at once, at the second signal")
			p.exit(ExitInterrupted)
			return errors.New("interrupted")
		case <-limit.C:
			return errors.Join(append(errs, fmt.Errorf("did not stop within %v after shutdown.timeout (%v)", p.killGrace, common.ShutdownTimeout))...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	deps.Logger.Info("stopped")
	return nil
}
