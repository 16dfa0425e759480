package store

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

func TestHistoryThatWentBackIsRefused(t *testing.T) {
	fsys := memfs.New()
	s := reopen(t, nil, fsys, 1)
	noted := History{Position: Position{Generation: 2, Revision: 50}, EtcdClusterID: 7, Epochs: map[Key]int32{key(1): 4, key(2): 9}}
	if err := s.CheckHistory(noted); err != nil {
		t.Fatalf("on new disks: %v", err)
	}
	s.NoteHistory(noted)
	s.NoteHistory(History{Position: Position{Generation: 2, Revision: 40}, EtcdClusterID: 8, Epochs: map[Key]int32{key(1): 3}}) // older
	if failed := s.Checkpoint(true); len(failed) > 0 {
		t.Fatal(failed)
	}
	// Each disk has it all; one that was replaced makes no difference.
	if err := s.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := fsys.RemoveAll("/d1"); err != nil {
		t.Fatal(err)
	}
	s, err := Open(options(fsys, 2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Abort() })
	with := func(change func(*History)) History {
		h := History{Position: Position{Generation: 2, Revision: 51}, EtcdClusterID: 7, Registered: 51, Epochs: map[Key]int32{key(1): 4}}
		change(&h)
		return h
	}
	for name, tc := range map[string]struct {
		history History
		what    string // "": it is a continuation
	}{
		"it goes on":       {with(func(*History) {}), ""},
		"nothing happened": {with(func(h *History) { h.Revision, h.Registered = 50, 0 }), ""},
		"an unknown etcd":  {with(func(h *History) { h.EtcdClusterID = 0 }), ""},
		"epochs rose":      {with(func(h *History) { h.Epochs = map[Key]int32{key(1): 5, key(2): 9, key(3): 0} }), ""},
		"a topic is gone":  {with(func(h *History) { h.Epochs = nil }), ""},
		"restored": {with(func(h *History) {
			h.Position, h.EtcdClusterID, h.Registered = Position{Generation: 3, Revision: 4}, 9, 2
		}), ""},
		"the generation fell":              {with(func(h *History) { h.Generation = 1 }), "generation"},
		"the revision fell":                {with(func(h *History) { h.Revision, h.Registered = 49, 0 }), "revision"},
		"another etcd":                     {with(func(h *History) { h.EtcdClusterID = 8 }), "etcd cluster"},
		"a registration that is not newer": {with(func(h *History) { h.Revision, h.Registered = 90, 50 }), "registration"},
		"an epoch fell":                    {with(func(h *History) { h.Epochs[key(2)] = 8 }), "leader epoch"},
		"an epoch fell in a restore": {with(func(h *History) {
			h.Position, h.Epochs = Position{Generation: 3, Revision: 1}, map[Key]int32{key(2): 8}
		}), "leader epoch"},
	} {
		var regressed *RegressedError
		err := s.CheckHistory(tc.history)
		if tc.what == "" && err != nil || tc.what != "" && (!errors.As(err, &regressed) || regressed.What != tc.what) {
			t.Errorf("%s: %v, want %q", name, err, tc.what)
		}
	}
	if err := s.Adopt(cluster, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.ForgetTopic(key(2).Topic); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckHistory(with(func(h *History) { h.Epochs[key(2)] = 0 })); err != nil {
		t.Errorf("a deleted topic holds up another: %v", err)
	}
}

func TestDamagedEpochsAreNotSilentlyForgotten(t *testing.T) {
	fsys := memfs.New()
	s := reopen(t, nil, fsys, 1)
	s.NoteHistory(History{Position: Position{Generation: 1, Revision: 5}, EtcdClusterID: 7, Epochs: map[Key]int32{key(1): 4}})
	if failed := s.Checkpoint(true); len(failed) > 0 {
		t.Fatal(failed)
	}
	if err := s.Abort(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("/d1", epochsFile)
	data, err := vfs.ReadFile(fsys, path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := vfs.WriteFileAtomic(fsys, path, data); err != nil {
		t.Fatal(err)
	}
	var file *FileError
	if s, err := Open(options(fsys, 2)); !errors.As(err, &file) || file.Path != path {
		if err == nil {
			_ = s.Abort()
		}
		t.Errorf("opened with damaged epochs: %v", err)
	}
}
