package commitlog

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/leat-io/leat/libs/record"
)

// Appenders, a syncer, readers and lookups at once, over several rolls, and a
// Close in the middle of it.
func TestConcurrentUse(t *testing.T) {
	o := testOptions(newFS(t))
	l, _ := mustOpen(t, o)
	const appenders, each = 4, 120
	var batches [appenders][]byte
	for i := range batches {
		batches[i] = batch(t, 1, fmt.Sprintf("%d%s", i, strings.Repeat("p", 1000)), int64(i))
	}
	var writers, others sync.WaitGroup
	errs := make(chan error, 100)
	report := func(err error) {
		select {
		case errs <- err:
		default:
		}
	}
	for i := range appenders {
		writers.Go(func() {
			last := int64(-1)
			for range each {
				info, err := l.Append([][]byte{batches[i][:100], batches[i][100:]}, 1)
				if err != nil || info.BaseOffset <= last {
					report(fmt.Errorf("append: %+v after %d, %v", info, last, err))
					return
				}
				last = info.BaseOffset
				if end, err := l.Sync(); err != nil || end <= last {
					report(fmt.Errorf("sync covers up to %d, not %d: %v", end, last, err))
					return
				}
			}
		})
	}
	for range 3 {
		others.Go(func() {
			for off := int64(0); ; {
				res, err := l.Read(off, l.DurableEnd(), 20_000, alloc)
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil {
					report(fmt.Errorf("read at %d: %w", off, err))
					return
				}
				if h, err := record.ParseHeader(res.Data); len(res.Data) > 0 && (err != nil || h.BaseOffset != off) {
					report(fmt.Errorf("read at %d: %+v, %w", off, h, err))
					return
				}
				if off = res.NextOffset; off == appenders*each {
					off = 0
				}
				if _, err := l.OffsetForTimestamp(2, off); err != nil && !errors.Is(err, ErrClosed) {
					report(fmt.Errorf("lookup: %w", err))
					return
				}
			}
		})
	}
	writers.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	others.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	o.CleanShutdown, o.RecoveryPoint = true, appenders*each
	l, r := mustOpen(t, o)
	if !r.Clean || l.Segments() < 4 {
		t.Fatalf("%+v in %d segments", r, l.Segments())
	}
	seen := map[byte]int{}
	for _, rec := range readAll(t, l, 0, appenders*each) {
		seen[rec.Value[0]]++
	}
	for i := range appenders {
		if seen[byte('0'+i)] != each {
			t.Fatalf("%d of %d records of appender %d", seen[byte('0'+i)], each, i)
		}
	}
}
