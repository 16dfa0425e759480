package client

import (
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// aheadCommit is what an at-most-once consumer has taken: it is handed out once the
// positions after it are known to be committed.
type aheadCommit struct {
	records []ConsumerRecord // left to be handed out
	parts   map[TopicPartition]*consumerPart
	begun   []Position // before the first record of each partition
	done    bool
}

// handOver gives what may be handed out now, at most n records, appended to out.
func (k *Consumer) handOver(out []ConsumerRecord, n int) []ConsumerRecord {
	if !k.maySession() {
		return out
	}
	if !k.cfg.AtMostOnce {
		return k.take(out, n)
	}
	if k.ahead == nil {
		k.takeAhead(max(n, defaultPoll))
		return out
	}
	if !k.ahead.done {
		return out
	}
	for len(k.ahead.records) > 0 && len(out) < n {
		r := k.ahead.records[0]
		k.ahead.records = k.ahead.records[1:]
		p := k.ahead.parts[r.TopicPartition]
		if p == nil || k.parts[r.TopicPartition] != p {
			continue // refused, moved by a seek, or somebody else's by now
		}
		p.mark.deliver(r.Offset+1, k.progress.clock())
		k.touch(p)
		out = append(out, r)
	}
	if len(k.ahead.records) == 0 {
		k.ahead = nil
	}
	return out
}

// maySession reports whether the session certainly stands: a member whose session
// may have lapsed hands out nothing.
func (k *Consumer) maySession() bool {
	if k.member == nil {
		return true
	}
	until := k.member.DeliverUntil()
	return !until.IsZero() && time.Now().Before(until)
}

// takeAhead takes records and begins to commit the positions after them.
func (k *Consumer) takeAhead(n int) {
	records := k.take(nil, n)
	if len(records) == 0 {
		return
	}
	a := &aheadCommit{records: records, parts: make(map[TopicPartition]*consumerPart)}
	var after []Position
	for i := range records {
		tp := records[i].TopicPartition
		if p := k.parts[tp]; a.parts[tp] == nil {
			a.parts[tp] = p
			a.begun = append(a.begun, Position{TopicPartition: tp, NextOffset: records[i].Offset, LeaderEpoch: -1})
			after = append(after, p.position)
		}
	}
	// They leave the fetcher's credit here: handing them out is another matter.
	k.letGo()
	k.ahead = a
	c := &consumerCommit{ctx: k.ctx, positions: after}
	c.done = func(err error) {
		if k.ahead != a {
			return
		}
		a.done = true
		if err == nil {
			return
		}
		// What was refused, or is not known to be committed, is not handed out. It was
		// not handed out before either, so that it may be read again.
		k.commitFailed(c, err)
		for _, pos := range a.begun {
			p := a.parts[pos.TopicPartition]
			if c.took(pos.TopicPartition) {
				continue
			}
			delete(a.parts, pos.TopicPartition)
			if k.parts[pos.TopicPartition] == p && !p.revoking && !p.finding {
				p.position = pos
				k.read(p)
			}
		}
	}
	if err := k.submit(c); err != nil {
		c.err = err
		c.done(err)
	}
}

// take takes what is there, at most n records, appended to out.
func (k *Consumer) take(out []ConsumerRecord, n int) []ConsumerRecord {
	now := int64(-1)
	for len(out) < n {
		if k.event == nil {
			if k.event = k.fetcher.TryNext(); k.event == nil {
				break
			}
			k.next = 0
		}
		e := k.event
		p := k.parts[e.TopicPartition]
		if p == nil || p.revoking {
			k.drop()
			continue
		}
		switch e.Kind {
		case FetchError:
			k.drop()
			k.failed(p, e)
			if len(k.errs) > 0 {
				return out
			}
			continue
		case FetchProgress:
			k.passed(p, e)
			k.drop()
			continue
		}
		if now < 0 {
			now = k.progress.clock()
		}
		for ; k.next < len(e.Records) && len(out) < n; k.next++ {
			r := &e.Records[k.next]
			out = append(out, ConsumerRecord{
				Topic: e.Topic, TopicPartition: e.TopicPartition, Offset: r.Offset, LeaderEpoch: e.LeaderEpoch,
				Timestamp: time.UnixMilli(r.Timestamp), Key: r.Key, Value: r.Value, Headers: r.Headers, Trace: e.Trace,
			})
			p.position.NextOffset, p.position.LeaderEpoch = r.Offset+1, e.LeaderEpoch
		}
		if k.next == len(e.Records) {
			p.position.NextOffset = max(p.position.NextOffset, e.NextOffset)
			k.handed = append(k.handed, e)
			k.event = nil
		}
		k.touch(p)
		if !k.cfg.AtMostOnce {
			p.mark.deliver(p.position.NextOffset, now)
		}
	}
	return out
}

// passed moves a position past offsets without records. Where nothing waits to be
// released they are worked on already.
func (k *Consumer) passed(p *consumerPart, e *FetchEvent) {
	if e.NextOffset <= p.position.NextOffset {
		return
	}
	p.position.NextOffset, p.position.LeaderEpoch = e.NextOffset, e.LeaderEpoch
	p.mark.pass(p.position, p.touched)
}

// touch notes that records of a partition wait to be released.
func (k *Consumer) touch(p *consumerPart) {
	if !p.touched {
		p.touched = true
		k.touched = append(k.touched, p)
	}
}

// drop gives up the event that is being handed out.
func (k *Consumer) drop() {
	if k.event != nil {
		k.event.Release()
		k.event = nil
	}
}

// settled reports whether an at-most-once consumer has something to go on with that
// no channel tells of: the end of its commit, or the rest of a batch.
func (k *Consumer) settled() bool {
	return k.cfg.AtMostOnce && k.maySession() && (k.ahead != nil && k.ahead.done || k.ahead == nil && k.event != nil)
}

// firstAhead is the offset of the first record of a partition that was taken and not
// handed out.
func (k *Consumer) firstAhead(tp TopicPartition) (int64, bool) {
	if k.ahead == nil || k.ahead.parts[tp] == nil {
		return 0, false
	}
	for i := range k.ahead.records {
		if k.ahead.records[i].TopicPartition == tp {
			return k.ahead.records[i].Offset, true
		}
	}
	return 0, false
}

// startFailed is the error of a partition that has no start.
func startFailed(p *consumerPart) *rpc.Error {
	tp := p.assigned.TopicPartition
	return rpc.Errorf(reasonNoCommittedOffset, "partition %d of topic %q has no committed offset, and the reset policy is none: seek to choose a start", tp.Partition, p.assigned.Topic).
		With("topic", p.assigned.Topic, "partition", itoa(tp.Partition))
}
