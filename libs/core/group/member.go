package group

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"
)

// matcher is a compiled topic pattern. It matches whole names.
type matcher struct{ re *regexp.Regexp }

// compilePattern compiles an RE2 pattern; "" is none.
func compilePattern(pattern string) (*matcher, error) {
	if pattern == "" {
		return nil, nil
	}
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	if err != nil {
		return nil, err
	}
	return &matcher{re}, nil
}

func (m *matcher) match(name string) bool { return m.re.MatchString(name) }

// current finds the member of a frame whose attach number is the newest.
func (s *State) current(group, id string, attach int64) *member {
	g := s.groups[group]
	if g == nil {
		return nil
	}
	m := g.members[id]
	if m == nil || m.value.Attach != attach {
		return nil
	}
	return m
}

// nextAttach numbers a stream.
func (s *State) nextAttach() int64 {
	s.lastAttach++
	return s.lastAttach
}

// sign notes a sign of life that is as old as silence. A replaced member's session
// runs out in any case.
func (s *State) sign(m *member, now Now, silence time.Duration) {
	if m.value.ReplacedBy == "" {
		m.seen = max(m.seen, now.Mono-max(silence, 0))
	}
}

// standing says why a frame of a member counts no more; nil: it counts.
func (s *State) standing(group, id string, attach int64) (*group, *member, *Error) {
	g := s.groups[group]
	if g == nil || g.members[id] == nil {
		return nil, nil, errorf(ReasonUnknownMember, "group %q has no member %q; join anew", group, id)
	}
	m := g.members[id]
	switch {
	case m.value.ReplacedBy != "":
		return g, m, errorf(ReasonInstanceFenced, "another process joined group %q as instance %q; stop this one", group, m.value.InstanceID)
	case attach < m.value.Attach:
		return g, m, errorf(ReasonStreamSuperseded, "member %q has resumed on another stream (attach %d, this one is %d); stop this one", id, m.value.Attach, attach)
	case attach > m.value.Attach:
		return g, m, errorf(ReasonUnknownMember, "member %q has no attach %d, the newest is %d; join anew", id, attach, m.value.Attach)
	}
	return g, m, nil
}

// open joins or resumes.
func (s *State) open(now Now, e Open) {
	if err := s.checkOpen(&e); err != nil {
		s.refuse(e.Req, err)
		return
	}
	if g := s.groups[e.Group]; g != nil {
		if m := g.members[e.Member]; m != nil {
			s.resume(now, g, m, e)
			return
		}
	}
	if e.Attach > 0 {
		s.refuse(e.Req, errorf(ReasonUnknownMember, "group %q has no member %q to resume; join anew", e.Group, e.Member))
		return
	}
	s.join(now, e)
}

// checkOpen fills in defaults and refuses what is wrong with the request itself.
func (s *State) checkOpen(e *Open) *Error {
	if e.SessionTimeout == 0 {
		e.SessionTimeout = s.cfg.SessionTimeout
	}
	if e.RebalanceTimeout == 0 {
		e.RebalanceTimeout = s.cfg.RebalanceTimeout
	}
	if e.SessionTimeout < s.cfg.MinSessionTimeout || e.SessionTimeout > s.cfg.MaxSessionTimeout {
		return errorf(ReasonInvalidRequest, "the session timeout %v is not between %v and %v; choose one that is",
			e.SessionTimeout, s.cfg.MinSessionTimeout, s.cfg.MaxSessionTimeout)
	}
	if e.RebalanceTimeout < time.Millisecond || e.RebalanceTimeout > s.cfg.MaxRebalanceTimeout {
		return errorf(ReasonInvalidRequest, "the rebalance timeout %v is not between 1ms and %v; choose one that is",
			e.RebalanceTimeout, s.cfg.MaxRebalanceTimeout)
	}
	if e.Assignor != "" && e.Assignor != AssignorUniform && e.Assignor != AssignorRange {
		return errorf(ReasonInvalidRequest, "there is no assignor %q; use %q or %q", e.Assignor, AssignorUniform, AssignorRange)
	}
	if _, err := compilePattern(e.Pattern); err != nil {
		return errorf(ReasonInvalidRequest, "the topic pattern is not a regular expression (RE2): %v", err)
	}
	e.Topics = slices.Clone(e.Topics)
	slices.Sort(e.Topics)
	e.Topics = slices.Compact(e.Topics)
	return nil
}

// join adds a new member.
func (s *State) join(now Now, e Open) {
	g := s.groups[e.Group]
	if g == nil && len(s.groups) >= s.cfg.MaxGroups {
		s.refuse(e.Req, errorf(ReasonLimitExceeded, "the group's shard has %d groups already; delete some", len(s.groups)))
		return
	}
	if g != nil && len(g.members) >= s.cfg.MaxMembers && g.instances[e.Instance] == "" {
		s.refuse(e.Req, errorf(ReasonLimitExceeded, "group %q has %d members already, as many as group.consumer.max.size allows", e.Group, len(g.members)))
		return
	}
	if n := s.partitionsWith(g, e); n > s.cfg.MaxPartitions {
		s.refuse(e.Req, s.tooManyPartitions(e.Group, n))
		return
	}
	created := g == nil
	g = s.group(e.Group, true)
	first := len(g.members) == 0
	if assignor := cmp.Or(e.Assignor, g.assignor); created || assignor != g.assignor {
		g.assignor = assignor
		s.write(groupKey(g.name), g.value())
	}
	m := &member{
		id:       e.Member,
		owned:    make(map[Part]*holding),
		target:   make(map[Part]bool),
		attached: true, fresh: true, mustSend: true,
		seen: now.Mono,
	}
	m.subscribe(e)
	m.value.InstanceID = e.Instance
	m.value.Attach = s.nextAttach()
	g.members[m.id], g.expireAt = m, 0
	older := g.instances[e.Instance]
	if e.Instance == "" {
		older = ""
	} else {
		g.instances[e.Instance] = m.id
	}
	var freed []Part
	if older != "" {
		freed = s.takeOver(now, g, g.members[older], m)
	} else {
		s.writeMember(g, m)
	}
	s.reply(e.Req, m.opened())
	s.wakeBy(now.Mono + e.SessionTimeout)
	switch {
	case first:
		g.because(fmt.Sprintf("member %s joined", m.label()))
		s.dirty[g.name] = true
	case older == "" || m.fresh:
		s.rebalanceSoon(now, g, fmt.Sprintf("member %s joined", m.label()))
	default:
		s.reconcile(now, g, m, fmt.Sprintf("instance %q is back", e.Instance))
	}
	s.offer(now, g, freed)
}

func (s *State) tooManyPartitions(name string, n int) *Error {
	return errorf(ReasonLimitExceeded, "group %q would share %d partitions, group.max.partitions allows %d; split it", name, n, s.cfg.MaxPartitions)
}

// takeOver hands the place of a static member to its successor. The older one
// commits nothing from now on; what it holds comes free when its stream has ended
// or its session has lapsed. Where it has ended already, takeOver returns what came free
// and is not the successor's: the older was giving it up.
func (s *State) takeOver(now Now, g *group, older, m *member) (freed []Part) {
	m.target, m.targetAt, m.hasTarget = older.target, older.targetAt, older.hasTarget
	m.fresh = older.fresh || !sameSubscription(&older.value, &m.value)
	older.target, older.hasTarget = make(map[Part]bool), false
	for p := range m.target {
		g.wanted[p] = m.id
	}
	older.value.ReplacedBy = m.id
	s.writeMember(g, older)
	s.writeMember(g, m)
	if m.hasTarget {
		s.write(targetKey(g.name, m.id), m.targetValue())
		s.write(targetKey(g.name, older.id), nil)
	}
	if older.gone {
		freed = slices.DeleteFunc(older.parts(), func(p Part) bool { return g.wanted[p] == m.id })
		s.remove(g, older, now.Mono)
		return freed
	}
	// Where the shard was loaded anew, the older's stream ended with the earlier
	// owner. That says nothing about its process, which uses what it holds until its
	// session is over.
	if older.attached {
		s.hold(Send{Group: g.name, Member: older.id, Attach: older.value.Attach, Message: Fenced{
			errorf(ReasonInstanceFenced, "member %q joined group %q as instance %q; stop this process", m.id, g.name, m.value.InstanceID),
		}})
	}
	return nil
}

// resume attaches a member to a new stream. What it says it holds is the truth:
// nothing of the older stream counts any more.
func (s *State) resume(now Now, g *group, m *member, e Open) {
	switch {
	case m.value.ReplacedBy != "":
		s.refuse(e.Req, errorf(ReasonInstanceFenced, "another process joined group %q as instance %q; stop this one", g.name, m.value.InstanceID))
		return
	case e.Attach > m.value.Attach:
		s.refuse(e.Req, errorf(ReasonUnknownMember, "member %q has no attach %d; join anew", m.id, e.Attach))
		return
	case e.Instance != m.value.InstanceID:
		s.refuse(e.Req, errorf(ReasonInvalidRequest, "member %q is instance %q and cannot become %q; join under another member id", m.id, m.value.InstanceID, e.Instance))
		return
	}
	if n := s.partitionsWith(g, e); n > s.cfg.MaxPartitions && !sameSubscription(&m.value, &MemberValue{Topics: e.Topics, Pattern: e.Pattern}) {
		s.refuse(e.Req, s.tooManyPartitions(g.name, n))
		return
	}
	if m.attached {
		s.hold(Send{Group: g.name, Member: m.id, Attach: m.value.Attach, Message: Fenced{
			errorf(ReasonStreamSuperseded, "member %q resumed on another stream; stop this one", m.id),
		}})
	}
	changed := m.resubscribe(e)
	m.value.Attach = s.nextAttach()
	m.attached, m.gone, m.mustSend = true, false, true
	m.seen = max(m.seen, now.Mono-max(e.Silence, 0))
	freed := s.restate(now, g, m, e.Owned)
	m.sent, m.sentAt = max(m.sent, m.value.Epoch), 0
	for _, p := range freed {
		s.release(g, m, p, now.Mono)
	}
	s.moved[g.name] = true
	s.writeMember(g, m)
	s.reply(e.Req, m.opened())
	s.wakeBy(m.seen + e.SessionTimeout)
	s.reconcile(now, g, m, "member resumed")
	s.offer(now, g, freed)
	if changed {
		s.rebalanceSoon(now, g, fmt.Sprintf("member %s changed its subscription", m.label()))
	}
}

// restate takes in everything a resuming member says it holds, and lists what it
// does not hold.
func (s *State) restate(now Now, g *group, m *member, owned []Owned) (freed []Part) {
	stated := make(map[Part]int64, len(owned))
	for _, o := range owned {
		stated[o.Part] = o.Epoch
	}
	for _, p := range m.parts() {
		h := m.owned[p]
		epoch, listed := stated[p]
		if !listed {
			freed = append(freed, p)
			continue
		}
		// An older tenure of the same partition is still in the member's hands:
		// it is neither free nor confirmed.
		h.confirmed, h.heeded = false, 0
		h.since = now.Mono
		if epoch == h.epoch {
			g.confirm(now, p, h)
			m.value.Epoch = max(m.value.Epoch, h.epoch)
		}
	}
	return freed
}

func (s *State) leave(now Now, e Leave) {
	g, m, err := s.standing(e.Group, e.Member, e.Attach)
	if m == nil {
		s.reply(e.Req, Left{}) // it has left already
		return
	}
	if err != nil && err.Reason != ReasonInstanceFenced {
		s.refuse(e.Req, err)
		return
	}
	s.reply(e.Req, Left{})
	if m.value.InstanceID == "" || m.value.ReplacedBy != "" {
		s.removed(now, g, m, now.Mono, fmt.Sprintf("member %s left", m.label()))
		return
	}
	freed := m.parts()
	for _, p := range freed {
		s.release(g, m, p, now.Mono)
	}
	m.attached, m.gone = false, true
	s.writeMember(g, m)
	s.offer(now, g, freed)
}

// gone detaches a member whose stream broke. A replaced one has ended with it.
func (s *State) gone(now Now, e Gone) {
	m := s.current(e.Group, e.Member, e.Attach)
	if m == nil {
		return
	}
	m.attached, m.gone = false, true
	if m.value.ReplacedBy != "" {
		g := s.groups[e.Group]
		s.removed(now, g, m, now.Mono, fmt.Sprintf("member %s was replaced", m.label()))
	}
}

// expel ends a membership against the member's will.
func (s *State) expel(now Now, g *group, m *member, why ending) {
	if m.attached {
		s.hold(Send{Group: g.name, Member: m.id, Attach: m.value.Attach, Message: Fenced{why.err}})
	}
	s.removed(now, g, m, m.seen, why.cause)
}

// removed takes a member out and hands over what it held; since is when it was last
// known to use it.
func (s *State) removed(now Now, g *group, m *member, since time.Duration, cause string) {
	freed := m.parts()
	hadPlace := m.value.ReplacedBy == ""
	s.remove(g, m, since)
	if len(g.members) == 0 {
		s.keepUntil(now, g)
		clear(g.gaps) // nobody misses them
	}
	if hadPlace {
		g.because(cause)
		s.dirty[g.name] = true
		return
	}
	s.offer(now, g, freed)
}

// remove takes a member out of the group and the log.
func (s *State) remove(g *group, m *member, since time.Duration) {
	for _, p := range m.parts() {
		s.release(g, m, p, since)
	}
	for p := range m.target {
		if g.wanted[p] == m.id {
			delete(g.wanted, p)
			delete(g.starts, p)
			g.left[p] = m.id
		}
	}
	if g.instances[m.value.InstanceID] == m.id {
		delete(g.instances, m.value.InstanceID)
	}
	delete(g.members, m.id)
	if m.hasTarget {
		s.write(targetKey(g.name, m.id), nil)
	}
	s.write(memberKey(g.name, m.id), nil)
}

// ping answers once an append or barrier begun after it has committed.
func (s *State) ping(now Now, e Ping) {
	_, m, err := s.standing(e.Group, e.Member, e.Attach)
	if err != nil {
		s.refuse(e.Req, err)
		return
	}
	s.sign(m, now, e.Silence)
	s.tell(m, now, e.Progress)
	s.reply(e.Req, Pong{})
}

// heed takes in that a member hands out no more records of partitions.
func (s *State) heed(now Now, e Revoking) {
	m := s.current(e.Group, e.Member, e.Attach)
	if m == nil {
		return
	}
	s.sign(m, now, e.Silence)
	for _, o := range e.Parts {
		if h := m.owned[o.Part]; h != nil && h.revoking && h.epoch == o.Epoch && h.heeded == 0 {
			h.heeded = now.Mono
		}
	}
}

func (s *State) writeMember(g *group, m *member) {
	s.write(memberKey(g.name, m.id), m.record())
}

// record is the member as it is written.
func (m *member) record() MemberValue {
	v := m.value
	v.Owned = make([]Owned, 0, len(m.owned))
	for _, p := range m.parts() {
		h := m.owned[p]
		v.Owned = append(v.Owned, Owned{Part: p, Epoch: h.epoch, Revoking: h.revoking})
	}
	return v
}

func (m *member) targetValue() TargetValue {
	return TargetValue{Epoch: m.targetAt, Parts: sortedParts(m.target)}
}

// parts lists what the member holds, in order.
func (m *member) parts() []Part { return sortedParts(m.owned) }

func sortedParts[V any](set map[Part]V) []Part {
	return slices.SortedFunc(maps.Keys(set), compareParts)
}

func (m *member) opened() Opened {
	session := time.Duration(m.value.SessionTimeout) * time.Millisecond
	return Opened{Attach: m.value.Attach, MemberEpoch: m.value.Epoch, SessionTimeout: session, PingInterval: session / 3}
}

// label names a member for people, shortly.
func (m *member) label() string {
	name := m.id
	if m.value.InstanceID != "" {
		name = m.value.InstanceID
	}
	if len(name) > 64 {
		name = name[:64] + "…"
	}
	return fmt.Sprintf("%q", name)
}

// subscribe takes what a member asks for into its record, but for what each stream
// states anew.
func (m *member) subscribe(e Open) {
	m.value.Topics, m.value.Pattern = e.Topics, e.Pattern
	m.value.SessionTimeout = e.SessionTimeout.Milliseconds()
	m.value.RebalanceTimeout = e.RebalanceTimeout.Milliseconds()
	m.value.ClientID, m.value.ClientHost = e.ClientID, e.ClientHost
	m.start, m.maxProcessing = e.Start, e.MaxProcessing
	m.compile()
}

// compile prepares the pattern. One that does not compile matches nothing: it was
// checked when the member joined.
func (m *member) compile() { m.pattern, _ = compilePattern(m.value.Pattern) }

// resubscribe is subscribe for a member that exists; it tells whether the topics
// changed.
func (m *member) resubscribe(e Open) bool {
	before := m.value
	m.subscribe(e)
	if sameSubscription(&before, &m.value) {
		return false
	}
	m.fresh = true
	return true
}

func sameSubscription(a, b *MemberValue) bool {
	return a.Pattern == b.Pattern && slices.Equal(a.Topics, b.Topics)
}
