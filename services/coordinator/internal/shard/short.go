package shard

import (
	"strconv"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
)

// haste says how a request takes it that the log can confirm nothing.
type haste int

const (
	// waits: members and commits wait for the log, as they wait for a load.
	waits haste = iota
	// refusable requests change something: they are refused while nothing of them has
	// been begun, and wait from then on, since the log may take them yet.
	refusable
	// withdrawable requests only ask: they are refused whenever it is noticed.
	withdrawable
)

func hasteOf(ev group.Event) haste {
	switch ev.(type) {
	case group.FetchOffsets, group.Describe, group.Simulate:
		return withdrawable
	case group.Delete, group.ResetOffsets:
		return refusable
	}
	return waits
}

// makingPatience is how long a shard may take to be made before whoever asks is told that
// it has no leader: a folder at each broker, and a leader for all.
const makingPatience = 10 * time.Second

// lack is why the log can confirm nothing, and since when.
type lack struct {
	reason typev1.ErrorReason // unspecified: it can, as far as is known
	since  time.Time
}

// noteLack takes in what came of an append or a fence. It tells whether the log is
// known to be able to confirm nothing. What fails in another way says nothing of that:
// only an append that commits does.
func (s *Shard) noteLack(r result) bool {
	reason := rpc.ReasonOf(r.err)
	if client.NeverLed(r.err) && time.Since(s.began) < makingPatience {
		return s.lacks()
	}
	switch reason {
	case typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS_AFTER_APPEND:
		reason = typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS // a question was not answered, whatever became of the append
	case typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE:
	default:
		if confirms(r.event) {
			s.lack = lack{}
		}
		return s.lacks()
	}
	if !s.lacks() {
		s.lack.since = time.Now()
	}
	s.lack.reason = reason
	return true
}

// confirms reports whether the event comes of an append or fence that committed.
func confirms(ev group.Event) bool {
	switch e := ev.(type) {
	case group.Committed:
		return true
	case group.FenceResult:
		return e.OK
	}
	return false
}

func (s *Shard) lacks() bool {
	return s.lack.reason != typev1.ErrorReason_ERROR_REASON_UNSPECIFIED
}

// withdraw answers the questions that wait for a log which can confirm nothing. The
// core's own answers, once there are any, find nobody.
func (s *Shard) withdraw() {
	for req, r := range s.requests {
		if r.Refuse != nil && r.haste == withdrawable {
			delete(s.requests, req)
			r.Refuse(s.lacking())
		}
	}
}

// lacking is the error of a request that is not kept waiting for the log.
func (s *Shard) lacking() *rpc.Error {
	what := "has fewer in-sync replicas than min.insync.replicas"
	if s.lack.reason == typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE {
		what = "has no leader"
	}
	return rpc.Errorf(s.lack.reason, "partition %d of %s, a shard of groups, %s (for %v so far), and its coordinator cannot answer before that has ended: "+
		"see leat topic describe %s, and start the brokers that are missing",
		s.partition, client.OffsetsTopic, what, time.Since(s.lack.since).Round(time.Second), client.OffsetsTopic).
		WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE).
		With("topic", client.OffsetsTopic, "partition", strconv.Itoa(int(s.partition)))
}
