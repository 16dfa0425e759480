package commitlog

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// lifeBatch is a batch of one record that the life of a log knows of.
type lifeBatch struct {
	key, value string
	header     record.Header
}

// life is the workload of the crash model, and what has to be true of a log after
// any part of it: it does everything that a log can do, from its creation to its
// deletion, and keeps up with what was promised.
type life struct {
	opts  Options
	log   *Log
	now   time.Time
	tried map[int64]lifeBatch // by offset, appended or perhaps appended
	end   int64               // one past the last of them

	synced  int64 // promised
	noted   int64 // recovery point
	startLo int64 // log start promised
	startHi int64 // log start that may have come into force
	cleanTo int64 // offset below which superseded records may be gone
	resetTo int64 // -1: none tried
	gone    bool  // deletion tried
	epoch   int32
	next    map[int64]int32 // sequence by producer

	retry                                  bool // repeat what found no space
	noSpace                                int
	rolls, cleanings, truncations, deletes int
}

// lifeBatches saves encoding the same batches a thousand times.
type lifeBatches map[string][]byte

func (c lifeBatches) get(key, value string, producer int64, seq int32) ([]byte, error) {
	id := fmt.Sprint(key, value[:4], producer, seq)
	if b := c[id]; b != nil {
		return b, nil
	}
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence = producer, 0, seq
	b, err := record.NewBuilder(o)
	if err != nil {
		return nil, err
	}
	if _, err := b.Append(&record.Record{Key: []byte(key), Value: []byte(value), Timestamp: int64(seq)}); err != nil {
		return nil, err
	}
	c[id], err = b.Build()
	return c[id], err
}

func newLife(o Options) *life {
	o.Config.Cleanup = CleanupCompact | CleanupDelete
	o.Config.RetentionBytes = 150_000
	o.Config.ProducerExpiration = 1000 * time.Hour
	return &life{opts: o, now: o.Now(), tried: map[int64]lifeBatch{}, resetTo: -1, next: map[int64]int32{}}
}

// do runs one operation of the log, again after a full disk if the test wants that.
func (w *life) do(op func() error) error {
	for {
		err := op()
		var full *NoSpaceError
		if !w.retry || !errors.As(err, &full) {
			return err
		}
		w.noSpace++
	}
}

func (w *life) open(clean bool) error {
	w.opts.CleanShutdown, w.opts.RecoveryPoint, w.opts.HighWatermark = clean, w.noted, w.synced
	var err error
	w.log, _, err = Open(w.opts)
	return err
}

// append adds n batches of a few producers and keys; synced after every third.
func (w *life) append(batches lifeBatches, n int) error {
	for range n {
		offset := w.end
		producer := offset % 2
		seq := w.next[producer]
		key := fmt.Sprintf("key-%d", offset%5)
		value := fmt.Sprintf("%04d", offset) + strings.Repeat("w", 8000)
		b, err := batches.get(key, value, producer, seq)
		if err != nil {
			return err
		}
		h, err := record.ParseHeader(b)
		if err != nil {
			return err
		}
		h.BaseOffset, h.PartitionLeaderEpoch = offset, w.epoch
		w.tried[offset] = lifeBatch{key, value, h}
		w.end = offset + 1
		segments := w.log.Segments()
		if err := w.do(func() error {
			if c := w.log.CheckProducer(&h); c.Verdict != ProducerOK {
				return fmt.Errorf("producer %d, sequence %d: %+v", producer, seq, c)
			}
			_, err := w.log.Append([][]byte{b[:100], b[100:]}, w.epoch)
			return err
		}); err != nil {
			return err
		}
		w.next[producer] = seq + 1
		if w.log.Segments() > segments {
			w.rolls++
		}
		switch offset % 6 {
		case 2:
			if w.synced, err = w.log.Sync(); err != nil {
				return err
			}
		case 5:
			end, err := w.log.Checkpoint()
			if err != nil {
				return err
			}
			w.synced, w.noted = end, end
		}
	}
	end, err := w.log.Sync()
	w.synced = max(w.synced, end)
	return err
}

// truncate takes the last few batches away, and goes on in a new leader epoch.
func (w *life) truncate(n int64) error {
	to := w.end - n
	w.synced, w.noted = min(w.synced, to), min(w.noted, to)
	var end int64
	err := w.do(func() (err error) { end, err = w.log.TruncateTo(to); return err })
	if err != nil {
		return err
	}
	if end != to {
		return fmt.Errorf("truncated to %d instead of %d", end, to)
	}
	for offset := range w.tried {
		if offset >= to {
			delete(w.tried, offset)
		}
	}
	w.end, w.synced = to, to
	clear(w.next)
	for offset := range to {
		if b, ok := w.tried[offset]; ok {
			w.next[b.header.ProducerID] = b.header.BaseSequence + 1
		}
	}
	w.truncations++
	w.epoch++
	return nil
}

// highWatermark is an offset that no truncation of this life goes below.
func (w *life) highWatermark() int64 { return max(0, w.synced-6) }

func (w *life) clean() error {
	w.cleanTo = max(w.cleanTo, w.highWatermark())
	o := DefaultCleanOptions(w.highWatermark())
	o.Force, o.Now, o.DedupeBufferBytes = true, w.now, MinDedupeBufferBytes
	err := w.do(func() error { _, err := w.log.Clean(o); return err })
	if err == nil {
		w.cleanings++
	}
	return err
}

func (w *life) deleteRecords(n int64) error {
	to := w.log.StartOffset() + n
	w.startHi = max(w.startHi, to)
	err := w.do(func() error { return w.log.AdvanceLogStart(to) })
	if err == nil {
		w.startLo = to
		w.deletes++
	}
	return err
}

func (w *life) retain() error {
	w.now = w.now.Add(time.Hour)
	w.startHi = max(w.startHi, w.highWatermark())
	err := w.do(func() error { _, err := w.log.Retain(w.now, w.highWatermark()); return err })
	if err == nil {
		w.startLo = w.log.StartOffset()
		w.startHi = w.startLo
	}
	return err
}

func (w *life) restart() error {
	if err := w.log.Close(); err != nil {
		return err
	}
	w.synced, w.noted = w.end, w.end
	return w.open(true)
}

func (w *life) reset(to int64) error {
	w.resetTo, w.synced, w.noted = to, 0, 0
	err := w.do(func() error { return w.log.ResetTo(to) })
	if err != nil {
		return err
	}
	clear(w.tried)
	clear(w.next)
	w.end, w.synced, w.noted, w.startLo, w.startHi, w.cleanTo, w.resetTo = to, to, to, to, to, 0, -1
	return nil
}

// run is the life, up to the first error.
func (w *life) run(batches lifeBatches) error {
	steps := []func() error{
		func() error { return w.append(batches, 26) },
		func() error { return w.truncate(11) }, // back over a segment's beginning
		func() error { return w.append(batches, 20) },
		w.clean,
		func() error { return w.append(batches, 7) },
		func() error { return w.deleteRecords(3) },
		w.restart,
		func() error { return w.append(batches, 9) },
		w.clean,
		w.retain,
		func() error { return w.truncate(4) },
		func() error { return w.append(batches, 14) },
		func() error { return w.deleteRecords(2) },
		w.retain,
		w.clean,
		w.restart,
		func() error { return w.reset(w.end + 7) },
		func() error { return w.append(batches, 9) },
		w.restart,
		func() error { w.gone = true; return w.log.Delete() },
	}
	err := w.open(false)
	for _, step := range steps {
		if err != nil {
			return err
		}
		err = step()
	}
	return err
}

// verify opens what is left of the log and compares it with what was promised.
func (w *life) verify(disk *memfs.FS) error {
	if _, err := PurgeDeleted(disk, "/disk"); err != nil {
		return err
	}
	if _, err := disk.Stat(testDir); err != nil && w.gone {
		return nil
	}
	o := w.opts
	o.FS, o.CleanShutdown, o.RecoveryPoint, o.HighWatermark = disk, false, w.noted, w.synced
	l, report, err := Open(o)
	if err != nil {
		return err
	}
	err = w.compare(l, &report)
	if err == nil {
		err = w.goOn(l)
	}
	err = errors.Join(err, l.Abort())
	if n := disk.OpenFiles(); err == nil && n > 0 {
		err = fmt.Errorf("%d files are left open", n)
	}
	return err
}

func (w *life) compare(l *Log, report *RecoveryReport) error {
	if w.resetTo >= 0 && report.Start == w.resetTo {
		if report.End != w.resetTo {
			return fmt.Errorf("after a reset: %+v", report)
		}
		return nil
	}
	if report.End < w.synced || report.End > w.end || report.Start < w.startLo || report.Start > w.startHi {
		return fmt.Errorf("the log goes from %d to %d; want from between %d and %d to between %d and %d",
			report.Start, report.End, w.startLo, w.startHi, w.synced, w.end)
	}
	newest := map[string]int64{}
	for offset := range report.End {
		if b, ok := w.tried[offset]; ok && offset < w.cleanTo {
			newest[b.key] = offset
		}
	}
	producers := newProducerState(0)
	seen := map[int64]bool{}
	for offset := report.Start; offset < report.End; {
		res, err := l.Read(offset, report.End, 1, alloc)
		if err != nil {
			return err
		}
		offset = res.NextOffset
		if len(res.Data) == 0 {
			break
		}
		if _, err := record.Validate([][]byte{res.Data}, record.ValidateOptions{}); err != nil {
			return err
		}
		records, err := record.Decode(res.Data, 0)
		if err != nil {
			return err
		}
		for _, r := range records {
			want, ok := w.tried[r.Offset]
			if !ok || string(r.Value) != want.value || l.EpochAt(r.Offset) != want.header.PartitionLeaderEpoch {
				return fmt.Errorf("offset %d: %q in epoch %d, want %+v", r.Offset, r.Value[:4], l.EpochAt(r.Offset), want.header)
			}
			if seen[r.Offset] {
				return fmt.Errorf("offset %d was read twice", r.Offset)
			}
			seen[r.Offset] = true
		}
	}
	for offset := range report.End {
		want, ok := w.tried[offset]
		if !ok {
			continue
		}
		producers.apply(&want.header, 0, record.Fence{}, 0)
		if superseded := offset < w.cleanTo && newest[want.key] > offset; offset >= report.Start && !seen[offset] && !superseded {
			return fmt.Errorf("offset %d, key %s, is gone; superseded below %d: %v", offset, want.key, w.cleanTo, newest)
		}
	}
	return w.compareProducers(l, &producers)
}

// compareProducers asks for the last batch of each producer, and the next one.
func (w *life) compareProducers(l *Log, want *producerState) error {
	for id, p := range want.byID {
		last := p.latest()
		h := record.Header{ProducerID: id, BaseSequence: last.baseSeq}
		if c := l.CheckProducer(&h); c.Verdict != ProducerDuplicate || c.BaseOffset != last.base {
			return fmt.Errorf("producer %d: %+v, want a duplicate of %+v", id, c, *last)
		}
		h.BaseSequence++
		if c := l.CheckProducer(&h); c.Verdict != ProducerOK {
			return fmt.Errorf("producer %d: %+v after %+v", id, c, *last)
		}
	}
	return nil
}

// goOn appends, and opens once more: what recovery kept is durable.
func (w *life) goOn(l *Log) error {
	end := l.EndOffset()
	if _, err := l.Append([][]byte{w.after()}, 1000); err != nil {
		return err
	}
	if got, err := l.Sync(); err != nil || got != end+1 {
		return fmt.Errorf("the durable end is %d after an append at %d: %w", got, end, err)
	}
	res, err := l.Read(end, end+1, 1, alloc)
	if err != nil || res.FirstBatchBase != end {
		return fmt.Errorf("%+v, %w", res, err)
	}
	return nil
}

func (w *life) after() []byte {
	b, err := lifeBatches{}.get("after", "after", 99, 0)
	if err != nil {
		panic(err)
	}
	return b
}

// A whole life of a log, cut at every I/O step, over a disk that keeps nothing, all,
// or parts of what is unsynced; and then its recovery, at a step that moves along.
// cases 4, 13, 46 and more
func TestCrashModel(t *testing.T) {
	t.Parallel()
	whole := newLife(testOptions(newFS(t)))
	if err := whole.run(lifeBatches{}); err != nil {
		t.Fatal(err)
	}
	var lock sync.Mutex
	steps := math.MaxInt
	var cuts, recoveries atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d I/O steps with %d rolls, %d compactions, %d truncations, %d record deletions; cut %d times, and %d times in the recovery",
			steps, whole.rolls, whole.cleanings, whole.truncations, whole.deletes, cuts.Load(), recoveries.Load())
		if steps < 500 || whole.rolls < 3 || whole.cleanings < 2 || whole.truncations < 2 || cuts.Load() < int64(3*(steps/crashStride)) {
			t.Error("that is less than was meant to be met")
		}
	})
	const shards = 4
	for name, keeper := range keepers() {
		for shard := range shards {
			t.Run(fmt.Sprintf("%s %d", name, shard), func(t *testing.T) {
				t.Parallel()
				batches := lifeBatches{}
				for step := shard * crashStride; ; step += shards * crashStride {
					disk := newFS(t)
					faulty := errorfs.Wrap(disk)
					powerCut(faulty, step)
					w := newLife(testOptions(faulty))
					err := w.run(batches)
					if err == nil {
						lock.Lock()
						steps = min(steps, step) // the first one that cuts nothing
						lock.Unlock()
						break
					}
					if !errors.Is(err, errPower) {
						t.Fatalf("cut at step %d: %v", step, err)
					}
					_ = w.log.abort()
					disk.Crash(keeper(step))
					for cut := step % 5; ; cut += 5 {
						again := errorfs.Wrap(disk)
						powerCut(again, cut)
						o := w.opts
						o.FS, o.CleanShutdown, o.RecoveryPoint, o.HighWatermark = again, false, w.noted, w.synced
						if _, statErr := disk.Stat(testDir); statErr != nil && w.gone {
							break
						}
						l, _, err := Open(o)
						if err == nil {
							_ = l.Abort()
							break
						}
						if !errors.Is(err, errPower) {
							t.Fatalf("cut at step %d, recovery at %d: %v", step, cut, err)
						}
						recoveries.Add(1)
						disk.Crash(keeper(step + cut))
					}
					if err := w.verify(disk); err != nil {
						t.Fatalf("cut at step %d: %v", step, err)
					}
					cuts.Add(1)
				}
			})
		}
	}
}

// abort is Abort of a log that may not have been opened.
func (l *Log) abort() error {
	if l == nil {
		return nil
	}
	return l.Abort()
}

// cases 44 and 45: the same life meets, at every call that changes the disk, EIO or
// a full disk, with part of a write done or none. After EIO nothing more is
// acknowledged; after a full disk it goes on; either way nothing promised is lost.
func TestFaultModel(t *testing.T) {
	t.Parallel()
	const shards = 3
	var met, undone, sticky atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d faults; after %d the log went on, after %d it had failed", met.Load(), undone.Load(), sticky.Load())
		if met.Load() < 1000/crashStride || undone.Load() < 100/crashStride || sticky.Load() < 500/crashStride {
			t.Error("that is less than was meant to be met")
		}
	})
	for _, kind := range []error{syscall.EIO, syscall.ENOSPC} {
		for shard := range shards {
			t.Run(fmt.Sprintf("%v %d", kind, shard), func(t *testing.T) {
				t.Parallel()
				batches := lifeBatches{}
				for step := shard * crashStride; ; step += shards * crashStride {
					disk := newFS(t)
					faulty := errorfs.Wrap(disk)
					faulty.Add(errorfs.Rule{After: step, Times: 1, Err: kind, Short: 1500 * (step % 3)})
					w := newLife(testOptions(faulty))
					w.retry = true
					err := w.run(batches)
					hit := err != nil || w.noSpace > 0
					if err != nil && !errors.Is(err, kind) {
						t.Fatalf("fault at step %d: %v", step, err)
					}
					if w.log != nil && errors.Is(err, ErrFailed) {
						sticky.Add(1)
						if _, again := w.log.Append([][]byte{w.after()}, 1000); !errors.Is(again, ErrFailed) && !errors.Is(again, ErrClosed) {
							t.Fatalf("fault at step %d: append afterwards: %v", step, again)
						}
						if _, again := w.log.Sync(); !errors.Is(again, ErrFailed) && !errors.Is(again, ErrClosed) {
							t.Fatalf("fault at step %d: sync afterwards: %v", step, again)
						}
					}
					_ = w.log.abort()
					disk.Crash(nil)
					if err := w.verify(disk); err != nil {
						t.Fatalf("fault at step %d: %v", step, err)
					}
					if hit {
						met.Add(1)
						if err == nil {
							undone.Add(1)
						}
					}
					if faulty.Count(errorfs.OpSync) > 0 && err == nil && !hit && w.gone && stepsOf(faulty) <= step {
						break
					}
				}
			})
		}
	}
}

// stepsOf is how many calls that change the disk were tried.
func stepsOf(f *errorfs.FS) int {
	n := 0
	for _, op := range []errorfs.Op{
		errorfs.OpCreate, errorfs.OpRemove, errorfs.OpRemoveAll, errorfs.OpRename, errorfs.OpMkdirAll,
		errorfs.OpSyncDir, errorfs.OpWrite, errorfs.OpSync, errorfs.OpTruncate,
	} {
		n += f.Count(op)
	}
	return n
}
