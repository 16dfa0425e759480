package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// curlStream is a Consume stream of a grpcurl process: JSON in, JSON out.
type curlStream struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}

	mu     sync.Mutex
	got    []curlAnswer
	stderr bytes.Buffer
}

// curlAnswer is a message of the gateway, as far as this test looks at it.
type curlAnswer struct {
	Opened *struct {
		MemberID    string
		ResumeToken string
		Limits      struct{ SessionTimeout, RebalanceTimeout string }
	}
	Assigned *struct {
		Partition   int
		StartOffset int64 `json:",string"`
	}
	Records *struct {
		Partition int
		Records   []struct {
			Offset int64 `json:",string"`
			Value  []byte
		}
		SeekID int64 `json:",string"`
		Cost   int64 `json:",string"`
	}
	CommitResult *struct {
		Sequence  int64 `json:",string"`
		Committed []struct{ Partition int }
		Error     json.RawMessage
	}
	Revoke *struct {
		Partition     int
		Within, Cause string
	}
	Drain  *struct{ ResumeToken, Within string }
	Pong   *struct{}
	Fenced *struct {
		Error struct{ Reason, Action string }
	}
	Closed *struct{}
}

// consumeByCurl opens a stream with the fields of an open, as JSON.
func consumeByCurl(t *testing.T, name, gateway, open string) *curlStream {
	t.Helper()
	s := &curlStream{t: t, name: name, done: make(chan struct{})}
	s.cmd = exec.Command(mesh.Tool(t, "grpcurl"), "-plaintext", "-max-time", "300", "-d", "@", gateway, "leat.gateway.v1.ConsumerService/Consume")
	s.cmd.Stderr = &s.stderr
	stdout, err := s.cmd.StdoutPipe()
	if err == nil {
		s.stdin, err = s.cmd.StdinPipe()
	}
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		in := json.NewDecoder(stdout)
		for {
			var a curlAnswer
			if in.Decode(&a) != nil { // the output has ended
				break
			}
			s.mu.Lock()
			s.got = append(s.got, a)
			s.mu.Unlock()
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
		if t.Failed() {
			t.Logf("%s said: %s", s.name, s.stderr.String())
		}
	})
	s.send(`{"open":` + open + `}`)
	return s
}

func (s *curlStream) send(message string) {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, message+"\n"); err != nil {
		s.t.Fatalf("%s: %s: %v", s.name, message, err)
	}
}

// await waits until the messages so far are what is wanted.
func (s *curlStream) await(what string, wanted func(got []curlAnswer) bool) {
	s.t.Helper()
	mesh.Eventually(s.t, time.Minute, s.name+": "+what, func() (bool, string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		text, err := json.Marshal(s.got)
		return wanted(s.got), fmt.Sprint(string(text), err)
	})
}

// find waits for the first message that is wanted.
func (s *curlStream) find(what string, wanted func(a curlAnswer) bool) (found curlAnswer) {
	s.t.Helper()
	s.await(what, func(got []curlAnswer) bool {
		for _, a := range got {
			if wanted(a) {
				found = a
				return true
			}
		}
		return false
	})
	return found
}

// ended ends the input, without which grpcurl does not look at the end of a stream,
// waits for the end of the process and returns its exit code.
func (s *curlStream) ended() int {
	s.t.Helper()
	_ = s.stdin.Close()
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		s.t.Fatalf("%s goes on", s.name)
	}
	return s.cmd.ProcessState.ExitCode()
}

// holds are the partitions assigned so far and where each started.
func holds(got []curlAnswer) map[int]int64 {
	starts := map[int]int64{}
	for _, a := range got {
		if a.Assigned != nil {
			starts[a.Assigned.Partition] = a.Assigned.StartOffset
		}
	}
	return starts
}

// records counts the records so far that follow a seek, and their cost.
func records(got []curlAnswer, seek int64) (n int, cost int64) {
	for _, a := range got {
		if a.Records != nil && a.Records.SeekID == seek {
			n += len(a.Records.Records)
			cost += a.Records.Cost
		}
	}
	return n, cost
}

// TestGrpcurlInAGroup is a member of a group by plain JSON alone: it starts by age,
// reads under credit, commits, seeks, gives a partition up when it is asked to, goes on
// at another gateway when its own stops, and leaves.
func TestGrpcurlInAGroup(t *testing.T) {
	m := mesh.Start(t, mesh.Options{Processes: true, Args: []string{"--brokers", "1", "--gateways", "2"}})
	other := m.Addr("gateway-2")
	m.MustLeat("topic", "create", "shared", "--partitions", "2")
	waitForTopic(t, m, other, "shared")
	send := func(at string, partition int, value string, age time.Duration) {
		t.Helper()
		record := fmt.Sprintf(`{"topic":"shared","records":[{"partition":%d,"value":%q,"timestamp_ms":%d}]}`, partition, value, time.Now().Add(-age).UnixMilli())
		if out, err := exec.Command(mesh.Tool(t, "grpcurl"), "-plaintext", "-max-time", "60", "-d", record, at, "leat.gateway.v1.ProducerService/Send").CombinedOutput(); err != nil {
			t.Fatalf("send: %v\n%s", err, out)
		}
	}
	for range 3 {
		send(m.Gateway(), 0, "b2xk", time.Hour)
	}
	for n := range 4 {
		send(m.Gateway(), n%2, "bmV3", 0)
	}
	const joins = `"group":"shared","topics":["shared"],"session_timeout":"20s","rebalance_timeout":"60s"`
	first := consumeByCurl(t, "the first", m.Gateway(), `{`+joins+`,"instance_id":"one","start_at":"START_AT_BY_DURATION","start_by_duration":"600s","credit_bytes":1}`)
	opened := first.find("opened", func(a curlAnswer) bool { return a.Opened != nil }).Opened
	if l := opened.Limits; l.SessionTimeout != "20s" || l.RebalanceTimeout != "60s" || opened.MemberID == "" || opened.ResumeToken == "" {
		t.Errorf("opened: %+v", opened)
	}
	readUnderCredit(first)

	first.send(`{"commit":{"sequence":1,"positions":[{"topic":"shared","partition":0,"next_offset":5},{"topic":"shared","partition":1,"next_offset":2}]}}`)
	result := first.find("the commit's result", func(a curlAnswer) bool { return a.CommitResult != nil }).CommitResult
	if result.Sequence != 1 || len(result.Committed) != 2 || result.Error != nil {
		t.Errorf("the commit: %+v", result)
	}
	first.send(`{"seek":{"seek_id":1,"topic":"shared","partition":0,"offset":1}}`)
	first.await("what follows the seek", func(got []curlAnswer) bool { n, _ := records(got, 1); return n == 4 })

	second := consumeByCurl(t, "the second", other, `{`+joins+`,"instance_id":"two"}`)
	revoked := first.find("a revocation", func(a curlAnswer) bool { return a.Revoke != nil }).Revoke
	if within, err := time.ParseDuration(revoked.Within); err != nil || within <= 0 || within > time.Minute || revoked.Cause == "" {
		t.Errorf("the revocation: %+v", revoked)
	}
	names := fmt.Sprintf(`{"partitions":[{"topic":"shared","partition":%d}]}`, revoked.Partition)
	first.send(`{"revoking":` + names + `} {"revoked":` + names + `}`)
	committed := []int64{5, 2}
	got := second.find("the partition", func(a curlAnswer) bool { return a.Assigned != nil }).Assigned
	if got.Partition != revoked.Partition || got.StartOffset != committed[got.Partition] {
		t.Errorf("the second was given %+v, after a commit of %v", got, committed)
	}

	kept := 1 - revoked.Partition
	third := resumeElsewhere(t, m, first, other, kept, committed[kept])
	send(other, kept, "bmV4dA==", 0)
	third.await("the next record", func(got []curlAnswer) bool { n, _ := records(got, 0); return n == 1 })
	newer := consumeByCurl(t, "another second", other, `{`+joins+`,"instance_id":"two"}`)
	newer.find("the partition of its instance", func(a curlAnswer) bool { return a.Assigned != nil && a.Assigned.Partition == revoked.Partition })
	fenced := second.find("fenced", func(a curlAnswer) bool { return a.Fenced != nil }).Fenced.Error
	if code := second.ended(); fenced.Reason != "ERROR_REASON_INSTANCE_FENCED" || fenced.Action != "ACTION_STOP" || code == 0 {
		t.Errorf("the older of the same instance: %+v, exit code %d", fenced, code)
	}
	for _, s := range []*curlStream{third, newer} {
		s.send(`{"leave":{}}`)
		s.find("closed", func(a curlAnswer) bool { return a.Closed != nil })
		if code := s.ended(); code != 0 {
			t.Errorf("%s left with exit code %d: %s", s.name, code, s.stderr.String())
		}
	}
}

// readUnderCredit takes the four young records, of which its credit lets only one
// through at first.
func readUnderCredit(s *curlStream) {
	s.t.Helper()
	s.await("both partitions and a record", func(got []curlAnswer) bool {
		n, _ := records(got, 0)
		return len(holds(got)) == 2 && n > 0
	})
	s.send(`{"ping":{"ping_id":1}}`)
	var cost int64
	s.await("a pong behind one record", func(got []curlAnswer) bool {
		n, spent := records(got, 0)
		if starts := holds(got); n != 1 || starts[0] != 3 || starts[1] != 0 {
			s.t.Fatalf("with a credit of 1 byte %d records came, from %v", n, starts)
		}
		cost = spent
		// Not the last message of all: the gateway may tell how things are at any time.
		return slices.ContainsFunc(got, func(a curlAnswer) bool { return a.Pong != nil })
	})
	s.send(fmt.Sprintf(`{"credit":{"bytes":%d}}`, cost+1<<20))
	s.await("all young records", func(got []curlAnswer) bool { n, _ := records(got, 0); return n == 4 })
}

// resumeElsewhere stops the gateway of a member that holds one partition, and resumes
// the membership at another with what drain told.
func resumeElsewhere(t *testing.T, m *mesh.Mesh, s *curlStream, other string, partition int, next int64) *curlStream {
	t.Helper()
	startBackground(t, m, nil, "dev", "stop", "gateway-1", "--data", m.Data)
	drain := s.find("drain", func(a curlAnswer) bool { return a.Drain != nil }).Drain
	if within, err := time.ParseDuration(drain.Within); err != nil || within <= 0 || drain.ResumeToken == "" {
		t.Fatalf("drain: %+v", drain)
	}
	again := consumeByCurl(t, "the first, resumed", other, fmt.Sprintf(
		`{"group":"shared","topics":["shared"],"instance_id":"one","session_timeout":"20s","rebalance_timeout":"60s","resume_token":%q,"positions":[{"topic":"shared","partition":%d,"next_offset":%d}]}`,
		drain.ResumeToken, partition, next))
	member := s.find("opened", func(a curlAnswer) bool { return a.Opened != nil }).Opened.MemberID
	if opened := again.find("opened", func(a curlAnswer) bool { return a.Opened != nil }).Opened; opened.MemberID != member {
		t.Errorf("member %q was resumed as %q", member, opened.MemberID)
	}
	if got := again.find("its partition", func(a curlAnswer) bool { return a.Assigned != nil }).Assigned; got.Partition != partition || got.StartOffset != next {
		t.Errorf("resumed with %+v, want partition %d at %d", got, partition, next)
	}
	s.ended() // its membership goes on elsewhere, so that this is no leave
	return again
}
