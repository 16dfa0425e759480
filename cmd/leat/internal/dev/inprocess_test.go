package dev

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// TestInProcess runs the real services in this process, twice on one folder.
func TestInProcess(t *testing.T) {
	o := options(t)
	o.Processes, o.BinDir, o.Brokers, o.Gateways = false, "", 2, 1
	o.Set = []string{"broker.log.level=debug"}
	for life := range 2 {
		o.PortBase = freePorts(t)
		m := startMesh(t, o)
		m.awaitReady()
		addr, err := os.ReadFile(filepath.Join(o.Data, "run", "gateway-1.addr"))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := rpc.Dial(strings.TrimSpace(string(addr)), rpc.DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		admin := gatewayv1.NewAdminServiceClient(conn)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if life == 0 {
			if _, err := admin.CreateTopic(ctx, &gatewayv1.CreateTopicRequest{Topic: "t"}); err != nil {
				t.Error(err)
			}
			for _, service := range []string{"coordinator-1", "broker-2", "gateway-1"} {
				if err := Control(ctx, o.Data, "restart", service); err != nil {
					t.Errorf("restart %s: %v", service, err)
				}
			}
		}
		// The connection may not have noticed yet that its gateway was restarted.
		var topics *gatewayv1.ListTopicsResponse
		eventually(t, "an answer of the gateway", func() bool {
			topics, err = admin.ListTopics(ctx, &gatewayv1.ListTopicsRequest{})
			return err == nil
		})
		if len(topics.GetTopics()) != 1 || topics.GetTopics()[0].GetName() != "t" {
			t.Errorf("life %d: topics %v", life, topics)
		}
		cancel()
		conn.Close()
		if exists(filepath.Join(o.Data, "run", "broker-1.pid")) {
			t.Error("a service in this process has a pid file of its own")
		}
		if log, err := os.ReadFile(filepath.Join(o.Data, "log", "broker-1.log")); err != nil || !strings.Contains(string(log), "component=broker-1") {
			t.Errorf("the log of broker-1: %q, %v", log, err)
		}
		if err := m.stop(); err != nil {
			t.Errorf("life %d: %v", life, err)
		}
		if left, _ := filepath.Glob(filepath.Join(o.Data, "run", "*.addr")); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}
