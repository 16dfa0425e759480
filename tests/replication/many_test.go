package replication

import (
	"fmt"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestManyPartitions: thousands of partitions are created in one call and get
// their leaders; a broker's death moves its leaderships within seconds, and its
// return brings the preferred ones back without a stampede (case 33).
func TestManyPartitions(t *testing.T) {
	n := count(300, 5000)
	r := processes(t).start(rig.Options{Set: []string{"controller.leader.imbalance.check.interval.seconds=5"}})
	began := time.Now()
	r.CreateTopic("many", "--partitions", fmt.Sprint(n), "--replication-factor", "3", "--request-timeout", "2m")
	created := time.Since(began)
	leaders := func() (map[int]int, error) {
		all, err := r.Partitions("many")
		by := map[int]int{}
		for _, p := range all {
			by[p.Leader]++
		}
		if err == nil && len(all) != n {
			err = fmt.Errorf("%d partitions are described", len(all))
		}
		return by, err
	}
	mesh.Eventually(t, 3*time.Minute, "all partitions have leaders", func() (bool, string) {
		c, err := r.Cluster()
		return err == nil && c.Offline == 0, fmt.Sprintf("%+v %v", c, err)
	})
	elected := time.Since(began)
	r.WaitInSync("many", 3*time.Minute)
	t.Logf("%d partitions: created after %v, all elected after %v, all in sync after %v", n, created.Round(time.Millisecond),
		elected.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	before, err := leaders()
	if err != nil {
		t.Fatal(err)
	}

	began = time.Now()
	r.Kill("broker-1")
	mesh.Eventually(t, time.Minute, "broker 1 leads nothing", func() (bool, string) {
		c, err := r.Cluster()
		if err != nil || c.Offline > 0 {
			return false, fmt.Sprintf("%d offline, %v", c.Offline, err)
		}
		by, err := leaders()
		return err == nil && by[1] == 0 && by[-1] == 0 && by[0] == 0, fmt.Sprintf("%v %v", by, err)
	})
	t.Logf("the %d leaderships of broker 1 have moved %v after its death", before[1], time.Since(began).Round(time.Millisecond))

	began = time.Now()
	r.Up("broker-1")
	r.WaitInSync("many", 3*time.Minute)
	t.Logf("all in sync again %v after its return", time.Since(began).Round(time.Millisecond))
	mesh.Eventually(t, 3*time.Minute, "the preferred leaders lead again", func() (bool, string) {
		by, err := leaders()
		return err == nil && by[1] >= n/3, fmt.Sprintf("%v, before %v; %v", by, before, err)
	})
	t.Logf("preferred leaders lead again %v after its return", time.Since(began).Round(time.Millisecond))
	if res := r.LeatInput("a\nb\n", "produce", "many"); res.Code != 0 {
		t.Error(res)
	}
}

// TestTooManyPartitionsInOneRequest is case 17: a request beyond the limit is
// refused as a whole, and the controller goes on answering.
func TestTooManyPartitionsInOneRequest(t *testing.T) {
	r := processes(t).start(rig.Options{})
	res := r.Leat("topic", "create", "huge", "--partitions", "10001", "--replication-factor", "3")
	if res.Code == 0 {
		t.Errorf("10,001 partitions were created in one request: %s", res)
	}
	requireReason(t, res, "INVALID_PARTITIONS", "LIMIT_EXCEEDED", "INVALID_REQUEST")
	topic(t, r, "small", 3)
	if res := r.Leat("topic", "describe", "huge"); res.Code == 0 {
		t.Errorf("part of a refused topic is there: %s", res)
	}
}
