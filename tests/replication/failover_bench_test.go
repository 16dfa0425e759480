package replication

import (
	"context"
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/rig"
)

var failovers = flag.Int("failovers", 0, "leader kills that TestFailoverTime measures; 0: it measures few and judges nothing")

// TestFailoverTime measures the gap in acknowledgements around each of many kills
// of the leader, as a producer of the client library sees it at 500 records a
// second, and beside it what can be had from etcd in the same run: a session
// granted, an election campaigned for and won. It judges only with -failovers, as
// `make bench-failover` runs it, on a machine that does nothing else.
func TestFailoverTime(t *testing.T) {
	n := *failovers
	if n == 0 {
		n = 3
	}
	r := processes(t).start(rig.Options{})
	topic(t, r, "gap", 1)
	l := startLoad(t, r, "gap", loadOptions{rate: 500})
	var gaps, bare []time.Duration
	for range n {
		bare = append(bare, bareElection(t, r))
		leader := r.Leader("gap", 0)
		pause(200 * time.Millisecond)
		l.history.LongestGap(byClient)
		r.Kill(leader)
		l.progress("the death of "+leader, resume)
		gaps = append(gaps, l.history.LongestGap(byClient))
		r.Up(leader)
		r.WaitInSync("gap", time.Minute)
	}
	l.finish()
	t.Logf("%d kills: gap in acknowledgements p50 %v, p99 %v, longest %v; a bare etcd session and election p50 %v, p99 %v", n,
		quantile(gaps, 50), quantile(gaps, 99), quantile(gaps, 100), quantile(bare, 50), quantile(bare, 99))
	if p99 := quantile(gaps, 99); *failovers > 0 && p99 > time.Second {
		t.Errorf("p99 is %v, above 1 s", p99)
	}
}

func quantile(d []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)].Round(100 * time.Microsecond)
}

// bareElection is how long etcd itself takes for a session and one election.
func bareElection(t *testing.T, r *rig.Rig) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	took, err := etcdElection(ctx, r.Addr("etcd-1"))
	if err != nil {
		t.Fatal(err)
	}
	return took
}
