package offsets

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	"github.com/leat-io/leat/libs/core/group"
)

// FormatVersion is the version of every value that this release writes, and the
// highest that it reads.
const FormatVersion = 1

// FormatError is a record that this release cannot read. The shard must not be
// served: what is not understood could be lost.
type FormatError struct {
	// Detail says what is wrong with which record.
	Detail string
	Err    error
}

func (e *FormatError) Error() string {
	text := "a record of the shard cannot be read: " + e.Detail
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; run the release that wrote it, or a newer one"
}

// Unwrap gives the decoder's error, if it was one.
func (e *FormatError) Unwrap() error { return e.Err }

var (
	deterministic = proto.MarshalOptions{Deterministic: true}

	kinds = map[group.Kind]storagev1.ShardRecordKind{
		group.KindGroup:   storagev1.ShardRecordKind_SHARD_RECORD_KIND_GROUP,
		group.KindMember:  storagev1.ShardRecordKind_SHARD_RECORD_KIND_MEMBER,
		group.KindTarget:  storagev1.ShardRecordKind_SHARD_RECORD_KIND_TARGET,
		group.KindOffset:  storagev1.ShardRecordKind_SHARD_RECORD_KIND_OFFSET,
		group.KindLedger:  storagev1.ShardRecordKind_SHARD_RECORD_KIND_LEDGER,
		group.KindBarrier: storagev1.ShardRecordKind_SHARD_RECORD_KIND_BARRIER,
	}
)

// Barrier is the record that means nothing.
func Barrier() group.KV { return group.KV{Key: group.Key{Kind: group.KindBarrier}} }

// Encode makes key and value of a record; the value of a tombstone is nil. A
// barrier always has a value: it must not count as deleted.
func Encode(kv group.KV) (key, value []byte, err error) {
	k := &storagev1.ShardKey{Kind: kinds[kv.Key.Kind], Group: kv.Key.Group, MemberId: kv.Key.Member, Slot: kv.Key.Slot}
	if kv.Key.Kind == group.KindOffset {
		k.TopicId, k.Partition = kv.Key.Part.Topic[:], kv.Key.Part.Partition
	}
	if key, err = deterministic.Marshal(k); err != nil {
		return nil, nil, fmt.Errorf("encode the key of a shard record: %w", err)
	}
	message := encodeValue(kv)
	if message == nil {
		return key, nil, nil
	}
	if value, err = deterministic.Marshal(message); err != nil {
		return nil, nil, fmt.Errorf("encode the value of a shard record: %w", err)
	}
	return key, value, nil
}

func encodeValue(kv group.KV) proto.Message {
	if kv.Key.Kind == group.KindBarrier {
		return &storagev1.BarrierValue{FormatVersion: FormatVersion}
	}
	switch v := kv.Value.(type) {
	case group.GroupValue:
		return &storagev1.GroupValue{FormatVersion: FormatVersion, GroupEpoch: v.Epoch, Assignor: v.Assignor, Deleting: v.Deleting}
	case group.MemberValue:
		return &storagev1.MemberValue{
			FormatVersion: FormatVersion, InstanceId: v.InstanceID, Topics: v.Topics, TopicPattern: v.Pattern,
			Attach: v.Attach, MemberEpoch: v.Epoch, Owned: encodeOwned(v.Owned),
			SessionTimeoutMs: v.SessionTimeout, RebalanceTimeoutMs: v.RebalanceTimeout,
			ClientId: v.ClientID, ClientHost: v.ClientHost, ReplacedBy: v.ReplacedBy,
		}
	case group.TargetValue:
		owned := make([]group.Owned, len(v.Parts))
		for i, p := range v.Parts {
			owned[i] = group.Owned{Part: p, Epoch: v.Epoch}
		}
		return &storagev1.TargetValue{FormatVersion: FormatVersion, Partitions: encodeOwned(owned), GroupEpoch: v.Epoch}
	case group.OffsetValue:
		o := &storagev1.OffsetValue{
			FormatVersion: FormatVersion, NextOffset: v.NextOffset, LeaderEpoch: v.LeaderEpoch, Metadata: v.Metadata,
			MemberId: v.Member, CommitTimestampMs: v.CommitMs,
		}
		if v.Attach != 0 {
			o.Attach, o.Sequence = &v.Attach, &v.Sequence
		}
		return o
	case group.LedgerValue:
		return encodeLedger(v)
	}
	return nil
}

func encodeOwned(owned []group.Owned) []*storagev1.OwnedValue {
	out := make([]*storagev1.OwnedValue, len(owned))
	for i, o := range owned {
		out[i] = &storagev1.OwnedValue{TopicId: o.Topic[:], Partition: o.Partition, AssignmentEpoch: o.Epoch, Revoking: o.Revoking}
	}
	return out
}

// Decode reads a record back. Errors are *FormatError.
func Decode(key, value []byte) (group.KV, error) {
	var k storagev1.ShardKey
	if err := proto.Unmarshal(key, &k); err != nil {
		return group.KV{}, &FormatError{Detail: "its key is no shard key", Err: err}
	}
	kv := group.KV{Key: group.Key{Group: k.Group, Member: k.MemberId, Slot: k.Slot}}
	for core, kind := range kinds {
		if kind == k.Kind {
			kv.Key.Kind = core
		}
	}
	if kv.Key.Kind == 0 {
		return group.KV{}, &FormatError{Detail: fmt.Sprintf("its kind %d is unknown", k.Kind)}
	}
	if kv.Key.Kind == group.KindOffset {
		id, err := topicID(k.TopicId)
		if err != nil {
			return group.KV{}, err
		}
		kv.Key.Part = group.Part{Topic: id, Partition: k.Partition}
	}
	if value == nil {
		return kv, nil
	}
	v, err := decodeValue(kv.Key.Kind, value)
	if err != nil {
		return group.KV{}, err
	}
	kv.Value = v
	return kv, nil
}

// versioned is any value: all carry the version of their format.
type versioned interface {
	proto.Message
	GetFormatVersion() int32
}

func unmarshal(kind group.Kind, value []byte, into versioned) error {
	if err := proto.Unmarshal(value, into); err != nil {
		return &FormatError{Detail: fmt.Sprintf("its value of kind %d is malformed", kinds[kind]), Err: err}
	}
	if v := into.GetFormatVersion(); v < 1 || v > FormatVersion {
		return &FormatError{Detail: fmt.Sprintf("its value of kind %d has format version %d, this release reads up to %d", kinds[kind], v, FormatVersion)}
	}
	return nil
}

func decodeValue(kind group.Kind, value []byte) (group.Value, error) {
	switch kind {
	case group.KindGroup:
		var v storagev1.GroupValue
		err := unmarshal(kind, value, &v)
		return group.GroupValue{Epoch: v.GroupEpoch, Assignor: v.Assignor, Deleting: v.Deleting}, err
	case group.KindMember:
		return decodeMember(value)
	case group.KindTarget:
		var v storagev1.TargetValue
		if err := unmarshal(kind, value, &v); err != nil {
			return nil, err
		}
		owned, err := decodeOwned(v.Partitions)
		target := group.TargetValue{Epoch: v.GroupEpoch}
		for _, o := range owned {
			target.Parts = append(target.Parts, o.Part)
		}
		return target, err
	case group.KindOffset:
		var v storagev1.OffsetValue
		err := unmarshal(kind, value, &v)
		return group.OffsetValue{
			NextOffset: v.NextOffset, LeaderEpoch: v.LeaderEpoch, Metadata: v.Metadata, Member: v.MemberId,
			Attach: v.GetAttach(), Sequence: v.GetSequence(), CommitMs: v.CommitTimestampMs,
		}, err
	case group.KindLedger:
		return decodeLedger(value)
	default: // a barrier has nothing to tell but its version
		return nil, unmarshal(kind, value, &storagev1.BarrierValue{})
	}
}

func decodeMember(value []byte) (group.Value, error) {
	var v storagev1.MemberValue
	if err := unmarshal(group.KindMember, value, &v); err != nil {
		return nil, err
	}
	owned, err := decodeOwned(v.Owned)
	return group.MemberValue{
		InstanceID: v.InstanceId, Topics: v.Topics, Pattern: v.TopicPattern, Attach: v.Attach, Epoch: v.MemberEpoch, Owned: owned,
		SessionTimeout: v.SessionTimeoutMs, RebalanceTimeout: v.RebalanceTimeoutMs,
		ClientID: v.ClientId, ClientHost: v.ClientHost, ReplacedBy: v.ReplacedBy,
	}, err
}

func decodeOwned(values []*storagev1.OwnedValue) ([]group.Owned, error) {
	owned := make([]group.Owned, 0, len(values))
	for _, v := range values {
		id, err := topicID(v.TopicId)
		if err != nil {
			return nil, err
		}
		owned = append(owned, group.Owned{Part: group.Part{Topic: id, Partition: v.Partition}, Epoch: v.AssignmentEpoch, Revoking: v.Revoking})
	}
	return owned, nil
}

func topicID(b []byte) (group.TopicID, error) {
	if len(b) != len(group.TopicID{}) {
		return group.TopicID{}, &FormatError{Detail: fmt.Sprintf("a topic id in it has %d bytes, not 16", len(b))}
	}
	return group.TopicID(b), nil
}
