package commitlog

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/vfs/errorfs"
)

// case 44: a reset that finds no room, also once it is on record, is finished by a call
// that is repeated, or by the next start. Meanwhile the log is the empty one that it is
// to be, and takes nothing.
func TestAResetThatFindsNoRoomIsFinishedLater(t *testing.T) {
	begun := map[errorfs.Op]int{}
	for _, op := range []errorfs.Op{errorfs.OpWrite, errorfs.OpCreate, errorfs.OpRemove} {
		for after := 0; ; after++ {
			met := false
			for how := range 5 {
				where := fmt.Sprintf("%s %d, way %d", op, after, how)
				ok, on := resetWithoutRoom(t, where, op, after, how)
				met = met || ok
				if on {
					begun[op]++
				}
			}
			if !met {
				break
			}
		}
		if begun[op] < 5 {
			t.Errorf("a reset on record found no room %d times at %s", begun[op], op)
		}
	}
}

// resetWithoutRoom is one reset that is to meet a full disk at an operation. met says
// that it did, and begun that it was on record by then.
func resetWithoutRoom(t *testing.T, where string, op errorfs.Op, after, how int) (met, begun bool) {
	t.Helper()
	disk := newFS(t)
	faulty := errorfs.Wrap(disk)
	l, _ := segmented(t, faulty, 4)
	mustAppend(t, l, batch(t, 3, "s", 1), 9)
	if _, err := l.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	start, end, to := int64(0), l.EndOffset(), int64(1000)
	reset := func() error { return l.ResetTo(to) }
	if how == 4 { // a truncation to a start within a batch leaves nothing above it
		start = end - 2
		if err := l.AdvanceLogStart(start); err != nil {
			t.Fatal(err)
		}
		to = start
		reset = func() error { _, err := l.TruncateTo(to); return err }
	}
	faulty.Add(errorfs.Rule{Ops: []errorfs.Op{op}, After: after, Err: syscall.ENOSPC, Short: 3})
	err := reset()
	if err == nil {
		return false, false
	}
	var full *NoSpaceError
	if !errors.As(err, &full) || !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrFailed) {
		t.Fatalf("%s: %v", where, err)
	}
	if !full.Begun {
		if l.StartOffset() != start || l.EndOffset() != end || l.Err() != nil {
			t.Fatalf("%s: nothing was changed, and the log is [%d,%d): %v", where, l.StartOffset(), l.EndOffset(), l.Err())
		}
		return true, false
	}
	if err := reset(); !errors.As(err, &full) || !full.Begun {
		t.Fatalf("%s: tried again without room: %v", where, err)
	}
	isUnfinished(t, l, to, where)
	switch how {
	case 0: // a crash
		disk.Crash(nil)
	case 1:
		faulty.Clear()
		if err := l.Close(); err != nil {
			t.Fatalf("%s: close: %v", where, err)
		}
	case 2: // it is to begin elsewhere by now
		faulty.Clear()
		to = 7
		fallthrough
	default:
		faulty.Clear()
		if err := reset(); err != nil || l.Err() != nil || l.StartOffset() != to || l.EndOffset() != to {
			t.Fatalf("%s: tried again: %v; [%d,%d): %v", where, err, l.StartOffset(), l.EndOffset(), l.Err())
		}
		mustAppendAt(t, l, at(batch(t, 2, "r", 1), to, 8))
		mustSync(t, l)
		if got := values(readAll(t, l, to, 1<<40)); len(got) != 2 || got[1] != "r-1" {
			t.Fatalf("%s: %v", where, got)
		}
		disk.Crash(nil)
	}
	o := testOptions(disk)
	o.CleanShutdown = how == 1
	o.RecoveryPoint = l.DurableEnd()
	again, r := mustOpen(t, o)
	if r.Start != to || r.End != l.EndOffset() || again.Segments() != 1 {
		t.Fatalf("%s: at the next start %+v", where, r)
	}
	return true, true
}

// isUnfinished looks at a log whose reset waits for room.
func isUnfinished(t *testing.T, l *Log, to int64, where string) {
	t.Helper()
	if l.StartOffset() != to || l.EndOffset() != to || l.DurableEnd() != to || l.LatestEpoch() >= 0 || len(readAll(t, l, to, 1<<40)) > 0 {
		t.Fatalf("%s: the log is [%d,%d), durable up to %d", where, l.StartOffset(), l.EndOffset(), l.DurableEnd())
	}
	refused := map[string]error{"err": l.Err(), "move the start": l.AdvanceLogStart(to)}
	_, refused["append"] = l.Append([][]byte{batch(t, 1, "x", 1)}, 9)
	_, refused["append at"] = l.AppendAt([][]byte{at(batch(t, 1, "x", 1), to, 9)})
	_, refused["retain"] = l.Retain(l.now(), to)
	for what, err := range refused {
		var full *NoSpaceError
		if !errors.As(err, &full) || !full.Begun {
			t.Errorf("%s: %s: %v", where, what, err)
		}
	}
	// Nothing is left to be synced, so nothing fails for that.
	if end, err := l.Sync(); err != nil || end != to {
		t.Errorf("%s: sync: %d, %v", where, end, err)
	}
	if end, err := l.Checkpoint(); err != nil || end != to {
		t.Errorf("%s: checkpoint: %d, %v", where, end, err)
	}
	if n, err := l.Size(); err != nil || n != 0 {
		t.Errorf("%s: %d bytes, %v", where, n, err)
	}
}
