package replica

import (
	"math"
	"sync"
)

// copies knows how far the followers in agreed sessions have come, for the cleaner: a
// tombstone that one of them has not copied yet stays, or what it deletes would live on
// there. Its lock is taken after a replica's and none is taken within; so the cleaner
// may ask whatever it holds. The zero value is ready.
type copies struct {
	mu   sync.Mutex
	ends map[int64]int64 // by session
}

// begin notes that a session has agreed, its position being unknown.
func (c *copies) begin(sess int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends == nil {
		c.ends = map[int64]int64{}
	}
	c.ends[sess] = max(c.ends[sess], 0)
}

// reached notes how far a session has come that has begun.
func (c *copies) reached(sess, end int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.ends[sess]; ok {
		c.ends[sess] = max(known, end)
	}
}

// end forgets a session.
func (c *copies) end(sess int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ends, sess)
}

// lowest is the offset that every session has reached.
func (c *copies) lowest() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	lowest := int64(math.MaxInt64)
	for _, end := range c.ends {
		lowest = min(lowest, end)
	}
	return lowest
}
