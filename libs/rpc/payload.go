package rpc

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Payload is an owned reference to the bytes of a `records` field: the buffers
// as they came from the connection, or as they will go out. It is not copied on
// its way. A nil Payload is empty.
//
// Whoever holds a Payload owns it and ends it once: by Free, or by handing it to
// Send. It is not safe for concurrent use; Clone gives another goroutine a
// reference of its own.
type Payload struct {
	bufs mem.BufferSlice
	vecs [][]byte
	n    int
}

// NewPayload makes a payload of ordinary memory. Nobody is told when grpc has
// written it out, so whoever sends it leaves it unchanged for good; memory that is
// to be used again comes from GetBuffer.
func NewPayload(b []byte) *Payload {
	if len(b) == 0 {
		return nil
	}
	return PayloadFromBuffer(mem.SliceBuffer(b))
}

// PayloadFromBuffer makes a payload of buffers and takes over one reference of
// each.
func PayloadFromBuffer(bufs ...mem.Buffer) *Payload {
	p := &Payload{bufs: bufs}
	p.n = p.bufs.Len()
	return p
}

// Len is the number of bytes.
func (p *Payload) Len() int {
	if p == nil {
		return 0
	}
	return p.n
}

// Vecs gives the bytes in their pieces, none of them empty; valid until Free,
// and not to be written to.
func (p *Payload) Vecs() [][]byte {
	if p == nil {
		return nil
	}
	if p.vecs == nil && p.n > 0 {
		p.vecs = make([][]byte, 0, len(p.bufs))
		for _, b := range p.bufs {
			if d := b.ReadOnlyData(); len(d) > 0 {
				p.vecs = append(p.vecs, d)
			}
		}
	}
	return p.vecs
}

// Bytes gives the bytes in one piece: without a copy where they lie in one
// buffer, else copied. Valid until Free, and not to be written to.
func (p *Payload) Bytes() []byte {
	vecs := p.Vecs()
	switch len(vecs) {
	case 0:
		return nil
	case 1:
		return vecs[0]
	}
	out := make([]byte, 0, p.n)
	for _, v := range vecs {
		out = append(out, v...)
	}
	return out
}

// Clone gives a second, independent reference to the same bytes.
func (p *Payload) Clone() *Payload {
	if p == nil {
		return nil
	}
	p.bufs.Ref()
	return &Payload{bufs: append(mem.BufferSlice(nil), p.bufs...), n: p.n}
}

// Free ends the reference; the memory may be used anew at once. Freeing again,
// or after Send, does nothing.
func (p *Payload) Free() {
	if p == nil {
		return
	}
	p.take().Free()
}

// take moves the buffers out and leaves the payload empty.
func (p *Payload) take() mem.BufferSlice {
	if p == nil {
		return nil
	}
	bufs := p.bufs
	p.bufs, p.vecs, p.n = nil, nil, 0
	return bufs
}

// envelope carries a message and its payload through grpc's streams to the
// codec. It is deliberately no proto.Message: a codec that does not know it
// must fail, not drop the payload.
type envelope struct {
	msg proto.Message
	// split asks the codec to leave the records field out of msg.
	split   bool
	payload *Payload
	// encoded is set once the codec has taken over the payload.
	encoded bool
	// err is what Unmarshal found wrong. It travels here because grpc would turn
	// an error of the codec into a bare INTERNAL status.
	err error
}

// Recv receives the next message of a stream into m, leaving its records field
// empty: those bytes come as the Payload, which the caller owns; nil if there
// are none. A message that cannot be decoded is INVALID_REQUEST; every other
// error is RecvMsg's, io.EOF among them. s is any generated stream whose server
// or connection came from this package.
func Recv(s interface{ RecvMsg(any) error }, m proto.Message) (*Payload, error) {
	env := envelope{msg: m, split: true}
	if err := s.RecvMsg(&env); err != nil {
		env.payload.Free()
		return nil, err
	}
	if env.err != nil {
		return nil, env.err
	}
	return env.payload, nil
}

// Send sends m with p as its records field, which m itself must leave empty. It
// takes over p in every case. Errors are SendMsg's: on a client's stream, io.EOF
// means that the stream has ended, and RecvMsg tells why.
func Send(s interface{ SendMsg(any) error }, m proto.Message, p *Payload) error {
	if p.Len() == 0 {
		p.Free()
		return s.SendMsg(m)
	}
	env := envelope{msg: m, payload: p}
	err := s.SendMsg(&env)
	if !env.encoded {
		p.Free()
	}
	return err
}
