package replica

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestAges(t *testing.T) {
	a := ages{since: 10 * time.Second}
	check := func(offset int64, at, want time.Duration, atLeast bool) {
		t.Helper()
		if age, least := a.of(offset, at); age != want || least != atLeast {
			t.Errorf("at %v the record at %d is %v old (at least: %v), want %v (%v)", at, offset, age, least, want, atLeast)
		}
	}
	check(5, 70*time.Second, 60*time.Second, true) // appended before the replica was opened
	a.note(100, 20*time.Second, false)
	a.note(101, 20*time.Second+ageGap/2, false) // too soon to be remembered
	a.note(200, 30*time.Second, false)
	check(99, 70*time.Second, 60*time.Second, true)
	check(100, 70*time.Second, 50*time.Second, false)
	check(150, 70*time.Second, 45*time.Second, false) // half way
	check(200, 70*time.Second, 40*time.Second, false)
	check(999, 70*time.Second, 40*time.Second, false)
	a.note(300, 60*time.Second, true) // copied while far behind the leader
	check(300, 70*time.Second, 10*time.Second, true)
	a.cut(200)
	check(250, 70*time.Second, 50*time.Second, false)
	a.cut(0)
	check(250, 70*time.Second, 60*time.Second, true)
}

// TestAgesThin: the newer half stays as it is, and the first append is kept for good.
func TestAgesThin(t *testing.T) {
	var a ages
	for i := range maxAges + 1 {
		a.note(int64(i), time.Duration(i)*ageGap, false)
	}
	if len(a.points) >= maxAges || a.points[0].base != 0 {
		t.Fatalf("left are %v", a.points)
	}
	for i := range maxAges / 2 {
		if p := a.points[len(a.points)-1-i]; p.base != int64(maxAges-i) {
			t.Errorf("point %d from the end is %v", i, p)
		}
	}
}

// TestAgesAreBounded: however long the log grows, the sample stays small, in order, and
// near the truth: by a second for what is recent, by a part of its age for what is old.
func TestAgesAreBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var a ages
	var when []time.Duration // by offset
	now := time.Duration(0)
	for range 20_000 {
		now += time.Duration(random.Int64N(int64(3 * time.Second)))
		a.note(int64(len(when)), now, false)
		when = append(when, now)
	}
	if len(a.points) > maxAges {
		t.Fatalf("%d points are remembered", len(a.points))
	}
	for i, p := range a.points[1:] {
		if p.base <= a.points[i].base || p.at < a.points[i].at {
			t.Fatalf("point %d is out of order: %v", i+1, a.points)
		}
	}
	for range 10_000 {
		o := random.Int64N(int64(len(when)))
		truth := now - when[o]
		age, atLeast := a.of(o, now)
		if off := (age - truth).Abs(); atLeast || off > 2*time.Second+truth/4 {
			t.Fatalf("the record at %d is %v old, told were %v (at least: %v)", o, truth, age, atLeast)
		}
	}
}
