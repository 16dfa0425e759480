package broker

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

// A broker comes back with empty disks while the metadata still shows its former life
// in sync and leading: it must not count for what it had.
func TestAWipedBrokerIsNotInSync(t *testing.T) {
	for name, wipe := range map[string][]string{"both disks": {"a", "b"}, "the disk of the replica": {"a"}} {
		t.Run(name, func(t *testing.T) {
			p := startPair(t, nil)
			id := p.topic("t", 1, 2)
			p.mustProduce(id, "a", "b", "c")
			p.awaitFollower(id, 3)
			before := p.ctl.Reports()[0].GetDiskId()
			if err := p.brokers[0].stop(); err != nil {
				t.Fatal(err)
			}
			for _, dir := range wipe {
				if err := os.RemoveAll(filepath.Join(p.dirs[0], dir)); err != nil {
					t.Fatal(err)
				}
			}
			p.start(0)
			vouches := p.ctl.Vouches()
			if len(vouches) != 1 || vouches[0].GetVerdict() != controllerv1.ReplicaVerdict_REPLICA_VERDICT_MISSING || vouches[0].GetDiskId() == before {
				t.Fatalf("vouches %v, the disk was %s", vouches, before)
			}
			if _, err := p.brokers[0].produce(id, "x"); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_REPLICA_WITHHELD, typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, typev1.ErrorReason_ERROR_REASON_NOT_LEADER) {
				t.Errorf("produce at the wiped broker: %v", err)
			}
			// The other one leads; the wiped one is filled, also while it is barred.
			p.ctl.SetPartition(id, 0, func(r *controllerv1.Partition) {
				r.Leader, r.LeaderEpoch, r.Isr, r.Barred = p.process(1), r.LeaderEpoch+1, []int32{2}, nil
			})
			good, err := p.digest(1, id, 0, 3, brokertest.Patience)
			if err != nil || good.GetError() != nil {
				t.Fatalf("digest %v, %v", good, err)
			}
			brokertest.Await(t, "the wiped broker has it all again", func() bool {
				d, err := p.digest(0, id, 0, 3, time.Second)
				return err == nil && bytes.Equal(d.GetDigest(), good.GetDigest())
			})
		})
	}
}

func TestABrokerComesBackUnderANewAddress(t *testing.T) {
	p := startPair(t, nil)
	id := p.topic("t", 1, 2)
	p.mustProduce(id, "a")
	p.awaitFollower(id, 1)
	before := p.brokers[0].broker.Addr()
	if err := p.brokers[0].stop(); err != nil {
		t.Fatal(err)
	}
	p.start(0)
	if after := p.brokers[0].broker.Addr(); after == before {
		t.Fatalf("the address is %s again", after)
	}
	p.lead(id, 1, 2)
	p.mustProduce(id, "b")
	p.awaitFollower(id, 2) // the follower has found the new address
	_, err := p.brokers[1].produce(id, "x")
	if e := rpc.FromError(err); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_NOT_LEADER) || e.Leader.GetAddress() != p.brokers[0].broker.Addr() {
		t.Errorf("the follower sends clients to %v", err)
	}
}

// case 45, where the disk neither works nor fails.
func TestAHungDiskGivesTheLeaseUp(t *testing.T) {
	etcd, ctl := etcdtest.Start(t), brokertest.Start(t)
	gate := brokertest.NewSyncGate(vfs.OS())
	cfg := testConfig(etcd, ctl, t.TempDir())
	cfg.FS, cfg.DiskWatchdog, cfg.LeaseTTL = gate, time.Second, time.Second // a slow disk does not hang
	r := run(t, cfg)
	r.awaitReady()
	id := ctl.CreateTopic("t", 1, 1, nil)
	r.awaitProduce(id, "a")

	client, err := clientv3.New(clientv3.Config{Endpoints: etcd})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	key := registry.NewKeys(cfg.EtcdPrefix).Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, 1)
	registered := func() bool {
		resp, err := client.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.Kvs) == 1
	}
	brokertest.Await(t, "the broker is registered", registered)
	began := gate.Hold(".log")
	stuck, cancel := context.WithCancel(t.Context())
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		for stuck.Err() == nil {
			_, _ = r.produce(id, "b") // hangs with the disk
		}
	}()
	<-began
	brokertest.Await(t, "the broker is not registered any more", func() bool { return !registered() })
	health, err := brokerv1.NewHealthStreamServiceClient(r.raw).WatchHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*brokerv1.WatchHealthRequest{
		{Message: &brokerv1.WatchHealthRequest_Initial{Initial: &brokerv1.HealthInitial{Handshake: rpc.LocalHandshake()}}},
		{Message: &brokerv1.WatchHealthRequest_Probe{Probe: &brokerv1.HealthProbe{ProbeId: 1}}},
	} {
		if err := health.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := health.Recv(); err != nil {
		t.Fatal(err)
	}
	if a, err := health.Recv(); err != nil || a.GetAnswer().GetDisksOk() {
		t.Errorf("a probe is answered with %v, %v", a, err)
	}
	cancel()
	gate.Release()
	<-produced
	brokertest.Await(t, "the broker registers again once the disk works", registered)
}

// What a broker is told before the metadata has come to its own registration may be of a
// time before its last life: it opens, makes and vouches for nothing by that.
func TestABrokerWaitsForItsOwnRegistration(t *testing.T) {
	etcd, ctl := etcdtest.Start(t), brokertest.Start(t)
	ctl.Change(func(c *brokertest.Controller) { c.Regress(1, 1, 0) }) // a controller that is far behind
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 50 {
		if _, err := client.Put(t.Context(), "/somebody/else", "x"); err != nil {
			t.Fatal(err)
		}
	}
	cfg := testConfig(etcd, ctl, t.TempDir())
	r := run(t, cfg)
	id := ctl.CreateTopic("t", 1, 1, nil)
	key := registry.NewKeys(cfg.EtcdPrefix).Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, 1)
	brokertest.Await(t, "the broker is registered and knows the topic", func() bool {
		resp, err := client.Get(t.Context(), key)
		return err == nil && len(resp.Kvs) == 1 && r.broker.watcher.Image().TopicByID(id) != nil
	})
	began := time.Now()
	brokertest.Await(t, "it has had time to do something", func() bool { return time.Since(began) > 300*time.Millisecond })
	if r.broker.replicas.Load() != nil || len(ctl.Vouches()) > 0 {
		t.Errorf("with metadata from before its registration the broker opens its replicas, and has sent %d vouches", len(ctl.Vouches()))
	}
	ctl.ReachRevision(1000)
	r.awaitReady()
}
