package groups

import (
	"fmt"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/client"
)

var at0 = time.Unix(1_000_000, 0)

// at is a look some seconds after the first.
func at(seconds float64, position, end int64) Look {
	return Look{At: at0.Add(time.Duration(seconds * float64(time.Second))), Position: position, End: end}
}

// moved says when the position was reached.
func (l Look) moved(seconds float64) Look {
	l.PositionAt = at0.Add(time.Duration(seconds * float64(time.Second)))
	return l
}

func TestBetween(t *testing.T) {
	for _, c := range []struct {
		name     string
		a, b     Look
		read     float64
		appended float64
	}{
		{"both move", at(0, 100, 1000), at(2, 300, 1010), 100, 5},
		{"too close", at(0, 100, 1000), at(0.1, 300, 1010), -1, -1},
		{"commits tell the time better", at(0, 100, 1000).moved(-4), at(2, 700, 1000).moved(1), 120, 0},
		{"still for a moment: the next commit is yet to come", at(0, 100, 1000), at(5, 100, 1000), -1, 0},
		{"still for long", at(0, 100, 1000), at(13, 100, 1000), 0, 0},
		{"still since a commit long ago", at(0, 100, 1000).moved(-60), at(1, 100, 1000).moved(-60), 0, 0},
		{"a seek back", at(0, 100, 1000), at(2, 50, 1000), -1, 0},
		{"nothing committed", at(0, -1, 1000), at(2, 50, 1000), -1, 0},
		{"the end unknown", at(0, 100, -1), at(2, 300, 1000), 100, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := Between(c.a, c.b); r.Read != c.read || r.Appended != c.appended {
				t.Errorf("got %+v, want %v and %v", r, c.read, c.appended)
			}
		})
	}
}

func TestCatchUp(t *testing.T) {
	for _, c := range []struct {
		lag  int64
		rate Rate
		want string
	}{
		{0, Unknown(), "0s true"},
		{100, Rate{Read: 10, Appended: 0}, "10s true"},
		{100, Rate{Read: 10, Appended: -1}, "10s true"},
		{100, Rate{Read: 10, Appended: 5}, "20s true"},
		{100, Rate{Read: 10, Appended: 10}, "0s false"}, // never
		{100, Rate{Read: 0, Appended: 0}, "0s false"},
		{100, Unknown(), "0s false"},
		{-1, Rate{Read: 10, Appended: 0}, "0s false"},
		{1 << 62, Rate{Read: 1e-3, Appended: 0}, "0s false"},
	} {
		d, ok := CatchUp(c.lag, c.rate)
		if got := fmt.Sprint(d, ok); got != c.want {
			t.Errorf("%d at %+v: got %s, want %s", c.lag, c.rate, got, c.want)
		}
	}
}

// TestRatesRemember compares with the look before, and with older ones as time goes
// on; what is too old counts for nothing.
func TestRatesRemember(t *testing.T) {
	r := NewRates()
	tp := client.TopicPartition{Partition: 3}
	note := func(seconds float64, position, end int64) Rate {
		l := at(seconds, position, end)
		return r.Note("g", l.At, map[client.TopicPartition]Look{tp: l})[tp]
	}
	if got := note(0, 100, 1000); got != Unknown() {
		t.Errorf("the first look tells %+v", got)
	}
	if got := note(2, 300, 1000); got.Read != 100 {
		t.Errorf("the second look tells %+v", got)
	}
	if got := note(30, 1600, 1600); got.Read != 50 || got.Appended != 20 {
		t.Errorf("30 s later: %+v", got)
	}
	if got := note(31, 1650, 1650); got.Read != 50 {
		t.Errorf("compared with the first look: %+v", got)
	}
	if got := note(1000, 9000, 9000); got != Unknown() {
		t.Errorf("after %v: %+v", staleLook, got)
	}
}

// TestRatesAreBounded forgets who was looked at longest ago.
func TestRatesAreBounded(t *testing.T) {
	r := NewRates()
	for i := range maxRatedGroups + 10 {
		l := at(float64(i), 1, 1)
		r.Note(fmt.Sprint(i), l.At, map[client.TopicPartition]Look{{}: l})
	}
	if len(r.groups) != maxRatedGroups || r.size != maxRatedGroups || r.groups["0"] != nil || r.groups[fmt.Sprint(maxRatedGroups+9)] == nil {
		t.Errorf("%d groups and %d partitions are remembered", len(r.groups), r.size)
	}
}
