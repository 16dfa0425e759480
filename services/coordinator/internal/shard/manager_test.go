package shard

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/coordinator/internal/logtest"
)

// runManager runs the manager of coordinator 1, incarnation 11, over one log.
func runManager(t *testing.T, meta *metadataOf, log *logtest.Log, ensure func(context.Context) error) (*Manager, func()) {
	t.Helper()
	m := NewManager(ManagerConfig{
		Config: testConfig(), ID: 1, Incarnation: 11, Metadata: meta, MaxLoads: 2,
		OpenLog:     func(topicid.ID) Log { return log },
		EnsureTopic: ensure,
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, func() {}) }()
	return m, func() {
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func picture(owners ...Owner) *Picture {
	return &Picture{Known: true, Topic: internalTopic, Shards: owners, Topics: topics(topicA)}
}

func TestManagerFollowsTheMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, other := Owner{ID: 1, Incarnation: 11, Addr: "me:1", Epoch: 4}, Owner{ID: 2, Incarnation: 22, Addr: "other:1", Epoch: 5}
		meta := &metadataOf{picture: &Picture{Topics: topics()}, changed: make(chan struct{})}
		var asked atomic.Int32
		m, stop := runManager(t, meta, &logtest.Log{}, func(context.Context) error {
			if asked.Add(1) == 1 {
				return errors.New("nobody leads")
			}
			meta.set(picture(mine))
			return nil
		})
		synctest.Wait()
		for n := range int32(2) { // the first attempt to have the topic created fails
			if _, err := m.For("g"); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE) {
				t.Fatalf("without the topic the answer is %v", err)
			}
			synctest.Wait()
			if asked.Load() != n+1 {
				t.Fatalf("the topic was asked for %d times, want %d", asked.Load(), n+1)
			}
		}
		s, err := m.For("g")
		if err != nil {
			t.Fatal(err)
		}
		served(t, s, commit(3))
		if s.Epoch() != 4 || len(m.Shards()) != 1 {
			t.Fatalf("the shard is of epoch %d, %d are served", s.Epoch(), len(m.Shards()))
		}
		// The shard moves away.
		meta.set(picture(other))
		synctest.Wait()
		_, err = m.For("g")
		if e := rpc.FromError(err); e.Reason != notCoordinator || e.Leader.GetAddress() != "other:1" || e.Leader.GetEpoch() != 5 {
			t.Fatalf("after the move the answer is %v with the hint %v", err, e.Leader)
		}
		if _, err := s.Do(t.Context(), fetch); !rpc.IsReason(err, notCoordinator) {
			t.Fatalf("the lost shard answers %v", err)
		}
		// And comes back under a higher epoch; another incarnation of this id is not it.
		meta.set(picture(Owner{ID: 1, Incarnation: 12, Addr: "me:1", Epoch: 6}))
		synctest.Wait()
		if _, err := m.For("g"); !rpc.IsReason(err, notCoordinator) {
			t.Fatalf("another incarnation's shard answers %v", err)
		}
		meta.set(picture(Owner{ID: 1, Incarnation: 11, Addr: "me:1", Epoch: 7}))
		synctest.Wait()
		if s, err = m.For("g"); err != nil {
			t.Fatal(err)
		}
		if got := nextOffset(served(t, s, fetch)); got != 3 {
			t.Fatalf("the offset is %d, want 3", got)
		}
		meta.set(picture(Owner{}))
		synctest.Wait()
		if _, err := m.For("g"); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE) {
			t.Fatalf("without an owner the answer is %v", err)
		}
		stop()
		if _, err := m.For("g"); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DRAINING) {
			t.Fatalf("a stopped manager answers %v", err)
		}
	})
}

func TestManagerBeforeItRuns(t *testing.T) {
	_, err := NewManager(ManagerConfig{Config: testConfig()}).For("g")
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STARTING) {
		t.Fatalf("before it runs the answer is %v", err)
	}
}

func TestManagerBringsNewTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := Owner{ID: 1, Incarnation: 11, Addr: "me:1", Epoch: 1}
		meta := &metadataOf{picture: picture(mine), changed: make(chan struct{})}
		m, stop := runManager(t, meta, &logtest.Log{}, nil)
		defer stop()
		synctest.Wait()
		s, err := m.For("g")
		if err != nil {
			t.Fatal(err)
		}
		served(t, s, fetch)
		peer := &fakePeer{}
		join(t, s, peer, "m")
		grown := topicA
		grown.Partitions = 5
		next := picture(mine)
		next.Topics = topics(grown)
		meta.set(next)
		<-time.After(time.Second)
		sent, _ := peer.told()
		last, ok := sent[len(sent)-1].(group.Assignment)
		if !ok || len(last.Partitions) != 5 {
			t.Fatalf("the member was told %+v, want all five partitions", sent)
		}
	})
}

func TestMetricsAreThoseOfTheDocumentation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := &metadataOf{picture: picture(Owner{ID: 1, Incarnation: 11, Addr: "me:1", Epoch: 1}), changed: make(chan struct{})}
		m, stop := runManager(t, meta, &logtest.Log{}, nil)
		defer stop()
		registry := prometheus.NewRegistry()
		if err := m.Register(registry); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s, err := m.For("g")
		if err != nil {
			t.Fatal(err)
		}
		served(t, s, commit(3))
		join(t, s, &fakePeer{}, "m")
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		documented, err := os.ReadFile("../../../../docs/metrics.md")
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]float64)
		for _, f := range families {
			if !strings.Contains(string(documented), "`"+f.GetName()+"`") {
				t.Errorf("%s is not in docs/metrics.md", f.GetName())
			}
			for _, sample := range f.GetMetric() {
				got[f.GetName()] += sample.GetCounter().GetValue() + sample.GetGauge().GetValue()
			}
		}
		for name, want := range map[string]float64{
			"leat_coordinator_shards": 1, "leat_coordinator_groups": 1, "leat_coordinator_members": 1,
			"leat_coordinator_commit_offsets_total": 1, "leat_coordinator_rebalances_total": 1,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
	})
}
