package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// A log that a follower cuts, agreed with its leader, ends below the recovery point on
// record. A process that dies right after it must not be taken at the next start for one
// that lost what it had promised.
func TestMarksAreLoweredBeforeALogIsCut(t *testing.T) {
	t.Run("at once", func(t *testing.T) { cutAndCrash(t, false) })
	t.Run("with a checkpoint in between", func(t *testing.T) { cutAndCrash(t, true) })
}

func cutAndCrash(t *testing.T, checkpoint bool) {
	fsys := memfs.New()
	s, err := Open(options(fsys, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Adopt(cluster, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.Create(key(0), "t", commitlog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := r.Log.Append([][]byte{batch(t)}, 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Log.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	r.SetHighWatermark(4)
	for d, err := range s.Checkpoint(true) {
		t.Fatal(d.Dir, err)
	}
	if err := s.LowerMarks(key(0), 6); err != nil {
		t.Fatal(err)
	}
	if checkpoint { // which must not raise them again
		for d, err := range s.Checkpoint(true) {
			t.Fatal(d.Dir, err)
		}
	}
	if end, err := r.Log.TruncateTo(6); err != nil || end != 6 {
		t.Fatalf("cut to %d, %v", end, err)
	}
	fsys.Crash(nil)
	if err := s.Abort(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(options(fsys, 2))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	got := again.Replica(key(0))
	if got == nil || got.Log == nil || got.Verdict != Intact {
		t.Fatalf("after the crash the replica is %+v", got)
	}
	if end, hw := got.Log.EndOffset(), got.HighWatermark(); end != 6 || hw != 4 {
		t.Errorf("after the crash the log ends at %d with the high watermark at %d; want 6 and 4", end, hw)
	}
}

// A log that ends below its marks is found at a start, set aside and made anew. Its
// verdict is durable before there is a new one: else the next start, after a crash, would
// vouch for an empty replica as whole.
func TestAVerdictFoundAtTheStartOutlivesTheNewCopy(t *testing.T) {
	fsys := memfs.New()
	s := reopen(t, nil, fsys, 1)
	k := key(1)
	r, err := s.Create(k, "t", commitlog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, r, 3)
	if failed := s.Checkpoint(true); len(failed) > 0 {
		t.Fatal(failed)
	}
	path := filepath.Join(r.Dir, fmt.Sprintf("%020d.log", 0))
	if err := s.Abort(); err != nil {
		t.Fatal(err)
	}
	f, err := fsys.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(10), f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, nil, fsys, 2, k)
	if v := vouchOf(t, s, k); v.Verdict == Intact {
		t.Fatalf("a log that lost what was durable is vouched for: %+v", v)
	}
	if _, err := s.Replace(k, "t", commitlog.Config{}); err != nil {
		t.Fatal(err)
	}
	fsys.Crash(nil)
	s = reopen(t, s, fsys, 3, k)
	if v := vouchOf(t, s, k); v.Verdict == Intact {
		t.Errorf("after a crash the new copy, which is empty, is vouched for: %+v", v)
	}
}
