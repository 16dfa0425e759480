package groups

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// described is what is read of `leat group describe -o json`.
type described struct {
	State   string `json:"state"`
	Members []struct {
		ClientID string `json:"client_id"`
		Stuck    bool   `json:"stuck"`
	} `json:"members"`
	Partitions []struct {
		Topic     string `json:"topic"`
		Partition int    `json:"partition"`
		Committed int64  `json:"committed"`
		Lag       int64  `json:"lag"`
		HeldBack  string `json:"held_back_by"`
		Stuck     bool   `json:"stuck"`
		Revoking  bool   `json:"revoking"`
	} `json:"partitions"`
}

func describedBy(t *testing.T, r *rig.Rig, group string) (described, error) {
	t.Helper()
	var d described
	res := r.Leat("group", "describe", group, "--rate-over", "0s", "-o", "json")
	if res.Code != 0 {
		return d, fmt.Errorf("%s", res)
	}
	return d, json.Unmarshal([]byte(res.Stdout), &d)
}

// TestSlowHandler: a record takes many session timeouts. Its member keeps what it
// holds, also what was revoked meanwhile, and is shown as stuck and as what holds the
// partition back; in the end it commits, hands over, and no record comes twice.
func TestSlowHandler(t *testing.T) {
	const session = 6 * time.Second // the members must outlast a short standstill of the test itself
	r := start(t, rig.Options{})
	topic(t, r, "slow", 4)
	producer := newClient(t, r, "slow")
	fill(t, producer, "slow", 4, 20)
	var mu sync.Mutex
	seen := map[client.TopicPartition]map[int64]string{}
	finish := make(chan struct{})
	busy := make(chan struct{})
	var once sync.Once
	note := func(m *member, got []client.ConsumerRecord) {
		mu.Lock()
		defer mu.Unlock()
		for i := range got {
			tp := got[i].TopicPartition
			if seen[tp] == nil {
				seen[tp] = map[int64]string{}
			}
			if by, twice := seen[tp][got[i].Offset]; twice {
				t.Errorf("%v offset %d was given to %s and to %s", tp, got[i].Offset, by, m.name)
			}
			seen[tp][got[i].Offset] = m.name
		}
	}
	config := client.ConsumerConfig{Group: "slow", Topics: []string{"slow"}, SessionTimeout: session}
	slow := startMember(t, newClient(t, r, "sluggard"), "sluggard", memberOptions{config, func(m *member, got []client.ConsumerRecord) {
		note(m, got)
		once.Do(func() { close(busy) })
		<-finish
	}})
	var release sync.Once
	t.Cleanup(func() { release.Do(func() { close(finish) }) })
	<-busy
	began := time.Now()
	other := startMember(t, newClient(t, r, "other"), "other", memberOptions{config, note})
	mesh.Eventually(t, 2*limit, "the sluggard is shown as stuck", func() (bool, string) {
		d, err := describedBy(t, r, "slow")
		if err != nil {
			return false, err.Error()
		}
		stuck, held, revoking := false, false, 0
		for _, m := range d.Members {
			stuck = stuck || m.ClientID == "sluggard" && m.Stuck
			if m.ClientID == "other" && m.Stuck {
				t.Errorf("the other is shown as stuck: %+v", d)
			}
		}
		for _, p := range d.Partitions {
			held = held || p.Stuck && p.HeldBack == "application"
			if p.Revoking {
				revoking++
			}
		}
		return stuck && held && revoking == 2, fmt.Sprintf("%+v", d)
	})
	lasting(span(0, 10*time.Minute))
	t.Logf("shown as stuck after %v (session timeout %v)", time.Since(began).Round(time.Millisecond), session)
	if held := slow.has(); len(held) != 4 || len(other.has()) > 0 {
		t.Errorf("the sluggard holds %v, the other %v", held, other.has())
	}
	release.Do(func() { close(finish) })
	awaitHolding(t, 2, slow, other)
	mesh.Eventually(t, limit, "everything is read", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, offsets := range seen {
			n += len(offsets)
		}
		return n == 80, fmt.Sprint(n)
	})
	if _, _, lost := slow.counts(); lost > 0 {
		t.Errorf("the sluggard lost its membership %d times: %v", lost, slow.problems)
	}
}
