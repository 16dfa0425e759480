package consume

import (
	"context"
	"fmt"
	"strings"
	"testing"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
)

// TestGroupResetGoesBack: records are printed again only if the group was reset below
// what this process has committed; what was merely not committed is not.
func TestGroupResetGoesBack(t *testing.T) {
	for _, c := range []struct {
		name      string
		committed int64
		start     int64
		want      string
	}{
		{"reset back", 10, 4, "4 5 6 7 8 9 10"},
		{"a commit that was lost", 4, 4, "10"},
		{"nothing committed yet", -1, 4, "10"},
		{"where it left off", 10, 10, "10"},
		{"reset on", 10, 20, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var printed, notes []string
			e := newEngine(context.Background(), Config{
				Open: &gatewayv1.ConsumeOpen{Group: "g"}, AutoCommit: true,
				Format: func(out []byte, _ string, _ int32, r *gatewayv1.ConsumeRecord) []byte {
					printed = append(printed, fmt.Sprint(r.GetOffset()))
					return out
				},
				Note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) },
			})
			e.handleAssigned(&gatewayv1.ConsumeAssigned{Topic: "t", StartOffset: 0, TopicId: []byte("0123456789abcdef")})
			pl := e.place("t", 0)
			pl.next, pl.flushed, pl.committed, pl.assigned = 10, 10, c.committed, false
			e.handleAssigned(&gatewayv1.ConsumeAssigned{Topic: "t", StartOffset: c.start, TopicId: []byte("0123456789abcdef")})
			m := &gatewayv1.ConsumeRecords{Topic: "t"}
			for o := c.start; o <= 10; o++ {
				m.Records = append(m.Records, &gatewayv1.ConsumeRecord{Offset: o})
				m.NextOffset = o + 1
			}
			e.handleRecords(m)
			if got := strings.Join(printed, " "); got != c.want {
				t.Errorf("printed %q, want %q", got, c.want)
			}
			if told := len(notes) > 0; told != (c.start < c.committed) {
				t.Errorf("said %q", notes)
			}
			if dirty := e.dirty(); c.start < c.committed && dirty[Partition{"t", 0}] != 0 {
				t.Errorf("would commit %v before anything is written", dirty)
			}
		})
	}
}
