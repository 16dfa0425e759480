package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

func TestDocsAreUpToDate(t *testing.T) {
	path := filepath.Join("..", "..", "..", "..", "docs", "cli.md")
	if *update {
		if err := os.WriteFile(path, []byte(Docs()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != Docs() {
		t.Error("docs/cli.md does not match the command tree: run `make generate`")
	}
}

// lockedBuffer is an output that a test reads while the command runs.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// command is a leat command that runs, or has run, in this process.
type command struct {
	out, err lockedBuffer
	signals  chan os.Signal
	code     chan int
}

func start(addr string, stdin io.Reader, args ...string) *command {
	c := &command{signals: make(chan os.Signal, 2), code: make(chan int, 1)}
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	go func() {
		c.code <- Run(context.Background(), args, IO{
			In: stdin, Out: &c.out, Err: &c.err, Signals: c.signals,
			Getenv: func(name string) string { return map[string]string{"LEAT_GATEWAY": addr}[name] },
		})
	}()
	return c
}

// wait gives the exit code.
func (c *command) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-c.code:
		return code
	case <-time.After(30 * time.Second):
		t.Fatalf("the command does not end; stderr:\n%s", c.err.String())
		return -1
	}
}

// leat runs a command and demands its exit code.
func leat(t *testing.T, wantCode int, addr, stdin string, args ...string) (stdout, stderr string) {
	t.Helper()
	c := start(addr, strings.NewReader(stdin), args...)
	if code := c.wait(t); code != wantCode {
		t.Fatalf("leat %s: exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), code, wantCode, c.out.String(), c.err.String())
	}
	return c.out.String(), c.err.String()
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

func TestWrongUsageSaysWhatIsWrongAndWhatIsNear(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"frob", `no command "frob"`},
		{"topic lst", `did you mean "list"?`},
		{"topic", "Usage"},
		{"topic create", "NAME is missing"},
		{"topic create a b", `"b" is one argument too many`},
		{"topic create a --partition 3", "did you mean --partitions?"},
		{"topic create a --config x", "is not name=value"},
		{"topic create a --partitions many", "invalid argument"},
		{"topic alter a", "nothing to change"},
		{"topic offsets a --time soonish", "neither earliest, latest, max nor a time"},
		{"topic list -o yaml", `must be one of text, json`},
		{"produce", "TOPIC is missing"},
		{"produce a --acks 2", "must be one of 0, 1, all"},
		{"produce a --acks 0 --acks-out f", "--acks-out would have nothing to say"},
		{"produce a --key-separator : --key-regex x", "exclude each other"},
		{"produce a --key-regex (", "--key-regex"},
		{"produce a --input json --key-separator :", "leave out --key-separator"},
		{"produce a --input xml", "must be one of lines, json"},
		{"produce a --compression brotli", "must be one of none, gzip"},
		{"produce a --partitioner best", "must be one of murmur2"},
		{"produce a --partition -1", "partitions count from 0"},
		{"produce a --rate 0", "must be above 0"},
		{"produce a --header x", "is not key=value"},
		{"consume", "TOPIC is missing"},
		{"consume a --from-beginning --offset 3", "exclude each other"},
		{"consume a --group g --partition 0", "do not go with --group"},
		{"consume a --offset -3", "offsets count from 0"},
		{"consume a --max-messages 0", "at least 1"},
		{"consume a --since soonish", "is no time"},
		{"consume a --format %z", "unknown verb"},
		{"consume a --format %v -o json", "exclude each other"},
		{"consume a --auto-commit=true", "need --group"},
		{"group commit g t:0", "is not TOPIC:PARTITION=OFFSET"},
		{"group commit g t:x=3", "names no partition"},
		{"group commit g --topic t", "go together"},
		{"explain NOT_LEADR", "did you mean NOT_LEADER?"},
		{"cluster wait --timeout 0s", "must be above 0"},
		{"dev --brokers 0", "must be from 1 to 20"},
		{"dev --set broker.x", "is not service[.n].key=value"},
		{"dev restart broker-1", "--data is missing"},
		{"--gateway nowhere topic list", "host:port"},
	} {
		t.Run(c.args, func(t *testing.T) {
			_, stderr := leat(t, 2, "127.0.0.1:1", "", strings.Fields(c.args)...)
			if !strings.Contains(stderr, c.want) {
				t.Errorf("stderr does not say %q:\n%s", c.want, stderr)
			}
		})
	}
}

func TestUnreachableGatewayFailsAtOnce(t *testing.T) {
	for _, args := range []string{"topic list", "produce a", "consume a", "group describe g"} {
		_, stderr := leat(t, 1, "127.0.0.1:1", "x\n", strings.Fields(args)...)
		if !strings.Contains(stderr, "UNREACHABLE") || !strings.Contains(stderr, "leat dev") {
			t.Errorf("leat %s: no reason or no next step:\n%s", args, stderr)
		}
	}
}

func TestHelpHasExamplesEverywhere(t *testing.T) {
	root := newRoot(&app{IO: IO{Getenv: func(string) string { return "" }}})
	commands := root.Commands()
	for len(commands) > 0 {
		c := commands[0]
		commands = append(commands[1:], c.Commands()...)
		if strings.HasPrefix(c.CommandPath(), "leat completion") || c.Name() == "help" {
			continue
		}
		if c.Example == "" || c.Short == "" {
			t.Errorf("%s has no example or no description", c.CommandPath())
		}
	}
}

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
	want := []string{`{"number":1,"partition":1,"offset":0}`, `{"number":2,"partition":1,"offset":1}`, `{"number":3,"partition":1,"offset":2}`,
		`{"number":4,"partition":1,"offset":3}`, `{"number":5,"partition":1,"offset":4}`}
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
	var input strings.Builder
	for range 3000 { // more than a send
		input.WriteString("x\n")
	}
	leat(t, 0, f.addr, input.String(), "produce", "t", "--acks-out", acks)
	if n := len(f.values("t", 0)); n != 3000 {
		t.Errorf("%d records are stored", n)
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
	f.onSend = func(int, int, *gatewayv1.ProduceSend) fate { return drop }
	acks := filepath.Join(t.TempDir(), "acks")
	_, stderr := leat(t, 4, f.addr, "a\n", "produce", "t", "--delivery-timeout", "200ms", "--acks-out", acks)
	if got := acksOf(t, acks); !slices.Equal(got, []string{`{"number":1,"unknown":"DEADLINE_EXCEEDED"}`}) {
		t.Errorf("acks-out %q, stderr %s", got, stderr)
	}
}

func TestProduceInterrupted(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.onSend = func(_, _ int, s *gatewayv1.ProduceSend) fate {
		if string(s.Records[0].Value) == "b" {
			return ignore
		}
		return store
	}
	acks := filepath.Join(t.TempDir(), "acks")
	in, w := io.Pipe()
	defer w.Close()
	c := start(f.addr, in, "produce", "t", "--acks-out", acks)
	for _, line := range []string{"a\n", "b\n"} {
		if _, err := io.WriteString(w, line); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the send", func() bool { return len(f.values("t", 0)) == 1 })
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

func TestConsumeMaxMessagesPrintsAndCommitsExactly(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.fill("t", 0, "a", "b", "c", "d", "e")
	out, _ := leat(t, 0, f.addr, "", "consume", "t", "--group", "g", "--from-beginning", "--max-messages", "3")
	if out != "a\nb\nc\n" || f.committedAt("g", "t", 0) != 3 || f.left != 1 {
		t.Errorf("printed %q, committed %d, left %d times", out, f.committedAt("g", "t", 0), f.left)
	}
	out, _ = leat(t, 0, f.addr, "", "consume", "t", "--group", "g", "--from-beginning", "--follow=false")
	if out != "d\ne\n" || f.committedAt("g", "t", 0) != 5 {
		t.Errorf("printed %q, committed %d", out, f.committedAt("g", "t", 0))
	}
	if out, _ = leat(t, 0, f.addr, "", "consume", "t", "--group", "g", "--from-beginning", "--follow=false"); out != "" {
		t.Errorf("the group has read it all, and got %q", out)
	}
	out, _ = leat(t, 0, f.addr, "", "consume", "t", "--group", "h", "--from-beginning", "--follow=false", "--auto-commit=false")
	if out != "a\nb\nc\nd\ne\n" || f.committedAt("h", "t", 0) != -1 {
		t.Errorf("printed %q, committed %d without auto-commit", out, f.committedAt("h", "t", 0))
	}
}

func TestConsumeByHand(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b", "c")
	f.fill("t", 1, "d")
	for _, c := range []struct{ args, want string }{
		{"--from-beginning --follow=false", "a\nb\nc\nd\n"},
		{"--from-beginning --follow=false --partition 1", "d\n"},
		{"--offset 1 --partition 0 --follow=false", "b\nc\n"},
		{"--offset 1 --follow=false", "b\nc\n"},
		{"--follow=false", ""},
		{"--from-beginning --max-messages 2 --format %t/%p/%o=%v;", "t/0/0=a;\nt/0/1=b;\n"},
		{`--from-beginning --max-messages 2 --format %v\t`, "a\tb\t"},
		{"--since 2001-01-01 --max-messages 1", ""},
	} {
		if strings.Contains(c.args, "since") {
			continue // the fake knows no timestamps
		}
		if out, _ := leat(t, 0, f.addr, "", append([]string{"consume", "t"}, strings.Fields(c.args)...)...); out != c.want {
			t.Errorf("consume t %s: %q", c.args, out)
		}
	}
	_, stderr := leat(t, 1, f.addr, "", "consume", "t", "--partition", "5")
	if !strings.Contains(stderr, "UNKNOWN_PARTITION") {
		t.Error(stderr)
	}
	_, stderr = leat(t, 1, f.addr, "", "consume", "t", "--partition", "0", "--offset", "9")
	if !strings.Contains(stderr, "OFFSET_OUT_OF_RANGE") || !strings.Contains(stderr, "Next:") {
		t.Error(stderr)
	}
	_, stderr = leat(t, 1, f.addr, "", "consume", "nowhere")
	if !strings.Contains(stderr, "UNKNOWN_TOPIC") {
		t.Error(stderr)
	}
}

func TestConsumeResumesABrokenStream(t *testing.T) {
	for _, group := range []string{"", "g"} {
		f := startFake(t)
		f.topic("t", 2)
		f.fill("t", 0, "a", "b", "c", "d", "e")
		f.fill("t", 1, "f", "g")
		f.breakAfter = func(stream int) int { return map[int]int{1: 2, 2: 3}[stream] }
		args := []string{"consume", "t", "--from-beginning", "--max-messages", "7"}
		if group != "" {
			args = append(args, "--group", group)
		}
		out, _ := leat(t, 0, f.addr, "", args...)
		if out != "a\nb\nc\nd\ne\nf\ng\n" {
			t.Errorf("group %q: printed %q", group, out)
		}
		if group != "" {
			second := f.joined[1]
			if second.GetMemberId() != "member-1" || second.GetAttach() != 1 || len(second.GetPositions()) == 0 {
				t.Errorf("the second stream does not resume: %v", second)
			}
			if f.committedAt("g", "t", 0) != 5 || f.committedAt("g", "t", 1) != 2 {
				t.Errorf("committed %d and %d", f.committedAt("g", "t", 0), f.committedAt("g", "t", 1))
			}
		}
	}
}

func TestConsumeCommitsOnSignals(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		f := startFake(t)
		f.topic("t", 1)
		f.fill("t", 0, "a", "b", "c")
		c := start(f.addr, nil, "consume", "t", "--group", "g", "--from-beginning")
		eventually(t, "the records", func() bool { return c.out.String() == "a\nb\nc\n" })
		c.signals <- signal
		if code := c.wait(t); code != 130 {
			t.Errorf("%v: exit code %d", signal, code)
		}
		if f.committedAt("g", "t", 0) != 3 || f.left != 1 {
			t.Errorf("%v: committed %d, left %d times", signal, f.committedAt("g", "t", 0), f.left)
		}
	}
}

func TestConsumeCommitsBeforeItGivesAPartitionUp(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b", "c", "d")
	f.fill("t", 1, "e")
	f.revokeAfter = 2
	c := start(f.addr, nil, "consume", "t", "--group", "g", "--from-beginning")
	eventually(t, "the revocation", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.revoked) == 1
	})
	if got := f.committedAt("g", "t", 0); got != 2 {
		t.Errorf("committed %d when it was given up", got)
	}
	eventually(t, "the other partition", func() bool { return strings.Contains(c.out.String(), "e\n") })
	c.signals <- syscall.SIGTERM
	c.wait(t)
	if out := c.out.String(); out != "a\nb\ne\n" {
		t.Errorf("printed %q", out)
	}
}

func TestConsumeEndsQuietlyWhenNobodyReads(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.fill("t", 0, "a", "b")
	r, w := io.Pipe()
	r.Close()
	var stderr lockedBuffer
	code := Run(context.Background(), []string{"consume", "t", "--group", "g", "--from-beginning", "--gateway", f.addr}, IO{In: strings.NewReader(""), Out: w, Err: &stderr})
	if code != 0 || stderr.String() != "" {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
	if got := f.committedAt("g", "t", 0); got > 0 {
		t.Errorf("committed %d, though nothing was printed", got)
	}
}

func TestShapes(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a")
	f.cluster = readyCluster()
	for args, want := range map[string]string{
		"topic describe t":   `{"name":"t","id":"MDEyMzQ1Njc4OWFiY2RlZg","internal":false,"configs":[{"name":"retention.ms","value":"1000","source":"topic","default":"604800000","description":"How long."}],"partitions":[{"partition":0,"leader":1,"leader_epoch":4,"replicas":[1],"isr":[1],"elr":[],"log_start_offset":0,"high_watermark":1,"replica_ends":[]},{"partition":1,"leader":-1,"leader_epoch":4,"replicas":[1],"isr":[1],"elr":[],"log_start_offset":0,"high_watermark":0,"replica_ends":[]}]}`,
		"group describe g":   `{"group":"g","state":"stable","epoch":3,"assignor":"uniform","members":[{"member_id":"m1","instance_id":null,"client_id":"c","client_host":"h","member_epoch":3,"partitions":1}],"partitions":[{"topic":"t","partition":0,"committed":5,"end":7,"lag":2,"member":"m1","metadata":""},{"topic":"t","partition":1,"committed":-1,"end":-1,"lag":-1,"member":null,"metadata":""}]}`,
		"topic offsets t":    `{"topic":"t","offsets":[{"partition":0,"offset":1,"timestamp":null,"leader_epoch":-1},{"partition":1,"offset":0,"timestamp":null,"leader_epoch":-1}]}`,
		"cluster wait":       `{"name":"mesh","done":"ready"}`,
		"explain NOT_LEADER": "",
		"cluster describe":   "",
		"version":            "",
		"explain":            "",
	} {
		out, _ := leat(t, 0, f.addr, "", append(strings.Fields(args), "-o", "json")...)
		if want != "" && out != want+"\n" {
			t.Errorf("%s:\n%s", args, out)
		}
		if !json.Valid([]byte(out)) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s is not one line of JSON:\n%s", args, out)
		}
		if text, _ := leat(t, 0, f.addr, "", strings.Fields(args)...); text == "" || strings.HasPrefix(text, "{") {
			t.Errorf("%s for people:\n%s", args, text)
		}
	}
}

func readyCluster() *gatewayv1.DescribeClusterResponse {
	r := &gatewayv1.DescribeClusterResponse{ClusterId: "c", Controller: 1}
	for i, kind := range []string{"broker", "controller", "coordinator", "gateway"} {
		r.Services = append(r.Services, &gatewayv1.ServiceDescription{
			Kind: kind, Process: &typev1.Process{Id: 1, Incarnation: uint64(i)}, Address: "127.0.0.1:1", Registered: true, Leads: kind == "controller",
		})
	}
	return r
}

func TestClusterWait(t *testing.T) {
	for want, spoil := range map[string]func(*gatewayv1.DescribeClusterResponse){
		"no controller leads":            func(r *gatewayv1.DescribeClusterResponse) { r.Controller = 0 },
		"broker-1 is fenced":             func(r *gatewayv1.DescribeClusterResponse) { r.Services[0].Fenced = true },
		"broker-1 is not registered":     func(r *gatewayv1.DescribeClusterResponse) { r.Services[0].Registered = false },
		"no gateway is registered":       func(r *gatewayv1.DescribeClusterResponse) { r.Services = r.Services[:3] },
		"2 partitions have no leader":    func(r *gatewayv1.DescribeClusterResponse) { r.OfflinePartitions = 2 },
		"coordinator-1 is not registere": func(r *gatewayv1.DescribeClusterResponse) { r.Services[2].Registered = false },
	} {
		f := startFake(t)
		f.cluster = readyCluster()
		spoil(f.cluster)
		_, stderr := leat(t, 4, f.addr, "", "cluster", "wait", "--timeout", "300ms")
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr does not say %q: %s", want, stderr)
		}
	}
	_, stderr := leat(t, 4, "127.0.0.1:1", "", "cluster", "wait", "--timeout", "300ms")
	if !strings.Contains(stderr, "UNREACHABLE") {
		t.Error(stderr)
	}
}

func TestGroupCommit(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b")
	leat(t, 0, f.addr, "", "group", "commit", "g", "t:1=7")
	if got := f.committedAt("g", "t", 1); got != 7 {
		t.Errorf("committed %d", got)
	}
	leat(t, 0, f.addr, "", "group", "commit", "g", "--topic", "t", "--to", "latest")
	if a, b := f.committedAt("g", "t", 0), f.committedAt("g", "t", 1); a != 2 || b != 0 {
		t.Errorf("committed %d and %d", a, b)
	}
}
