package store

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
)

// newWriter wins an election and writes for its term until the test ends.
func newWriter(t *testing.T, s *Store, client *clientv3.Client) *Writer {
	t.Helper()
	e := registry.NewElection(registry.ElectionConfig{
		Client: client, Keys: keys, Process: &typev1.Process{Id: 1, Incarnation: 1}, Address: "127.0.0.1:1",
		TTL: time.Minute, Prober: registry.NewProber(rpc.DialConfig{}), Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	terms, ended := make(chan *registry.Term, 1), make(chan error, 1)
	go func() {
		ended <- e.Run(ctx, func(ctx context.Context, term *registry.Term) {
			terms <- term
			<-ctx.Done()
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("election: %v", err)
		}
	})
	return NewWriter(s, <-terms)
}

func partitions(n int, epoch int64, expect func(int) int64) []cluster.Write {
	list := make([]cluster.Write, n)
	for i := range list {
		p := cluster.Partition{Topic: id, Number: int32(i), Replicas: []int32{1}, ISR: []int32{1}, MinISR: 1, PartitionEpoch: epoch}
		list[i] = cluster.Write{Key: p.Key(), Record: p, Expect: expect(i)}
	}
	return list
}

// What changed under a wide plan holds up nothing but itself; what has to be
// together stays together.
func TestConflictsAreTriedByHalves(t *testing.T) {
	s, client := newStore(t)
	w := newWriter(t, s, client)
	const n = 950
	if _, err := w.Write(t.Context(), cluster.Plan{Stages: [][]cluster.Write{partitions(n, 1, func(int) int64 { return 0 })}}); err != nil {
		t.Fatal(err)
	}
	at := func(i int) (revision int64) {
		s.View(func(state *cluster.State, _ int64) { revision = state.Partition(id, int32(i)).Mod })
		return revision
	}
	// Three of them change before the next plan is written.
	var changed []cluster.Write
	for _, i := range []int{0, 451, n - 1} {
		changed = append(changed, partitions(n, 2, at)[i])
	}
	stale := partitions(n, 3, at)
	if _, err := w.Write(t.Context(), cluster.Plan{Stages: [][]cluster.Write{changed}}); err != nil {
		t.Fatal(err)
	}
	after := cluster.Broker{Process: cluster.Process{ID: 1, Incarnation: 1}}
	plan := cluster.Plan{Stages: [][]cluster.Write{stale, {{Key: after.Key(), Record: after}}}}
	if _, err := w.Write(t.Context(), plan); !errors.Is(err, registry.ErrConflict) {
		t.Fatalf("a stale plan: %v", err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.View(func(state *cluster.State, _ int64) {
		for i := range n {
			want := int64(3)
			if i == 0 || i == 451 || i == n-1 {
				want = 2
			}
			if got := state.Partition(id, int32(i)).Value.PartitionEpoch; got != want {
				t.Errorf("partition %d: epoch %d, want %d", i, got, want)
			}
		}
		if state.Broker(1) != nil {
			t.Error("a later stage was written after a conflict")
		}
	})
	// A stage that fits one transaction is written whole or not at all.
	narrow := partitions(10, 4, at)
	narrow[7].Expect = 1
	if _, err := w.Write(t.Context(), cluster.Plan{Stages: [][]cluster.Write{narrow}}); !errors.Is(err, registry.ErrConflict) {
		t.Fatalf("a stale narrow plan: %v", err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.View(func(state *cluster.State, _ int64) {
		if got := state.Partition(id, 1).Value.PartitionEpoch; got != 3 {
			t.Errorf("a part of a transaction took place: epoch %d", got)
		}
	})
}
