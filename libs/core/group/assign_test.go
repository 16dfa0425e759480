package group

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func everyone(n int, topics map[TopicID]int32) []subscriber {
	subs := make([]subscriber, n)
	for i := range subs {
		id := fmt.Sprintf("m%03d", i)
		subs[i] = subscriber{id: id, rank: id, topics: topics}
	}
	return subs
}

func settle(subs []subscriber, targets map[string][]Part) {
	for i := range subs {
		subs[i].current = targets[subs[i].id]
	}
}

func moved(before, after map[string][]Part) int {
	was := make(map[Part]string)
	for id, parts := range before {
		for _, p := range parts {
			was[p] = id
		}
	}
	n := 0
	for id, parts := range after {
		for _, p := range parts {
			if was[p] != id {
				n++
			}
		}
	}
	return n
}

func TestUniformMovesOnlyTheFairShareOfTheEleventh(t *testing.T) {
	topics := map[TopicID]int32{topicID(1): 60, topicID(2): 50}
	subs := everyone(10, topics)
	before := assign(AssignorUniform, subs)
	subs = everyone(11, topics)
	settle(subs, before)
	after := assign(AssignorUniform, subs)
	if n := moved(before, after); n != 10 {
		t.Fatalf("the eleventh member moved %d partitions, want its share of 10", n)
	}
}

func TestRangeGivesTheSameRunOfEachTopic(t *testing.T) {
	subs := everyone(3, map[TopicID]int32{topicID(1): 7, topicID(2): 7})
	targets := assign(AssignorRange, subs)
	for id, want := range map[string][2]int32{"m000": {0, 2}, "m001": {3, 4}, "m002": {5, 6}} {
		parts := targets[id]
		half := len(parts) / 2
		for k, part := range [][]Part{parts[:half], parts[half:]} {
			if part[0].Topic != topicID(byte(k+1)) || part[0].Partition != want[0] || part[half-1].Partition != want[1] {
				t.Fatalf("%s got %v, want %v of both topics", id, parts, want)
			}
		}
	}
}

// Whatever the subscriptions and the past: everything has one holder who
// subscribed to it, no single move would even things out by two, and assigning
// again moves nothing.
func TestUniformProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topics := make(map[TopicID]int32)
		for i := range rapid.IntRange(1, 5).Draw(t, "topics") {
			topics[topicID(byte(i+1))] = int32(rapid.IntRange(1, 12).Draw(t, "partitions"))
		}
		subs := everyone(rapid.IntRange(1, 8).Draw(t, "members"), nil)
		for i := range subs {
			subs[i].topics = make(map[TopicID]int32)
			for id, n := range topics {
				if rapid.Bool().Draw(t, "subscribes") {
					subs[i].topics[id] = n
				}
			}
			for range rapid.IntRange(0, 10).Draw(t, "past") {
				subs[i].current = append(subs[i].current, Part{
					topicID(byte(rapid.IntRange(1, 6).Draw(t, "past topic"))), int32(rapid.IntRange(0, 13).Draw(t, "past partition")),
				})
			}
		}
		targets := assign(AssignorUniform, subs)
		holder := make(map[Part]int)
		for i, sub := range subs {
			for _, p := range targets[sub.id] {
				if _, twice := holder[p]; twice {
					t.Fatalf("%v has two holders", p)
				}
				if n, ok := sub.topics[p.Topic]; !ok || p.Partition >= n {
					t.Fatalf("%s got %v without subscribing to it", sub.id, p)
				}
				holder[p] = i
			}
		}
		for i, sub := range subs {
			for id, n := range sub.topics {
				for k := range n {
					p := Part{id, k}
					from, ok := holder[p]
					if !ok {
						t.Fatalf("nobody got %v", p)
					}
					if len(targets[subs[from].id])-len(targets[subs[i].id]) >= 2 {
						t.Fatalf("%s has %d, %s has %d, and %v could move", subs[from].id, len(targets[subs[from].id]), sub.id, len(targets[sub.id]), p)
					}
				}
			}
		}
		settle(subs, targets)
		if n := moved(targets, assign(AssignorUniform, subs)); n != 0 {
			t.Fatalf("assigning again moved %d", n)
		}
	})
}
