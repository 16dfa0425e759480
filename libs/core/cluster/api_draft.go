package cluster

import "github.com/leat-io/leat/libs/topicid"

// PartitionName names a partition by its topic's name.
type PartitionName struct {
	Topic     string
	Partition int32
}

// Waiting lists the partitions that wait.
func Waiting(s *State) []Wait { return nil }

// NoteReplicas remembers what a living broker tells of its replicas.
func (s *State) NoteReplicas(life Process, vouches []Vouch) {}

// ReportReplicas plans what follows from what a living broker tells of its replicas.
func ReportReplicas(s *State, life Process, vouches []Vouch) (Plan, error) { return Plan{}, nil }

// Blocker is a partition that holds a leave up.
type Blocker struct {
	Topic     topicid.ID
	Name      string
	Partition int32
	Rejection *Rejection
}

// LeaveProbes lists whom to probe before Leave.
func LeaveProbes(s *State, life Process) []Process { return nil }

// Leave plans the grant of a broker's leave.
func Leave(s *State, life Process, probes Probes, decommission bool) (Plan, []Blocker, error) {
	plan, err := FenceBroker(s, life, true)
	return plan, nil, err
}

// LeadersUnreachable plans that leaders that all their followers miss are replaced.
func LeadersUnreachable(s *State, reports map[Process][]Process) (Plan, error) { return Plan{}, nil }

// PreferredMoves plans that preferred leaders get their leadership back.
func PreferredMoves(s *State, limit int, avoid func(Process) bool) (Plan, error) { return Plan{}, nil }

// ElectionType is a kind of election, numbered as in the protos.
type ElectionType int32

// The kinds of elections.
const (
	ElectPreferred ElectionType = 1
	ElectUnclean   ElectionType = 2
)

// ElectionOutcome is what becomes of one election.
type ElectionOutcome struct {
	PartitionName
	Leader    Process // zero: none
	Changed   bool
	Rejection *Rejection
}

// ElectLeaders plans elections that an operator asked for.
func ElectLeaders(s *State, kind ElectionType, partitions []PartitionName) (Plan, []ElectionOutcome, error) {
	return Plan{}, nil, nil
}

// LeaderChange is a change of leader in a plan.
type LeaderChange struct {
	PartitionName
	ID       PartitionID
	From, To Process // zero: none
	Epoch    int32   // leader epoch of To
	Unclean  bool    // acknowledged records may be lost
	Longest  bool    // all had lost what the page cache had; the longest leads
	First    bool    // the topic's first leader
}

// LeaderChanges lists the changes of leaders in a plan, for logs and metrics.
func LeaderChanges(s *State, plan Plan) []LeaderChange { return nil }

// Move is what becomes of one partition in a reassignment.
type Move struct {
	PartitionName
	From, To []int32
	InSync   int32 // members of To that are in sync already
}

// ReassignmentRequest says what is wanted; one of Assignments, DrainBrokers,
// Balance and ReplicationFactor.
type ReassignmentRequest struct {
	Assignments       []Move // PartitionName and To
	DrainBrokers      []int32
	Balance           bool
	ReplicationFactor int32 // 0: unchanged
	Topics            []string
}

// ReassignmentPlan is a plan, to be applied by its id.
type ReassignmentPlan struct {
	ID    string
	Moves []Move
}

// PlanReassignment says what a reassignment would move.
func PlanReassignment(s *State, r ReassignmentRequest) (ReassignmentPlan, error) {
	return ReassignmentPlan{}, nil
}

// ApplyReassignment plans that a reassignment begins.
func ApplyReassignment(s *State, planID string, moves []Move) (Plan, error) { return Plan{}, nil }

// ReassignmentAction is what to do with a running plan, numbered as in the protos.
type ReassignmentAction int32

// The actions.
const (
	PauseReassignment  ReassignmentAction = 1
	ResumeReassignment ReassignmentAction = 2
	CancelReassignment ReassignmentAction = 3
)

// ControlReassignment plans that a reassignment rests, goes on or is taken back.
func ControlReassignment(s *State, planID string, action ReassignmentAction) (Plan, error) {
	return Plan{}, nil
}

// AdvanceReassignments plans what running reassignments do next, and lists whom to
// probe so that more of them can complete.
func AdvanceReassignments(s *State, probes Probes) (Plan, []Process, error) { return Plan{}, nil, nil }

// ReassignmentStatus is a running plan with what is left to do.
type ReassignmentStatus struct {
	PlanID             string
	Moves              []Move
	Paused, Cancelling bool
}

// RunningReassignments lists the plans under way by id.
func RunningReassignments(s *State) []ReassignmentStatus { return nil }

// RemoveBroker plans that a broker is forgotten.
func RemoveBroker(s *State, id int32) (Plan, error) { return Plan{}, nil }
