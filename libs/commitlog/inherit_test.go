package commitlog

import (
	"bytes"
	"errors"
	"testing"

	"github.com/leat-io/leat/libs/record"
	"pgregory.net/rapid"
)

// appendHistory appends batches of a few producers to a log and returns the offsets at which
// they begin.
func appendHistory(t testing.TB, rt *rapid.T, l *Log) []int64 {
	var begins []int64
	next, epochs := map[int64]int32{}, map[int64]int16{}
	for range rapid.IntRange(1, 40).Draw(rt, "batches") {
		id, n := rapid.Int64Range(1, 4).Draw(rt, "producer"), rapid.IntRange(1, 3).Draw(rt, "records")
		if rapid.IntRange(0, 9).Draw(rt, "new epoch") == 0 {
			epochs[id], next[id] = epochs[id]+1, 0
		}
		info := mustAppend(t, l, produced(t, id, epochs[id], next[id], n, false, 1), 0)
		next[id] += int32(n)
		begins = append(begins, info.BaseOffset)
	}
	return begins
}

// state is what a log remembers of producers, but for when it saw them.
func (l *Log) state() []byte {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := newProducerState(l.producers.offset)
	s.fence = l.producers.fence
	for id, p := range l.producers.byID {
		q := *p
		q.lastSeen = 0
		s.byID[id] = &q
	}
	return s.encode()
}

// A copy that begins above deleted records, and inherits the producers, remembers what
// its leader does once it has copied the rest; also after a power cut at any moment.
func TestInheritProducers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		leader, _ := mustOpen(t, testOptions(newFS(t)))
		begins := appendHistory(t, rt, leader)
		at := rapid.SampledFrom(append(begins, leader.EndOffset())).Draw(rt, "log start")
		disk := newFS(t)
		o := testOptions(disk)
		l, _ := mustOpen(t, o)
		if l.WantsProducers() {
			rt.Fatal("a log that begins at 0 lacks nothing")
		}
		if err := l.ResetTo(at); err != nil {
			rt.Fatal(err)
		}
		if l.WantsProducers() != (at > 0) {
			rt.Fatalf("begun anew at %d, it wants producers: %v", at, l.WantsProducers())
		}
		snapshot := leader.ProducersBelow(at)
		if err := l.InheritProducers(snapshot); err != nil {
			rt.Fatal(err)
		}
		if rapid.Bool().Draw(rt, "power cut") {
			disk.Crash(nil)
			l, _ = mustOpen(t, o)
			if got := l.ProducersBelow(at); !bytes.Equal(got, snapshot) {
				rt.Fatalf("after a power cut: %s\nwant: %s", got, snapshot)
			}
		}
		if at < leader.EndOffset() {
			res, err := leader.Read(at, leader.EndOffset(), 1<<20, alloc)
			if err != nil {
				rt.Fatal(err)
			}
			for data := res.Data; len(data) > 0; {
				b, rest, err := record.NextBatch(data)
				if err != nil {
					rt.Fatal(err)
				}
				if _, err := l.AppendAt([][]byte{b}); err != nil {
					rt.Fatal(err)
				}
				data = rest
			}
		}
		if got, want := l.state(), leader.state(); !bytes.Equal(got, want) {
			rt.Fatalf("the copy remembers: %s\nits leader: %s", got, want)
		}
	})
}

func TestInheritProducersIsRefused(t *testing.T) {
	leader, _ := mustOpen(t, testOptions(newFS(t)))
	mustAppend(t, leader, produced(t, 7, 0, 0, 3, false, 1), 0)
	snapshot := leader.ProducersBelow(3)
	l, _ := mustOpen(t, testOptions(newFS(t)))
	if err := l.ResetTo(3); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"nothing":             nil,
		"cut short":           snapshot[:len(snapshot)-1],
		"of another offset":   leader.ProducersBelow(4),
		"a flipped bit":       bytes.Replace(snapshot, []byte("producer 7"), []byte("producer 6"), 1),
		"batches above it":    (&producerState{offset: 3, byID: leader.producers.byID}).withLast(5).encode(),
		"an unknown producer": (&producerState{offset: 3, byID: map[int64]*producer{-1: leader.producers.byID[7]}}).encode(),
	} {
		var corrupt *CorruptError
		if err := l.InheritProducers(bad); !errors.As(err, &corrupt) || l.Producers() != 0 {
			t.Errorf("%s: %v, %d producers", name, err, l.Producers())
		}
	}
	if err := l.InheritProducers(snapshot); err != nil || l.Producers() != 1 {
		t.Fatal(err, l.Producers())
	}
	mustAppend(t, l, produced(t, 7, 0, 3, 1, false, 1), 0)
	var order *OutOfOrderError
	if err := l.InheritProducers(snapshot); !errors.As(err, &order) || l.WantsProducers() {
		t.Errorf("over records: %v", err)
	}
}

// withLast has the state's batches end at an offset.
func (s *producerState) withLast(last int64) *producerState {
	out := &producerState{offset: s.offset, byID: map[int64]*producer{}}
	for id, p := range s.byID {
		q := *p
		q.batches[0].last = last
		out.byID[id] = &q
	}
	return out
}
