package simulation

import "github.com/leat-io/leat/libs/core/cluster"

// groups are the coordinators and the members of groups.
type groups struct{ w *world }

func (g *groups) ring()                              {}
func (g *groups) whole() bool                        { return true }
func (g *groups) keeps(*lease) bool                  { return false }
func (g *groups) process(int32) (bool, uint64, bool) { return false, 0, false }

func (w *world) groupStep()  {}
func (w *world) groupFault() {}

func (w *world) resumeReassignment(id string) {
	w.admin("resume reassignment", func(s *cluster.State, _ int) (cluster.Plan, error) {
		return cluster.ControlReassignment(s, id, cluster.ResumeReassignment)
	})
}
