package handler

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

const (
	// memoryAge is how long the result of an admin request is kept for repeats.
	memoryAge = 10 * time.Minute
	// memorySize bounds how many are kept.
	memorySize = 5000
)

// memory keeps results of admin requests by request id. Safe for concurrent use.
type memory struct {
	mu      sync.Mutex
	results map[string]remembered
	order   []string // by age, oldest first
}

type remembered struct {
	result proto.Message
	at     time.Time
}

func newMemory() *memory { return &memory{results: map[string]remembered{}} }

// get returns the result of an earlier request with that id, nil if there is none.
func (m *memory) get(id string) proto.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.results[id]
	if !ok || id == "" || time.Since(r.at) > memoryAge {
		return nil
	}
	return r.result
}

// put keeps a result, and forgets what is too old or too much.
func (m *memory) put(id string, result proto.Message) {
	if id == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.results[id]; !ok {
		m.order = append(m.order, id)
	}
	m.results[id] = remembered{result: result, at: time.Now()}
	for len(m.order) > memorySize || len(m.order) > 0 && time.Since(m.results[m.order[0]].at) > memoryAge {
		delete(m.results, m.order[0])
		m.order = m.order[1:]
	}
}
