package cli

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	case <-time.After(2 * time.Minute):
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
	deadline := time.NewTimer(2 * time.Minute)
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
		{"topic create a --partitions many", `--partitions is "many"; it must be a whole number`},
		{"topic create a --partitions 99999999999", "up to 2147483647"},
		{"consume a --follow=perhaps", "true or false"},
		{"cluster wait --timeout soon", "a time span such as"},
		{"completion frob", `no command "frob"`},
		{"completion", "Usage"},
		{"help frob", `no command "frob"`},
		{"help topic frob", `no command "frob"`},
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
		{"consume --topic-pattern a.*", "--topic-pattern needs --group"},
		{"consume --topic-pattern ( --group g", "is not a regular expression"},
		{"consume --topic-pattern= --group g", "--topic-pattern is empty"},
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
		{"cluster wait --brokers 0", "must be at least 1"},
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
		if c.Example == "" || c.Short == "" {
			t.Errorf("%s has no example or no description", c.CommandPath())
		}
	}
}
