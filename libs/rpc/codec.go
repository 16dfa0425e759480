package rpc

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// recordsField is the number of the field whose bytes are never copied, in
// every message that has a field of that number and name.
const (
	recordsField = protoreflect.FieldNumber(15)
	recordsName  = protoreflect.Name("records")
)

// codec is gRPC's "proto" codec with one thing added: for an envelope, the bytes
// of the records field stay in the buffers they came in, or are sent from the
// buffers they are in. On the wire there is no difference to plain protobuf:
//
//	+------------------------+------+--------+---------------------+
//	| the message's other    | 0x7a | length | bytes of records    |
//	| fields, as protobuf    | (15, | varint |                     |
//	| encodes them           |  LEN)|        |                     |
//	+------------------------+------+--------+---------------------+
//	 one buffer, written by Marshal           the payload's buffers
//
// Received messages may have the field anywhere, and any boundary of buffers
// may fall anywhere: a message comes in frames of 16 KiB, the first of which may
// be a few bytes long.
type codec struct {
	pool mem.BufferPool
}

var _ encoding.CodecV2 = codec{}

// Name is "proto": the content type stays application/grpc+proto.
func (codec) Name() string { return "proto" }

// Marshal encodes a message, or an envelope with its payload.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	env, ok := v.(*envelope)
	if !ok {
		m := messageOf(v)
		if m == nil {
			return nil, fmt.Errorf("cannot encode a %T: it is no protobuf message", v)
		}
		return c.marshal(m, 0)
	}
	n := env.payload.Len()
	if n == 0 {
		return c.marshal(env.msg, 0)
	}
	fd := recordsOf(env.msg)
	if fd == nil {
		return nil, fmt.Errorf("cannot send a payload with a %s: it has no field records = 15", env.msg.ProtoReflect().Descriptor().FullName())
	}
	if env.msg.ProtoReflect().Has(fd) {
		return nil, fmt.Errorf("cannot send a payload with a %s whose records are set as well", env.msg.ProtoReflect().Descriptor().FullName())
	}
	out, err := c.marshal(env.msg, n)
	if err != nil {
		return nil, err
	}
	env.encoded = true
	return append(out, env.payload.take()...), nil
}

// marshal encodes m into one buffer, and behind it the head of a records field
// of the given length, if that is not 0.
func (c codec) marshal(m proto.Message, records int) (mem.BufferSlice, error) {
	size := proto.Size(m)
	opts := proto.MarshalOptions{UseCachedSize: true}
	head := 0
	if records > 0 {
		head = protowire.SizeTag(recordsField) + protowire.SizeVarint(uint64(records))
	}
	if size+head == 0 {
		return nil, nil
	}
	var pooled *[]byte
	var buf []byte
	if mem.IsBelowBufferPoolingThreshold(size + head) {
		buf = make([]byte, 0, size+head)
	} else {
		pooled = c.pool.Get(size + head)
		buf = (*pooled)[:0]
	}
	buf, err := opts.MarshalAppend(buf, m)
	if err != nil {
		if pooled != nil {
			c.pool.Put(pooled)
		}
		return nil, err
	}
	if records > 0 {
		buf = protowire.AppendTag(buf, recordsField, protowire.BytesType)
		buf = protowire.AppendVarint(buf, uint64(records))
	}
	if pooled == nil {
		return mem.BufferSlice{mem.SliceBuffer(buf)}, nil
	}
	*pooled = buf
	return mem.BufferSlice{mem.NewBuffer(pooled, c.pool)}, nil
}

// Unmarshal decodes into a message, or into an envelope. For an envelope it
// never fails: what is wrong is left in the envelope, for Recv and the server to
// say in words of their own.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	env, ok := v.(*envelope)
	if !ok {
		m := messageOf(v)
		if m == nil {
			return fmt.Errorf("cannot decode into a %T: it is no protobuf message", v)
		}
		return c.unmarshal(data, m)
	}
	var err error
	if fd := recordsOf(env.msg); env.split && fd != nil {
		env.payload, err = c.unmarshalSplit(data, env.msg, fd)
	} else {
		err = c.unmarshal(data, env.msg)
	}
	if err != nil {
		env.err = Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
			"a message of %d bytes is no valid %s: %w; send what the proto of this method says",
			data.Len(), env.msg.ProtoReflect().Descriptor().FullName(), err)
	}
	return nil
}

// unmarshal decodes a whole message, as gRPC's own codec does.
func (c codec) unmarshal(data mem.BufferSlice, m proto.Message) error {
	buf := data.MaterializeToBuffer(c.pool)
	defer buf.Free()
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

// unmarshalSplit decodes everything but the records field and gives references
// to the buffers of that field.
func (c codec) unmarshalSplit(data mem.BufferSlice, m proto.Message, fd protoreflect.FieldDescriptor) (*Payload, error) {
	at, ok := findRecords(data)
	if !ok {
		// Damaged, or legal and odd: protobuf itself decides.
		if err := c.unmarshal(data, m); err != nil {
			return nil, err
		}
		r := m.ProtoReflect()
		p := NewPayload(r.Get(fd).Bytes())
		r.Clear(fd)
		return p, nil
	}
	if err := c.unmarshalRest(data, m, at); err != nil {
		return nil, err
	}
	if at.end == at.start {
		return nil, nil
	}
	return PayloadFromBuffer(sliceOut(data, at.start, at.end)...), nil
}

// unmarshalRest decodes what lies before and behind the records field.
func (c codec) unmarshalRest(data mem.BufferSlice, m proto.Message, at span) error {
	if len(data) > 0 {
		// Nearly always the rest lies at the start of the first buffer.
		first := data[0].ReadOnlyData()
		if at.tail == at.end && at.head <= len(first) {
			return proto.Unmarshal(first[:at.head], m)
		}
	}
	n := at.head + at.tail - at.end
	var buf []byte
	if mem.IsBelowBufferPoolingThreshold(n) {
		buf = make([]byte, 0, n)
	} else {
		pooled := c.pool.Get(n)
		defer c.pool.Put(pooled)
		buf = (*pooled)[:0]
	}
	pos := 0
	for _, b := range data {
		d := b.ReadOnlyData()
		buf = append(buf, clip(d, pos, 0, at.head)...)
		buf = append(buf, clip(d, pos, at.end, at.tail)...)
		pos += len(d)
	}
	return proto.Unmarshal(buf, m)
}

// clip gives the part of d, which begins at pos, that lies in [from, to).
func clip(d []byte, pos, from, to int) []byte {
	lo, hi := max(from-pos, 0), min(to-pos, len(d))
	if lo >= hi {
		return nil
	}
	return d[lo:hi]
}

// sliceOut gives a new reference to each buffer that holds part of [from, to).
func sliceOut(data mem.BufferSlice, from, to int) mem.BufferSlice {
	out := make(mem.BufferSlice, 0, len(data))
	pos := 0
	for _, b := range data {
		n := b.Len()
		lo, hi := max(from-pos, 0), min(to-pos, n)
		if lo < hi {
			out = append(out, b.Slice(lo, hi))
		}
		pos += n
	}
	return out
}

// recordsOf finds the records field of a message; nil if it has none.
func recordsOf(m proto.Message) protoreflect.FieldDescriptor {
	fd := m.ProtoReflect().Descriptor().Fields().ByNumber(recordsField)
	if fd == nil || fd.Name() != recordsName || fd.Kind() != protoreflect.BytesKind || fd.IsList() {
		return nil
	}
	return fd
}

// messageOf gives v as a protobuf message of the current or the old kind; nil if
// it is neither.
func messageOf(v any) proto.Message {
	switch m := v.(type) {
	case protoadapt.MessageV2:
		return m
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m)
	}
	return nil
}
