package client

import "sync"

// maxSeen bounds for how many partitions it is remembered what was seen of them;
// beyond it some are forgotten, which costs a guard and nothing else.
const maxSeen = 50_000

// seenMarks is the highest leader epoch and the greatest visible end that anything
// in this process has seen of a partition. They go along with every reading, so that
// a broker that is behind says so: what a client sees never goes back.
type seenMarks struct {
	epoch int32
	end   int64
}

type seenTable struct {
	mu    sync.Mutex
	parts map[TopicPartition]seenMarks
}

// of is what was seen of a partition; -1 each where nothing was.
func (t *seenTable) of(tp TopicPartition) seenMarks {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m, ok := t.parts[tp]; ok {
		return m
	}
	return seenMarks{epoch: -1, end: -1}
}

// note raises what was seen of a partition.
func (t *seenTable) note(tp TopicPartition, epoch int32, end int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.parts[tp]
	if !ok {
		if t.parts == nil {
			t.parts = make(map[TopicPartition]seenMarks)
		}
		for old := range t.parts {
			if len(t.parts) < maxSeen {
				break
			}
			delete(t.parts, old)
		}
		m = seenMarks{epoch: -1, end: -1}
	}
	t.parts[tp] = seenMarks{epoch: max(m.epoch, epoch), end: max(m.end, end)}
}
