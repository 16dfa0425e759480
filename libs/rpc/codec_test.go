package rpc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the stock codec, to compare with
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
)

// countingPool knows what is out, spoils what comes back, and refuses to take a
// thing twice.
type countingPool struct {
	mu   sync.Mutex
	out  map[*byte]bool
	gets int
	errs []string
}

func newCountingPool() *countingPool { return &countingPool{out: map[*byte]bool{}} }

func (p *countingPool) Get(n int) *[]byte {
	b := make([]byte, n, max(n+1, poolTiers[0])) // never so small that grpc leaves it to the garbage collector
	for i := range b {
		b[i] = 0xdb
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gets++
	p.out[&b[:1][0]] = true
	return &b
}

// Put spoils the bytes, so that whoever still reads them notices.
func (p *countingPool) Put(b *[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := &(*b)[:1][0]
	if !p.out[key] {
		p.errs = append(p.errs, "a buffer came back twice, or from elsewhere")
		return
	}
	delete(p.out, key)
	full := (*b)[:cap(*b)]
	for i := range full {
		full[i] = 0xdd
	}
}

// check fails the test if anything is still out.
func (p *countingPool) check(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.errs {
		t.Error(e)
	}
	if len(p.out) != 0 {
		t.Errorf("%d of %d buffers never came back", len(p.out), p.gets)
	}
}

// split cuts data into buffers at the given places, each from the pool if it is
// large enough to be counted.
func split(pool mem.BufferPool, data []byte, at ...int) mem.BufferSlice {
	var out mem.BufferSlice
	from := 0
	for _, to := range append(at, len(data)) {
		out = append(out, mem.Copy(data[from:to], pool))
		from = to
	}
	return out
}

// every cuts data into buffers of n bytes.
func every(pool mem.BufferPool, data []byte, n int) mem.BufferSlice {
	var at []int
	for i := n; i < len(data); i += n {
		at = append(at, i)
	}
	return split(pool, data, at...)
}

func someRequest(records int) *brokerv1.ProduceRequest {
	m := &brokerv1.ProduceRequest{Message: &brokerv1.ProduceRequest_Batch{Batch: &brokerv1.ProduceBatch{
		CorrelationId: 1 << 40, TopicId: []byte("0123456789abcdef"), Partition: 7, LeaderEpoch: -1,
	}}}
	if records > 0 {
		m.Records = make([]byte, records)
		for i := range m.Records {
			m.Records[i] = byte(i * 7)
		}
	}
	return m
}

func mustMarshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkSplit decodes data with the codec and compares with protobuf itself.
func checkSplit(t testing.TB, pool *countingPool, data mem.BufferSlice) {
	t.Helper()
	wire := data.Materialize()
	var want brokerv1.ProduceRequest
	wantErr := proto.Unmarshal(wire, &want)
	got := &brokerv1.ProduceRequest{Records: []byte("left from before")}
	env := envelope{msg: got, split: true}
	if err := (codec{pool: pool}).Unmarshal(data, &env); err != nil {
		t.Fatalf("the codec fails by itself, which grpc would report as INTERNAL: %v", err)
	}
	data.Free() // as grpc does
	if (env.err != nil) != (wantErr != nil) {
		t.Fatalf("%x: error %v, protobuf says %v", wire, env.err, wantErr)
	}
	if env.err != nil {
		if !IsReason(env.err, invalid) {
			t.Fatalf("malformed input gives %v", env.err)
		}
		if env.payload != nil {
			t.Fatal("a payload together with an error")
		}
		return
	}
	if got.Records != nil {
		t.Fatal("records stayed in the message")
	}
	if env.payload.Len() != len(want.Records) {
		t.Fatalf("payload of %d bytes, want %d", env.payload.Len(), len(want.Records))
	}
	if !bytes.Equal(env.payload.Bytes(), want.Records) {
		t.Fatal("the payload has other bytes")
	}
	want.Records = nil
	if !proto.Equal(got, &want) {
		t.Fatalf("decoded %v, want %v", got, &want)
	}
	env.payload.Free()
}

// The field may be cut anywhere, lie anywhere and come more than once.
func TestUnmarshalAtEverySplit(t *testing.T) {
	tail := protowire.AppendTag(nil, 1000, protowire.BytesType)
	tail = protowire.AppendString(tail, "a field of a newer release")
	group := protowire.AppendTag(nil, 900, protowire.StartGroupType)
	group = protowire.AppendTag(group, 15, protowire.BytesType)
	group = protowire.AppendString(group, "not the records")
	group = protowire.AppendTag(group, 900, protowire.EndGroupType)
	second := protowire.AppendTag(nil, 15, protowire.BytesType)
	second = protowire.AppendString(second, "the last one counts")
	wrongType := protowire.AppendVarint(protowire.AppendTag(nil, 15, protowire.VarintType), 5)
	whole := mustMarshal(t, someRequest(40))
	messages := map[string][]byte{
		"usual":        whole,
		"no records":   mustMarshal(t, someRequest(0)),
		"empty":        nil,
		"in the midst": append(append([]byte(nil), whole...), tail...),
		"first":        append(mustMarshal(t, &brokerv1.ProduceRequest{Records: []byte("abc")}), mustMarshal(t, someRequest(0))...),
		"twice":        append(append([]byte(nil), whole...), second...),
		"empty field":  append(mustMarshal(t, someRequest(0)), 0x7a, 0),
		"group":        append(append([]byte(nil), whole...), group...),
		"wrong type":   append(append([]byte(nil), whole...), wrongType...),
		"type, alone":  append(mustMarshal(t, someRequest(0)), 0x78, 0),
		"cut short":    whole[:len(whole)-1],
		"too long":     {0x7a, 3, 0x08, 1},
		"field 0":      {0, 1},
		"long varint":  bytes.Repeat([]byte{0xff}, 11),
		"huge length":  {0x7a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"end group":    {0x0c},
	}
	for name, wire := range messages {
		t.Run(name, func(t *testing.T) {
			pool := newCountingPool()
			for i := 0; i <= len(wire); i++ {
				checkSplit(t, pool, split(pool, wire, i))
				for j := i; j <= len(wire); j += 3 {
					checkSplit(t, pool, split(pool, wire, i, j))
				}
			}
			for n := 1; n < 5; n++ {
				checkSplit(t, pool, every(pool, wire, n))
			}
			pool.check(t)
		})
	}
}

// Large payloads, in frames as the transport brings them: the bytes stay where
// they are, and the buffers go home when the payload is freed, not before.
func TestUnmarshalKeepsTheBuffers(t *testing.T) {
	pool := newCountingPool()
	wire := mustMarshal(t, someRequest(100_000))
	data := every(pool, wire, 16<<10)
	first := &data[1].ReadOnlyData()[0]
	frames := len(data)
	env := envelope{msg: &brokerv1.ProduceRequest{}, split: true}
	if err := (codec{pool: pool}).Unmarshal(data, &env); err != nil || env.err != nil {
		t.Fatal(err, env.err)
	}
	data.Free()
	if pool.gets != frames {
		t.Errorf("the codec took %d buffers of its own", pool.gets-frames)
	}
	if &env.payload.Vecs()[1][0] != first {
		t.Error("the payload is a copy")
	}
	clone := env.payload.Clone()
	env.payload.Free()
	env.payload.Free()
	if !bytes.Equal(clone.Bytes(), someRequest(100_000).Records) {
		t.Error("the clone does not outlive the original")
	}
	clone.Free()
	if clone.Len() != 0 || clone.Vecs() != nil {
		t.Error("a freed payload has bytes")
	}
	pool.check(t)
}

// What we send, the stock codec reads; what the stock codec sends, we read; and
// the bytes are the same.
func TestSameWireAsStockCodec(t *testing.T) {
	stock := encoding.GetCodecV2("proto")
	for _, n := range []int{0, 1, 100, 5000, 70_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			pool := newCountingPool()
			ours := codec{pool: pool}
			want := someRequest(n)

			env := envelope{msg: someRequest(0), payload: PayloadFromBuffer(split(pool, want.Records, n/3)...)}
			sent, err := ours.Marshal(&env)
			if err != nil {
				t.Fatal(err)
			}
			if env.payload.Len() != 0 || env.payload.Vecs() != nil {
				t.Error("the payload still holds what grpc will free")
			}
			env.payload.Free()
			var got brokerv1.ProduceRequest
			if err := stock.Unmarshal(sent, &got); err != nil || !proto.Equal(&got, want) {
				t.Errorf("the stock codec reads %v, %v", &got, err)
			}
			sent.Free()

			theirs, err := stock.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			got.Reset()
			if err := ours.Unmarshal(theirs, &got); err != nil || !proto.Equal(&got, want) {
				t.Errorf("our codec reads %v, %v", &got, err)
			}
			theirs.Free()

			plain, err := ours.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			checkSplit(t, pool, plain)
			pool.check(t)
		})
	}
}

// Mistakes of the sender are errors, and the payload is still the envelope's.
func TestMarshalRefuses(t *testing.T) {
	pool := newCountingPool()
	c := codec{pool: pool}
	for name, m := range map[string]proto.Message{
		"records set as well": someRequest(3),
		"no such field":       &brokerv1.ProduceResponse{},
		"other field 15":      &gatewayv1.ConsumeOpen{},
	} {
		env := envelope{msg: m, payload: PayloadFromBuffer(split(pool, make([]byte, 5000))...)}
		if _, err := c.Marshal(&env); err == nil || env.encoded {
			t.Errorf("%s: no error", name)
		}
		env.payload.Free()
	}
	if _, err := c.Marshal("text"); err == nil {
		t.Error("a string is encoded")
	}
	if err := c.Unmarshal(nil, new(string)); err == nil {
		t.Error("a string is decoded")
	}
	pool.check(t)
}

// A message with another field 15 is decoded whole.
func TestUnmarshalOtherField15(t *testing.T) {
	env := envelope{msg: &brokerv1.ProduceResponse{}, split: true}
	wire := mustMarshal(t, &brokerv1.ProduceRequest{Records: []byte("x")})
	if err := (codec{pool: newCountingPool()}).Unmarshal(split(mem.NopBufferPool{}, wire), &env); err != nil || env.err != nil || env.payload != nil {
		t.Errorf("got %v, %v, payload %v", err, env.err, env.payload)
	}
	if !bytes.Equal(env.msg.ProtoReflect().GetUnknown(), wire) {
		t.Error("the unknown field is lost")
	}
}

// FuzzUnmarshal compares with protobuf on any input, cut anywhere.
func FuzzUnmarshal(f *testing.F) {
	f.Add(mustMarshal(f, someRequest(50)), uint64(1))
	f.Add(mustMarshal(f, someRequest(3000)), uint64(2))
	f.Add([]byte{0x7a, 0x02, 1, 2, 0x7a, 0x01, 9}, uint64(3))
	f.Add([]byte{0x0b, 0x7a, 0x00, 0x0c}, uint64(4))
	f.Fuzz(func(t *testing.T, wire []byte, seed uint64) {
		pool := newCountingPool()
		rng := rand.New(rand.NewPCG(seed, 0))
		var at []int
		for i := range wire {
			if rng.IntN(8) == 0 {
				at = append(at, i)
			}
		}
		checkSplit(t, pool, split(pool, wire, at...))
		pool.check(t)
	})
}

func TestPoolTiers(t *testing.T) {
	p := new(bufferPool)
	for _, n := range []int{0, 1, 2048, 2049, 65 << 10, 1 << 20, MaxMessageBytes, MaxMessageBytes + MessageOverhead} {
		b := p.Get(n)
		if len(*b) != n {
			t.Errorf("asked for %d bytes, got %d", n, len(*b))
		}
		p.Put(b)
	}
	for i := 1; i < len(poolTiers); i++ {
		if poolTiers[i] <= poolTiers[i-1] {
			t.Errorf("tier %d is not above the one before", poolTiers[i])
		}
	}
	foreign := make([]byte, 10)
	p.Put(&foreign) // left to the garbage collector
}

func TestBuffer(t *testing.T) {
	pool := newCountingPool()
	get := func(n int) *Buffer { return &Buffer{data: pool.Get(n), pool: pool} }
	b := get(5000)
	copy(b.Bytes(), "hello")
	p := b.Payload(5)
	b.Free()
	if b.Bytes() != nil || b.Payload(1) != nil {
		t.Error("the buffer keeps what it gave away")
	}
	if string(p.Bytes()) != "hello" {
		t.Errorf("payload %q", p.Bytes())
	}
	p.Free()
	if p := get(5000).Payload(0); p != nil {
		t.Error("an empty payload is not nil")
	}
	if p := get(5000).Payload(6000); p.Len() != 5000 {
		t.Errorf("a payload of %d bytes from a buffer of 5000", p.Len())
	} else {
		p.Free()
	}
	get(5000).Free()
	pool.check(t)
	GetBuffer(1 << 16).Free()
}
