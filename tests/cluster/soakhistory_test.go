package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// history is what producers were told and consumers were given.
type history struct {
	mu     sync.Mutex
	acks   map[string][]ack
	values map[place]string  // what any reader saw there
	group  map[place]bool    // what any member of the group was given
	free   map[int]int       // how much the reader without a group got of each partition
	repeat int               // records a member was given that the group had been given before
	moved  map[int]time.Time // when the group last got something of a partition
	gap    time.Duration     // the longest time in which it got nothing of one
}

type place struct {
	partition int
	offset    int64
}

func newHistory() *history {
	return &history{
		acks: map[string][]ack{}, values: map[place]string{}, group: map[place]bool{},
		free: map[int]int{}, moved: map[int]time.Time{},
	}
}

func (h *history) ack(t *testing.T, producer, line string) {
	var a ack
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		t.Errorf("producer %s wrote %q: %v", producer, line, err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acks[producer] = append(h.acks[producer], a)
}

// historyReader is one consumer process.
type historyReader struct {
	h     *history
	group bool
	next  map[int]int64
}

func (h *history) reader(group bool) *historyReader {
	return &historyReader{h: h, group: group, next: map[int]int64{}}
}

func (r *historyReader) record(t *testing.T, line string) {
	var rec record
	if err := json.Unmarshal([]byte(line), &rec); err != nil {
		t.Errorf("a consumer wrote %q: %v", line, err)
		return
	}
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	at := place{rec.Partition, rec.Offset}
	if old, seen := r.h.values[at]; seen && old != rec.text() {
		t.Errorf("%v held %q and later %q", at, old, rec.text())
	}
	r.h.values[at] = rec.text()
	if r.group {
		if r.h.group[at] {
			r.h.repeat++
		}
		if now := time.Now(); !r.h.group[at] {
			if last, some := r.h.moved[rec.Partition]; some {
				r.h.gap = max(r.h.gap, now.Sub(last))
			}
			r.h.moved[rec.Partition] = now
		}
		r.h.group[at] = true
		return
	}
	r.h.free[rec.Partition]++
	if want := r.next[rec.Partition]; rec.Offset != want {
		t.Errorf("the reader without a group got %v, want offset %d", at, want)
	}
	r.next[rec.Partition] = rec.Offset + 1
}

// counts says how far everybody is.
func (h *history) counts() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := map[string]int{"group": len(h.group)}
	for p := range soakPartitions {
		n[fmt.Sprint("the free reader in partition ", p)] = h.free[p]
	}
	for name, acks := range h.acks {
		n["acks of "+name] = len(acks)
	}
	return n
}

// groupGap is told, not judged: the partitions of a member that was killed wait for
// its session to end, and each new coordinator gives it another session.
func (h *history) groupGap() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gap
}

func (h *history) missing(all []record) []place {
	h.mu.Lock()
	defer h.mu.Unlock()
	var missing []place
	for _, r := range all {
		if at := (place{r.Partition, r.Offset}); !h.group[at] {
			missing = append(missing, at)
		}
	}
	return missing
}

// checkLog compares the log, read twice, with what was acknowledged and read.
func (h *history) checkLog(t *testing.T, all, second []record) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	at := map[place]string{}
	ends := map[int]int64{}
	for _, r := range all {
		if r.Offset != ends[r.Partition] {
			t.Errorf("partition %d goes on with offset %d after %d", r.Partition, r.Offset, ends[r.Partition]-1)
		}
		ends[r.Partition] = r.Offset + 1
		at[place{r.Partition, r.Offset}] = r.text()
	}
	if len(second) != len(all) {
		t.Errorf("a second read gave %d records, the first %d", len(second), len(all))
	}
	for _, r := range second {
		if p := (place{r.Partition, r.Offset}); at[p] != r.text() {
			t.Errorf("%v held %q and on a second read %q", p, at[p], r.text())
		}
	}
	for p, value := range h.values {
		if at[p] != value {
			t.Errorf("a consumer was given %q at %v, where %q is", value, p, at[p])
		}
	}
	uncertain := h.checkAcks(t, at)
	checkOrder(t, all, uncertain)
	t.Logf("%d records in the log, %d given to the group more than once", len(all), h.repeat)
}

// checkAcks demands one answer for each record and each acknowledged record in
// its place; it returns the values whose outcome was at one time unknown.
func (h *history) checkAcks(t *testing.T, at map[place]string) (uncertain map[string]bool) {
	t.Helper()
	uncertain = map[string]bool{}
	for name, acks := range h.acks {
		answered := map[int]bool{}
		good, bad, unsure := 0, map[string]int{}, 0
		for _, a := range acks {
			value := fmt.Sprintf("%s-%d", name, a.Number)
			if answered[a.Number] {
				t.Errorf("%s has two answers", value)
			}
			answered[a.Number] = true
			switch {
			case a.Error != nil:
				bad["error "+*a.Error]++
			case a.Unknown != nil:
				bad["unknown "+*a.Unknown]++
				uncertain[value] = true
			default:
				good++
				if got := at[place{*a.Partition, *a.Offset}]; got != value {
					t.Errorf("acknowledged %s is not at %d/%d: %q is", value, *a.Partition, *a.Offset, got)
				}
			}
			if a.MaybeDuplicated {
				unsure++
				uncertain[value] = true
			}
		}
		t.Logf("producer %s: %d acknowledged (%d maybe twice), others %v", name, good, unsure, bad)
		if len(bad) > 0 {
			t.Errorf("producer %s: records failed within the delivery timeout: %v", name, bad)
		}
	}
	return uncertain
}

// checkOrder demands that a producer's records are first there in the order of
// sending, and twice only if their outcome was unknown.
func checkOrder(t *testing.T, all []record, uncertain map[string]bool) {
	t.Helper()
	times := map[string]int{}
	last := map[string]int{}
	twice := 0
	for _, r := range all {
		value := r.text()
		times[value]++
		if times[value] > 1 {
			twice++
			if !uncertain[value] {
				t.Errorf("%s is there %d times, and its outcome was never unknown", value, times[value])
			}
			continue
		}
		name, number, _ := strings.Cut(value, "-")
		n := 0
		fmt.Sscan(number, &n)
		lane := fmt.Sprint(name, " in partition ", r.Partition)
		if n <= last[lane] {
			t.Errorf("%s, offset %d: %d comes after %d", lane, r.Offset, n, last[lane])
		}
		last[lane] = n
	}
	t.Logf("%d records are there a second time, %d were of uncertain outcome", twice, len(uncertain))
}

// watchCommits demands that committed offsets never go back.
func (s *soak) watchCommits(t *testing.T) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		highest := map[int]int64{}
		for n := 0; ; n++ {
			select {
			case <-quit:
				return
			case <-time.After(500 * time.Millisecond):
			}
			r := s.m.Leat(append(s.gateway(1+n%2), "group", "describe", soakGroup, "-o", "json", "--request-timeout", "5s")...)
			var d groupDescription
			if r.Code != 0 || json.Unmarshal([]byte(r.Stdout), &d) != nil {
				continue // a fault may make this fail; progress says whether it lasts
			}
			for _, p := range d.Partitions {
				if p.Committed < highest[p.Partition] {
					t.Errorf("the committed offset of partition %d went back from %d to %d", p.Partition, highest[p.Partition], p.Committed)
				}
				highest[p.Partition] = max(highest[p.Partition], p.Committed)
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// feedJSON gives records name-1, name-2, … of eleven keys until it is stopped.
func feedJSON(name string) (stdin io.Reader, stop func()) {
	r, w := io.Pipe()
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
			if _, err := fmt.Fprintf(w, "{\"key\":\"%s%d\",\"value\":\"%s-%d\"}\n", name, i%11, name, i); err != nil {
				return
			}
		}
	}()
	return r, func() {
		close(quit)
		w.Close()
		<-done
	}
}

// lineSink hands whole lines on as they are written.
type lineSink struct {
	line    func(string)
	partial []byte
}

func (l *lineSink) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		cut := bytes.IndexByte(l.partial, '\n')
		if cut < 0 {
			return len(p), nil
		}
		l.line(string(l.partial[:cut]))
		l.partial = l.partial[cut+1:]
	}
}

// startBackgroundTo is startBackground with another place for the output.
func startBackgroundTo(t *testing.T, m *mesh.Mesh, stdin io.Reader, stdout io.Writer, args ...string) *background {
	t.Helper()
	b := &background{cmd: m.Command(context.Background(), args...), done: make(chan struct{})}
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = stdin, stdout, &b.stderr
	b.run(t, args)
	return b
}

// wait lets a fault last.
func wait(d time.Duration) { <-time.After(d) }

var badLog = regexp.MustCompile(`panic|DATA RACE|INTERNAL_BUG|fatal error`)

// checkLogs demands that no process found a bug in itself or talks too much.
func checkLogs(t *testing.T, m *mesh.Mesh, ran time.Duration) {
	t.Helper()
	for name, text := range m.Logs() {
		n := strings.Count(text, "\n")
		if limit := 500 + int(50*ran.Seconds()); n > limit {
			t.Errorf("%s wrote %d lines in %v", name, n, ran)
		}
		found := 0
		for line := range strings.Lines(text) {
			if badLog.MatchString(line) && found < 5 {
				found++
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

// checkResources demands that goroutines stay bounded.
func checkResources(t *testing.T, m *mesh.Mesh) {
	t.Helper()
	total := regexp.MustCompile(`goroutine profile: total (\d+)`)
	for _, name := range m.Services() {
		if strings.HasPrefix(name, "etcd") {
			continue
		}
		resp, err := http.Get("http://" + m.OpsAddr(name) + "/debug/pprof/goroutine?debug=1")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		n := 0
		if match := total.FindSubmatch(text); match != nil {
			fmt.Sscan(string(match[1]), &n)
		}
		t.Logf("%s has %d goroutines", name, n)
		if n == 0 || n > 1000 {
			t.Errorf("%s has %d goroutines:\n%s", name, n, text[:min(len(text), 3000)])
		}
	}
}
