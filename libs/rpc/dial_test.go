package rpc

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

const invalidConfig = typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG

// Nobody listens: an error at once, not done, that names the address.
func TestUnreachable(t *testing.T) {
	ctx := testContext(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	lis.Close()
	client := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{}))
	_, unary := client.ListOffsets(ctx, &brokerv1.ListOffsetsRequest{})
	st, stream := client.Produce(ctx)
	if stream == nil {
		_, stream = st.Recv()
	}
	for name, err := range map[string]error{"unary": unary, "stream": stream} {
		e := FromError(err)
		if e == nil || e.Reason != unreachable || e.Outcome != notDone || !strings.Contains(e.Message, addr) || !Retryable(err) {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// A process that comes back is found again soon, by the same connection.
func TestReconnect(t *testing.T) {
	ctx := testContext(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	lis.Close()
	client := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{}))
	call := func() error {
		_, err := client.ListOffsets(ctx, &brokerv1.ListOffsetsRequest{})
		return err
	}
	if err := call(); err == nil {
		t.Fatal("somebody answers")
	}
	lis, err = net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	brokerv1.RegisterLogServiceServer(s, &echoService{list: func(context.Context, *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
		return &brokerv1.ListOffsetsResponse{}, nil
	}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	waitFor(t, "the server to be found", func() bool { return call() == nil })
	s.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestDialRefuses(t *testing.T) {
	for _, addr := range []string{"", "localhost", ":5328", "http://localhost:5328", "localhost:", "a b:1"} {
		if _, err := Dial(addr, DialConfig{}); !IsReason(err, invalid) {
			t.Errorf("%q: %v", addr, err)
		}
	}
	for name, cfg := range map[string]DialConfig{
		"source":     {SourceAddress: "nonsense"},
		"limit":      {MaxMessageBytes: -1},
		"keepalive":  {Keepalive: Keepalive{Time: time.Second, Timeout: time.Second}},
		"no timeout": {Keepalive: Keepalive{Time: time.Minute}},
	} {
		if _, err := Dial("localhost:1", cfg); !IsReason(err, invalidConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConnPool(t *testing.T) {
	p := NewConnPool(DialConfig{})
	a, err := p.Get("localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	again, _ := p.Get("localhost:1")
	control, _ := p.GetLane("localhost:1", "control")
	if a != again || a == control || control == nil {
		t.Error("connections are not shared by address and lane")
	}
	if err := p.Drop("localhost:1"); err != nil {
		t.Error(err)
	}
	if fresh, _ := p.Get("localhost:1"); fresh == a {
		t.Error("a dropped connection is handed out")
	}
	if _, err := p.Get("nonsense"); !IsReason(err, invalid) {
		t.Errorf("nonsense: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Get("localhost:1"); !IsReason(err, cancelled) {
		t.Errorf("after Close: %v", err)
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Min: 10 * time.Millisecond, Max: 80 * time.Millisecond}
	for range 2 {
		for _, step := range []time.Duration{10, 20, 40, 80, 80} {
			step *= time.Millisecond
			if d := b.Next(); d < step/2 || d > step {
				t.Errorf("wait %v in the step of %v", d, step)
			}
		}
		b.Reset()
	}
	var zero Backoff
	if d := zero.Next(); d < 10*time.Millisecond || d > 20*time.Millisecond {
		t.Errorf("the zero value waits %v first", d)
	}
}

func TestHandshake(t *testing.T) {
	if err := CheckHandshake(LocalHandshake(), FeatureProduce, FeatureGroupJoin); err != nil {
		t.Errorf("we do not understand ourselves: %v", err)
	}
	if err := CheckHandshake(nil); err != nil {
		t.Errorf("a bare stub is refused: %v", err)
	}
	unsupported := typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE
	if err := CheckHandshake(nil, FeatureVouch); !IsReason(err, unsupported) {
		t.Errorf("a missing feature: %v", err)
	}
	newer := &typev1.Handshake{Features: []*typev1.Feature{{Name: FeatureFetch, MinVersion: 2, MaxVersion: 3}, {Name: "later", MinVersion: 1, MaxVersion: 1}}}
	if err := CheckHandshake(newer); !IsReason(err, unsupported) {
		t.Errorf("no common version: %v", err)
	}
	newer.Features[0].MinVersion = 1
	if err := CheckHandshake(newer); err != nil {
		t.Errorf("a common version: %v", err)
	}
}
