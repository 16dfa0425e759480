package groups

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
)

// workerEnv makes a process of the test's binary a member; it holds a workerConfig.
const workerEnv = "LEAT_GROUPS_WORKER"

type workerConfig struct {
	Bootstrap []string
	Group     string
	Topic     string
	Name      string
	Instance  string
	Session   time.Duration
	Gateway   string // through which it consumes; empty: straight from the brokers
}

// event is what a worker writes, one a line: what it was told or given, and when.
type event struct {
	At     int64  // nanoseconds since 1970, of one machine's clock
	Member string `json:",omitempty"`
	Kind   string
	// Partitions told of, or the one of records, which are Count from Offset on.
	Partitions []int
	Offset     int64 `json:",omitempty"`
	Count      int64 `json:",omitempty"`
	Began      int64 `json:",omitempty"` // of the call that gave them
	Text       string
}

const (
	assigned = "assigned"
	revoked  = "revoked"
	given    = "given"
	failed   = "failed"
	gone     = "gone"
)

// work is a worker's life: it consumes until SIGTERM, and leaves.
func work(text string) int {
	var cfg workerConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := client.New(client.Config{Bootstrap: cfg.Bootstrap, ClientID: cfg.Name, MetadataMaxAge: 2 * time.Second})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer c.Close()
	out := json.NewEncoder(os.Stdout)
	tell := func(e event) {
		e.At = time.Now().UnixNano()
		_ = out.Encode(e) // without a reader there is no test
	}
	for ctx.Err() == nil {
		one := func() error { return consume(ctx, c, &cfg, tell) }
		if cfg.Gateway != "" {
			one = func() error { return streamOn(ctx, &cfg, tell) }
		}
		if err := one(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

func numbers(parts []client.AssignedPartition) []int {
	list := []int{}
	for _, p := range parts {
		list = append(list, int(p.Partition))
	}
	return list
}

// consume is one membership.
func consume(ctx context.Context, c *client.Client, cfg *workerConfig, tell func(event)) error {
	k, err := c.NewConsumer(client.ConsumerConfig{
		Group: cfg.Group, Topics: []string{cfg.Topic}, InstanceID: cfg.Instance, Reset: client.ResetEarliest,
		SessionTimeout: cfg.Session, RebalanceTimeout: time.Minute, AutoCommitInterval: 500 * time.Millisecond,
		OnAssigned: func(p []client.AssignedPartition) { tell(event{Kind: assigned, Partitions: numbers(p)}) },
		OnRevoked:  func(p []client.AssignedPartition) { tell(event{Kind: revoked, Partitions: numbers(p)}) },
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := k.Close(ctx); err != nil { // a member that cannot leave is expelled after its session
			tell(event{Kind: failed, Text: "close: " + rpc.FromError(err).Reason.String()})
		}
		tell(event{Kind: gone})
	}()
	for ctx.Err() == nil {
		began := time.Now().UnixNano()
		short, cancel := context.WithTimeout(ctx, 2*time.Second) // it bounds commits of what is revoked, too
		got, err := k.Poll(short, 0)
		waited := short.Err() != nil
		cancel()
		if typed := rpc.FromError(err); err != nil && ctx.Err() == nil {
			if waited && typed.Reason == typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED {
				continue // nothing came
			}
			tell(event{Kind: failed, Text: typed.Reason.String()})
			if typed.Action == typev1.Action_ACTION_STOP {
				return err
			}
			continue
		}
		for _, e := range runs(got, began) {
			tell(e)
		}
		k.Release()
	}
	return nil
}

// runs are the records of a call, those of a partition that follow each other in one.
func runs(got []client.ConsumerRecord, began int64) []event {
	var list []event
	for i := range got {
		r := &got[i]
		if n := len(list); n > 0 && list[n-1].Partitions[0] == int(r.Partition) && list[n-1].Offset+list[n-1].Count == r.Offset {
			list[n-1].Count++
			continue
		}
		list = append(list, event{Kind: given, Partitions: []int{int(r.Partition)}, Offset: r.Offset, Count: 1, Began: began})
	}
	return list
}

// worker is a member in a process of its own.
type worker struct {
	t      *testing.T
	name   string
	stream bool // through a gateway
	cmd    *exec.Cmd
	done   chan struct{}
	mu     sync.Mutex
	events []event
	heard  func(event) // of each event as it comes; nil: nobody
}

// startWorker starts one; it is killed when the test ends, if it runs then.
func startWorker(t *testing.T, cfg workerConfig, heard func(event)) *worker {
	t.Helper()
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{t: t, name: cfg.Name, stream: cfg.Gateway != "", cmd: exec.Command(self), done: make(chan struct{}), heard: heard}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	w.cmd.Stderr = &said
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.done)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) != nil {
				continue // a line that the end of the process cut
			}
			e.Member = w.name
			w.mu.Lock()
			w.events = append(w.events, e)
			w.mu.Unlock()
			if w.heard != nil {
				w.heard(e)
			}
		}
		_ = w.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		<-w.done
		if t.Failed() && said.Len() > 0 {
			t.Logf("%s said: %s", w.name, said.String())
		}
	})
	return w
}

func (w *worker) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Errorf("signal %v to %s: %v", s, w.name, err)
	}
}

// kill ends it at once.
func (w *worker) kill() {
	w.t.Helper()
	w.signal(syscall.SIGKILL)
	<-w.done
}

// leave ends it in order.
func (w *worker) leave() {
	w.t.Helper()
	w.signal(syscall.SIGTERM)
	select {
	case <-w.done:
		w.mu.Lock()
		defer w.mu.Unlock()
		code := w.cmd.ProcessState.ExitCode()
		if early := code == -1 && len(w.events) == 0; code != 0 && !early { // it had not begun to wait for the signal
			w.t.Errorf("%s exited with %d", w.name, code)
		}
	case <-time.After(limit):
		w.t.Errorf("%s does not leave", w.name)
	}
}

// told is how many events of a kind it has had.
func (w *worker) told(kind string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// waitTold waits until a worker has had an event of a kind.
func waitTold(t *testing.T, w *worker, kind string) {
	t.Helper()
	mesh.Eventually(t, limit, w.name+" is "+kind, func() (bool, string) { return w.told(kind) > 0, "" })
}
