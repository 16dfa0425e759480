package handler

import (
	"context"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/metadata"
)

// Producer is what the handlers need of client.Producer, whose contract holds.
type Producer interface {
	Send(ctx context.Context, r client.Record, done func(client.Result)) error
	Close(ctx context.Context) error
}

// Fetcher is what the handlers need of client.Fetcher, whose contract holds.
type Fetcher interface {
	Add(starts ...client.FetchStart)
	Remove(partitions ...client.TopicPartition)
	Ready() <-chan struct{}
	TryNext() *client.FetchEvent
	Waiting() map[client.TopicPartition]error
	Close() error
}

// Member is what the handlers need of client.Member, whose contract holds.
type Member interface {
	Next(ctx context.Context) (client.MemberEvent, error)
	Revoking(partitions ...client.OwnedPartition)
	Ack(memberEpoch int64, owned []client.OwnedPartition)
	Commit(ctx context.Context, offsets []client.CommitOffset) (client.CommitResult, error)
	DeliverUntil() time.Time
	Leave(ctx context.Context) error
	Detach()
}

// Mesh is what the handlers need of the client library; NewMesh makes one of a
// client. It is safe for concurrent use.
type Mesh interface {
	NewProducer(cfg client.ProducerConfig) (Producer, error)
	NewFetcher(cfg client.FetcherConfig) (Fetcher, error)
	JoinGroup(cfg client.MemberConfig) (Member, error)
	Topic(ctx context.Context, name string) (*client.Topic, error)
	ListOffsets(ctx context.Context, queries []client.OffsetQuery, isolation typev1.IsolationLevel) []client.OffsetResult
	ListReplicaOffsets(ctx context.Context, broker int32, queries []client.OffsetQuery, isolation typev1.IsolationLevel) []client.OffsetResult
	DescribeReplicas(ctx context.Context, partitions []client.TopicPartition, leadersOnly bool) []client.ReplicaResult
	DeleteRecords(ctx context.Context, wanted []client.RecordsToDelete) []client.DeletedRecords
	DigestReplicas(ctx context.Context, queries []client.DigestQuery) []client.DigestResult
	ListGroups(ctx context.Context) ([]*coordinatorv1.GroupSummary, error)
	DescribeGroup(ctx context.Context, group string) (*coordinatorv1.DescribeGroupResponse, error)
	CommitOffsets(ctx context.Context, group string, offsets []client.CommitOffset) (client.CommitResult, error)
	ResetOffsets(ctx context.Context, group string, offsets []client.CommitOffset, timeout time.Duration) ([]client.OffsetReset, error)
	SimulateGroup(ctx context.Context, req *coordinatorv1.SimulateGroupRequest) (*coordinatorv1.SimulateGroupResponse, error)
	RecordAges(ctx context.Context, records []client.RecordAt) []client.RecordAge
	DeleteGroup(ctx context.Context, group string) error
}

// Controllers is what the handlers need of metadata.Controllers, whose contract
// holds.
type Controllers interface {
	CreateTopics(ctx context.Context, req *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error)
	DeleteTopics(ctx context.Context, req *controllerv1.DeleteTopicsRequest) (*controllerv1.DeleteTopicsResponse, error)
	AlterTopic(ctx context.Context, req *controllerv1.AlterTopicRequest) (*controllerv1.AlterTopicResponse, error)
	ElectLeaders(ctx context.Context, req *controllerv1.ElectLeadersRequest) (*controllerv1.ElectLeadersResponse, error)
	DescribeCluster(ctx context.Context, req *controllerv1.DescribeClusterRequest) (*controllerv1.DescribeClusterResponse, error)
}

// Images is what the handlers need of metadata.Watcher, whose contract holds.
type Images interface {
	Image() *metadata.Image
	Watch() (*metadata.Image, <-chan struct{})
	WaitFor(ctx context.Context, position metadata.Position) error
}

var (
	_ Controllers = (*metadata.Controllers)(nil)
	_ Images      = (*metadata.Watcher)(nil)
)

// NewMesh is the mesh as a client sees it. The client stays the caller's.
func NewMesh(c *client.Client) Mesh { return clientMesh{c} }

// clientMesh gives a client's methods the interfaces as results.
type clientMesh struct{ *client.Client }

func (m clientMesh) NewProducer(cfg client.ProducerConfig) (Producer, error) {
	p, err := m.Client.NewProducer(cfg)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (m clientMesh) NewFetcher(cfg client.FetcherConfig) (Fetcher, error) {
	f, err := m.Client.NewFetcher(cfg)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (m clientMesh) JoinGroup(cfg client.MemberConfig) (Member, error) {
	member, err := m.Client.JoinGroup(cfg)
	if err != nil {
		return nil, err
	}
	return member, nil
}

func (m clientMesh) Topic(ctx context.Context, name string) (*client.Topic, error) {
	return m.Metadata().Topic(ctx, name)
}
