package session

import (
	"fmt"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// handed is the end of what was handed out at one time.
type handed struct {
	next int64
	at   time.Time
}

// maxHanded bounds what is remembered of a partition. Beyond it neighbours are taken
// for one, handed out when the first of them was.
const maxHanded = 64

// handOut notes that records up to next are the client's to work on.
func (p *part) handOut(next int64, now time.Time) {
	if len(p.handed) == maxHanded {
		for i := range maxHanded / 2 {
			p.handed[i] = handed{next: p.handed[2*i+1].next, at: p.handed[2*i].at}
		}
		p.handed = p.handed[:maxHanded/2]
	}
	p.handed = append(p.handed, handed{next, now})
}

// finished notes that the client has worked on what lies below next.
func (p *part) finished(next int64) {
	p.processed = next
	n := 0
	for n < len(p.handed) && p.handed[n].next <= next {
		n++
	}
	p.handed = p.handed[n:]
}

// waited is for how long the oldest record has been in the client's hands; 0: there is
// none.
func (p *part) waited(now time.Time) time.Duration {
	if len(p.handed) == 0 {
		return 0
	}
	return max(now.Sub(p.handed[0].at), time.Nanosecond)
}

// slowHandler is how long records may be in the client's hands before that counts as
// what holds the group back.
const slowHandler = time.Second

// Progress tells how far the client has come in each partition, and what each waits
// for: waiting has the errors of partitions that cannot be read at the moment, and
// blocked says that the client has not taken the last message for a while.
func (c *Consume) Progress(now time.Time, waiting map[client.TopicPartition]error, blocked bool) []client.MemberProgress {
	out := make([]client.MemberProgress, 0, len(c.parts))
	for tp, p := range c.parts {
		if p.revokeDone {
			continue
		}
		m := client.MemberProgress{TopicPartition: tp, DeliveredNext: p.deliveredNext(), ProcessedNext: p.processed}
		if c.tellsProgress(p) {
			m.OldestUnprocessed = p.waited(now)
		}
		m.Waiting, m.Detail = c.waitsFor(now, p, m.OldestUnprocessed, waiting[tp], blocked)
		out = append(out, m)
	}
	return out
}

// deliveredNext is the offset after the last record handed out; -1: none was.
func (p *part) deliveredNext() int64 {
	if !p.anything {
		return -1
	}
	return p.told
}

// tellsProgress reports whether it means anything that the client has not released
// records: one that commits nothing, or has it done before, need not.
func (c *Consume) tellsProgress(p *part) bool {
	return p.processed >= 0 || !c.settings.LeaveOffsets && !c.settings.AtMostOnce
}

// waitsFor is what keeps the client from getting more of a partition, or from having
// worked on it.
func (c *Consume) waitsFor(now time.Time, p *part, unprocessed time.Duration, err error, blocked bool) (coordinatorv1.WaitingFor, string) {
	const (
		nothing     = coordinatorv1.WaitingFor_WAITING_FOR_NOTHING
		broker      = coordinatorv1.WaitingFor_WAITING_FOR_BROKER
		network     = coordinatorv1.WaitingFor_WAITING_FOR_NETWORK
		credit      = coordinatorv1.WaitingFor_WAITING_FOR_CREDIT
		application = coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION
	)
	ready := c.batch != nil
	switch {
	case p.failed:
		return application, "an error stopped it; the client has to seek"
	case p.revokeFrom:
		return application, "the client has been asked to give it up"
	case p.paused:
		return application, "the client has paused it"
	case rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNREACHABLE, typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED):
		return network, err.Error()
	case err != nil:
		return broker, err.Error()
	case p.resolving:
		return broker, "the place to start at is being looked for"
	case ready && c.HoldsBack(now):
		return network, "the group's coordinator has not confirmed the session in time"
	case ready && c.batch.part == p && c.batch.gate != nil:
		return broker, "records wait for their commit (at_most_once)"
	case ready && c.creditMode && c.credit <= 0:
		return credit, "the client has granted no more"
	case ready && blocked:
		return application, "the client does not take what is sent to it"
	case unprocessed >= slowHandler:
		return application, fmt.Sprintf("the client has had records for %s and not released them", unprocessed.Round(time.Second))
	}
	return nothing, ""
}
