package partition

import (
	"slices"
	"time"
)

// node is a broker with its replica.
type node struct {
	id      int32
	up      bool
	inc     uint64
	st      *State
	disk    simDisk
	cursor  int      // record of the history applied last, -1: none
	floor   int      // the first that counts
	ops     []Effect // operations that the log has not begun
	results []Event  // results on their way to the core
	refs    map[int64][]entry
	nextRef int64
	wake    time.Duration
	lost    bool // its disk is gone, or cut, until it has been counted in again
	hw      int64
}

// link is one session between a follower and a leader.
type link struct {
	follower, leader *node
	fInc, lInc       uint64
	fSess, lSess     int64
	from             int64 // what is to be sent next, -1: nothing
	up, down         []Event
	broken           bool
	carried          map[*Batch][]entry
}

// step has a core take an event, and sees to the effects.
func (w *world) step(n *node, ev Event) {
	if !n.up {
		return
	}
	st, inc := n.st, n.inc
	hw := st.HighWatermark()
	effects := slices.Clone(st.Step(ev))
	reset := false
	if t, ok := ev.(*Truncated); ok {
		reset = t.End < hw || st.Start() == t.End
	}
	if w.tracing {
		w.say("%d#%d %T%+v -> %s", n.id, inc, ev, deref(ev), renderAll(effects))
	}
	w.checkNode(n)
	for _, e := range effects {
		w.effect(n, e)
	}
	if err := st.Violation(); err != nil {
		w.fail("broker %d: %v", n.id, err)
	}
	if st.HighWatermark() < n.hw && !reset {
		w.fail("broker %d: the high watermark went from %d back to %d", n.id, n.hw, st.HighWatermark())
	}
	n.hw = st.HighWatermark()
}

// effect carries out one effect, or remembers it.
func (w *world) effect(n *node, e Effect) {
	switch e := e.(type) {
	case *Append:
		c := *e
		n.ops = append(n.ops, &c)
	case *AppendCopy:
		c := *e
		n.ops = append(n.ops, &c)
	case *Sync:
		c := *e
		n.ops = append(n.ops, &c)
	case *Truncate:
		c := *e
		n.ops = append(n.ops, &c)
	case *Reset:
		c := *e
		n.ops = append(n.ops, &c)
	case *MoveStart:
		c := *e
		n.ops = append(n.ops, &c)
	case DropRef:
		delete(n.refs, e.Ref)
	case *CheckpointHW:
		n.disk.hw = e.HW
	case ClearVerdict:
		n.disk.verdict = Intact
		n.results = append(n.results, VerdictCleared{})
	case Replaced:
		n.disk.aside = false
	case *Reply:
		w.replied(n, e)
	case *Serve:
		w.served(n, e)
	case *Propose:
		p := proposed{from: Replica{Broker: n.id, Incarnation: n.inc}, Propose: *e}
		p.ISR = slices.Clone(p.ISR)
		w.proposals = append(w.proposals, p)
		w.count("propose")
	case WakeAt:
		if n.wake == 0 || e.At < n.wake {
			n.wake = e.At
		}
	default:
		w.effectOnLinks(n, e)
	}
}

func (w *world) effectOnLinks(n *node, e Effect) {
	switch e := e.(type) {
	case *OpenLeader:
		w.open(n, e)
	case *SendPosition:
		if l := w.linkOf(n, e.Sess, false); l != nil {
			l.up = append(l.up, &Position{
				Sess: l.lSess, LeaderEpoch: e.LeaderEpoch, PartEpoch: e.PartEpoch, LastEpoch: e.LastEpoch,
				End: e.End, Durable: e.Durable, Start: e.Start,
			})
		}
	case CloseLeader:
		if l := w.linkOf(n, e.Sess, false); l != nil {
			w.cutLink(l)
		}
	case *SendEpochEnd:
		if l := w.linkOf(n, e.Sess, true); l != nil {
			l.down = append(l.down, &EpochEnd{
				Sess: l.fSess, LeaderEpoch: e.LeaderEpoch, LastEpoch: e.LastEpoch, End: e.End, Agreed: e.Agreed, LogStart: e.LogStart, HW: e.HW,
			})
		}
	case *SendBatches:
		if l := w.linkOf(n, e.Sess, true); l != nil {
			if l.from >= 0 {
				w.fail("broker %d: SendBatches came twice in a session", n.id)
			}
			l.from = e.From
		}
	case *SendHW:
		if l := w.linkOf(n, e.Sess, true); l != nil {
			_, epoch := n.st.Leader()
			l.down = append(l.down, &Watermark{Sess: l.fSess, LeaderEpoch: epoch, HW: e.HW, Start: e.Start})
		}
	case CloseSess:
		if l := w.linkOf(n, e.Sess, true); l != nil {
			w.cutLink(l)
		}
	}
}

// open makes a link for a session, or says Hello again in it.
func (w *world) open(n *node, e *OpenLeader) {
	l := w.linkOf(n, e.Sess, false)
	if l == nil {
		w.nextSess++
		l = &link{
			follower: n, leader: w.nodes[e.Leader.Broker], fInc: n.inc, lInc: e.Leader.Incarnation,
			fSess: e.Sess, lSess: w.nextSess, from: -1, carried: map[*Batch][]entry{},
		}
		w.links = append(w.links, l)
		w.count("session")
	}
	l.up = append(l.up, &Hello{
		Sess: l.lSess, From: Replica{Broker: n.id, Incarnation: n.inc}, LeaderEpoch: e.Epoch, LastEpoch: e.LastEpoch, End: e.End,
	})
}

// linkOf finds a link by the session of one of its sides.
func (w *world) linkOf(n *node, sess int64, asLeader bool) *link {
	for _, l := range w.links {
		if l.broken {
			continue
		}
		if asLeader && l.leader == n && l.lInc == n.inc && l.lSess == sess || !asLeader && l.follower == n && l.fInc == n.inc && l.fSess == sess {
			return l
		}
	}
	return nil
}

// cutLink breaks a link; both sides hear of it some time.
func (w *world) cutLink(l *link) {
	if l.broken {
		return
	}
	l.broken = true
	if l.leader.up && l.leader.inc == l.lInc {
		l.leader.results = append(l.leader.results, Gone{Sess: l.lSess})
	}
	if l.follower.up && l.follower.inc == l.fInc {
		l.follower.results = append(l.follower.results, LeaderGone{Sess: l.fSess})
	}
}

// cutOff breaks every link of a node, with what is on its way.
func (w *world) cutOff(n *node) {
	for _, l := range w.links {
		if l.leader == n || l.follower == n {
			w.cutLink(l)
		}
	}
}

// execute has the log of a node carry out an operation. The result is told later.
func (w *world) execute(n *node, i int) {
	op := n.ops[i]
	n.ops = slices.Delete(n.ops, i, i+1)
	d := &n.disk
	tell := func(ev Event) { n.results = append(n.results, ev) }
	switch e := op.(type) {
	case *Append:
		value := w.values[e.Req] // also if it has been answered
		if at := d.find(value); at >= 0 {
			w.count("duplicate")
			tell(&Duplicate{Op: e.Op, Base: at, End: at + 1})
			return
		}
		if !w.calm && w.chance(3) {
			tell(AppendRefused{Op: e.Op, Full: w.chance(50)})
			return
		}
		w.claimEpoch(n, e.Epoch)
		base := d.end()
		d.append(entry{e.Epoch, value})
		tell(&Appended{Op: e.Op, Base: base, End: base + 1})
	case *AppendCopy:
		run := n.refs[e.Ref]
		delete(n.refs, e.Ref)
		if !w.calm && w.chance(2) {
			tell(AppendRefused{Op: e.Op, Full: true})
			return
		}
		if !w.calm && len(run) > 1 && w.chance(5) {
			run = run[:1]
		}
		base := d.end()
		added := d.append(run...)
		tell(&Appended{Op: e.Op, Base: base, End: d.end(), LastEpoch: d.lastEpoch(), Epochs: added})
		w.count("copied")
	case *Sync:
		d.durable = d.end()
		tell(&Synced{Op: e.Op, End: d.end()})
	case *Truncate:
		w.count("truncated")
		d.cut(e.To)
		tell(&Truncated{Op: e.Op, End: d.end(), Epochs: slices.Clone(d.epochs)})
	case *Reset:
		w.count("reset")
		if e.Keep {
			d.aside = true
		}
		d.reset(e.To)
		tell(&Truncated{Op: e.Op, End: d.end()})
	case *MoveStart:
		d.moveStart(e.To)
		w.deleted = max(w.deleted, e.To)
		w.count("start moved")
		tell(StartMoved{Op: e.Op, Start: e.To})
	}
}

// start starts a node's process, once more.
func (w *world) start(n *node) {
	w.nextInc++
	d := &n.disk
	found := Intact
	switch {
	case d.absent:
		found = Missing
	case d.end() < d.hwSaved, d.end() < d.start:
		found = Cut
	}
	d.verdict = max(d.verdict, found)
	// Recovery syncs what it keeps before it calls it durable.
	d.durable = d.end()
	n.up, n.inc, n.st = true, w.nextInc, New(Replica{Broker: n.id, Incarnation: w.nextInc})
	n.cursor, n.floor = -1, len(w.ctl.history)-1
	n.ops, n.results, n.refs, n.wake, n.hw = nil, nil, map[int64][]entry{}, 0, 0
	w.say("%d starts as #%d with %v, %v", n.id, n.inc, d, d.verdict)
	w.step(n, Settings{LagTimeMax: 200 * time.Millisecond, LeaseTTL: simLease})
	w.step(n, Flushing{OS: w.os})
	w.step(n, &Opened{
		MaxEpochSeen: d.lastEpoch(), Epochs: slices.Clone(d.epochs), Start: d.start, End: d.end(), Durable: d.durable, HW: d.hwSaved, Verdict: d.verdict, Absent: d.absent,
	})
	n.hw = n.st.HighWatermark()
}

// crash ends a node's process. With power the host goes too, and takes some of what
// was not synced with it.
func (w *world) crash(n *node, power bool) {
	d := &n.disk
	n.up = false
	n.results, n.ops = nil, nil
	w.cutOff(n)
	for req, r := range w.requests {
		if r.node == n {
			delete(w.requests, req)
			if r.client >= 0 {
				w.clients[r.client].busy = false
			}
		}
	}
	d.hw = d.hwSaved
	w.count("crash")
	if power {
		w.count("power cut")
		keep := min(d.durable, d.end())
		if !w.calm {
			keep += int64(w.n(int(d.end()-keep) + 1))
		}
		saved := d.hwSaved
		d.cut(keep)
		d.hwSaved = saved
		if w.os {
			d.verdict = max(d.verdict, UncleanOS)
			d.hwSaved = min(d.hwSaved, d.end()) // an unclean stop under os is no cut
		}
	}
	w.say("%d#%d stops (power=%v) with %v", n.id, n.inc, power, d)
}

// wipe loses a node's disk for good.
func (w *world) wipe(n *node) {
	if n.up {
		w.crash(n, false)
	}
	n.disk = simDisk{absent: true, verdict: Missing}
	n.lost = true
	w.count("disk lost")
	w.say("%d loses its disk", n.id)
}
