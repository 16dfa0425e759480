package rpc

import (
	"fmt"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// MaxMessageBytes is the one limit of a gRPC message between services: 16 MiB.
// max.message.bytes of any topic stays below it by MessageOverhead, so that a
// batch that may be stored can also be sent.
const (
	MaxMessageBytes = 16 << 20
	MessageOverhead = 64 << 10
)

// bufferSize is that of the read and write buffers of every connection. Larger
// ones gain nothing.
const bufferSize = 128 << 10

// maxHeaderBytes limits the metadata of a call, as HTTP/2 counts it.
const maxHeaderBytes = 64 << 10

// Keepalive is how a client keeps its connection known to be alive.
type Keepalive struct {
	// Time without traffic after which the client pings. grpc raises anything
	// below 10 s to 10 s.
	Time time.Duration
	// Timeout is how long the answer to a ping may take before the connection
	// counts as dead.
	Timeout time.Duration
}

// KeepalivePolicy is how often a server lets its clients ping.
type KeepalivePolicy struct {
	// MinTime between pings. A server ends connections whose pings come closer.
	MinTime time.Duration
	// PermitWithoutStream allows pings on a connection without open calls.
	PermitWithoutStream bool
}

// minClientPing is the floor that grpc puts under a client's ping interval.
const minClientPing = 10 * time.Second

// DefaultKeepalive is what Dial uses: a dead host is noticed within 15 s, and
// within 5 s of an unanswered request.
func DefaultKeepalive() Keepalive {
	return Keepalive{Time: 10 * time.Second, Timeout: 5 * time.Second}
}

// DefaultKeepalivePolicy is what NewServer uses.
func DefaultKeepalivePolicy() KeepalivePolicy {
	return KeepalivePolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}
}

// CheckKeepalive reports, as INVALID_CONFIG, a client's setting that a server of
// the given policy would punish by ending the connection ("too many pings").
// Leat's clients ping idle connections too.
func CheckKeepalive(client Keepalive, server KeepalivePolicy) error {
	if client.Time <= 0 || client.Timeout <= 0 {
		return keepaliveError(fmt.Sprintf("keepalive time %v and timeout %v must be above 0", client.Time, client.Timeout))
	}
	if every := max(client.Time, minClientPing); every < server.MinTime {
		return keepaliveError(fmt.Sprintf("a client that pings every %v is cut off by a server that allows a ping every %v: raise the client's keepalive time to at least that, or lower the server's minimum",
			every, server.MinTime))
	}
	if client.Time < minClientPing {
		return keepaliveError(fmt.Sprintf("keepalive time %v is below %v, the least that gRPC allows: raise it", client.Time, minClientPing))
	}
	if !server.PermitWithoutStream {
		return keepaliveError("the client pings idle connections and the server forbids that: permit pings without streams on the server")
	}
	return nil
}

func keepaliveError(message string) error {
	return Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG, "%s", message).With("setting", "keepalive")
}

// checkMessageLimit reports, as INVALID_CONFIG, a limit that cannot be kept.
func checkMessageLimit(n int) error {
	if n < 0 || n > MaxMessageBytes {
		return Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG,
			"the largest gRPC message is set to %d bytes; choose 1 to %d, or 0 for that", n, MaxMessageBytes).With("setting", "max.message.bytes")
	}
	return nil
}
