package client

import "testing"

// TestStickySpreadsSmallBatches: a batch that goes because its linger is over is
// closed like a full one, so that a slow producer without keys does not stay with
// one partition for ever.
func TestStickySpreadsSmallBatches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 3, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{})
		used := map[int32]int{}
		for range 60 {
			r, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			used[r.Partition]++
		}
		if len(used) != 3 {
			t.Errorf("60 batches went to %v", used)
		}
	})
}
