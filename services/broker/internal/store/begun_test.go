package store

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// noRoom lets a disk have no more room after so many calls.
func noRoom(after int) errorfs.Rule {
	return errorfs.Rule{
		Ops: []errorfs.Op{errorfs.OpWrite, errorfs.OpCreate, errorfs.OpMkdirAll, errorfs.OpRename}, Path: "t-", After: after, Err: syscall.ENOSPC, Short: 3,
	}
}

// weigh lets the first disk that had room be the fullest, so that another one is taken.
func (s *Store) weigh(t *testing.T, disk *Disk) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	disk.room.appended.Store(1 << 40)
	if s.emptiest() == disk {
		t.Fatal("the disk is the emptiest still")
	}
}

// foldersOf are the folders of a replica on the disks.
func foldersOf(t *testing.T, fsys vfs.FS, k Key) (dirs []string) {
	t.Helper()
	for _, d := range []string{"/d1", "/d2"} {
		dir := fmt.Sprintf("%s/t-%d", d, k.Partition)
		m, err := commitlog.ReadMetadata(fsys, dir)
		if err == nil && m.TopicID == k.Topic {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// A replica for which there was no room, wherever that showed, is made on another disk: there
// is one folder of it then, and the next start finds that.
func TestWhatFoundNoRoomIsMadeOnAnotherDisk(t *testing.T) {
	k := key(1)
	for name, c := range map[string]struct {
		expected []Key
		before   func(*testing.T, *Store)
		try      func(*Store, Key, string, commitlog.Config) (*Replica, error)
	}{
		"create":                {nil, func(*testing.T, *Store) {}, (*Store).Create},
		"replace a missing one": {[]Key{k}, func(*testing.T, *Store) {}, (*Store).Replace},
		"replace a bad one": {nil, func(t *testing.T, s *Store) {
			r := badCopy(t, s, k, 3)
			r.Disk.room.stage.Store(int32(Full)) // so the replacement is not bound to it
		}, (*Store).Replace},
	} {
		t.Run(name, func(t *testing.T) {
			begun := 0
			for after := 0; ; after++ {
				fsys := errorfs.Wrap(memfs.New())
				s := reopen(t, nil, fsys, 1, c.expected...)
				c.before(t, s)
				fsys.Add(noRoom(after))
				if _, err := c.try(s, k, "t", commitlog.Config{}); err == nil {
					break // it takes no more calls than that
				} else if !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("after %d calls: %v", after, err)
				}
				fsys.Clear()
				if dirs := foldersOf(t, fsys, k); len(dirs) > 0 {
					begun++
					for _, d := range s.Disks() {
						d.room.stage.Store(int32(Roomy))
						if strings.HasPrefix(dirs[0], d.Dir) {
							d.room.stage.Store(int32(Full))
							s.weigh(t, d)
						}
					}
				}
				r, err := c.try(s, k, "t", commitlog.Config{})
				if err != nil {
					t.Fatalf("after %d calls, tried again: %v", after, err)
				}
				if dirs := foldersOf(t, fsys, k); len(dirs) != 1 || dirs[0] != r.Dir {
					t.Errorf("after %d calls: it is in %q, and lies in %q", after, r.Dir, dirs)
				}
				appendTo(t, r, 2)
				s = reopen(t, s, fsys, 2, c.expected...)
				if again := s.Replica(k); again == nil || again.Log == nil || again.Log.EndOffset() != 2 || again.Verdict != r.Verdict {
					t.Fatalf("after %d calls, after a start: %+v", after, again)
				}
			}
			if begun < 2 {
				t.Errorf("%d folders were begun", begun)
			}
		})
	}
}

// A replica that was brought back from the quarantine and could not be opened has its
// records where it was brought to, and goes on there.
func TestWhatWasBroughtBackStaysWhereItIs(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	s := reopen(t, nil, fsys, 1)
	k := key(1)
	r, err := s.Create(k, "t", commitlog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, r, 3)
	if err := s.SetAside(k); err != nil {
		t.Fatal(err)
	}
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpMkdirAll}, Path: "t-1", Err: syscall.ENOSPC})
	if _, err := s.Create(k, "t", commitlog.Config{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if dirs := foldersOf(t, fsys, k); len(dirs) != 1 {
		t.Fatalf("it lies in %q", dirs)
	}
	fsys.Clear()
	s.weigh(t, r.Disk)
	again, err := s.Create(k, "t", commitlog.Config{})
	if err != nil || again.Dir != r.Dir || again.Log.EndOffset() != 3 {
		t.Fatalf("brought back: %+v, %v", again, err)
	}
}

// A bad copy that found no room in the quarantine is not taken for a replica that is to be
// made, nor is there one beside it.
func TestABadCopyInItsPlaceIsNotTakenForANewReplica(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	s := reopen(t, nil, fsys, 1)
	k := key(1)
	r := badCopy(t, s, k, 3)
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpMkdirAll}, Err: syscall.ENOSPC})
	if _, err := s.Replace(k, "t", commitlog.Config{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	fsys.Clear()
	if err := s.ClearVerdict(k); err != nil || s.Verdict(k) != Intact {
		t.Fatalf("verdict %v, %v", s.Verdict(k), err)
	}
	s.weigh(t, r.Disk)
	made, err := s.Create(k, "t", commitlog.Config{})
	if err != nil || made.Log.EndOffset() != 0 || made.Verdict != Intact || made.Fresh || !s.HasReplaced(k) {
		t.Fatalf("made: %+v, %v", made, err)
	}
	appendTo(t, made, 1)
	s = reopen(t, s, fsys, 2, k)
	if v := vouchOf(t, s, k); v.Verdict != Intact || v.End != 1 || !s.HasReplaced(k) {
		t.Errorf("vouch %+v, the bad copy is kept: %v", v, s.HasReplaced(k))
	}
}

// begunTwice makes a replica on the second disk after a try on the first, which failed
// before what was begun could be removed; it gives the store and the replica.
func begunTwice(t *testing.T, fsys *errorfs.FS, fails errorfs.Rule, try func(*Store, Key, string, commitlog.Config) (*Replica, error), expected ...Key) (*Store, *Replica) {
	t.Helper()
	s := reopen(t, nil, fsys, 1, expected...)
	k := key(1)
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpCreate}, Path: "*.log", Err: syscall.ENOSPC})
	if _, err := try(s, k, "t", commitlog.Config{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	fsys.Clear()
	fails.Path, fails.Err = "/d1", syscall.EIO
	fsys.Add(fails)
	s.weigh(t, s.Disks()[0])
	r, err := try(s, k, "t", commitlog.Config{})
	if err != nil || r.Disk != s.Disks()[1] || s.Disks()[0].Err() == nil {
		t.Fatalf("made %+v, %v; the first disk: %v", r, err, s.Disks()[0].Err())
	}
	fsys.Clear()
	if dirs := foldersOf(t, fsys, k); len(dirs) != 2 {
		t.Fatalf("it lies in %q", dirs)
	}
	return s, r
}

// The disk on which a replica was begun fails before that can be removed, and is repaired.
func TestAStartRemovesWhatWasOnlyBegun(t *testing.T) {
	k := key(1)
	for name, c := range map[string]struct {
		expected []Key
		try      func(*Store, Key, string, commitlog.Config) (*Replica, error)
		fails    errorfs.Rule // of the first disk
		batches  int
	}{
		"created":          {nil, (*Store).Create, errorfs.Rule{}, 2},
		"created, empty":   {nil, (*Store).Create, errorfs.Rule{}, 0},
		"made anew":        {[]Key{k}, (*Store).Replace, errorfs.Rule{}, 2},
		"made anew, empty": {[]Key{k}, (*Store).Replace, errorfs.Rule{}, 0},
		"unreadable":       {nil, (*Store).Create, errorfs.Rule{Ops: []errorfs.Op{errorfs.OpReadDir}, After: 1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := errorfs.Wrap(memfs.New())
			s, r := begunTwice(t, fsys, c.fails, c.try, c.expected...)
			appendTo(t, r, c.batches)
			s = reopen(t, s, fsys, 2, k)
			again := s.Replica(k)
			if again == nil || again.Log == nil || again.Log.EndOffset() != int64(c.batches) || again.Verdict != r.Verdict {
				t.Fatalf("after a start: %+v", again)
			}
			if dirs := foldersOf(t, fsys, k); len(dirs) != 1 || dirs[0] != again.Dir {
				t.Errorf("it lies in %q", dirs)
			}
			if n := s.perDisk[s.Disks()[0]] + s.perDisk[s.Disks()[1]]; n != 1 {
				t.Errorf("%d replicas are counted", n)
			}
		})
	}
}

// Of two folders of a replica none goes unless it is certain that nothing is lost by that.
func TestAStartRemovesNothingThatMayBeNeeded(t *testing.T) {
	k := key(1)
	for name, spoil := range map[string]func(*testing.T, *errorfs.FS, *Store){
		"records in both": func(t *testing.T, fsys *errorfs.FS, _ *Store) {
			o := commitlog.Options{FS: fsys, Dir: "/d1/t-1", Topic: "t", Partition: k.Partition, TopicID: k.Topic}
			log, _, err := commitlog.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := log.Append([][]byte{batch(t)}, 1); err != nil {
				t.Fatal(err)
			}
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"a file that nobody knows": func(t *testing.T, fsys *errorfs.FS, _ *Store) {
			if err := vfs.WriteFileAtomic(fsys, "/d1/t-1/other", []byte("x")); err != nil {
				t.Fatal(err)
			}
		},
		"marks": func(t *testing.T, fsys *errorfs.FS, _ *Store) {
			if err := writeSmallFile(fsys, "/d1", recoveryFile, []string{k.String() + " 0"}); err != nil {
				t.Fatal(err)
			}
		},
		"a verdict": func(t *testing.T, fsys *errorfs.FS, _ *Store) {
			if err := writeSmallFile(fsys, "/d1", verdictFile, []string{k.String() + " corrupt"}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := errorfs.Wrap(memfs.New())
			s, r := begunTwice(t, fsys, errorfs.Rule{}, (*Store).Create)
			appendTo(t, r, 2)
			spoil(t, fsys, s)
			if err := s.Abort(); err != nil {
				t.Fatal(err)
			}
			var twice *FileError
			if s, err := Open(options(fsys, 2)); !errors.As(err, &twice) {
				_ = s.Abort()
				t.Errorf("opened: %v", err)
			}
			if dirs := foldersOf(t, fsys, k); len(dirs) != 2 {
				t.Errorf("it lies in %q", dirs)
			}
		})
	}
}
