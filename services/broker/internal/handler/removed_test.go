package handler

import (
	"testing"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// TestAReplicaMovedAwayIsDeleted with its files, and begins empty where it is moved
// back to.
func TestAReplicaMovedAwayIsDeleted(t *testing.T) {
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{})
	id := h.topic("t", 1, nil)
	h.producer().mustStore(id, 0, "moved")
	k := store.Key{Topic: id}
	old := h.store.Replica(k)
	move := func(to int32) {
		ctl.SetPartition(id, 0, func(p *controllerv1.Partition) {
			p.Replicas, p.Isr, p.Leader = []int32{to}, []int32{to}, &typev1.Process{Id: to, Incarnation: 99}
			p.LeaderEpoch++
		})
	}
	move(99)
	brokertest.Await(t, "its folder is gone", func() bool { return h.store.Replica(k) == nil && !exists(t, h.fs, old.Dir) })
	move(brokerID)
	brokertest.Await(t, "it is made anew, empty", func() bool {
		r := h.store.Replica(k)
		return r != nil && r != old && r.Log.EndOffset() == 0
	})
}
