package commitlog

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

var errPower = errors.New("power cut")

// powerCut lets the first n calls that change the disk through and fails all later
// ones. It returns how many went through, so far.
func powerCut(f *errorfs.FS, n int) *int {
	done := new(int)
	f.OnCall(func(op errorfs.Op, _ string) error {
		if !op.Changes() {
			return nil
		}
		if *done >= n {
			return errPower
		}
		*done++
		return nil
	})
	return done
}

// history is what a workload did before the lights went out.
type history struct {
	tried  []string // values appended, or perhaps appended, in order
	synced int64    // what a Sync has answered
	noted  int64    // the recovery point that the owner noted
	epoch  int32
}

// crashBatches makes the batches of the workload once: big ones, so that it rolls.
func crashBatches(t *testing.T, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = batch(t, 1, fmt.Sprintf("%d:%s", i, strings.Repeat("z", 9000)), int64(i))
	}
	return out
}

// workload opens, appends with a rising epoch, rolls, syncs, closes and opens
// again, until a call fails.
func workload(o Options, batches [][]byte, h *history) error {
	l, _, err := Open(o)
	if err != nil {
		return err
	}
	defer func() { _ = l.Abort() }()
	for i, b := range batches {
		h.tried = append(h.tried, fmt.Sprintf("%d:%s-0", i, strings.Repeat("z", 9000)))
		h.epoch = int32(i / 5)
		if _, err := l.Append([][]byte{b}, h.epoch); err != nil {
			return err
		}
		if i%3 == 2 {
			if h.synced, err = l.Sync(); err != nil {
				return err
			}
		}
		if i%9 == 8 {
			h.noted = h.synced
		}
		if i == len(batches)/2 {
			if err := l.Close(); err != nil {
				return err
			}
			h.synced = l.EndOffset()
			h.noted, o.RecoveryPoint, o.CleanShutdown = h.synced, h.synced, true
			again, _, err := Open(o)
			if err != nil {
				return err
			}
			l = again
		}
	}
	return l.Close()
}

// keepers are what a disk may do with unsynced changes.
func keepers() map[string]func(seed int) func() int {
	return map[string]func(int) func() int{
		"nothing unsynced is kept": func(int) func() int { return nil },
		"all is kept":              func(int) func() int { return func() int { return 1000 } },
		"parts are kept": func(seed int) func() int {
			x := uint32(seed)*2654435761 + 1
			return func() int {
				x = x*1664525 + 1013904223
				return int(x>>16) % 1400 // all of it, two times in seven
			}
		},
	}
}

// The workload is cut at every I/O step, and then its recovery, at every one of
// its own: what was synced is there, what is there is what was appended, and the
// log goes on.
func TestCrashAtEveryStep(t *testing.T) {
	batches := crashBatches(t, 24)
	steps, recoverySteps := 0, 0
	for name, keeper := range keepers() {
		for step := 0; ; step++ {
			disk := newFS(t)
			faulty := errorfs.Wrap(disk)
			done := powerCut(faulty, step)
			var h history
			err := workload(testOptions(faulty), batches, &h)
			if err == nil {
				break
			}
			if !errors.Is(err, errPower) {
				t.Fatalf("%s, cut at step %d: %v", name, step, err)
			}
			steps++
			disk.Crash(keeper(step))
			where := fmt.Sprintf("%s, cut at step %d of %d", name, step, *done)
			// The recovery is cut too, at a step that moves along with the first one,
			// so that over the run each meets many others.
			for cut := step % 7; ; cut += 7 {
				again := errorfs.Wrap(disk)
				powerCut(again, cut)
				if reopen(again, &h) == nil {
					break
				}
				recoverySteps++
				if n := disk.OpenFiles(); n != 0 {
					t.Fatalf("%s: %d files are open after a failed recovery", where, n)
				}
				disk.Crash(keeper(step + cut))
			}
			verifyAfterCrash(t, disk, &h, where)
		}
	}
	t.Logf("%d crashes in the workload, %d in its recovery", steps, recoverySteps)
	if steps < 200 || recoverySteps < 100 {
		t.Fatalf("only %d and %d crash points were met", steps, recoverySteps)
	}
}

func reopenOptions(o Options, h *history) Options {
	o.RecoveryPoint, o.HighWatermark = h.noted, h.synced
	return o
}

func reopen(fsys *errorfs.FS, h *history) error {
	l, _, err := Open(reopenOptions(testOptions(fsys), h))
	if err != nil {
		return err
	}
	return l.Abort()
}

func verifyAfterCrash(t *testing.T, disk *memfs.FS, h *history, where string) {
	t.Helper()
	l, report, err := Open(reopenOptions(testOptions(disk), h))
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	defer func() {
		if err := l.Abort(); err != nil {
			t.Fatal(err)
		}
	}()
	if report.End < h.synced || report.End > int64(len(h.tried)) {
		t.Fatalf("%s: %d records after %d were synced and %d tried", where, report.End, h.synced, len(h.tried))
	}
	check := func(end int64) {
		t.Helper()
		got := values(readAll(t, l, 0, 1<<40))
		if int64(len(got)) != end {
			t.Fatalf("%s: read %d records of %d", where, len(got), end)
		}
		for i, v := range got[:report.End] {
			if v != h.tried[i] {
				t.Fatalf("%s: record %d is another one", where, i)
			}
		}
	}
	check(report.End)
	for e := int32(0); e <= l.LatestEpoch(); e++ {
		end, ok := l.EndOffsetForEpoch(e)
		if want := min(int64(e+1)*5, report.End); !ok || end != (EpochEnd{e, want}) {
			t.Fatalf("%s: epoch %d ends at %+v, want %d", where, e, end, want)
		}
	}
	mustAppend(t, l, batch(t, 1, "after", 1), h.epoch)
	if end := mustSync(t, l); end != report.End+1 {
		t.Fatalf("%s: durable end %d", where, end)
	}
	check(report.End + 1)
}

// case 45: one EIO, on each write and fsync in turn, once, and nothing is
// acknowledged any more; a restart finds what was acknowledged before.
func TestFaultsAreSticky(t *testing.T) {
	batches := crashBatches(t, 12)
	for _, kind := range []error{syscall.EIO, syscall.ENOSPC} {
		ops := []errorfs.Op{errorfs.OpSync, errorfs.OpSyncDir, errorfs.OpRename}
		if kind == syscall.EIO {
			ops = append(ops, errorfs.OpWrite, errorfs.OpCreate)
		}
		for _, op := range ops {
			met := 0
			for after := 0; ; after++ {
				disk := newFS(t)
				faulty := errorfs.Wrap(disk)
				l, _, err := Open(testOptions(faulty))
				if err != nil {
					t.Fatal(err)
				}
				faulty.Add(errorfs.Rule{Ops: []errorfs.Op{op}, After: after, Times: 1, Err: kind, Short: 100 * (after % 2)})
				h := history{}
				err = appendAll(l, batches, &h)
				if err == nil {
					if err := l.Abort(); err != nil {
						t.Fatal(err)
					}
					break
				}
				met++
				var failed *FailedError
				if !errors.As(err, &failed) || !errors.Is(err, kind) || !errors.Is(err, ErrFailed) {
					t.Fatalf("%s %d: %v", op, after, err)
				}
				durable := l.DurableEnd()
				for range 3 {
					if _, err := l.Append([][]byte{batches[0]}, 9); !errors.As(err, &failed) {
						t.Fatalf("%s %d: append after the fault: %v", op, after, err)
					}
					if end, err := l.Sync(); !errors.As(err, &failed) || end != durable {
						t.Fatalf("%s %d: sync after the fault: %d, %v", op, after, end, err)
					}
				}
				// Reading goes on.
				if got := readAll(t, l, 0, h.synced); int64(len(got)) != h.synced {
					t.Fatalf("%s %d: read %d records of %d", op, after, len(got), h.synced)
				}
				if err := l.Close(); !errors.Is(err, ErrFailed) {
					t.Fatalf("%s %d: close: %v", op, after, err)
				}
				disk.Crash(nil)
				verifyAfterCrash(t, disk, &h, fmt.Sprintf("%s %d", op, after))
			}
			if met == 0 {
				t.Fatalf("no %s was met", op)
			}
		}
	}
}

// case 44, the log's part: a full disk, met at each write and creation in turn, with
// part of the bytes written or none: nothing was appended, nothing is acknowledged,
// reading goes on, and so does appending once there is space.
func TestNoSpace(t *testing.T) {
	batches := crashBatches(t, 12)
	for _, op := range []errorfs.Op{errorfs.OpWrite, errorfs.OpCreate} {
		met := 0
		for after := 0; ; after++ {
			disk := newFS(t)
			faulty := errorfs.Wrap(disk)
			l, _, err := Open(testOptions(faulty))
			if err != nil {
				t.Fatal(err)
			}
			faulty.Add(errorfs.Rule{Ops: []errorfs.Op{op}, After: after, Times: 4, Err: syscall.ENOSPC, Short: 100 * (after % 3)})
			var h history
			full := 0
			for i, b := range batches {
				h.tried = append(h.tried, fmt.Sprintf("%d:%s-0", i, strings.Repeat("z", 9000)))
				h.epoch = int32(i / 5)
				for {
					_, err := l.Append([][]byte{b}, h.epoch)
					if err == nil {
						break
					}
					full++
					var noSpace *NoSpaceError
					if !errors.As(err, &noSpace) || !errors.Is(err, syscall.ENOSPC) || l.EndOffset() != int64(i) || l.Err() != nil {
						t.Fatalf("%s %d: %v, end %d", op, after, err, l.EndOffset())
					}
					if got := readAll(t, l, 0, 1<<40); len(got) != i {
						t.Fatalf("%s %d: read %d records of %d", op, after, len(got), i)
					}
				}
				if h.synced, err = l.Sync(); err != nil || h.synced != int64(i+1) {
					t.Fatalf("%s %d: %d, %v", op, after, h.synced, err)
				}
			}
			if full > 0 {
				met++
			}
			if after%2 == 0 {
				err = l.Close()
			} else {
				err = l.Abort()
			}
			if err != nil {
				t.Fatal(err)
			}
			disk.Crash(nil)
			verifyAfterCrash(t, disk, &h, fmt.Sprintf("%s %d", op, after))
			if full == 0 && faulty.Count(op) <= after {
				break
			}
		}
		if met < 3 {
			t.Fatalf("a full disk was met %d times at %s", met, op)
		}
	}
}

func appendAll(l *Log, batches [][]byte, h *history) error {
	for i, b := range batches {
		h.tried = append(h.tried, fmt.Sprintf("%d:%s-0", i, strings.Repeat("z", 9000)))
		h.epoch = int32(i / 5)
		if _, err := l.Append([][]byte{b}, h.epoch); err != nil {
			return err
		}
		end, err := l.Sync()
		if err != nil {
			return err
		}
		h.synced = end
	}
	return nil
}

// case 47, the log's part: a segment that cannot be made leaves no descriptor open.
func TestFailedRollLeaksNothing(t *testing.T) {
	disk := newFS(t)
	faulty := errorfs.Wrap(disk)
	l, _, err := Open(testOptions(faulty))
	if err != nil {
		t.Fatal(err)
	}
	open := disk.OpenFiles()
	faulty.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpCreate}, Path: "*.log", Err: syscall.EMFILE})
	var h history
	if err := appendAll(l, crashBatches(t, 12), &h); !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("%v", err)
	}
	if n := disk.OpenFiles(); n != open+1 { // the active .log
		t.Fatalf("%d files are open, %d were before", n, open)
	}
	if err := l.Close(); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	if n := disk.OpenFiles(); n != 0 {
		t.Fatalf("%d files are left open", n)
	}
}

// A deletion cut at any step leaves the log whole, or gone from its place; never
// half of it where it could be opened.
func TestCrashDuringDelete(t *testing.T) {
	batches := crashBatches(t, 12)
	for name, keeper := range keepers() {
		seeds := 1
		if name == "parts are kept" {
			seeds = 20
		}
		for step := 0; ; step++ {
			done := true
			for seed := range seeds {
				done = deleteAndCrash(t, batches, step, keeper(seed), fmt.Sprintf("%s (%d), cut at step %d", name, seed, step)) && done
			}
			if done {
				break
			}
		}
	}
}

// deleteAndCrash reports whether the deletion came to its end.
func deleteAndCrash(t *testing.T, batches [][]byte, step int, keep func() int, where string) bool {
	t.Helper()
	disk := newFS(t)
	faulty := errorfs.Wrap(disk)
	l, _, err := Open(testOptions(faulty))
	if err != nil {
		t.Fatal(err)
	}
	var h history
	if err := appendAll(l, batches, &h); err != nil {
		t.Fatal(err)
	}
	powerCut(faulty, step)
	err = l.Delete()
	disk.Crash(keep)
	if _, statErr := disk.Stat(testDir); statErr == nil {
		if err == nil {
			t.Fatalf("%s: the folder came back after Delete had returned", where)
		}
		verifyAfterCrash(t, disk, &h, where)
	}
	if _, err := PurgeDeleted(disk, "/disk"); err != nil {
		t.Fatal(err)
	}
	return err == nil
}
