package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/history"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// load is producers that never stop and readers that follow, on one topic: one
// producer through the gateway by the command, one straight to the brokers by the
// client library; a reader of the command; a poller of visible ends.
type load struct {
	t       *testing.T
	r       *rig.Rig
	topic   string
	history *history.History

	command *rig.Background // producer "g"
	reader  *rig.Background // reader "follow"
	feed    func() int
	direct  *direct // producer "d"
	ends    *ends
}

// The names of producers and readers.
const (
	byGateway = "g"
	byClient  = "d"
	follower  = "follow"
)

type loadOptions struct {
	rate        int  // records a second of each producer; 0: 300
	gatewayOnly bool // no producer of the client library
}

func startLoad(t *testing.T, r *rig.Rig, topic string, o loadOptions) *load {
	t.Helper()
	if o.rate == 0 {
		o.rate = 300
	}
	l := &load{t: t, r: r, topic: topic, history: history.New()}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("at the end: %s\nfaults: %v", r.Leat("topic", "describe", topic, "--request-timeout", "5s"), r.Net.Faults())
		}
	})
	var input io.Reader
	input, l.feed = history.Feed(byGateway, o.rate)
	l.command = r.Run(input, l.history.Acks(byGateway), "produce", topic, "--input", "json", "--acks-out", "-", "--delivery-timeout", "3m")
	l.reader = r.Run(nil, l.history.Reader(follower), "consume", topic, "--from-beginning", "-o", "json")
	if !o.gatewayOnly {
		l.direct = startDirect(t, r, topic, l.history, byClient, o.rate)
	}
	l.ends = startEnds(t, r, topic)
	l.progress("the start", time.Minute)
	return l
}

func (l *load) producers() []string {
	if l.direct == nil {
		return []string{byGateway}
	}
	return []string{byGateway, byClient}
}

// progress waits until every producer and the reader have got on, and returns how
// long that took.
func (l *load) progress(after string, limit time.Duration) time.Duration {
	l.t.Helper()
	began := time.Now()
	before := map[string]int{}
	for _, p := range l.producers() {
		before[p] = l.history.Count(p)
	}
	read := l.history.Read(follower)
	mesh.Eventually(l.t, limit, "progress after "+after, func() (bool, string) {
		for p, n := range before {
			if now := l.history.Count(p); now < n+20 {
				return false, fmt.Sprintf("producer %s: %d acknowledged, %d before; %s", p, now, n, l.history.Summary())
			}
		}
		now := l.history.Read(follower)
		return now > read+20, fmt.Sprintf("the reader got %d, %d before", now, read)
	})
	if problems := l.history.Problems(); len(problems) > 0 {
		l.t.Fatalf("after %s: %v", after, problems)
	}
	return time.Since(began)
}

// standstill demands that no producer gets an acknowledgement for a while.
func (l *load) standstill(during string, d time.Duration) {
	l.t.Helper()
	before := map[string]int{}
	for _, p := range l.producers() {
		before[p] = l.history.Count(p)
	}
	pause(d)
	for p, n := range before {
		if now := l.history.Count(p); now != n {
			l.t.Errorf("%s: producer %s got %d acknowledgements in %v; none was to be expected", during, p, now-n, d)
		}
	}
}

// finish ends producing, waits for all outcomes, reads the whole log and checks
// the history; the replicas must become identical.
func (l *load) finish() {
	l.t.Helper()
	l.finishAlone()
	l.r.WaitInSync(l.topic, time.Minute)
	l.r.SameLogs(l.topic, time.Minute)
	l.sameDigests()
}

// finishAlone is finish for a topic of one replica.
func (l *load) finishAlone() {
	l.t.Helper()
	l.feed()
	if code := l.command.Wait(4 * time.Minute); code != 0 {
		l.t.Errorf("producer %s exited with %d: %v", byGateway, code, l.history.Failures(byGateway))
	}
	if l.direct != nil {
		l.direct.stop()
		if failed := l.history.Failures(byClient); len(failed) > 0 {
			l.t.Errorf("producer %s: failed within the delivery timeout: %v", byClient, failed)
		}
	}
	l.ends.stop()
	l.check()
	l.t.Logf("%s", l.history.Summary())
}

// check reads the whole log through the gateway and checks the history.
func (l *load) check() {
	l.t.Helper()
	log, err := history.Parse(l.r.MustLeat("consume", l.topic, "--from-beginning", "--follow=false", "-o", "json"))
	if err != nil {
		l.t.Fatal(err)
	}
	mesh.Eventually(l.t, time.Minute, "the reader gets all", func() (bool, string) {
		n := l.history.Read(follower)
		return n >= len(log), fmt.Sprintf("%d of %d", n, len(log))
	})
	if code := l.reader.Interrupt(); code != 0 && code != 130 {
		l.t.Errorf("the reader exited with %d: %s", code, l.reader.Said())
	}
	for _, problem := range l.history.Check(log) {
		l.t.Error(problem)
	}
}

// direct is a producer of the client library.
type direct struct {
	t      *testing.T
	client *client.Client
	p      *client.Producer
	cancel context.CancelFunc
	wait   sync.WaitGroup
	sent   int
}

// bootstrap lists the brokers' addresses as others know them.
func bootstrap(r *rig.Rig) []string {
	var addrs []string
	for _, name := range r.Names(rig.Broker) {
		addrs = append(addrs, r.Addr(name))
	}
	return addrs
}

func newClient(t *testing.T, r *rig.Rig) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Bootstrap: bootstrap(r), ClientID: "tests"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func startDirect(t *testing.T, r *rig.Rig, topic string, h *history.History, name string, rate int) *direct {
	t.Helper()
	d := &direct{t: t, client: newClient(t, r)}
	p, err := d.client.NewProducer(client.ProducerConfig{DeliveryTimeout: 3 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	d.p = p
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	d.wait.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			number := d.sent + 1
			err := p.Send(ctx, client.Record{
				Topic: topic, Key: []byte(history.Key(name, number)), Value: []byte(history.Value(name, number)),
			}, func(res client.Result) { note(h, name, number, res) })
			var typed *rpc.Error
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				d.sent = number
			case errors.As(err, &typed) && rpc.Retryable(typed): // it was not taken in
			default:
				t.Errorf("producer %s: %v", name, err)
				return
			}
		}
	})
	t.Cleanup(d.close)
	return d
}

func note(h *history.History, name string, number int, res client.Result) {
	if res.Err == nil {
		h.Acked(name, number, history.Place{Partition: int(res.Partition), Offset: res.Offset}, res.MaybeDuplicated)
		return
	}
	typed := rpc.FromError(res.Err)
	h.Failed(name, number, typed.Error(), typed.Outcome == typev1.Outcome_OUTCOME_UNKNOWN)
}

// stop ends sending and waits for all outcomes.
func (d *direct) stop() {
	d.t.Helper()
	d.cancel()
	d.wait.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	if err := d.p.Flush(ctx); err != nil {
		d.t.Errorf("flush: %v", err)
	}
}

func (d *direct) close() {
	d.cancel()
	d.wait.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = d.p.Close(ctx) // what has no outcome by now has been told of
	if err := d.client.Close(); err != nil {
		d.t.Error(err)
	}
}

// ends polls the visible ends of all partitions; they must never go back for one
// client.
type ends struct {
	t      *testing.T
	client *client.Client
	cancel context.CancelFunc
	wait   sync.WaitGroup
	polls  int
	failed map[string]int
}

func startEnds(t *testing.T, r *rig.Rig, topic string) *ends {
	t.Helper()
	e := &ends{t: t, client: newClient(t, r), failed: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.wait.Go(func() {
		seen := map[int32]int64{}
		for ctx.Err() == nil {
			e.poll(ctx, topic, seen)
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() {
		e.stop()
		if err := e.client.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *ends) poll(ctx context.Context, name string, seen map[int32]int64) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	topic, err := e.client.Metadata().Topic(ctx, name)
	if err != nil {
		return
	}
	var queries []client.OffsetQuery
	for _, p := range topic.Partitions {
		queries = append(queries, client.OffsetQuery{TopicPartition: client.TopicPartition{TopicID: topic.ID, Partition: p.Number}, Spec: client.Latest()})
	}
	for _, res := range e.client.ListOffsets(ctx, queries, typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED) {
		if res.Err != nil {
			e.failed[rpc.FromError(res.Err).Error()]++
			continue
		}
		e.polls++
		if res.Offset < seen[res.Partition] {
			e.t.Errorf("the visible end of partition %d went back from %d to %d (leader epoch %d)", res.Partition, seen[res.Partition], res.Offset, res.LeaderEpoch)
		}
		seen[res.Partition] = max(seen[res.Partition], res.Offset)
	}
}

func (e *ends) stop() {
	e.cancel()
	e.wait.Wait()
}
