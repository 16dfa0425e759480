package rpc

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// span is where the records field lies in a message of tail bytes: its tag
// begins at head, its bytes are [start, end). A message without the field has
// all three at its end.
type span struct {
	head, start, end, tail int
}

// findRecords walks the top-level fields of an encoded message that lies spread
// over buffers. It reports false where it would rather have protobuf decide:
// malformed input, groups, the field more than once or with another wire type.
func findRecords(data mem.BufferSlice) (span, bool) {
	w := walker{data: data, total: data.Len()}
	at := span{head: w.total, start: w.total, end: w.total, tail: w.total}
	found := false
	for w.pos < w.total {
		begin := w.pos
		tag, ok := w.varint()
		if !ok {
			return span{}, false
		}
		number, wire := protowire.DecodeTag(tag)
		if number < protowire.MinValidNumber || number > protowire.MaxValidNumber {
			return span{}, false
		}
		if number == recordsField {
			if found || wire != protowire.BytesType {
				return span{}, false
			}
			found = true
			n, ok := w.varint()
			if !ok || n > uint64(w.total-w.pos) {
				return span{}, false
			}
			at.head, at.start, at.end = begin, w.pos, w.pos+int(n)
			w.skip(int(n))
			continue
		}
		if !w.skipValue(wire) {
			return span{}, false
		}
	}
	return at, true
}

// walker reads bytes from buffers in a row.
type walker struct {
	data  mem.BufferSlice
	cur   []byte // what is left of the current buffer
	next  int    // index of the buffer after it
	pos   int    // bytes consumed
	total int
}

// fill moves to the next buffer that has bytes; false at the end.
func (w *walker) fill() bool {
	for len(w.cur) == 0 {
		if w.next == len(w.data) {
			return false
		}
		w.cur = w.data[w.next].ReadOnlyData()
		w.next++
	}
	return true
}

// varint reads one; false if it is cut off or too long.
func (w *walker) varint() (uint64, bool) {
	var v uint64
	for shift := uint(0); shift < 64; shift += 7 {
		if !w.fill() {
			return 0, false
		}
		b := w.cur[0]
		w.cur = w.cur[1:]
		w.pos++
		if shift == 63 && b > 1 {
			return 0, false
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, true
		}
	}
	return 0, false
}

// skip passes n bytes; false if there are fewer.
func (w *walker) skip(n int) bool {
	if n > w.total-w.pos {
		return false
	}
	for n > 0 && w.fill() {
		k := min(n, len(w.cur))
		w.cur = w.cur[k:]
		w.pos += k
		n -= k
	}
	return n == 0
}

// skipValue passes a field's value; false if it is cut off, or a group.
func (w *walker) skipValue(wire protowire.Type) bool {
	switch wire {
	case protowire.VarintType:
		_, ok := w.varint()
		return ok
	case protowire.Fixed32Type:
		return w.skip(4)
	case protowire.Fixed64Type:
		return w.skip(8)
	case protowire.BytesType:
		n, ok := w.varint()
		return ok && n <= uint64(w.total-w.pos) && w.skip(int(n))
	default:
		return false
	}
}
