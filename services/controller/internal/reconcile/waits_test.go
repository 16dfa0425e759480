package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leat-io/leat/libs/core/cluster"
)

func TestWaitsHaveTheirOwnClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaits(Config{FolderWait: 3 * time.Second, UncleanWait: 7 * time.Second})
		folders := cluster.Wait{Partition: cluster.PartitionID{Number: 1}, LeaderEpoch: 4, Kind: cluster.WaitFolders}
		unclean := cluster.Wait{Partition: cluster.PartitionID{Number: 2}, LeaderEpoch: 4, Kind: cluster.WaitUnclean}
		if w.update([]cluster.Wait{folders, unclean}) || w.overdue(folders) || w.overdue(unclean) {
			t.Error("overdue at once")
		}
		time.Sleep(4 * time.Second)
		if !w.update([]cluster.Wait{folders, unclean}) || !w.overdue(folders) || w.overdue(unclean) {
			t.Errorf("after 4 s: folders %v, unclean %v", w.overdue(folders), w.overdue(unclean))
		}
		// It was led meanwhile: the next wait is another one.
		next := unclean
		next.LeaderEpoch++
		if w.update([]cluster.Wait{next}) || w.overdue(unclean) {
			t.Error("a wait that ended goes on")
		}
		time.Sleep(4 * time.Second)
		if w.update([]cluster.Wait{next}) || w.overdue(next) {
			t.Error("the earlier wait's time counts")
		}
		time.Sleep(3 * time.Second)
		if !w.update([]cluster.Wait{next}) || !w.overdue(next) {
			t.Error("never overdue")
		}
	})
}
