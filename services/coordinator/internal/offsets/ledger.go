package offsets

import (
	"fmt"

	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	"github.com/leat-io/leat/libs/core/group"
)

// encodeLedger names each member once: moves refer to it by number.
func encodeLedger(v group.LedgerValue) *storagev1.LedgerValue {
	out := &storagev1.LedgerValue{
		FormatVersion: FormatVersion, GroupEpoch: v.Epoch, Cause: v.Cause, TimestampMs: v.TimeMs, Moved: v.Moved,
		FinishedMs: v.FinishedMs, LongestUnownedMs: v.LongestMs, TotalUnownedMs: v.TotalMs,
	}
	numbers := map[string]int32{"": 0}
	number := func(id string) int32 {
		n, ok := numbers[id]
		if !ok {
			out.Members = append(out.Members, id)
			n = int32(len(out.Members))
			numbers[id] = n
		}
		return n
	}
	for _, m := range v.Moves {
		out.Moves = append(out.Moves, &storagev1.MoveValue{
			TopicId: m.Topic[:], Partition: m.Partition, From: number(m.From), To: number(m.To),
		})
	}
	return out
}

func decodeLedger(value []byte) (group.Value, error) {
	var v storagev1.LedgerValue
	if err := unmarshal(group.KindLedger, value, &v); err != nil {
		return nil, err
	}
	out := group.LedgerValue{
		Epoch: v.GroupEpoch, Cause: v.Cause, TimeMs: v.TimestampMs, Moved: v.Moved,
		FinishedMs: v.FinishedMs, LongestMs: v.LongestUnownedMs, TotalMs: v.TotalUnownedMs,
	}
	for _, m := range v.Moves {
		id, err := topicID(m.TopicId)
		if err != nil {
			return nil, err
		}
		move := group.Move{Part: group.Part{Topic: id, Partition: m.Partition}}
		for _, name := range []struct {
			number int32
			into   *string
		}{{m.From, &move.From}, {m.To, &move.To}} {
			if name.number < 0 || int(name.number) > len(v.Members) {
				return nil, &FormatError{Detail: fmt.Sprintf("a move in it names member %d of %d", name.number, len(v.Members))}
			}
			if name.number > 0 {
				*name.into = v.Members[name.number-1]
			}
		}
		out.Moves = append(out.Moves, move)
	}
	return out, nil
}
