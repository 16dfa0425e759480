package simulation

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
)

// link is a session of a follower's replica with its leader's, within the stream of
// the two brokers.
type link struct {
	f, l         *replica
	fSess, lSess int64
	epoch        int32 // in which it follows
	up, down     []any // messages
	from         int64 // of the next batch; -1: none is sent yet
	wants        bool  // the follower's log is empty and lacks what is known of producers
	parked       *partition.Hello
	said         bool // the leader has heard of it
	broken       bool
	told         [2]bool // the follower, the leader, of its end
}

// packet is a message that is not part of a stream.
type packet struct {
	from, to node
	life     uint64 // of the receiver; 0: whichever
	what     string
	twice    bool // it may arrive twice
	run      func()
}

// call is a question that may get no answer.
type call struct {
	deadline time.Duration
	done     bool
	from     *broker // of that life; nil: a client
	life     uint64
	lost     func()
}

// openLeader opens a session with a leader, or says hello again in it.
func (r *replica) openLeader(e *partition.OpenLeader) {
	w := r.w
	l := r.upstream
	if l != nil && l.fSess != e.Sess {
		w.breakLink(l)
		l = nil
	}
	if l == nil {
		l = &link{f: r, fSess: e.Sess, epoch: e.Epoch, from: -1}
		r.upstream = l
		b := w.broker(e.Leader.Broker)
		if b == nil || !b.up || b.inc != e.Leader.Incarnation || !w.reaches(r.b.node(), b.node()) || b.get(r.id) == nil || b.get(r.id).core == nil {
			// It cannot be opened; the follower learns so soon.
			l.broken, l.told[1] = true, true
			w.links = append(w.links, l)
			return
		}
		w.lastSess++
		l.l, l.lSess = b.get(r.id), w.lastSess
		w.links = append(w.links, l)
		w.count("session")
	}
	l.up = append(l.up, &helloMessage{
		hello: partition.Hello{Sess: l.lSess, From: r.b.self(), LeaderEpoch: e.Epoch, LastEpoch: e.LastEpoch, End: e.End},
		wants: r.log != nil && !r.cut && r.log.EndOffset() == e.End && r.log.WantsProducers(),
	})
}

// helloMessage is a hello on its way.
type helloMessage struct {
	hello partition.Hello
	wants bool // and what the leader remembers of producers first
}

// producersMessage is what a leader remembers of producers.
type producersMessage struct{ snapshot []byte }

// hear answers a hello, with the producers if they are wanted first: until the follower
// has them its log must not count.
func (r *replica) hear(l *link, h *partition.Hello) {
	if _, epoch := r.core.Leader(); l.wants && h.LeaderEpoch == epoch && r.core.Leads() && r.log != nil {
		r.w.count("producers sent to a copy that begins anew")
		l.down = append(l.down, &producersMessage{r.log.ProducersBelow(h.End)})
		return
	}
	r.step(h)
}

// inherit has an empty log remember the producers of its leader's, and says hello again.
func (r *replica) inherit(l *link, m *producersMessage) {
	if r.log == nil || r.cutting() {
		return
	}
	if err := r.log.InheritProducers(m.snapshot); err != nil {
		if errors.Is(err, commitlog.ErrFailed) {
			r.failed(0, err)
			return
		}
		l.told[0] = true
		r.upstream = nil
		r.w.breakLink(l)
		r.step(partition.LeaderGone{Sess: l.fSess, Now: r.w.now})
		return
	}
	l.up = append(l.up, &helloMessage{hello: partition.Hello{Sess: l.lSess, From: r.b.self(), LeaderEpoch: l.epoch, LastEpoch: r.core.LastEpoch(), End: r.core.End()}})
}

// lowestCopy is how far every follower in an agreed session has come, by its own word.
func (r *replica) lowestCopy() int64 {
	lowest := int64(math.MaxInt64)
	for _, end := range r.copies {
		lowest = min(lowest, end)
	}
	return lowest
}

// carrySession carries out what concerns other brokers.
func (r *replica) carrySession(e partition.Effect) {
	switch e := e.(type) {
	case *partition.OpenLeader:
		r.openLeader(e)
	case partition.CloseLeader:
		if l := r.upstream; l != nil && l.fSess == e.Sess {
			l.told[0] = true
			r.upstream = nil
			r.w.breakLink(l)
		}
	case *partition.SendPosition:
		if l := r.upstream; l != nil && l.fSess == e.Sess && !l.broken {
			p := &partition.Position{
				Sess: l.lSess, LeaderEpoch: e.LeaderEpoch, PartEpoch: e.PartEpoch, LastEpoch: e.LastEpoch, End: e.End, Durable: e.Durable, Start: e.Start,
			}
			if n := len(l.up); n > 0 && isA[*partition.Position](l.up[n-1]) && r.w.coalesces() {
				l.up = l.up[:n-1] // only the newest counts
			}
			l.up = append(l.up, p)
		}
	case *partition.SendEpochEnd:
		if l := r.sessions[e.Sess]; l != nil && !l.broken {
			end := &partition.EpochEnd{
				Sess: l.fSess, LeaderEpoch: e.LeaderEpoch, LastEpoch: e.LastEpoch, End: e.End, Agreed: e.Agreed, LogStart: e.LogStart, HW: e.HW,
			}
			if e.Agreed {
				r.copies[e.Sess] = max(r.copies[e.Sess], 0) // before it is looked which tombstones are gone
			}
			if r.log != nil {
				end.TombstonesBelow = r.log.TombstonesBelow()
			}
			l.down = append(l.down, end)
		}
	case *partition.SendBatches:
		if l := r.sessions[e.Sess]; l != nil {
			l.from = e.From
		}
	case *partition.SendHW:
		if l := r.sessions[e.Sess]; l != nil && !l.broken {
			_, epoch := r.core.Leader()
			if n := len(l.down); n > 0 && isA[*partition.Watermark](l.down[n-1]) && r.w.coalesces() {
				l.down = l.down[:n-1]
			}
			l.down = append(l.down, &partition.Watermark{Sess: l.fSess, LeaderEpoch: epoch, HW: e.HW, Start: e.Start})
		}
	case partition.CloseSess:
		if l := r.sessions[e.Sess]; l != nil {
			delete(r.sessions, e.Sess)
			delete(r.copies, e.Sess)
			l.told[1] = true
			r.w.breakLink(l)
		}
	case *partition.Propose:
		r.propose(e)
	}
}

// coalesces reports whether a message takes the place of the one before it.
func (w *world) coalesces() bool { return !w.faults || w.chance(70) }

func isA[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

// breakLink ends a session; both sides hear of it some time.
func (w *world) breakLink(l *link) {
	if !l.broken {
		l.broken = true
		l.up, l.down = nil, nil
	}
}

func (w *world) breakLinks(which func(*link) bool) {
	for _, l := range w.links {
		if !l.broken && l.l != nil && which(l) {
			w.breakLink(l)
		}
	}
	w.links = slices.DeleteFunc(w.links, func(l *link) bool {
		return l.broken && (l.told[0] || l.f.gone) && (l.told[1] || l.l == nil || l.l.gone)
	})
}

// tellEnds tells the sides of a broken session that it is.
func (w *world) tellEnd(l *link) {
	if !l.told[0] && !l.f.gone && l.f.b.runs() {
		l.told[0] = true
		if l.f.upstream == l {
			l.f.upstream = nil
		}
		l.f.step(partition.LeaderGone{Sess: l.fSess, Now: w.now})
	}
	if l.l != nil && !l.told[1] && !l.l.gone && l.l.b.runs() && w.failure == nil {
		l.told[1] = true
		delete(l.l.sessions, l.lSess)
		delete(l.l.copies, l.lSess)
		if l.said && l.parked == nil {
			l.l.step(partition.Gone{Sess: l.lSess, Now: w.now})
		}
	}
}

// deliver hands over one message of a session.
func (w *world) deliver(l *link) {
	if l.broken {
		w.tellEnd(l)
		w.breakLinks(func(*link) bool { return false })
		return
	}
	if !w.reaches(l.f.b.node(), l.l.b.node()) {
		if w.chance(20) {
			w.breakLink(l) // its keepalives got no answer
		}
		return
	}
	up := len(l.up) > 0 && (len(l.down) == 0 || w.chance(50))
	queue, to := &l.down, l.f
	if up {
		queue, to = &l.up, l.l
	}
	if len(*queue) == 0 || to.gone || !to.b.runs() {
		return
	}
	i := 0
	if !w.conf.Ordered && w.faults {
		if i = w.n(len(*queue)); i > 0 {
			w.count("stream message reordered")
		}
	}
	ev := (*queue)[i]
	if !w.conf.Ordered && w.faults && w.chance(8) {
		w.count("stream message repeated")
	} else {
		*queue = slices.Delete(*queue, i, i+1)
	}
	if !w.conf.Ordered && w.faults && w.chance(3) {
		w.count("stream message lost")
		return
	}
	w.hand(l, to, ev)
}

// hand gives a message of a session to its receiver.
func (w *world) hand(l *link, to *replica, message any) {
	switch e := message.(type) {
	case *helloMessage:
		h := e.hello
		l.wants = e.wants
		h.Now = w.now
		to.sessions[l.lSess] = l
		l.said = true
		if _, epoch := to.core.Leader(); h.LeaderEpoch > epoch {
			l.parked = &h // it was merely told first
			return
		}
		l.parked = nil
		to.hear(l, &h)
	case *producersMessage:
		if to.upstream == l {
			to.inherit(l, e)
		}
	case *partition.Position:
		if to.sessions[l.lSess] == nil {
			return
		}
		p := *e
		p.Now = w.now
		to.step(&p)
		if known, ok := to.copies[l.lSess]; ok {
			to.copies[l.lSess] = max(known, p.End)
		}
	case *partition.EpochEnd:
		p := *e
		p.Now = w.now
		to.step(&p)
	case *batchMessage:
		if to.upstream != l {
			return
		}
		b := e.batch
		to.lastRef++
		b.Ref, b.Now = to.lastRef, w.now
		to.runs[b.Ref] = e.data
		to.step(&b)
	case *partition.Watermark:
		if to.upstream != l {
			return
		}
		p := *e
		p.Now = w.now
		to.step(&p)
	}
}

// batchMessage is a run of batches on its way, with its bytes.
type batchMessage struct {
	batch partition.Batch
	data  []byte
}

// hasMore reports whether a leader has something to stream in a session.
func (l *link) hasMore() bool {
	return !l.broken && l.from >= 0 && l.l != nil && !l.l.gone && l.l.log != nil && len(l.down) < 4 && l.from < l.l.core.End()
}

// stream has a leader send what its log holds from where the session stands.
func (w *world) stream(l *link) {
	r := l.l
	if !r.b.runs() {
		return
	}
	_, epoch := r.core.Leader()
	upTo := r.core.End()
	data, next, err := r.read(l.from, upTo, 1+w.n(3000))
	if err != nil {
		// What it needs is not in the log any more, or is damaged.
		if r.sessions[l.lSess] == l {
			w.breakLink(l)
		}
		return
	}
	if r.sessions[l.lSess] != l || l.broken {
		return
	}
	if len(data) == 0 && next > l.from {
		data, next = r.log.Filler(l.from, next)
		w.count("gap at the end of a log filled")
	}
	if len(data) == 0 {
		return
	}
	l.down = append(l.down, &batchMessage{batch: partition.Batch{
		Sess: l.fSess, LeaderEpoch: epoch, Base: l.from, End: next, HW: r.core.HighWatermark(), Start: r.core.Start(),
	}, data: data})
	l.from = next
}

// propose brings a proposal to a controller, once.
func (r *replica) propose(e *partition.Propose) {
	w := r.w
	p := cluster.ISRProposal{
		Leader: r.b.life(), Topic: r.id.Topic, Partition: r.id.Number, LeaderEpoch: e.LeaderEpoch, PartitionEpoch: e.PartEpoch,
	}
	for _, m := range e.ISR {
		p.ISR = append(p.ISR, cluster.Process{ID: m.Broker, Incarnation: m.Incarnation})
	}
	id := e.ID
	w.count("proposal")
	hint := func() {
		if !r.gone && r.b.runs() {
			r.step(partition.ProposalHint{ID: id, Now: w.now})
		} else if !r.gone {
			r.results = append(r.results, partition.ProposalHint{ID: id, Now: w.now})
		}
	}
	w.ask(r.b, "proposal", func(c *controller, answer func(func())) {
		c.do(&command{name: "propose isr", batch: true, plan: func(s *cluster.State, attempt int) (cluster.Plan, error) {
			plan, err := cluster.ProposeISR(s, p)
			if err != nil {
				w.count("stale proposal")
				if attempt > 0 {
					return cluster.Plan{}, nil
				}
			}
			return plan, err
		}, done: func(rev int64, err error) {
			if err != nil {
				answer(hint)
				return
			}
			of := c.of
			rec, ok := of.partitionAt(r.id, rev)
			answer(func() {
				if ok && !r.gone && !r.b.regressed && of == r.b.of {
					r.take(rec, rev)
				}
				hint()
			})
		}})
	}, hint)
}

// ask puts a question to the elected controller, through any; lost is called if no
// answer comes in time. The question may arrive twice, and late.
func (w *world) ask(b *broker, what string, serve func(c *controller, answer func(func())), lost func()) {
	k := &call{deadline: w.now + callTimeout, from: b, life: b.inc, lost: lost}
	w.calls = append(w.calls, k)
	c := w.leader()
	if c == nil || w.faults && w.chance(10) {
		c = w.ctls[w.n(len(w.ctls))]
	}
	to := c
	w.send(&packet{from: b.node(), to: c.node(), life: c.inc, what: what, twice: true, run: func() {
		serve(to, func(run func()) {
			w.send(&packet{from: to.node(), to: b.node(), life: b.inc, what: "answer to " + what, run: func() {
				if !k.done {
					k.done = true
					run()
				}
			}})
		})
	}})
}

func (w *world) send(p *packet) { w.mail = append(w.mail, p) }

// expireCalls ends the calls that got no answer.
func (w *world) expireCalls() {
	keep := w.calls[:0]
	var over []*call
	for _, k := range w.calls {
		switch {
		case k.done || k.from != nil && (!k.from.up || k.from.inc != k.life):
		case w.now >= k.deadline && (k.from == nil || k.from.runs()):
			over = append(over, k)
		default:
			keep = append(keep, k)
		}
	}
	clear(w.calls[len(keep):])
	w.calls = keep
	for _, k := range over {
		k.done = true
		k.lost()
	}
}

// receive lets one message arrive.
func (w *world) receive() {
	if len(w.mail) == 0 {
		return
	}
	i := w.n(len(w.mail))
	p := w.mail[i]
	running, life, paused := w.process(p.to)
	if running && paused {
		return // it waits in a buffer
	}
	repeat := p.twice && w.faults && w.chance(8)
	if repeat {
		w.count("message repeated")
		p.twice = false
	} else {
		w.mail[i] = w.mail[len(w.mail)-1]
		w.mail = w.mail[:len(w.mail)-1]
	}
	if w.faults && w.chance(6) {
		w.count("message lost")
		return
	}
	if !running || p.life != 0 && life != p.life || !w.reaches(p.from, p.to) {
		return
	}
	p.run()
}

// process tells of a process: whether it runs, its incarnation, whether it is paused.
func (w *world) process(n node) (running bool, life uint64, paused bool) {
	switch n.kind {
	case cluster.KindBroker:
		b := w.broker(n.id)
		return b.up, b.inc, b.paused
	case cluster.KindController:
		c := w.ctls[n.id-1]
		return c.up, c.inc, c.paused
	case cluster.KindCoordinator:
		return w.groups.process(n.id)
	case cluster.KindGateway: // stands for clients
		return true, 0, false
	}
	return false, 0, false
}
