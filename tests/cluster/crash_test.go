package cluster

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/hdfs"
	"github.com/leat-io/leat/tests/internal/mesh"
)

// TestKilledMeshKeepsEverything kills every process at once and starts again on
// the same folder: acknowledged records, topics and committed offsets are there.
func TestKilledMeshKeepsEverything(t *testing.T) {
	for name, processes := range map[string]bool{"one process": false, "a process each": true} {
		t.Run(name, func(t *testing.T) {
			m := mesh.Start(t, mesh.Options{Processes: processes})
			m.MustLeat("topic", "create", "kept", "--partitions", "3", "--config", "segment.bytes=1048576")
			lines := hdfs.Lines(1000, 4)
			acksFile := filepath.Join(t.TempDir(), "acks")
			m.MustLeatInput(hdfs.Text(lines), "produce", "kept", "--key-regex", "blk_-?[0-9]+", "--acks-out", acksFile)
			before := m.MustLeat("consume", "kept", "--group", "g", "--from-beginning", "--max-messages", "600", "-o", "json")

			// Records are on their way when the power goes.
			unending, w := io.Pipe()
			late := filepath.Join(t.TempDir(), "late")
			producer := startBackground(t, m, unending, "produce", "kept", "--acks-out", late)
			stopFeeding := feed(w, "late")
			mesh.Eventually(t, 30*time.Second, "late acknowledgements", func() (bool, string) {
				text, _ := os.ReadFile(late)
				n := strings.Count(string(text), "\n")
				return n >= 50, fmt.Sprint(n)
			})
			m.KillAll()
			_ = producer.cmd.Process.Kill()
			stopFeeding()
			m.Up()

			topics := m.MustLeat("topic", "describe", "kept", "-o", "json")
			if !strings.Contains(topics, "1048576") {
				t.Errorf("the topic has lost its config: %s", topics)
			}
			all := parseRecords(t, m.MustLeat("consume", "kept", "--from-beginning", "--follow=false", "-o", "json"))
			checkAcked(t, all, parseAcks(t, readFile(t, acksFile)), func(n int) string { return lines[n-1] })
			checkAcked(t, all, parseAcks(t, readFile(t, late)), func(n int) string { return fmt.Sprintf("late-%d", n) })

			// From the beginning where nothing was committed: the first consumer may have had
			// its 600 records before it was given the third partition. And up to a number: a
			// member that does not follow ends once its own partitions are read, though the
			// others may still be on their way to it.
			left := len(all) - len(parseRecords(t, before))
			after := m.MustLeat("consume", "kept", "--group", "g", "--from-beginning", "--max-messages", strconv.Itoa(left), "-o", "json")
			if both := overlap(parseRecords(t, before), parseRecords(t, after)); len(both) > 0 {
				t.Errorf("the group lost its committed offsets: %d records come again", len(both))
			}
			if more := m.MustLeat("consume", "kept", "--group", "g", "--from-beginning", "--follow=false", "-o", "json"); more != "" {
				t.Errorf("the group has read all %d records over both lives of the mesh, and gets %d more", len(all), len(parseRecords(t, more)))
			}
		})
	}
}

// feed writes lines prefix-1, prefix-2, … until it is stopped.
func feed(w *io.PipeWriter, prefix string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer w.Close()
		for i := 1; ; i++ {
			select {
			case <-quit:
				return
			default:
			}
			if _, err := fmt.Fprintf(w, "%s-%d\n", prefix, i); err != nil {
				return
			}
		}
	}()
	return func() {
		close(quit)
		w.Close()
		<-done
	}
}

// checkAcked demands that each acknowledged record is read back at its offset.
func checkAcked(t *testing.T, all []record, acks []ack, line func(number int) string) {
	t.Helper()
	at := map[string]string{}
	for _, r := range all {
		at[fmt.Sprint(r.Partition, "/", r.Offset)] = r.text()
	}
	acked, lost := 0, 0
	for _, a := range acks {
		if a.Offset == nil {
			continue
		}
		acked++
		place := fmt.Sprint(*a.Partition, "/", *a.Offset)
		if at[place] != line(a.Number) {
			lost++
			if lost <= 3 {
				t.Errorf("acknowledged record %d is not at %s: found %q, want %q", a.Number, place, at[place], line(a.Number))
			}
		}
	}
	if acked == 0 {
		t.Error("no record was acknowledged: the test shows nothing")
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged records are lost or moved", lost, acked)
	}
}

// TestEachServiceRestartedUnderLoad kills and restarts every process in turn
// while a producer and a consumer run: both carry on by themselves.
func TestEachServiceRestartedUnderLoad(t *testing.T) {
	m := mesh.Start(t, mesh.Options{Processes: true})
	m.MustLeat("topic", "create", "load", "--partitions", "6")

	stdin, w := io.Pipe()
	acksFile := filepath.Join(t.TempDir(), "acks")
	producer := startBackground(t, m, stdin, "produce", "load", "--partitioner", "round-robin", "--rate", "500", "--acks-out", acksFile)
	stopFeeding := feed(w, "load")
	consumer := startConsumer(t, m, "load", "--group", "g", "--from-beginning", "-o", "json")
	stalls := watchStalls(t, acksFile)

	progress := func(what string) {
		t.Helper()
		produced, consumed := countLines(acksFile), consumer.lines()
		mesh.Eventually(t, 60*time.Second, "progress after "+what, func() (bool, string) {
			p, c := countLines(acksFile), consumer.lines()
			return p > produced+500 && c > consumed+500, fmt.Sprintf("%d acknowledged (%d before), %d consumed (%d before)", p, produced, c, consumed)
		})
	}
	progress("the start")
	for _, service := range []string{"etcd-1", "controller-1", "coordinator-1", "broker-1", "broker-2", "broker-3", "gateway-1"} {
		m.Kill(service)
		m.Restart(service)
		m.MustLeat("cluster", "wait", "--timeout", "60s")
		progress("the restart of " + service)
	}
	stopFeeding()
	producer.wait(t, 3*time.Minute)
	t.Logf("the longest time without an acknowledgement: %v", stalls())

	acks := parseAcks(t, readFile(t, acksFile))
	all := parseRecords(t, m.MustLeat("consume", "load", "--from-beginning", "--follow=false", "-o", "json"))
	checkAcked(t, all, acks, func(n int) string { return fmt.Sprintf("load-%d", n) })
	checkDuplicates(t, all, acks)
	waitForRecords(t, len(all), consumer)
	consumer.stop(t)
}

func countLines(path string) int {
	text, _ := os.ReadFile(path)
	return strings.Count(string(text), "\n")
}

// watchStalls measures the longest time in which a file did not grow.
func watchStalls(t *testing.T, path string) (longest func() time.Duration) {
	t.Helper()
	quit, result := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		var max time.Duration
		var size int64
		since := time.Now()
		for {
			select {
			case <-quit:
				result <- max
				return
			case <-tick.C:
			}
			info, err := os.Stat(path)
			if err != nil || info.Size() == 0 {
				since = time.Now()
				continue
			}
			if info.Size() != size {
				size, since = info.Size(), time.Now()
			} else if d := time.Since(since); d > max {
				max = d
			}
		}
	}()
	return func() time.Duration {
		close(quit)
		return <-result
	}
}

// checkDuplicates allows a record to be there twice only if the producer was
// told that an attempt had ended unknown.
func checkDuplicates(t *testing.T, all []record, acks []ack) {
	t.Helper()
	uncertain := map[string]bool{}
	for _, a := range acks {
		if a.Unknown != nil || a.MaybeDuplicated {
			uncertain[fmt.Sprintf("load-%d", a.Number)] = true
		}
	}
	times := map[string]int{}
	twice := 0
	for _, r := range all {
		times[r.text()]++
		if times[r.text()] == 2 {
			twice++
			if !uncertain[r.text()] {
				t.Errorf("%s is there twice, and its outcome was never unknown", r.text())
			}
		}
	}
	t.Logf("%d records, %d of uncertain outcome, %d there twice", len(all), len(uncertain), twice)
}

// TestSecondDevOnTheSameFolder is refused with a clear error.
func TestSecondDevOnTheSameFolder(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	r := m.Leat("dev", "--data", m.Data, "--port-base", fmt.Sprint(m.PortBase+2000))
	if r.Code != 1 || !strings.Contains(r.Stderr, m.Data) {
		t.Errorf("want exit code 1 and an error that names the folder; %s", r)
	}
	r = m.Leat("dev", "--data", t.TempDir(), "--port-base", fmt.Sprint(m.PortBase))
	if r.Code != 1 || !strings.Contains(r.Stderr, fmt.Sprint(m.PortBase)) || !strings.Contains(r.Stderr, "--port-base") {
		t.Errorf("want exit code 1 and an error that names port and flag; %s", r)
	}
}
