package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// diary notes what happened in which order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) check(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.lines, want) {
		t.Errorf("got  %v\nwant %v", d.lines, want)
	}
}

// part gives one that is ready after warm and takes cool to stop.
func (d *diary) part(name string, warm, cool time.Duration, result error) RunFunc {
	return func(ctx context.Context, ready func()) error {
		d.note("%s starts", name)
		if wait(ctx, warm) {
			d.note("%s is ready", name)
			ready()
			ready()
		}
		<-ctx.Done()
		d.note("%s stops", name)
		wait(context.Background(), cool)
		d.note("%s has stopped", name)
		return result
	}
}

// wait lets the bubble's time pass; false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func isReady(g *Group) bool {
	select {
	case <-g.Ready():
		return true
	default:
		return false
	}
}

func TestOrderOfStartAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := New(nil)
		g.Add("log", d.part("log", time.Second, 3*time.Second, nil))
		g.Add("server", d.part("server", time.Second, time.Second, context.Canceled))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()

		wait(t.Context(), 1500*time.Millisecond)
		synctest.Wait()
		d.check(t, "log starts", "log is ready", "server starts")
		if isReady(g) {
			t.Error("ready before its last part")
		}
		<-g.Ready()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("a clean stop gives %v", err)
		}
		d.check(t, "log starts", "log is ready", "server starts", "server is ready",
			"server stops", "server has stopped", "log stops", "log has stopped")
	})
}

func TestStopWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := New(nil)
		g.Add("a", d.part("a", time.Second, 0, nil))
		g.Add("b", d.part("b", time.Hour, 0, nil))
		g.Add("c", d.part("c", 0, 0, nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := g.Run(ctx); err != nil {
			t.Errorf("a clean stop gives %v", err)
		}
		d.check(t, "a starts", "a is ready", "b starts", "b stops", "b has stopped", "a stops", "a has stopped")
		if isReady(g) {
			t.Error("ready although never all were")
		}
	})
}

var errBoom = errors.New("boom")

// A part that fails ends the others in order, and its error is what Run returns,
// with what went wrong on the way down.
func TestFailureEndsTheGroup(t *testing.T) {
	bad := errors.New("cannot flush")
	failures := map[string]struct {
		run  RunFunc
		want error
	}{
		"while running": {func(ctx context.Context, ready func()) error {
			ready()
			wait(ctx, time.Minute)
			return errBoom
		}, errBoom},
		"while starting": {func(context.Context, func()) error { return errBoom }, errBoom},
		"ends by itself": {func(_ context.Context, ready func()) error { ready(); return nil }, ErrEnded},
		"canceled by itself": {func(_ context.Context, ready func()) error {
			ready()
			return context.Canceled
		}, context.Canceled},
	}
	for name, tt := range failures {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				g := New(nil)
				g.Add("first", d.part("first", 0, time.Second, bad))
				g.Add("second", tt.run)
				err := g.Run(t.Context())
				if !errors.Is(err, tt.want) || !errors.Is(err, bad) {
					t.Errorf("got %v", err)
				}
				if !strings.Contains(err.Error(), "second: ") {
					t.Errorf("%v does not name the part", err)
				}
				d.check(t, "first starts", "first is ready", "first stops", "first has stopped")
			})
		})
	}
}

func TestPanicIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(nil)
		g.Add("wild", func(context.Context, func()) error { panic("ouch") })
		err := g.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "wild: panic: ouch") || !strings.Contains(err.Error(), "group_test.go") {
			t.Errorf("got %v", err)
		}
	})
}

// A part that ends together with the context has not failed.
func TestEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := New(nil)
		g.Add("a", func(_ context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			return nil
		})
		go func() {
			<-g.Ready()
			cancel()
		}()
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestEmptyGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		g := New(nil)
		if err := g.Run(ctx); err != nil || !isReady(g) {
			t.Errorf("got %v, ready %v", err, isReady(g))
		}
	})
}
