package simulation

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
)

// The outcomes of a transaction that did not take place, or may not have.
var (
	errDeposed  = errors.New("the election key is another's")
	errConflict = errors.New("a key has changed")
	errUnknown  = errors.New("the outcome is unknown")
)

// change is one change of one key.
type change struct {
	rev, create int64
	key         cluster.Key
	rec         cluster.Record // nil: deleted
	lease       int64
}

// lease belongs to one process.
type lease struct {
	id      int64
	owner   node
	life    uint64
	expires time.Duration
	asked   time.Duration // when its renewal was last asked for, with success
	gone    bool
}

// etcd is a key-value store with revisions, leases and a history of all changes.
type etcd struct {
	w         *world
	cluster   uint64 // its id
	rev       int64
	log       []change
	keys      map[cluster.Key][]change // the history of each key
	leases    []*lease
	nextLease int64
	down      bool
	late      []*txn // may still take place
}

// txn is a transaction: the writes take place if the guard and all revisions hold.
type txn struct {
	why    string
	guard  int64 // ModRevision that the election key must have; 0: none is asked
	writes []cluster.Write
	lease  int64 // of what is put
	from   node
}

func newEtcd(w *world) *etcd {
	return &etcd{w: w, cluster: w.rng.next(), rev: 1, keys: map[cluster.Key][]change{}}
}

// get is a key as it is now; ok is false where there is none.
func (e *etcd) get(key cluster.Key) (change, bool) { return e.at(key, math.MaxInt64) }

// at is a key as it was at a revision.
func (e *etcd) at(key cluster.Key, rev int64) (change, bool) {
	h := e.keys[key]
	i := len(h) - 1
	for i >= 0 && h[i].rev > rev {
		i--
	}
	if i < 0 || h[i].rec == nil {
		return change{}, false
	}
	return h[i], true
}

// partitionAt is a partition's record at a revision.
func (e *etcd) partitionAt(id cluster.PartitionID, rev int64) (cluster.Partition, bool) {
	c, ok := e.at(cluster.Partition{Topic: id.Topic, Number: id.Number}.Key(), rev)
	if !ok {
		return cluster.Partition{}, false
	}
	return c.rec.(cluster.Partition), true
}

func (e *etcd) brokerAt(id int32, rev int64) (cluster.Broker, bool) {
	c, ok := e.at(cluster.Key{Type: cluster.KeyBroker, ID: id}, rev)
	if !ok {
		return cluster.Broker{}, false
	}
	return c.rec.(cluster.Broker), true
}

// election is who leads the controllers, with the revisions of the key.
func (e *etcd) electionAt(rev int64) (cluster.Process, change, bool) {
	c, ok := e.at(cluster.Key{Type: cluster.KeyElection}, rev)
	if !ok {
		return cluster.Process{}, c, false
	}
	return c.rec.(cluster.Election).Controller, c, true
}

// put changes one key in the revision that has begun.
func (e *etcd) put(key cluster.Key, rec cluster.Record, lease int64) {
	c := change{rev: e.rev, create: e.rev, key: key, rec: rec, lease: lease}
	if old, ok := e.get(key); ok && rec != nil {
		c.create = old.create
	}
	e.log = append(e.log, c)
	e.keys[key] = append(e.keys[key], c)
}

// apply carries a transaction out, whole or not at all.
func (e *etcd) apply(t *txn) (int64, error) {
	if t.guard > 0 {
		if c, ok := e.get(cluster.Key{Type: cluster.KeyElection}); !ok || c.rev != t.guard {
			e.w.count("zombie write rejected")
			return e.rev, errDeposed
		}
	}
	for _, w := range t.writes {
		c, ok := e.get(w.Key)
		if have := c.rev; !ok && w.Expect != 0 || ok && have != w.Expect {
			return e.rev, errConflict
		}
	}
	if t.lease != 0 && e.lease(t.lease) == nil {
		return e.rev, errDeposed
	}
	e.rev++
	for _, w := range t.writes {
		if next, ok := w.Record.(cluster.Partition); ok {
			e.w.checkRecord(e, next)
		}
		if topic, ok := w.Record.(cluster.Topic); ok && e == e.w.etcd {
			e.w.noteTopic(topic)
		}
		e.put(w.Key, w.Record, t.lease)
		e.sayWrite(t, w)
	}
	return e.rev, nil
}

// commit is a transaction as its maker sees it: etcd may be away, the answer may be
// lost, and what has no answer may take place later.
func (e *etcd) commit(t *txn) (int64, error) {
	w := e.w
	if e.down || !w.reaches(t.from, etcdNode()) {
		if w.faults && w.chance(30) {
			e.late = append(e.late, t)
		}
		w.count("etcd transaction without an answer")
		return 0, errUnknown
	}
	if w.faults && w.chance(6) {
		w.count("etcd transaction without an answer")
		if w.chance(50) {
			rev, err := e.apply(t)
			w.say("the answer to %v about %q is lost (revision %d, %v)", t.from, t.why, rev, err)
			return 0, errUnknown
		}
		w.say("%v's transaction %q is on its way for long", t.from, t.why)
		e.late = append(e.late, t)
		return 0, errUnknown
	}
	return e.apply(t)
}

// arrive lets a transaction that was under way for long take place, or be lost.
func (e *etcd) arrive() {
	if len(e.late) == 0 || e.down {
		return
	}
	i := e.w.n(len(e.late))
	t := e.late[i]
	e.late = slices.Delete(e.late, i, i+1)
	if !e.w.chance(80) {
		return
	}
	rev, err := e.apply(t)
	e.w.say("a late transaction of %v arrives: %q (revision %d, %v)", t.from, t.why, rev, err)
	if err == nil {
		e.w.count("late transaction applied")
	} else {
		e.w.count("late transaction refused")
	}
}

func (e *etcd) grant(owner node, life uint64) *lease {
	e.nextLease++
	l := &lease{id: e.nextLease, owner: owner, life: life, expires: e.w.now + leaseTTL, asked: e.w.now}
	e.leases = append(e.leases, l)
	return l
}

func (e *etcd) lease(id int64) *lease {
	for _, l := range e.leases {
		if l.id == id && !l.gone {
			return l
		}
	}
	return nil
}

// revoke ends a lease, and the keys under it.
func (e *etcd) revoke(l *lease) {
	if l.gone {
		return
	}
	l.gone = true
	var keys []cluster.Key
	for key, h := range e.keys {
		if c := h[len(h)-1]; c.rec != nil && c.lease == l.id {
			keys = append(keys, key)
		}
	}
	if len(keys) > 0 {
		sort.Slice(keys, func(i, j int) bool { return fmt.Sprint(keys[i]) < fmt.Sprint(keys[j]) })
		e.rev++
		for _, key := range keys {
			e.put(key, nil, 0)
			e.w.say("the key %s of %v goes (revision %d)", keyName(key), l.owner, e.rev)
		}
	}
	e.leases = slices.DeleteFunc(e.leases, func(x *lease) bool { return x == l })
}

func keyName(k cluster.Key) string {
	switch k.Type {
	case cluster.KeyElection:
		return "election"
	case cluster.KeyRegistration:
		return "registration of " + node{k.Kind, k.ID}.String()
	}
	return fmt.Sprintf("%d/%d", k.Type, k.ID)
}

// restore is an etcd as this one was at a revision. Leases begin anew, as etcd's do.
func (e *etcd) restore(rev int64, sameCluster bool) *etcd {
	next := newEtcd(e.w)
	if sameCluster {
		next.cluster = e.cluster
	}
	for _, c := range e.log {
		if c.rev > rev {
			break
		}
		next.log = append(next.log, c)
		next.keys[c.key] = append(next.keys[c.key], c)
		next.rev = c.rev
	}
	next.nextLease = e.nextLease
	seen := map[int64]bool{}
	var ids []int64
	for _, h := range next.keys {
		if c := h[len(h)-1]; c.rec != nil && c.lease != 0 && !seen[c.lease] {
			seen[c.lease] = true
			ids = append(ids, c.lease)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		// Nobody renews it: its owner holds a lease of the etcd that was.
		next.leases = append(next.leases, &lease{id: id, expires: e.w.now + leaseTTL})
	}
	return next
}

// keepLeases renews the leases of processes that run and reach etcd, and ends those
// that ran out.
func (w *world) keepLeases() {
	e := w.etcd
	if e.down {
		return
	}
	for _, l := range slices.Clone(e.leases) {
		if l.life != 0 && w.keeps(l) && w.reaches(l.owner, etcdNode()) {
			l.expires, l.asked = w.now+leaseTTL, w.now
			continue
		}
		if w.now >= l.expires {
			w.count("lease ran out")
			e.revoke(l)
		}
	}
}

// keeps reports whether the owner of a lease is there to renew it.
func (w *world) keeps(l *lease) bool {
	switch l.owner.kind {
	case cluster.KindBroker:
		b := w.broker(l.owner.id)
		return b.runs() && b.inc == l.life && !b.diskHung && b.lease == l
	case cluster.KindController:
		c := w.ctls[l.owner.id-1]
		return c.runs() && c.inc == l.life
	case cluster.KindCoordinator:
		return w.groups.keeps(l)
	}
	return false
}
