package history

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// log is what one producer's records look like, all of one partition.
func log(n int) []Record {
	var l []Record
	for i := 1; i <= n; i++ {
		l = append(l, Record{Place: Place{0, int64(i - 1)}, Key: Key("p", i), Value: Value("p", i), Epoch: 1 + i/3})
	}
	return l
}

func acked(h *History, n int) {
	for i := 1; i <= n; i++ {
		h.Acked("p", i, Place{0, int64(i - 1)}, false)
	}
}

func TestCheckFinds(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(h *History, l []Record) []Record
		want  string // "" is no problem
	}{
		"nothing": {func(_ *History, l []Record) []Record { return l }, ""},
		"a lost record": {func(_ *History, l []Record) []Record {
			return l[:len(l)-1]
		}, "acknowledged p-12 is not at {Partition:0 Offset:11} but nowhere"},
		"a moved record": {func(_ *History, l []Record) []Record {
			l[3].Value, l[3].Key, l[4].Value, l[4].Key = l[4].Value, l[4].Key, l[3].Value, l[3].Key
			return l
		}, "acknowledged p-4 is not at"},
		"a second copy": {func(_ *History, l []Record) []Record {
			return append(l, Record{Place: Place{0, 12}, Key: Key("p", 12), Value: "p-12", Epoch: 9})
		}, "p-12 is there 2 times"},
		"a record that failed": {func(h *History, l []Record) []Record {
			h.Failed("p", 13, "DISK_FULL", false)
			return append(l, Record{Place: Place{0, 12}, Key: Key("p", 13), Value: "p-13", Epoch: 9})
		}, "p-13 failed with DISK_FULL"},
		"a record of unknown outcome": {func(h *History, l []Record) []Record {
			h.Failed("p", 13, "NOT_LEADER", true)
			return append(l, Record{Place: Place{0, 12}, Key: Key("p", 13), Value: "p-13", Epoch: 9})
		}, ""},
		"an order turned round": {func(h *History, l []Record) []Record {
			return append(l, Record{Place: Place{0, 12}, Key: Key("p", 24), Value: "p-24", Epoch: 9}, Record{Place: Place{0, 13}, Key: Key("p", 13), Value: "p-13", Epoch: 9})
		}, "13 of key p:2 comes after 24"},
		"an epoch that goes back": {func(_ *History, l []Record) []Record {
			l[11].Epoch = 1
			return l
		}, "is of leader epoch 1"},
		"a stranger": {func(_ *History, l []Record) []Record {
			return append(l, Record{Place: Place{0, 12}, Key: "k", Value: "q-1", Epoch: 9})
		}, "which nobody sent"},
		"a value that a reader saw and is gone": {func(h *History, l []Record) []Record {
			h.Seen("r", Record{Place: Place{0, 0}, Key: Key("p", 5), Value: "p-5"})
			return l
		}, `a reader was given "p-5"`},
		"two values at one offset": {func(h *History, l []Record) []Record {
			h.Seen("r", Record{Place: Place{0, 0}, Value: "p-1"})
			h.Seen("s", Record{Place: Place{0, 0}, Value: "p-5"})
			return l
		}, `held "p-1" and later "p-5"`},
		"a gap for a reader": {func(h *History, l []Record) []Record {
			h.Seen("r", Record{Place: Place{0, 1}, Value: "p-2"})
			return l
		}, "was given offset 1 of partition 0, want 0"},
		"two answers": {func(h *History, l []Record) []Record {
			h.Acked("p", 1, Place{0, 0}, false)
			return l
		}, "p-1 has a second answer"},
	} {
		h := New()
		acked(h, 12)
		problems := h.Check(c.spoil(h, log(12)))
		got := strings.Join(problems, "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: found %q, want %q", what, got, c.want)
		}
	}
}

func TestTwiceIsAllowedWhereTheOutcomeWasUncertain(t *testing.T) {
	h := New()
	h.MayRepeat("p")
	acked(h, 11)
	h.Acked("p", 12, Place{0, 11}, true)
	if problems := h.Check(append(log(12), Record{Place: Place{0, 12}, Key: Key("p", 12), Value: "p-12", Epoch: 9})); len(problems) > 0 {
		t.Error(problems)
	}
}

func TestLines(t *testing.T) {
	h := New()
	acks, reader := h.Acks("p"), h.Reader("r")
	fmt.Fprint(acks, `{"number":1,"partition":0,"off`)
	fmt.Fprint(acks, "set\":0}\n{\"number\":2,\"unknown\":\"NOT_LEADER\"}\n{\"number\":3,\"error\":\"DISK_FULL\"}\n")
	fmt.Fprint(reader, `{"partition":0,"offset":0,"key":"p:1","value":"p-1","leader_epoch":3}`+"\n")
	if h.Count("p") != 1 || h.Read("r") != 1 || fmt.Sprint(h.Failures("p")) != "map[DISK_FULL:1 unknown NOT_LEADER:1]" || len(h.Problems()) > 0 {
		t.Errorf("%s %v", h.Summary(), h.Problems())
	}
	fmt.Fprint(acks, "nonsense\n")
	fmt.Fprint(reader, "{}\n")
	if n := len(h.Problems()); n != 2 {
		t.Errorf("%d problems: %v", n, h.Problems())
	}
}

func TestFeed(t *testing.T) {
	input, stop := Feed("p", 1000)
	b := make([]byte, 100)
	n, err := io.ReadAtLeast(input, b, 60)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(b[:n]); !strings.HasPrefix(got, "{\"key\":\"p:1\",\"value\":\"p-1\"}\n{\"key\":\"p:2\"") {
		t.Errorf("%q", got)
	}
	if sent := stop(); sent < 2 {
		t.Errorf("%d sent", sent)
	}
}
