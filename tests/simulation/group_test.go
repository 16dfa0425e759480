package simulation

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
)

const groupName = "g"

// groups are the coordinators and the members of one group. The shard's records lie in
// the log as numbers of a table: what is tried here is the log and its fencing, not
// the encoding.
type groups struct {
	w       *world
	topic   *topic // __consumer_offsets, of one partition
	coords  []*coordinator
	members []*groupMember
	born    int
	table   []group.KV
	counter map[group.Part]int64 // next offset to be committed, rising for ever
	acked   map[group.Part]int64 // highest that was acknowledged
	blocks  map[group.Part]*blocked
	groupChecks
}

// coordinator is one process that may own the shard.
type coordinator struct {
	g      *groups
	id     int32
	inc    uint64
	up     bool
	paused bool
	lease  *lease
	of     *etcd
	rev    int64

	state   *group.State
	claimed int64         // shard epoch; 0: none
	until   time.Duration // paused until then, or behind with what it follows
	view    int           // of the group's topics, that it has seen
	fence   partition.Fence
	end     int64 // past the fencing record
	load    bool  // wanted
	nextReq uint64
	replies map[uint64]func(group.Reply)
	// overtaken says of an open request that another had loaded the shard before it
	// came: it must not be granted.
	overtaken map[uint64]bool
	wake      time.Duration
}

func newGroups(w *world) *groups {
	g := &groups{w: w, counter: map[group.Part]int64{}, acked: map[group.Part]int64{}, blocks: map[group.Part]*blocked{}}
	g.topic = &topic{name: cluster.OffsetsTopic, rf: 3, internal: true}
	w.addTopic(g.topic, 1)
	g.groupChecks = newGroupChecks(w)
	for i := range 2 {
		g.coords = append(g.coords, &coordinator{g: g, id: int32(i + 1)})
	}
	return g
}

func (g *groups) config() group.Config {
	c := group.DefaultConfig()
	c.SessionTimeout, c.MinSessionTimeout = 600*time.Millisecond, 50*time.Millisecond
	c.RebalanceTimeout, c.JoinDelay, c.RetryDelay, c.OffsetsRetention = 30*time.Second, 10*time.Millisecond, 10*time.Millisecond, 0
	c.StartDelay = 10 * time.Millisecond
	return c
}

func (c *coordinator) node() node { return node{cluster.KindCoordinator, c.id} }
func (c *coordinator) life() cluster.Process {
	return cluster.Process{ID: c.id, Incarnation: c.inc}
}
func (c *coordinator) runs() bool { return c.up && !c.paused }

func (g *groups) keeps(l *lease) bool {
	c := g.coords[l.owner.id-1]
	return c.runs() && c.inc == l.life && c.lease == l
}

func (g *groups) process(id int32) (bool, uint64, bool) {
	c := g.coords[id-1]
	return c.up, c.inc, c.paused
}

func (c *coordinator) start() {
	w := c.g.w
	w.lives++
	*c = coordinator{g: c.g, id: c.id, inc: w.lives, up: true, state: group.New(c.g.config()), replies: map[uint64]func(group.Reply){}, overtaken: map[uint64]bool{}}
	w.say("coordinator %d starts as #%d", c.id, c.inc)
	c.view = max(0, len(c.g.views)-1-w.n(2)) // what it is told may lag
	c.step(c.g.views[c.view])
}

func (c *coordinator) crash() {
	c.up = false
	c.g.w.count("fault: coordinator crash")
	c.g.w.say("coordinator %d#%d crashes", c.id, c.inc)
	c.g.hangUp(c)
}

// hangUp ends the streams of a coordinator's members.
func (g *groups) hangUp(c *coordinator) {
	for _, m := range g.members {
		if m.on == c {
			m.disconnect()
		}
	}
}

func (c *coordinator) step(ev group.Event) {
	w := c.g.w
	effects := c.state.Step(group.Now{Mono: w.now, WallMs: w.clock().UnixMilli()}, ev)
	if err := c.state.Check(); err != nil {
		w.fail("GROUP", "coordinator %d#%d after %T: %v", c.id, c.inc, ev, err)
		return
	}
	for _, e := range effects {
		c.carry(e)
	}
}

func (c *coordinator) carry(e group.Effect) {
	w := c.g.w
	switch e := e.(type) {
	case group.Fence:
		c.fence, c.load = partition.Fence{ShardEpoch: e.Epoch, Attempt: e.Attempt}, false
		w.count("shard fenced")
		data, err := record.BuildFence(record.Fence{ShardEpoch: e.Epoch, Attempt: int64(e.Attempt)}, w.clock().UnixMilli())
		if err != nil {
			panic(err)
		}
		c.append(data, func(res result) {
			c.end = res.base + 1
			c.step(group.FenceResult{OK: res.outcome == partition.OK})
		})
	case group.Load:
		c.load = true
	case group.Append:
		c.appendAll(e.Op, e.KVs)
	case group.Barrier:
		c.appendAll(e.Op, []group.KV{{Key: group.Key{Kind: group.KindBarrier}}})
	case group.ResolveStart:
		c.resolve(e)
	case group.Reply:
		c.checkReply(e)
		if done := c.replies[e.Req]; done != nil {
			delete(c.replies, e.Req)
			done(e)
		}
	case group.Send:
		for _, m := range c.g.members {
			if m.id == e.Member && m.on == c && m.life == c.inc && m.stream == e.Attach {
				m.inbox = append(m.inbox, func() { m.receive(e.Message) })
			}
		}
	case group.WakeAt:
		c.wake = e.Mono
	case group.Abandon:
		w.count("shard abandoned")
		c.g.hangUp(c)
	}
}

// appendAll appends records as one batch.
func (c *coordinator) appendAll(op group.Op, kvs []group.KV) {
	w := c.g.w
	c.g.checkRecords(kvs)
	b, err := record.NewBuilder(record.DefaultBuilderOptions())
	if err != nil {
		panic(err)
	}
	for _, kv := range kvs {
		c.g.table = append(c.g.table, kv)
		value := binary.BigEndian.AppendUint64(nil, uint64(len(c.g.table)-1))
		if _, err := b.Append(&record.Record{Timestamp: w.clock().UnixMilli(), Key: value, Value: value}); err != nil {
			panic(err)
		}
	}
	data, err := b.Build()
	if err != nil {
		panic(err)
	}
	c.append(data, func(res result) {
		switch {
		case res.outcome == partition.OK:
			c.g.countRecords(kvs)
			c.step(group.Committed{Op: op})
		case res.outcome == partition.Rejected && res.reason != partition.ReasonShardFenced && res.err == nil:
			c.step(group.Failed{Op: op, Kind: group.NotDone})
		default:
			w.count("shard append unknown or fenced")
			c.step(group.Failed{Op: op, Kind: group.Unknown})
		}
	})
}

// append produces a batch under the fence, with acks=all. What comes of it counts only
// in the attempt that made it.
func (c *coordinator) append(data []byte, done func(result)) {
	w := c.g.w
	p := c.g.topic.parts[0]
	h, err := record.ParseHeader(data)
	if err != nil {
		panic(err)
	}
	fence, life := c.fence, c.inc
	ended := false
	end := func(res result) {
		if ended {
			return
		}
		ended = true
		if c.up && c.inc == life && c.fence == fence && c.claimed == fence.ShardEpoch {
			done(res)
		}
	}
	limit := produceLimit
	if !w.faults {
		limit *= 3 // where disks are slow in a walk, the shard would be loaded for ever
	}
	unknown := result{outcome: partition.Unknown, reason: partition.ReasonDeadline, base: -1}
	w.calls = append(w.calls, &call{deadline: w.now + limit + callTimeout, lost: func() { end(unknown) }})
	b := w.broker(p.record.Leader.ID)
	if b == nil || w.faults && w.chance(5) {
		b = w.anyBroker()
	}
	w.send(&packet{from: c.node(), to: b.node(), what: "shard append", run: func() {
		answer := func(res result) {
			w.send(&packet{from: b.node(), to: c.node(), life: life, what: "answer to a shard append", run: func() { end(res) }})
		}
		r := b.get(p.id)
		if r == nil || r.core == nil || r.gone || b.regressed {
			answer(result{outcome: partition.Rejected, reason: partition.ReasonNotLeader, base: -1})
			return
		}
		r.produce(&batch{data: data, header: h, acks: partition.AcksAll, fence: &fence, limit: limit, done: answer}, -1)
	}})
}

// read loads the shard, if its log can be read up to the fencing record now.
func (c *coordinator) read() {
	w := c.g.w
	p := c.g.topic.parts[0]
	b := w.broker(p.record.Leader.ID)
	if b == nil || !b.runs() || !w.reaches(c.node(), b.node()) {
		return
	}
	r := b.get(p.id)
	if r == nil || r.core == nil || r.gone || !r.core.Leads() || r.core.HighWatermark() < c.end {
		return
	}
	var kvs []group.KV
	for at := r.core.Start(); at < c.end; {
		data, next, err := r.read(at, c.end, 1<<16)
		if err != nil || len(data) == 0 {
			return
		}
		for len(data) > 0 {
			one, rest, _ := record.NextBatch(data)
			if h, _ := record.ParseHeader(one); !h.Attributes.Control() {
				records, _ := record.Decode(one, 1<<20)
				for i := range records {
					kvs = append(kvs, c.g.table[valueOf(&records[i])])
				}
			}
			data = rest
		}
		at = next
	}
	c.load = false
	c.g.loadedUnder(c.fence)
	w.count("shard loaded")
	w.say("coordinator %d#%d loads %d records under %+v", c.id, c.inc, len(kvs), c.fence)
	holders := map[group.Part]string{}
	for _, kv := range kvs {
		if kv.Key.Kind != group.KindBarrier {
			c.g.checkHolders(holders, kv)
			c.step(group.Replayed{KV: kv})
		}
	}
	c.step(group.Loaded{})
}

// follow registers, takes in metadata, and claims or gives up the shard.
func (c *coordinator) follow() {
	w := c.g.w
	if !c.runs() {
		return
	}
	if (c.lease == nil || c.lease.gone) && !w.etcd.down && w.reaches(c.node(), etcdNode()) {
		rec := cluster.Registration{Kind: cluster.KindCoordinator, Process: c.life(), Address: "h"}
		if _, ok := w.etcd.get(rec.Key()); !ok {
			l := w.etcd.grant(c.node(), c.inc)
			if _, err := w.etcd.commit(&txn{why: "register", from: c.node(), lease: l.id, writes: []cluster.Write{{Key: rec.Key(), Record: rec}}}); err != nil {
				w.etcd.revoke(l)
				l = nil
			}
			c.lease = l
		}
	}
	if c.view < len(c.g.views)-1 {
		c.view++
		c.step(c.g.views[c.view])
	}
	x := w.ctls[w.n(len(w.ctls))]
	if !x.runs() || x.state == nil || c.of != nil && x.of != c.of || x.rev <= c.rev {
		return
	}
	c.of, c.rev = x.of, x.rev
	rec, ok := c.of.partitionAt(c.g.topic.parts[0].id, c.rev)
	switch {
	case ok && rec.ShardOwner == c.life() && rec.ShardEpoch > c.claimed:
		c.claimed = rec.ShardEpoch
		w.count("shard taken over")
		w.say("coordinator %d#%d claims the shard in epoch %d", c.id, c.inc, c.claimed)
		c.step(group.Claim{Epoch: rec.ShardEpoch})
	case c.claimed != 0 && (!ok || rec.ShardOwner != c.life()):
		c.claimed = 0
		c.step(group.Deposed{})
	}
}

// ask puts a member's request to the coordinator, whose answer comes back on the
// member's stream.
func (c *coordinator) ask(m *groupMember, make func(req uint64) group.Event, done func(group.Reply)) {
	c.nextReq++
	c.replies[c.nextReq] = done
	c.overtaken[c.nextReq] = older(c.fence, c.g.newest)
	c.step(make(c.nextReq))
}

func (g *groups) ring() {
	for _, c := range g.coords {
		if c.runs() && c.wake > 0 && c.wake <= g.w.now {
			c.wake = 0
			c.step(group.Tick{})
		}
	}
}

// whole reports whether the group works: somebody serves, and all partitions have one
// owner who goes on.
func (g *groups) whole() bool {
	held := map[group.Part]int{}
	for _, m := range g.members {
		if m.dead {
			continue
		}
		if !m.attached || m.until <= g.w.now {
			return false
		}
		for p := range m.held {
			held[p]++
		}
	}
	for _, part := range g.present() {
		if held[part] != 1 || g.acked[part] == 0 {
			return false
		}
	}
	return true
}

// describe tells where the group stands.
func (g *groups) describe() string {
	text := ""
	for _, c := range g.coords {
		text += fmt.Sprintf("coordinator %d#%d up=%v claimed=%d fence=%+v serving=%v quiet=%v load=%v end=%d wake=%v\n", c.id, c.inc, c.up, c.claimed, c.fence, c.state.Serving(), c.state.Quiet(), c.load, c.end, c.wake)
	}
	for _, m := range g.members {
		if !m.dead {
			text += fmt.Sprintf("member %s attached=%v stream=%d held=%d until=%v inbox=%d outbox=%d\n", m.id, m.attached, m.stream, len(m.held), m.until, len(m.inbox), len(m.outbox))
		}
	}
	return text + fmt.Sprintf("committed %v\n", g.acked)
}

// groupStep has something of the groups happen.
func (w *world) groupStep() {
	g := w.groups
	if g == nil {
		return
	}
	for range 2 {
		c := g.coords[w.n(len(g.coords))]
		switch {
		case !c.up:
			if !w.faults || w.chance(20) {
				c.start()
			}
		case c.paused:
			if w.now >= c.until {
				// What it follows comes in again after a while only.
				c.paused, c.until = false, w.now+20*time.Millisecond
			}
		default:
			if w.now >= c.until {
				c.follow()
			}
			if c.load && w.failure == nil {
				c.read()
			}
		}
	}
	g.stir()
	alive := 0
	for _, m := range g.members {
		if !m.dead {
			alive++
		}
	}
	if alive < 2 || alive < 4 && w.faults && w.chance(3) {
		g.bear()
	}
	if w.failure == nil && g.lively() && w.chance(2) {
		g.reset()
	}
	for range 6 {
		m := g.members[w.n(len(g.members))]
		if w.failure == nil && !m.dead {
			g.move(m)
		}
	}
}

// move moves something on a member's stream, or has it do something.
func (g *groups) move(m *groupMember) {
	c := m.on
	if c != nil && (!c.up || c.inc != m.life) {
		m.disconnect()
		return
	}
	switch {
	case len(m.inbox) > 0 && g.w.chance(60):
		next := m.inbox[0]
		m.inbox = m.inbox[1:]
		next()
	case c != nil && c.runs() && len(m.outbox) > 0:
		next := m.outbox[0]
		m.outbox = m.outbox[1:]
		next(c)
	case len(m.outbox) < 4:
		m.act()
	}
}

// groupFault has something of the groups break.
func (w *world) groupFault() {
	g := w.groups
	if g == nil {
		return
	}
	c := g.coords[w.n(len(g.coords))]
	switch w.n(7) {
	case 4:
		g.changeTopics()
	case 5:
		g.bearTwin()
	case 6:
		if len(g.members) > 0 {
			g.members[w.n(len(g.members))].goStubborn()
		}
	case 0:
		if c.up {
			c.crash()
		}
	case 1:
		if c.runs() {
			c.pause(leaseTTL/2 + leaseTTL*time.Duration(w.n(4))/2)
		}
	case 2:
		if len(g.members) > 0 {
			w.count("fault: member crash")
			g.members[w.n(len(g.members))].end()
		}
	default:
		if len(g.members) == 0 {
			return
		}
		m := g.members[w.n(len(g.members))]
		if !m.dead && m.on != nil && m.on.runs() && m.attached {
			w.count("member stream broken")
			gone := group.Gone{Group: groupName, Member: m.id, Attach: m.attach}
			c := m.on
			m.disconnect()
			m.broke = true
			c.step(gone)
		}
	}
}
