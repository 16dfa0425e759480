package replication

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// requireReason demands that a command failed with one of some reasons, by name.
func requireReason(t *testing.T, res mesh.Result, reasons ...string) {
	t.Helper()
	if res.Code == 0 {
		t.Errorf("it succeeded: %s", res)
		return
	}
	for _, reason := range reasons {
		if strings.Contains(res.Stderr+res.Stdout, reason) {
			return
		}
	}
	t.Errorf("want one of %v: %s", reasons, res)
}

// TestReplicationLimits: what cannot be kept is refused by a named reason.
func TestReplicationLimits(t *testing.T) {
	r := processes(t).start(rig.Options{})
	requireReason(t, r.Leat("topic", "create", "a", "--replication-factor", "4"), "INVALID_REPLICATION_FACTOR")
	requireReason(t, r.Leat("topic", "create", "a", "--replication-factor", "0"), "INVALID_REPLICATION_FACTOR")
	requireReason(t, r.Leat("topic", "create", "a", "--replication-factor", "-2"), "INVALID_REPLICATION_FACTOR")
	// case 31
	requireReason(t, r.Leat("topic", "create", "a", "--replication-factor", "2", "--config", "min.insync.replicas=3"), "INVALID_CONFIG")
	requireReason(t, r.Leat("topic", "create", "a", "--replication-factor", "3", "--config", "min.insync.replicas=0"), "INVALID_CONFIG")
	topic(t, r, "b", 1)
	requireReason(t, r.Leat("topic", "alter", "b", "--config", "min.insync.replicas=4"), "INVALID_CONFIG")
	if res := r.Leat("topic", "describe", "a"); res.Code == 0 {
		t.Errorf("a refused topic is there: %s", res)
	}
	requireReason(t, r.Leat("cluster", "elect-leaders", "--topic", "b", "--partition", "7"), "UNKNOWN_PARTITION")
	requireReason(t, r.Leat("cluster", "elect-leaders", "--topic", "nobody"), "UNKNOWN_TOPIC")
	requireReason(t, r.Leat("topic", "delete-records", "b", "--before", "1000000"), "OFFSET_OUT_OF_RANGE")
}

// TestDefaultsOfThreeBrokers: a topic gets three replicas of which two must be in
// sync, and __consumer_offsets is raised to three.
func TestDefaultsOfThreeBrokers(t *testing.T) {
	r := processes(t).start(rig.Options{})
	r.MustLeat("topic", "create", "d", "--partitions", "2")
	mesh.Eventually(t, time.Minute, "three replicas of each partition are in sync, and tell of themselves", func() (bool, string) {
		all, err := r.Partitions("d")
		for _, p := range all {
			if len(p.Replicas) != 3 {
				t.Fatalf("not three replicas: %+v", p)
			}
			if len(p.ISR) != 3 || len(p.ELR) != 0 || len(p.ReplicaEnds) != 3 {
				return false, fmt.Sprintf("%+v", p)
			}
		}
		return err == nil && len(all) == 2, fmt.Sprint(all, err)
	})
	if text := r.MustLeat("topic", "describe", "d", "-o", "json"); !strings.Contains(text, `"name":"min.insync.replicas","value":"2"`) {
		t.Errorf("min.insync.replicas is not 2: %s", text)
	}
	r.MustLeat("consume", "d", "--group", "g", "--from-beginning", "--follow=false")
	mesh.Eventually(t, time.Minute, "__consumer_offsets has three replicas", func() (bool, string) {
		all, err := r.Partitions("__consumer_offsets")
		if err != nil || len(all) == 0 {
			return false, fmt.Sprint(err)
		}
		for _, p := range all {
			if len(p.Replicas) != 3 || len(p.ISR) != 3 {
				return false, fmt.Sprintf("%+v", p)
			}
		}
		return true, ""
	})
}

// TestTooFewInSync: with an ISR below min, acks=all is refused before anything is
// appended, retryably; acks=1 is stored and not visible; with the ISR whole again
// all goes on.
func TestTooFewInSync(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "few", 1)
	r.MustLeat("produce", "few", "--partition", "0")
	leader := r.Leader("few", 0)
	r.Kill(r.Followers("few", 0)...)
	r.WaitISR("few", 0, time.Minute, leader)
	before := toldBy(t, r, "few", leader)
	res := r.LeatInput("x\n", "produce", "few", "--acks", "all", "--delivery-timeout", "10s")
	requireReason(t, res, "NOT_ENOUGH_REPLICAS")
	after := toldBy(t, r, "few", leader)
	if before.HighWatermark != after.HighWatermark || end(after, leader) != end(before, leader) {
		t.Errorf("something was appended: %+v, before %+v", after, before)
	}
	if res := r.LeatInput("one\n", "produce", "few", "--acks", "1", "--delivery-timeout", "10s"); res.Code != 0 {
		t.Errorf("acks=1: %s", res)
	}
	if out := r.MustLeat("consume", "few", "--from-beginning", "--follow=false"); strings.Contains(out, "one") {
		t.Errorf("a record is visible that only one replica has: %s", out)
	}
	r.Up(r.Others(leader, rig.Broker)...)
	r.WaitInSync("few", time.Minute)
	if res := r.LeatInput("all\n", "produce", "few"); res.Code != 0 {
		t.Error(res)
	}
	if out := r.MustLeat("consume", "few", "--from-beginning", "--follow=false"); !strings.Contains(out, "one") || !strings.Contains(out, "all") {
		t.Errorf("read %q", out)
	}
}

// toldBy describes the first partition of a topic, once a broker tells where it ends there.
func toldBy(t *testing.T, r *rig.Rig, topic, broker string) (p rig.Partition) {
	t.Helper()
	mesh.Eventually(t, time.Minute, broker+" tells of its replica of "+topic, func() (bool, string) {
		all, err := r.Partitions(topic)
		if err != nil || len(all) == 0 {
			return false, fmt.Sprint(err)
		}
		p = all[0]
		return end(p, broker) >= 0, fmt.Sprintf("%+v", p)
	})
	return p
}

func end(p rig.Partition, broker string) int64 {
	for _, e := range p.ReplicaEnds {
		if fmt.Sprintf("broker-%d", e.Broker) == broker {
			return e.End
		}
	}
	return -1
}

// TestStaleEpochs: what carries an older epoch or incarnation changes nothing and
// is told so (case 34 in its simplest form, and 30).
func TestStaleEpochs(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "stale", 1)
	first := r.Leader("stale", 0)
	r.Kill(first)
	r.LeaderOtherThan("stale", 0, first)
	r.Up(first)
	r.WaitInSync("stale", time.Minute)
	leader := r.Leader("stale", 0)
	first = r.Others(leader, rig.Broker)[0]
	all, err := r.Partitions("stale")
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, r)
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	meta, err := c.Metadata().Topic(ctx, "stale")
	if err != nil {
		t.Fatal(err)
	}
	id := meta.ID
	epoch := int32(all[0].LeaderEpoch)

	offsets := func(broker string, epoch int32) error {
		conn, err := rpc.Dial(r.Addr(broker), rpc.DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		answer, err := brokerv1.NewLogServiceClient(conn).ListOffsets(ctx, &brokerv1.ListOffsetsRequest{Partitions: []*brokerv1.ListOffsetsPartition{{
			TopicId: id[:], Partition: 0, Spec: client.Latest(), CurrentLeaderEpoch: epoch,
		}}})
		if err != nil {
			return err
		}
		if e := answer.GetResults()[0].GetError(); e != nil {
			return rpc.FromProto(e)
		}
		return nil
	}
	wantReason(t, "a client of a later epoch", offsets(leader, epoch+5), typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH, typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND)
	mesh.Eventually(t, time.Minute, first+" has heard of the leader's epoch", func() (bool, string) {
		err := offsets(first, epoch)
		return !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH, typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND), fmt.Sprint(err)
	})
	wantReason(t, "a broker that does not lead", offsets(first, epoch), typev1.ErrorReason_ERROR_REASON_NOT_LEADER)

	conn, err := rpc.Dial(r.Addr(r.ControllerLeader()), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	controller := controllerv1.NewControllerServiceClient(conn)
	desc, err := r.Cluster()
	if err != nil {
		t.Fatal(err)
	}
	process := func(name string) *typev1.Process {
		for _, s := range desc.Services {
			if s.Name == name {
				var p typev1.Process
				fmt.Sscanf(name, "broker-%d", &p.Id)
				fmt.Sscanf(s.Incarnation, "%x", &p.Incarnation)
				return &p
			}
		}
		t.Fatalf("no %s", name)
		return nil
	}
	propose := func(edit func(*controllerv1.ProposeIsrRequest)) error {
		q := &controllerv1.ProposeIsrRequest{Leader: process(leader), TopicId: id[:], LeaderEpoch: epoch, PartitionEpoch: 1 << 40, Isr: []*typev1.Process{process(leader)}}
		edit(q)
		_, err := controller.ProposeIsr(ctx, q)
		return err
	}
	wantReason(t, "a proposal of an older leader epoch", propose(func(q *controllerv1.ProposeIsrRequest) { q.LeaderEpoch-- }), typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH)
	wantReason(t, "a proposal on an older record", propose(func(q *controllerv1.ProposeIsrRequest) { q.PartitionEpoch = 0 }), typev1.ErrorReason_ERROR_REASON_STALE_PARTITION_EPOCH)
	wantReason(t, "a proposal of a former life", propose(func(q *controllerv1.ProposeIsrRequest) { q.Leader.Incarnation++ }), typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, typev1.ErrorReason_ERROR_REASON_NOT_LEADER)
	wantReason(t, "a proposal of another broker", propose(func(q *controllerv1.ProposeIsrRequest) { q.Leader = process(first) }), typev1.ErrorReason_ERROR_REASON_NOT_LEADER, typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH, typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION)
	if now, err := r.Partitions("stale"); err != nil || len(now[0].ISR) != 3 || now[0].LeaderEpoch != all[0].LeaderEpoch {
		t.Errorf("something changed: %+v, %v", now, err)
	}

	if _, err := c.ProduceBatch(ctx, client.TopicPartition{TopicID: id, Partition: 0}, []byte("no batch"), typev1.Acks_ACKS_ALL, nil); err == nil {
		t.Error("bytes that are no batch were appended")
	}
}

func wantReason(t *testing.T, what string, err error, reasons ...typev1.ErrorReason) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	if !rpc.IsReason(err, reasons...) {
		t.Errorf("%s: %v, want one of %v", what, err, reasons)
	}
}
