package rpc

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/test/bufconn"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
)

// case 40: what the two sides use by default fits, and a mismatch is found by
// the check, before any connection suffers from it.
func TestKeepaliveFitsPolicy(t *testing.T) {
	if err := CheckKeepalive(DefaultKeepalive(), DefaultKeepalivePolicy()); err != nil {
		t.Errorf("the defaults do not fit: %v", err)
	}
	tests := map[string]struct {
		client Keepalive
		server KeepalivePolicy
		ok     bool
	}{
		"slower than needed":    {Keepalive{time.Minute, time.Second}, DefaultKeepalivePolicy(), true},
		"just as allowed":       {Keepalive{30 * time.Second, time.Second}, KeepalivePolicy{30 * time.Second, true}, true},
		"too fast":              {Keepalive{29 * time.Second, time.Second}, KeepalivePolicy{30 * time.Second, true}, false},
		"grpc's default policy": {DefaultKeepalive(), KeepalivePolicy{5 * time.Minute, false}, false},
		"idle pings forbidden":  {DefaultKeepalive(), KeepalivePolicy{5 * time.Second, false}, false},
		"below grpc's floor":    {Keepalive{time.Second, time.Second}, DefaultKeepalivePolicy(), false},
		"no time":               {Keepalive{0, time.Second}, DefaultKeepalivePolicy(), false},
		"no timeout":            {Keepalive{time.Minute, 0}, DefaultKeepalivePolicy(), false},
	}
	for name, tt := range tests {
		err := CheckKeepalive(tt.client, tt.server)
		if tt.ok != (err == nil) || (err != nil && !IsReason(err, invalidConfig)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// case 40: an idle connection with our pings stays up for an hour under our
// policy, and is cut under grpc's default one, which shows that the pings are
// sent and counted.
func TestKeepaliveConnectionStaysUp(t *testing.T) {
	for name, tt := range map[string]struct {
		policy KeepalivePolicy
		stays  bool
	}{
		"our policy":     {DefaultKeepalivePolicy(), true},
		"grpc's default": {KeepalivePolicy{MinTime: 5 * time.Minute}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { idleForAnHour(t, tt.policy, tt.stays) })
		})
	}
}

func idleForAnHour(t *testing.T, policy KeepalivePolicy, stays bool) {
	lis := bufconn.Listen(1 << 20)
	s, err := NewServer(ServerConfig{Keepalive: policy})
	if err != nil {
		t.Fatal(err)
	}
	brokerv1.RegisterLogServiceServer(s, &echoService{list: func(context.Context, *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
		return &brokerv1.ListOffsetsResponse{}, nil
	}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	var dials atomic.Int32
	conn, err := Dial("bufconn:1", DialConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
		dials.Add(1)
		return lis.DialContext(ctx)
	}})
	if err != nil {
		t.Fatal(err)
	}
	client := brokerv1.NewLogServiceClient(conn)
	for range 4 {
		if _, err := client.ListOffsets(t.Context(), &brokerv1.ListOffsetsRequest{}); err != nil {
			t.Fatal(err)
		}
		// The channel would go idle by itself after 30 min without a call.
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		changed := conn.WaitForStateChange(ctx, connectivity.Ready)
		cancel()
		if changed && stays {
			t.Errorf("the connection became %s", conn.GetState())
		}
	}
	if n := dials.Load(); (n == 1) != stays {
		t.Errorf("%d connections were made", n)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	s.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
