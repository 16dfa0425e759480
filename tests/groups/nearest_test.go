package groups

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/history"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// near reads everything from the replicas in a rack.
type near struct {
	t    *testing.T
	rack string
	f    *client.Fetcher
	mu   sync.Mutex
	next map[int]int64
	high map[int]int64 // the highest visible end told
}

func startNear(t *testing.T, r *rig.Rig, name, rack string, h *history.History) *near {
	t.Helper()
	c := newClient(t, r, "near "+rack)
	f, err := c.NewFetcher(client.FetcherConfig{Rack: rack})
	if err != nil {
		t.Fatal(err)
	}
	n := &near{t: t, rack: rack, f: f, next: map[int]int64{}, high: map[int]int64{}}
	topic := lookUp(t, c, name)
	for _, p := range topic.Partitions {
		f.Add(client.FetchStart{TopicPartition: client.TopicPartition{TopicID: topic.ID, Partition: p.Number}, Topic: name, LastEpoch: -1})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			e, err := f.Next(ctx)
			if err != nil {
				return
			}
			n.take(e, h)
			e.Release()
		}
	})
	t.Cleanup(func() {
		cancel()
		wait.Wait()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// take judges an event: the position never goes back and passes no record, no record
// lies at or above the high watermark, and that never goes back.
func (n *near) take(e *client.FetchEvent, h *history.History) {
	if e.Kind == client.FetchError {
		n.t.Errorf("rack %s: partition %d at offset %d: %v", n.rack, e.Partition, e.Offset, e.Err)
		return
	}
	p := int(e.Partition)
	for i := range e.Records {
		rec := &e.Records[i]
		h.Seen("near "+n.rack, history.Record{Place: history.Place{Partition: p, Offset: rec.Offset}, Key: string(rec.Key), Value: string(rec.Value), Epoch: int(e.LeaderEpoch)})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.NextOffset < n.next[p] {
		n.t.Errorf("rack %s: partition %d went back from %d to %d", n.rack, p, n.next[p], e.NextOffset)
	}
	if e.HighWatermark >= 0 {
		if e.NextOffset > e.HighWatermark {
			n.t.Errorf("rack %s: partition %d was read up to %d, beyond the high watermark %d", n.rack, p, e.NextOffset, e.HighWatermark)
		}
		if e.HighWatermark < n.high[p] {
			n.t.Errorf("rack %s: the high watermark of partition %d went back from %d to %d", n.rack, p, n.high[p], e.HighWatermark)
		}
		n.high[p] = e.HighWatermark
	}
	n.next[p] = e.NextOffset
}

// TestNearestReplica: readers in each of three racks read from the replicas there,
// while leaders are killed and stand still. None goes back, reads beyond the high
// watermark, or sees another record than the others at an offset; what was
// acknowledged is all there.
func TestNearestReplica(t *testing.T) {
	r := start(t, rig.Options{Brokers: 3, Set: []string{"broker.1.rack=a", "broker.2.rack=b", "broker.3.rack=c"}})
	topic(t, r, "near", 3)
	h := history.New()
	input, stop := history.Feed("p", 300)
	command := r.Run(input, h.Acks("p"), "produce", "near", "--input", "json", "--acks-out", "-", "--delivery-timeout", "3m")
	var readers []*near
	for _, rack := range []string{"a", "b", "c"} {
		readers = append(readers, startNear(t, r, "near", rack, h))
	}
	flows := func(after string) {
		t.Helper()
		before := map[string]map[int]int64{}
		for _, n := range readers {
			n.mu.Lock()
			before[n.rack] = maps.Clone(n.next)
			n.mu.Unlock()
		}
		mesh.Eventually(t, limit, "everybody reads on after "+after, func() (bool, string) {
			for _, n := range readers {
				n.mu.Lock()
				now := maps.Clone(n.next)
				n.mu.Unlock()
				for p := range 3 {
					if now[p] < before[n.rack][p]+10 {
						return false, fmt.Sprintf("rack %s: %v, before %v; %v", n.rack, now, before[n.rack], n.f.Waiting())
					}
				}
			}
			return true, ""
		})
		if problems := h.Problems(); len(problems) > 0 {
			t.Fatalf("after %s: %v", after, problems)
		}
	}
	flows("the start")
	served := map[string]float64{}
	for _, name := range r.Names(rig.Broker) {
		served[name] = metric(t, r, name, "leat_broker_fetch_records_total")
	}
	flows("a while")
	for name, before := range served {
		if now := metric(t, r, name, "leat_broker_fetch_records_total"); now <= before {
			t.Errorf("%s has sent nothing to the readers in its rack", name)
		}
	}
	for round := range count(2, 20) {
		leader := r.Leader("near", round%3)
		if round%2 == 0 {
			r.Kill(leader)
			flows("the death of " + leader)
			r.Up(leader)
		} else {
			r.Pause(leader)
			flows("the standstill of " + leader)
			r.Resume(leader)
		}
		r.WaitInSync("near", limit)
		flows("the return of " + leader)
	}
	stop()
	if code := command.Wait(4 * time.Minute); code != 0 {
		t.Errorf("leat produce exited with %d: %v", code, h.Failures("p"))
	}
	log, err := history.Parse(r.MustLeat("consume", "near", "--from-beginning", "--follow=false", "-o", "json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range readers {
		mesh.Eventually(t, limit, "rack "+n.rack+" has everything", func() (bool, string) {
			got := h.Read("near " + n.rack)
			return got >= len(log), fmt.Sprintf("%d of %d", got, len(log))
		})
	}
	for _, problem := range h.Check(log) {
		t.Error(problem)
	}
}

// metric is the value of a metric of a process that has no labels. A process that is
// busy may not answer at once.
func metric(t *testing.T, r *rig.Rig, process, name string) float64 {
	t.Helper()
	value := 0.0
	mesh.Eventually(t, limit, process+" tells "+name, func() (bool, string) {
		all := r.Metrics(within(t, limit), process)
		for line := range strings.Lines(all) {
			if text, found := strings.CutPrefix(line, name+" "); found {
				n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
				if err != nil {
					t.Fatal(err)
				}
				value = n
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d bytes of metrics", len(all))
	})
	return value
}
