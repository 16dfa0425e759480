package handler

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

// BenchmarkProduce sends batches of 64 KiB with records of 100 bytes over
// loopback to a log on the real file system, eight unanswered at a time.
func BenchmarkProduce(b *testing.B) {
	for _, durability := range []string{"os", "fsync"} {
		b.Run(durability, func(b *testing.B) {
			h := start(b, brokertest.Start(b), harnessOptions{fs: vfs.OS(), dirs: []string{b.TempDir()}})
			id := h.topic("t", 1, map[string]string{"durability": durability})
			p := h.producer()
			batch := batchOf(b, 64<<10)
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			b.ResetTimer()
			msg := &brokerv1.ProduceBatch{TopicId: id.Bytes(), LeaderEpoch: -1, Acks: typev1.Acks_ACKS_ALL, Timeout: durationpb.New(10e9)}
			answered := 0
			for sent := 0; answered < b.N; {
				for ; sent < b.N && sent-answered < 8; sent++ {
					msg.CorrelationId = int64(sent)
					if err := rpc.Send(p.stream, &brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Batch{Batch: msg}}, rpc.NewPayload(batch)); err != nil {
						b.Fatal(err)
					}
				}
				resp, err := p.stream.Recv()
				if err != nil {
					b.Fatal(err)
				}
				for _, r := range resp.GetResults().GetResults() {
					if r.GetError() != nil {
						b.Fatal(r)
					}
					answered++
				}
			}
		})
	}
}

// BenchmarkFetch reads a log over loopback in responses of 1 MiB.
func BenchmarkFetch(b *testing.B) {
	h := start(b, brokertest.Start(b), harnessOptions{fs: vfs.OS(), dirs: []string{b.TempDir()}})
	id := h.topic("t", 1, map[string]string{"durability": "os"})
	p := h.producer()
	batch := batchOf(b, 64<<10)
	const batches = 512
	for range batches {
		if r := p.result(p.send(id, 0, batch, nil)); r.GetError() != nil {
			b.Fatal(r)
		}
	}
	size := int64(batches * len(batch))
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		f := h.fetcher(1<<40, 1<<20)
		f.add(1, id, 0, 0)
		for got := int64(0); got < size; {
			var resp brokerv1.FetchResponse
			payload, err := rpc.Recv(f.stream, &resp)
			if err != nil {
				b.Fatal(err)
			}
			got += int64(payload.Len())
			payload.Free()
		}
		if err := f.stream.CloseSend(); err != nil {
			b.Fatal(err)
		}
	}
}

func batchOf(b *testing.B, size int) []byte {
	b.Helper()
	o := record.DefaultBuilderOptions()
	o.MaxBytes = size
	builder, err := record.NewBuilder(o)
	if err != nil {
		b.Fatal(err)
	}
	value := make([]byte, 90)
	for {
		for i := range value {
			value[i] = byte(rand.Uint32())
		}
		ok, err := builder.Append(&record.Record{Timestamp: 1, Value: value})
		if err != nil {
			b.Fatal(err)
		}
		if !ok {
			break
		}
	}
	batch, err := builder.Build()
	if err != nil {
		b.Fatal(err)
	}
	return batch
}
