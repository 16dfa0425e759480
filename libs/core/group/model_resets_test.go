package group

import (
	"slices"
	"time"

	"pgregory.net/rapid"
)

// checkResets says that nobody who is a member uses a partition at the moment in which
// its offset is reset.
func (w *world) checkResets(t *rapid.T) {
	g := w.s.groups["g"]
	if g == nil || w.s.phase != serving {
		return
	}
	for p, v := range g.offsets {
		if v.NextOffset < resetBase || w.seen[p] == v.NextOffset {
			continue
		}
		w.seen[p], w.resetAt[p] = v.NextOffset, g.epoch
		for _, c := range w.clients {
			if !c.dead && c.uses(p) && w.member(c) != nil {
				t.Fatalf("the offset of %v was reset while %s uses it", p, c.id)
			}
		}
	}
}

// reset asks for resets of one or two partitions.
func (w *world) reset(t *rapid.T) {
	if w.s.groups["g"] == nil {
		return
	}
	e := ResetOffsets{Req: w.nextReq(), Group: "g", Timeout: rapid.SampledFrom([]time.Duration{time.Second, time.Hour}).Draw(t, "timeout")}
	for range rapid.IntRange(1, 2).Draw(t, "resets") {
		w.resets++
		p := Part{topicID(byte(rapid.IntRange(1, 3).Draw(t, "topic"))), int32(rapid.IntRange(0, 3).Draw(t, "partition"))}
		e.Offsets = append(e.Offsets, OffsetCommit{Part: p, NextOffset: w.resets, LeaderEpoch: -1})
	}
	w.routes[e.Req] = func(t *rapid.T, r Reply) {
		done, ok := r.Result.(ResetDone)
		if !ok {
			return
		}
		for i, row := range done.Rows {
			if row.Err == nil && !w.logged(row.Part, e.Offsets[i].NextOffset) {
				t.Fatalf("the reset %+v was answered %+v and is not in the log", e, row)
			}
		}
	}
	w.step(t, e)
}

// logged says whether an offset is in the log.
func (w *world) logged(p Part, next int64) bool {
	for _, kv := range w.log {
		if v, ok := kv.Value.(OffsetValue); ok && kv.Key.Part == p && v.NextOffset == next {
			return true
		}
	}
	return false
}

// startsFound answers one question for starts, in order or not.
func (w *world) startsFound(t *rapid.T) {
	if len(w.asked) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.asked)-1).Draw(t, "question")
	e := w.asked[i]
	w.asked = slices.Delete(w.asked, i, i+1)
	w.answerStarts(t, e, rapid.IntRange(0, 3).Draw(t, "failing"))
}

// answerStarts answers a question; of four partitions, the first so many fail.
func (w *world) answerStarts(t *rapid.T, e ResolveStart, failing int) {
	answer := Start{Job: e.Job, Group: e.Group}
	for _, p := range e.Parts {
		r := StartResult{Part: p, Next: 1000 + int64(e.Policy.Kind), LeaderEpoch: -1}
		if int(p.Partition) < failing {
			r.Failed = "no leader"
		}
		answer.Results = append(answer.Results, r)
	}
	w.step(t, answer)
}
