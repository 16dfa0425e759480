package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// churn drives consumers of one group at random and notes what they are given.
type churn struct {
	t       *testing.T
	m       *fakeMesh
	topic   *fakeTopic
	rng     *rand.Rand
	cfg     ConsumerConfig
	running []*Consumer
	put     int
	owner   int32
	seen    map[string]int
	next    map[*Consumer]map[TopicPartition]int64 // what each is to be given next
	lost    int
}

func newChurn(t *testing.T, seed uint64, once bool) *churn {
	m, topic := groupMesh(t, 0)
	m.startCoordinator(2)
	return &churn{
		t: t, m: m, topic: topic, rng: rand.New(rand.NewPCG(seed, 7)), owner: 1,
		seen: make(map[string]int), next: make(map[*Consumer]map[TopicPartition]int64),
		cfg: ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, SessionTimeout: 10 * time.Second, AtMostOnce: once},
	}
}

func (c *churn) join() {
	next := make(map[TopicPartition]int64)
	cfg := c.cfg
	drop := func(parts []AssignedPartition) {
		for _, p := range parts {
			delete(next, p.TopicPartition)
		}
	}
	cfg.OnRevoked = drop
	cfg.OnLost = func(parts []AssignedPartition) { c.lost++; drop(parts) }
	k := newTestConsumer(c.t, c.m.client(Config{}), cfg)
	c.next[k] = next
	c.running = append(c.running, k)
}

func (c *churn) poll(k *Consumer, d time.Duration, n int) int {
	ctx, cancel := context.WithTimeout(c.t.Context(), d)
	defer cancel()
	records, err := k.Poll(ctx, n)
	if err != nil && stops(err) && !rpc.Retryable(err) && !rpc.IsReason(err, reasonDeadlineExceeded, 104, 106, 107) {
		c.t.Logf("poll: %v", err)
	}
	for _, r := range records {
		c.seen[string(r.Value)]++
		want, known := c.next[k][r.TopicPartition]
		if known && r.Offset != want && !c.cfg.AtMostOnce {
			c.t.Fatalf("partition %d: record %d, want %d", r.Partition, r.Offset, want)
		}
		c.next[k][r.TopicPartition] = r.Offset + 1
	}
	return len(records)
}

func (c *churn) step() {
	pick := func() *Consumer { return c.running[c.rng.IntN(len(c.running))] }
	switch n := c.rng.IntN(100); {
	case n < 8 && len(c.running) < 4 || len(c.running) == 0:
		c.join()
	case n < 12:
		i := c.rng.IntN(len(c.running))
		k := c.running[i]
		c.running = append(c.running[:i:i], c.running[i+1:]...)
		if c.rng.IntN(2) == 0 {
			k.Release()
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
		_ = k.Close(ctx) // whatever it could not commit comes again
		cancel()
	case n < 16:
		if ids := c.m.memberIDs("g"); len(ids) > 0 {
			c.m.expel("g", ids[c.rng.IntN(len(ids))])
		}
	case n < 19: // the shard moves; its owner may have died
		c.owner = 3 - c.owner
		if c.rng.IntN(2) == 0 {
			c.m.killCoordinator(3 - c.owner)
			<-time.After(time.Duration(c.rng.IntN(3000)) * time.Millisecond)
			c.m.own(c.m.offsetsTopic(), c.owner)
			c.m.startCoordinator(3 - c.owner)
		} else {
			c.m.own(c.m.offsetsTopic(), c.owner)
		}
	case n < 22:
		c.m.mu.Lock()
		c.m.mute = !c.m.mute
		c.m.mu.Unlock()
	case n < 24:
		k := pick()
		if parts := k.Assigned(); len(parts) > 0 {
			k.Pause(parts[0].TopicPartition)
			c.poll(k, 100*time.Millisecond, 5)
			k.Resume(parts[0].TopicPartition)
		}
	case n < 50:
		c.m.put(c.topic, c.rng.Int32N(4), numbered(c.t, c.put, c.put+3)...)
		c.put += 3
	default:
		c.poll(pick(), time.Duration(1+c.rng.IntN(2000))*time.Millisecond, 1+c.rng.IntN(8))
	}
}

// bury expels the members whose consumers are gone and could not leave: their silence
// would do it.
func (c *churn) bury() {
	alive := make(map[string]bool)
	for _, k := range c.running {
		if k.member != nil {
			alive[k.member.ID()] = true
		}
	}
	for _, id := range c.m.memberIDs("g") {
		if !alive[id] {
			c.m.expel("g", id)
		}
	}
}

// settle lets the consumers read everything.
func (c *churn) settle() {
	c.m.mu.Lock()
	c.m.mute = false
	c.m.mu.Unlock()
	if len(c.running) == 0 {
		c.join()
	}
	for idle := 0; idle < 20*len(c.running); idle++ {
		c.bury()
		if c.poll(c.running[idle%len(c.running)], 2*time.Second, 50) > 0 {
			idle = 0
		}
	}
}

// However members come, go, are expelled, lose their coordinator and have no answers
// to their commits: nothing is left out, and each is given a partition in order.
func TestNothingIsLeftOutWhateverHappens(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := newChurn(t, seed, false)
				for range 150 {
					c.step()
				}
				c.settle()
				for i := range c.put {
					if v := fmt.Sprintf("%06d", i); c.seen[v] == 0 {
						t.Errorf("record %s was left out", v)
					}
				}
				for _, k := range c.running {
					k.Release()
					if err := k.Close(soon(t)); err != nil {
						t.Error(err)
					}
				}
				for i := range int32(4) {
					if got, want := c.m.committed("g", c.topic.at(i)), c.m.end(c.topic, i); got != want && want > 0 {
						t.Errorf("partition %d is committed up to %d of %d", i, got, want)
					}
				}
			})
		})
	}
}

// At most once: whatever happens, nothing comes twice.
func TestNothingComesTwiceWhateverHappens(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := newChurn(t, seed, true)
				for range 150 {
					c.step()
				}
				c.settle()
				for v, n := range c.seen {
					if n > 1 {
						t.Errorf("record %s came %d times", v, n)
					}
				}
				if len(c.seen) < c.put/3 {
					t.Errorf("%d records of %d came", len(c.seen), c.put)
				}
			})
		})
	}
}
