package broker

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

// pair is two brokers of one mesh, the first of which leads.
type pair struct {
	t        *testing.T
	ctl      *brokertest.Controller
	etcd     []string
	dirs     [2]string
	brokers  [2]*running
	settings func(*Config)
}

func startPair(t *testing.T, change func(*Config)) *pair {
	t.Helper()
	p := &pair{t: t, etcd: etcdtest.Start(t), ctl: brokertest.Start(t), dirs: [2]string{t.TempDir(), t.TempDir()}, settings: change}
	for i := range p.brokers {
		p.start(i)
	}
	return p
}

func (p *pair) start(i int) {
	p.t.Helper()
	cfg := testConfig(p.etcd, p.ctl, p.dirs[i])
	cfg.NodeID = int32(i + 1)
	cfg.ControlledShutdown = false // a test stops a broker to see it missing
	if p.settings != nil {
		p.settings(&cfg)
	}
	p.brokers[i] = run(p.t, cfg)
	p.brokers[i].awaitReady()
}

func (p *pair) process(i int) *typev1.Process { return p.brokers[i].broker.self }

// lead has the first broker lead a partition that both hold, in a new epoch.
func (p *pair) lead(id topicid.ID, isr ...int32) {
	p.ctl.SetPartition(id, 0, func(r *controllerv1.Partition) {
		r.Leader, r.LeaderEpoch, r.Isr, r.Barred, r.MinIsr = p.process(0), r.LeaderEpoch+1, isr, nil, 1
	})
}

// topic makes a topic that both hold and whose folders are there.
func (p *pair) topic(name string, isr ...int32) topicid.ID {
	p.t.Helper()
	id := p.ctl.NewID()
	p.ctl.Change(func(c *brokertest.Controller) { c.CreateUnled(id, name, 1, 1, 2) })
	brokertest.Await(p.t, "both have told of their folders", func() bool {
		return len(slices.DeleteFunc(p.ctl.Reports(), func(v *controllerv1.ReplicaVouch) bool { return topicid.ID(v.GetTopicId()) != id })) >= 2
	})
	p.lead(id, isr...)
	return id
}

// ends are the marks of a broker's replica.
func (p *pair) describe(i int, id topicid.ID) *brokerv1.ReplicaDescription {
	p.t.Helper()
	resp, err := p.brokers[i].conn.DescribeReplicas(p.t.Context(), &brokerv1.DescribeReplicasRequest{Replicas: []*brokerv1.ReplicaName{{TopicId: id.Bytes()}}})
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.GetReplicas()[0]
}

func (p *pair) digest(i int, id topicid.ID, from, to int64, timeout time.Duration) (*brokerv1.DigestResult, error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), timeout)
	defer cancel()
	resp, err := p.brokers[i].conn.DigestReplicas(ctx, &brokerv1.DigestReplicasRequest{Replicas: []*brokerv1.DigestReplica{{TopicId: id.Bytes(), FromOffset: from, ToOffset: to}}})
	if err != nil {
		return nil, err
	}
	return resp.GetResults()[0], nil
}

func (p *pair) mustProduce(id topicid.ID, values ...string) {
	p.t.Helper()
	for _, v := range values {
		p.brokers[0].awaitProduce(id, v)
	}
}

// fetch reads n records from a broker's replica, or the error that ends the asking.
func (p *pair) fetch(i int, id topicid.ID, n int, follower bool) ([]string, *rpc.Error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), brokertest.Patience)
	defer cancel()
	stream, err := p.brokers[i].conn.Fetch(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	defer stream.CloseSend()
	send := func(m *brokerv1.FetchRequest) {
		if err := stream.Send(m); err != nil {
			p.t.Fatal(err)
		}
	}
	send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Initial{Initial: &brokerv1.FetchInitial{Handshake: rpc.LocalHandshake(), CreditBytes: 1 << 20, AllowFollower: follower}}})
	send(&brokerv1.FetchRequest{Message: &brokerv1.FetchRequest_Update{Update: &brokerv1.FetchUpdate{Add: []*brokerv1.FetchPartition{{
		FetchId: 1, TopicId: id.Bytes(), CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, SeenVisibleEnd: -1,
	}}}}})
	var values []string
	for len(values) < n {
		var resp brokerv1.FetchResponse
		payload, err := rpc.Recv(stream, &resp)
		if err != nil {
			p.t.Fatal(err)
		}
		if e := resp.GetPartitionError(); e != nil {
			payload.Free()
			return values, rpc.FromProto(e.GetError())
		}
		data := bytes.Clone(payload.Bytes())
		payload.Free()
		for len(data) > 0 {
			batch, rest, err := record.NextBatch(data)
			if err != nil {
				p.t.Fatal(err)
			}
			records, err := record.Decode(batch, 1<<20)
			if err != nil {
				p.t.Fatal(err)
			}
			for _, r := range records {
				values = append(values, string(r.Value))
			}
			data = rest
		}
	}
	return values, nil
}

func (p *pair) awaitFollower(id topicid.ID, hw int64) {
	p.t.Helper()
	brokertest.Await(p.t, "the follower has it all", func() bool { return p.describe(1, id).GetHighWatermark() >= hw })
}

func TestAFollowerIsReadUpToItsHighWatermark(t *testing.T) {
	p := startPair(t, nil)
	id := p.topic("t", 1, 2)
	p.mustProduce(id, "a", "b", "c")
	p.awaitFollower(id, 3)
	if _, err := p.fetch(1, id, 1, false); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_NOT_LEADER) || err.Leader.GetId() != 1 {
		t.Errorf("a follower read without being allowed to: %v", err)
	}
	if got, err := p.fetch(1, id, 3, true); err != nil || !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("the follower has %v, %v", got, err)
	}
	list := func(allow bool, epoch int32) (int64, *rpc.Error) {
		t.Helper()
		resp, err := p.brokers[1].conn.ListOffsets(t.Context(), &brokerv1.ListOffsetsRequest{AllowFollower: allow, Partitions: []*brokerv1.ListOffsetsPartition{{
			TopicId: id.Bytes(), CurrentLeaderEpoch: epoch, Spec: &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Place_{Place: typev1.OffsetSpec_PLACE_LATEST}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetResults()[0].GetOffset(), rpc.FromProto(resp.GetResults()[0].GetError())
	}
	if offset, err := list(true, -1); err != nil || offset != 3 {
		t.Errorf("latest of the follower: %d, %v", offset, err)
	}
	if _, err := list(false, -1); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_NOT_LEADER) {
		t.Errorf("latest of a follower without being allowed to: %v", err)
	}
	if _, err := list(true, 99); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH) {
		t.Errorf("a client that has seen a newer epoch: %v", err)
	}
}

func TestDigestsOfReplicasAreEqual(t *testing.T) {
	p := startPair(t, nil)
	id := p.topic("t", 1, 2)
	p.mustProduce(id, "a", "b", "c")
	waiting := make(chan *brokerv1.DigestResult, 1)
	go func() {
		d, err := p.digest(1, id, 0, 5, brokertest.Patience)
		if err != nil {
			d = nil
		}
		waiting <- d
	}()
	p.mustProduce(id, "d", "e", "f")
	leader, err := p.digest(0, id, 0, 5, brokertest.Patience)
	if err != nil || leader.GetError() != nil || leader.GetRecords() != 5 || len(leader.GetDigest()) != 32 {
		t.Fatalf("the leader's digest: %v, %v", leader, err)
	}
	if follower := <-waiting; follower.GetError() != nil || !bytes.Equal(follower.GetDigest(), leader.GetDigest()) {
		t.Errorf("the follower's digest: %v, the leader's: %v", follower, leader)
	}
	part, err := p.digest(0, id, 1, 5, brokertest.Patience)
	if err != nil || part.GetRecords() != 4 || bytes.Equal(part.GetDigest(), leader.GetDigest()) {
		t.Errorf("a part: %v, %v", part, err)
	}
	empty, err := p.digest(0, id, 3, 3, brokertest.Patience)
	if err != nil || empty.GetError() != nil || empty.GetRecords() != 0 {
		t.Errorf("an empty range: %v, %v", empty, err)
	}
	late, err := p.digest(0, id, 0, 100, 300*time.Millisecond)
	if err == nil {
		err = rpc.FromProto(late.GetError())
	}
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED) {
		t.Errorf("beyond the high watermark: %v, %v", late, err)
	}
	if bad, err := p.digest(0, id, 4, 3, brokertest.Patience); err != nil || bad.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
		t.Errorf("no range: %v, %v", bad, err)
	}
}

func TestDeletedRecordsAreGoneFromEveryReplica(t *testing.T) {
	p := startPair(t, nil)
	id := p.topic("t", 1, 2)
	p.mustProduce(id, "a", "b", "c", "d")
	del := func(i int, before int64, epoch int32, timeout time.Duration) (*brokerv1.DeleteRecordsResult, *rpc.Error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		resp, err := p.brokers[i].conn.DeleteRecords(ctx, &brokerv1.DeleteRecordsRequest{Partitions: []*brokerv1.DeleteRecordsPartition{{TopicId: id.Bytes(), BeforeOffset: before, LeaderEpoch: epoch}}})
		if err != nil { // the broker answers before the deadline, if it and the answer are on time
			return &brokerv1.DeleteRecordsResult{LogStartOffset: -1}, rpc.FromError(err)
		}
		return resp.GetResults()[0], rpc.FromProto(resp.GetResults()[0].GetError())
	}
	for name, tc := range map[string]struct {
		broker int
		before int64
		epoch  int32
		reason typev1.ErrorReason
	}{
		"a follower":                  {1, 1, -1, typev1.ErrorReason_ERROR_REASON_NOT_LEADER},
		"above the high watermark":    {0, 5, -1, typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE},
		"no offset":                   {0, -2, -1, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		"an epoch that is too new":    {0, 1, 99, typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH},
		"an epoch that is not of now": {0, 1, 0, typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH},
	} {
		if got, err := del(tc.broker, tc.before, tc.epoch, brokertest.Patience); !rpc.IsReason(err, tc.reason) || got.GetLogStartOffset() != -1 || err.Outcome != typev1.Outcome_OUTCOME_NOT_DONE {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got, err := del(0, 2, -1, brokertest.Patience); err != nil || got.GetLogStartOffset() != 2 {
		t.Fatalf("deleted up to 2: %v", got)
	}
	for i := range p.brokers {
		if d := p.describe(i, id); d.GetLogStartOffset() != 2 {
			t.Errorf("broker %d begins at %d", i+1, d.GetLogStartOffset())
		}
	}
	if got, err := del(0, 1, -1, brokertest.Patience); err != nil || got.GetLogStartOffset() != 2 {
		t.Errorf("again, and less: %v", got)
	}
	if d, err := p.digest(0, id, 0, 4, brokertest.Patience); err != nil || d.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE {
		t.Errorf("the digest of what is gone: %v, %v", d, err)
	}
	// A follower that is away holds it up; whether it will be done is unknown.
	if err := p.brokers[1].stop(); err != nil {
		t.Fatal(err)
	}
	p.ctl.SetPartition(id, 0, func(r *controllerv1.Partition) { r.Leader, r.Isr = p.process(0), []int32{1, 2} })
	if got, err := del(0, 3, -1, 2*time.Second); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED) || err.Outcome != typev1.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("without the follower: %v", got)
	}
	p.start(1)
	p.lead(id, 1, 2)
	brokertest.Await(t, "the follower comes back and has caught up", func() bool { return p.describe(1, id).GetLogStartOffset() == 3 })
	if got, err := del(0, -1, -1, brokertest.Patience); err != nil || got.GetLogStartOffset() != 4 {
		t.Errorf("everything: %v", got)
	}
}

// flip changes one bit of the first batch in a replica's log.
func flip(t *testing.T, dir, replica string) {
	t.Helper()
	flipped := false
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".log" || !strings.Contains(path, replica) || strings.Contains(path, "quarantine") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || len(data) < 70 {
			return errors.Join(err, errors.New(path+" is empty"))
		}
		data[68] ^= 1
		flipped = true
		return os.WriteFile(path, data, 0o600)
	})
	if err != nil || !flipped {
		t.Fatalf("flip a bit of %s: %v, done %v", replica, err, flipped)
	}
}

// case 21
func TestARottenReplicaIsWithheldReportedAndFetchedAgain(t *testing.T) {
	p := startPair(t, nil)
	id := p.topic("t", 1, 2)
	p.mustProduce(id, "a", "b", "c")
	p.awaitFollower(id, 3)
	good, err := p.digest(0, id, 0, 3, brokertest.Patience)
	if err != nil || good.GetError() != nil {
		t.Fatalf("digest %v, %v", good, err)
	}
	if err := p.brokers[1].stop(); err != nil {
		t.Fatal(err)
	}
	flip(t, p.dirs[1], "t-0")
	// The controller bars what is reported, and only then.
	p.ctl.OnReport(func(c *brokertest.Controller, req *controllerv1.ReportReplicasRequest) error {
		for _, v := range req.GetVouches() {
			if v.GetVerdict() == controllerv1.ReplicaVerdict_REPLICA_VERDICT_CORRUPT {
				c.Record(id, 0, func(r *controllerv1.Partition) { r.Barred = []int32{req.GetBroker().GetId()} })
			}
		}
		return nil
	})
	p.start(1)
	p.lead(id, 1, 2)
	p.awaitFollower(id, 3)
	// Nobody gets the damaged record, whoever asks.
	values, rerr := p.fetch(1, id, 3, true)
	if !rpc.IsReason(rerr, typev1.ErrorReason_ERROR_REASON_CORRUPT_LOG) || len(values) > 0 {
		t.Fatalf("a reader got %v, %v", values, rerr)
	}
	brokertest.Await(t, "the replica is reported", func() bool {
		return slices.ContainsFunc(p.ctl.Reports(), func(v *controllerv1.ReplicaVouch) bool {
			return v.GetVerdict() == controllerv1.ReplicaVerdict_REPLICA_VERDICT_CORRUPT && topicid.ID(v.GetTopicId()) == id
		})
	})
	brokertest.Await(t, "it is barred", func() bool {
		d := p.describe(1, id)
		return d.GetError().GetReason() == typev1.ErrorReason_ERROR_REASON_REPLICA_WITHHELD && d.GetLogEndOffset() == 3
	})
	// The leader takes it out of the in-sync set, which ends the bar. What it proposes
	// once the copy has been fetched waits, so that this can be looked at before.
	release := p.ctl.HoldProposals()
	p.ctl.SetPartition(id, 0, func(r *controllerv1.Partition) { r.Isr, r.Barred = []int32{1}, nil })
	brokertest.Await(t, "it has been fetched again", func() bool {
		d, err := p.digest(1, id, 0, 3, time.Second)
		return err == nil && bytes.Equal(d.GetDigest(), good.GetDigest())
	})
	kept := func() int {
		found, err := filepath.Glob(filepath.Join(p.dirs[1], "*", "quarantine", "replaced-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	if kept() != 1 {
		t.Error("the bad copy is not kept until the new one is in sync")
	}
	brokertest.Await(t, "the leader proposes to take it back", func() bool { return p.ctl.RefusedProposals() > 0 })
	if kept() != 1 {
		t.Error("a proposal alone has the bad copy deleted")
	}
	release()
	brokertest.Await(t, "the bad copy goes", func() bool { return kept() == 0 })
	if got, err := p.fetch(1, id, 3, true); err != nil || !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("the new copy has %v, %v", got, err)
	}
	if err := p.brokers[1].stop(); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	for _, v := range p.ctl.Vouches() {
		if v.GetVerdict() != controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT || v.GetEndOffset() != 3 {
			t.Errorf("vouch %v", v)
		}
	}
}
