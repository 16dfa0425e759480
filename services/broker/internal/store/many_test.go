package store

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
)

// descriptors is how many files this process has open, where the system tells; else
// -1.
func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

// each does something with many replicas, as many at a time as a broker does.
func each(t testing.TB, n int, do func(i int) error) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func manyKey(i int) Key {
	k := key(0)
	k.Partition = int32(i)
	return k
}

// manyOptions are those of a broker on the real file system, with two disks and
// few descriptors.
func manyOptions(dir string, incarnation uint64) Options {
	return Options{Dirs: []string{dir + "/d1", dir + "/d2"}, BrokerID: 1, Incarnation: incarnation, BootID: "boot", OpenFiles: 100}
}

// fill makes n replicas with a record each, and closes the store.
func fill(t testing.TB, dir string, n int) {
	t.Helper()
	s, err := Open(manyOptions(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Adopt(cluster, nil); err != nil {
		t.Fatal(err)
	}
	b := batch(t)
	each(t, n, func(i int) error {
		r, err := s.Create(manyKey(i), "t", commitlog.Config{})
		if err != nil {
			return err
		}
		if _, err := r.Log.Append([][]byte{b}, 1); err != nil {
			return err
		}
		end, err := r.Log.Sync()
		r.SetHighWatermark(end)
		return err
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// case 47: however many replicas there are, descriptors stay within the bound, also
// while all of them are opened, written to, read and deleted, and come back to where they were.
func TestManyReplicasWithFewDescriptors(t *testing.T) {
	const n = 1000
	dir := t.TempDir()
	before := descriptors()
	fill(t, dir, n)
	began := time.Now()
	s, err := Open(manyOptions(dir, 2))
	if err != nil {
		t.Fatal(err)
	}
	opened := time.Since(began)
	if got := len(s.Replicas()); got != n {
		t.Fatalf("%d replicas", got)
	}
	for _, r := range s.Replicas() {
		if !r.Report.Clean || r.Log.EndOffset() != 1 {
			t.Fatalf("%s: %+v", r.Dir, r.Report)
		}
	}
	idle := descriptors()
	// Two locks, and what the runtime has for itself.
	if before >= 0 && idle > before+10 {
		t.Errorf("%d descriptors are open for %d idle replicas, %d were before", idle, n, before)
	}
	b := batch(t)
	most := 0
	each(t, n, func(i int) error {
		r := s.Replica(manyKey(i))
		if _, err := r.Log.Append([][]byte{b}, 1); err != nil {
			return err
		}
		if _, err := r.Log.Sync(); err != nil {
			return err
		}
		_, err := r.Log.Read(0, 2, record.HeaderSize, func(n int) []byte { return make([]byte, n) })
		return err
	})
	if most = descriptors(); before >= 0 && most > before+150 {
		t.Errorf("%d descriptors are open after %d replicas were used, %d were before, and the bound is 100", most, n, before)
	}
	each(t, n, func(i int) error { return s.Delete(manyKey(i)) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := descriptors(); before >= 0 && after > before+5 {
		t.Errorf("%d descriptors are open at the end, %d were at the beginning", after, before)
	}
	t.Logf("opened %d clean replicas in %v; descriptors: %d at first, %d idle, %d in use", n, opened.Round(time.Millisecond), before, idle, most)
}

// BenchmarkOpen opens and closes stores of clean replicas. The first number is that
// of the replicas.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			fill(b, dir, n)
			incarnation := uint64(1)
			for b.Loop() {
				incarnation++
				s, err := Open(manyOptions(dir, incarnation))
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(descriptors()), "descriptors")
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
