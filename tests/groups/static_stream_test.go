package groups

import (
	"fmt"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestStaticCrashBehindAGateway: a static member that crashes and is started again has
// back what it had long before its session is over, although the gateway's stream to the
// coordinator, which carried it, goes on for another one.
func TestStaticCrashBehindAGateway(t *testing.T) {
	r := start(t, rig.Options{})
	topic(t, r, "crash", 4)
	c := newClient(t, r, "crash")
	fill(t, c, "crash", 4, 5)
	session := 3 * limit // longer than anything may take
	begin := func(group, name string) *worker {
		w := startWorker(t, workerConfig{
			Bootstrap: bootstrap(r), Gateway: r.Addr("gateway-1"), Group: group, Topic: "crash", Name: name, Instance: "one", Session: session,
		}, nil)
		mesh.Eventually(t, limit, name+" holds everything", func() (bool, string) {
			d, err := c.DescribeGroup(within(t, limit), group)
			if err != nil || len(d.Members) != 1 {
				return false, fmt.Sprintf("%v, %v", d, err) // it has not come yet
			}
			m := d.Members[0]
			return m.ClientId == name && len(m.Owned) == 4, fmt.Sprintf("%s holds %d", m.ClientId, len(m.Owned))
		})
		return w
	}
	begin("other", "other")
	begin("crash", "first").kill()
	began := time.Now()
	second := begin("crash", "second")
	t.Logf("the second life holds everything after %v", time.Since(began).Round(time.Millisecond))
	if d := describe(t, c, "crash"); d.Summary.GroupEpoch != 1 {
		t.Errorf("the crash moved the group to epoch %d", d.Summary.GroupEpoch)
	}
	second.leave()
}
