package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

func acksOf(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func TestProduceLines(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	acks := filepath.Join(t.TempDir(), "acks")
	_, stderr := leat(t, 0, f.addr, "a:1\r\nb\n:\n\nlast", "produce", "t", "--key-separator", ":", "--header", "h=1", "--header", "h=", "--partition", "1", "--acks-out", acks)
	want := []string{
		`{"number":1,"partition":1,"offset":0}`, `{"number":2,"partition":1,"offset":1}`, `{"number":3,"partition":1,"offset":2}`,
		`{"number":4,"partition":1,"offset":3}`, `{"number":5,"partition":1,"offset":4}`,
	}
	if got := acksOf(t, acks); !slices.Equal(got, want) {
		t.Errorf("acks-out:\n%s", strings.Join(got, "\n"))
	}
	log := f.log("t", 1)
	for i, want := range []struct {
		key   []byte
		value string
	}{{[]byte("a"), "1\r"}, {nil, "b"}, {[]byte{}, ""}, {nil, ""}, {nil, "last"}} {
		if r := log[i]; string(r.Value) != want.value || r.Value == nil || string(r.Key) != string(want.key) || (r.Key == nil) != (want.key == nil) {
			t.Errorf("record %d: key %q, value %q", i+1, r.Key, r.Value)
		}
		if h := log[i].Headers; len(h) != 2 || string(h[0].Value) != "1" || h[1].Value == nil || len(h[1].Value) != 0 {
			t.Errorf("record %d: headers %v", i+1, h)
		}
	}
	if !strings.Contains(stderr, "5 records") || !strings.Contains(stderr, "acknowledged 5, failed 0, unknown 0") || !strings.Contains(stderr, "p99") {
		t.Errorf("summary: %s", stderr)
	}
}

// TestNullEmptyAndPresentStayApart is case 19, for the command line.
func TestNullEmptyAndPresentStayApart(t *testing.T) { // case 19
	f := startFake(t)
	f.topic("t", 1)
	input := `{"key":null,"value":"","headers":[{"key":"a","value":null},{"key":"a","value":""},{"key":"a","value":"x"}],"timestamp":1700000000123}
{"key":"","value":null}
{"key_base64":"/w==","value":"é\u0000\n","headers":[{"key_base64":"/w==","value_base64":"gA=="}],"timestamp":"2023-11-14T22:13:20.5Z","partition":0}
`
	leat(t, 0, f.addr, input, "produce", "t", "--input", "json")
	out, _ := leat(t, 0, f.addr, "", "consume", "t", "--from-beginning", "--follow=false", "-o", "json")
	want := `{"topic":"t","partition":0,"offset":0,"timestamp":1700000000123,"key":null,"value":"","headers":[{"key":"a","value":null},{"key":"a","value":""},{"key":"a","value":"x"}],"leader_epoch":4}
{"topic":"t","partition":0,"offset":1,"timestamp":0,"key":"","value":null,"headers":[],"leader_epoch":4}
{"topic":"t","partition":0,"offset":2,"timestamp":1700000000500,"key_base64":"/w==","value":"é\u0000\n","headers":[{"key_base64":"/w==","value_base64":"gA=="}],"leader_epoch":4}
`
	if out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
	f.topic("u", 1) // the output goes in again
	leat(t, 0, f.addr, out, "produce", "u", "--input", "json")
	again, _ := leat(t, 0, f.addr, "", "consume", "u", "--from-beginning", "--follow=false", "-o", "json")
	if again != strings.ReplaceAll(want, `"topic":"t"`, `"topic":"u"`) {
		t.Errorf("the output fed back came out as\n%s", again)
	}
}

func TestProduceOutcomesAndExitCodes(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.refuse = func(r *gatewayv1.ProduceRecord) *rpc.Error {
		switch string(r.Value) {
		case "large":
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, "too large")
		case "lost":
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST, "lost").WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
		}
		return nil
	}
	acks := filepath.Join(t.TempDir(), "acks")
	for _, c := range []struct {
		name, input string
		args        []string
		code        int
		want        []string
	}{
		{"neighbours of a large record go through", "a\nlarge\nb\n", nil, 3, []string{`{"number":1,"partition":0,"offset":0}`, `{"number":2,"error":"RECORD_TOO_LARGE"}`, `{"number":3,"partition":0,"offset":1}`}},
		{"all failed", "large\nlarge\n", nil, 1, []string{`{"number":1,"error":"RECORD_TOO_LARGE"}`, `{"number":2,"error":"RECORD_TOO_LARGE"}`}},
		{"one unknown", "c\nlost\n", nil, 4, []string{`{"number":1,"partition":0,"offset":2}`, `{"number":2,"unknown":"CONNECTION_LOST"}`}},
		{"partition out of range", "a\n", []string{"--partition", "7"}, 1, []string{`{"number":1,"error":"UNKNOWN_PARTITION"}`}},
		{"malformed JSON", "{\"value\":\"d\"}\n\n{\"valu\":1}\n[\n", []string{"--input", "json"}, 3, []string{`{"number":1,"partition":0,"offset":3}`, `{"number":2,"error":"INVALID_RECORD"}`, `{"number":3,"error":"INVALID_RECORD"}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr := leat(t, c.code, f.addr, c.input, append([]string{"produce", "t", "--acks-out", acks}, c.args...)...)
			got := acksOf(t, acks)
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("acks-out:\n%s\nstderr:\n%s", strings.Join(got, "\n"), stderr)
			}
			if !strings.Contains(stderr, "Next:") {
				t.Errorf("no next step:\n%s", stderr)
			}
		})
	}
	_, stderr := leat(t, 1, f.addr, "a\n", "produce", "nowhere")
	if !strings.Contains(stderr, "UNKNOWN_TOPIC") {
		t.Errorf("stderr: %s", stderr)
	}
}

// TestProduceSendsAgainWhatABrokenStreamLeftOpen: at least once, and who may be
// there twice is told.
func TestProduceSendsAgainWhatABrokenStreamLeftOpen(t *testing.T) {
	for name, breaks := range map[string]fate{"stored": storeBreak, "lost": drop} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.topic("t", 1)
			f.onSend = func(stream, _ int, s *gatewayv1.ProduceSend) fate {
				if stream == 1 && string(s.Records[0].Value) == "two" {
					return breaks
				}
				return store
			}
			in, w := io.Pipe()
			acks := filepath.Join(t.TempDir(), "acks")
			c := start(f.addr, in, "produce", "t", "--acks-out", acks)
			for i, line := range []string{"one\n", "two\n", "three\n"} {
				if _, err := io.WriteString(w, line); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the acknowledgement", func() bool {
					text, _ := os.ReadFile(acks)
					return strings.Count(string(text), "\n") == i+1
				})
			}
			w.Close()
			if code := c.wait(t); code != 0 {
				t.Fatalf("exit code %d: %s", code, c.err.String())
			}
			want := map[fate][]string{storeBreak: {"one", "two", "two", "three"}, drop: {"one", "two", "three"}}[breaks]
			if got := f.values("t", 0); !slices.Equal(got, want) {
				t.Errorf("the log holds %q", got)
			}
			for i, line := range acksOf(t, acks) {
				if strings.Contains(line, `"maybe_duplicated":true`) != (i == 1) {
					t.Errorf("line %d: %s", i+1, line)
				}
			}
		})
	}
}

func TestProduceMovesOnWhenTheGatewayDrains(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.onSend = func(stream, send int, _ *gatewayv1.ProduceSend) fate {
		if stream == 1 && send >= 2 {
			return drain
		}
		return store
	}
	acks := filepath.Join(t.TempDir(), "acks")
	var lines []string
	for n := range 20_000 { // more than a send
		lines = append(lines, fmt.Sprint(n))
	}
	leat(t, 0, f.addr, strings.Join(lines, "\n"), "produce", "t", "--acks-out", acks)
	if got := f.values("t", 0); !slices.Equal(got, lines) {
		t.Errorf("%d records are stored, or their order is not the input's", len(got))
	}
	for _, line := range acksOf(t, acks) {
		if strings.Contains(line, "maybe") {
			t.Fatalf("nothing was uncertain: %s", line)
		}
	}
}

func TestProduceReportsUnknownAfterTheDeliveryTimeout(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	var seen atomic.Bool
	f.onSend = func(int, int, *gatewayv1.ProduceSend) fate {
		seen.Store(true)
		return drop
	}
	acks := filepath.Join(t.TempDir(), "acks")
	for _, limit := range []string{"200ms", "2s", "20s"} {
		c := start(f.addr, strings.NewReader("a\n"), "produce", "t", "--delivery-timeout", limit, "--acks-out", acks)
		code := c.wait(t)
		if !seen.Load() && limit != "20s" {
			continue // the time was over before it was sent, so that it is certain: not stored
		}
		if got := acksOf(t, acks); code != 4 || !slices.Equal(got, []string{`{"number":1,"unknown":"DEADLINE_EXCEEDED"}`}) {
			t.Errorf("exit code %d, acks-out %q, stderr %s", code, got, c.err.String())
		}
		return
	}
}

func TestProduceInterrupted(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	var seen atomic.Bool
	f.onSend = func(_, _ int, s *gatewayv1.ProduceSend) fate {
		if string(s.Records[0].Value) == "b" {
			seen.Store(true)
			return ignore
		}
		return store
	}
	acks := filepath.Join(t.TempDir(), "acks")
	in, w := io.Pipe()
	defer w.Close()
	c := start(f.addr, in, "produce", "t", "--acks-out", acks)
	for _, step := range []struct {
		line, what string
		done       func() bool
	}{
		{"a\n", "the first acknowledgement", func() bool { text, _ := os.ReadFile(acks); return strings.HasSuffix(string(text), "\n") }},
		{"b\n", "the second send", seen.Load},
	} {
		if _, err := io.WriteString(w, step.line); err != nil {
			t.Fatal(err)
		}
		eventually(t, step.what, step.done)
	}
	c.signals <- syscall.SIGINT
	if code := c.wait(t); code != 130 {
		t.Fatalf("exit code %d", code)
	}
	got := acksOf(t, acks)
	if len(got) != 2 || got[0] != `{"number":1,"partition":0,"offset":0}` || !strings.Contains(got[1], "CANCELLED") {
		t.Errorf("acks-out: %q", got)
	}
}

func TestProduceRate(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	began := time.Now()
	leat(t, 0, f.addr, strings.Repeat("x\n", 50), "produce", "t", "--rate", "200")
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("50 records at 200 a second took %v", took)
	}
	if n := len(f.values("t", 0)); n != 50 {
		t.Errorf("%d records are stored", n)
	}
}

// A record whose time is over and that was certainly not stored is an error, and
// the user is told what was in the way, which was not the gateway.
func TestProduceTellsWhatWasNotDoneInTime(t *testing.T) {
	for _, reason := range []typev1.ErrorReason{
		typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, typev1.ErrorReason_ERROR_REASON_UNREACHABLE,
	} {
		f := startFake(t)
		f.topic("t", 1)
		f.refuse = func(*gatewayv1.ProduceRecord) *rpc.Error {
			return rpc.Errorf(reason, "not acknowledged within 3s; last problem: LEADER_NOT_AVAILABLE: no leader").
				WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE).With("last_reason", "LEADER_NOT_AVAILABLE")
		}
		out, stderr := leat(t, 1, f.addr, "a\n", "produce", "t", "--acks-out", "-")
		if out != "{\"number\":1,\"error\":\""+rpc.ReasonName(reason)+"\"}\n" {
			t.Errorf("told %q", out)
		}
		if !strings.Contains(stderr, "LEADER_NOT_AVAILABLE: no leader") || !strings.Contains(stderr, "Next: It was not done.") || strings.Contains(stderr, "--gateway") {
			t.Error(stderr)
		}
	}
}

func TestProduceNothingToATopicThatIsNotThere(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	leat(t, 0, f.addr, "", "produce", "t")
	if _, stderr := leat(t, 1, f.addr, "", "produce", "nowhere"); !strings.Contains(stderr, "UNKNOWN_TOPIC") {
		t.Error(stderr)
	}
}
