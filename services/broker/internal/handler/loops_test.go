package handler

import (
	"errors"
	"log/slog"
	"sync"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// loops are goroutines of a test that are waited for, with their errors.
type loops struct {
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

func newLoops() *loops { return &loops{} }

func (l *loops) Go(run func() error) {
	l.wg.Go(func() {
		err := run()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.errs = append(l.errs, err)
	})
}

func (l *loops) Wait() error {
	l.wg.Wait()
	return errors.Join(l.errs...)
}
