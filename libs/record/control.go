package record

import "encoding/binary"

// A control record's key begins with a version and a type, two bytes each. Kafka
// uses the types 0 to 6; FENCE lies apart from them.
const (
	ControlAbort  = int16(0)
	ControlCommit = int16(1)
	ControlFence  = int16(100)

	controlVersion   = 0
	controlKeySize   = 4
	fenceValueSize   = 18
	fenceVersion     = 0
	fenceVersionSize = 2
	maxControlBytes  = 64 << 10 // that a control batch may unpack to
)

// Fence is the permission under which a coordinator writes to its shard: the shard
// epoch, and the attempt within it. A log refuses whatever comes under a lower one.
//
// Its control record has the key version i16 = 0, type i16 = 100, and the value
// version i16 = 0, shard epoch i64, attempt i64.
type Fence struct {
	ShardEpoch int64
	Attempt    int64
}

// Less orders fences by shard epoch, then attempt.
func (f Fence) Less(other Fence) bool {
	if f.ShardEpoch != other.ShardEpoch {
		return f.ShardEpoch < other.ShardEpoch
	}
	return f.Attempt < other.Attempt
}

// BuildFence encodes the control batch that carries a fence, with a timestamp in
// ms.
func BuildFence(f Fence, timestamp int64) ([]byte, error) {
	o := DefaultBuilderOptions()
	o.Control = true
	b, err := NewBuilder(o)
	if err != nil {
		return nil, err
	}
	be := binary.BigEndian
	key := be.AppendUint16(be.AppendUint16(nil, controlVersion), uint16(ControlFence))
	value := be.AppendUint64(be.AppendUint64(be.AppendUint16(nil, fenceVersion), uint64(f.ShardEpoch)), uint64(f.Attempt))
	if _, err := b.Append(&Record{Timestamp: timestamp, Key: key, Value: value}); err != nil {
		return nil, err
	}
	return b.Build()
}

// Control decodes the first record of a control batch. kind is its type, and fence
// is set when that is ControlFence. ok is false for a batch that is no control
// batch, holds no record, or whose record is not understood.
func Control(batch []byte) (kind int16, fence Fence, ok bool) {
	r := NewReader(maxControlBytes)
	defer r.Close()
	if r.Reset(batch) != nil || !r.Header().Attributes.Control() || !r.Next() {
		return 0, Fence{}, false
	}
	rec := r.Record()
	be := binary.BigEndian
	if len(rec.Key) < controlKeySize || int16(be.Uint16(rec.Key)) < controlVersion {
		return 0, Fence{}, false
	}
	kind = int16(be.Uint16(rec.Key[2:]))
	if kind != ControlFence {
		return kind, Fence{}, true
	}
	if len(rec.Value) < fenceValueSize || int16(be.Uint16(rec.Value)) < fenceVersion {
		return kind, Fence{}, false
	}
	v := rec.Value[fenceVersionSize:]
	return kind, Fence{ShardEpoch: int64(be.Uint64(v)), Attempt: int64(be.Uint64(v[8:]))}, true
}
