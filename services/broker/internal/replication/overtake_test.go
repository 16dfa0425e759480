package replication

import (
	"context"
	"slices"
	"testing"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// quickFollower is a stream to a follower whose next hello is there before the leader has
// gone on.
type quickFollower struct {
	brokerv1.ReplicationService_ReplicateServer
	sent  []string
	hello func()
}

func (q *quickFollower) Context() context.Context { return context.Background() }

func (q *quickFollower) Send(m *brokerv1.ReplicateResponse) error {
	what := "producers"
	if e := m.GetEpochEnd(); e != nil {
		what = "no"
		if e.GetAgreed() {
			what = "agreed"
		}
	}
	q.sent = append(q.sent, what)
	if what != "agreed" {
		q.hello()
	}
	return nil
}

// SendMsg takes what has a payload.
func (q *quickFollower) SendMsg(any) error {
	q.sent = append(q.sent, "batches")
	return nil
}

// No batch overtakes the agreement to it: the follower would drop it, and hear of nothing
// until the next one is appended.
func TestNoBatchOvertakesTheAgreement(t *testing.T) {
	m := newMesh(t, 1, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1)
	m.awaitLeads(1, id, 0)
	n := m.nodes[1]
	n.mustStore(id, 0, "a")
	for first, begin := range map[string]func(*session){
		"no":        func(s *session) { s.EpochEnd(replica.EpochEnd{}) },
		"producers": func(s *session) { s.Producers(1) },
	} {
		q := &quickFollower{}
		st := newStream(n.server, n.manager, q, partition.Replica{Broker: 2, Incarnation: 1})
		sess := &session{st: st, wire: 1, r: n.replica(id, 0), id: n.manager.NextSession(), window: DefaultWindow}
		st.sessions[sess.wire] = sess
		q.hello = func() {
			sess.EpochEnd(replica.EpochEnd{Agreed: true})
			sess.Send(0)
		}
		begin(sess)
		for {
			next, _, _ := st.next()
			if next == nil {
				break
			}
			if err := st.serve(next); err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{first, "agreed", "batches"}; !slices.Equal(q.sent, want) {
			t.Errorf("sent %q, want %q", q.sent, want)
		}
	}
}
