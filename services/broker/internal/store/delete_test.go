package store

import (
	"errors"
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// A topic that was made again under its name may have its folder where a deletion of the
// earlier topic's, which failed half-way, is tried again.
func TestADeletionTriedAgainLeavesTheNewTopicAlone(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	o := options(fsys, 1)
	o.Dirs = o.Dirs[:1]
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Adopt(cluster, nil); err != nil {
		t.Fatal(err)
	}
	earlier, later := key(0), key(0)
	later.Topic[0]++
	if _, err := s.Create(earlier, "t", commitlog.Config{}); err != nil {
		t.Fatal(err)
	}
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpRemoveAll}, After: 1, Times: 1, Err: syscall.ENOTEMPTY})
	if err := s.Delete(earlier); err == nil {
		t.Fatal("the fault went unnoticed")
	}
	r, err := s.Create(later, "t", commitlog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, r, 3)
	if err := s.Delete(earlier); err != nil || s.Replica(earlier) != nil {
		t.Fatalf("tried again: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.Incarnation++
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r := s.Replica(later); r == nil || r.Log == nil || r.Log.EndOffset() != 3 {
		t.Errorf("the new topic's replica after a start: %+v", r)
	}
}

// A topic is deleted for which a replica could not be made, or made anew, for want of
// room: a topic of the same name finds nothing of it in its way, at once and after a
// start.
func TestADeletionTakesWhatFoundNoRoom(t *testing.T) {
	for name, before := range map[string]func(*testing.T, *Store, Key){
		"replace":               func(t *testing.T, s *Store, k Key) { badCopy(t, s, k, 3) },
		"replace a missing one": func(*testing.T, *Store, Key) {},
		"create": func(t *testing.T, s *Store, k Key) {
			if err := s.ClearVerdict(k); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			tried := 0
			for after := 0; ; after++ {
				fsys := errorfs.Wrap(memfs.New())
				o := options(fsys, 1)
				o.Dirs = o.Dirs[:1]
				s, err := Open(o)
				if err != nil {
					t.Fatal(err)
				}
				earlier, later := key(0), key(0)
				later.Topic[0]++
				expected := []Key{earlier}
				if name == "replace" {
					expected = nil
				}
				if err := s.Adopt(cluster, expected); err != nil {
					t.Fatal(err)
				}
				before(t, s, earlier)
				fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite, errorfs.OpCreate, errorfs.OpMkdirAll, errorfs.OpRename}, After: after, Err: syscall.ENOSPC, Short: 3})
				try := s.Replace
				if name == "create" {
					try = s.Create
				}
				if _, err = try(earlier, "t", commitlog.Config{}); err == nil {
					break // it takes no more calls than that
				}
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("after %d calls: %v", after, err)
				}
				tried++
				fsys.Clear()
				for _, k := range s.Keys() {
					if err := s.Delete(k); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.ForgetTopic(earlier.Topic); err != nil {
					t.Fatal(err)
				}
				if keys := s.Keys(); len(keys) > 0 {
					t.Fatalf("after %d calls: %v are left", after, keys)
				}
				if _, err := s.Create(later, "t", commitlog.Config{}); err != nil {
					t.Fatalf("after %d calls: %v", after, err)
				}
				if there, err := vfs.Exists(fsys, s.disks[0].replacedPath(earlier)); err != nil || there {
					t.Fatalf("after %d calls: the bad copy is kept: %v, %v", after, there, err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				o.Incarnation++
				if s, err = Open(o); err != nil {
					t.Fatal(err)
				}
				if all := s.Replicas(); len(all) != 1 || all[0].Key != later || all[0].Verdict != Intact {
					t.Fatalf("after %d calls, after a start: %+v", after, all)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if tried < 3 {
				t.Errorf("only %d calls were tried", tried)
			}
		})
	}
}

// What is in the way is on a disk that has failed meanwhile: it waits for the next start.
func TestADeletionWaitsForTheDiskOfWhatFoundNoRoom(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	s := reopen(t, nil, fsys, 1)
	k := key(0)
	r := badCopy(t, s, k, 0)
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpMkdirAll}, Err: syscall.ENOSPC})
	if _, err := s.Replace(k, "t", commitlog.Config{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	fsys.Clear()
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpRename}, Times: 1, Err: syscall.EIO})
	if err := s.Delete(k); !errors.Is(err, syscall.EIO) || r.Disk.Err() == nil {
		t.Fatalf("%v, and the disk's is %v", err, r.Disk.Err())
	}
	if err := s.Delete(k); !errors.Is(err, ErrDiskOffline) {
		t.Fatalf("tried again: %v", err)
	}
	if keys := s.Keys(); len(keys) != 1 || keys[0] != k {
		t.Errorf("%v are known of", keys)
	}
}
