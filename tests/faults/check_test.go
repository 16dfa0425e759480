package faults

import (
	"strings"
	"testing"
	"time"
)

// scene is a small history with one log that fits it.
func scene() (*records, [][]recordID) {
	h := newRecords(2)
	d, g := h.add("d", false), h.add("g", true)
	for range 4 {
		h.sending(d)
	}
	for range 2 {
		h.sending(g)
	}
	h.answered(d, 1, stored, 0, 0, "")
	h.answered(d, 2, stored, 0, 1, "")
	h.answered(d, 3, refused, -1, -1, "DISK_FULL")
	h.answered(d, 4, unknownOutcome, -1, -1, "REQUEST_TIMED_OUT")
	h.answered(g, 1, stored, 1, 0, "")
	h.answered(g, 2, storedMaybeTwice, 1, 1, "")
	h.show("a reader", 0, 0, idOf(d, 1))
	return h, [][]recordID{{idOf(d, 1), idOf(d, 2)}, {idOf(g, 1), idOf(g, 2), idOf(g, 2)}}
}

func expect(t *testing.T, h *records, want string) {
	t.Helper()
	found := h.found()
	if want == "" && len(found) > 0 {
		t.Errorf("a good history is found fault with: %q", found)
	}
	if want != "" && !strings.Contains(strings.Join(found, "\n"), want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// TestChecker: each promise that a log can break is found to be broken.
func TestChecker(t *testing.T) {
	h, log := scene()
	h.check(log)
	expect(t, h, "")
	for want, change := range map[string]func(h *records, log [][]recordID){
		"acknowledged d-2 ":             func(_ *records, log [][]recordID) { log[0] = log[0][:1] },
		"offset 0 showed d-1":           func(_ *records, log [][]recordID) { log[0][0] = idOf(0, 4) },
		"is there 2 times":              func(_ *records, log [][]recordID) { log[0] = append(log[0], idOf(0, 2)) },
		"g-1 is there 2 times":          func(_ *records, log [][]recordID) { log[1] = append(log[1], idOf(1, 1)) },
		"comes after number 4":          func(_ *records, log [][]recordID) { log[0] = []recordID{idOf(0, 4), idOf(0, 1), idOf(0, 2)} },
		"failed, not done, and is in":   func(_ *records, log [][]recordID) { log[0] = append(log[0], idOf(0, 3)) },
		"holds what nobody sent":        func(_ *records, log [][]recordID) { log[0] = append(log[0], idOf(0, 9)) },
		"and, to another reader, d-2":   func(h *records, _ [][]recordID) { h.show("another reader", 0, 0, idOf(0, 2)) },
		"has a second answer":           func(h *records, _ [][]recordID) { h.answered(0, 1, stored, 0, 0, "") },
		"which it did not send":         func(h *records, _ [][]recordID) { h.answered(0, 77, stored, 0, 5, "") },
		"offset 5 showed d-4 and holds": func(h *records, _ [][]recordID) { h.show("a reader", 0, 5, idOf(0, 4)) },
		"named partition 7 offset 0":    func(h *records, _ [][]recordID) { h.show("a reader", 7, 0, idOf(0, 4)) },
		"showed d-2 and holds nothing":  func(_ *records, log [][]recordID) { log[0] = log[0][:1] },
	} {
		h, log := scene()
		change(h, log)
		h.check(log)
		expect(t, h, want)
	}
}

// TestOwnershipIsHeard: what is wrong with ownership is a problem of the run.
func TestOwnershipIsHeard(t *testing.T) {
	h := newRecords(2)
	o := newOwners(h, 2)
	now := time.Now()
	o.Assign("a", []int{0}, now)
	o.Assign("b", []int{0}, now.Add(time.Second))
	o.Deliver("a", 0, 0, now.Add(2*time.Second), now.Add(2*time.Second))
	expect(t, h, "group: a was given partition 0 offset 0, 1s after b was told that the partition is its own")
}

// TestReport draws a page of a small run and names what is missing of it.
func TestReport(t *testing.T) {
	s := &summary{
		Seed: 7, Duration: 12 * time.Second, Processes: []string{"broker-1", "etcd-1"}, Acked: 5,
		Struck: []struck{{Name: "kill leader", What: "kill broker-1 <leader>", Hit: []string{"broker-1"}, Begin: time.Second, End: 3 * time.Second, During: -1, After: time.Second}},
		Seconds: []second{
			{Acked: 5, slowest: 3 * time.Millisecond}, {}, {Unknown: 2},
		},
		Marks:       []mark{{time.Second, "ISR shrinks", 2}},
		Transitions: []count{{"ISR shrinks", 2, true}, {"unclean elections", 0, true}},
	}
	page, err := s.page()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kill broker-1 &lt;leader&gt;", "polyline", "2 × ISR shrinks", "Nothing was found"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(string(page), "http") {
		t.Error("the page needs something else")
	}
	missing := strings.Join(s.vacuous(), "; ")
	if missing != "none: unclean elections; 5 records were acknowledged, fewer than 1000000" {
		t.Errorf("missing: %s", missing)
	}
	if words := s.words(); !strings.Contains(words, "5 records acknowledged") || !strings.Contains(words, "none of 1 others") {
		t.Errorf("words: %s", words)
	}
}

// TestQuantile: an upper bound that is never above the slowest.
func TestQuantile(t *testing.T) {
	var s second
	for _, d := range []time.Duration{time.Millisecond / 2, 2 * time.Millisecond, 90 * time.Millisecond} {
		s.latencies[bucketOf(d)]++
		s.slowest = max(s.slowest, d)
	}
	if q := s.quantile(0.3); q != time.Millisecond {
		t.Errorf("30 %%: %v", q)
	}
	if q := s.quantile(1); q != 90*time.Millisecond {
		t.Errorf("all: %v", q)
	}
}
