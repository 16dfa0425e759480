package rpc

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// poolTiers are the capacities that the pool keeps, each a little above a power
// of two where payloads with a small head around them are common. They are
// dense, because a buffer's cost is that of its tier, and grpc's own pool jumps
// from 32 KiB to 1 MiB.
var poolTiers = [...]int{
	2 << 10, 4 << 10, 8 << 10, 16 << 10, 24 << 10, 32<<10 + 512, 48 << 10, 64<<10 + 1024, 96 << 10, 128<<10 + 1024,
	192 << 10, 256<<10 + 1024, 384 << 10, 512<<10 + 1024, 768 << 10, 1<<20 + 4096, 3 << 19, 2<<20 + 4096, 3 << 20,
	4<<20 + 4096, 6 << 20, 8<<20 + 4096, 12 << 20, 16<<20 + 4096,
}

// bufferPool is a mem.BufferPool that does not zero what it gives. Whoever takes
// a buffer from it writes all of it before anybody reads.
type bufferPool struct {
	tiers [len(poolTiers)]sync.Pool
}

var _ mem.BufferPool = (*bufferPool)(nil)

// sharedPool serves all servers, connections and buffers of the process: memory
// that one gives back another may use. It holds nothing but free memory, which
// the garbage collector may take at any time.
var sharedPool = new(bufferPool)

// Get gives a buffer of length n with arbitrary content.
func (p *bufferPool) Get(n int) *[]byte {
	for i, size := range poolTiers {
		if n > size {
			continue
		}
		if b, ok := p.tiers[i].Get().(*[]byte); ok {
			*b = (*b)[:n]
			return b
		}
		b := make([]byte, n, size)
		return &b
	}
	b := make([]byte, n)
	return &b
}

// Put takes a buffer back. One whose capacity is not a tier's came from
// elsewhere, or was too large to keep, and is left to the garbage collector.
func (p *bufferPool) Put(b *[]byte) {
	c := cap(*b)
	for i, size := range poolTiers {
		if c == size {
			p.tiers[i].Put(b)
			return
		}
	}
}

// Buffer is a piece of pooled memory for what is read from disk and sent on
// without being copied. Its owner ends with exactly one of Payload and Free.
type Buffer struct {
	data *[]byte
	pool mem.BufferPool
}

// GetBuffer gives a buffer of n bytes with arbitrary content.
func GetBuffer(n int) *Buffer {
	return &Buffer{data: sharedPool.Get(n), pool: sharedPool}
}

// Bytes is the memory; valid until Payload or Free.
func (b *Buffer) Bytes() []byte {
	if b.data == nil {
		return nil
	}
	return *b.data
}

// Payload turns the first n bytes into a payload and takes over the buffer. n
// beyond its length is cut to it.
func (b *Buffer) Payload(n int) *Payload {
	if b == nil || b.data == nil {
		return nil
	}
	n = min(max(n, 0), len(*b.data))
	if n == 0 {
		b.Free()
		return nil
	}
	*b.data = (*b.data)[:n]
	p := PayloadFromBuffer(mem.NewBuffer(b.data, b.pool))
	b.data = nil
	return p
}

// Free gives the memory back; a second call does nothing.
func (b *Buffer) Free() {
	if b == nil || b.data == nil {
		return
	}
	b.pool.Put(b.data)
	b.data = nil
}
