package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// background is a leat command that runs while the test goes on.
type background struct {
	cmd    *exec.Cmd
	done   chan struct{}
	stdout lockedBuffer
	stderr lockedBuffer
}

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

func startBackground(t *testing.T, m *mesh.Mesh, stdin io.Reader, args ...string) *background {
	t.Helper()
	b := &background{cmd: m.Command(context.Background(), args...), done: make(chan struct{})}
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = stdin, &b.stdout, &b.stderr
	b.run(t, args)
	return b
}

// run starts the command; it is killed when the test ends, if it runs then.
func (b *background) run(t *testing.T, args []string) {
	t.Helper()
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = b.cmd.Wait()
		close(b.done)
	}()
	t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		<-b.done
		if t.Failed() {
			t.Logf("leat %v said:\n%s", args, b.stderr.String())
		}
	})
}

func startConsumer(t *testing.T, m *mesh.Mesh, args ...string) *background {
	t.Helper()
	return startBackground(t, m, nil, append([]string{"consume"}, args...)...)
}

// stop sends SIGINT and returns the exit code.
func (b *background) stop(t *testing.T) int {
	t.Helper()
	_ = b.cmd.Process.Signal(syscall.SIGINT)
	return b.wait(t, 30*time.Second)
}

func (b *background) wait(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-b.done:
	case <-time.After(limit):
		t.Fatalf("leat %v did not end within %v; it said:\n%s", b.cmd.Args[1:], limit, b.stderr.String())
	}
	return b.cmd.ProcessState.ExitCode()
}

// records are the records printed so far, whole lines only.
func (b *background) records(t *testing.T) []record {
	t.Helper()
	out := b.stdout.String()
	if cut := bytes.LastIndexByte([]byte(out), '\n'); cut >= 0 {
		return parseRecords(t, out[:cut+1])
	}
	return nil
}

// lines is how many lines were printed so far. To parse them all again and again would
// take a slow machine from the mesh.
func (b *background) lines() int { return strings.Count(b.stdout.String(), "\n") }

func waitForRecords(t *testing.T, want int, consumers ...*background) {
	t.Helper()
	mesh.Eventually(t, 60*time.Second, fmt.Sprintf("%d records consumed", want), func() (bool, string) {
		seen := map[string]bool{}
		for _, c := range consumers {
			for _, r := range c.records(t) {
				seen[fmt.Sprint(r.Topic, r.Partition, "/", r.Offset)] = true
			}
		}
		return len(seen) >= want, fmt.Sprint(len(seen), " records")
	})
}

// groupDescription is the JSON of `leat group describe`.
type groupDescription struct {
	Group      string `json:"group"`
	State      string `json:"state"`
	Members    []any  `json:"members"`
	Partitions []struct {
		Topic     string `json:"topic"`
		Partition int    `json:"partition"`
		Committed int64  `json:"committed"`
		End       int64  `json:"end"`
		Lag       int64  `json:"lag"`
		Member    string `json:"member"`
	} `json:"partitions"`
}

func describeGroup(t *testing.T, m *mesh.Mesh, group string) (groupDescription, bool) {
	t.Helper()
	r := m.Leat("group", "describe", group, "-o", "json")
	if r.Code != 0 {
		return groupDescription{}, false
	}
	var d groupDescription
	if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil {
		t.Fatalf("%v\n%s", err, r)
	}
	return d, true
}

// waitForOwners waits until so many members own so many partitions between them.
func waitForOwners(t *testing.T, m *mesh.Mesh, group string, members, partitions int) {
	t.Helper()
	what := fmt.Sprintf("%d members of %s own %d partitions", members, group, partitions)
	mesh.Eventually(t, 60*time.Second, what, func() (bool, string) {
		d, ok := describeGroup(t, m, group)
		if !ok {
			return false, "group describe fails"
		}
		owners := map[string]int{}
		owned := 0
		for _, p := range d.Partitions {
			if p.Member != "" {
				owners[p.Member]++
				owned++
			}
		}
		return len(owners) == members && owned == partitions, fmt.Sprintf("%s, owners %v", d.State, owners)
	})
}

// waitForTopic waits until another gateway than the one at which a topic was created
// knows it, too: what is asked there before is told that there is no such topic.
func waitForTopic(t *testing.T, m *mesh.Mesh, gateway, topic string) {
	t.Helper()
	mesh.Eventually(t, 60*time.Second, gateway+" knows "+topic, func() (bool, string) {
		r := m.Leat("--gateway", gateway, "topic", "describe", topic)
		return r.Code == 0, r.Stderr
	})
}

func readFile(t *testing.T, elem ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
