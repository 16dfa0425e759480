package client

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// pollPause is the least time between two polls, before jitter: many askers share
// one poll.
const pollPause = 50 * time.Millisecond

// pollTimeout is how long one address is asked before another one is.
const pollTimeout = 3 * time.Second

// maxTopicsPolled bounds what one poll asks for; the topics that were asked for
// longest ago are left to be looked up when they are needed.
const maxTopicsPolled = 10_000

// pollSource is a MetadataSource that asks brokers or gateways, one at a time. One
// goroutine polls, when somebody wants it or the picture has become old; it asks
// for the topics that have been of interest.
type pollSource struct {
	cfg   Config
	conns conns

	mu      sync.Mutex
	pic     *picture
	changed chan struct{}
	names   map[string]time.Time // of interest, with when they were looked up last
	ids     map[topicid.ID]time.Time
	next    *poll // the one that has not begun; nil: nobody wants one
	wake    chan struct{}
	closed  bool
	good    string // address that answered last
	// doubted is the address of a broker that something has just failed at: it is asked
	// last.
	doubted string
}

// poll is one asking; done is closed when it has ended.
type poll struct {
	all  bool // every topic
	done chan struct{}
	err  error
}

func newPollSource(cfg Config, conns conns) *pollSource {
	return &pollSource{
		cfg: cfg, conns: conns, pic: newPicture(), changed: make(chan struct{}), wake: make(chan struct{}, 1),
		names: make(map[string]time.Time), ids: make(map[topicid.ID]time.Time),
	}
}

// run polls until ctx ends.
func (s *pollSource) run(ctx context.Context) {
	defer s.shut()
	for {
		age := s.cfg.MetadataMaxAge/2 + rand.N(s.cfg.MetadataMaxAge/2+1)
		t := time.NewTimer(age)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-s.wake:
		case <-t.C:
		}
		t.Stop()
		p, names, ids := s.begin()
		if p == nil {
			continue
		}
		p.err = s.ask(ctx, p, names, ids)
		close(p.done)
		if !sleep(ctx, pollPause/2+rand.N(pollPause)) {
			return
		}
	}
}

// shut fails whoever still waits.
func (s *pollSource) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.next != nil {
		s.next.err = closedError("client")
		close(s.next.done)
		s.next = nil
	}
}

// begin takes the poll that is wanted, or one of its own if the picture is old
// and anything is of interest.
func (s *pollSource) begin() (*poll, []string, []topicid.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.next
	s.next = nil
	if p == nil {
		if len(s.names)+len(s.ids) == 0 {
			return nil, nil, nil
		}
		p = &poll{done: make(chan struct{})}
	}
	if p.all {
		return p, nil, nil
	}
	return p, recent(s.names, maxTopicsPolled), recent(s.ids, maxTopicsPolled)
}

// recent lists the keys, at most n and then the latest.
func recent[K comparable](m map[K]time.Time, n int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	if len(keys) > n {
		slices.SortFunc(keys, func(a, b K) int { return m[b].Compare(m[a]) })
		for _, k := range keys[n:] {
			delete(m, k)
		}
		keys = keys[:n]
	}
	return keys
}

// want joins the poll that has not begun, or makes it.
func (s *pollSource) want(all bool) (*poll, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, closedError("client")
	}
	if s.next == nil {
		s.next = &poll{done: make(chan struct{})}
	}
	s.next.all = s.next.all || all
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return s.next, nil
}

func (s *pollSource) wait(ctx context.Context, all bool) error {
	p, err := s.want(all)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return contextError(ctx, "ask for metadata", nil).WithOutcome(outcomeNotDone)
	}
}

// Refresh implements MetadataSource.
func (s *pollSource) Refresh(ctx context.Context) error { return s.wait(ctx, false) }

// ask tries the addresses that are known, the last good one first, until one
// answers. A picture older than the one held is refused by the answering process
// and, in doubt, here: clients never go back.
func (s *pollSource) ask(ctx context.Context, p *poll, names []string, ids []topicid.ID) error {
	req := &brokerv1.GetMetadataRequest{AllTopics: p.all}
	if !p.all {
		req.Topics = names
		for _, id := range ids {
			req.TopicIds = append(req.TopicIds, id[:])
		}
	}
	s.mu.Lock()
	held := s.pic
	s.mu.Unlock()
	if held.position.GetRevision() > 0 || held.position.GetGeneration() > 0 {
		req.MinPosition = held.position
	}
	resp, addr, errs := hedged(ctx, s.addresses(), func(ctx context.Context, addr string) (*brokerv1.GetMetadataResponse, error) {
		resp, err := s.askOne(ctx, addr, req)
		if rpc.IsReason(err, reasonMetadataBehind) {
			// Another mesh may have taken the place of the one we knew; it begins anew.
			anew := &brokerv1.GetMetadataRequest{AllTopics: req.AllTopics, Topics: req.Topics, TopicIds: req.TopicIds}
			if other, again := s.askOne(ctx, addr, anew); again == nil && other.ClusterId != held.clusterID {
				return other, nil
			}
		}
		return resp, err
	})
	if resp != nil {
		s.take(addr, resp, p.all, names, ids)
		return nil
	}
	if ctx.Err() != nil {
		return contextError(ctx, "ask for metadata", errors.Join(errs...)).WithOutcome(outcomeNotDone)
	}
	s.mu.Lock()
	s.good = ""
	s.mu.Unlock()
	return rpc.Errorf(reasonUnreachable, "no broker or gateway tells where things are; check the addresses, and that they run: %w", errors.Join(errs...)).
		WithOutcome(outcomeNotDone)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *pollSource) askOne(ctx context.Context, addr string, req *brokerv1.GetMetadataRequest) (*brokerv1.GetMetadataResponse, error) {
	conn, err := s.conns.Get(addr)
	if err != nil {
		return nil, rpc.FromError(err).With("address", addr)
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.cfg.RequestTimeout, pollTimeout))
	defer cancel()
	resp, err := brokerv1.NewMetadataServiceClient(conn).GetMetadata(ctx, req)
	if err != nil {
		return nil, rpc.FromError(err).With("address", addr)
	}
	if err := rpc.CheckHandshake(resp.Handshake); err != nil {
		return nil, err
	}
	return resp, nil
}

// doubt has somebody else asked first than whoever answered last: something failed
// at an address, or, where that is empty, what was told has not helped.
func (s *pollSource) doubt(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr == "" {
		s.good = ""
		return
	}
	if s.doubted = addr; s.good == addr {
		s.good = ""
	}
}

// addresses lists where to ask: the last good one, then the rest at random, those
// of the bootstrap list included.
func (s *pollSource) addresses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, b := range s.pic.brokers {
		all = append(all, b.Addr)
	}
	all = append(all, s.cfg.Bootstrap...)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if s.good != "" {
		all = append([]string{s.good}, all...)
	} else if s.doubted != "" {
		slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(btoi(a == s.doubted), btoi(b == s.doubted)) })
	}
	seen := make(map[string]bool, len(all))
	return slices.DeleteFunc(all, func(a string) bool {
		dup := seen[a]
		seen[a] = true
		return dup
	})
}

// take makes the answer the picture.
func (s *pollSource) take(addr string, resp *brokerv1.GetMetadataResponse, all bool, names []string, ids []topicid.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.good = addr
	if all {
		names, ids = nil, nil
	}
	next, unknown := s.pic.merge(resp, all, names, ids)
	for _, name := range unknown {
		delete(s.names, name)
	}
	for id := range s.ids {
		if next.byID[id] == nil {
			delete(s.ids, id)
		}
	}
	s.pic = next
	close(s.changed)
	s.changed = make(chan struct{})
}
