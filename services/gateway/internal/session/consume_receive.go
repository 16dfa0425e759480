package session

import (
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Receive takes a message of the client.
func (c *Consume) Receive(now time.Time, m *gatewayv1.ConsumeRequest) {
	switch c.state {
	case ConsumeNew:
		open, ok := m.GetMessage().(*gatewayv1.ConsumeRequest_Open)
		if !ok {
			c.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
				"the first message of a consume stream is %s; send open first", consumeKind(m)))
			return
		}
		c.receiveOpen(now, open.Open)
	case ConsumeJoining:
		c.receiveJoining(now, m)
	case ConsumeActive, ConsumeDraining:
		c.receiveActive(now, m)
	case ConsumeLeaving, ConsumeEnded:
		// Nothing is read in these; what was on its way is dropped.
	}
}

func (c *Consume) receiveJoining(now time.Time, m *gatewayv1.ConsumeRequest) {
	switch v := m.GetMessage().(type) {
	case *gatewayv1.ConsumeRequest_Credit:
		c.addCredit(v.Credit.GetBytes())
	case *gatewayv1.ConsumeRequest_Ping:
		c.pong(v.Ping.GetPingId())
	case *gatewayv1.ConsumeRequest_Leave:
		c.leave(now)
	default:
		c.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
			"got %s before opened; until then only credit, ping and leave may follow open", consumeKind(m)))
	}
}

func (c *Consume) receiveActive(now time.Time, m *gatewayv1.ConsumeRequest) {
	switch v := m.GetMessage().(type) {
	case *gatewayv1.ConsumeRequest_Credit:
		c.addCredit(v.Credit.GetBytes())
	case *gatewayv1.ConsumeRequest_Release:
		c.release(v.Release)
	case *gatewayv1.ConsumeRequest_Commit:
		c.receiveCommit(v.Commit)
	case *gatewayv1.ConsumeRequest_Seek:
		c.seek(v.Seek)
	case *gatewayv1.ConsumeRequest_Pause:
		c.pause(v.Pause.GetPartitions(), true)
	case *gatewayv1.ConsumeRequest_Resume:
		c.pause(v.Resume.GetPartitions(), false)
	case *gatewayv1.ConsumeRequest_Revoking:
		c.revoking(v.Revoking.GetPartitions())
	case *gatewayv1.ConsumeRequest_Revoked:
		c.revoked(now, v.Revoked.GetPartitions())
	case *gatewayv1.ConsumeRequest_Ping:
		c.pong(v.Ping.GetPingId())
	case *gatewayv1.ConsumeRequest_Leave:
		c.leave(now)
	default:
		c.end(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL,
			"got %s on an open consume stream; docs/streams.md tells what may come", consumeKind(m)))
	}
}

func consumeKind(m *gatewayv1.ConsumeRequest) string {
	switch m.GetMessage().(type) {
	case *gatewayv1.ConsumeRequest_Open:
		return "a second open"
	case *gatewayv1.ConsumeRequest_Credit:
		return "credit"
	case *gatewayv1.ConsumeRequest_Release:
		return "release"
	case *gatewayv1.ConsumeRequest_Commit:
		return "commit"
	case *gatewayv1.ConsumeRequest_Seek:
		return "seek"
	case *gatewayv1.ConsumeRequest_Pause:
		return "pause"
	case *gatewayv1.ConsumeRequest_Resume:
		return "resume"
	case *gatewayv1.ConsumeRequest_Revoking:
		return "revoking"
	case *gatewayv1.ConsumeRequest_Revoked:
		return "revoked"
	case *gatewayv1.ConsumeRequest_Ping:
		return "ping"
	case *gatewayv1.ConsumeRequest_Leave:
		return "leave"
	}
	return "a message that is empty, or of a kind that this gateway does not know"
}
