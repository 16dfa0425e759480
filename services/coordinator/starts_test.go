package coordinator

import (
	"context"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/registry/etcdtest"
	"github.com/leat-io/leat/services/coordinator/internal/offsets"
)

// Starts come from the leaders, by each policy; a time after the last record means the
// end.
func TestStartsAreFoundAtTheLeaders(t *testing.T) {
	m := startMesh(t)
	r := run(t, etcdtest.Start(t), m)
	starts := offsets.NewStarts(r.c.client)
	parts := []group.Part{{Topic: group.TopicID(userID), Partition: 0}, {Topic: group.TopicID(userID), Partition: 1}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for name, c := range map[string]struct {
		policy group.StartPolicy
		want   int64
	}{
		"earliest":              {group.StartPolicy{Kind: group.StartEarliest}, 0},
		"latest":                {group.StartPolicy{Kind: group.StartLatest}, 9},
		"timestamp":             {group.StartPolicy{Kind: group.StartTimestamp, TimestampMs: 1000}, 5},
		"timestamp of no":       {group.StartPolicy{Kind: group.StartTimestamp, TimestampMs: 1001}, 9},
		"an hour back":          {group.StartPolicy{Kind: group.StartDuration, Back: time.Hour}, 9},
		"back before the first": {group.StartPolicy{Kind: group.StartDuration, Back: 200 * 365 * 24 * time.Hour}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			got := starts.Resolve(ctx, c.policy, parts)
			if len(got) != 2 || got[0].Part != parts[0] || got[1].Part != parts[1] {
				t.Fatalf("found %+v", got)
			}
			for _, r := range got {
				if r.Failed != "" || r.Next != c.want || r.LeaderEpoch != -1 {
					t.Fatalf("found %d (%s), want %d", r.Next, r.Failed, c.want)
				}
			}
		})
	}
	// The end is asked for before the time: a record that comes in between has a start.
	m.mu.Lock()
	m.asked = nil
	m.mu.Unlock()
	starts.Resolve(ctx, group.StartPolicy{Kind: group.StartTimestamp, TimestampMs: 1001}, parts)
	m.mu.Lock()
	asked := m.asked
	m.mu.Unlock()
	if len(asked) != 2 || asked[0].GetPlace() != typev1.OffsetSpec_PLACE_LATEST || asked[1].GetTimestamp() == nil {
		t.Fatalf("asked %v", asked)
	}
	// What cannot be asked says why.
	for wait := 50 * time.Millisecond; ; wait *= 2 { // the time that the answer takes here
		short, end := context.WithTimeout(ctx, wait)
		got := starts.Resolve(short, group.StartPolicy{Kind: group.StartLatest}, []group.Part{{Topic: group.TopicID{7}}, parts[1]})
		end()
		if got[0].Failed == "" || got[1].Failed != "" && ctx.Err() != nil || got[1].Failed == "" && got[1].Next != 9 {
			t.Fatalf("found %q and %q (%d), want a reason for the first only", got[0].Failed, got[1].Failed, got[1].Next)
		}
		if got[1].Failed == "" {
			return
		}
	}
}
