package owners

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestOwners: two owners at once, records without ownership, and gaps are found;
// a hand-over in order, and records that come twice, are none.
func TestOwners(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	for name, c := range map[string]struct {
		do   func(o *Owners)
		want string // of the only problem; empty: none
	}{
		"handed over": {func(o *Owners) {
			o.Assign("a", []int{0}, at(0))
			o.Deliver("a", 0, 0, at(1), at(1))
			o.Deliver("a", 0, 1, at(2), at(2))
			o.Revoke("a", []int{0})
			o.Assign("b", []int{0}, at(3))
			o.Deliver("b", 0, 1, at(4), at(4))
			o.Deliver("b", 0, 2, at(5), at(5))
			o.Pass("c", 0, 2, at(6))
			o.Pass("c", 0, 3, at(7))
		}, ""},
		"a call that lasted through the hand-over": {func(o *Owners) {
			o.Assign("a", []int{0}, at(0))
			o.Assign("b", []int{0}, at(3))
			o.Deliver("a", 0, 0, at(2), at(9))
		}, ""},
		"two owners": {func(o *Owners) {
			o.Assign("a", []int{0}, at(0))
			o.Assign("b", []int{0}, at(3))
			o.Deliver("a", 0, 0, at(4), at(4))
		}, "after b was told"},
		"no owner": {func(o *Owners) {
			o.Assign("a", []int{1}, at(0))
			o.Deliver("a", 0, 0, at(1), at(1))
		}, "does not own"},
		"a member's gap": {func(o *Owners) {
			o.Assign("a", []int{0}, at(0))
			o.Deliver("a", 0, 0, at(1), at(1))
			o.Pass("b", 0, 1, at(1))
			o.Deliver("a", 0, 2, at(1), at(1))
		}, "offset 2 after 0"},
		"the group's gap": {func(o *Owners) {
			o.Pass("a", 0, 0, at(1))
			o.Pass("b", 0, 2, at(2))
		}, "nobody was given partition 0 offsets 1 to 1"},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			c.do(New(2, func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }))
			if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || !strings.Contains(found[0], c.want)) {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

// TestStandstill: only what is new ends a standstill.
func TestStandstill(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	o := New(2, t.Errorf)
	for i, offset := range []int64{0, 1, 0, 1, 1, 2, 3} {
		o.Pass("a", 1, offset, begin.Add(time.Duration(i)*time.Second))
	}
	if longest, number, ended := o.Standstill(); longest != 4*time.Second || number != 1 || !ended.Equal(begin.Add(5*time.Second)) {
		t.Errorf("%v of partition %d until %v", longest, number, ended)
	}
	o.Failed("X")
	if c := o.Counts(); c.Delivered != 7 || c.Repeated != 3 || c.Failures["X"] != 1 {
		t.Errorf("%+v", c)
	}
	if ends := o.Ends(); !slices.Equal(ends, []int64{0, 4}) {
		t.Errorf("ends %v", ends)
	}
}
