package groups

import (
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestSilentClients: a client that stands still loses its partitions when its session
// has ended, which counts from its own last sign of life, also where a gateway speaks
// for it.
func TestSilentClients(t *testing.T) {
	const session = 6 * time.Second
	// The second that is allowed, and one for a busy machine; more in the short form, where
	// many tests share it, and still less than a second session.
	most := session + span(4*time.Second, 2*time.Second)
	for _, name := range []string{"direct", "stream"} {
		t.Run(name, func(t *testing.T) {
			r := start(t, rig.Options{})
			topic(t, r, "silent", 2)
			c := newClient(t, r, "silent")
			startLoad(t, r, "silent", 100)
			cfg := workerConfig{Bootstrap: bootstrap(r), Group: "silent", Topic: "silent", Name: name, Session: session}
			if name == "stream" {
				cfg.Gateway = r.Addr("gateway-1")
			}
			w := startWorker(t, cfg, nil)
			waitTold(t, w, given)
			heir := startMember(t, c, "heir", memberOptions{ConsumerConfig: client.ConsumerConfig{Group: "silent", Topics: []string{"silent"}, SessionTimeout: session}})
			awaitHolding(t, 1, heir)
			began := time.Now()
			w.signal(syscall.SIGSTOP)
			awaitHolding(t, 2, heir)
			took := time.Since(began)
			t.Logf("its partition was another's %v after it had fallen silent (session timeout %v)", took.Round(time.Millisecond), session)
			if took > most {
				t.Errorf("that is more than %v", most)
			}
		})
	}
}
