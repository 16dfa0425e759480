package cli

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

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
	if out != "a\nb\nc\nd\ne\n" || f.committedAt("h", "t", 0) != -1 || !f.joined[len(f.joined)-1].GetLeaveOffsets() {
		t.Errorf("printed %q, committed %d without auto-commit", out, f.committedAt("h", "t", 0))
	}
}

// Topics by pattern are those that there are; what is made later is read, too, but has
// no records as of the start.
func TestConsumeByPattern(t *testing.T) {
	f := startFake(t)
	for _, name := range []string{"other", "t", "tt", "tlate"} {
		f.topic(name, 1)
		f.fill(name, 0, "of "+name)
	}
	f.matching = []string{"t", "tt", "tlate"} // ListTopics knows t and tt
	out, _ := leat(t, 0, f.addr, "", "consume", "other", "--topic-pattern", "t.*", "--group", "g", "--from-beginning", "--follow=false")
	lines := strings.Fields(strings.ReplaceAll(out, "of ", ""))
	slices.Sort(lines)
	if !slices.Equal(lines, []string{"other", "t", "tt"}) {
		t.Errorf("printed %q", out)
	}
	if open := f.joined[0]; open.GetTopicPattern() != "t.*" || !slices.Equal(open.GetTopics(), []string{"other"}) {
		t.Errorf("subscribed to %v and %q", open.GetTopics(), open.GetTopicPattern())
	}
	if out, _ := leat(t, 0, f.addr, "", "consume", "--topic-pattern", "t", "--group", "h", "--from-beginning", "--max-messages", "1"); !strings.HasPrefix(out, "of t") {
		t.Errorf("without a topic by name: printed %q", out)
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
	for _, follow := range []string{"true", "false"} {
		_, stderr = leat(t, 1, f.addr, "", "consume", "t", "--partition", "0", "--offset", "9", "--follow="+follow)
		if !strings.Contains(stderr, "OFFSET_OUT_OF_RANGE") || !strings.Contains(stderr, "Next:") {
			t.Error(stderr)
		}
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
		f.failCommits = 1
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
	f.revokeAfter, f.failCommits = 2, 2
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

// A topic that is deleted and made again is read from its beginning, also by who
// had read further in the old one; what is committed is a place in the new one.
func TestConsumeStartsOverInATopicMadeAgain(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.fill("t", 0, "a", "b", "c", "d")
	f.remade = []string{"e", "f"}
	c := start(f.addr, nil, "consume", "t", "--group", "g", "--from-beginning")
	eventually(t, "the records of the new topic, committed", func() bool {
		return c.out.String() == "a\nb\nc\nd\ne\nf\n" && f.committedAt("g", "t", 0) == 2
	})
	c.signals <- syscall.SIGINT
	if code := c.wait(t); code != 130 || f.left != 1 {
		t.Errorf("exit code %d, left %d times", code, f.left)
	}
}

func TestConsumeWithoutFollowingEndsInATopicMadeAgain(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b")
	f.remade = []string{"c", "d", "e"}
	out, _ := leat(t, 0, f.addr, "", "consume", "t", "--group", "g", "--from-beginning", "--follow=false")
	if out != "a\nb\n" {
		t.Errorf("printed %q: c was not there at the start", out)
	}
}

// An error that ends the command does not keep it from committing what it printed,
// nor from leaving the group, whose others would wait for its session otherwise.
func TestConsumeLeavesTheGroupAlsoWhenItFails(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b")
	f.mu.Lock()
	f.commitLocked("g", place{"t", 1}, 99)
	f.mu.Unlock()
	out, stderr := leat(t, 3, f.addr, "", "consume", "t", "--group", "g", "--from-beginning")
	if out != "a\nb\n" || !strings.Contains(stderr, "OFFSET_OUT_OF_RANGE") {
		t.Errorf("printed %q, %s", out, stderr)
	}
	if f.committedAt("g", "t", 0) != 2 || f.left != 1 {
		t.Errorf("committed %d, left %d times", f.committedAt("g", "t", 0), f.left)
	}
}

// fullDisk takes so many bytes.
type fullDisk struct{ room int }

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	if d.room -= n; n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func TestConsumeCommitsNothingThatCouldNotBeWritten(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.fill("t", 0, "a", "b")
	var stderr lockedBuffer
	code := Run(context.Background(), []string{"consume", "t", "--group", "g", "--from-beginning", "--gateway", f.addr},
		IO{In: strings.NewReader(""), Out: &fullDisk{room: 3}, Err: &stderr})
	if code == 0 || !strings.Contains(stderr.String(), "no space left") || f.committedAt("g", "t", 0) > 0 || f.left != 1 {
		t.Errorf("exit code %d, committed %d, left %d times: %s", code, f.committedAt("g", "t", 0), f.left, stderr.String())
	}
}

func TestConsumeJoinsAnewWhenItIsFenced(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.fill("t", 0, "a", "b", "c")
	f.fence = func(stream int) *rpc.Error {
		if stream == 1 {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_MEMBER_FENCED, "the fake fences")
		}
		return nil
	}
	c := start(f.addr, nil, "consume", "t", "--group", "g", "--from-beginning")
	eventually(t, "the second membership and its commit", func() bool { return f.committedAt("g", "t", 0) == 3 })
	f.fill("t", 0, "d") // nobody tells the fake's reader; only what was printed counts
	c.signals <- syscall.SIGINT
	if code := c.wait(t); code != 130 || c.out.String() != "a\nb\nc\n" {
		t.Errorf("exit code %d, printed %q", code, c.out.String())
	}
	if second := f.joined[1]; second.GetMemberId() != "" || len(second.GetPositions()) != 0 {
		t.Errorf("the second stream resumes a membership that has ended: %v", second)
	}
}

func TestConsumeStopsWhenAnotherTakesItsPlace(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.fence = func(int) *rpc.Error {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INSTANCE_FENCED, "a newer process has this instance id")
	}
	_, stderr := leat(t, 1, f.addr, "", "consume", "t", "--group", "g", "--instance-id", "i")
	if !strings.Contains(stderr, "INSTANCE_FENCED") {
		t.Error(stderr)
	}
}

// TestConsumeFromTheNearestReplica asks for it, in a group and without one.
func TestConsumeFromTheNearestReplica(t *testing.T) {
	f := startFake(t)
	f.topic("t", 1)
	f.fill("t", 0, "a")
	for _, more := range []string{"", "--group g"} {
		leat(t, 0, f.addr, "", append(strings.Fields("consume t --client-rack west --from-beginning --follow=false"), strings.Fields(more)...)...)
	}
	for _, o := range f.joined {
		if o.GetClientRack() != "west" {
			t.Errorf("opened %v", o)
		}
	}
	if len(f.joined) < 2 {
		t.Errorf("opened %d streams", len(f.joined))
	}
}

// Partitions that come late are waited for: the group says when it has settled.
func TestConsumeWithoutFollowingWaitsForTheGroup(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b")
	f.settlesAfter = 13 // questions, which take longer than any guess would
	out, _ := leat(t, 0, f.addr, "", "consume", "t", "--group", "late", "--from-beginning", "--follow=false")
	if out != "a\nb\n" {
		t.Errorf("printed %q", out)
	}
}
