package session

import (
	"strings"
	"testing"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// inState returns a group stream in the state; from ACTIVE on it holds partition 0
// at 5 and has partition 1 being revoked.
func inState(t *testing.T, state ConsumeState) *harness {
	h := newHarness(t)
	switch state {
	case ConsumeNew:
		return h
	case ConsumeJoining:
		h.recv(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: &gatewayv1.ConsumeOpen{Group: "g", Topics: []string{"a"}}}})
		return h.forget()
	}
	h.group(&gatewayv1.ConsumeOpen{}).assign(1, "0@5", "1@6").assign(2, "0@5").forget()
	switch state {
	case ConsumeDraining:
		h.c.Drain(h.now)
	case ConsumeLeaving:
		h.recv(msgLeave())
	case ConsumeEnded:
		h.recv(msgLeave())
		h.c.Left()
	}
	return h.forget()
}

// TestConsumeEveryStateAndMessage walks the whole table of the consume stream: what
// each message and event does in each state. A state followed by a slash and a
// reason is where the stream ends.
func TestConsumeEveryStateAndMessage(t *testing.T) {
	events := []struct {
		name  string
		event func(*harness)
	}{
		{"open", func(h *harness) { h.recv(msgOpen()) }},
		{"credit", func(h *harness) { h.recv(msgCredit(10)) }},
		{"bad credit", func(h *harness) { h.recv(msgCredit(-1)) }},
		{"release", func(h *harness) { h.recv(msgRelease(position(0, 6))) }},
		{"commit", func(h *harness) { h.recv(msgCommit(1, position(0, 6), position(1, 7))) }},
		{"seek", func(h *harness) { h.recv(msgSeek(1, 0, 50)) }},
		{"pause", func(h *harness) { h.recv(msgPause(0)) }},
		{"resume", func(h *harness) { h.recv(msgResume(0)) }},
		{"revoking", func(h *harness) { h.recv(msgRevoking(1)) }},
		{"revoked", func(h *harness) { h.recv(msgRevoked(1)) }},
		{"revoked unasked", func(h *harness) { h.recv(msgRevoked(0)) }},
		{"ping", func(h *harness) { h.recv(msgPing(3)) }},
		{"leave", func(h *harness) { h.recv(msgLeave()) }},
		{"empty", func(h *harness) { h.recv(&gatewayv1.ConsumeRequest{}) }},
		{"half-close", func(h *harness) { h.c.HalfClose(h.now) }},
		{"drain", func(h *harness) { h.c.Drain(h.now) }},
		{"fenced", func(h *harness) { h.c.Fenced(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_MEMBER_FENCED, "x")) }},
		{"waiting", func(h *harness) {
			h.c.Waiting(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, "x"))
		}},
		{"10s", func(h *harness) { h.now = h.now.Add(10 * time.Second); h.c.Tick(h.now) }},
		{"1min", func(h *harness) { h.now = h.now.Add(time.Minute); h.c.Tick(h.now) }},
	}
	same := func(state string, but map[string]string) map[string]string {
		out := map[string]string{}
		for _, e := range events {
			out[e.name] = state
			if s, ok := but[e.name]; ok {
				out[e.name] = s
			}
		}
		return out
	}
	active := map[string]string{
		"open": "ENDED/STREAM_PROTOCOL", "empty": "ENDED/STREAM_PROTOCOL", "bad credit": "ENDED/INVALID_REQUEST",
		"commit": "* commit #1 0@6 1@7", "revoked": "* ack 2 [0]", "revoked unasked": "< error 0 INVALID_REQUEST/FIX",
		"ping": "< pong 3", "fenced": "ENDED/MEMBER_FENCED < fenced MEMBER_FENCED/REJOIN", "waiting": "< status COORDINATOR_LOADING",
		"1min": "ENDED/MEMBER_FENCED < fenced MEMBER_FENCED/REJOIN",
	}
	with := func(more map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range active {
			out[k] = v
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	table := map[ConsumeState]map[string]string{
		ConsumeNew: same("ENDED/STREAM_PROTOCOL", map[string]string{
			"open": "JOINING * lookup a", "drain": "ENDED/DRAINING", "fenced": "ENDED/MEMBER_FENCED < fenced MEMBER_FENCED/REJOIN", "waiting": "NEW",
		}),
		ConsumeJoining: same("ENDED/STREAM_PROTOCOL", map[string]string{
			"credit": "JOINING", "bad credit": "ENDED/INVALID_REQUEST", "ping": "JOINING < pong 3", "leave": "LEAVING * leave", "half-close": "LEAVING * leave",
			"drain": "ENDED/DRAINING", "fenced": "ENDED/MEMBER_FENCED < fenced MEMBER_FENCED/REJOIN", "waiting": "JOINING < status COORDINATOR_LOADING",
			"10s": "JOINING", "1min": "JOINING",
		}),
		ConsumeActive: same("ACTIVE", with(map[string]string{
			"seek": "* stop 0 * fetch 0@50 epoch -1", "pause": "* stop 0", "leave": "LEAVING * stop 0 * leave", "half-close": "LEAVING * stop 0 * leave",
			"drain": "DRAINING * stop 0 < drain",
			"open":  "ENDED/STREAM_PROTOCOL * stop 0", "empty": "ENDED/STREAM_PROTOCOL * stop 0", "bad credit": "ENDED/INVALID_REQUEST * stop 0",
			"fenced": "ENDED/MEMBER_FENCED * stop 0 < fenced MEMBER_FENCED/REJOIN", "1min": "ENDED/MEMBER_FENCED * stop 0 < fenced MEMBER_FENCED/REJOIN",
		})),
		ConsumeDraining: same("DRAINING", with(map[string]string{
			"leave": "LEAVING * leave", "half-close": "ENDED/OK", "10s": "ENDED/DRAINING", "1min": "ENDED/DRAINING",
		})),
		ConsumeLeaving: same("LEAVING", map[string]string{
			"fenced": "ENDED/MEMBER_FENCED < fenced MEMBER_FENCED/REJOIN", "waiting": "< status COORDINATOR_LOADING",
		}),
		ConsumeEnded: same("ENDED/OK", nil),
	}
	for state, want := range table {
		for _, e := range events {
			t.Run(state.String()+"/"+e.name, func(t *testing.T) {
				h := inState(t, state)
				e.event(h)
				came := strings.Join(h.take(), " ")
				got := h.c.State().String()
				if ended, err := h.c.Ended(); ended {
					got += "/" + reasonOfEnd(t, err)
				}
				if came != "" {
					got += " " + came
				}
				expect := want[e.name]
				if strings.HasPrefix(expect, "*") || strings.HasPrefix(expect, "<") {
					expect = state.String() + " " + expect
				}
				if got != expect {
					t.Errorf("got %q, want %q", got, expect)
				}
			})
		}
	}
}
