package client

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

func newTestFetcher(t *testing.T, c *Client, cfg FetcherConfig) *Fetcher {
	t.Helper()
	f, err := c.NewFetcher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// soon is a context that ends long after everything should have happened.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// encode makes a batch of whose offsets are the mesh's to set.
func encode(t *testing.T, values ...string) []byte {
	t.Helper()
	return encodeWith(t, func(*record.BuilderOptions) {}, values...)
}

func encodeWith(t *testing.T, change func(*record.BuilderOptions), values ...string) []byte {
	t.Helper()
	o := record.DefaultBuilderOptions()
	change(&o)
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		if ok, err := b.Append(&record.Record{Value: []byte(v)}); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	raw, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func (m *fakeMesh) put(t *fakeTopic, partition int32, batches ...[]byte) {
	m.update(func() {
		for _, b := range batches {
			t.parts[partition].store(b)
		}
	})
}

// numbered makes batches of three of the records from one number up to another.
func numbered(t *testing.T, from, to int) [][]byte {
	t.Helper()
	var all [][]byte
	for ; from < to; from += 3 {
		var values []string
		for i := from; i < min(from+3, to); i++ {
			values = append(values, fmt.Sprintf("%06d", i))
		}
		all = append(all, encode(t, values...))
	}
	return all
}

// readNumbers reads until it has the records from one number up to another of one
// partition, in order, and nothing else.
func readNumbers(t *testing.T, f *Fetcher, from, to int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for from < to {
		e, err := f.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for record %d: %v; %v", from, err, f.Waiting())
		}
		if e.Kind == FetchError {
			t.Fatalf("waiting for record %d: %v", from, e.Err)
		}
		for _, r := range e.Records {
			if want := fmt.Sprintf("%06d", from); string(r.Value) != want || r.Offset != int64(from) {
				t.Fatalf("record %q at %d, want %s", r.Value, r.Offset, want)
			}
			from++
		}
		e.Release()
	}
}

func TestFetcherReads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		m.put(topic, 0, numbered(t, 0, 30)...)
		f := newTestFetcher(t, m.client(Config{}), FetcherConfig{})
		f.Add(FetchStart{TopicPartition: topic.at(0), Topic: "t", Offset: 4, LastEpoch: -1, Tag: 7})
		e, err := f.Next(soon(t))
		if err != nil || e.Kind != FetchRecords || e.Tag != 7 || e.Topic != "t" || e.Offset != 4 || e.NextOffset != 6 || e.LeaderEpoch != 1 || e.HighWatermark != 30 {
			t.Fatalf("%+v %v", e, err)
		}
		if len(e.Records) != 2 || string(e.Records[0].Value) != "000004" {
			t.Fatalf("a record below the offset wanted: %v", e.Records)
		}
		e.Release()
		readNumbers(t, f, 6, 30)
		m.put(topic, 0, numbered(t, 30, 33)...)
		readNumbers(t, f, 30, 33)
		if pos, ok := f.Position(topic.at(0)); !ok || pos != 33 {
			t.Errorf("position %d", pos)
		}
	})
}

// case 11: offsets that hold no records for a reader are moved past.
func TestFetcherMovesPastControlBatches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		control := encodeWith(t, func(o *record.BuilderOptions) { o.Control = true }, "x")
		m.put(topic, 0, control, control)
		f := newTestFetcher(t, m.client(Config{}), FetcherConfig{})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		for next := int64(0); next < 2; {
			e, err := f.Next(soon(t))
			if err != nil || e.Kind != FetchProgress {
				t.Fatalf("%+v %v", e, err)
			}
			next = e.NextOffset
		}
	})
}

// case 29: positions are kept through lost connections and refusals.
func TestFetcherKeepsItsPosition(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 3)
		topic := m.topic("t", 1, 1<<20)
		refusals := 0
		m.onFetch = func(*fakeBroker, *brokerv1.FetchPartition) *rpc.Error {
			if refusals++; refusals%2 == 1 {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE, "for the test")
			}
			return nil
		}
		f := newTestFetcher(t, m.client(Config{}), FetcherConfig{})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		next := 0
		grow := func() {
			m.put(topic, 0, numbered(t, next, next+30)...)
			readNumbers(t, f, next, next+30)
			next += 30
		}
		grow()
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
		grow()
		m.kill(2)
		synctest.Wait()
		m.startBroker(2)
		grow()
		m.kill(2)
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 3, 3 })
		grow()
	})
}

func TestFetcherReportsWhatDoesNotPass(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 3, 1<<20)
		m.put(topic, 0, numbered(t, 0, 3)...)
		damaged := encode(t, "abc")
		m.put(topic, 1, encode(t, "a", "b"), damaged, encode(t, "c"))
		m.update(func() { topic.parts[1].batches[1][70] ^= 1 })
		f := newTestFetcher(t, m.client(Config{}), FetcherConfig{})
		f.Add(FetchStart{TopicPartition: topic.at(0), Offset: 99, LastEpoch: -1}, FetchStart{TopicPartition: topic.at(1), LastEpoch: -1},
			FetchStart{TopicPartition: topic.at(2), LastEpoch: -1})
		var outOfRange, corrupt, others int
		for outOfRange+corrupt < 2 || others == 0 {
			e, err := f.Next(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case e.Partition == 0 && rpc.IsReason(e.Err, reasonOffsetOutOfRange):
				outOfRange++
			case e.Partition == 1 && rpc.IsReason(e.Err, reasonCorruptBatch):
				corrupt++
				if e.Offset != 2 || e.NextOffset != 2 || rpc.FromError(e.Err).Metadata["next_offset"] != "3" {
					t.Errorf("%+v", e)
				}
			case e.Partition == 2:
				others++
			case e.Err != nil:
				t.Errorf("partition %d: %v", e.Partition, e.Err)
			}
			e.Release()
		}
		f.Add(FetchStart{TopicPartition: topic.at(1), Offset: 3, LastEpoch: -1})
		for {
			e, err := f.Next(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if e.Partition == 1 && e.Kind == FetchRecords && string(e.Records[0].Value) == "c" {
				break
			}
		}
		m.update(func() { delete(m.topics, topic.id) })
		gone := map[int32]bool{}
		for len(gone) < 2 {
			e, err := f.Next(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if rpc.IsReason(e.Err, reasonUnknownTopic) {
				gone[e.Partition] = true
			}
		}
	})
}

// What is received and not released stays within the credit, however often the
// stream breaks.
func TestFetcherCreditBoundsMemory(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		batches := numbered(t, 0, 6000)
		m.put(topic, 0, batches...)
		const credit = 10_000
		f := newTestFetcher(t, m.client(Config{}), FetcherConfig{CreditBytes: credit})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		check := func() {
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			var held int64
			for _, n := range f.held {
				held += n
			}
			if held > credit+int64(len(batches[0])) || held < credit {
				t.Errorf("%d bytes are held with a credit of %d", held, credit)
			}
		}
		if e, err := f.Next(soon(t)); err != nil || e.Kind != FetchRecords {
			t.Fatal(e, err)
		}
		check()
		for range 3 {
			m.kill(1)
			m.startBroker(1)
			<-time.After(5 * time.Second)
			check()
		}
		readNumbers(t, f, 3, 6000)
	})
}

func TestFetcherPauseResumeMoveRemove(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		m.put(topic, 0, numbered(t, 0, 30)...)
		f := newTestFetcher(t, m.client(Config{}), FetcherConfig{})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		readNumbers(t, f, 0, 6)
		synctest.Wait()
		f.Pause(topic.at(0))
		synctest.Wait()
		if e := f.TryNext(); e != nil {
			t.Fatalf("an event of a paused partition: %+v", e)
		}
		f.Resume(topic.at(0))
		readNumbers(t, f, 6, 12)
		f.Add(FetchStart{TopicPartition: topic.at(0), Offset: 3, LastEpoch: -1, Tag: 2})
		readNumbers(t, f, 3, 30)
		f.Remove(topic.at(0))
		m.put(topic, 0, numbered(t, 30, 33)...)
		synctest.Wait()
		if e := f.TryNext(); e != nil {
			t.Fatalf("an event of a removed partition: %+v", e)
		}
	})
}

// A position behind offsets that hold nothing has no record before it whose epoch
// could be asked about.
func TestFetcherPositionBehindAGap(t *testing.T) {
	for name, pause := range map[string]bool{"received": false, "handed out": true} {
		t.Run(name, func(t *testing.T) { inBubble(t, func(t *testing.T) { positionBehindAGap(t, pause) }) })
	}
}

func positionBehindAGap(t *testing.T, pause bool) {
	t.Helper()
	m := newFakeMesh(t, 1)
	topic := m.topic("t", 1, 1<<20)
	m.put(topic, 0, numbered(t, 0, 3)...)
	f := newTestFetcher(t, m.client(Config{}), FetcherConfig{})
	f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
	readNumbers(t, f, 0, 3)
	m.update(func() { topic.parts[0].epoch, topic.parts[0].end = 2, 8 })
	if e, err := f.Next(soon(t)); err != nil || e.Kind != FetchProgress || e.NextOffset != 8 {
		t.Fatalf("%+v %v", e, err)
	}
	if pause {
		f.Pause(topic.at(0))
		f.Resume(topic.at(0))
	}
	synctest.Wait()
	m.kill(1)
	m.startBroker(1)
	m.put(topic, 0, encode(t, "behind"))
	for {
		e, err := f.Next(soon(t))
		if err != nil || e.Kind == FetchError {
			t.Fatal(err, e.Err)
		}
		if e.Kind == FetchRecords {
			if e.Offset != 8 || e.LeaderEpoch != 2 {
				t.Errorf("%+v", e)
			}
			return
		}
	}
}

// An unclean election may cut what was read: that is told, and nothing is read on
// by itself.
func TestFetcherTellsOfTruncation(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		m.put(topic, 0, numbered(t, 0, 3)...)
		f := newTestFetcher(t, m.client(Config{}), FetcherConfig{})
		f.Add(FetchStart{TopicPartition: topic.at(0), Offset: 3, LastEpoch: 0})
		e, err := f.Next(soon(t))
		if err != nil || !rpc.IsReason(e.Err, typev1.ErrorReason_ERROR_REASON_LOG_TRUNCATED) {
			t.Fatalf("%+v %v", e, err)
		}
	})
}
