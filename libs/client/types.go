package client

import (
	"fmt"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/topicid"
)

// OffsetsTopic is the internal topic whose partitions are the shards of groups.
const OffsetsTopic = "__consumer_offsets"

// Header is one header of a record: the key is never null, a nil value is null.
type Header = record.RecordHeader

// Record is a record to be sent. Nil, empty and present are three different
// things for the key and the value.
type Record struct {
	Topic     string
	Partition *int32 // nil: the partitioner chooses
	Key       []byte
	Value     []byte
	Headers   []Header  // in order; keys may repeat
	Timestamp time.Time // kept to the millisecond; zero: the client's clock
}

// TopicPartition names a partition of one life of a topic.
type TopicPartition struct {
	TopicID   topicid.ID
	Partition int32
}

// String is for people.
func (p TopicPartition) String() string { return fmt.Sprintf("%s-%d", p.TopicID, p.Partition) }

// Topic is what the metadata tells about a topic. It is immutable and shared.
type Topic struct {
	Name            string
	ID              topicid.ID
	Internal        bool
	MaxMessageBytes int32       // largest encoded batch, in bytes
	Partitions      []Partition // by number, without gaps
	available       []int32     // partitions that have a leader
}

// Partition is what the metadata tells about a partition.
type Partition struct {
	Number      int32
	Leader      int32 // broker id; -1: none at the moment
	LeaderEpoch int32
	Replicas    []int32 // the first is preferred as leader
	ISR         []int32
	ELR         []int32
	ShardOwner  int32 // id of the coordinator that owns the shard; -1: none
	ShardEpoch  int64
}

// Available lists the partitions that have a leader, in order. It is shared and
// must not be changed.
func (t *Topic) Available() []int32 { return t.available }

// Node is a broker or a coordinator.
type Node struct {
	ID          int32
	Incarnation uint64
	Addr        string // host:port
	Rack        string
}

// Leader is where a partition is led.
type Leader struct {
	ID    int32
	Addr  string
	Epoch int32
}
