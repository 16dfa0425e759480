package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// Producing: records are batched and sent in the background; each gets a result.
func Example_produce() {
	produce := func(ctx context.Context) (err error) {
		c, err := client.New(client.Config{Bootstrap: []string{"127.0.0.1:5388"}, ClientID: "billing"})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		p, err := c.NewProducer(client.ProducerConfig{Compression: record.CompressionZstd})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.Close(ctx)) }()

		for n := range 1000 {
			r := client.Record{Topic: "invoices", Key: fmt.Appendf(nil, "customer-%d", n%10), Value: []byte("…")}
			err := p.Send(ctx, r, func(res client.Result) {
				switch e := rpc.FromError(res.Err); {
				case e == nil:
					fmt.Printf("%s-%d at %d\n", res.Topic, res.Partition, res.Offset)
				default:
					fmt.Printf("%s: %v\n", e.Outcome, e)
				}
			})
			if err != nil { // this record was not taken in
				return err
			}
		}
		return p.Flush(ctx)
	}
	_ = produce
}

// Consuming in a group: the members share the partitions, and what earlier Polls
// returned is committed by itself.
func Example_consume() {
	consume := func(ctx context.Context) (err error) {
		c, err := client.New(client.Config{Bootstrap: []string{"127.0.0.1:5388"}, ClientID: "billing"})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		k, err := c.NewConsumer(client.ConsumerConfig{Group: "billing", Topics: []string{"invoices"}, Reset: client.ResetEarliest})
		if err != nil {
			return err
		}
		defer func() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, k.Close(end))
		}()

		for ctx.Err() == nil {
			records, err := k.Poll(ctx, 100)
			if err != nil {
				fmt.Println("goes on after:", err)
				continue
			}
			for _, r := range records {
				fmt.Printf("%s-%d at %d: %s\n", r.Topic, r.Partition, r.Offset, r.Value)
			}
		}
		return nil
	}
	_ = consume
}
