package store

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// reopen ends a store without a clean stop and opens the next.
func reopen(t *testing.T, s *Store, fsys vfs.FS, incarnation uint64, expected ...Key) *Store {
	t.Helper()
	if s != nil {
		if err := s.Abort(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(options(fsys, incarnation))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Abort() })
	if err := s.Adopt(cluster, expected); err != nil {
		t.Fatal(err)
	}
	return s
}

// appendTo appends batches to a replica and makes them durable.
func appendTo(t *testing.T, r *Replica, batches int) {
	t.Helper()
	for range batches {
		if _, err := r.Log.Append([][]byte{batch(t)}, 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Log.Sync(); err != nil {
		t.Fatal(err)
	}
	r.SetHighWatermark(r.Log.DurableEnd())
}

// badCopy makes a replica with so many batches, and condemns it.
func badCopy(t *testing.T, s *Store, k Key, batches int) *Replica {
	t.Helper()
	r, err := s.Create(k, "t", commitlog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, r, batches)
	if err := s.SetVerdict(k, Corrupt); err != nil {
		t.Fatal(err)
	}
	return r
}

func vouchOf(t *testing.T, s *Store, k Key) Vouch {
	t.Helper()
	for _, v := range s.Vouches(nil) {
		if v.Key == k {
			return v
		}
	}
	t.Fatalf("nothing is vouched about %v", k)
	return Vouch{}
}

// case 21
func TestADamagedReplicaIsReplacedWhileTheBadCopyIsKept(t *testing.T) {
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
	if err := s.SetVerdict(k, Corrupt); err != nil {
		t.Fatal(err)
	}
	if v := vouchOf(t, s, k); v.Verdict != Corrupt || v.End != 3 {
		t.Errorf("vouch %+v", v)
	}
	// The verdict outlives the process.
	s = reopen(t, s, fsys, 2, k)
	fresh, err := s.Replace(k, "t", commitlog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	kept := fresh.Disk.replacedPath(k)
	exists := func(path string) bool {
		there, err := vfs.Exists(fsys, path)
		if err != nil {
			t.Fatal(err)
		}
		return there
	}
	if fresh.Log.EndOffset() != 0 || !fresh.Fresh || fresh.Verdict != Corrupt || !exists(kept) || !s.HasReplaced(k) {
		t.Fatalf("replaced by end %d, fresh %v, verdict %v, the bad copy is there: %v", fresh.Log.EndOffset(), fresh.Fresh, fresh.Verdict, exists(kept))
	}
	appendTo(t, fresh, 1)
	// A crash while it is being fetched: it goes on where it was, is not vouched
	// for, and the marks of the bad copy do not make it a cut one.
	s = reopen(t, s, fsys, 3, k)
	again := s.Replica(k)
	if again.Log == nil || again.Log.EndOffset() != 1 || !again.Fresh || again.Verdict != Corrupt || !s.HasReplaced(k) {
		t.Fatalf("after a crash: %+v", again)
	}
	if v := vouchOf(t, s, k); v.Verdict != Corrupt || v.End != 1 {
		t.Errorf("vouch %+v", v)
	}
	// A replacement that is bad as well goes; the first copy stays.
	fresh, err = s.Replace(k, "t", commitlog.Config{})
	if err != nil || fresh.Log.EndOffset() != 0 || !exists(kept) {
		t.Fatalf("replaced again: %v", err)
	}
	if m, err := commitlog.ReadMetadata(fsys, kept); err != nil || m.TopicID != k.Topic {
		t.Errorf("the bad copy is %+v, %v", m, err)
	}
	if err := s.ClearVerdict(k); err != nil || s.Verdict(k) != Intact || fresh.Fresh {
		t.Errorf("verdict %v, fresh %v after it was cleared: %v", s.Verdict(k), fresh.Fresh, err)
	}
	if !exists(kept) {
		t.Error("the bad copy went before its replacement was in sync")
	}
	s = reopen(t, s, fsys, 4, k)
	if s.Verdict(k) != Intact || s.Replica(k).Fresh {
		t.Errorf("at the next start: verdict %v, fresh %v", s.Verdict(k), s.Replica(k).Fresh)
	}
	if err := s.DropReplaced(k); err != nil || exists(kept) || s.HasReplaced(k) {
		t.Errorf("the bad copy is there: %v, %v", exists(kept), err)
	}
}

func TestAPardonCountsOnceTheBadCopyIsGone(t *testing.T) {
	fsys := memfs.New()
	s := reopen(t, nil, fsys, 1)
	k := key(1)
	badCopy(t, s, k, 3)
	// That it is not barred, for instance because it has left the in-sync set, makes
	// the log no better.
	if err := s.ClearVerdict(k); err != nil || s.Verdict(k) != Corrupt {
		t.Fatalf("verdict %v, %v", s.Verdict(k), err)
	}
	r, err := s.Replace(k, "t", commitlog.Config{})
	if err != nil || r.Fresh || r.Verdict != Intact || !s.HasReplaced(k) {
		t.Fatalf("replaced: %+v, %v", r, err)
	}
	appendTo(t, r, 1)
	s = reopen(t, s, fsys, 2, k)
	if v := vouchOf(t, s, k); v.Verdict != Intact || v.End != 1 || !s.HasReplaced(k) {
		t.Errorf("vouch %+v, the bad copy is kept: %v", v, s.HasReplaced(k))
	}
}

func TestAMissingReplicaIsMadeAnewUnderItsVerdict(t *testing.T) {
	fsys := memfs.New()
	s := reopen(t, nil, fsys, 1, key(1)) // new disks on which a replica should be
	k := key(1)
	if s.Verdict(k) != Missing {
		t.Fatalf("verdict %v", s.Verdict(k))
	}
	r, err := s.Replace(k, "t", commitlog.Config{})
	if err != nil || r.Log == nil || !r.Fresh {
		t.Fatalf("made anew: %+v, %v", r, err)
	}
	appendTo(t, r, 2)
	s = reopen(t, s, fsys, 2, k)
	if v := vouchOf(t, s, k); v.Verdict != Missing || v.End != 2 || !s.Replica(k).Fresh {
		t.Errorf("vouch %+v, fresh %v", v, s.Replica(k).Fresh)
	}
	if err := s.ClearVerdict(k); err != nil || s.Verdict(k) != Intact {
		t.Errorf("verdict %v, %v", s.Verdict(k), err)
	}
	if v := vouchOf(t, s, k); v.Verdict != Intact || v.End != 2 {
		t.Errorf("vouch %+v", v)
	}
}

// The verdict may be cleared before, while or after the replica is made anew: the
// record that ends it and the session with the leader come side by side.
func TestAVerdictIsClearedAtAnyMoment(t *testing.T) {
	s := reopen(t, nil, memfs.New(), 1, key(1))
	k := key(1)
	if err := s.ClearVerdict(k); err != nil {
		t.Fatal(err)
	}
	r, err := s.Replace(k, "t", commitlog.Config{})
	if err != nil || r.Fresh || s.Verdict(k) != Intact {
		t.Fatalf("cleared before: %+v, %v", r, err)
	}
	for range 20 {
		if err := s.SetVerdict(k, Corrupt); err != nil {
			t.Fatal(err)
		}
		cleared := make(chan error, 1)
		go func() { cleared <- s.ClearVerdict(k) }()
		r, err = s.Replace(k, "t", commitlog.Config{})
		if err := errors.Join(err, <-cleared); err != nil || s.Verdict(k) != Intact || r.Fresh || s.Replica(k) != r {
			t.Fatalf("cleared meanwhile: %+v, %v", r, err)
		}
	}
}

func TestACrashBetweenPuttingAwayAndMakingAnew(t *testing.T) {
	fsys := memfs.New()
	s := reopen(t, nil, fsys, 1)
	k := key(1)
	r, err := s.Create(k, "t", commitlog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, r, 3)
	if err := s.SetVerdict(k, Cut); err != nil {
		t.Fatal(err)
	}
	if err := s.putAway(r); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s, fsys, 2, k)
	if v := vouchOf(t, s, k); v.Verdict != Missing {
		t.Errorf("vouch %+v", v)
	}
	if r, err = s.Replace(k, "t", commitlog.Config{}); err != nil || !r.Fresh || r.Verdict != Cut || !s.HasReplaced(k) {
		t.Errorf("made anew: %+v, %v", r, err)
	}
	if err := s.Delete(k); err != nil || s.HasReplaced(k) {
		t.Errorf("deleted: %v, the bad copy is kept: %v", err, s.HasReplaced(k))
	}
}

func TestAnElectedReplicaIsTrustedAsItIs(t *testing.T) {
	s := reopen(t, nil, memfs.New(), 1)
	k := key(1)
	r := badCopy(t, s, k, 1)
	if err := s.Trust(k); err != nil || s.Verdict(k) != Intact || s.Replica(k).Log.EndOffset() != 1 {
		t.Errorf("verdict %v, %v", s.Verdict(k), err)
	}
	s.DiskFailed(r.Disk, syscall.EIO)
	if err := s.SetVerdict(k, Corrupt); !errors.Is(err, ErrDiskOffline) {
		t.Errorf("on a disk that is offline: %v", err)
	}
	if _, err := s.Replace(k, "t", commitlog.Config{}); err == nil {
		t.Error("a replica on a disk that is offline was replaced")
	}
}

// heldFS counts the files that are made under a name, and holds them up: on each disk the
// first one, for those that follow wait for it.
type heldFS struct {
	vfs.FS
	name  string
	count atomic.Int64
	gate  chan struct{} // nil: nothing is held
}

func (h *heldFS) Create(path string) (vfs.File, error) {
	if strings.Contains(filepath.Base(path), h.name) {
		h.count.Add(1)
		if h.gate != nil {
			<-h.gate
		}
	}
	return h.FS.Create(path)
}

func TestManyVerdictsAreClearedWithFewWrites(t *testing.T) {
	const replicas = 300
	var expected []Key
	for n := range replicas {
		expected = append(expected, key(n))
	}
	inner := memfs.New()
	fsys := &heldFS{FS: inner, name: verdictFile}
	s := reopen(t, nil, fsys, 1, expected...)
	for _, k := range expected {
		if _, err := s.Replace(k, "t", commitlog.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	fsys.count.Store(0)
	fsys.gate = make(chan struct{})
	var g errgroup.Group
	for _, k := range expected {
		g.Go(func() error { return s.ClearVerdict(k) })
	}
	for left := replicas; left > 0; {
		left = 0
		s.mu.Lock()
		for _, d := range s.disks {
			left += len(d.verdicts)
		}
		s.mu.Unlock()
		runtime.Gosched()
	}
	close(fsys.gate)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if writes := fsys.count.Load(); writes > replicas/10 {
		t.Errorf("%d writes for %d replicas", writes, replicas)
	}
	if err := s.Abort(); err != nil {
		t.Fatal(err)
	}
	inner.Crash(nil)
	s = reopen(t, nil, inner, 2, expected...)
	for _, v := range s.Vouches(nil) {
		if v.Verdict != Intact {
			t.Fatalf("vouch %+v", v)
		}
	}
}

// case 44: a replacement for which there is no room goes on where it stood, wherever
// that was, and forgets nothing of the bad copy.
func TestAReplacementThatFoundNoRoomIsTriedAgain(t *testing.T) {
	tried := 0
	for after := 0; ; after++ {
		mem := memfs.New()
		fsys := errorfs.Wrap(mem)
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
		if err := s.SetVerdict(k, Corrupt); err != nil {
			t.Fatal(err)
		}
		fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite, errorfs.OpCreate, errorfs.OpMkdirAll}, After: after, Err: syscall.ENOSPC, Short: 3})
		if _, err = s.Replace(k, "t", commitlog.Config{}); err == nil {
			break // it takes no more calls than that
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("after %d calls: %v", after, err)
		}
		tried++
		if after%2 == 0 { // a pardon that comes before the next try
			if err := s.ClearVerdict(k); err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
		}
		fsys.Clear()
		fresh, err := s.Replace(k, "t", commitlog.Config{})
		if err != nil {
			t.Fatalf("after %d calls, tried again: %v", after, err)
		}
		if !s.HasReplaced(k) || fresh.Log.EndOffset() != 0 {
			t.Fatalf("after %d calls: the bad copy is kept: %v, the new one ends at %d", after, s.HasReplaced(k), fresh.Log.EndOffset())
		}
		// The marks of the bad copy do not make the new one a cut one.
		s = reopen(t, s, fsys, 2, k)
		if v := vouchOf(t, s, k); v.Verdict == Cut || v.Verdict == Missing || v.End != 0 {
			t.Errorf("after %d calls, after a crash: %+v", after, v)
		}
	}
	if tried < 3 {
		t.Errorf("only %d calls of a replacement were tried", tried)
	}
}
