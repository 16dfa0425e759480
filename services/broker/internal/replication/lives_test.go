package replication

import (
	"testing"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

// A broker that was cut off and replaced under the same id, with an empty disk, comes
// back: in-sync sets name brokers, so what it stored would count for its successor.
func TestRefusesTheEarlierLivesOfAFollower(t *testing.T) {
	// case 34
	m := newMesh(t, 1, meshOptions{})
	onRecord := func(incarnation uint64) {
		t.Helper()
		m.ctl.SetBroker(&typev1.Process{Id: 2, Incarnation: incarnation}, "127.0.0.1:1")
		brokertest.Await(t, "the leader knows the follower's life", func() bool {
			return m.nodes[1].watcher.Image().Broker(2).GetBroker().GetIncarnation() == incarnation
		})
	}
	stale := func(what string, err error) {
		t.Helper()
		if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION) {
			t.Errorf("%s: %v", what, err)
		}
	}
	onRecord(5)
	_, err := m.connect(1, 2, 4, nil)
	stale("an earlier life", err)
	p, err := m.connect(1, 2, 5, nil)
	if err != nil {
		t.Fatalf("the life on record: %v", err)
	}
	onRecord(6)
	_, err = p.recv(func(*brokerv1.ReplicateResponse) bool { return false })
	stale("a stream of a life that was replaced", err)
	if _, err := m.connect(1, 2, 6, nil); err != nil {
		t.Errorf("the life that replaced it: %v", err)
	}
}
