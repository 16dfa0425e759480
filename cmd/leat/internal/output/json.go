package output

import (
	"bytes"
	"encoding/json"
	"io"
)

// JSON prints v on one line, without escaping HTML.
func JSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Error is a failure inside a listing.
type Error struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Topic is a topic in a line.
type Topic struct {
	Name              string `json:"name"`
	ID                string `json:"id"`
	Partitions        int32  `json:"partitions"`
	ReplicationFactor int32  `json:"replication_factor"`
	Internal          bool   `json:"internal"`
}

// Topics is what topic list prints.
type Topics struct {
	Topics []Topic `json:"topics"`
}

// Config is a config in force. Source is "topic", "cluster" or "default".
type Config struct {
	Name        string `json:"name"`
	Value       string `json:"value"`
	Source      string `json:"source"`
	Default     string `json:"default"`
	Description string `json:"description"`
}

// ReplicaEnd is how far a replica has come.
type ReplicaEnd struct {
	Broker     int32 `json:"broker"`
	End        int64 `json:"end"`
	DurableEnd int64 `json:"durable_end"`
}

// Partition is a partition of a topic. Leader is -1 where there is none;
// log_start_offset and high_watermark are -1 where the leader did not answer.
type Partition struct {
	Partition      int32        `json:"partition"`
	Leader         int32        `json:"leader"`
	LeaderEpoch    int32        `json:"leader_epoch"`
	Replicas       []int32      `json:"replicas"`
	ISR            []int32      `json:"isr"`
	ELR            []int32      `json:"elr"`
	LogStartOffset int64        `json:"log_start_offset"`
	HighWatermark  int64        `json:"high_watermark"`
	ReplicaEnds    []ReplicaEnd `json:"replica_ends"`
}

// TopicDescription is what topic describe prints.
type TopicDescription struct {
	Name       string      `json:"name"`
	ID         string      `json:"id"`
	Internal   bool        `json:"internal"`
	Configs    []Config    `json:"configs"`
	Partitions []Partition `json:"partitions"`
}

// PartitionOffset is an offset in a partition. Timestamp is in ms since 1970,
// null where the offset has none.
type PartitionOffset struct {
	Partition   int32  `json:"partition"`
	Offset      int64  `json:"offset"`
	Timestamp   *int64 `json:"timestamp"`
	LeaderEpoch int32  `json:"leader_epoch"`
	Error       *Error `json:"error,omitempty"`
}

// TopicOffsets is what topic offsets prints.
type TopicOffsets struct {
	Topic   string            `json:"topic"`
	Offsets []PartitionOffset `json:"offsets"`
}

// LogStart is where a partition begins; -1 where records could not be deleted.
type LogStart struct {
	Partition      int32  `json:"partition"`
	LogStartOffset int64  `json:"log_start_offset"`
	Error          *Error `json:"error,omitempty"`
}

// DeletedRecords is what topic delete-records prints.
type DeletedRecords struct {
	Topic      string     `json:"topic"`
	Partitions []LogStart `json:"partitions"`
}

// ReplicaDigest is the hash of a replica's records in hexadecimal, null where there
// is none.
type ReplicaDigest struct {
	Broker  int32   `json:"broker"`
	Digest  *string `json:"digest"`
	Records int64   `json:"records"`
	Error   *Error  `json:"error,omitempty"`
}

// PartitionDigest compares the replicas of a partition over the offsets from
// from_offset up to high_watermark, which is -1 where the leader did not answer.
type PartitionDigest struct {
	Partition     int32           `json:"partition"`
	HighWatermark int64           `json:"high_watermark"`
	FromOffset    int64           `json:"from_offset"`
	Replicas      []ReplicaDigest `json:"replicas"`
	Error         *Error          `json:"error,omitempty"`
}

// TopicDigest is what topic digest prints.
type TopicDigest struct {
	Topic      string            `json:"topic"`
	Partitions []PartitionDigest `json:"partitions"`
}

// Election is what became of a partition's election. Leader is -1 where there is
// none.
type Election struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Leader    int32  `json:"leader"`
	Changed   bool   `json:"changed"`
	Error     *Error `json:"error,omitempty"`
}

// Elections is what cluster elect-leaders prints.
type Elections struct {
	Elections []Election `json:"elections"`
}

// Changed is what commands print that create, change or delete by name.
type Changed struct {
	Name string `json:"name"`
	Done string `json:"done"`
}

// Group is a group in a line.
type Group struct {
	Group   string `json:"group"`
	State   string `json:"state"`
	Members int32  `json:"members"`
}

// Groups is what group list prints.
type Groups struct {
	Groups []Group `json:"groups"`
}

// Service is a process of the mesh. Incarnation is hexadecimal text, since
// JSON numbers do not hold 64 bits everywhere.
type Service struct {
	Name            string `json:"name"`
	Kind            string `json:"kind"`
	ID              int32  `json:"id"`
	Incarnation     string `json:"incarnation"`
	Address         string `json:"address"`
	Rack            string `json:"rack"`
	Registered      bool   `json:"registered"`
	Fenced          bool   `json:"fenced"`
	Draining        bool   `json:"draining"`
	Leads           bool   `json:"leads"`
	SoftwareVersion string `json:"software_version"`
}

// Cluster is what cluster describe prints. Controller is the elected
// controller's id, 0 where there is none.
type Cluster struct {
	ClusterID                 string    `json:"cluster_id"`
	Controller                int32     `json:"controller"`
	Services                  []Service `json:"services"`
	Topics                    int32     `json:"topics"`
	Partitions                int32     `json:"partitions"`
	UnderReplicatedPartitions int32     `json:"under_replicated_partitions"`
	OfflinePartitions         int32     `json:"offline_partitions"`
	Generation                int64     `json:"generation"`
	Revision                  int64     `json:"revision"`
}

// Reason explains an error reason.
type Reason struct {
	Reason       string `json:"reason"`
	Code         string `json:"code"`
	Outcome      string `json:"outcome"`
	Action       string `json:"action"`
	RetryDelayMs int64  `json:"retry_delay_ms"`
	Meaning      string `json:"meaning"`
	NextStep     string `json:"next_step"`
}

// Reasons is what explain without a reason prints.
type Reasons struct {
	Reasons []Reason `json:"reasons"`
}

// Batch is a line of log dump. Error is set for a batch that is damaged, and
// then the other numbers are what its header claims.
type Batch struct {
	File          string `json:"file"`
	Position      int64  `json:"position"`
	BaseOffset    int64  `json:"base_offset"`
	LastOffset    int64  `json:"last_offset"`
	Records       int32  `json:"records"`
	Size          int64  `json:"size"`
	LeaderEpoch   int32  `json:"leader_epoch"`
	Compression   string `json:"compression"`
	BaseTimestamp int64  `json:"base_timestamp"`
	MaxTimestamp  int64  `json:"max_timestamp"`
	ProducerID    int64  `json:"producer_id"`
	ProducerEpoch int16  `json:"producer_epoch"`
	BaseSequence  int32  `json:"base_sequence"`
	Transactional bool   `json:"transactional"`
	Control       bool   `json:"control"`
	Error         string `json:"error,omitempty"`
}

// Version is what version prints.
type Version struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}
