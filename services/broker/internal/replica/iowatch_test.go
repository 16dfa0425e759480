package replica

import (
	"testing"
	"time"
)

func TestIOWatch(t *testing.T) {
	var w ioWatch
	if d := w.longest(time.Hour); d != 0 {
		t.Errorf("nothing runs for %v", d)
	}
	first, second := w.begin(10*time.Second), w.begin(15*time.Second)
	if d := w.longest(20 * time.Second); d != 10*time.Second {
		t.Errorf("the oldest runs for %v", d)
	}
	first()
	if d := w.longest(20 * time.Second); d != 5*time.Second {
		t.Errorf("once the first has ended, the oldest runs for %v", d)
	}
	second()
	if d := w.longest(20 * time.Second); d != 0 {
		t.Errorf("nothing runs for %v", d)
	}
}

func TestRecent(t *testing.T) {
	var r recent
	if r.has(0, time.Second) {
		t.Error("everything is recent before the first append")
	}
	r.note(100, time.Second) // the first that is known
	r.note(200, 2*time.Second)
	for _, tc := range []struct {
		offset int64
		now    time.Duration
		want   bool
	}{
		{100, 3 * time.Second, true}, {250, 3 * time.Second, true}, {99, 3 * time.Second, false}, {100, time.Second + 2*recentSpan, false},
	} {
		if got := r.has(tc.offset, tc.now); got != tc.want {
			t.Errorf("offset %d at %v: recent %v", tc.offset, tc.now, got)
		}
	}
	r.note(300, time.Second+recentSpan)
	r.note(400, time.Second+2*recentSpan)
	if now := 2*time.Second + 2*recentSpan; r.has(100, now) || r.has(299, now) || !r.has(300, now) {
		t.Error("what was appended long ago is recent, or the newest is not")
	}
	late := 10 * recentSpan
	r.note(900, late)
	if r.has(400, late) || !r.has(900, late) {
		t.Error("after a pause what was appended before it is recent")
	}
}
