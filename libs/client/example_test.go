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

// Consuming in a group: the members share the partitions, and what was worked on is
// committed by itself. A record counts as worked on when the loop asks for the next.
func Example_consume() {
	consume := func(ctx context.Context, work func(client.ConsumerRecord) error) (err error) {
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

		for r, err := range k.Records(ctx) {
			if err != nil {
				fmt.Println("goes on after:", err)
				continue
			}
			if err := work(r); err != nil {
				return err // it is not released, and comes again
			}
		}
		return nil
	}
	_ = consume
}

// Consuming in batches, with commits of one's own: one for each batch, once it is
// stored.
func ExampleConsumer_Commit() {
	consume := func(ctx context.Context, c *client.Client, store func([]client.ConsumerRecord) error) (err error) {
		k, err := c.NewConsumer(client.ConsumerConfig{
			Group: "archive", Topics: []string{"invoices"}, Reset: client.ResetEarliest, AutoCommitInterval: -1,
			OnLost: func(parts []client.AssignedPartition) { fmt.Println("somebody else may have by now:", len(parts)) },
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, k.Close(context.WithoutCancel(ctx))) }()
		for ctx.Err() == nil {
			batch, err := k.Poll(ctx, 500)
			if err != nil {
				fmt.Println("goes on after:", err)
				continue
			}
			if err := store(batch); err != nil {
				return err
			}
			if err := k.Commit(ctx); err != nil {
				fmt.Println("this batch may come again:", err)
			}
		}
		return nil
	}
	_ = consume
}

// Going back by a day, in all partitions that the consumer has.
func ExampleConsumer_SeekTo() {
	replay := func(k *client.Consumer) error {
		for _, p := range k.Assigned() {
			if err := k.SeekTo(p.TopicPartition, client.AtTimestamp(time.Now().Add(-24*time.Hour))); err != nil {
				return err
			}
		}
		return nil
	}
	_ = replay
}

// Reading without a group: partitions by hand, from where one likes, and from a
// replica in the reader's own rack.
func ExampleConsumer_Assign() {
	tail := func(ctx context.Context, c *client.Client) (err error) {
		t, err := c.Metadata().Topic(ctx, "invoices")
		if err != nil {
			return err
		}
		k, err := c.NewConsumer(client.ConsumerConfig{Reset: client.ResetByDuration, ResetDuration: time.Hour, ClientRack: "zone-b"})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, k.Close(context.WithoutCancel(ctx))) }()
		var all []client.Position
		for _, p := range t.Partitions { // each from the reset policy on
			all = append(all, client.Position{
				TopicPartition: client.TopicPartition{TopicID: t.ID, Partition: p.Number}, NextOffset: -1, LeaderEpoch: -1,
			})
		}
		if err := k.Assign(ctx, all...); err != nil {
			return err
		}
		for r, err := range k.Records(ctx) {
			if err != nil {
				return err
			}
			lag, _ := k.Lag(r.TopicPartition)
			fmt.Printf("%s-%d at %d, %d to come: %s\n", r.Topic, r.Partition, r.Offset, lag, r.Value)
		}
		return ctx.Err()
	}
	_ = tail
}

// At most once: what is handed out is committed before, so that nothing comes twice.
func ExampleConsumerConfig_atMostOnce() {
	cfg := client.ConsumerConfig{Group: "alarms", Topics: []string{"events"}, AtMostOnce: true}
	fmt.Println(cfg.Validate())
	// Output: <nil>
}
