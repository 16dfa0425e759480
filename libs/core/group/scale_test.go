package group

import (
	"fmt"
	"testing"
	"time"
)

// The figures of these benchmarks are printed beside the time of an operation; nothing
// in them depends on a clock.

// BenchmarkThousandMembers lets a thousand members join a group over 5,000 partitions,
// settle, ping, commit, and one of them leave.
func BenchmarkThousandMembers(b *testing.B) {
	const members, partitions = 1000, 5000
	for b.Loop() {
		h := newShard(b, DefaultConfig(), Topic{ID: topicID(1), Name: "a", Partitions: partitions})
		h.lax = true
		peers := make([]*peer, members)
		began := time.Now()
		for i := range peers {
			peers[i] = h.startingPeer(fmt.Sprintf("m%04d", i), StartLatest)
			if err := peers[i].tryJoin(); err != nil {
				b.Fatal(err)
			}
			peers[i].read()
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "join-ms")
		began = time.Now()
		h.pass(DefaultConfig().JoinDelay)
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "assign-ms")
		began = time.Now()
		for range 2 {
			for _, p := range peers {
				p.read()
			}
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "settle-ms")
		if d := h.s.groups["g"]; d.status() != StatusStable || d.epoch != 2 {
			b.Fatalf("the group is in epoch %d, status %d", d.epoch, d.status())
		}
		began = time.Now()
		for _, p := range peers {
			for part := range p.held {
				if err := p.commit(part, 7); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.ping(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/(partitions+members), "us/request")
		records := len(h.log)
		began = time.Now()
		peers[500].leave()
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "leave-ms")
		b.ReportMetric(float64(len(h.log)-records), "leave-records")
	}
}

// BenchmarkThousandGroups keeps a thousand groups of two members over four partitions
// in one shard.
func BenchmarkThousandGroups(b *testing.B) {
	for b.Loop() {
		h := newShard(b, DefaultConfig(), topicA)
		h.lax = true
		var peers []*peer
		began := time.Now()
		for i := range 1000 {
			for k := range 2 {
				p := h.startingPeer(fmt.Sprintf("m%d", k), StartLatest)
				p.group = fmt.Sprintf("g%04d", i)
				peers = append(peers, p)
				if err := p.tryJoin(); err != nil {
					b.Fatal(err)
				}
				p.read()
			}
		}
		h.pass(DefaultConfig().JoinDelay)
		for range 2 {
			for _, p := range peers {
				p.read()
			}
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "settle-ms")
		began = time.Now()
		h.pass(10 * time.Second)
		for _, p := range peers {
			if err := p.ping(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/float64(len(peers)), "us/ping")
		for name, g := range h.s.groups {
			if g.status() != StatusStable {
				b.Fatalf("group %s has status %d", name, g.status())
			}
		}
	}
}

// BenchmarkLoad replays a shard of a million commits.
func BenchmarkLoad(b *testing.B) {
	const groups, partitions = 100, 10_000
	s := New(DefaultConfig())
	for b.Loop() {
		s = New(DefaultConfig())
		s.Step(Now{Mono: 1}, Topics{View: view(Topic{ID: topicID(1), Name: "a", Partitions: partitions})})
		s.Step(Now{Mono: 1}, Claim{Epoch: 1})
		s.Step(Now{Mono: 1}, FenceResult{OK: true})
		for g := range groups {
			name := fmt.Sprintf("group-%d", g)
			s.Step(Now{Mono: 1}, Replayed{KV: KV{Key: groupKey(name), Value: GroupValue{Epoch: 1, Assignor: AssignorUniform}}})
			for p := range int32(partitions) {
				s.Step(Now{Mono: 1}, Replayed{KV: KV{Key: offsetKey(name, Part{topicID(1), p}), Value: OffsetValue{NextOffset: 5, CommitMs: 1}}})
			}
		}
		s.Step(Now{Mono: 1}, Loaded{})
	}
	if !s.Serving() || len(s.groups) != groups {
		b.Fatal("the shard is not loaded")
	}
	b.ReportMetric(groups*partitions*float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}
