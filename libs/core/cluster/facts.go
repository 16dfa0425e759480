package cluster

import "github.com/leat-io/leat/libs/topicid"

// PartitionID names a partition of one life of a topic.
type PartitionID struct {
	Topic  topicid.ID
	Number int32
}

// Probes tells who answered a probe: for each life the revision that the state
// had when the probe was sent. An answer counts only for records that are not
// newer than that.
type Probes map[Process]int64

// WaitKind says what a partition without a leader waits for.
type WaitKind int

// The kinds of waits.
const (
	// WaitFolders: the first leader is elected once every living replica has told
	// that its folder is there, or, overdue, among those that have; in no case among
	// fewer than min.insync.replicas.
	WaitFolders WaitKind = iota + 1
	// WaitUnclean: only an unclean election is left, which the topic allows once no
	// earlier leader can commit on its own any more.
	WaitUnclean
)

// Wait is one partition's wait. A later wait of the partition is another value.
type Wait struct {
	Partition   PartitionID
	LeaderEpoch int32
	Kind        WaitKind
}

// Hints are what Reconcile is told beside the state.
type Hints struct {
	// Overdue tells whether a wait, as listed by Waiting, has lasted long enough:
	// a few seconds for folders, the lease's TTL and a margin for an unclean
	// election. nil: none has.
	Overdue func(Wait) bool
	// Forced: the operator asks for a first leader although fewer than
	// min.insync.replicas have a folder.
	Forced bool
}

// overdue asks the hint.
func (h Hints) overdue(w Wait) bool { return h.Overdue != nil && h.Overdue(w) }
