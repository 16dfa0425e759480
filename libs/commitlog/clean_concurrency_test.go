package commitlog

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// Cleanings run while others append, sync, read, look up timestamps, move the
// log's start and apply retention: both policies together. Readers see offsets
// rise, never a damaged batch, and of each key at least the newest record.
func TestCleanBesideEverythingElse(t *testing.T) {
	disk := newFS(t)
	o := testOptions(disk)
	o.Config.Cleanup = CleanupCompact | CleanupDelete
	o.Config.RetentionBytes = 1 << 20
	l, _ := mustOpen(t, o)
	const rounds = 400
	done := make(chan struct{})
	var wg sync.WaitGroup
	background := func(name string, f func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := f(); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		}()
	}
	background("clean", func() error {
		_, err := l.Clean(cleanOptions(l.DurableEnd()))
		return err
	})
	background("retain", func() error {
		_, err := l.Retain(o.Now(), l.DurableEnd())
		return err
	})
	background("lookup", func() error {
		_, err := l.OffsetForTimestamp(1_700_000_000_000, math.MaxInt64)
		return err
	})
	background("read", func() error { return readThrough(l) })
	for i := range rounds {
		b := buildKV(t, 1_700_000_000_000+int64(i), record.DefaultBuilderOptions(),
			kv{key: fmt.Sprint(i % 7), value: fmt.Sprint(i) + strings.Repeat("x", 4000)}, kv{key: fmt.Sprint("t", i%3), tombstone: i%2 == 0, value: "v"})
		mustAppend(t, l, b, int32(i/100))
		if i%5 == 4 {
			mustSync(t, l)
		}
		if i%150 == 149 {
			if err := l.AdvanceLogStart(l.DurableEnd() - 20); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustSync(t, l)
	close(done)
	wg.Wait()
	newest := map[string]string{}
	for _, r := range readAll(t, l, l.StartOffset(), math.MaxInt64) {
		newest[string(r.Key)] = string(r.Value)
	}
	for i := rounds - 7; i < rounds; i++ {
		if got := newest[fmt.Sprint(i%7)]; got != fmt.Sprint(i)+strings.Repeat("x", 4000) {
			t.Errorf("key %d has %.10q at the end, want that of round %d", i%7, got, i)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, disk, testDir, VerifyOptions{}); !r.OK() {
		t.Fatalf("%+v", r)
	}
}

// readThrough reads a log from wherever it begins to its end. That it begins
// elsewhere by the time it is read is no fault.
func readThrough(l *Log) error {
	last := int64(-1)
	for from := l.StartOffset(); ; {
		res, err := l.Read(from, math.MaxInt64, 9000, alloc)
		var out *OffsetOutOfRangeError
		if errors.As(err, &out) {
			from = out.Start
			continue
		}
		if err != nil {
			return err
		}
		for data := res.Data; len(data) > 0; {
			b, rest, err := record.NextBatch(data)
			if err != nil {
				return err
			}
			h, err := record.Validate([][]byte{b}, record.ValidateOptions{})
			if err != nil {
				return err
			}
			if h.BaseOffset <= last {
				return fmt.Errorf("batch at %d after %d", h.BaseOffset, last)
			}
			last, data = h.LastOffset(), rest
		}
		if res.NextOffset <= from {
			return nil
		}
		from = res.NextOffset
	}
}

// Truncation below what is being cleaned ends the cleaning, and nothing else.
func TestCleanBesideTruncation(t *testing.T) {
	for cut := range 3 {
		disk := newFS(t)
		c := newCleanLog(t, disk)
		for i := range 40 {
			c.put(kv{key: fmt.Sprint(i % 5), value: strings.Repeat("x", 30_000)})
		}
		c.roll()
		end := mustSync(t, c.Log)
		o := cleanOptions(end)
		calls := 0
		to := c.segs[1+cut*4].base + 1
		o.Pace = func(int) error {
			if calls++; calls == 1+cut {
				_, err := c.TruncateTo(to)
				return err
			}
			return nil
		}
		r, err := c.Clean(o)
		if err != nil || calls <= cut {
			t.Fatalf("cut %d: %+v, %v after %d calls", cut, r, err, calls)
		}
		if m := c.currentMarks(); m.cleanedBelow > c.EndOffset() || c.EndOffset() > to {
			t.Fatalf("cut %d: cleaned up to %d of %d, truncated to %d", cut, m.cleanedBelow, c.EndOffset(), to)
		}
		c.put(kv{key: "0", value: "after"})
		c.reopen(cut%2 == 0)
		if got := c.has(); !strings.HasSuffix(got[len(got)-1], ":0=after") {
			t.Fatalf("cut %d: the log ends with %.30s", cut, got[len(got)-1])
		}
	}
}

// The files of a log that was deleted while it was cleaned stay away.
func TestCleanBesideDelete(t *testing.T) {
	disk := memfs.New()
	if err := disk.MkdirAll("/disk"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		c := newCleanLog(t, disk)
		for i := range 60 {
			c.put(kv{key: fmt.Sprint(i % 3), value: strings.Repeat("x", 30_000)})
		}
		end := mustSync(t, c.Log)
		started := make(chan struct{})
		var once sync.Once
		o := cleanOptions(end)
		o.Pace = func(int) error {
			once.Do(func() { close(started) })
			return nil
		}
		done := make(chan error, 1)
		go func() {
			_, err := c.Clean(o)
			once.Do(func() { close(started) })
			done <- err
		}()
		select {
		case <-started:
		case <-time.After(time.Minute):
			t.Fatal("the cleaning did not begin")
		}
		if err := c.Delete(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		if _, err := disk.Stat(testDir); err == nil {
			t.Fatal("the folder came back")
		}
	}
}
