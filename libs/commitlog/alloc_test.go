//go:build !race

package commitlog

import "testing"

// The race detector makes pools forget on purpose, so allocations are counted
// without it.

// Neither appending nor reading allocates in steady state.
func TestSteadyStateAllocations(t *testing.T) {
	o := testOptions(newFS(t))
	o.Config.SegmentBytes = 0 // the default: no roll here
	l, _ := mustOpen(t, o)
	b := batch(t, 10, "steady", 1)
	for range 200 {
		mustAppend(t, l, b, 0)
	}
	buf := make([]byte, 1<<20)
	give := func(n int) []byte { return buf[:n] }
	offset := int64(0)
	if n := testing.AllocsPerRun(100, func() {
		res, err := l.Read(offset, 1<<40, 4096, give)
		if err != nil {
			t.Fatal(err)
		}
		offset = (res.NextOffset + 777) % 1500 // so that it needs a lookup
	}); n > 0 {
		t.Errorf("a read allocates %v times", n)
	}
	// The file system in memory copies what it is given; the log itself does not.
	vecs := [][]byte{b[:200], b[200:]}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := l.admit(vecs, 0, l.config()); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("admitting a batch allocates %v times", n)
	}
}
