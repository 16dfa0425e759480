package replication

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

// Many partitions follow on one stream to each leader, without a goroutine of their
// own, and all of them change leaders at once.
func TestManyPartitions(t *testing.T) { manyPartitions(t, 300) }

// BenchmarkManyPartitions tells how long the sessions of 5,000 partitions with
// replication factor 3 take to be agreed when a third of them change leaders.
func BenchmarkManyPartitions(b *testing.B) {
	for b.Loop() {
		manyPartitions(b, 5000)
	}
}

func manyPartitions(t testing.TB, count int32) {
	m := newMesh(t, 3, meshOptions{})
	began := time.Now()
	id := m.ctl.CreateReplicated("many", count, 2, nil, 1, 2, 3)
	m.awaitAgreed(id, count)
	t.Logf("%d partitions made and followed after %v", count, time.Since(began).Round(time.Millisecond))
	brokertest.Await(t, fmt.Sprintf("%d quiet partitions need no more than 200 goroutines", count), func() bool { return runtime.NumGoroutine() <= 200 })
	m.kill(1)
	began = time.Now()
	m.electAll(id, count)
	m.awaitAgreed(id, count)
	t.Logf("a third of them have another leader, and all its followers, after %v", time.Since(began).Round(time.Millisecond))
	for p := range count {
		if p%97 == 0 {
			m.nodes[m.ctl.Partition(id, p).GetLeader().GetId()].mustStore(id, p, "a")
		}
	}
}

// electAll replaces broker 1 wherever it leads or is in sync.
func (m *mesh) electAll(id topicid.ID, count int32) {
	m.ctl.Change(func(c *brokertest.Controller) {
		for p := range count {
			c.Record(id, p, func(r *controllerv1.Partition) {
				var isr []int32
				for _, b := range r.GetIsr() {
					if b != 1 {
						isr = append(isr, b)
					}
				}
				r.Isr = isr
				if r.GetLeader().GetId() == 1 {
					r.LeaderEpoch++
					r.Leader = c.Process(isr[0])
				}
			})
		}
	})
}

// awaitAgreed waits until every leader has an agreed session with every other member
// of the in-sync set.
func (m *mesh) awaitAgreed(id topicid.ID, count int32) {
	m.t.Helper()
	for p := range count {
		r := m.ctl.Partition(id, p)
		leader := m.nodes[r.GetLeader().GetId()]
		brokertest.Await(m.t, "the followers have agreed", func() bool {
			lead, err := leader.manager.Lookup(id.Bytes(), p)
			return err == nil && lead.Followers() == len(r.GetIsr())-1
		})
	}
}
