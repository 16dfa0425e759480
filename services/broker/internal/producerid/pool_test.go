package producerid

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// source allocates blocks of ten ids, unless it is away.
type source struct {
	next  atomic.Int64
	calls atomic.Int64
	away  atomic.Bool
}

func (s *source) allocate(context.Context) (Block, error) {
	s.calls.Add(1)
	if s.away.Load() {
		return Block{}, errors.New("nobody answers")
	}
	return Block{First: s.next.Add(10) - 10, Count: 10}, nil
}

// run runs a pool within the bubble of a test.
func run(t *testing.T, allocate func(context.Context) (Block, error)) *Pool {
	t.Helper()
	p := New(Config{Allocate: allocate, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return p
}

func TestEveryIDIsHandedOutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s source
		p := run(t, s.allocate)
		var mu sync.Mutex
		seen := map[int64]bool{}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					id, err := p.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if seen[id] {
						t.Errorf("id %d was handed out twice", id)
					}
					seen[id] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(seen) != 400 {
			t.Errorf("%d ids, want 400", len(seen))
		}
	})
}

func TestProducersStartWhileNobodyAllocates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s source
		p := run(t, s.allocate)
		synctest.Wait()
		if held := p.Held(); held != 20 {
			t.Fatalf("%d ids held, want a block in use and a spare one", held)
		}
		reg := prometheus.NewRegistry()
		if err := p.Register(reg); err != nil {
			t.Fatal(err)
		}
		families, err := reg.Gather()
		if err != nil || len(families) != 1 || families[0].GetMetric()[0].GetGauge().GetValue() != 20 {
			t.Errorf("metrics %v, %v", families, err)
		}
		if doc, err := os.ReadFile("../../../../docs/metrics.md"); err != nil || !strings.Contains(string(doc), "| `"+families[0].GetName()+"` |") {
			t.Errorf("docs/metrics.md does not name %s: %v", families[0].GetName(), err)
		}
		s.away.Store(true)
		for range 20 {
			if _, err := p.Next(t.Context()); err != nil {
				t.Fatalf("with two blocks in store: %v", err)
			}
		}
		began := time.Now()
		_, rerr := p.Next(t.Context())
		if !rpc.IsReason(rerr, typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE) || rerr.Outcome != typev1.Outcome_OUTCOME_NOT_DONE || !rpc.Retryable(rerr) {
			t.Fatalf("without ids: %v", rerr)
		}
		if waited := time.Since(began); waited != maxWait {
			t.Errorf("waited %v, want %v", waited, maxWait)
		}
		calls := s.calls.Load()
		s.away.Store(false)
		if id, err := p.Next(t.Context()); err != nil || id != 20 {
			t.Errorf("once blocks come again: %d, %v", id, err)
		}
		if calls > 40 {
			t.Errorf("%d attempts within %v", calls, maxWait)
		}
	})
}

func TestABlockThatCannotBeNewIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocks := make(chan Block, 4)
		p := run(t, func(ctx context.Context) (Block, error) {
			select {
			case b := <-blocks:
				return b, nil
			case <-ctx.Done():
				return Block{}, ctx.Err()
			}
		})
		blocks <- Block{First: 100, Count: 1}
		blocks <- Block{First: 90, Count: 5} // etcd went back
		blocks <- Block{First: -1, Count: 5}
		blocks <- Block{First: 101, Count: 1}
		for _, want := range []int64{100, 101} {
			if id, err := p.Next(t.Context()); err != nil || id != want {
				t.Errorf("id %d, %v, want %d", id, err, want)
			}
		}
	})
}
