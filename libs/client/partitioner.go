package client

import "math/rand/v2"

// Partitioner chooses partitions for one topic of one producer, which serialises
// the calls. The topic has at least one partition.
type Partitioner interface {
	// Partition returns a number from 0 to len(t.Partitions)-1; any other fails the
	// record. The record must not be kept or changed.
	Partition(r *Record, t *Topic) int32
	// BatchClosed tells that a batch of the partition takes no more records.
	BatchClosed(partition int32)
}

// PartitionerFactory makes the partitioner of a topic.
type PartitionerFactory func() Partitioner

// PartitionerFunc makes a stateless factory of a function.
func PartitionerFunc(f func(r *Record, t *Topic) int32) PartitionerFactory {
	return func() Partitioner { return funcPartitioner(f) }
}

type funcPartitioner func(r *Record, t *Topic) int32

func (f funcPartitioner) Partition(r *Record, t *Topic) int32 { return f(r, t) }
func (f funcPartitioner) BatchClosed(int32)                   {}

// Murmur2 places a record where Kafka's clients would: by the murmur2 hash of its
// key, or, where the key is null, as Sticky does.
func Murmur2() Partitioner { return &murmur2Partitioner{} }

type murmur2Partitioner struct{ sticky stickyPartitioner }

func (m *murmur2Partitioner) Partition(r *Record, t *Topic) int32 {
	if r.Key == nil {
		return m.sticky.Partition(r, t)
	}
	return PartitionOfKey(r.Key, int32(len(t.Partitions)))
}

func (m *murmur2Partitioner) BatchClosed(partition int32) { m.sticky.BatchClosed(partition) }

// Sticky stays with one partition until its batch is closed, then takes another
// at random, so that batches are full. Partitions without a leader are avoided.
func Sticky() Partitioner { return &stickyPartitioner{} }

type stickyPartitioner struct {
	chosen  int32
	has     bool
	avoid   int32
	avoided bool
}

func (s *stickyPartitioner) Partition(_ *Record, t *Topic) int32 {
	if s.has && int(s.chosen) < len(t.Partitions) && (t.Partitions[s.chosen].Leader >= 0 || len(t.available) == 0) {
		return s.chosen
	}
	s.chosen, s.has = randomPartition(t, s.avoid, s.avoided), true
	return s.chosen
}

func (s *stickyPartitioner) BatchClosed(partition int32) {
	if s.has && s.chosen == partition {
		s.has, s.avoid, s.avoided = false, partition, true
	}
}

// randomPartition picks one that has a leader, if any has, and not the avoided
// one, if there is another.
func randomPartition(t *Topic, avoid int32, avoided bool) int32 {
	if n := len(t.available); n > 0 {
		i := rand.IntN(n)
		if avoided && n > 1 && t.available[i] == avoid {
			i = (i + 1 + rand.IntN(n-1)) % n
		}
		return t.available[i]
	}
	return rand.Int32N(int32(len(t.Partitions)))
}

// RoundRobin takes one partition after the other, those without a leader left
// out; keys do not count.
func RoundRobin() Partitioner { return &roundRobinPartitioner{next: rand.Uint32()} }

type roundRobinPartitioner struct{ next uint32 }

func (p *roundRobinPartitioner) Partition(_ *Record, t *Topic) int32 {
	p.next++
	if n := len(t.available); n > 0 {
		return t.available[p.next%uint32(n)]
	}
	return int32(p.next % uint32(len(t.Partitions)))
}

func (p *roundRobinPartitioner) BatchClosed(int32) {}

// Random takes partitions at random, those without a leader left out; keys do not
// count.
func Random() Partitioner {
	return funcPartitioner(func(_ *Record, t *Topic) int32 { return randomPartition(t, 0, false) })
}

// PartitionOfKey is the partition, of n, that Kafka's clients choose for a key
// that is not null.
func PartitionOfKey(key []byte, n int32) int32 {
	return int32(uint32(murmur2(key))&0x7fffffff) % n
}

// GroupShard is the shard, of n, in which a group lives.
func GroupShard(group string, n int32) int32 { return PartitionOfKey([]byte(group), n) }

// murmur2 is the 32-bit hash with the seed that Kafka's clients use.
func murmur2(data []byte) int32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return int32(h)
}
