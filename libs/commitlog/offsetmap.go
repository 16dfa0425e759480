package commitlog

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// offsetMap remembers the newest offset of each key, in memory whose size is fixed
// when it is made: 24 bytes a slot, of which four in five are used at most.
//
//	slot:  hash 16 bytes │ offset + 1, 8 bytes; 0 when the slot is free
//
// A key is known by the first 16 bytes of its SHA-256. Two keys of the same hash
// would lose a record, so the hash must be one for which nobody can make such keys;
// that rules out faster ones.
//
// Collisions go to the next slot, so that a lookup reads on where it began.
type offsetMap struct {
	slots []mapSlot
	limit int // entries it takes
	count int
}

type mapSlot struct {
	hi, lo uint64
	next   uint64 // offset + 1
}

const (
	mapSlotBytes = 24
	// The load factor is mapLoadNum of mapLoadDen. At 4/5 a key that is not there
	// costs 13 probes of neighbouring slots, at 9/10 it would be 50.
	mapLoadNum, mapLoadDen = 4, 5
	// MinDedupeBufferBytes is the smallest map worth having.
	MinDedupeBufferBytes = 1 << 10
)

// mapBytes is the memory for so many entries.
func mapBytes(entries int64) int64 {
	return (entries*mapLoadDen/mapLoadNum + 1) * mapSlotBytes
}

// mapEntries is how many entries fit in so much memory.
func mapEntries(bytes int64) int64 {
	return max(1, (bytes/mapSlotBytes-1)*mapLoadNum/mapLoadDen)
}

// newOffsetMap makes a map for so many entries, reusing the memory of an older one
// if that is large enough and given.
func newOffsetMap(entries int64, old *offsetMap) *offsetMap {
	slots := int(mapBytes(entries) / mapSlotBytes)
	m := &offsetMap{limit: int(entries)}
	if old != nil && cap(old.slots) >= slots {
		m.slots = old.slots[:slots]
		clear(m.slots)
		return m
	}
	m.slots = make([]mapSlot, slots)
	return m
}

func hashKey(key []byte) keyHash {
	sum := sha256.Sum256(key)
	return keyHash{binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])}
}

// slot is where the key is, or would be put.
func (m *offsetMap) slot(hi, lo uint64) *mapSlot {
	at, _ := bits.Mul64(hi, uint64(len(m.slots)))
	for i := int(at); ; {
		s := &m.slots[i]
		if s.next == 0 || s.hi == hi && s.lo == lo {
			return s
		}
		if i++; i == len(m.slots) {
			i = 0
		}
	}
}

// keyHash is what the map knows a key by.
type keyHash struct{ hi, lo uint64 }

// touch fetches the slots where the keys would be. Nearly all of the time that a large
// map takes goes into waiting for memory; loads that do not depend on one another
// wait together.
func (m *offsetMap) touch(hashes []keyHash) (sum uint64) {
	for _, h := range hashes {
		at, _ := bits.Mul64(h.hi, uint64(len(m.slots)))
		sum += m.slots[at].next
	}
	return sum
}

// put notes an offset of a key, which is not below those noted before. False says
// that the map is full and the key is not in it.
func (m *offsetMap) put(h keyHash, offset int64) bool {
	s := m.slot(h.hi, h.lo)
	if s.next == 0 {
		if m.count == m.limit {
			return false
		}
		m.count++
		s.hi, s.lo = h.hi, h.lo
	}
	s.next = uint64(offset) + 1
	return true
}

// get is the newest offset noted for a key, -1 when there is none.
func (m *offsetMap) get(h keyHash) int64 {
	if m.count == 0 {
		return -1
	}
	return int64(m.slot(h.hi, h.lo).next) - 1
}
