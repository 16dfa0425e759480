package client

import (
	"testing"
	"testing/synctest"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Members of one process share a stream to their coordinator. When one of them ends
// without leaving, or was replaced, the coordinator hears of it, although the stream
// goes on for the others.
func TestMemberTellsThatItGoes(t *testing.T) {
	for name, end := range map[string]func(*fakeMesh, *Member){
		"detached": func(_ *fakeMesh, m *Member) { m.Detach() },
		"replaced": func(mesh *fakeMesh, _ *Member) {
			why := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INSTANCE_FENCED, "another process is the instance now")
			mesh.mu.Lock()
			defer mesh.mu.Unlock()
			mesh.group("g").members["a"].at.push(frame("g", "a", &coordinatorv1.JoinResponse_Fenced{
				Fenced: &coordinatorv1.MemberFenced{Error: rpc.ToProto(why)},
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				mesh := newFakeMesh(t, 1)
				mesh.topic("t", 2, 1<<20)
				mesh.startCoordinator(1)
				mesh.shards(1)
				c := mesh.client(Config{})
				a := join(t, c, MemberConfig{Group: "g", MemberID: "a", Topics: []string{"t"}})
				nextAssignment(t, a)
				b := join(t, c, MemberConfig{Group: "g", MemberID: "b", Topics: []string{"t"}})
				synctest.Wait()
				end(mesh, a)
				synctest.Wait()
				mesh.mu.Lock()
				for id, m := range mesh.group("g").members {
					if m.detached != (id == "a") {
						t.Errorf("member %s is detached: %v", id, m.detached)
					}
				}
				mesh.mu.Unlock()
				if n := len(c.joins.byAddr); n != 1 || b.Attach() != 1 {
					t.Errorf("%d streams, and the other one's attach is %d", n, b.Attach())
				}
			})
		})
	}
}
