package groups

import (
	"fmt"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
)

// Held is what is known of a partition that may not be getting on.
type Held struct {
	Lag    int64  // -1: unknown
	Member string // that holds it; empty: none
	// Members is how many members the group has.
	Members int
	// Unowned is what somebody waits for who should hold it; empty: nobody waits.
	Unowned string
	// Revoking says that the member has been asked to give it up.
	Revoking bool
	// Stuck says that the member has had a record for long and finished none.
	Stuck bool
	// Gone says that the member has no connection. Silent is since when nothing has been
	// heard of it, and Session how long that may last; 0: unknown.
	Gone            bool
	Silent, Session time.Duration
	// Progress is what the member last told; nil: nothing.
	Progress *coordinatorv1.MemberProgress
	// EndErr says why the visible end is not known; nil: it is.
	EndErr error
}

// HeldBack says what keeps a group from reading a partition to its end, and more
// about it for people.
func HeldBack(h Held) (gatewayv1.HeldBackBy, string) {
	switch {
	case h.EndErr != nil:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_BROKER, "its leader does not tell its end: " + h.EndErr.Error()
	case h.Lag == 0:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_NOTHING, ""
	case h.Member == "" && h.Members == 0:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_NO_OWNER, "the group has no members"
	case h.Member == "" && h.Unowned != "":
		return gatewayv1.HeldBackBy_HELD_BACK_BY_NO_OWNER, h.Unowned
	case h.Member == "":
		return gatewayv1.HeldBackBy_HELD_BACK_BY_NO_OWNER, "no member subscribes to it, or it is about to be assigned"
	case h.Gone:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_NETWORK, fmt.Sprintf("its member is not connected; others get its partitions %s after its last sign", h.Session)
	case h.Revoking:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_APPLICATION, "its member has been asked to give it up, and has not yet"
	}
	p := h.Progress
	if h.Stuck {
		waited := ""
		if p.GetOldestUnprocessedAge() != nil {
			waited = fmt.Sprintf(" for %s", p.GetOldestUnprocessedAge().AsDuration().Round(time.Second))
		}
		return gatewayv1.HeldBackBy_HELD_BACK_BY_APPLICATION, "stuck: it has had records" + waited + " and finished none of them"
	}
	nothing := p == nil || p.GetWaitingFor() == coordinatorv1.WaitingFor_WAITING_FOR_NOTHING
	if nothing && h.Session > 0 && h.Silent > h.Session/2 {
		return gatewayv1.HeldBackBy_HELD_BACK_BY_UNSPECIFIED,
			fmt.Sprintf("nothing has been heard of its member for %s; others get its partitions after %s", h.Silent.Round(time.Second), h.Session)
	}
	if p == nil {
		return gatewayv1.HeldBackBy_HELD_BACK_BY_UNSPECIFIED, "its member has not told yet how far it is"
	}
	return waitingFor(p.GetWaitingFor()), p.GetDetail()
}

func waitingFor(w coordinatorv1.WaitingFor) gatewayv1.HeldBackBy {
	switch w {
	case coordinatorv1.WaitingFor_WAITING_FOR_NOTHING:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_NOTHING
	case coordinatorv1.WaitingFor_WAITING_FOR_BROKER:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_BROKER
	case coordinatorv1.WaitingFor_WAITING_FOR_NETWORK:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_NETWORK
	case coordinatorv1.WaitingFor_WAITING_FOR_CREDIT:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_CREDIT
	case coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION:
		return gatewayv1.HeldBackBy_HELD_BACK_BY_APPLICATION
	case coordinatorv1.WaitingFor_WAITING_FOR_UNSPECIFIED:
	}
	return gatewayv1.HeldBackBy_HELD_BACK_BY_UNSPECIFIED
}
