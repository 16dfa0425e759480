package logtest

import (
	"context"
	"sync"

	"github.com/leat-io/leat/libs/core/group"
)

// Starts answers where partitions start: at First for the policy earliest, at Last for
// every other. It is safe for concurrent use.
type Starts struct {
	First, Last int64

	mu    sync.Mutex
	fail  string
	asked int
}

// Fail makes every answer say this from now on; empty: none does.
func (s *Starts) Fail(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = why
}

// Asked tells how many questions there were.
func (s *Starts) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// Resolve implements shard.Starts.
func (s *Starts) Resolve(_ context.Context, policy group.StartPolicy, parts []group.Part) []group.StartResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	var out []group.StartResult
	for _, p := range parts {
		r := group.StartResult{Part: p, Next: s.Last, LeaderEpoch: -1, Failed: s.fail}
		if policy.Kind == group.StartEarliest {
			r.Next = s.First
		}
		out = append(out, r)
	}
	return out
}
