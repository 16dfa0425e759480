package replication

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// Three brokers in one process, on real disks, replication factor 3, acks=all: bytes
// that are acknowledged. Each is written and synced three times.
func BenchmarkReplicate(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, durability := range []string{"fsync", "os"} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, durability), func(b *testing.B) { benchReplicate(b, size, durability) })
		}
	}
}

func benchReplicate(b *testing.B, size int, durability string) {
	const partitions, inFlight = 3, 8
	m := newMesh(b, 3, meshOptions{root: b.TempDir(), fs: func(int32) vfs.FS { return vfs.OS() }})
	id := m.ctl.CreateReplicated("t", partitions, 2, map[string]string{"durability": durability, "max.message.bytes": "2000000"}, 1, 2, 3)
	for p := range int32(partitions) {
		m.awaitLeads(p+1, id, p)
		m.nodes[p+1].mustStore(id, p, "first")
	}
	batch := encode(b, strings.Repeat("x", size-100))
	b.SetBytes(int64(len(batch)))
	b.ResetTimer()
	var wg sync.WaitGroup
	for p := range int32(partitions) {
		wg.Go(func() { produceMany(b, m.nodes[p+1], id, p, batch, (b.N+int(p))/partitions, inFlight) })
	}
	wg.Wait()
}

// One record at a time, acks=all: what a synchronous producer waits for.
func BenchmarkReplicateLatency(b *testing.B) {
	for _, durability := range []string{"fsync", "os"} {
		b.Run(durability, func(b *testing.B) {
			m := newMesh(b, 3, meshOptions{root: b.TempDir(), fs: func(int32) vfs.FS { return vfs.OS() }})
			id := m.ctl.CreateReplicated("t", 1, 2, map[string]string{"durability": durability}, 1, 2, 3)
			m.awaitLeads(1, id, 0)
			m.nodes[1].mustStore(id, 0, "first")
			batch := encode(b, strings.Repeat("x", 100))
			b.ResetTimer()
			produceMany(b, m.nodes[1], id, 0, batch, b.N, 1)
		})
	}
}

// produceMany keeps so many batches in flight.
func produceMany(b *testing.B, n *node, id topicid.ID, p int32, batch []byte, count, inFlight int) {
	h, err := record.ParseHeader(batch)
	if err != nil {
		b.Error(err)
		return
	}
	r := n.replica(id, p)
	room := make(chan struct{}, inFlight)
	for range count {
		room <- struct{}{}
		r.Produce(&replica.Batch{
			Payload: rpc.NewPayload(batch), Header: h, Acks: acksAll, LeaderEpoch: -1, Timeout: brokertest.Patience,
			Done: func(res replica.Result) {
				if res.Err != nil {
					b.Error(res.Err)
				}
				<-room
			},
		})
	}
	for range inFlight {
		room <- struct{}{}
	}
}
