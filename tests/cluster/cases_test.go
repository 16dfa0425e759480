package cluster

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// TestCase18SizeLimitIsExact: of records at the limit less one, the limit and
// the limit plus one, sent together, only the last fails.
func TestCase18SizeLimitIsExact(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	m.MustLeat("topic", "create", "edge", "--config", "max.message.bytes=1000")
	// A batch of one record without key and headers takes 61 bytes of header,
	// 2 of the record's length, 7 of its other fields, and the value.
	const fits = 1000 - 61 - 2 - 7
	var input strings.Builder
	for _, n := range []int{fits - 1, fits, fits + 1, 1} {
		fmt.Fprintln(&input, strings.Repeat("x", n))
	}
	acksFile := t.TempDir() + "/acks"
	r := m.LeatInput(input.String(), "produce", "edge", "--acks-out", acksFile)
	if r.Code != 3 {
		t.Errorf("want exit code 3; %s", r)
	}
	for _, a := range parseAcks(t, readFile(t, acksFile)) {
		if failed := a.Error != nil; failed != (a.Number == 3) {
			t.Errorf("record %d: %+v", a.Number, a)
		}
	}
	var sizes []int
	for _, line := range splitLines(m.MustLeat("consume", "edge", "--from-beginning", "--follow=false")) {
		sizes = append(sizes, len(line))
	}
	if want := []int{fits - 1, fits, 1}; !slices.Equal(sizes, want) {
		t.Errorf("the topic holds records of %v bytes, want %v", sizes, want)
	}
}

// TestCase41AroundFourMebibytes sends records around gRPC's default message
// limit through every hop, and one above the topic's own limit.
func TestCase41AroundFourMebibytes(t *testing.T) {
	m := mesh.Start(t, mesh.Options{Processes: true})
	const limit = 10 << 20
	m.MustLeat("topic", "create", "large", "--config", fmt.Sprint("max.message.bytes=", limit))
	sizes := []int{4194303, 4194304, 4194305, 9 << 20}
	for _, n := range sizes {
		m.MustLeatInput(strings.Repeat("x", n), "produce", "large")
	}
	r := m.LeatInput(strings.Repeat("x", limit+1), "produce", "large")
	if r.Code != 1 || !strings.Contains(r.Stderr, "RECORD_TOO_LARGE") || !strings.Contains(r.Stderr, "max.message.bytes") {
		t.Errorf("a record above the limit: want exit code 1 and the limit by name; %s", r)
	}
	lines := splitLines(m.MustLeat("consume", "large", "--from-beginning", "--follow=false"))
	if len(lines) != len(sizes) {
		t.Fatalf("consumed %d records, want %d", len(lines), len(sizes))
	}
	for i, line := range lines {
		if len(line) != sizes[i] {
			t.Errorf("record %d has %d bytes, want %d", i, len(line), sizes[i])
		}
	}
}

// TestCase48BrokersDown: with every broker dead a produce is an error of the
// call, never OK with a failure inside.
func TestCase48BrokersDown(t *testing.T) {
	m := mesh.Start(t, mesh.Options{Processes: true})
	m.MustLeat("topic", "create", "dark")
	for _, b := range []string{"broker-1", "broker-2", "broker-3"} {
		m.Kill(b)
	}
	cmd := exec.Command(mesh.Tool(t, "grpcurl"), "-plaintext", "-max-time", "3",
		"-d", `{"topic":"dark","records":[{"value":"aGVsbG8="}]}`, m.Gateway(), "leat.gateway.v1.ProducerService/Send")
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("Send says OK without a broker:\n%s", out)
	}
	acksFile := t.TempDir() + "/acks"
	r := m.LeatInput("lost\n", "produce", "dark", "--delivery-timeout", "2s", "--acks-out", acksFile)
	if r.Code != 1 && r.Code != 4 {
		t.Errorf("want exit code 1 or 4; %s", r)
	}
	for _, a := range parseAcks(t, readFile(t, acksFile)) {
		if a.Offset != nil {
			t.Errorf("acknowledged without a broker: %+v", a)
		}
	}
}
