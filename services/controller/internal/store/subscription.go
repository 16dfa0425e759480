package store

import (
	"sync"

	"github.com/leat-io/leat/libs/core/cluster"
)

// maxDirty bounds what a slow subscriber makes the store remember; beyond it the
// subscriber starts over.
const maxDirty = 50_000

// Subscription collects which keys have changed since they were last taken. Its
// memory is bounded whatever its owner does: it holds keys, not changes.
type Subscription struct {
	store  *Store
	signal chan struct{} // holds one token while there is something to take

	mu    sync.Mutex
	dirty map[cluster.Key]struct{}
	all   bool
}

// Subscribe begins a subscription, at first with everything to be taken. The
// caller closes it.
func (s *Store) Subscribe() *Subscription {
	sub := &Subscription{store: s, signal: make(chan struct{}, 1), dirty: map[cluster.Key]struct{}{}, all: true}
	sub.signal <- struct{}{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs[sub] = struct{}{}
	return sub
}

// Close ends the subscription.
func (sub *Subscription) Close() {
	sub.store.mu.Lock()
	defer sub.store.mu.Unlock()
	delete(sub.store.subs, sub)
}

// Signal is readable when there is something to take.
func (sub *Subscription) Signal() <-chan struct{} { return sub.signal }

// Take calls read with the state, its revision, and the keys that have changed
// since the last Take; all says that everything is to be taken instead. The rules
// of View hold.
func (sub *Subscription) Take(read func(state *cluster.State, revision int64, dirty map[cluster.Key]struct{}, all bool)) {
	sub.store.mu.RLock()
	defer sub.store.mu.RUnlock()
	sub.mu.Lock()
	dirty, all := sub.dirty, sub.all
	sub.dirty, sub.all = map[cluster.Key]struct{}{}, false
	sub.mu.Unlock()
	read(sub.store.state, sub.store.revision, dirty, all)
}

// Idle calls read with the state and its revision if nothing has changed since the last
// Take, so that whoever took it all is as far as the store is; else it calls nothing
// and returns false. The rules of View hold.
func (sub *Subscription) Idle(read func(state *cluster.State, revision int64)) bool {
	sub.store.mu.RLock()
	defer sub.store.mu.RUnlock()
	sub.mu.Lock()
	idle := len(sub.dirty) == 0 && !sub.all
	sub.mu.Unlock()
	if idle {
		read(sub.store.state, sub.store.revision)
	}
	return idle
}

// mark is called under the store's lock.
func (sub *Subscription) mark(changes []change) {
	if len(changes) == 0 {
		return
	}
	sub.mu.Lock()
	if !sub.all {
		for _, c := range changes {
			sub.dirty[c.key] = struct{}{}
		}
		if len(sub.dirty) > maxDirty {
			sub.dirty, sub.all = map[cluster.Key]struct{}{}, true
		}
	}
	sub.mu.Unlock()
	select {
	case sub.signal <- struct{}{}:
	default:
	}
}
