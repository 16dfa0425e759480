package broker

import (
	"slices"
	"testing"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

func TestLeadershipsMoveBeforeAStop(t *testing.T) {
	p := startPair(t, func(c *Config) { c.ControlledShutdown = true })
	id := p.topic("t", 1, 2)
	p.mustProduce(id, "a", "b")
	p.awaitFollower(id, 2)
	vouches := len(p.ctl.Vouches())
	asked := 0
	told := make(chan struct{})
	p.ctl.OnLeave(func(c *brokertest.Controller, req *controllerv1.RequestLeaveRequest) *controllerv1.RequestLeaveResponse {
		// The controller is asked again until nothing holds it up: here, until the producer
		// has come by, since nobody waits long for one that stands still.
		if asked++; asked == 2 {
			c.Fence(req.GetProcess().GetId())
			c.Record(id, 0, func(r *controllerv1.Partition) {
				r.Leader, r.LeaderEpoch, r.Isr = p.process(1), r.LeaderEpoch+1, []int32{2}
			})
		}
		select {
		case <-told:
			return &controllerv1.RequestLeaveResponse{Granted: true}
		default:
			return &controllerv1.RequestLeaveResponse{Blockers: []*controllerv1.LeaveBlocker{{Topic: "t", Error: rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, "not yet"))}}}
		}
	})
	// A producer that goes on throughout is told where to go.
	acked, hint := make(chan int, 1), make(chan *rpc.Error, 1)
	go func() {
		for n := 0; ; n++ {
			if _, err := p.brokers[0].produce(id, "x"); err != nil {
				acked <- n
				hint <- rpc.FromError(err)
				close(told)
				return
			}
		}
	}()
	if err := p.brokers[0].stop(); err != nil {
		t.Fatal(err)
	}
	n, err := <-acked, <-hint
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_NOT_LEADER) || err.Leader.GetId() != 2 || err.Leader.GetAddress() != p.brokers[1].broker.Addr() || err.Leader.GetEpoch() != 2 {
		t.Errorf("after %d records the producer was told %v, hint %v", n, err, err.Leader)
	}
	values, rerr := p.fetch(1, id, 2+n, false)
	if rerr != nil || len(values) < 2+n || !slices.Equal(values[:2], []string{"a", "b"}) {
		t.Errorf("of %d acknowledged records the new leader has %d: %v", 2+n, len(values), rerr)
	}
	leaves := p.ctl.Leaves()
	if len(leaves) < 2 || leaves[0].GetDecommission() || leaves[0].GetProcess().GetIncarnation() != p.process(0).GetIncarnation() || leaves[0].GetDeadline().AsDuration() <= 0 {
		t.Errorf("asked %v", leaves)
	}
	if after := len(p.ctl.Vouches()); after != vouches {
		t.Error("it registered again after it had leave")
	}
}

func TestAStopWithoutLeave(t *testing.T) {
	t.Run("blocked", func(t *testing.T) {
		p := startPair(t, func(c *Config) { c.ControlledShutdown, c.ShutdownTimeout = true, 9*time.Second })
		id := p.topic("t", 1, 2)
		p.mustProduce(id, "a")
		p.ctl.OnLeave(func(*brokertest.Controller, *controllerv1.RequestLeaveRequest) *controllerv1.RequestLeaveResponse {
			return &controllerv1.RequestLeaveResponse{Blockers: []*controllerv1.LeaveBlocker{{Topic: "t"}}}
		})
		if err := p.brokers[0].stop(); err != nil {
			t.Error(err)
		}
		if len(p.ctl.Leaves()) < 2 {
			t.Error("it did not ask again")
		}
	})
	t.Run("alone", func(t *testing.T) {
		ctl := brokertest.Start(t)
		r := run(t, testConfig(etcdtest.Start(t), ctl, t.TempDir()))
		r.awaitReady()
		r.awaitProduce(ctl.CreateTopic("t", 1, 1, nil), "a")
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if n := len(ctl.Leaves()); n != 0 {
			t.Errorf("it asked %d times although nobody could take over", n)
		}
	})
	t.Run("switched off", func(t *testing.T) {
		p := startPair(t, nil) // where it is switched off
		p.topic("t", 1, 2)
		if err := p.brokers[0].stop(); err != nil || len(p.ctl.Leaves()) != 0 {
			t.Errorf("asked %d times, %v", len(p.ctl.Leaves()), err)
		}
	})
	t.Run("nobody answers", func(t *testing.T) {
		p := startPair(t, func(c *Config) { c.ControlledShutdown = true })
		p.topic("t", 1, 2)
		p.ctl.Stop()
		if err := p.brokers[0].stop(); err != nil {
			t.Error(err)
		}
	})
}
