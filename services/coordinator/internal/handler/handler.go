package handler

import (
	"cmp"
	"context"
	"encoding/base64"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

// Manager finds the shard of a group; *shard.Manager does.
type Manager interface {
	// For finds the shard that serves a group; the error says where to go instead.
	For(group string) (*shard.Shard, error)
	// Elsewhere is the error for a group whose shard was lost.
	Elsewhere(group string) *rpc.Error
	// Shards lists the shards served here.
	Shards() []*shard.Shard
}

// Config is what a Handler needs.
type Config struct {
	Manager Manager
	// Process is this coordinator.
	Process *typev1.Process
	// MaxQueuedFrames bounds what one stream has not read yet; beyond it the stream
	// ends. MaxMembersPerStream bounds the members it carries.
	MaxQueuedFrames, MaxMembersPerStream int
	Logger                               *slog.Logger
}

// Handler serves GroupService.
type Handler struct {
	coordinatorv1.UnimplementedGroupServiceServer
	cfg      Config
	manager  Manager
	draining chan struct{}
	once     sync.Once
	wg       sync.WaitGroup // readers of streams
}

var _ coordinatorv1.GroupServiceServer = (*Handler)(nil)

// New makes a handler.
func New(cfg Config) *Handler {
	return &Handler{cfg: cfg, manager: cfg.Manager, draining: make(chan struct{})}
}

// Drain ends every stream as DRAINING; members resume elsewhere.
func (h *Handler) Drain() { h.once.Do(func() { close(h.draining) }) }

// Wait returns once nothing of the handler runs any more; the gRPC server must
// have stopped.
func (h *Handler) Wait() { h.wg.Wait() }

// ask gives one request to the group's shard and waits for the answer.
func (h *Handler) ask(ctx context.Context, groupName string, event func(req uint64) group.Event) (group.Result, error) {
	if err := checkGroup(groupName); err != nil {
		return nil, err
	}
	s, err := h.manager.For(groupName)
	if err != nil {
		return nil, err
	}
	reply, err := s.Do(ctx, event)
	if err != nil {
		return nil, err
	}
	if reply.Err != nil {
		return nil, h.fromCore(groupName, reply.Err)
	}
	return reply.Result, nil
}

// FetchOffsets tells committed offsets.
func (h *Handler) FetchOffsets(ctx context.Context, req *coordinatorv1.FetchOffsetsRequest) (*coordinatorv1.FetchOffsetsResponse, error) {
	if n := len(req.GetPartitions()); n > maxPartitions {
		return nil, limit("partitions", "%d partitions are asked for, at most %d may be", n, maxPartitions)
	}
	parts := make([]group.Part, 0, len(req.GetPartitions()))
	for _, p := range req.GetPartitions() {
		name, err := part(p.GetTopicId(), p.GetPartition())
		if err != nil {
			return nil, err
		}
		parts = append(parts, name)
	}
	result, err := h.ask(ctx, req.GetGroup(), func(n uint64) group.Event {
		return group.FetchOffsets{Req: n, Group: req.GetGroup(), Parts: parts}
	})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.FetchOffsetsResponse{Offsets: committed(result.(group.Offsets).Offsets)}, nil
}

// CommitOffsets commits for a group without members. A topic that the coordinator
// does not know may have been created a moment ago; it gets a little time to appear.
func (h *Handler) CommitOffsets(ctx context.Context, req *coordinatorv1.CommitOffsetsRequest) (*coordinatorv1.CommitOffsetsResponse, error) {
	offsets, bad := commits(req.GetOffsets())
	if bad != nil {
		return nil, bad
	}
	for wait := firstGrace; ; wait *= 2 {
		result, err := h.ask(ctx, req.GetGroup(), func(n uint64) group.Event {
			return group.AdminCommit{Req: n, Group: req.GetGroup(), Offsets: offsets}
		})
		if err != nil {
			return nil, err
		}
		refused := result.(group.CommitDone).Refused
		if wait > lastGrace || !slices.ContainsFunc(refused, mayAppear) {
			return &coordinatorv1.CommitOffsetsResponse{PartitionErrors: h.partErrors(req.GetGroup(), refused)}, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, rpc.FromError(ctx.Err())
		}
	}
}

// The waits for a topic or partition to appear, which double from the first to the
// last.
const (
	firstGrace = 20 * time.Millisecond
	lastGrace  = 160 * time.Millisecond
)

func mayAppear(e group.PartError) bool {
	return e.Err.Reason == group.ReasonUnknownTopic || e.Err.Reason == group.ReasonUnknownPartition
}

// DescribeGroup tells everything about a group.
func (h *Handler) DescribeGroup(ctx context.Context, req *coordinatorv1.DescribeGroupRequest) (*coordinatorv1.DescribeGroupResponse, error) {
	result, err := h.ask(ctx, req.GetGroup(), func(n uint64) group.Event {
		return group.Describe{Req: n, Group: req.GetGroup()}
	})
	if err != nil {
		return nil, err
	}
	return described(result.(group.Described).Description), nil
}

// DeleteGroup deletes a group without members.
func (h *Handler) DeleteGroup(ctx context.Context, req *coordinatorv1.DeleteGroupRequest) (*coordinatorv1.DeleteGroupResponse, error) {
	_, err := h.ask(ctx, req.GetGroup(), func(n uint64) group.Event {
		return group.Delete{Req: n, Group: req.GetGroup()}
	})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.DeleteGroupResponse{}, nil
}

// The limits of a page of groups.
const (
	defaultPage = 1000
	maxPage     = 10_000
)

// ListGroups lists the groups of the shards served here, by name. Every shard is
// asked anew for each page; groups that come and go in between may be missed.
func (h *Handler) ListGroups(ctx context.Context, req *coordinatorv1.ListGroupsRequest) (*coordinatorv1.ListGroupsResponse, error) {
	size := int(req.GetPageSize())
	if size < 0 || size > maxPage {
		return nil, invalid("the page size %d is not between 0 and %d", size, maxPage)
	}
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return nil, invalid("the page token is not one of this service")
	}
	all, told, err := h.listAll(ctx)
	if err != nil {
		return nil, err
	}
	from, _ := slices.BinarySearchFunc(all, string(after)+"\x00", func(s group.Summary, name string) int { return cmp.Compare(s.Group, name) })
	if len(after) == 0 {
		from = 0
	}
	page := all[from:]
	resp := &coordinatorv1.ListGroupsResponse{Shards: &coordinatorv1.ListedShards{Partitions: told}}
	if size = cmp.Or(size, defaultPage); len(page) > size {
		page = page[:size]
		resp.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(page[size-1].Group))
	}
	for _, s := range page {
		resp.Groups = append(resp.Groups, summary(s))
	}
	return resp, nil
}

// listAll asks every shard, and tells which have answered. One that is lost while it is
// asked has nothing to tell.
func (h *Handler) listAll(ctx context.Context) (all []group.Summary, told []int32, err error) {
	shards := h.manager.Shards()
	lists := make([][]group.Summary, len(shards))
	lost := make([]bool, len(shards))
	g, ctx := errgroup.WithContext(ctx)
	for i, s := range shards {
		g.Go(func() (err error) {
			lists[i], err = s.List(ctx)
			if rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR) {
				lost[i] = true
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for i, s := range shards {
		if !lost[i] {
			told = append(told, s.Partition())
		}
	}
	all = slices.Concat(lists...)
	slices.SortFunc(all, func(a, b group.Summary) int { return cmp.Compare(a.Group, b.Group) })
	return all, told, nil
}
