package commitlog

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// The map answers as a Go map does, says when it is full, and takes no more than
// it was allowed.
func TestOffsetMapAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 40).Draw(t, "limit")
		m := newOffsetMap(limit, nil)
		model := map[string]int64{}
		for i := range rapid.IntRange(0, 120).Draw(t, "puts") {
			key := string(binary.AppendUvarint(nil, rapid.Uint64Range(0, 60).Draw(t, "key")))
			_, known := model[key]
			if got, want := m.put(hashKey([]byte(key)), int64(i)), known || int64(len(model)) < limit; got != want {
				t.Fatalf("put into a map with %d of %d: %v", len(model), limit, got)
			} else if got {
				model[key] = int64(i)
			}
		}
		for k := range uint64(62) {
			key := binary.AppendUvarint(nil, k)
			want, known := model[string(key)]
			if !known {
				want = -1
			}
			if got := m.get(hashKey(key)); got != want {
				t.Fatalf("key %d: %d, want %d", k, got, want)
			}
		}
	})
}

func TestOffsetMapMemory(t *testing.T) {
	if n := unsafe.Sizeof(mapSlot{}); n != mapSlotBytes {
		t.Fatalf("a slot takes %d bytes", n)
	}
	for _, buffer := range []int64{MinDedupeBufferBytes, 100_000, 128 << 20} {
		n := mapEntries(buffer)
		if n < 1 || mapBytes(n) > buffer || mapBytes(n+n/20+2) < buffer {
			t.Fatalf("%d bytes hold %d entries, which take %d", buffer, n, mapBytes(n))
		}
	}
	m := newOffsetMap(1000, nil)
	if again := newOffsetMap(500, m); &again.slots[0] != &m.slots[0] || again.limit != 500 {
		t.Fatal("the memory was not used again")
	}
}

func BenchmarkOffsetMapPut(b *testing.B) {
	m := newOffsetMap(1<<20, nil)
	var key [16]byte
	for i := range b.N {
		binary.BigEndian.PutUint64(key[:], uint64(i)&(1<<20-1))
		m.put(hashKey(key[:]), int64(i))
	}
}
