package offsets

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/record"
)

func samples() []group.KV {
	part := group.Part{Topic: group.TopicID{1, 2, 3}, Partition: 7}
	return []group.KV{
		{Key: group.Key{Kind: group.KindGroup, Group: "g"}, Value: group.GroupValue{Epoch: 3, Assignor: "range", Deleting: true}},
		{Key: group.Key{Kind: group.KindMember, Group: "g", Member: "m"}, Value: group.MemberValue{
			InstanceID: "i", Topics: []string{"a", "b"}, Pattern: "x.*", Attach: 2, Epoch: 3,
			Owned:          []group.Owned{{Part: part, Epoch: 2, Revoking: true}, {Part: group.Part{Partition: 9}, Epoch: 3}},
			SessionTimeout: 1000, RebalanceTimeout: 2000, ClientID: "c", ClientHost: "h", ReplacedBy: "m2",
		}},
		{Key: group.Key{Kind: group.KindTarget, Group: "g", Member: "m"}, Value: group.TargetValue{Epoch: 3, Parts: []group.Part{part}}},
		{Key: group.Key{Kind: group.KindTarget, Group: "g", Member: "n"}, Value: group.TargetValue{Epoch: 4}},
		{Key: group.Key{Kind: group.KindOffset, Group: "g", Part: part}, Value: group.OffsetValue{
			NextOffset: 5, LeaderEpoch: 1, Metadata: "x", Member: "m", Attach: 2, Sequence: 9, CommitMs: 77,
		}},
		{Key: group.Key{Kind: group.KindOffset, Group: "g", Part: part}, Value: group.OffsetValue{NextOffset: 0, LeaderEpoch: -1}},
		{Key: group.Key{Kind: group.KindLedger, Group: "g", Slot: 3}, Value: group.LedgerValue{Epoch: 3, Cause: "why", TimeMs: 5, Moved: 2}},
		{Key: group.Key{Kind: group.KindLedger, Group: "g", Slot: 4}, Value: group.LedgerValue{
			Epoch: 4, Cause: "why", TimeMs: 5, Moved: 3, FinishedMs: 6, LongestMs: 1, TotalMs: 2,
			Moves: []group.Move{{Part: part, To: "m"}, {Part: group.Part{Partition: 2}, From: "m", To: "n"}, {Part: group.Part{Partition: 3}, From: "n"}},
		}},
		{Key: group.Key{Kind: group.KindMember, Group: "g", Member: "m"}},
		{Key: group.Key{Kind: group.KindOffset, Group: "g", Part: part}},
		Barrier(),
	}
}

func TestRecordsComeBack(t *testing.T) {
	for _, kv := range samples() {
		key, value, err := Encode(kv)
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := Encode(kv)
		if err != nil || !bytes.Equal(key, again) {
			t.Fatalf("the key of %+v is %x, then %x (%v)", kv.Key, key, again, err)
		}
		if kv.Value == nil && kv.Key.Kind != group.KindBarrier && value != nil {
			t.Fatalf("the tombstone of %+v has a value", kv.Key)
		}
		if kv.Key.Kind == group.KindBarrier && value == nil {
			t.Fatal("a barrier is a tombstone")
		}
		back, err := Decode(key, value)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(back, kv) {
			t.Fatalf("wrote %+v, read %+v", kv, back)
		}
	}
}

func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	marshal := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	groupKey := marshal(&storagev1.ShardKey{Kind: storagev1.ShardRecordKind_SHARD_RECORD_KIND_GROUP, Group: "g"})
	torn := protowire.AppendTag(nil, 2, protowire.BytesType)
	for _, c := range []struct {
		name       string
		key, value []byte
		want       string
	}{
		{"unknown kind", marshal(&storagev1.ShardKey{Kind: 42}), nil, "kind 42 is unknown"},
		{"no kind", marshal(&storagev1.ShardKey{}), nil, "kind 0 is unknown"},
		{"malformed key", torn, nil, "no shard key"},
		{"newer version", groupKey, marshal(&storagev1.GroupValue{FormatVersion: 2}), "format version 2"},
		{"no version", groupKey, []byte{}, "format version 0"},
		{"malformed value", groupKey, torn, "malformed"},
		{"member out of range", marshal(&storagev1.ShardKey{Kind: storagev1.ShardRecordKind_SHARD_RECORD_KIND_LEDGER, Group: "g"}), marshal(&storagev1.LedgerValue{
			FormatVersion: 1, Members: []string{"m"}, Moves: []*storagev1.MoveValue{{TopicId: make([]byte, 16), From: 1, To: 2}},
		}), "names member 2 of 1"},
		{"short topic id", marshal(&storagev1.ShardKey{Kind: storagev1.ShardRecordKind_SHARD_RECORD_KIND_OFFSET, Group: "g", TopicId: []byte{1}}), nil, "1 bytes, not 16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Decode(c.key, c.value)
			var format *FormatError
			if !errors.As(err, &format) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want a format error that says %q", err, c.want)
			}
		})
	}
}

func TestBatchesSplitInOrder(t *testing.T) {
	var kvs []group.KV
	for i := range 100 {
		kvs = append(kvs, group.KV{
			Key:   group.Key{Kind: group.KindOffset, Group: "g", Part: group.Part{Partition: int32(i)}},
			Value: group.OffsetValue{NextOffset: int64(i), Metadata: strings.Repeat("x", 50)},
		})
	}
	batches, err := Batches(kvs, 1000, 5)
	if err != nil {
		t.Fatal(err)
	}
	if len(batches) < 5 {
		t.Fatalf("%d batches of at most 1000 bytes", len(batches))
	}
	next := int32(0)
	r := record.NewReader(0)
	for _, b := range batches {
		if len(b) > 1000 {
			t.Fatalf("a batch has %d bytes", len(b))
		}
		if err := r.Reset(b); err != nil {
			t.Fatal(err)
		}
		for r.Next() {
			kv, err := Decode(r.Record().Key, r.Record().Value)
			if err != nil || kv.Key.Part.Partition != next {
				t.Fatalf("record %d is %+v (%v)", next, kv, err)
			}
			next++
		}
	}
	if next != 100 {
		t.Fatalf("%d records, want 100", next)
	}
	if _, err := Batches(kvs[:1], 100, 5); !errors.Is(err, record.ErrRecordTooLarge) {
		t.Fatalf("a record that does not fit gave %v", err)
	}
}
