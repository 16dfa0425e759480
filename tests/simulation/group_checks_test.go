package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/topicid"
)

// groupChecks are what is true of the group, whatever its coordinators believe.
type groupChecks struct {
	// views are the topics as the metadata has shown them, the newest last. Members
	// read nothing from topics, so that these may come and go without logs.
	views      []group.Topics
	topics     []group.Topic // of the newest view
	deletedIDs map[group.TopicID]bool
	made       int  // topics that were made in the walk
	rested     bool // a coordinator that served was paused after the faults
	leaves     int  // that members have begun
	newest     partition.Fence
	tenure     map[group.Part]int64          // newest that a member was told of
	refused    map[group.Part]map[int64]bool // offsets that were refused for certain
}

func newGroupChecks(w *world) groupChecks {
	g := groupChecks{
		deletedIDs: map[group.TopicID]bool{}, newest: partition.Fence{ShardEpoch: -1},
		tenure: map[group.Part]int64{}, refused: map[group.Part]map[int64]bool{},
	}
	for _, t := range w.topics {
		if !t.internal {
			g.topics = append(g.topics, group.Topic{ID: group.TopicID(t.id), Name: t.name, Partitions: int32(len(t.parts))})
		}
	}
	g.show()
	return g
}

// show adds a view of the topics as they are now.
func (g *groupChecks) show() {
	gone := slices.SortedFunc(maps.Keys(g.deletedIDs), func(a, b group.TopicID) int { return slices.Compare(a[:], b[:]) })
	g.views = append(g.views, group.Topics{View: group.NewTopicView(slices.Clone(g.topics)), Deleted: gone})
}

// comesAndGoes is the topic that is made and deleted in a walk.
const comesAndGoes = "x"

// names are those that members subscribe to.
func (g *groups) names() []string {
	names := []string{comesAndGoes}
	for _, t := range g.topics {
		if t.Name != comesAndGoes {
			names = append(names, t.Name)
		}
	}
	return names
}

// present are the partitions that the group shares.
func (g *groups) present() []group.Part {
	var all []group.Part
	for _, t := range g.topics {
		for n := range t.Partitions {
			all = append(all, group.Part{Topic: t.ID, Partition: n})
		}
	}
	return all
}

// changeTopics has a topic grow, be made or be deleted.
func (g *groups) changeTopics() {
	w := g.w
	at := slices.IndexFunc(g.topics, func(t group.Topic) bool { return t.Name == comesAndGoes })
	switch {
	case w.chance(50):
		t := &g.topics[w.n(len(g.topics))]
		if t.Partitions >= 3 {
			return
		}
		t.Partitions++
		w.count("group: topic grown")
		w.say("topic %s of the group has %d partitions", t.Name, t.Partitions)
	case at < 0:
		g.made++
		id := topicid.Derive(fmt.Appendf(nil, "%d-group-%d", w.seed, g.made))
		g.topics = append(g.topics, group.Topic{ID: group.TopicID(id), Name: comesAndGoes, Partitions: 1})
		w.count("group: topic made")
		w.say("topic %s of the group is made", comesAndGoes)
	default:
		g.deletedIDs[g.topics[at].ID] = true
		g.topics = slices.Delete(g.topics, at, at+1)
		w.count("group: topic deleted")
		w.say("topic %s of the group is deleted", comesAndGoes)
	}
	g.show()
}

func older(a, b partition.Fence) bool {
	return a.ShardEpoch < b.ShardEpoch || a.ShardEpoch == b.ShardEpoch && a.Attempt < b.Attempt
}

// loadedUnder notes that the shard was fenced and read under a fence.
func (g *groups) loadedUnder(f partition.Fence) {
	if older(g.newest, f) {
		g.newest = f
	}
}

// checkReply looks whether a coordinator confirms anything that came to it after
// another had fenced and loaded the shard.
func (c *coordinator) checkReply(e group.Reply) {
	overtaken := c.overtaken[e.Req]
	delete(c.overtaken, e.Req)
	switch {
	case !overtaken:
	case e.Err == nil:
		c.g.w.fail("ZOMBIE", "coordinator %d#%d answers %T under %+v, the shard was loaded under %+v before the request came", c.id, c.inc, e.Result, c.fence, c.g.newest)
	default:
		c.g.w.count("zombie coordinator confirmed nothing")
	}
}

// checkHolders follows the records of the shard in the order of its log: no partition
// is ever in the hands of two members.
func (g *groups) checkHolders(holders map[group.Part]string, kv group.KV) {
	if kv.Key.Kind != group.KindMember {
		return
	}
	maps.DeleteFunc(holders, func(_ group.Part, m string) bool { return m == kv.Key.Member })
	v, ok := kv.Value.(group.MemberValue)
	if !ok {
		return
	}
	for _, o := range v.Owned {
		if other, has := holders[o.Part]; has {
			g.w.fail("TWO-OWNERS", "the log gives %v to %s while %s has it", o.Part, kv.Key.Member, other)
			return
		}
		holders[o.Part] = kv.Key.Member
	}
}

// checkRecords looks at what a coordinator is about to write.
func (g *groups) checkRecords(kvs []group.KV) {
	for _, kv := range kvs {
		if kv.Key.Kind == group.KindOffset && kv.Value == nil && !g.deletedIDs[kv.Key.Part.Topic] {
			g.w.fail("OFFSET-LOST", "the offset of %v is dropped, and its topic was not deleted", kv.Key.Part)
		}
		if kv.Key.Kind == group.KindMember && kv.Value == nil {
			for _, m := range g.members {
				m.removed = m.removed || m.id == kv.Key.Member
			}
		}
	}
}

// rebalanceCauses are told in the ledger of a group.
var rebalanceCauses = map[string]string{
	"silent for its session timeout":   "group: session expired",
	"within its rebalance timeout":     "group: rebalance timeout expired",
	" left":                            "group: rebalance after a leave",
	"the topics subscribed to changed": "group: rebalance after a change of topics",
	"the coordinator changed":          "group: target finished by a new coordinator",
	"joined":                           "group: rebalance after a join",
}

// countRecords counts what was written.
func (g *groups) countRecords(kvs []group.KV) {
	for _, kv := range kvs {
		switch v := kv.Value.(type) {
		case group.LedgerValue:
			for part, what := range rebalanceCauses {
				if strings.Contains(v.Cause, part) {
					g.w.count(what)
				}
			}
		case group.MemberValue:
			if v.ReplacedBy != "" {
				g.w.count("group: static member replaced")
				for _, m := range g.members {
					m.replaced = m.replaced || m.id == kv.Key.Member
				}
			}
		case nil:
			switch kv.Key.Kind {
			case group.KindOffset:
				g.w.count("group: offset of a deleted topic dropped")
			case group.KindMember:
				g.countRemoved(kv.Key.Member)
			}
		}
	}
}

// countRemoved counts members that were taken out although they had not left.
func (g *groups) countRemoved(id string) {
	for _, m := range g.members {
		if m.id == id && !m.left && !m.stubborn && !m.replaced {
			g.w.count("group: silent member removed")
		}
	}
}

var fencedFor = map[group.Reason]string{
	group.ReasonUnknownMember: "unknown", group.ReasonMemberFenced: "expelled", group.ReasonInstanceFenced: "instance replaced",
	group.ReasonStreamSuperseded: "stream superseded",
}

// refuse notes an offset that was refused for certain.
func (g *groups) refuse(p group.Part, next int64) {
	if g.refused[p] == nil {
		g.refused[p] = map[int64]bool{}
	}
	g.refused[p][next] = true
}

// checkServed looks at an offset that a coordinator told a member.
func (g *groups) checkServed(m *groupMember, p group.Part, next int64) {
	if g.refused[p][next] {
		g.w.fail("STALE-COMMIT", "%s is told offset %d of %v, which was refused", m.id, next, p)
	}
}

// checkStart looks at where a member is to begin. One that was removed, and has not
// heard of that yet, may be told of times before a reset.
func (g *groups) checkStart(m *groupMember, a group.Assigned) {
	g.tenure[a.Part] = max(g.tenure[a.Part], a.Epoch)
	g.checkServed(m, a.Part, a.Start)
	if acked := g.acked[a.Part]; acked > 0 && a.Start < acked && !g.deletedIDs[a.Part.Topic] && !m.overlaps() {
		g.w.fail("OFFSET-LOST", "%s is to begin with %v at %d, %d was acknowledged", m.id, a.Part, a.Start, g.acked[a.Part])
	}
}

// bear has a member join, under an instance id or without.
func (g *groups) bear() {
	instance := ""
	if g.w.chance(30) {
		instance = fmt.Sprintf("i%d", 1+g.w.n(2))
	}
	g.add(instance)
}

// bearTwin has a second process come with the instance id of a member.
func (g *groups) bearTwin() {
	instance, alive := "", 0
	for _, m := range g.members {
		if m.dead {
			continue
		}
		alive++
		if m.instance != "" {
			instance = m.instance
		}
	}
	if instance != "" && alive < 5 {
		g.add(instance)
	}
}

func (g *groups) add(instance string) {
	g.born++
	g.members = append(g.members, &groupMember{
		g: g, id: fmt.Sprintf("m%d", g.born), instance: instance,
		held: map[group.Part]int64{}, past: map[group.Part]int64{}, done: map[group.Part]int64{},
		hasty: g.born%3 == 0 && g.lively(),
	})
}

// overlaps says whether a member may go on for a moment beside its successor: it was
// removed before its session was over, because it was slow to acknowledge, and may not
// have heard of that yet. Its commits do not count any more.
//
// So may one whose stream broke while another came with its instance id.
func (m *groupMember) overlaps() bool { return m.hasty && m.removed || m.broke && m.replaced }

// lively is as long as the group is kept in motion: during the faults, and for a while
// after them, when the shard is mostly served.
func (g *groups) lively() bool {
	return g.w.faults || g.w.step >= 1_000_000 && g.w.step < 1_000_000+livelySteps
}

const livelySteps = 6000

// stir has something happen to a group that works.
func (g *groups) stir() {
	w := g.w
	if w.faults || !g.lively() {
		return
	}
	switch w.n(60) {
	case 0:
		if len(g.views) < 8 {
			g.changeTopics()
		}
	case 1:
		for _, c := range g.coords {
			if c.runs() && c.state.Serving() && !g.rested {
				g.rested = true
				c.pause(leaseTTL * 2)
			}
		}
	case 2:
		if m := g.members[w.n(len(g.members))]; g.born < 12 {
			m.goStubborn()
		}
	case 3:
		if g.born < 12 {
			g.bearTwin()
		}
	}
}

// pause stops a coordinator for so long.
func (c *coordinator) pause(d time.Duration) {
	w := c.g.w
	c.paused, c.until = true, w.now+d
	w.count("fault: coordinator paused")
	w.say("coordinator %d#%d is paused", c.id, c.inc)
}

// goStubborn has a member acknowledge nothing any more, as one whose handler hangs.
func (m *groupMember) goStubborn() {
	if !m.dead && m.attached && !m.stubborn && m.hasty {
		m.stubborn = true
		m.g.w.count("fault: member acknowledges nothing")
	}
}

func (m *groupMember) rebalanceTimeout() time.Duration {
	if m.hasty {
		return 400 * time.Millisecond
	}
	return 0
}

// leave has a member leave its group, and stop once that is confirmed.
func (m *groupMember) leave() {
	m.leaving, m.left, m.until = true, true, 0 // it has stopped its handlers
	clear(m.held)
	m.g.leaves++
	m.ask(func(req uint64) group.Event {
		return group.Leave{Req: req, Group: groupName, Member: m.id, Attach: m.attach}
	}, func(group.Reply) {
		m.g.w.count("member left")
		if m.instance != "" {
			m.g.w.count("static member left")
		}
		m.end()
	})
}

// commitStale commits what must not count: under a tenure that is over, with a
// sequence that was used, under an earlier attach or epoch.
func (m *groupMember) commitStale() {
	w := m.g.w
	owned := m.owned()
	commit := group.Commit{Group: groupName, Member: m.id, Attach: m.attach, Epoch: m.epoch}
	var part group.Part
	var tenure int64
	kind := ""
	switch w.n(4) {
	case 0:
		for _, p := range slices.SortedFunc(maps.Keys(m.past), compareGroupParts) {
			if m.past[p] < m.g.tenure[p] {
				kind, part, tenure = "tenure", p, m.past[p]
			}
		}
		m.seq++
		commit.Sequence = m.seq
	case 1:
		for _, o := range owned {
			if m.done[o.Part] == o.Epoch {
				kind, part, tenure = "sequence", o.Part, o.Epoch
			}
		}
	default:
		if len(owned) == 0 {
			return
		}
		o := owned[w.n(len(owned))]
		part, tenure = o.Part, o.Epoch
		m.seq++
		commit.Sequence = m.seq
		if w.chance(50) && m.before > 0 {
			kind, commit.Attach = "attach", m.before
		} else {
			kind, commit.Epoch = "epoch", o.Epoch-1
		}
	}
	if kind == "" {
		return
	}
	m.g.counter[part]++
	next := m.g.counter[part]
	commit.Offsets = []group.OffsetCommit{{Part: part, NextOffset: next, AssignmentEpoch: tenure}}
	m.outbox = append(m.outbox, func(c *coordinator) {
		c.ask(m, func(req uint64) group.Event {
			commit.Req = req
			return commit
		}, func(r group.Reply) {
			done, ok := r.Result.(group.CommitDone)
			switch {
			case ok && len(done.Refused) == 0:
				w.fail("STALE-COMMIT", "a commit of %s with a stale %s was accepted: %+v", m.id, kind, commit)
			case ok || !r.Err.Unknown:
				m.g.refuse(part, next)
				w.count("stale commit refused: " + kind)
			}
		})
	})
}

func compareGroupParts(a, b group.Part) int {
	if c := slices.Compare(a.Topic[:], b.Topic[:]); c != 0 {
		return c
	}
	return int(a.Partition - b.Partition)
}
