package cluster

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// TestGrpcurl speaks to the gateway as somebody would who has nothing of ours:
// reflection and plain JSON.
func TestGrpcurl(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	tool := mesh.Tool(t, "grpcurl")
	call := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command(tool, append([]string{"-plaintext", "-max-time", "20"}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("grpcurl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	services := call("", m.Gateway(), "list")
	for _, s := range []string{"ProducerService", "ConsumerService", "AdminService"} {
		if !strings.Contains(services, "leat.gateway.v1."+s) {
			t.Errorf("grpcurl list does not show %s:\n%s", s, services)
		}
		if d := call("", m.Gateway(), "describe", "leat.gateway.v1."+s); !strings.Contains(d, "rpc ") {
			t.Errorf("grpcurl describe shows no method of %s:\n%s", s, d)
		}
	}
	call("", "-d", `{"topic":"plain","partitions":1}`, m.Gateway(), "leat.gateway.v1.AdminService/CreateTopic")
	sent := call("", "-d", `{"topic":"plain","records":[{"key":"aw==","value":"aGVsbG8="}]}`, m.Gateway(), "leat.gateway.v1.ProducerService/Send")
	if !strings.Contains(sent, `"ranges"`) {
		t.Errorf("Send answers without ranges:\n%s", sent)
	}
	streamed := call(`{"open":{}} {"send":{"id":"1","topic":"plain","records":[{"value":"d29ybGQ="}]}}`,
		"-d", "@", m.Gateway(), "leat.gateway.v1.ProducerService/Produce")
	if !strings.Contains(streamed, `"summary"`) || !strings.Contains(streamed, `"acknowledged": "1"`) {
		t.Errorf("Produce does not end with a summary of 1 record:\n%s", streamed)
	}
	consumed := call(`{"open":{"topics":["plain"],"start_at":"START_AT_EARLIEST","stop_at_end":true}}`,
		"-d", "@", m.Gateway(), "leat.gateway.v1.ConsumerService/Consume")
	for _, want := range []string{`"aGVsbG8="`, `"d29ybGQ="`, `"closed"`} {
		if !strings.Contains(consumed, want) {
			t.Errorf("Consume does not show %s:\n%s", want, consumed)
		}
	}
	metadata := call("", "-d", `{"topics":["plain"]}`, m.Gateway(), "leat.broker.v1.MetadataService/GetMetadata")
	var md struct {
		Topics []struct {
			Name       string
			Partitions []struct{ LeaderEpoch int }
		}
	}
	if err := json.Unmarshal([]byte(metadata), &md); err != nil || len(md.Topics) != 1 || len(md.Topics[0].Partitions) != 1 {
		t.Errorf("GetMetadata does not tell the topic (%v):\n%s", err, metadata)
	}
}
