package commitlog

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
)

// countFS counts what is read of index files.
type countFS struct {
	vfs.FS
	reads atomic.Int64
	bytes atomic.Int64
}

type countFile struct {
	vfs.File
	fs *countFS
}

func (c *countFS) wrap(path string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || strings.HasSuffix(path, logSuffix) {
		return f, err
	}
	return &countFile{f, c}, nil
}

func (c *countFS) Create(path string) (vfs.File, error) {
	f, err := c.FS.Create(path)
	return c.wrap(path, f, err)
}

func (c *countFS) Open(path string) (vfs.File, error) {
	f, err := c.FS.Open(path)
	return c.wrap(path, f, err)
}

func (f *countFile) ReadAt(b []byte, off int64) (int, error) {
	f.fs.reads.Add(1)
	f.fs.bytes.Add(int64(len(b)))
	return f.File.ReadAt(b, off)
}

// modelEntry is an entry as the test remembers it.
type modelEntry struct{ rel, pos, ts int64 }

// checkFloors compares lookups with going through the entries one by one.
func checkFloors(t *testing.T, x *segIndex, want []modelEntry, rnd *rand.Rand, where string) {
	t.Helper()
	keys := []int64{0, 1, math.MaxUint32}
	times := []int64{math.MinInt64, math.MinInt64 + 1, 0, math.MaxInt64}
	for range 40 {
		if len(want) > 0 {
			e := want[rnd.IntN(len(want))]
			keys = append(keys, e.rel, max(0, e.rel-1), e.rel+1)
			times = append(times, e.ts, e.ts-min(1, e.ts-math.MinInt64), e.ts+min(1, math.MaxInt64-e.ts))
		}
	}
	for _, k := range keys {
		var p indexPoint
		for _, e := range want {
			if e.rel <= k {
				p = indexPoint{e.rel, e.pos}
			}
		}
		if got, err := x.floor(k); err != nil || got != p {
			t.Fatalf("%s: floor of %d among %d entries is %+v, not %+v: %v", where, k, len(want), got, p, err)
		}
	}
	for _, ts := range times {
		var rel int64
		for _, e := range want {
			if e.ts < ts {
				rel = e.rel
			}
		}
		if got, err := x.floorTime(ts); err != nil || got != rel {
			t.Fatalf("%s: floor of timestamp %d among %d entries is %d, not %d: %v", where, ts, len(want), got, rel, err)
		}
	}
}

// An index answers as a plain list of its entries does, while it grows, is cut and
// gets other entries with the same numbers, is parked and opened again.
func TestIndexSearchModel(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		x := newSegIndex(newFS(t), "/disk", 7)
		var want []modelEntry
		next := modelEntry{ts: math.MinInt64}
		for step := range 120 {
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			switch op := rnd.IntN(10); {
			case op < 6:
				for range rnd.IntN(2 * blockEntries) {
					next.rel += 1 + rnd.Int64N(1000)
					next.pos += 61 + rnd.Int64N(1000)
					switch rnd.IntN(4) {
					case 0:
						next.ts = max(next.ts, 1_700_000_000_000) + rnd.Int64N(50)
					case 1:
						if len(want) > 6*blockEntries {
							next.ts = math.MaxInt64 - rnd.Int64N(2)
						}
					}
					if n := len(want); n > 0 {
						next.ts = max(next.ts, want[n-1].ts)
					}
					if err := x.note(indexPoint{next.rel, next.pos}, 1, next.ts, 0); err != nil {
						t.Fatal(err)
					}
					want = append(want, next)
				}
			case op == 6:
				if err := x.sync(); err != nil {
					t.Fatal(err)
				}
			case op == 7:
				if err := x.close(); err != nil {
					t.Fatal(err)
				}
			case op == 8 && len(want) > 0:
				n := rnd.IntN(len(want) + 1)
				if err := x.cut(n, 0); err != nil {
					t.Fatal(err)
				}
				want = want[:n]
				if next = (modelEntry{ts: math.MinInt64}); n > 0 {
					next = want[n-1]
				}
			}
			checkFloors(t, x, want, rnd, where)
		}
		if err := x.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A lookup in an index that has been looked into reads one block of it, however many
// entries there are; and its memory goes when it is parked.
func TestIndexSearchReadsOneBlock(t *testing.T) {
	fsys := &countFS{FS: newFS(t)}
	x := newSegIndex(fsys, "/disk", 0)
	const entries = 100 * blockEntries
	for i := range int64(entries) {
		if err := x.note(indexPoint{10 * (i + 1), 100 * (i + 1)}, 1, i, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(x.sync(), x.close()); err != nil {
		t.Fatal(err)
	}
	lookups := func() (reads, bytes int64) {
		fsys.reads.Store(0)
		fsys.bytes.Store(0)
		for i := range int64(entries) {
			if p, err := x.floor(10*(i+1) + 5); err != nil || p.pos != 100*(i+1) {
				t.Fatal(i, p, err)
			}
		}
		return fsys.reads.Load(), fsys.bytes.Load()
	}
	if reads, _ := lookups(); reads > entries+100 {
		t.Fatalf("%d lookups with nothing remembered made %d reads", entries, reads)
	}
	if reads, bytes := lookups(); reads != entries || bytes != entries*blockEntries*offsetEntrySize {
		t.Fatalf("%d lookups made %d reads of %d bytes", entries, reads, bytes)
	}
	fsys.reads.Store(0)
	if err := x.close(); err != nil {
		t.Fatal(err)
	}
	if x.offsets.keys != nil || x.times.keys != nil {
		t.Fatal("a parked index remembers keys")
	}
	if _, err := x.floor(5); err != nil || fsys.reads.Load() > 8 {
		t.Fatalf("opening and the first lookup made %d reads: %v", fsys.reads.Load(), err)
	}
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := x.floor(entries * 5); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 && raceScale == 1 {
		t.Fatalf("%v allocations a lookup", allocs)
	}
}

// Damage of any entry of a block is noticed when the lookup meets it, whether or not
// the key of the block is remembered, and the index is made anew.
func TestDamageBehindRememberedKeys(t *testing.T) {
	for _, remembered := range []bool{true, false} {
		fsys := newFS(t)
		o := testOptions(fsys)
		o.Config.SegmentBytes, o.Config.IndexIntervalBytes = 1<<20, 1
		l, _ := mustOpen(t, o)
		b := batch(t, 2, "v", 1)
		for range 3 * blockEntries {
			mustAppend(t, l, b, 0)
		}
		mustSync(t, l)
		seg := l.active()
		if err := seg.idx.sync(); err != nil {
			t.Fatal(err)
		}
		check := func() {
			t.Helper()
			for off := range l.EndOffset() {
				if res, err := l.Read(off, 1<<40, 1, alloc); err != nil || res.FirstBatchBase != off/2*2 {
					t.Fatalf("read at %d: %+v, %v", off, res, err)
				}
			}
		}
		if remembered {
			check()
		}
		// In place, as rot does it: the file stays the one that is open.
		damaged := int64(blockEntries)
		f, err := fsys.Open(seg.idx.offsets.path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte{0xff}, damaged*offsetEntrySize+3)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		check()
		if !rebuilt(l) {
			t.Fatal("nobody noticed")
		}
		check()
		if seg.idx.offsets.len() < 3*blockEntries-1 {
			t.Fatalf("the new index has %d entries", seg.idx.offsets.len())
		}
	}
}

// What a truncation or a rebuild leaves is not looked up by what was remembered of
// entries before it: the batches that come instead lie elsewhere.
func TestRememberedKeysAndTruncation(t *testing.T) {
	o := testOptions(newFS(t))
	o.Config.SegmentBytes, o.Config.IndexIntervalBytes = 1<<20, 1
	l, _ := mustOpen(t, o)
	var bases []int64
	check := func() {
		t.Helper()
		for i, base := range bases {
			end := l.EndOffset()
			if i+1 < len(bases) {
				end = bases[i+1]
			}
			for _, off := range []int64{base, end - 1} {
				if res, err := l.Read(off, 1<<40, 1, alloc); err != nil || res.FirstBatchBase != base {
					t.Fatalf("read at %d: %+v, %v, not %d", off, res, err, base)
				}
			}
		}
		if rebuilt(l) {
			t.Fatal("an index was made anew")
		}
	}
	for round := range 5 {
		for i := range 2*blockEntries + round {
			bases = append(bases, mustAppend(t, l, batch(t, 1+(i+round)%4, strings.Repeat("v", round), 1), 0).BaseOffset)
		}
		check()
		keep := len(bases) / 3 * (1 + round%2)
		if _, err := l.TruncateTo(bases[keep]); err != nil {
			t.Fatal(err)
		}
		bases = bases[:keep]
		check()
	}
	if err := l.active().rebuild(1); err != nil {
		t.Fatal(err)
	}
	l.active().idx.rebuilt = false
	check()
}

// Lookups by many goroutines fill in the keys while the index grows and is parked.
func TestConcurrentIndexSearch(t *testing.T) {
	x := newSegIndex(newFS(t), "/disk", 0)
	const entries = 20 * blockEntries
	var done atomic.Int64
	var work sync.WaitGroup
	work.Go(func() {
		for i := range int64(entries) {
			if err := x.note(indexPoint{10 * (i + 1), 100 * (i + 1)}, 1, i, 0); err != nil {
				t.Error(err)
				return
			}
			done.Store(i + 1)
			if i%500 == 499 {
				if err := x.close(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for g := range uint64(4) {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(g, 2))
			for n := int64(0); n < entries; {
				if n = done.Load(); n == 0 {
					continue
				}
				i := rnd.Int64N(n)
				if p, err := x.floor(10*(i+1) + 9); err != nil || p.pos != 100*(i+1) {
					t.Errorf("entry %d of %d: %+v, %v", i, n, p, err)
					return
				}
				if rel, err := x.floorTime(i + 1); err != nil || rel != 10*(i+1) {
					t.Errorf("time of entry %d of %d: %d, %v", i, n, rel, err)
					return
				}
			}
		})
	}
	work.Wait()
	if err := x.close(); err != nil {
		t.Fatal(err)
	}
}
