package simulation

import (
	"slices"
	"time"

	"github.com/leat-io/leat/libs/core/group"
)

// maxLeaves is how many members may leave in a walk, so that it ends some day.
const maxLeaves = 3

// groupMember is a member and its stream to a coordinator.
type groupMember struct {
	g        *groups
	id       string
	dead     bool
	on       *coordinator // that its stream leads to; nil: none
	life     uint64
	gen      int   // of its stream
	stream   int64 // attach number of the stream; 0: not opened yet
	attach   int64
	epoch    int64
	seq      int64
	attached bool
	held     map[group.Part]int64
	until    time.Duration // it uses what it holds until then
	opened   time.Duration // when it asked for the stream, of which it has no assignment yet; 0: it has
	mustAck  bool
	instance string
	broke    bool                 // its stream broke some time
	leaving  bool                 // it has asked to
	left     bool                 // it has, or has tried to
	removed  bool                 // by a coordinator, as far as it wrote that
	replaced bool                 // another has its instance id
	hasty    bool                 // it asks for a short rebalance timeout
	stubborn bool                 // acknowledges nothing any more
	past     map[group.Part]int64 // tenures that it has had to give up
	before   int64                // attach number of an earlier stream; 0: none
	done     map[group.Part]int64 // tenures in which it has committed on this stream
	inbox    []func()
	outbox   []func(c *coordinator)
}

func (m *groupMember) disconnect() {
	m.on, m.attached, m.mustAck, m.stream = nil, false, false, 0
	m.gen++
	m.inbox, m.outbox = nil, nil
	m.leaving = false
	clear(m.done)
}

// end stops a member for good.
func (m *groupMember) end() {
	m.disconnect()
	m.dead = true
	clear(m.held)
}

func (m *groupMember) owned() []group.Owned {
	var all []group.Owned
	for p, epoch := range m.held {
		all = append(all, group.Owned{Part: p, Epoch: epoch})
	}
	slices.SortFunc(all, func(a, b group.Owned) int {
		if a.Topic != b.Topic {
			return slices.Compare(a.Topic[:], b.Topic[:])
		}
		return int(a.Partition - b.Partition)
	})
	return all
}

// start is the member's policy, which stays over its life.
func (m *groupMember) start() group.StartPolicy {
	kinds := []group.StartKind{group.StartEarliest, group.StartLatest, group.StartLeft}
	return group.StartPolicy{Kind: kinds[int(m.id[len(m.id)-1])%len(kinds)]}
}

// open opens a member's stream, for the first time or again.
func (m *groupMember) open() {
	c := m.g.coords[m.g.w.n(len(m.g.coords))]
	if !c.runs() || c.claimed == 0 {
		return
	}
	m.disconnect()
	m.on, m.life = c, c.inc
	gen := m.gen
	began := m.g.w.now
	names := m.g.names()
	m.outbox = append(m.outbox, func(c *coordinator) {
		c.ask(m, func(req uint64) group.Event {
			return group.Open{
				Req: req, Group: groupName, Member: m.id, Instance: m.instance, Topics: names, RebalanceTimeout: m.rebalanceTimeout(),
				Attach: m.attach, Owned: m.owned(), Start: m.start(),
			}
		}, func(r group.Reply) {
			opened, ok := r.Result.(group.Opened)
			if m.gen != gen {
				if ok { // nobody listens any more
					c.step(group.Gone{Group: groupName, Member: m.id, Attach: opened.Attach})
				}
				return
			}
			if ok {
				m.before = m.attach
				m.attach, m.stream = opened.Attach, opened.Attach // what is sent from here on is for this stream
			}
			m.inbox = append(m.inbox, func() {
				if !ok {
					m.refused(r.Err)
					return
				}
				m.epoch, m.seq, m.attached, m.opened = max(m.epoch, opened.MemberEpoch), 0, true, began
				m.g.w.count("member joined or resumed")
				m.g.w.say("%s opened: attach %d, held %d", m.id, m.attach, len(m.held))
			})
		})
	})
}

func (m *groupMember) refused(err *group.Error) {
	switch err.Reason {
	case group.ReasonLoading, group.ReasonShardLost, group.ReasonOverloaded:
		m.disconnect()
	default:
		m.g.w.count("member fenced")
		m.g.w.count("member fenced: " + fencedFor[err.Reason])
		m.g.w.say("%s is fenced: %s", m.id, err.Message)
		m.end()
	}
}

// receive takes a message of the coordinator.
func (m *groupMember) receive(msg group.Message) {
	w := m.g.w
	switch e := msg.(type) {
	case group.Fenced:
		m.refused(e.Err)
	case group.Assignment:
		if m.leaving {
			return
		}
		w.say("%s on coordinator %d#%d, attach %d: assignment %d of %d partitions (%s), held %d until %v", m.id, m.on.id, m.life, m.attach, e.Epoch, len(e.Partitions), e.Cause, len(m.held), m.until)
		assigned := map[group.Part]int64{}
		for _, a := range e.Partitions {
			if a.Start < 0 && m.start().Kind != group.StartLeft {
				w.fail("START", "%s is assigned %+v without a start", m.id, a)
			}
			assigned[a.Part] = a.Epoch
		}
		for p, epoch := range m.held {
			if assigned[p] != epoch {
				m.past[p] = epoch
				delete(m.held, p)
			}
		}
		for _, a := range e.Partitions {
			m.g.checkStart(m, a)
			if _, has := m.held[a.Part]; has {
				continue
			}
			m.held[a.Part] = a.Epoch
			w.count("partition assigned")
		}
		m.epoch, m.mustAck = max(m.epoch, e.Epoch), true
		if m.opened > 0 {
			m.until, m.opened = m.opened+m.g.config().SessionTimeout, 0
		}
		m.checkUse()
	}
}

// checkUse looks whether anybody else uses what a member begins, or goes on, to use.
func (m *groupMember) checkUse() {
	w := m.g.w
	if m.until <= w.now {
		return // its session may be over: it uses nothing until it knows
	}
	for _, o := range m.owned() {
		for _, other := range m.g.members {
			if _, uses := other.held[o.Part]; uses && other != m && other.until > w.now && !m.overlaps() && !other.overlaps() {
				w.fail("TWO-OWNERS", "%s uses %v until %v, and %s until %v (now %v)", m.id, o.Part, m.until, other.id, other.until, w.now)
			}
		}
	}
}

// act has a member do something that is due.
func (m *groupMember) act() {
	w := m.g.w
	if !m.attached {
		if m.on == nil || w.chance(2) {
			m.open()
		}
		return
	}
	if w.chance(4) {
		m.commitStale()
		return
	}
	if !m.leaving && m.g.lively() && m.g.leaves < maxLeaves && w.chance(2) {
		m.leave()
		return
	}
	switch w.n(4) {
	case 0:
		if m.mustAck && !m.stubborn {
			m.mustAck = false
			ack := group.Ack{Group: groupName, Member: m.id, Attach: m.attach, Epoch: m.epoch, Owned: m.owned()}
			w.say("%s acknowledges %d with %d partitions", m.id, ack.Epoch, len(ack.Owned))
			m.outbox = append(m.outbox, func(c *coordinator) { c.step(ack) })
		}
	case 1:
		m.commit()
	case 2:
		m.fetch()
	default:
		began := w.now
		m.ask(func(req uint64) group.Event {
			return group.Ping{Req: req, Group: groupName, Member: m.id, Attach: m.attach}
		}, func(group.Reply) {
			if m.opened == 0 && !m.leaving {
				m.until = began + m.g.config().SessionTimeout
			}
			m.checkUse()
			w.count("ping confirmed")
		})
	}
}

// ask puts a request on the member's stream; done is for answers that are no refusal.
func (m *groupMember) ask(make func(req uint64) group.Event, done func(group.Reply)) {
	gen := m.gen
	m.outbox = append(m.outbox, func(c *coordinator) {
		c.ask(m, make, func(r group.Reply) {
			if m.gen != gen {
				return
			}
			m.inbox = append(m.inbox, func() {
				if r.Err != nil {
					m.refused(r.Err)
					return
				}
				done(r)
			})
		})
	})
}

// commit commits the next offset of a partition that the member uses.
func (m *groupMember) commit() {
	owned := m.owned()
	if len(owned) == 0 || m.until <= m.g.w.now || m.mustAck {
		return
	}
	o := owned[m.g.w.n(len(owned))]
	for _, other := range owned {
		if !m.g.lively() && m.g.acked[other.Part] == 0 {
			o = other // what the walk waits for
		}
	}
	if m.g.isBlocked(o.Part) {
		return
	}
	m.g.counter[o.Part]++
	m.seq++
	next, seq, epoch := m.g.counter[o.Part], m.seq, m.epoch
	m.ask(func(req uint64) group.Event {
		return group.Commit{Req: req, Group: groupName, Member: m.id, Attach: m.attach, Epoch: epoch, Sequence: seq, Offsets: []group.OffsetCommit{
			{Part: o.Part, NextOffset: next, AssignmentEpoch: o.Epoch},
		}}
	}, func(r group.Reply) {
		if done, ok := r.Result.(group.CommitDone); ok && len(done.Refused) == 0 {
			m.g.acked[o.Part] = max(m.g.acked[o.Part], next)
			m.done[o.Part] = o.Epoch
			m.g.w.count("offset committed")
			m.g.w.say("%s committed %d of %v", m.id, next, o.Part)
		} else {
			m.g.refuse(o.Part, next)
			m.g.w.count("offset refused")
			m.g.w.say("commit %d of %v by %s is refused", next, o.Part, m.id)
		}
	})
}

// fetch asks for the committed offsets: no older ones than were acknowledged before.
func (m *groupMember) fetch() {
	before := map[group.Part]int64{}
	for p, v := range m.g.acked {
		before[p] = v
	}
	m.ask(func(req uint64) group.Event { return group.FetchOffsets{Req: req, Group: groupName} }, func(r group.Reply) {
		got := map[group.Part]int64{}
		if offsets, ok := r.Result.(group.Offsets); ok {
			for _, o := range offsets.Offsets {
				got[o.Part] = o.NextOffset
			}
		}
		m.g.w.count("offsets fetched")
		for p, v := range got {
			m.g.checkServed(m, p, v)
		}
		for p, v := range before {
			if got[p] < v && !m.g.deletedIDs[p.Topic] {
				m.g.w.fail("OFFSET-LOST", "offset %d of %v was acknowledged, and %s fetches %d", v, p, m.id, got[p])
			}
		}
	})
}
