package store

import (
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// A log that a follower cuts, agreed with its leader, ends below the recovery point on
// record. A process that dies right after it must not be taken at the next start for one
// that lost what it had promised.
func TestMarksAreLoweredBeforeALogIsCut(t *testing.T) {
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
	// A checkpoint that comes in between must not raise them again.
	for d, err := range s.Checkpoint(true) {
		t.Fatal(d.Dir, err)
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
