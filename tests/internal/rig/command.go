package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// Command prepares a leat command against the first gateway.
func (r *Rig) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, mesh.Bin(r.t, "leat"), args...)
	cmd.Env = append(os.Environ(), "LEAT_GATEWAY="+r.Addr("gateway-1"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // see spawner.process
	return cmd
}

// Leat runs a leat command to its end, three minutes at the most.
func (r *Rig) Leat(args ...string) mesh.Result {
	r.t.Helper()
	return r.LeatInput("", args...)
}

// LeatInput is Leat with an input.
func (r *Rig) LeatInput(stdin string, args ...string) mesh.Result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := r.Command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("leat %s: %v", strings.Join(args, " "), err)
	}
	return mesh.Result{Args: args, Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// MustLeat runs a leat command that has to succeed, and returns its stdout.
func (r *Rig) MustLeat(args ...string) string {
	r.t.Helper()
	res := r.Leat(args...)
	if res.Code != 0 {
		r.t.Fatal(res)
	}
	return res.Stdout
}

// CreateTopic runs `leat topic create` with these arguments, which has to succeed, again
// where brokers are missing for the replicas: leases are short here, and who stood still
// for longer is fenced for a moment.
func (r *Rig) CreateTopic(args ...string) {
	r.t.Helper()
	mesh.Eventually(r.t, time.Minute, "there are brokers enough for a topic", func() (bool, string) {
		res := r.Leat(append([]string{"topic", "create"}, args...)...)
		if res.Code != 0 && !strings.Contains(res.Stderr, "INVALID_REPLICATION_FACTOR") {
			r.t.Fatal(res)
		}
		return res.Code == 0, res.String()
	})
}

// Background is a leat command that runs while the test goes on.
type Background struct {
	r      *Rig
	args   []string
	cmd    *exec.Cmd
	done   chan struct{}
	mu     sync.Mutex
	stderr bytes.Buffer
}

// Write takes what the command writes to stderr.
func (b *Background) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stderr.Write(p)
}

// Said is what the command has written to stderr.
func (b *Background) Said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stderr.String()
}

// Run starts a leat command; it is killed when the test ends, if it runs then.
func (r *Rig) Run(stdin io.Reader, stdout io.Writer, args ...string) *Background {
	r.t.Helper()
	b := &Background{r: r, args: args, cmd: r.Command(context.Background(), args...), done: make(chan struct{})}
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = stdin, stdout, b
	b.cmd.WaitDelay = 5 * time.Second // for an input that does not end
	if err := b.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		_ = b.cmd.Wait()
		close(b.done)
	}()
	r.t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		<-b.done
		if r.t.Failed() {
			r.t.Logf("leat %v said:\n%s", args, b.Said())
		}
	})
	return b
}

// Running reports whether the command has not ended.
func (b *Background) Running() bool {
	select {
	case <-b.done:
		return false
	default:
		return true
	}
}

// Interrupt sends SIGINT and waits for the exit code.
func (b *Background) Interrupt() int {
	b.r.t.Helper()
	_ = b.cmd.Process.Signal(syscall.SIGINT)
	return b.Wait(30 * time.Second)
}

// Wait waits for the exit code.
func (b *Background) Wait(limit time.Duration) int {
	b.r.t.Helper()
	select {
	case <-b.done:
	case <-time.After(limit):
		b.r.t.Fatalf("leat %v did not end within %v; it said:\n%s", b.args, limit, b.Said())
	}
	return b.cmd.ProcessState.ExitCode()
}

// Partition is one of `leat topic describe -o json`.
type Partition struct {
	Partition     int   `json:"partition"`
	Leader        int   `json:"leader"`
	LeaderEpoch   int   `json:"leader_epoch"`
	Replicas      []int `json:"replicas"`
	ISR           []int `json:"isr"`
	ELR           []int `json:"elr"`
	LogStart      int64 `json:"log_start_offset"`
	HighWatermark int64 `json:"high_watermark"`
	ReplicaEnds   []struct {
		Broker     int   `json:"broker"`
		End        int64 `json:"end"`
		DurableEnd int64 `json:"durable_end"`
	} `json:"replica_ends"`
}

// Cluster is `leat cluster describe -o json`.
type Cluster struct {
	Controller int `json:"controller"`
	Services   []struct {
		Name        string `json:"name"`
		Incarnation string `json:"incarnation"`
		Address     string `json:"address"`
		Registered  bool   `json:"registered"`
		Fenced      bool   `json:"fenced"`
		Draining    bool   `json:"draining"`
		Leads       bool   `json:"leads"`
	} `json:"services"`
	UnderReplicated int `json:"under_replicated_partitions"`
	Offline         int `json:"offline_partitions"`
}

// Partitions describes a topic; an error if the mesh does not answer now.
func (r *Rig) Partitions(topic string) ([]Partition, error) {
	r.t.Helper()
	var d struct {
		Partitions []Partition `json:"partitions"`
	}
	return d.Partitions, r.ask(&d, "topic", "describe", topic, "-o", "json", "--request-timeout", "10s")
}

// Cluster describes the mesh; an error if it does not answer now.
func (r *Rig) Cluster() (Cluster, error) {
	r.t.Helper()
	var c Cluster
	return c, r.ask(&c, "cluster", "describe", "-o", "json", "--request-timeout", "10s")
}

func (r *Rig) ask(answer any, args ...string) error {
	r.t.Helper()
	res := r.Leat(args...)
	if res.Code != 0 && res.Stdout == "" {
		return errors.New(res.String())
	}
	return json.Unmarshal([]byte(res.Stdout), answer)
}

// Leader waits until a partition has a leader that runs, and names it.
func (r *Rig) Leader(topic string, partition int) string {
	r.t.Helper()
	return r.LeaderOtherThan(topic, partition, "")
}

// LeaderOtherThan is Leader, waiting until it is another than the one named.
func (r *Rig) LeaderOtherThan(topic string, partition int, old string) string {
	r.t.Helper()
	leader := ""
	mesh.Eventually(r.t, time.Minute, fmt.Sprintf("a leader of %s/%d that is not %q", topic, partition, old), func() (bool, string) {
		all, err := r.Partitions(topic)
		if err != nil || partition >= len(all) {
			return false, fmt.Sprint(err)
		}
		leader = brokerName(all[partition].Leader)
		return leader != "" && leader != old && r.Running(leader), fmt.Sprintf("%+v", all[partition])
	})
	return leader
}

func brokerName(id int) string {
	if id < 1 {
		return ""
	}
	return fmt.Sprintf("broker-%d", id)
}

// ControllerLeader waits until a controller that runs leads, and names it.
func (r *Rig) ControllerLeader() string {
	r.t.Helper()
	leader := ""
	mesh.Eventually(r.t, time.Minute, "a controller leads", func() (bool, string) {
		c, err := r.Cluster()
		if err != nil || c.Controller == 0 {
			return false, fmt.Sprintf("%+v, %v", c, err)
		}
		leader = fmt.Sprintf("controller-%d", c.Controller)
		return r.Running(leader), leader
	})
	return leader
}

// Followers waits until a partition has a leader that runs, and lists the other brokers
// that hold it.
func (r *Rig) Followers(topic string, partition int) []string {
	r.t.Helper()
	var names []string
	mesh.Eventually(r.t, time.Minute, fmt.Sprintf("the followers of %s/%d", topic, partition), func() (bool, string) {
		all, err := r.Partitions(topic)
		if err != nil || partition >= len(all) {
			return false, fmt.Sprint(err)
		}
		leader := brokerName(all[partition].Leader)
		names = nil
		for _, id := range all[partition].Replicas {
			if name := brokerName(id); name != leader {
				names = append(names, name)
			}
		}
		return leader != "" && r.Running(leader), fmt.Sprintf("%+v", all[partition])
	})
	return names
}

// WaitInSync waits until every replica of a topic is in the ISR.
func (r *Rig) WaitInSync(topic string, limit time.Duration) {
	r.t.Helper()
	mesh.Eventually(r.t, limit, "all replicas of "+topic+" in sync", func() (bool, string) {
		all, err := r.Partitions(topic)
		if err != nil || len(all) == 0 {
			return false, fmt.Sprint(err)
		}
		for _, p := range all {
			if len(p.ISR) < len(p.Replicas) || p.Leader < 1 {
				return false, fmt.Sprintf("%+v", p)
			}
		}
		return true, ""
	})
}

// WaitISR waits until the ISR of a partition is just these brokers.
func (r *Rig) WaitISR(topic string, partition int, limit time.Duration, names ...string) {
	r.t.Helper()
	slices.Sort(names)
	mesh.Eventually(r.t, limit, fmt.Sprintf("the ISR of %s/%d is %v", topic, partition, names), func() (bool, string) {
		all, err := r.Partitions(topic)
		if err != nil || partition >= len(all) {
			return false, fmt.Sprint(err)
		}
		var isr []string
		for _, id := range all[partition].ISR {
			isr = append(isr, brokerName(id))
		}
		slices.Sort(isr)
		return slices.Equal(isr, names), fmt.Sprintf("%+v", all[partition])
	})
}

func httpText(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	response, err := opsClient.Do(req)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	if err != nil {
		return ""
	}
	return string(text)
}
