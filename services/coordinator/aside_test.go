package coordinator

import (
	"context"
	"testing"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
)

// soon has a coordinator stand aside earlier than it would, and again after holdOff.
func soon(holdOff time.Duration) func(*Coordinator) {
	return func(c *Coordinator) {
		c.aside.patience = 300 * time.Millisecond
		c.aside.backoff = rpc.Backoff{Min: holdOff, Max: holdOff}
	}
}

// another is a coordinator that is registered beside the one under test.
func another() *controllerv1.Registration {
	return &controllerv1.Registration{Kind: kind, Process: &typev1.Process{Id: 2, Incarnation: 22}, Address: "127.0.0.1:2", Revision: 1}
}

// trying keeps a commit on its way, so that the shard asks its log for something.
func (r *running) trying() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			call, stop := context.WithTimeout(ctx, 200*time.Millisecond)
			_, _ = r.groups.CommitOffsets(call, &coordinatorv1.CommitOffsetsRequest{Group: "g", Offsets: []*coordinatorv1.OffsetCommit{
				{TopicId: userID[:], Partition: 1, NextOffset: 7, LeaderEpoch: -1},
			}})
			<-call.Done()
			stop()
		}
	}()
	r.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// registered waits until the coordinator is registered, or is not.
func (r *running) registered(want bool) {
	r.t.Helper()
	limit := time.After(patience)
	for {
		changed := r.c.registrar.Changed()
		if (r.c.registrar.Revision() > 0) == want {
			return
		}
		select {
		case <-changed:
		case <-limit:
			r.t.Fatalf("registered=%v does not come", want)
		}
	}
}

// keeps reports whether the registration stands for all of d.
func (r *running) keeps(d time.Duration) bool {
	changed := r.c.registrar.Changed()
	select {
	case <-changed:
		return false
	case <-time.After(d):
		return true
	}
}

// silent waits until the logs have answered nothing for all of d, in which the
// registration must stand.
func (r *running) silent(d time.Duration) {
	r.t.Helper()
	changed := r.c.registrar.Changed()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for {
		select {
		case <-changed:
			r.t.Fatal("it stands aside")
		case <-limit:
			r.t.Fatal("its logs do not fall silent")
		case <-tick.C:
		}
		if since, _ := r.c.manager.Silence(); !since.IsZero() && time.Since(since) >= d {
			return
		}
	}
}

// long is many times the patience of soon.
const long = 1200 * time.Millisecond

func TestStandsAsideWhereNoBrokerAnswers(t *testing.T) {
	m := startMesh(t)
	m.other = another()
	r := run(t, etcdtest.Start(t), m, soon(time.Hour))
	r.commit(1)
	if !r.keeps(long) {
		t.Fatal("it stands aside although its logs work")
	}
	m.change(func() { m.noBroker = true })
	r.trying()
	r.registered(false)
	m.change(func() { m.noBroker = false })
	r.registered(true)
	r.commit(2)
	// Not again before the hold-off is over.
	m.change(func() { m.noBroker = true })
	if !r.keeps(long) {
		t.Fatal("it stands aside a second time at once")
	}
}

func TestStandsAsideOnlyWhereThatHelps(t *testing.T) {
	etcd := etcdtest.Start(t)
	for name, change := range map[string]func(m *fakeMesh){
		"no other coordinator": func(m *fakeMesh) { m.other, m.noBroker = nil, true },
		"the broker is fenced": func(m *fakeMesh) { m.noBroker, m.fenced = true, true },
		"the broker refuses":   func(m *fakeMesh) { m.log.Fault(refuse) },
	} {
		t.Run(name, func(t *testing.T) {
			m := startMesh(t)
			m.other = another()
			r := run(t, etcd, m, soon(0))
			r.commit(1)
			m.change(func() { change(m) })
			r.trying()
			r.silent(long)
		})
	}
}

func refuse(int) (bool, error) {
	return false, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, "too few").WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
}

func TestComesBackWhereNobodyElseIsLeft(t *testing.T) {
	m := startMesh(t)
	m.other = another()
	r := run(t, etcdtest.Start(t), m, soon(time.Hour))
	r.commit(1)
	m.change(func() { m.noBroker = true })
	r.trying()
	r.registered(false)
	m.change(func() { m.other = nil })
	r.registered(true)
}

func TestTimesBetweenStandingAside(t *testing.T) {
	a := &aside{patience: 10 * time.Second, backoff: rpc.Backoff{Min: 10 * time.Second, Max: time.Minute}}
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	if a.due(at(100), time.Time{}) || a.due(at(9), at(0)) || !a.due(at(10), at(0)) {
		t.Fatal("it is due by the silence alone, after the patience")
	}
	now, last := 10, time.Duration(0)
	for range 5 {
		a.returned(at(now), at(now-1))
		if a.holdOff < last/2 || a.holdOff < 5*time.Second || a.holdOff > time.Minute {
			t.Fatalf("the hold-off is %v after %v", a.holdOff, last)
		}
		if a.due(at(now+4), at(0)) || !a.due(at(now+61), at(0)) {
			t.Fatalf("with a hold-off of %v it is due at the wrong time", a.holdOff)
		}
		last, now = a.holdOff, now+61
	}
	if last < 30*time.Second {
		t.Fatalf("the hold-off has grown to %v only", last)
	}
	// A registration that lasted starts over.
	now += 200
	if a.returned(at(now), at(now-1)); a.holdOff > 10*time.Second {
		t.Fatalf("after a long time the hold-off is %v", a.holdOff)
	}
}
