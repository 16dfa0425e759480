package handler

import (
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/record"
)

// TestJoinPassesOnWhatIsAsked: the coordinator finds and commits starts, but for a
// client that wants its offsets left alone.
func TestJoinPassesOnWhatIsAsked(t *testing.T) {
	r := newRig(t, nil)
	for i, c := range []struct {
		open   *gatewayv1.ConsumeOpen
		policy coordinatorv1.OffsetResetPolicy
	}{
		{&gatewayv1.ConsumeOpen{}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_LATEST},
		{&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_EARLIEST, LeaveOffsets: true}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_EARLIEST},
		{&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_NONE}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_NONE},
		{&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_TIMESTAMP, StartTimestampMs: 1500}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_TIMESTAMP},
		{&gatewayv1.ConsumeOpen{StartAt: gatewayv1.StartAt_START_AT_BY_DURATION, StartByDuration: durationpb.New(time.Hour), MaxProcessing: durationpb.New(time.Minute)}, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION},
	} {
		c.open.Group, c.open.Topics = "g", []string{"a"}
		r.subscribe(t, testContext(t), c.open)
		m := r.mesh.member(t, i).cfg
		if m.ResetPolicy != c.policy || m.LeaveStarts != c.open.LeaveOffsets || m.ResetTimestamp.UnixMilli() != c.open.StartTimestampMs ||
			m.ResetDuration != c.open.StartByDuration.AsDuration() || m.MaxProcessing != c.open.MaxProcessing.AsDuration() {
			t.Errorf("%v joins as %+v", c.open, m)
		}
	}
}

// TestMemberTellsItsProgress with its pings: what the client has, has not finished, and
// waits for.
func TestMemberTellsItsProgress(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onFetch = serve(record.Record{Offset: 0, Value: []byte("x")}, record.Record{Offset: 1, Value: []byte("y")})
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, CreditBytes: 1, ClientRack: "west"})
	m := r.mesh.member(t, 0)
	if told := m.cfg.Progress(); told != nil {
		t.Errorf("before anything: %v", told)
	}
	m.assign(1, 0)
	c.until("records", func(m *gatewayv1.ConsumeResponse) bool { return m.GetRecords() != nil })
	eventually(t, "progress is told", func() bool {
		told := m.cfg.Progress()
		return len(told) == 1 && told[0].TopicPartition == partA(0) && told[0].DeliveredNext == 1 && told[0].OldestUnprocessed > 0 &&
			told[0].Waiting == coordinatorv1.WaitingFor_WAITING_FOR_CREDIT
	})
	r.mesh.mu.Lock()
	defer r.mesh.mu.Unlock()
	if rack := r.mesh.fetchers[0].cfg.Rack; rack != "west" {
		t.Errorf("reads in rack %q", rack)
	}
}

// TestProxiedClients live by their messages alone.
func TestProxiedClients(t *testing.T) {
	var ahead atomic.Int64
	r := newRig(t, func(l *Limits, _ *fakeMesh, c *Config) {
		l.ProxiedClients = true
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}, SessionTimeout: durationpb.New(15 * time.Second)})
	m := r.mesh.member(t, 0)
	c.get()
	ahead.Store(int64(10 * time.Second))
	if !m.cfg.Alive() {
		t.Error("it is taken for dead within its session timeout")
	}
	ahead.Store(int64(16 * time.Second))
	if m.cfg.Alive() {
		t.Error("it has said nothing for longer than its session timeout, and is taken to live")
	}
	c.ping(1)
	c.until("pong", func(m *gatewayv1.ConsumeResponse) bool { return m.GetPong() != nil })
	if !m.cfg.Alive() {
		t.Error("it has sent a message, and is taken for dead")
	}
}
