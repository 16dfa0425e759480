package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// Brokers are killed with what they had not synced, one or all at once, streams break
// and leadership moves, while records are produced: what was acknowledged is there at the end, once, at its
// offset, and the replicas are the same.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		durability string
		keep       func() int
	}{
		"what was not synced goes": {"fsync", nil},
		"some of it stays, torn":   {"fsync", func() int { return rand.IntN(1001) }},
		"only processes die":       {"os", func() int { return 1000 }},
	} {
		t.Run(name, func(t *testing.T) { nemesis(t, c.durability, c.keep) })
	}
}

func nemesis(t *testing.T, durability string, keep func() int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	m := newMesh(t, 3, meshOptions{lag: 2 * time.Second, keep: keep})
	id := m.ctl.CreateReplicated("t", 1, 2, map[string]string{"durability": durability}, 1, 2, 3)
	m.awaitLeads(1, id, 0)
	h := &history{m: m, id: id, stop: make(chan struct{})}
	for w := range 3 {
		h.wg.Go(func() { h.produce(w) })
	}
	for range 12 {
		h.awaitMore(20)
		victim := random.Int32N(3) + 1
		switch random.IntN(6) {
		case 0:
			m.moveFrom(id, victim, false)
			continue
		case 1:
			m.cutStreams(victim, random)
			continue
		}
		if random.IntN(4) == 0 {
			h.lock.Lock()
			m.powerCut(id, random)
			h.lock.Unlock()
			continue
		}
		h.lock.Lock()
		m.kill(victim)
		m.moveFrom(id, victim, true)
		h.lock.Unlock()
		if random.IntN(2) == 0 {
			h.awaitMore(10)
		}
		h.lock.Lock()
		m.restart(victim)
		if m.ctl.Partition(id, 0).GetLeader().GetId() == victim {
			m.ctl.Elect(id, 0, victim)
		}
		h.lock.Unlock()
		m.awaitISR(id, 0, 3)
	}
	close(h.stop)
	h.wg.Wait()
	leader := m.ctl.Partition(id, 0).GetLeader().GetId()
	m.awaitLeads(leader, id, 0)
	end := m.nodes[leader].mustStore(id, 0, "the last") + 1
	m.awaitSame(id, 0, end, 1, 2, 3)
	h.check(leader)
}

// cutStreams breaks the streams of a leader's followers a few times, by opening others
// in their name.
func (m *mesh) cutStreams(leader int32, random *rand.Rand) {
	for range random.IntN(5) + 1 {
		for b, n := range m.nodes {
			if b == leader {
				continue
			}
			if p, err := m.connect(leader, b, n.incarnation, nil); err == nil {
				if err := p.stream.CloseSend(); err != nil {
					m.t.Error(err)
				}
			}
		}
	}
}

// powerCut kills all brokers at once and elects one of the in-sync set when all are
// back.
func (m *mesh) powerCut(id topicid.ID, random *rand.Rand) {
	for b := range int32(3) {
		m.kill(b + 1)
	}
	for b := range int32(3) {
		m.restart(b + 1)
	}
	isr := m.ctl.Partition(id, 0).GetIsr()
	m.ctl.Elect(id, 0, isr[random.IntN(len(isr))])
}

// moveFrom elects another member of the in-sync set where a broker leads, and takes
// it out of the set if it is dead.
func (m *mesh) moveFrom(id topicid.ID, broker int32, dead bool) {
	m.ctl.Change(func(c *brokertest.Controller) {
		c.Record(id, 0, func(p *controllerv1.Partition) {
			others := slices.DeleteFunc(slices.Clone(p.GetIsr()), func(b int32) bool { return b == broker })
			if len(others) == 0 {
				return // it is elected again when it is back
			}
			if dead {
				p.Isr = others
			}
			if p.GetLeader().GetId() == broker {
				p.LeaderEpoch++
				p.Leader = c.Process(others[0])
			}
		})
	})
}

// history is what producers were told.
type history struct {
	m    *mesh
	id   topicid.ID
	stop chan struct{}
	wg   sync.WaitGroup
	lock sync.RWMutex // held for writing while a broker changes its life

	mu    sync.Mutex
	acked map[int64]string
}

// produce sends records to whoever leads, one at a time, until it is stopped.
func (h *history) produce(worker int) {
	for n := 0; ; n++ {
		select {
		case <-h.stop:
			return
		default:
		}
		value := fmt.Sprintf("%d/%d", worker, n)
		res, sent := h.try(value)
		if !sent || res.Err != nil {
			continue
		}
		h.mu.Lock()
		if other, twice := h.acked[res.Base]; twice {
			h.m.t.Errorf("offset %d was acknowledged for %q and for %q", res.Base, other, value)
		}
		if h.acked == nil {
			h.acked = map[int64]string{}
		}
		h.acked[res.Base] = value
		h.mu.Unlock()
	}
}

// try sends one record to the leader on record, if that is there.
func (h *history) try(value string) (replica.Result, bool) {
	h.lock.RLock()
	leader := h.m.nodes[h.m.ctl.Partition(h.id, 0).GetLeader().GetId()]
	r, err := leader.manager.Lookup(h.id.Bytes(), 0)
	h.lock.RUnlock()
	if err != nil {
		return replica.Result{}, false
	}
	batch := encode(h.m.t, value)
	header, perr := record.ParseHeader(batch)
	if perr != nil {
		h.m.t.Error(perr)
		return replica.Result{}, false
	}
	done := make(chan replica.Result, 1)
	r.Produce(&replica.Batch{
		Payload: rpc.NewPayload(batch), Header: header, Acks: partition.AcksAll, LeaderEpoch: -1, Timeout: 5 * time.Second,
		Done: func(res replica.Result) { done <- res },
	})
	select {
	case res := <-done:
		return res, true
	case <-leader.dead:
		return replica.Result{}, false
	}
}

// awaitMore waits until so many more records are acknowledged.
func (h *history) awaitMore(n int) {
	h.m.t.Helper()
	count := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.acked)
	}
	want := count() + n
	brokertest.Await(h.m.t, "more records are acknowledged", func() bool { return count() >= want })
}

// check compares what was acknowledged with what a replica holds.
func (h *history) check(broker int32) {
	h.m.t.Helper()
	held := map[int64]string{}
	data := h.m.nodes[broker].logBytes(h.id, 0)
	for len(data) > 0 {
		batch, rest, err := record.NextBatch(data)
		if err != nil {
			h.m.t.Fatal(err)
		}
		header, err := record.ParseHeader(batch)
		if err != nil {
			h.m.t.Fatal(err)
		}
		records, err := record.Decode(batch, 1<<20)
		if err != nil {
			h.m.t.Fatal(err)
		}
		for i, r := range records {
			held[header.BaseOffset+int64(i)] = string(r.Value)
		}
		data = rest
	}
	h.m.t.Logf("%d records acknowledged, %d held", len(h.acked), len(held))
	for offset, value := range h.acked {
		if held[offset] != value {
			h.m.t.Errorf("offset %d was acknowledged for %q and holds %q", offset, value, held[offset])
		}
	}
}
