package client

import (
	"context"
	"testing"

	"github.com/leat-io/leat/libs/record"
)

// BenchmarkProducer sends records of 100 bytes to a broker in memory: what the
// client itself costs, with and without idempotence.
func BenchmarkProducer(b *testing.B) {
	for _, bc := range []struct {
		name string
		mode Idempotence
		c    record.Compression
	}{{"plain", IdempotenceOff, 0}, {"idempotent", IdempotenceOn, 0}, {"plain lz4", IdempotenceOff, record.CompressionLZ4}, {"idempotent lz4", IdempotenceOn, record.CompressionLZ4}} {
		b.Run(bc.name, func(b *testing.B) {
			m := newFakeMesh(b, 1)
			m.topic("t", 1, 1<<20)
			p, err := m.client(Config{}).NewProducer(ProducerConfig{Idempotence: bc.mode, Compression: bc.c})
			if err != nil {
				b.Fatal(err)
			}
			value := make([]byte, 100)
			b.SetBytes(int64(len(value)))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Send(context.Background(), Record{Topic: "t", Value: value}, nil); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
