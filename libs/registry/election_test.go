package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/libs/rpc"
)

const controller = controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER

// candidate is one that stands for election in a test.
type candidate struct {
	term  atomic.Pointer[Term]
	terms atomic.Int64
	stop  func() error
}

func stand(t *testing.T, client *clientv3.Client, id int32, addr string, ttl time.Duration) *candidate {
	t.Helper()
	e := NewElection(ElectionConfig{
		Client: client, Keys: NewKeys(prefix), Process: &typev1.Process{Id: id, Incarnation: uint64(id)},
		Address: addr, TTL: ttl, Prober: NewProber(rpc.DialConfig{}), Logger: slog.New(slog.DiscardHandler),
	})
	c := &candidate{}
	c.stop = run(t, func(ctx context.Context) error {
		return e.Run(ctx, func(ctx context.Context, term *Term) {
			c.terms.Add(1)
			c.term.Store(term)
			<-ctx.Done()
			c.term.Store(nil)
		})
	})
	return c
}

func (c *candidate) leads() bool { return c.term.Load() != nil }

func put(k, v string) []clientv3.Op { return []clientv3.Op{clientv3.OpPut(k, v)} }

func TestOneLeadsAndIsFollowed(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	a1, _ := listen(t, controller, 1, 1)
	a2, _ := listen(t, controller, 2, 2)
	one := stand(t, client, 1, a1, time.Minute)
	eventually(t, "the first leads", one.leads)
	two := stand(t, client, 2, a2, time.Minute)
	term := one.term.Load()
	if _, err := term.Commit(t.Context(), nil, put("/leat/x", "1")); err != nil {
		t.Fatal(err)
	}
	if two.leads() {
		t.Fatal("both lead")
	}
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second follows a resignation at once", two.leads)
	if two.term.Load().ElectionRevision() <= term.ElectionRevision() {
		t.Error("the election revision does not grow")
	}
	if _, err := term.Commit(t.Context(), nil, put("/leat/x", "2")); !errors.Is(err, ErrDeposed) {
		t.Errorf("the first writes on: %v", err)
	}
}

func TestDeadLeaderIsReplacedBeforeItsLease(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	dying := newClient(t, client.Endpoints())
	a1, stop1 := listen(t, controller, 1, 1)
	a2, _ := listen(t, controller, 2, 2)
	one := stand(t, dying, 1, a1, time.Hour)
	eventually(t, "the first leads", one.leads)
	two := stand(t, client, 2, a2, time.Hour)
	_ = dying.Close() // it gives nothing back
	stop1()
	eventually(t, "the second leads", two.leads)
}

// case 36: a candidate whose lease is gone by the time it wins does not lead, and
// stands again.
func TestNeverLeaderWithoutTheKey(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, controller, 1, 1)
	e := NewElection(ElectionConfig{
		Client: client, Keys: NewKeys(prefix), Process: &typev1.Process{Id: 1, Incarnation: 1},
		Address: addr, TTL: time.Second, Prober: NewProber(rpc.DialConfig{}), Logger: slog.New(slog.DiscardHandler),
	})
	l, err := grant(t.Context(), client, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Revoke(t.Context(), l.id); err != nil {
		t.Fatal(err)
	}
	if term, err := e.create(t.Context(), l, "v"); err == nil || term != nil {
		t.Fatalf("elected under a lease that is gone: %v, %v", term, err)
	}
	// In the whole: the incumbent is silent and its key goes with its lease; the
	// candidate has waited longer than any lease of its own would have lasted.
	incumbent, err := proto.Marshal(&storagev1.ElectionRecord{FormatVersion: 1, Controller: &storagev1.ProcessRef{Id: 9, Incarnation: 9}, Address: "192.0.2.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	key := NewKeys(prefix).Election()
	putLeased(t, client, key, string(incumbent), 3)
	c := stand(t, client, 1, addr, time.Second)
	var term *Term
	eventually(t, "the candidate leads", func() bool {
		term = c.term.Load()
		return term != nil
	})
	// The key as of the election: a lease this short may have run out since.
	got, err := client.Get(t.Context(), key, clientv3.WithRev(term.ElectionRevision()))
	if err != nil || len(got.Kvs) != 1 || !term.Owns(got.Kvs[0].CreateRevision) || got.Kvs[0].Lease != int64(term.lease) {
		t.Fatalf("it leads without the key: %v, %v", got, err)
	}
}

func TestLostLeaseEndsTheTerm(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, controller, 1, 1)
	c := stand(t, client, 1, addr, steady)
	eventually(t, "it leads", c.leads)
	first := c.term.Load()
	if _, err := client.Revoke(t.Context(), first.lease); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Commit(t.Context(), nil, put("/leat/x", "1")); !errors.Is(err, ErrDeposed) {
		t.Errorf("it writes without the key: %v", err)
	}
	eventually(t, "it leads again in another term", func() bool {
		term := c.term.Load()
		return term != nil && term != first && c.terms.Load() == 2
	})
}

func TestOneThatGivesWayIsNotElectedAgain(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	a1, _ := listen(t, controller, 1, 1)
	a2, _ := listen(t, controller, 2, 2)
	e := NewElection(ElectionConfig{
		Client: client, Keys: NewKeys(prefix), Process: &typev1.Process{Id: 1, Incarnation: 1},
		Address: a1, TTL: time.Minute, Prober: NewProber(rpc.DialConfig{}), Logger: slog.New(slog.DiscardHandler),
	})
	leads, giveWay := make(chan struct{}), make(chan struct{})
	run(t, func(ctx context.Context) error {
		first, gaveWay := true, time.Time{}
		return e.Run(ctx, func(ctx context.Context, term *Term) {
			if first {
				first = false
				close(leads)
			} else if soon := time.Since(gaveWay); soon < standAside {
				t.Errorf("it led again after %v", soon) // later it may, where the other one stood still
			}
			select {
			case <-giveWay:
				term.GiveWay()
				gaveWay = time.Now()
			case <-ctx.Done():
			}
		})
	})
	<-leads
	two := stand(t, client, 2, a2, time.Minute)
	close(giveWay)
	eventually(t, "the other one leads", two.leads)
}

func TestCommitComparesEveryKey(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, controller, 1, 1)
	c := stand(t, client, 1, addr, time.Minute)
	eventually(t, "it leads", c.leads)
	term := c.term.Load()
	cmp := func(rev int64) []clientv3.Cmp {
		return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("/leat/x"), "=", rev)}
	}
	revision, err := term.Commit(t.Context(), cmp(0), put("/leat/x", "1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := term.Commit(t.Context(), cmp(0), put("/leat/x", "2")); !errors.Is(err, ErrConflict) {
		t.Errorf("a key that has changed: %v", err)
	}
	if _, err := term.Commit(t.Context(), cmp(revision), put("/leat/x", "2")); err != nil {
		t.Error(err)
	}
}

func TestTransactionLimitFitsEtcds(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, controller, 1, 1)
	c := stand(t, client, 1, addr, time.Minute)
	eventually(t, "it leads", c.leads)
	var cmps []clientv3.Cmp
	var ops []clientv3.Op
	for i := range MaxTxnOps {
		k := fmt.Sprintf("/leat/x/%d", i)
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(k), "=", 0))
		ops = append(ops, clientv3.OpPut(k, "v"))
	}
	if _, err := c.term.Load().Commit(t.Context(), cmps, ops); err != nil {
		t.Fatalf("etcd refuses %d operations: %v", MaxTxnOps, err)
	}
	if _, err := c.term.Load().Commit(t.Context(), nil, append(ops, clientv3.OpPut("/leat/y", "v"))); err == nil {
		t.Error("more operations than agreed were let through")
	}
}

// An etcd whose quota is used up refuses for certain: there is nothing to settle.
func TestFullEtcdRefuses(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, controller, 1, 1)
	c := stand(t, client, 1, addr, time.Minute)
	eventually(t, "it leads", c.leads)
	status, err := client.Status(t.Context(), client.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	alarm := &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: etcdserverpb.AlarmType_NOSPACE}
	if _, err := etcdserverpb.NewMaintenanceClient(client.ActiveConnection()).Alarm(t.Context(), alarm); err != nil {
		t.Fatal(err)
	}
	_, err = c.term.Load().Commit(t.Context(), nil, put("/leat/x", "1"))
	if err == nil || errors.Is(err, ErrUnknown) || errors.Is(err, ErrDeposed) || errors.Is(err, ErrConflict) {
		t.Errorf("without space: %v", err)
	}
	got, err := client.Get(t.Context(), "/leat/x")
	if err != nil || len(got.Kvs) != 0 {
		t.Errorf("it took place: %v, %v", got, err)
	}
}

// A transaction whose outcome is unknown is dead or done once Settle returns.
func TestSettleKillsWhatWasUnknown(t *testing.T) {
	t.Parallel()
	client := newClient(t, etcdtest.Start(t))
	addr, _ := listen(t, controller, 1, 1)
	c := stand(t, client, 1, addr, time.Minute)
	eventually(t, "it leads", c.leads)
	term := c.term.Load()
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := term.Commit(cut, nil, put("/leat/x", "1")); !errors.Is(err, ErrUnknown) {
		t.Fatalf("a transaction that was cut off: %v", err)
	}
	guard := term.modRevision.Load() // what the transaction under way compares with
	revision, err := term.Settle(t.Context())
	if err != nil || revision < guard {
		t.Fatalf("settled at %d: %v", revision, err)
	}
	late, err := client.Txn(t.Context()).
		If(clientv3.Compare(clientv3.ModRevision(NewKeys(prefix).Election()), "=", guard)).
		Then(put("/leat/x", "late")...).Commit()
	if err != nil || late.Succeeded {
		t.Fatalf("a transaction from before took place after Settle: %v", err)
	}
	if _, err := term.Commit(t.Context(), nil, put("/leat/x", "2")); err != nil {
		t.Errorf("the term goes on: %v", err)
	}
	// A rewrite whose answer was lost is recognised as one's own.
	term.modRevision.Store(guard)
	if _, err := term.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := term.Commit(t.Context(), nil, put("/leat/x", "3")); err != nil {
		t.Errorf("after a lost answer: %v", err)
	}
	// Somebody else's key ends it.
	if _, err := client.Delete(t.Context(), NewKeys(prefix).Election()); err != nil {
		t.Fatal(err)
	}
	if _, err := term.Settle(t.Context()); !errors.Is(err, ErrDeposed) {
		t.Errorf("settled without the key: %v", err)
	}
}

func TestProbeVerdicts(t *testing.T) {
	t.Parallel()
	p := NewProber(rpc.DialConfig{})
	target := func(addr string) Target {
		return Target{Kind: broker, Process: &typev1.Process{Id: 1, Incarnation: 5}, Address: addr}
	}
	same, stopSame := listen(t, broker, 1, 5)
	life, _ := listen(t, broker, 1, 6)
	kind, _ := listen(t, controller, 1, 5)
	id, _ := listen(t, broker, 2, 5)
	// A probe waits for a second; on a machine that stands still for longer it finds
	// nothing out.
	probe := func(addr string) (v Verdict) {
		eventually(t, addr+" is judged", func() bool {
			v = p.Probe(t.Context(), target(addr))
			return v != Unreachable
		})
		return v
	}
	for addr, want := range map[string]Verdict{same: Alive, life: Replaced, kind: Replaced, id: Replaced} {
		if got := probe(addr); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	died := make(chan Verdict, 1)
	go func() { died <- p.AwaitDeath(t.Context(), target(same)) }()
	stopSame()
	if v := <-died; v != Refused {
		t.Errorf("a watched process died: %v", v)
	}
	if got := probe(same); got != Refused || !got.Dead() {
		t.Errorf("its port refuses: %v", got)
	}
	if Unreachable.Dead() || Alive.Dead() {
		t.Error("silence proves death")
	}
}
