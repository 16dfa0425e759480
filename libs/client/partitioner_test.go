package client

import (
	"testing"
)

// The vectors are those that Kafka's clients are tested with.
func TestMurmur2GoldenVectors(t *testing.T) {
	for in, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := murmur2([]byte(in)); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", in, got, want)
		}
		if got, want := PartitionOfKey([]byte(in), 1000), int32(uint32(want)&0x7fffffff)%1000; got != want {
			t.Errorf("partition of %q: %d, want %d", in, got, want)
		}
	}
}

// partitioned is a topic of n partitions of which some have no leader.
func partitioned(n int, leaderless ...int32) *Topic {
	t := &Topic{Name: "t"}
	for i := range n {
		t.Partitions = append(t.Partitions, Partition{Number: int32(i), Leader: 1})
	}
	for _, p := range leaderless {
		t.Partitions[p].Leader = -1
	}
	t.setAvailable()
	return t
}

func TestPartitioners(t *testing.T) {
	key := &Record{Key: []byte("foobar")}
	empty := &Record{Key: []byte{}}
	null := &Record{}
	topic := partitioned(4, 2)
	const many = 400
	for name, tc := range map[string]struct {
		make PartitionerFactory
		r    *Record
		// close tells of a closed batch after each choice.
		close bool
		want  func(seen map[int32]int) bool
	}{
		"murmur2 of a key":                {Murmur2, key, true, func(s map[int32]int) bool { return s[PartitionOfKey(key.Key, 4)] == many }},
		"murmur2 of an empty key":         {Murmur2, empty, true, func(s map[int32]int) bool { return s[PartitionOfKey(empty.Key, 4)] == many }},
		"murmur2 without a key sticks":    {Murmur2, null, false, func(s map[int32]int) bool { return len(s) == 1 && s[2] == 0 }},
		"murmur2 without a key moves on":  {Murmur2, null, true, func(s map[int32]int) bool { return len(s) == 3 && s[2] == 0 }},
		"sticky disregards keys":          {Sticky, key, true, func(s map[int32]int) bool { return len(s) == 3 && s[2] == 0 }},
		"round robin shares evenly":       {RoundRobin, key, false, func(s map[int32]int) bool { return len(s) == 3 && s[0] >= many/3 && s[1] >= many/3 && s[3] >= many/3 }},
		"random reaches all with leaders": {Random, key, false, func(s map[int32]int) bool { return len(s) == 3 && s[2] == 0 }},
		"a function of one's own":         {PartitionerFunc(func(*Record, *Topic) int32 { return 3 }), key, true, func(s map[int32]int) bool { return s[3] == many }},
	} {
		t.Run(name, func(t *testing.T) {
			p := tc.make()
			seen := make(map[int32]int)
			for range many {
				n := p.Partition(tc.r, topic)
				seen[n]++
				if tc.close {
					p.BatchClosed(n)
				}
			}
			if !tc.want(seen) {
				t.Errorf("choices: %v", seen)
			}
		})
	}
}

func TestPartitionersWithoutAnyLeader(t *testing.T) {
	topic := partitioned(2, 0, 1)
	for i, f := range []PartitionerFactory{Murmur2, Sticky, RoundRobin, Random} {
		if n := f().Partition(&Record{}, topic); n < 0 || n > 1 {
			t.Errorf("partitioner %d chose %d", i, n)
		}
	}
}

func TestStickyLeavesAPartitionWithoutLeader(t *testing.T) {
	p := Sticky()
	first := p.Partition(&Record{}, partitioned(3))
	if got := p.Partition(&Record{}, partitioned(3, first)); got == first {
		t.Errorf("stayed with partition %d", first)
	}
	if shard := GroupShard("foobar", 50); shard != PartitionOfKey([]byte("foobar"), 50) {
		t.Errorf("shard %d", shard)
	}
}
