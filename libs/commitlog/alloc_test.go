//go:build !race

package commitlog

import (
	"path/filepath"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
)

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
}

// Appending to real files: batches in one piece and in several, of a producer and of
// none.
func TestSteadyStateAppendAllocations(t *testing.T) {
	o := testOptions(vfs.OS())
	o.Dir = filepath.Join(t.TempDir(), "orders-0")
	o.Config.SegmentBytes = 0
	l, _ := mustOpen(t, o)
	b := produced(t, 1, 0, 0, 10, false, 100)
	plain := batch(t, 10, "steady", 1)
	whole, pieces := [][]byte{plain}, [][]byte{plain[:30], plain[30:200], plain[200:]}
	idempotent := [][]byte{b[:61], b[61:]}
	for range 2000 { // pools and maps get their size
		for _, vecs := range [][][]byte{whole, pieces, idempotent} {
			if _, err := l.Append(vecs, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, vecs := range map[string][][]byte{"in one piece": whole, "in pieces": pieces, "of a producer": idempotent} {
		if n := testing.AllocsPerRun(500, func() {
			if _, err := l.Append(vecs, 0); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("appending a batch %s allocates %v times", name, n)
		}
	}
}
