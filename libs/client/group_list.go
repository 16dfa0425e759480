package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// maxGroupPages bounds the pages of one coordinator's groups.
const maxGroupPages = 10_000

// ListGroups lists the groups of all coordinators, by name. What could not be asked is an
// error beside what was found, also where nobody serves a shard at the moment. It waits
// until ctx ends for shards that are being loaded, and up to 2 s for what else may pass: a
// coordinator that is gone, a shard that changes hands, has no leader, or too few in-sync
// replicas.
func (c *Client) ListGroups(ctx context.Context) ([]*coordinatorv1.GroupSummary, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var last *groupList
	var since time.Time // since when more than a load has been in the way
	for failures := 1; ; failures++ {
		list, err := c.listGroups(ctx)
		if err != nil {
			return nil, err
		}
		if len(list.errs) == 0 {
			return list.sorted(), nil
		}
		if last == nil || !rpc.Ended(ctx) {
			last = list
		}
		switch last.worst() {
		case reasonCoordLoading:
			since = time.Time{}
		default:
			if since.IsZero() {
				since = time.Now()
			}
			if !last.retryable() || time.Since(since) >= shardPatience {
				return last.sorted(), last.err()
			}
		}
		c.refreshSoon()
		if !sleep(ctx, c.cfg.backoff(failures)) {
			return last.sorted(), last.err()
		}
	}
}

// groupList is what the coordinators told when they were asked once.
type groupList struct {
	mu     sync.Mutex
	byName map[string]*coordinatorv1.GroupSummary
	shards map[int32]bool // of which all groups were told
	vague  bool           // a coordinator does not say which shards it lists
	errs   []error
}

func (c *Client) listGroups(ctx context.Context) (*groupList, error) {
	list := &groupList{byName: map[string]*coordinatorv1.GroupSummary{}, shards: map[int32]bool{}}
	// A source that polls may not have asked anybody yet.
	t, err := c.source.Topic(ctx, OffsetsTopic)
	if err != nil && !rpc.IsReason(err, reasonUnknownTopic) {
		return nil, err
	}
	var wg sync.WaitGroup
	for _, n := range c.source.Coordinators() {
		wg.Go(func() { c.listGroupsAt(ctx, n.Addr, list) })
	}
	wg.Wait()
	if len(list.errs) > 0 || list.vague || err != nil {
		return list, nil
	}
	var missing []int
	for p := range t.Partitions {
		if !list.shards[int32(p)] {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		list.errs = append(list.errs, rpc.Errorf(reasonCoordUnavailable, "no coordinator serves %d of the %d partitions of %s at the moment (partition %d is the first)",
			len(missing), len(t.Partitions), OffsetsTopic, missing[0]))
	}
	return list, nil
}

// listGroupsAt asks one coordinator, page after page.
func (c *Client) listGroupsAt(ctx context.Context, addr string, list *groupList) {
	token := ""
	var shards *coordinatorv1.ListedShards // of every page so far
	for page := range maxGroupPages {
		resp, err := callCoordinator(ctx, c, addr, c.cfg.RequestTimeout, func(ctx context.Context, g coordinatorv1.GroupServiceClient) (*coordinatorv1.ListGroupsResponse, error) {
			return g.ListGroups(ctx, &coordinatorv1.ListGroupsRequest{PageToken: token})
		})
		if err != nil {
			list.mu.Lock()
			defer list.mu.Unlock()
			list.errs = append(list.errs, rpc.FromError(err).With("address", addr))
			return
		}
		list.add(resp.Groups)
		if page == 0 {
			shards = resp.Shards
		} else if shards != nil {
			shards.Partitions = slices.DeleteFunc(shards.Partitions, func(p int32) bool {
				return !slices.Contains(resp.GetShards().GetPartitions(), p)
			})
		}
		if token = resp.NextPageToken; token == "" {
			break
		}
	}
	list.told(shards)
}

func (l *groupList) add(groups []*coordinatorv1.GroupSummary) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		// A group that moves while it is asked for may be told twice.
		if old := l.byName[g.Group]; old == nil || old.GroupEpoch < g.GroupEpoch {
			l.byName[g.Group] = g
		}
	}
}

func (l *groupList) told(shards *coordinatorv1.ListedShards) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if shards == nil {
		l.vague = true
	}
	for _, p := range shards.GetPartitions() {
		l.shards[p] = true
	}
}

func (l *groupList) sorted() []*coordinatorv1.GroupSummary {
	all := make([]*coordinatorv1.GroupSummary, 0, len(l.byName))
	for _, g := range l.byName {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *coordinatorv1.GroupSummary) int { return strings.Compare(a.Group, b.Group) })
	return all
}

// worst is the reason that stands for all: that of a shard which can confirm nothing
// before that of a coordinator which does not answer, and loads only where nothing else is
// in the way.
func (l *groupList) worst() typev1.ErrorReason {
	reason := reasonCoordLoading
	for _, err := range l.errs {
		switch e := rpc.FromError(err); {
		case shardLacks(e):
			return e.Reason
		case e.Reason != reasonCoordLoading:
			reason = reasonCoordUnavailable
		}
	}
	return reason
}

func (l *groupList) retryable() bool {
	return !slices.ContainsFunc(l.errs, func(err error) bool { return !rpc.Retryable(err) })
}

func (l *groupList) err() error {
	return rpc.Errorf(l.worst(), "some coordinators could not tell their groups; the list may lack some: %w", errors.Join(l.errs...)).
		With("topic", OffsetsTopic)
}
