package store

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/topicid"
)

var (
	id   = topicid.ID{1, 2, 3}
	keys = registry.NewKeys("/leat")
)

func TestRecordsRoundTrip(t *testing.T) {
	records := []cluster.Record{
		cluster.Cluster{ID: "c", Generation: 3, DefaultConfigs: map[string]string{"a": "b"}},
		cluster.Broker{Process: cluster.Process{ID: 1, Incarnation: 2}, Address: "h:1", Rack: "r", Fenced: true, Draining: true},
		cluster.Topic{ID: id, Name: "n", Partitions: 4, Configs: map[string]string{"a": "b"}, Internal: true, Deleting: true},
		cluster.TopicName{Name: "n", Topic: id, LeaderEpochFloor: 7},
		cluster.TopicName{Name: "gone", LeaderEpochFloor: 7},
		cluster.Partition{
			Topic: id, Number: 3, Leader: cluster.Process{ID: 1, Incarnation: 2}, LeaderEpoch: 5, Replicas: []int32{1, 2}, ISR: []int32{1},
			ELR: []int32{2}, Barred: []int32{2}, MinISR: 2, PartitionEpoch: 9, ShardOwner: cluster.Process{ID: 8, Incarnation: 9}, ShardEpoch: 4,
		},
		cluster.Partition{Topic: id, Number: 0, Replicas: []int32{1}, ISR: []int32{1}},
		cluster.Partition{Topic: id, Number: 1, Replicas: []int32{1, 2, 3}, ISR: []int32{1}, TargetReplicas: []int32{2, 3}, FormerReplicas: []int32{1, 2}},
		cluster.Reassignment{PlanID: "p1", Paused: true, Cancelling: true, Partitions: []cluster.ReassignedPartition{{Topic: id, Number: 2, Target: []int32{3, 1}}}},
		cluster.Deletion{Topic: id, Name: "n", Pending: []int32{1, 2}},
		cluster.ProducerIDs{Next: 1 << 41},
	}
	for _, want := range records {
		name := keyName(keys, want.Key())
		key, ok := parseKey(keys, name)
		if !ok || key != want.Key() {
			t.Errorf("key %s: %+v, want %+v", name, key, want.Key())
		}
		value, err := encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(name, key, value)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
}

func TestBadValues(t *testing.T) {
	for _, key := range []cluster.Key{
		{Type: cluster.KeyCluster},
		{Type: cluster.KeyElection},
		{Type: cluster.KeyProducerIDs},
		{Type: cluster.KeyRegistration, Kind: cluster.KindBroker, ID: 1},
		{Type: cluster.KeyBroker, ID: 1},
		{Type: cluster.KeyTopic, Topic: id},
		{Type: cluster.KeyTopicName, Name: "n"},
		{Type: cluster.KeyPartition, Topic: id},
		{Type: cluster.KeyDeletion, Topic: id},
		{Type: cluster.KeyReassignment, Name: "p1"},
	} {
		name := keyName(keys, key)
		if back, ok := parseKey(keys, name); !ok || back != key {
			t.Errorf("%s is parsed as %+v", name, back)
		}
		// Every record has its format version in field 1.
		newer, err := proto.Marshal(&storagev1.ProducerIdRecord{FormatVersion: 2})
		if err != nil {
			t.Fatal(err)
		}
		var format *registry.FormatError
		if _, err := decode(name, key, newer); !errors.As(err, &format) || format.Key != name {
			t.Errorf("%s in format 2: %v", name, err)
		}
		if _, err := decode(name, key, []byte{0xff}); err == nil || errors.As(err, &format) {
			t.Errorf("%s, damaged: %v", name, err)
		}
	}
}

func writes(n int) []cluster.Write {
	list := make([]cluster.Write, n)
	for i := range list {
		list[i].Key = cluster.Key{Type: cluster.KeyPartition, Topic: id, ID: int32(i)}
	}
	return list
}

func TestStepsKeepTheOrderOfStages(t *testing.T) {
	for name, tc := range map[string]struct {
		stages []int
		want   [][]int
	}{
		"nothing":           {nil, nil},
		"together":          {[]int{10, 2, 5}, [][]int{{17}}},
		"to the brim":       {[]int{98, 2}, [][]int{{100}}},
		"one over":          {[]int{99, 2}, [][]int{{99}, {2}}},
		"a wide one":        {[]int{250, 2}, [][]int{{100, 100, 50}, {2}}},
		"a wide one within": {[]int{5, 150, 3, 4}, [][]int{{5}, {100, 50}, {7}}},
		"empty ones":        {[]int{0, 3, 0, 4}, [][]int{{7}}},
	} {
		var plan cluster.Plan
		for _, n := range tc.stages {
			plan.Stages = append(plan.Stages, writes(n))
		}
		var got [][]int
		for _, step := range steps(plan) {
			var sizes []int
			for _, txn := range step {
				sizes = append(sizes, len(txn))
			}
			got = append(got, sizes)
		}
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func newStore(t *testing.T) (*Store, *clientv3.Client) {
	t.Helper()
	client, err := registry.NewEtcd(etcdtest.Start(t), "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := New(client, keys, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("store: %v", err)
		}
		_ = client.Close()
	})
	if err := s.WaitRevision(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return s, client
}

func TestSubscriptionsRunTogetherAndStartOver(t *testing.T) {
	s, client := newStore(t)
	sub := s.Subscribe()
	defer sub.Close()
	<-sub.Signal()
	sub.Take(func(_ *cluster.State, _ int64, _ map[cluster.Key]struct{}, all bool) {
		if !all {
			t.Error("the first time is not everything")
		}
	})
	put := func(b cluster.Broker) {
		t.Helper()
		value, err := encode(b)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Put(t.Context(), keyName(keys, b.Key()), string(value))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.WaitRevision(t.Context(), resp.Header.Revision); err != nil {
			t.Fatal(err)
		}
	}
	// A receiver that does not take anything gets the three changes as one key.
	for i := range uint64(3) {
		put(cluster.Broker{Process: cluster.Process{ID: 1, Incarnation: i + 1}})
	}
	<-sub.Signal()
	sub.Take(func(state *cluster.State, _ int64, dirty map[cluster.Key]struct{}, all bool) {
		if all || len(dirty) != 1 || state.Broker(1).Value.Process.Incarnation != 3 {
			t.Errorf("all %v, dirty %v", all, dirty)
		}
	})
	// What is remembered for it has a limit, beyond which it starts over.
	s.mu.Lock()
	for i := range int32(maxDirty + 1) {
		sub.mark([]change{{key: cluster.Key{Type: cluster.KeyBroker, ID: i}}})
	}
	s.mu.Unlock()
	sub.mu.Lock()
	if !sub.all || len(sub.dirty) != 0 {
		t.Errorf("all %v with %d keys", sub.all, len(sub.dirty))
	}
	sub.mu.Unlock()
}

// Keys that a newer release put beside those known are left alone.
func TestUnknownKeysAreLeftAside(t *testing.T) {
	s, client := newStore(t)
	resp, err := client.Put(t.Context(), "/leat/of-the-future/x", "\xff")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitRevision(t.Context(), resp.Header.Revision); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.View(func(state *cluster.State, _ int64) {
		if n := len(state.Keys()); n != 0 {
			t.Errorf("%d records", n)
		}
	})
}

// etcd's progress moves the revision on while nothing of the mesh changes.
func TestProgressWithoutChanges(t *testing.T) {
	s, client := newStore(t)
	resp, err := client.Put(t.Context(), "/elsewhere", "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitRevision(t.Context(), resp.Header.Revision); err != nil {
		t.Fatal(err)
	}
}

// A watch that begins where etcd stands gets no progress from etcd before the
// next write: in a quiet mesh the store must not take that for silence.
func TestQuietEtcdIsNotSilent(t *testing.T) {
	s, _ := newStore(t)
	limit := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	last := s.lastConfirmed()
	for confirmations := 0; confirmations < 3; {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("etcd confirmed the revision %d times, and then fell silent for %v", confirmations, s.Silent())
		}
		if confirmed := s.lastConfirmed(); confirmed.After(last) {
			last = confirmed
			confirmations++
		}
	}
}

// What is remembered beside etcd's records is news, too, although no revision moves.
func TestVersionSeesWhatIsRemembered(t *testing.T) {
	s, _ := newStore(t)
	before, revision := s.Version(), s.Revision()
	s.Remember(func(state *cluster.State) {
		state.SetVouches(cluster.BrokerRegistration{Process: cluster.Process{ID: 1, Incarnation: 1}})
	})
	if s.Version() == before || s.Revision() != revision {
		t.Errorf("version %v after %v, revision %d after %d", s.Version(), before, s.Revision(), revision)
	}
	if at := s.Version(); at != s.Version() {
		t.Error("it changes by itself")
	}
}

func TestASubscriptionIsIdleOnceAllIsTaken(t *testing.T) {
	s := New(nil, keys, slog.New(slog.DiscardHandler))
	sub := s.Subscribe()
	defer sub.Close()
	take := func() { sub.Take(func(*cluster.State, int64, map[cluster.Key]struct{}, bool) {}) }
	idle := func() (revision int64, ok bool) {
		ok = sub.Idle(func(_ *cluster.State, r int64) { revision = r })
		return revision, ok
	}
	if _, ok := idle(); ok {
		t.Error("a new subscription is idle although nothing was taken")
	}
	take()
	s.mu.Lock()
	s.apply([]change{{key: cluster.Key{Type: cluster.KeyBroker, ID: 1}, record: cluster.Broker{Process: cluster.Process{ID: 1, Incarnation: 2}}, create: 7, mod: 7}}, 7)
	s.mu.Unlock()
	if _, ok := idle(); ok {
		t.Error("a subscription is idle with a change at revision 7 to be taken")
	}
	take()
	s.mu.Lock()
	s.apply(nil, 9) // progress, without a change
	s.mu.Unlock()
	if r, ok := idle(); !ok || r != 9 {
		t.Errorf("with everything taken it is idle: %v, at revision %d; want 9", ok, r)
	}
}
