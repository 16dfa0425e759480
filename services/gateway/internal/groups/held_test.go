package groups

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
)

func TestHeldBack(t *testing.T) {
	told := func(w coordinatorv1.WaitingFor) *coordinatorv1.MemberProgress {
		return &coordinatorv1.MemberProgress{WaitingFor: w, Detail: "because", OldestUnprocessedAge: durationpb.New(90 * time.Second)}
	}
	for _, c := range []struct {
		name         string
		h            Held
		want, detail string
	}{
		{"no lag", Held{Lag: 0}, "NOTHING", ""},
		{"no end", Held{Lag: -1, Member: "m", EndErr: errors.New("broker 2 is gone")}, "BROKER", "broker 2 is gone"},
		{"no members", Held{Lag: 5}, "NO_OWNER", "no members"},
		{"between members", Held{Lag: 5, Members: 2, Unowned: "waits for m1"}, "NO_OWNER", "waits for m1"},
		{"not subscribed", Held{Lag: 5, Members: 2}, "NO_OWNER", "no member subscribes"},
		{"revoking", Held{Lag: 5, Member: "m", Members: 1, Revoking: true, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_NOTHING)}, "APPLICATION", "give it up"},
		{"stuck", Held{Lag: 5, Member: "m", Members: 1, Stuck: true, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION)}, "APPLICATION", "stuck: it has had records for 1m30s"},
		{"not connected", Held{Lag: 5, Member: "m", Members: 1, Gone: true, Session: 15 * time.Second, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_NOTHING)}, "NETWORK", "15s after its last sign"},
		{"stopped", Held{Lag: 5, Member: "m", Members: 1, Silent: 8 * time.Second, Session: 15 * time.Second, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_NOTHING)}, "UNSPECIFIED", "for 8s; others get its partitions after 15s"},
		{"between two pings", Held{Lag: 5, Member: "m", Members: 1, Silent: 5 * time.Second, Session: 15 * time.Second, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_NOTHING)}, "NOTHING", "because"},
		{"stopped while it worked", Held{Lag: 5, Member: "m", Members: 1, Silent: 8 * time.Second, Session: 15 * time.Second, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION)}, "APPLICATION", "because"},
		{"silent", Held{Lag: 5, Member: "m", Members: 1}, "UNSPECIFIED", "not told"},
		{"reading", Held{Lag: 5, Member: "m", Members: 1, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_NOTHING)}, "NOTHING", "because"},
		{"broker", Held{Lag: 5, Member: "m", Members: 1, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_BROKER)}, "BROKER", "because"},
		{"network", Held{Lag: 5, Member: "m", Members: 1, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_NETWORK)}, "NETWORK", "because"},
		{"credit", Held{Lag: 5, Member: "m", Members: 1, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_CREDIT)}, "CREDIT", "because"},
		{"application", Held{Lag: 5, Member: "m", Members: 1, Progress: told(coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION)}, "APPLICATION", "because"},
		{"a word of a later release", Held{Lag: 5, Member: "m", Members: 1, Progress: told(99)}, "UNSPECIFIED", "because"},
	} {
		t.Run(c.name, func(t *testing.T) {
			by, detail := HeldBack(c.h)
			if got := strings.TrimPrefix(by.String(), "HELD_BACK_BY_"); got != c.want || !strings.Contains(detail, c.detail) || c.detail == "" && detail != "" {
				t.Errorf("got %s %q, want %s %q", got, detail, c.want, c.detail)
			}
		})
	}
}
