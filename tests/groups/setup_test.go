package groups

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
	"github.com/leat-io/leat/tests/internal/scale"
)

// How much is run: how often, for how long, and with which choices.
var (
	size   = scale.Register("run at full length and with all members, which takes long")
	full   = size.Full
	count  = size.Count
	span   = size.Span
	random = size.Random
)

// TestMain runs the tests, or with workerEnv set a member.
func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		os.Exit(work(text))
	}
	os.Exit(scale.Main(m))
}

// lasting lets a fault last, or load go on.
func lasting(d time.Duration) { <-time.After(d) }

// limit is how long what must come may take on a machine that is busy.
const limit = 2 * time.Minute

// leaseTTL is the lease of every service, for short forms.
const leaseTTL = 2 * time.Second

// start starts a mesh beside those of other tests, and waits until it is ready.
func start(t *testing.T, o rig.Options) *rig.Rig {
	t.Helper()
	if !*full {
		t.Parallel()
		o.Set = append([]string{"broker.lease.ttl=2s", "controller.lease.ttl=2s", "coordinator.lease.ttl=2s", "broker.replica.lag.time.max.ms=3000"}, o.Set...)
	}
	if o.Controllers == 0 {
		o.Controllers = 1
	}
	if o.Brokers == 0 {
		o.Brokers = 1
	}
	began := time.Now()
	r := rig.New(t, o)
	t.Cleanup(func() { r.CheckLogs(time.Since(began)) })
	r.UpAll()
	r.WaitReady(limit)
	return r
}

// topic makes a topic with as many replicas as there are brokers, up to three.
func topic(t *testing.T, r *rig.Rig, name string, partitions int) {
	t.Helper()
	replicas := min(3, len(r.Names(rig.Broker)))
	r.MustLeat("topic", "create", name, "--partitions", fmt.Sprint(partitions), "--replication-factor", fmt.Sprint(replicas),
		"--config", fmt.Sprint("min.insync.replicas=", max(1, replicas-1)), "--request-timeout", "1m")
	r.WaitInSync(name, limit)
}

// bootstrap lists the brokers' addresses as others know them.
func bootstrap(r *rig.Rig) []string {
	var addrs []string
	for _, name := range r.Names(rig.Broker) {
		addrs = append(addrs, r.Addr(name))
	}
	return addrs
}

// newClient is a client of the mesh; it is closed when the test ends.
func newClient(t *testing.T, r *rig.Rig, id string, change ...func(*client.Config)) *client.Client {
	t.Helper()
	cfg := client.Config{Bootstrap: bootstrap(r), ClientID: id, MetadataMaxAge: 2 * time.Second}
	for _, f := range change {
		f(&cfg)
	}
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// within is a context that ends when the test should be done with something.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// lookUp finds a topic. Whom the client asks may be a moment behind its creation.
func lookUp(t *testing.T, c *client.Client, name string) *client.Topic {
	t.Helper()
	var found *client.Topic
	mesh.Eventually(t, limit, "topic "+name+" is known", func() (ok bool, state string) {
		var err error
		found, err = c.Metadata().Topic(within(t, limit), name)
		return err == nil, fmt.Sprint(err)
	})
	return found
}

// describe tells what the coordinator knows of a group.
func describe(t *testing.T, c *client.Client, group string) *coordinatorv1.DescribeGroupResponse {
	t.Helper()
	d, err := c.DescribeGroup(within(t, limit), group)
	if err != nil {
		t.Fatalf("describe %s: %v", group, err)
	}
	return d
}

// ledger sums up the rebalances of a group after an epoch.
type ledger struct {
	rebalances, moved int
	longest           time.Duration // without an owner
	causes            []string
}

func since(d *coordinatorv1.DescribeGroupResponse, epoch int64) ledger {
	var l ledger
	for _, b := range d.Rebalances {
		if b.GroupEpoch > epoch {
			l.rebalances++
			l.moved += int(b.Moved)
			l.longest = max(l.longest, b.LongestUnowned.AsDuration())
			l.causes = append(l.causes, fmt.Sprintf("%d: %s (%d moved)", b.GroupEpoch, b.Cause, b.Moved))
		}
	}
	return l
}

// quantile is a quantile of durations, which it sorts.
func quantile(of []time.Duration, q float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[min(len(of)-1, int(q*float64(len(of))))].Round(10 * time.Microsecond)
}
