package client

import (
	"context"

	"github.com/leat-io/leat/libs/topicid"
)

// MetadataSource tells where things are. There are two: one that polls brokers
// or gateways (made by New from Config.Bootstrap), and WatcherSource over the
// controller's stream. Implementations are safe for concurrent use.
type MetadataSource interface {
	// Topic finds a topic by name, asking where that is needed. An unknown one is
	// UNKNOWN_TOPIC; UNREACHABLE and the like mean that nobody could tell.
	Topic(ctx context.Context, name string) (*Topic, error)
	// TopicByID finds a topic by id, likewise.
	TopicByID(ctx context.Context, id topicid.ID) (*Topic, error)
	// Topics lists all topics by name, internal ones included.
	Topics(ctx context.Context) ([]*Topic, error)
	// Leader is the leader of a partition as known now; false: none is known. It
	// does not wait.
	Leader(p TopicPartition) (Leader, bool)
	// Partition is what is known now of a partition, replicas included; false: nothing.
	// It does not wait.
	Partition(p TopicPartition) (Partition, bool)
	// Broker finds a broker that is not fenced, as known now.
	Broker(id int32) (Node, bool)
	// Brokers lists the brokers that are not fenced, by id, as known now.
	Brokers() []Node
	// Coordinators lists the registered coordinators, by id, as known now.
	Coordinators() []Node
	// Refresh returns once there is a picture that was obtained after the call, or
	// after the short pause that keeps askers from flooding the mesh; and with an
	// error if nobody answered.
	Refresh(ctx context.Context) error
	// Changed returns a channel that is closed at the next change of the picture.
	Changed() <-chan struct{}
}
