package groups

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/client"
)

// TestPlan: every kind of target, within a log of 10 to 100, from a commit at 40.
func TestPlan(t *testing.T) {
	base := ResetPart{ID: client.TopicPartition{Partition: 1}, Topic: "t", Committed: 40, Start: 10, End: 100, Found: -1}
	with := func(change func(*ResetPart)) ResetPart {
		p := base
		change(&p)
		return p
	}
	for _, c := range []struct {
		name   string
		target Target
		part   ResetPart
		want   string
	}{
		{"a place", Target{Kind: ToPlace}, with(func(p *ResetPart) { p.Found = 10 }), "10"},
		{"a time", Target{Kind: ToPlace}, with(func(p *ResetPart) { p.Found = 55 }), "55"},
		{"a time that no record has reached", Target{Kind: ToPlace}, base, "100"},
		{"a time whose record has gone meanwhile", Target{Kind: ToPlace}, with(func(p *ResetPart) { p.Found = 5 }), "10 clamped"},
		{"an offset", Target{Kind: ToOffset, Offset: 99}, base, "99"},
		{"the end", Target{Kind: ToOffset, Offset: 100}, base, "100"},
		{"an offset below the log", Target{Kind: ToOffset, Offset: 9}, base, "10 clamped"},
		{"an offset beyond the log", Target{Kind: ToOffset, Offset: 101}, base, "100 clamped"},
		{"on", Target{Kind: ShiftBy, Offset: 5}, base, "45"},
		{"back", Target{Kind: ShiftBy, Offset: -5}, base, "35"},
		{"back beyond the log", Target{Kind: ShiftBy, Offset: -50}, base, "10 clamped"},
		{"on beyond the log", Target{Kind: ShiftBy, Offset: math.MaxInt64}, base, "100 clamped"},
		{"back from very far", Target{Kind: ShiftBy, Offset: math.MinInt64}, base, "10 clamped"},
		{"a shift from nothing", Target{Kind: ShiftBy, Offset: 5}, with(func(p *ResetPart) { p.Committed = -1 }), "-1 INVALID_REQUEST: nothing is committed"},
		{"as planned", Target{Kind: ToFound}, with(func(p *ResetPart) { p.Found = 70 }), "70"},
		{"as planned, and gone", Target{Kind: ToFound}, with(func(p *ResetPart) { p.Found = 0 }), "10 clamped"},
		{"an unknown log", Target{Kind: ToOffset, Offset: 50}, with(func(p *ResetPart) { p.Err = errors.New("no leader") }), "-1 no leader"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Plan(c.target, []ResetPart{c.part})[0]
			got := fmt.Sprint(p.New)
			if p.Clamped {
				got += " clamped"
			}
			if p.Err != nil {
				got += " " + p.Err.Error()
			}
			if !strings.HasPrefix(got, c.want) || p.Err == nil && got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
