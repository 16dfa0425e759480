package client

import (
	"context"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
)

// CommittedOffset is a committed position of a group.
type CommittedOffset struct {
	TopicPartition
	NextOffset  int64 // -1: none is committed
	LeaderEpoch int32 // -1: unknown
	Metadata    string
	CommittedAt time.Time
}

// FetchOffsets tells committed offsets of the partitions, or all where none are
// given. Like all questions about groups it finds the coordinator and retries what
// can be retried, until ctx ends, or Config.RetryTimeout has passed where it has no
// deadline.
func (c *Client) FetchOffsets(ctx context.Context, group string, partitions []TopicPartition) ([]CommittedOffset, error) {
	return nil, errStub
}

// CommitOffsets commits for a group without members.
func (c *Client) CommitOffsets(ctx context.Context, group string, offsets []CommitOffset) (CommitResult, error) {
	return CommitResult{}, errStub
}

// ListGroups lists the groups of all coordinators, by name. What could not be
// asked is an error beside what was found.
func (c *Client) ListGroups(ctx context.Context) ([]*coordinatorv1.GroupSummary, error) {
	return nil, errStub
}

// DescribeGroup tells members, assignment and offsets.
func (c *Client) DescribeGroup(ctx context.Context, group string) (*coordinatorv1.DescribeGroupResponse, error) {
	return nil, errStub
}

// DeleteGroup deletes a group without members, and its offsets.
func (c *Client) DeleteGroup(ctx context.Context, group string) error { return errStub }
