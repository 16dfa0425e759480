package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
)

// The times of the simulated mesh. They are those of a real one, divided by about
// twenty, so that leases lapse and followers lag within one walk.
const (
	leaseTTL     = 200 * time.Millisecond
	lagTimeMax   = 150 * time.Millisecond
	callTimeout  = 60 * time.Millisecond
	folderWait   = 80 * time.Millisecond
	uncleanWait  = leaseTTL + 50*time.Millisecond
	produceLimit = 250 * time.Millisecond
)

// world is one walk: brokers, controllers, clients, etcd, and what lies between.
type world struct {
	seed uint64
	rng  rng
	now  time.Duration
	conf walkConfig

	faults bool // they may still happen
	etcd   *etcd
	down   map[[2]node]bool // pairs that cannot talk to each other
	ctls   []*controller
	bs     []*broker // by id, from 1 on; bs[0] is nil
	links  []*link
	mail   []*packet
	calls  []*call

	parts   map[cluster.PartitionID]*part // what is true of a partition
	order   []*part
	topics  []*topic
	floors  map[string]int32 // the highest leader epoch that deleted topics of a name had
	writers []*writer
	readers []*reader
	groups  *groups
	altered *topic // whose min the next admin command changes

	lives     uint64 // incarnations handed out
	lastSess  int64
	lastValue int64
	restored  *etcd // what etcd was restored from; nil: it was not

	weights []int
	sum     int
	step    int
	steps   int // with faults, in this walk
	hit     int // faults so far
	counts  map[string]int
	failure *failure
	tracing bool
	story   []string
}

// walkConfig is what a seed fixes for the whole walk.
type walkConfig struct {
	Brokers, Controllers int
	Ordered              bool // streams keep their order and lose nothing
	Unclean              bool // topics may allow unclean elections, and operators force them
	OS                   bool // some topics have durability=os
	Restore              bool // etcd is restored from an older state at the end
	Groups               bool
	Delete               bool // topics are deleted, and made again
	Compact, Retain      bool // some topics are compacted, some let go of old segments
}

func (c walkConfig) String() string {
	return fmt.Sprintf("brokers=%d controllers=%d ordered=%v unclean=%v os=%v restore=%v groups=%v delete=%v compact=%v retain=%v", c.Brokers, c.Controllers, c.Ordered, c.Unclean, c.OS, c.Restore, c.Groups, c.Delete, c.Compact, c.Retain)
}

// failure is what a walk found.
type failure struct {
	Kind   string // LOST, UNSTABLE, ...
	Detail string
	Step   int
}

func (f *failure) String() string { return fmt.Sprintf("%s at step %d: %s", f.Kind, f.Step, f.Detail) }

// rng is splitmix64: tiny, and as good as needed.
type rng struct{ state uint64 }

func (r *rng) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// mix is the seed of a step.
func mix(seed uint64, step int) uint64 {
	r := rng{state: seed*0x9e3779b97f4a7c15 ^ uint64(step+1)*0xd6e8feb86659fd93}
	return r.next()
}

func (w *world) n(k int) int {
	if k <= 1 {
		return 0
	}
	return int(w.rng.next() >> 33 % uint64(k))
}

func (w *world) chance(pct int) bool { return w.n(100) < pct }

// count counts an occurrence; faults are counted for the walk too.
func (w *world) count(what string) {
	w.counts[what]++
	if strings.HasPrefix(what, "fault: ") {
		w.hit++
	}
}

// say adds a line to the story.
func (w *world) say(format string, args ...any) {
	if w.tracing {
		w.story = append(w.story, fmt.Sprintf("%5d %7.1fms  ", w.step, float64(w.now.Microseconds())/1000)+fmt.Sprintf(format, args...))
	}
}

// fail ends the walk. The first failure is the one that counts.
func (w *world) fail(kind, format string, args ...any) {
	if w.failure == nil {
		w.failure = &failure{Kind: kind, Detail: fmt.Sprintf(format, args...), Step: w.step}
		w.say("%s: %s", kind, w.failure.Detail)
	}
}

// node names a process that talks to others, whichever life of it.
type node struct {
	kind cluster.ServiceKind // 0: etcd
	id   int32
}

func (n node) String() string {
	switch n.kind {
	case cluster.KindBroker:
		return fmt.Sprintf("broker %d", n.id)
	case cluster.KindController:
		return fmt.Sprintf("controller %d", n.id)
	case cluster.KindCoordinator:
		return fmt.Sprintf("coordinator %d", n.id)
	}
	return "etcd"
}

func etcdNode() node { return node{} }

// reaches reports whether two processes can talk.
func (w *world) reaches(a, b node) bool { return len(w.down) == 0 || !w.down[pair(a, b)] }

func pair(a, b node) [2]node {
	if a.kind > b.kind || a.kind == b.kind && a.id > b.id {
		a, b = b, a
	}
	return [2]node{a, b}
}

func (w *world) anyBroker() *broker { return w.bs[1+w.n(len(w.bs)-1)] }

// find is any broker for which want holds, the search beginning at random; nil: none.
func (w *world) find(want func(*broker) bool) *broker {
	k := len(w.bs) - 1
	at := w.n(k)
	for i := range k {
		if b := w.bs[1+(at+i)%k]; want(b) {
			return b
		}
	}
	return nil
}

// broker is one by its id, nil without.
func (w *world) broker(id int32) *broker {
	if id < 1 || int(id) >= len(w.bs) {
		return nil
	}
	return w.bs[id]
}

// pass lets time go by: leases run out or are renewed, calls time out, timers ring.
func (w *world) pass(d time.Duration) {
	w.now += d
	w.keepLeases()
	w.expireCalls()
	for _, b := range w.bs[1:] {
		if b.runs() {
			b.ring()
		}
	}
	if w.groups != nil {
		w.groups.ring()
	}
}
