package faults

import (
	"context"
	"fmt"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
)

// wants is what a reader reads: all partitions or those that a broker holds, from
// where it is.
func (l *load) wants(replica *int32, next []int64) []client.FetchStart {
	var starts []client.FetchStart
	for _, p := range l.id.Partitions {
		held := replica == nil
		for _, b := range p.Replicas {
			held = held || replica != nil && b == *replica
		}
		if held {
			starts = append(starts, client.FetchStart{
				TopicPartition: client.TopicPartition{TopicID: l.id.ID, Partition: p.Number}, Topic: l.topic, Offset: next[p.Number], LastEpoch: -1,
			})
		}
	}
	return starts
}

// follow reads from the beginning on, from the leaders or from one broker, until the
// run ends.
func (l *load) follow(who string, replica *int32) {
	f, err := l.client.NewFetcher(client.FetcherConfig{Replica: replica})
	if err != nil {
		l.fail(err)
		return
	}
	defer f.Close()
	next := make([]int64, l.parts)
	f.Add(l.wants(replica, next)...)
	for {
		e, err := f.Next(l.ctx)
		if err != nil {
			return
		}
		if e.Kind == client.FetchError {
			// One replica may be away for a while; the leaders' reader has no such excuse.
			if replica == nil {
				l.h.problem("%s: partition %d: %v", who, e.Partition, e.Err)
			}
			if !l.sleep(time.Second) {
				return
			}
			for _, s := range l.wants(replica, next) {
				if s.Partition == e.Partition {
					f.Add(s)
				}
			}
			continue
		}
		l.took(who, e, next)
		e.Release()
	}
}

// took checks and notes one event of a reader.
func (l *load) took(who string, e *client.FetchEvent, next []int64) {
	for i := range e.Records {
		r := &e.Records[i]
		if e.HighWatermark >= 0 && r.Offset >= e.HighWatermark {
			l.h.problem("%s was given partition %d offset %d at high watermark %d", who, e.Partition, r.Offset, e.HighWatermark)
		}
		if r.Offset != next[e.Partition] {
			l.h.problem("%s was given partition %d offset %d, want %d", who, e.Partition, r.Offset, next[e.Partition])
		}
		next[e.Partition] = r.Offset + 1
		l.h.show(who, int(e.Partition), r.Offset, l.h.parse(string(r.Value)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if who != lastReader { // which has a client of its own
		l.readTo[e.Partition] = max(l.readTo[e.Partition], next[e.Partition])
	}
}

// watchEnds asks for the visible ends: none may go back, or lie below what the same
// client read before it asked.
func (l *load) watchEnds() {
	last := make([]int64, l.parts)
	own := make([]int64, l.parts)
	for l.sleep(100 * time.Millisecond) {
		l.mu.Lock()
		for n := range own {
			own[n] = max(last[n], l.readTo[n])
		}
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
		for _, res := range l.client.ListOffsets(ctx, l.latest(), typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED) {
			if res.Err != nil {
				continue // for how long, progress tells
			}
			if res.Offset < own[res.Partition] {
				l.h.problem("the visible end of partition %d was %d to this client and is %d (leader epoch %d)", res.Partition, own[res.Partition], res.Offset, res.LeaderEpoch)
			}
			last[res.Partition] = max(last[res.Partition], res.Offset)
		}
		cancel()
	}
}

func (l *load) latest() []client.OffsetQuery {
	var queries []client.OffsetQuery
	for n := range l.parts {
		queries = append(queries, client.OffsetQuery{TopicPartition: client.TopicPartition{TopicID: l.id.ID, Partition: int32(n)}, Spec: client.Latest()})
	}
	return queries
}

// awaitReaders waits until the group was given everything.
func (l *load) awaitReaders(log [][]recordID) string {
	deadline := time.Now().Add(90 * time.Second)
	for {
		behind := ""
		for n, end := range l.group.Ends() {
			if end < int64(len(log[n])) {
				behind = fmt.Sprintf("group: nobody was given partition %d from %d to %d; it has been quiet for 90s", n, end, len(log[n])-1)
			}
		}
		if behind == "" || time.Now().After(deadline) || !l.sleep(50*time.Millisecond) {
			return behind
		}
	}
}

const lastReader = "the last reader"

// readAll reads the whole log with a client that has seen nothing.
func (l *load) readAll() ([][]recordID, error) {
	c := l.newClient(lastReader)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	log := make([][]recordID, l.parts)
	ends := make([]int64, l.parts)
	for _, res := range c.ListOffsets(ctx, l.latest(), typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED) {
		if res.Err != nil {
			return nil, fmt.Errorf("the end of partition %d: %w", res.Partition, res.Err)
		}
		ends[res.Partition] = res.Offset
	}
	for n, end := range l.h.shown() {
		if ends[n] < end {
			l.h.problem("partition %d ends at %d, and offset %d was read or acknowledged", n, ends[n], end-1)
		}
	}
	f, err := c.NewFetcher(client.FetcherConfig{})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	f.Add(l.wants(nil, make([]int64, l.parts))...)
	next := make([]int64, l.parts)
	for !reached(next, ends) {
		e, err := f.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("at %v of %v: %w", next, ends, err)
		}
		if e.Kind == client.FetchError {
			return nil, fmt.Errorf("partition %d: %w", e.Partition, e.Err)
		}
		l.took(lastReader, e, next)
		for _, r := range e.Records {
			log[e.Partition] = append(log[e.Partition], l.h.parse(string(r.Value)))
		}
		e.Release()
	}
	return log, nil
}

func reached(next, ends []int64) bool {
	for i := range next {
		if next[i] < ends[i] {
			return false
		}
	}
	return true
}
