package registry

import (
	"fmt"
	"strconv"
	"strings"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/topicid"
)

// FormatVersion is the version of every value that this release writes, and the
// highest that it reads.
const FormatVersion = 1

// FormatError is a value in etcd that a newer release wrote.
type FormatError struct {
	Key     string // where it is
	Version int32  // what it is written in
}

// Error tells the key and what to do.
func (e *FormatError) Error() string {
	return fmt.Sprintf("the value of %s in etcd has format version %d and this release reads up to %d: run the release that wrote it, or a newer one", e.Key, e.Version, FormatVersion)
}

// CheckFormat refuses a value of a version that this release does not read, with
// a *FormatError.
func CheckFormat(key string, version int32) error {
	if version > FormatVersion {
		return &FormatError{Key: key, Version: version}
	}
	return nil
}

// Keys lays out the keys of one mesh under its prefix.
type Keys struct {
	prefix string // without a slash at the end
}

// NewKeys takes the prefix, such as "/leat".
func NewKeys(prefix string) Keys { return Keys{prefix: strings.TrimRight(prefix, "/")} }

// Prefix is what every key begins with.
func (k Keys) Prefix() string { return k.prefix + "/" }

// Cluster is the key of the cluster record.
func (k Keys) Cluster() string { return k.prefix + "/cluster" }

// Election is the key of the elected controller.
func (k Keys) Election() string { return k.prefix + "/election" }

// ProducerIDs is the key of the next block of producer ids.
func (k Keys) ProducerIDs() string { return k.prefix + "/producer-ids" }

// Registrations is the prefix of all registration keys of a kind.
func (k Keys) Registrations(kind controllerv1.ServiceKind) string {
	return k.prefix + "/registrations/" + KindName(kind) + "/"
}

// Registration is the key of one process.
func (k Keys) Registration(kind controllerv1.ServiceKind, id int32) string {
	return k.Registrations(kind) + strconv.Itoa(int(id))
}

// Broker is the key of a broker record.
func (k Keys) Broker(id int32) string { return k.prefix + "/brokers/" + strconv.Itoa(int(id)) }

// Topic is the key of a topic record.
func (k Keys) Topic(id topicid.ID) string { return k.prefix + "/topics/" + id.Hex() }

// TopicName is the key of what is kept for a topic's name.
func (k Keys) TopicName(name string) string { return k.prefix + "/topic-names/" + name }

// Partitions is the prefix of a topic's partition records.
func (k Keys) Partitions(id topicid.ID) string { return k.prefix + "/partitions/" + id.Hex() + "/" }

// Partition is the key of a partition record.
func (k Keys) Partition(id topicid.ID, n int32) string {
	return k.Partitions(id) + strconv.Itoa(int(n))
}

// Deletion is the key of a deletion record.
func (k Keys) Deletion(id topicid.ID) string { return k.prefix + "/deletions/" + id.Hex() }

// Reassignment is the key of a running reassignment, by its plan's id.
func (k Keys) Reassignment(planID string) string { return k.prefix + "/reassignments/" + planID }

// KeyType says what a key holds.
type KeyType int

// The types of keys.
const (
	KeyUnknown KeyType = iota // of a newer release, or not Leat's
	KeyCluster
	KeyElection
	KeyProducerIDs
	KeyRegistration
	KeyBroker
	KeyTopic
	KeyTopicName
	KeyPartition
	KeyDeletion
	KeyReassignment
)

// Key is a parsed key; which fields are set depends on the type.
type Key struct {
	Type  KeyType
	Kind  controllerv1.ServiceKind // of a registration
	ID    int32                    // of a registration or broker; number of a partition
	Topic topicid.ID               // of a topic, partition or deletion
	Name  string                   // of a topic name; id of a reassignment's plan
}

// Parse reads a key back. What it does not know is KeyUnknown.
func (k Keys) Parse(key string) Key {
	rest, ok := strings.CutPrefix(key, k.Prefix())
	if !ok {
		return Key{}
	}
	first, rest, _ := strings.Cut(rest, "/")
	switch first {
	case "cluster", "election", "producer-ids":
		if rest == "" {
			return Key{Type: map[string]KeyType{"cluster": KeyCluster, "election": KeyElection, "producer-ids": KeyProducerIDs}[first]}
		}
	case "registrations":
		kindName, number, _ := strings.Cut(rest, "/")
		if id, ok := parseNumber(number); ok && ParseKind(kindName) != controllerv1.ServiceKind_SERVICE_KIND_UNSPECIFIED {
			return Key{Type: KeyRegistration, Kind: ParseKind(kindName), ID: id}
		}
	case "brokers":
		if id, ok := parseNumber(rest); ok {
			return Key{Type: KeyBroker, ID: id}
		}
	case "topics", "deletions":
		if id, err := topicid.ParseHex(rest); err == nil {
			return Key{Type: map[string]KeyType{"topics": KeyTopic, "deletions": KeyDeletion}[first], Topic: id}
		}
	case "topic-names":
		if rest != "" {
			return Key{Type: KeyTopicName, Name: rest}
		}
	case "reassignments":
		if rest != "" {
			return Key{Type: KeyReassignment, Name: rest}
		}
	case "partitions":
		hex, number, _ := strings.Cut(rest, "/")
		id, err := topicid.ParseHex(hex)
		if n, ok := parseNumber(number); ok && err == nil {
			return Key{Type: KeyPartition, Topic: id, ID: n}
		}
	}
	return Key{}
}

func parseNumber(s string) (int32, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	return int32(n), err == nil && n >= 0
}

// KindName is the kind's name in keys, identities and logs: "broker",
// "controller", "coordinator" or "gateway".
func KindName(kind controllerv1.ServiceKind) string {
	switch kind {
	case controllerv1.ServiceKind_SERVICE_KIND_BROKER:
		return "broker"
	case controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER:
		return "controller"
	case controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR:
		return "coordinator"
	case controllerv1.ServiceKind_SERVICE_KIND_GATEWAY:
		return "gateway"
	}
	return "unknown"
}

// ParseKind reads a kind's name; SERVICE_KIND_UNSPECIFIED if there is none such.
func ParseKind(name string) controllerv1.ServiceKind {
	for _, kind := range Kinds() {
		if KindName(kind) == name {
			return kind
		}
	}
	return controllerv1.ServiceKind_SERVICE_KIND_UNSPECIFIED
}

// Kinds lists the kinds of processes.
func Kinds() []controllerv1.ServiceKind {
	return []controllerv1.ServiceKind{
		controllerv1.ServiceKind_SERVICE_KIND_BROKER,
		controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER,
		controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR,
		controllerv1.ServiceKind_SERVICE_KIND_GATEWAY,
	}
}
